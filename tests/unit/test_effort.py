"""Random tests draw the same cases in every order of tests."""

from __future__ import annotations

import pytest
from hypothesis.internal.conjecture.providers import HypothesisProvider

from tests.effort import PROFILE, SEED


@pytest.mark.skipif(
    SEED != 0 or PROFILE == "explore", reason="other seeds also draw constants of the modules"
)
def test_no_constants_of_imported_modules_are_drawn() -> None:
    assert len(HypothesisProvider(None)._local_constants) == 0
