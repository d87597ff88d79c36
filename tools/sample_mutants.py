"""Keep a random sample of the mutants of a session of cosmic-ray: the others are marked skipped.

    python -m tools.sample_mutants SESSION.sqlite [--number 100] [--seed 7] [--only lane.py]

After `cosmic-ray init` and its filters, before `cosmic-ray exec`: see "Tests" in CONTRIBUTING.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import WorkerOutcome, WorkItem, WorkResult

from mist_sim.rng import Streams

_SKIPPED = WorkResult(output="not in the sample", worker_outcome=WorkerOutcome.SKIPPED)


def sample(session: WorkDB, number: int, seed: int, only: str = "") -> int:
    """Skip all pending mutants but so many, of files whose path ends so; return how many stay.

    The same seed takes the same ones of the same sources.
    """

    def place(item: WorkItem) -> tuple[str, str, int]:
        mutation = item.mutations[0]
        return str(mutation.module_path), mutation.operator_name, mutation.occurrence

    items = sorted(session.pending_work_items, key=place)
    wanted = [n for n, item in enumerate(items) if place(item)[0].endswith(only)]
    order = Streams(seed).generator("mutants").permutation(len(wanted))[:number]
    chosen = {wanted[n] for n in order}
    left_out = [item.job_id for n, item in enumerate(items) if n not in chosen]
    session.set_multiple_results(left_out, _SKIPPED)
    return len(chosen)


def main(
    session: Annotated[Path, typer.Argument(exists=True, help="what `cosmic-ray init` made")],
    number: Annotated[int, typer.Option(help="mutants to keep")] = 100,
    seed: Annotated[int, typer.Option(help="of the draw")] = 7,
    only: Annotated[str, typer.Option(help="end of the paths to draw from, such as lane.py")] = "",
) -> None:
    """Skip all mutants but a random sample."""
    with use_db(session) as opened:
        print(f"{sample(opened, number, seed, only)} mutants stay")


if __name__ == "__main__":
    typer.run(main)
