"""The load that a run was asked to serve, in words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mist_sim.report.pictures.run_data import RunData

_ARRIVALS = re.compile(r"^  arrivals:\n((?: {4}.*\n)+)", re.MULTILINE)
_RATE = re.compile(r"(\S+) /s")
_KEY = re.compile(r"^ {4}(\w+): (\S.*)$", re.MULTILINE)


def offered_load(run: RunData) -> str:
    """Return a run's load: a rate as the scenario says it, users, or a burst.

    Rates that change, a trace's own and those of a run without a scenario are means over all
    arrivals.
    """
    arrivals = _arrivals(run.scenario)
    if arrivals.get("type") == "closed_loop":
        return _some(int(arrivals["concurrency"]), "user")
    if rate := _RATE.fullmatch(arrivals.get("rate", "")):
        return f"{float(rate[1]):g} requests a second"
    summary = run.summary
    some = _some(summary["completed"] + summary["failed"], "request")
    if arrivals.get("type") == "all_at_once":
        return f"a burst of {some}"
    if "stability" not in summary or not run.has("requests"):
        return some  # of users, whose number only a scenario says, or all at once
    table = run.table("requests")
    sent = table["arrival_time"][table["parent_id"].isna()]
    return f"{(len(sent) - 1) / (sent.max() - sent.min()):.3g} requests a second on average"


def _arrivals(scenario: str | None) -> dict[str, str]:
    """Return the arrivals of a resolved scenario, whose rates are per second; {} without one.

    They are read by their lines, as `Scenario.resolved` writes them: YAML is above this package.
    """
    found = _ARRIVALS.search(scenario or "")
    return dict(_KEY.findall(found[1])) if found else {}


def _some(number: int, name: str) -> str:
    return f"{number:,} {name}{'s' * (number != 1)}"
