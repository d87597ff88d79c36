"""`mist observe`: drive a live server with a scenario's workload, and record its answers."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import typer

from mist_sim.cli.options import Force, Quiet
from mist_sim.cli.scenario_input import AllowPrograms, Settings, load
from mist_sim.cli.settings import overrides_of

if TYPE_CHECKING:
    from mist_sim.traces import Workload


def observe(
    url: str = typer.Argument(
        ..., metavar="URL", help="Of a server with OpenAI's API, such as http://localhost:8000."
    ),
    scenario: str = typer.Argument(
        ...,
        metavar="SCENARIO",
        help="The scenario whose workload is sent, and which is to be validated.",
    ),
    out: Path = typer.Option(
        ..., metavar="DIR", help="Write the run into this folder.", show_default=False
    ),
    model: str = typer.Option(
        ..., metavar="NAME", help="The model's name at the server.", show_default=False
    ),
    engine: str = typer.Option(
        "not said", metavar="TEXT", help="The engine and its version, for the record."
    ),
    settings: Settings = [],  # noqa: B006 - typer makes a new list
    vocabulary: int = typer.Option(
        30_000, metavar="N", help="Prompts are random ids of tokens from 100 to N."
    ),
    timeout: float = typer.Option(
        600.0,
        metavar="SECONDS",
        help="Give up a request whose answer is not whole after so many seconds.",
    ),
    allow_programs: AllowPrograms = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Send a scenario's requests to a live server and time its answers, for mist validate."""
    from mist_sim.cli.progress import Progress
    from mist_sim.cli.session import note
    from mist_sim.cli.signals import Saved
    from mist_sim.errors import ScenarioError
    from mist_sim.observation import Observation, Prompts, Server, write_run
    from mist_sim.output import output_folder
    from mist_sim.report.elements import show
    from mist_sim.report.observed import observed_table
    from mist_sim.rng import Streams
    from mist_sim.scenario.build import build_workload

    loaded = load(scenario, overrides_of(settings), allow_programs=allow_programs)
    workload = build_workload(loaded)
    _require_completions(loaded.workload.stages)
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


def _require_completions(stages: list[str]) -> None:
    """Raise ScenarioError for requests that are more than a prompt and its answer."""
    from mist_sim.errors import ScenarioError

    if stages != ["prefill", "decode"]:
        raise ScenarioError(
            f"observe sends prompts and times their answers, got a pipeline of "
            f"{', '.join(stages)}; leave workload.pipeline out"
        )


def _users(workload: Workload) -> dict[str, Any]:
    """Return the users of a closed loop; empty for an open one."""
    from mist_sim.errors import ScenarioError

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
