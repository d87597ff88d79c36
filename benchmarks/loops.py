"""Which loop the engines of each preset and example take, and why: `python -m benchmarks.loops`."""

from __future__ import annotations

from pathlib import Path

from mist_sim import Scenario
from mist_sim.clients import LlmClient
from mist_sim.scenario.build import build
from mist_sim.scenario.presets import preset_names

EXAMPLES = Path(__file__).parents[1] / "examples/scenarios"

NO_TRACE = {
    "workload": {
        "lengths": {"type": "profile", "num_requests": 1},
        "arrivals": {"type": "poisson", "rate": "1 /s"},
    }
}

Found = dict[str, dict[str, list[str]]]
"""By scenario, and in it by the option that needs the general loop (empty: plain), the clients."""


def found() -> Found:
    """Return it for every scenario that has engines; trace files need not be there."""
    loops: Found = {}
    for path in [*preset_names(), *sorted(EXAMPLES.glob("*.yaml"))]:
        name = path if isinstance(path, str) else path.name
        here: dict[str, list[str]] = {}
        has_trace = isinstance(path, Path) and "trace:" in path.read_text("utf-8")
        said = Scenario.load(path, overrides=NO_TRACE if has_trace else {})
        for client in build(said).clients:
            if isinstance(client, LlmClient):
                here.setdefault(client.needs_general_loop, []).append(client.name)
        if here:
            loops[name] = here
    return loops


def table(loops: Found) -> str:
    """Return a table in Markdown: scenarios by loop and reason."""
    by_reason: dict[str, list[str]] = {}
    for name, here in loops.items():
        reason = "; ".join(sorted(filter(None, here)))
        by_reason.setdefault(reason, []).append(f"`{name}`")
    lines = ["| loop | because of | scenarios |", "|---|---|---|"]
    for reason in sorted(by_reason):
        loop = "general" if reason else "plain"
        names = ", ".join(by_reason[reason])
        lines.append(f"| {loop} | {reason or 'nothing prevents it'} | {names} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(found()))
