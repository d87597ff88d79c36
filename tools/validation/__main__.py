"""Simulates the published runs, and prints both with the errors.

python -m tools.validation --measurements ../shared/measurements
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from mist_sim.cli.verbs.validate import show_runs
from tools.command import run
from tools.validation.known import known_runs, missing

MEASUREMENTS = Path("../shared/measurements")


def main(words: Sequence[str] | None = None) -> None:
    """Print a table for each run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--measurements", type=Path, default=MEASUREMENTS, help=f"by default {MEASUREMENTS}"
    )
    runs = known_runs(parser.parse_args(words).measurements)
    show_runs([each for each in runs if not missing(each)])
    for each in filter(missing, runs):
        print(f"{each.name}\n  skipped: needs {missing(each)}")


if __name__ == "__main__":
    run(main)
