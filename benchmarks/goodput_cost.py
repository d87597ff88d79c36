"""How long does a goodput take beside one by the workload as it stands, where that is right?

`python -m benchmarks.goodput_cost` searches the first designs of the random settings of
`decisions`, and prints a line of JSON for each, and a count. A goodput of so many requests as they
stand is right where it lies within 3 % of that of long runs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from time import process_time
from typing import Any

import numpy as np

from benchmarks.decisions import MARGIN, setting
from benchmarks.long_runs import LongRuns
from mist_sim.scenario import Scenario
from mist_sim.scenario.loading import as_data
from mist_sim.search import Goodput, GoodputOptions, find_goodput

LENGTHS = (400, 1_000, 3_000, 10_000)  # requests of a workload that is judged as it stands

Row = dict[str, Any]


def cost(number: int) -> Row:
    """Return the processor time, s, of a goodput, and of those of workloads as they stand."""
    scenario = next(iter(setting(number)[1].values()))
    found, seconds = _timed(scenario, GoodputOptions())
    row: Row = {"number": number, "goodput": found.rate, "seconds": seconds, "as it stands": []}
    if found.status != "found":
        return row
    low, high = LongRuns().goodput(scenario, found.rate)
    for length in LENGTHS:
        workload = Scenario.from_dict(as_data(scenario), {"workload.lengths.num_requests": length})
        judged, seconds = _timed(workload, GoodputOptions(as_is=True))
        is_right = low * (1 - MARGIN) <= judged.rate <= high * (1 + MARGIN)
        row["as it stands"].append([judged.rate, is_right, seconds])
    return row | {"long runs": [low, high]}


def _timed(scenario: Scenario, options: GoodputOptions) -> tuple[Goodput, float]:
    begun = process_time()
    found = find_goodput(scenario, options, jobs=1)
    return found, process_time() - begun


def summary(rows: list[Row]) -> Iterator[str]:
    """Yield, for each length, how many are right, and how many times as long a goodput takes."""
    found = [row for row in rows if row["as it stands"]]
    for place, length in enumerate(LENGTHS):
        times = []
        for row in found:
            _, is_right, seconds = row["as it stands"][place]
            if is_right:
                times.append(row["seconds"] / seconds)
        line = f"{length:,} requests as they stand are right in {len(times)} of {len(found)}"
        if times:
            line += f"; a goodput takes {np.median(times):.1f} times as long there"
            line += f" (median; {min(times):.1f} to {max(times):.1f})"
        yield line


def main() -> None:
    """Print the rows and what they say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=12)
    options = parser.parse_args()
    rows = []
    for number in range(options.first, options.first + options.count):
        rows.append(cost(number))
        print(json.dumps(rows[-1]), flush=True)
    print(*summary(rows), sep="\n")


if __name__ == "__main__":
    main()
