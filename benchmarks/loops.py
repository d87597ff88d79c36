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

Found = dict[str, set[tuple[str, str]]]
"""By scenario, the loops of its clients, each with what another loop is taken for."""


def found() -> Found:
    """Return it for every scenario that has engines; trace files need not be there."""
    loops: Found = {}
    for path in [*preset_names(), *sorted(EXAMPLES.glob("*.yaml"))]:
        name = path if isinstance(path, str) else path.name
        has_trace = isinstance(path, Path) and "trace:" in path.read_text("utf-8")
        said = Scenario.load(path, overrides=NO_TRACE if has_trace else {})
        simulation = build(said)
        engines = [each for each in simulation.clients if isinstance(each, LlmClient)]
        if engines:
            loops[name] = {loop_of(client) for client in engines}
    return loops


def loop_of(client: LlmClient) -> tuple[str, str]:
    """Return the loop that `auto` takes, and the option that prevents a faster one."""
    if reason := client.needs_general_loop:
        return "general", reason
    return "core", "nothing prevents it"


def table(loops: Found) -> str:
    """Return a table in Markdown: scenarios by loop and reason."""
    by_loop: dict[tuple[str, str], list[str]] = {}
    for name, here in loops.items():
        for each in here:
            by_loop.setdefault(each, []).append(f"`{name}`")
    lines = ["| loop | because of | scenarios |", "|---|---|---|"]
    lines += [
        f"| {loop} | {why} | {', '.join(by_loop[loop, why])} |" for loop, why in sorted(by_loop)
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(found()))
