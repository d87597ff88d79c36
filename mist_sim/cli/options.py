"""Options that several verbs have, with the same words in all of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mist_sim.studies.task import Executor

Jobs = Annotated[
    int | None, typer.Option(metavar="N", help="Parallel runs; by default one per core.")
]
Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Run on a running cluster: dask://HOST:PORT or ray://HOST:PORT.",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Write the results into this new or empty folder."),
]
Force = Annotated[
    bool, typer.Option("--force", help="Replace earlier results in DIR; other files stay.")
]
ReplaceFile = Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")]
SavedResults = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        help="The folder that mist run, compare, goodput, plan, search or sweep wrote with --out.",
        show_default=False,
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the results as JSON in place of the tables.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only results and errors.")]

Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Continue a stopped run of the same command, with its results in DIR.",
    ),
]

MostRequests = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Length of the longest run, in requests; a rate that it cannot judge is "
        "undecided. By default 30000, and four times as many where the interval would be wide.",
    ),
]
Attainment = Annotated[
    float | None,
    typer.Option(
        help="Share of the requests that must keep the limits; by default slo.attainment, or 0.9.",
        show_default=False,
    ),
]
Tolerance = Annotated[
    float, typer.Option(help="Stop when the goodput is known to within this share.")
]
GoodputTolerance = Annotated[
    float | None,
    typer.Option(help="Stop when a goodput is known to within this share; by default 0.02."),
]
Seed = Annotated[int | None, typer.Option(help="Set the seed.", show_default=False)]
Replications = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Search with N seeds; gives the mean and a confidence interval."
    ),
]
Seconds = Annotated[
    float,
    typer.Option(help="Stop by a clock, so that the answer depends on the machine; 0: never."),
]
TtftMs = Annotated[float | None, typer.Option(metavar="MS", help="Limit on TTFT.")]
TpotMs = Annotated[float | None, typer.Option(metavar="MS", help="Limit on TPOT.")]
InputLen = Annotated[int | None, typer.Option(metavar="N", help="Tokens of each prompt.")]
OutputLen = Annotated[int | None, typer.Option(metavar="N", help="Tokens of each answer.")]
AsIs = Annotated[
    bool,
    typer.Option(
        "--as-is",
        help="Judge the workload's own requests, ramp and end included; without it runs go "
        "on until steady state is judged.",
    ),
]


def require_out(force: bool, out: Path | None, resume: bool = False) -> None:
    """Refuse --force and --resume without an output; raises ScenarioError."""
    from mist_sim.errors import ScenarioError

    for name, is_given in (("--force", force), ("--resume", resume)):
        if is_given and out is None:
            raise ScenarioError(f"{name} has no effect without --out; give --out too")


def executor_of(cluster: str | None, jobs: int | None) -> Executor | None:
    """Return the executor of a study on a cluster; None: local processes.

    Raises ScenarioError for an invalid address, and together with --jobs.
    """
    from mist_sim.errors import ScenarioError
    from mist_sim.studies.clusters import executor_at

    if cluster is None:
        return None
    if jobs is not None:
        raise ScenarioError("--jobs has no effect with --cluster; its workers decide; leave it out")
    return executor_at(cluster)
