"""Tables of what is refused: a row has the arguments of a call, and what its error says."""

import re
from collections.abc import Callable

import pytest

from mist_sim.errors import ScenarioError


def refusal(call: Callable[[], object], error: type[BaseException] = ScenarioError) -> str:
    """Return what is said by the error that a call raises."""
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


def says(text: str, told: str) -> bool:
    """Tell whether a text contains these words, or matches them as a pattern."""
    return told in text or re.search(told, text) is not None


def refused(
    call: Callable[..., object], *rows: tuple, error: type[BaseException] = ScenarioError
) -> Callable[..., None]:
    """Return a test that a call refuses the arguments of each row, in the row's last words."""

    @pytest.mark.parametrize(
        ("arguments", "told"), [(row[:-1], row[-1]) for row in rows], ids=[str(r[-1]) for r in rows]
    )
    def test(arguments: tuple, told: str) -> None:
        said = refusal(lambda: call(*arguments), error)
        assert says(said, told), said

    return test
