"""`mist observe`: drive a live server with a scenario's workload, and record its answers."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from mist_sim.cli.scenario_input import Settings, load
from mist_sim.cli.session import note
from mist_sim.cli.signals import Saved
from mist_sim.cli.values import overrides_of
from mist_sim.errors import ScenarioError

if TYPE_CHECKING:
    from mist_sim.traces import Workload


def observe(
    url: str,
    scenario: str,
    *,
    out: Path,
    model: str,
    engine: str = "not said",
    settings: Settings = (),
    vocabulary: int = 30_000,
    timeout: float = 600.0,
    allow_programs: bool = False,
    force: bool = False,
    quiet: bool = False,
) -> None:
    """Send a scenario's requests to a live server and time its answers, for mist validate.

    url URL: Of a server with OpenAI's API, such as http://localhost:8000.
    scenario SCENARIO: The scenario whose workload is sent, and which is to be validated.
    out DIR: Write the run into this folder.
    model NAME: The model's name at the server.
    engine TEXT: The engine and its version, for the record.
    vocabulary N: Prompts are random ids of tokens from 100 to N.
    timeout SECONDS: Give up a request whose answer is not whole after so many seconds.
    """
    from mist_sim.cli.progress import Progress
    from mist_sim.observation import Observation, Prompts, Server, write_run
    from mist_sim.output import output_folder
    from mist_sim.report.elements import show
    from mist_sim.report.trace import observed_table
    from mist_sim.rng import Streams
    from mist_sim.scenario.build import build_workload

    loaded = load(scenario, overrides_of(settings), allow_programs=allow_programs)
    workload = build_workload(loaded)
    if (stages := loaded.workload.stages) != ["prefill", "decode"]:
        raise ScenarioError(
            f"observe sends prompts and times their answers, got a pipeline of "
            f"{', '.join(stages)}; leave workload.pipeline out"
        )
    if vocabulary <= 100 or not 0 < timeout < float("inf"):
        raise ScenarioError("--vocabulary must be > 100, and --timeout > 0 s and finite")
    server = Server(
        url=url.rstrip("/"),
        model=model,
        prompts=Prompts(vocabulary, loaded.seed),
        timeout=timeout,
    )
    seen, stop = Observation(), None
    with Saved() as saved, output_folder(out, replace=force) as folder:
        saved.output = folder
        try:
            requests = workload.requests(Streams(loaded.seed), in_runs=False)
            with Progress(workload.num_requests, visible=not quiet) as progress:
                server.observe(requests, seen, progress=progress, **_users(workload))
        except KeyboardInterrupt as interruption:
            stop = interruption
            if not seen.answered:
                raise
        name = f"{scenario} on {url}"
        folder.fill(lambda place: write_run(place, seen.requests, loaded, name=name, engine=engine))
        show(name, observed_table(seen.latencies, len(seen.answered)))
        if failed := [each.error for each in seen.requests if each.error]:
            number = f"{len(failed)} of {len(seen.requests)}"
            note(f"{number} requests have no whole answer, the first because: {failed[0]}")
        note(f"This machine noted answers up to {seen.lateness * 1e3:.0f} ms late")
        if stop is not None:
            raise stop
    note(f"Written to {out}; next: mist validate {quote(str(out))}")


def _users(workload: Workload) -> dict[str, Any]:
    """Return the users of a closed loop; empty for an open one."""
    loop = workload.closed_loop
    if workload.time_limits or workload.retries or workload.max_concurrency:
        raise ScenarioError(
            "observe sends every request once and waits for it; leave out time limits, retries "
            "and max_concurrency"
        )
    if loop is None:
        return {}
    if loop.sessions:
        raise ScenarioError("observe does not go through sessions; leave out arrivals.sessions")
    if not isinstance(loop.think_time, float | int):
        raise ScenarioError("observe takes a constant arrivals.think_time, got a law of times")
    return {"users": loop.concurrency, "think_time": loop.think_time}
