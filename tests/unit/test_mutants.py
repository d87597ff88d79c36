"""The planted mistakes that exactness tests must notice fit the code as it is."""

import re

from tests.mutants import ROOT, stale_mutants


def test_the_text_of_every_mutant_stands_once_in_its_file():
    assert [mutant.what for mutant in stale_mutants()] == []


def test_copies_have_all_that_their_tests_import():
    """Of the tests, copies have no folder `unit`; without it all of them would seem to fail."""
    others = [path for path in (ROOT / "tests").rglob("*.py") if "unit" not in path.parts]
    found = [
        path.relative_to(ROOT).as_posix()
        for path in others
        if {"property", "reference"} & set(path.parts)
        and re.search(r"(from|import) tests\.unit", path.read_text("utf-8"))
    ]
    assert found == []
