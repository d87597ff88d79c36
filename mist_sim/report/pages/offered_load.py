"""The load that a run was asked to serve, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mist_sim.report.pictures.run_data import RunData


def offered_load(run: RunData) -> str:
    """Return a run's load: a rate as the scenario says it, users, or a burst.

    Rates that change, a trace's own and those of a run without a scenario are means over all
    arrivals.
    """
    arrivals = _arrivals(run.scenario)
    if arrivals.get("type") == "closed_loop":
        return _some(arrivals["concurrency"], "user")
    if rate := arrivals.get("rate"):
        return f"{float(str(rate).removesuffix('/s')):g} requests a second"
    summary = run.summary
    some = _some(summary["completed"] + summary["failed"], "request")
    if arrivals.get("type") == "all_at_once":
        return f"a burst of {some}"
    if "stability" not in summary or not run.has("requests"):
        return some  # of users, whose number only a scenario says, or all at once
    table = run.table("requests")
    sent = table["arrival_time"][table["parent_id"].isna()]
    return f"{(len(sent) - 1) / (sent.max() - sent.min()):.3g} requests a second on average"


def _arrivals(scenario: str | None) -> Mapping[str, Any]:
    """Return the arrivals of a resolved scenario, whose rates are per second; {} without one."""
    if scenario is None:
        return {}
    from ruamel.yaml import YAML, YAMLError

    try:
        found: Any = YAML(typ="safe", pure=True).load(scenario)["workload"]["arrivals"]
    except YAMLError:  # someone changed the file; the figures are there all the same
        return {}
    return found if isinstance(found, Mapping) else {}


def _some(number: int, name: str) -> str:
    return f"{number:,} {name}{'s' * (number != 1)}"
