"""Ranges, words and tuples that annotations of dataclasses ask for."""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mist_sim
from mist_sim.checks import Checked, Count, NotNegative, Positive, Range, Share, hints_of
from mist_sim.units import PerSecond, Seconds
from tests.refusals import refused


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part(Checked):
    """One field of each kind."""

    time: Positive[Seconds] | None = None
    number: Positive[int] = 1
    count: Count = 1
    share: Share = 0.5
    word: Literal["pull", "push"] = "pull"
    either: NotNegative[Seconds] | Literal["auto"] = "auto"
    hinted: Annotated[int, Range("[2, inf)", "one is the null block")] | None = None
    several: tuple[NotNegative[Seconds], ...] = ()
    listed: Sequence[Annotated[float, Range("(0, 100]")]] | None = None
    named: Mapping[str, Positive[PerSecond]] = dataclasses.field(default_factory=dict)


test_what_an_annotation_excludes_is_refused = refused(
    lambda said: Part(**said),
    ({"time": 0.0}, "time must be finite and > 0 s, got 0.0"),
    ({"time": float("inf")}, "time must be finite and > 0 s, got inf"),
    ({"time": float("nan")}, "time must be finite and > 0 s, got nan"),
    ({"time": "2 ms"}, "time must be a number, got '2 ms', write 0.002"),
    ({"number": 0}, "number must be >= 1, got 0"),
    ({"count": 10**10}, "count must be in [1, 1000000000], got 10000000000"),
    ({"share": 1.5}, "share must be in (0, 1], got 1.5"),
    ({"word": "pul"}, "word has no 'pul'; did you mean 'pull'? Known: pull, push"),
    ({"either": -1.0}, "either must be finite and >= 0 s, got -1.0"),
    ({"either": "never"}, "either has no 'never'. Known: auto"),
    ({"hinted": 1}, "hinted must be >= 2, got 1; one is the null block"),
    ({"several": (1.0, -1.0)}, "several must be finite and >= 0 s, got -1.0"),
    ({"several": "1 s"}, "several must be a tuple, got '1 s'; write ('1 s',)"),
    ({"listed": [50.0, 101.0]}, "listed must be in (0, 100], got 101.0"),
    ({"named": {"a": 1.0, "b": 0.0}}, "named.b must be finite and > 0 /s, got 0.0"),
    error=ValueError,
)


@given(value=st.floats(allow_nan=True), low=st.integers(-3, 0), high=st.integers(1, 3))
def test_an_interval_has_what_its_ends_say(value: float, low: int, high: int) -> None:
    assert (value in Range(f"[{low}, {high}]")) == (low <= value <= high)
    assert (value in Range(f"({low}, {high})")) == (low < value < high)
    assert (value in Range(f"[{low}, inf)")) == (low <= value < float("inf"))


def test_a_subclass_of_names_that_only_a_function_knows_keeps_the_rules_of_its_base() -> None:
    class Unknown:
        pass

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Own(Part):
        more: Unknown | None = None

    with pytest.raises(ValueError, match="number must be >= 1"):
        Own(number=0)


def test_every_annotation_of_the_package_can_be_read() -> None:
    """One that cannot would switch off the checks of its whole class."""
    found = 0
    for each in pkgutil.walk_packages(mist_sim.__path__, "mist_sim."):
        if each.name.endswith("__main__"):
            continue
        for kind in vars(import_module(each.name)).values():
            if inspect.isclass(kind) and dataclasses.is_dataclass(kind):
                found += hasattr(kind, "__post_init__") and bool(hints_of(kind))
    assert found > 200
