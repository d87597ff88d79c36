"""Leave a random sample of the mutants in a session of cosmic-ray.

    python -m tools.sample_mutants SESSION.sqlite [--number 100] [--seed 7] [--only lane.py]

After `cosmic-ray init`, before `cosmic-ray exec`: see "Tests" in CONTRIBUTING.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import WorkItem

from mist_sim.rng import Streams

_IN_ANNOTATIONS = "core/ReplaceBinaryOperator_BitOr_"  # int | None: such a mutant computes the same


def sample(session: WorkDB, number: int, seed: int, only: str = "") -> int:
    """Leave so many pending mutants of files whose path ends so; return how many there are.

    The same seed leaves the same ones of the same sources.
    """

    def place(item: WorkItem) -> tuple[str, str, int]:
        mutation = item.mutations[0]
        return str(mutation.module_path), mutation.operator_name, mutation.occurrence

    items = sorted(session.pending_work_items, key=place)
    items = [
        item
        for item in items
        if place(item)[0].endswith(only) and not place(item)[1].startswith(_IN_ANNOTATIONS)
    ]
    order = Streams(seed).generator("mutants").permutation(len(items))[:number]
    session.clear()
    session.add_work_items([items[n] for n in order])
    return len(order)


def main(
    session: Annotated[Path, typer.Argument(exists=True, help="what `cosmic-ray init` made")],
    number: Annotated[int, typer.Option(help="mutants to leave")] = 100,
    seed: Annotated[int, typer.Option(help="of the draw")] = 7,
    only: Annotated[str, typer.Option(help="end of the paths to draw from, such as lane.py")] = "",
) -> None:
    """Leave a random sample of the mutants."""
    with use_db(session) as opened:
        print(f"{sample(opened, number, seed, only)} mutants")


if __name__ == "__main__":
    typer.run(main)
