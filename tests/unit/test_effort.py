"""Random tests draw the same cases whichever tests ran before, with every seed and profile."""

from hypothesis.internal.conjecture.providers import HypothesisProvider


def test_no_constants_of_imported_modules_are_drawn() -> None:
    assert len(HypothesisProvider(None)._local_constants) == 0
