"""How many random examples tests take: few while editing, some in every run, many on demand."""

from __future__ import annotations

import os

from hypothesis import Phase, settings

FACTORS = {"quick": 0.2, "ci": 1.0, "explore": 10.0}
"""Profiles, by what each multiplies the number of examples with. The default is `ci`."""

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")


def load_profile() -> None:
    """Let Hypothesis run as the environment's HYPOTHESIS_PROFILE says.

    `quick` reports the first failure as it is found: to have it simplified, run that test again
    without the profile. `explore` takes other examples every time.
    """
    seldom_wrong = settings(deadline=None, print_blob=False, max_examples=_scaled(100))
    settings.register_profile("ci", seldom_wrong, derandomize=True)
    settings.register_profile(
        "quick",
        seldom_wrong,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        report_multiple_bugs=False,
    )
    settings.register_profile("explore", seldom_wrong, print_blob=True)
    settings.load_profile(PROFILE)


def examples(number: int) -> settings:
    """Return the decorator of a test that takes so many examples in the profile `ci`."""
    return settings(max_examples=_scaled(number))


def _scaled(number: int) -> int:
    return max(1, round(number * FACTORS[PROFILE]))
