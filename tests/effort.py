"""How many random examples tests take: few while editing, some in every run, many on demand."""

import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import Phase, given, seed, settings
from hypothesis.internal.conjecture import providers
from hypothesis.strategies import SearchStrategy

FACTORS = {"least": 0.02, "quick": 0.2, "ci": 0.1, "explore": 10.0}
"""Profiles, by what each multiplies the number of examples with. The default is `ci`."""

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")


def _seed() -> int:
    """Return the environment's TEST_SEED; with `explore` another one every time, also for workers.

    Workers of a parallel run inherit the environment.
    """
    other = secrets.randbelow(10**6) if PROFILE == "explore" else 0
    return int(os.environ.setdefault("TEST_SEED", str(other)))


SEED = _seed()
"""Random tests draw what they always do with 0, and something else with every other number."""

HOW_TO_REPEAT = f"random tests repeat with TEST_SEED={SEED} HYPOTHESIS_PROFILE={PROFILE}"


def load_profile() -> None:
    """Let Hypothesis run as the environment's HYPOTHESIS_PROFILE says.

    `quick` reports the first failure as it is found: to have it simplified, run that test again
    without the profile. `least` does so with a tenth of its examples, for mutants. `explore` takes
    other examples every time, and so does any profile with another TEST_SEED; `HOW_TO_REPEAT` says
    with which.
    """
    is_same = SEED == 0
    _draw_no_constants_of_modules()
    seldom_wrong = settings(deadline=None, print_blob=False, max_examples=_scaled(60))
    settings.register_profile("ci", seldom_wrong, derandomize=is_same)
    for name in ("least", "quick"):
        settings.register_profile(
            name,
            seldom_wrong,
            derandomize=is_same,
            database=None,
            phases=(Phase.explicit, Phase.generate),
            report_multiple_bugs=False,
        )
    settings.register_profile("explore", seldom_wrong, print_blob=True)
    settings.load_profile(PROFILE)


def examples(number: int) -> settings:
    """Return the decorator of a test that takes so many examples times the profile's factor."""
    return settings(max_examples=_scaled(number))


ENOUGH = 3  # cases that show a feature
_ROUND, _MOST_ROUNDS = 60, 50


def features_seen(
    strategy: SearchStrategy[Any], features: Callable[[Any], set[str]], wanted: Iterable[str]
) -> Counter[str]:
    """Draw cases, from `SEED` on, until each wanted feature was seen often enough, or for long.

    Returns how many cases showed each feature, and under "cases" how many there were. With another
    seed other cases are drawn; what shows in one case of 300 is still found, except with one seed
    of 500.
    """
    seen: Counter[str] = Counter()
    for number in range(_MOST_ROUNDS):

        @seed(SEED + number)
        @settings(max_examples=_ROUND, database=None, derandomize=False, phases=[Phase.generate])
        @given(case=strategy)
        def look(case: Any) -> None:
            seen["cases"] += 1
            seen.update(features(case))

        look()
        if not missing(seen, wanted):
            break
    return seen


def missing(seen: Counter[str], wanted: Iterable[str]) -> list[str]:
    """Return the features that were not seen often enough."""
    return [feature for feature in wanted if seen[feature] < ENOUGH]


def _draw_no_constants_of_modules() -> None:
    """Let a test draw the same values whichever modules its process has imported before.

    Hypothesis mixes in constants that it finds in imported local modules. Which those are depends
    on the tests that a worker ran before, and the constants change with every edit.
    """
    providers._get_local_constants = lambda: providers._local_constants


def _scaled(number: int) -> int:
    return max(1, round(number * FACTORS[PROFILE]))
