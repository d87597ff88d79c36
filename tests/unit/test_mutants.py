"""The planted mistakes that exactness tests must notice fit the code as it is."""

from tests.mutants import stale_mutants


def test_the_text_of_every_mutant_stands_once_in_its_file():
    assert [mutant.what for mutant in stale_mutants()] == []
