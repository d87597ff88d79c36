"""Which tests are slow: `make test` leaves them to `make test-slow`.

They stand in slow.txt, by what was measured:

    make test PYTEST_ARGS="-m 'not deep and not page' --junitxml times.xml"
    python -m tests.slow times.xml
"""

import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

LIST = Path(__file__).with_name("slow.txt")
SECONDS = 1.5  # from here on a test is slow
LAWS = ("tests/property/test_exactness.py", "tests/property/test_laws.py")
"""Tests of `make test` however long they take."""


def slow_tests() -> frozenset[str]:
    """Return the slow tests: node ids, or those of functions of which every case is slow."""
    return frozenset(LIST.read_text("utf-8").splitlines())


def is_slow(node: str, known: frozenset[str]) -> bool:
    return node in known or node.partition("[")[0] in known


def lines_of(times: Mapping[str, float]) -> list[str]:
    """Return the lines of the list. times: of each test, seconds, by node id."""
    functions: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for node, seconds in times.items():
        functions[node.partition("[")[0]].append((node, seconds))
    found: list[str] = []
    for name, cases in functions.items():
        if name.startswith(LAWS):
            continue
        slow = [node for node, seconds in cases if seconds >= SECONDS]
        found += [name] if len(slow) == len(cases) else slow
    return sorted(found)


def times_of(report: Path) -> dict[str, float]:
    """Return the times in a report of `pytest --junitxml`, by node id."""
    cases = ET.parse(report).iter("testcase")  # noqa: S314 - our own file
    return {
        f"{each.attrib['classname'].replace('.', '/')}.py::{each.attrib['name']}": float(
            each.attrib["time"]
        )
        for each in cases
    }


if __name__ == "__main__":
    LIST.write_text("\n".join([*lines_of(times_of(Path(sys.argv[1]))), ""]), "utf-8")
