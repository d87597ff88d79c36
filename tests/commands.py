"""The command line, called in the process of a test."""

import pytest

from mist_sim.cli import main


def exit_code(*words: object) -> int:
    """Run `mist` with these words; return the code that it ends with."""
    with pytest.raises(SystemExit) as leaving:
        main([str(word) for word in words])
    return int(leaving.value.code or 0)


def mist(*words: object, code: int = 0) -> None:
    """Run `mist` with these words, which must end with a code."""
    assert exit_code(*words) == code
