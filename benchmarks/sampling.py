"""Methods that learn what to try, beside exhaustive searches of spaces drawn from a number.

Spaces have 128 configurations: GPUs, counts, tensor parallel sizes, chunks, sequences and routers,
in one of four shapes, with one of three mixes of lengths and one of four rates. Each configuration
is run once, of 60 requests; then each method tries a fifth of a space, 26 configurations, for each
of five objectives. `python -m benchmarks.sampling [FIRST [LAST [SEEDS [FOLDER]]]]` prints how near
the methods come to the best; FOLDER keeps the figures of the spaces.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mist_sim.rng import Streams
from mist_sim.scenario import Scenario
from mist_sim.search.spaces import SearchOptions, Space, search_space
from mist_sim.search.spaces.evaluation import Evaluation
from mist_sim.search.spaces.learning import sample
from mist_sim.search.spaces.objectives import constraints_of, objectives_of

OBJECTIVES = (
    "p99_ttft",
    "p99_tpot",
    "p90_e2el",
    "energy_per_output_token_j",
    "cost_per_million_output_tokens_usd",
)
GPUS = ("h100-sxm", "l40s", "a100-80gb-sxm", "h200", "a100-40gb-sxm", "rtx-pro-6000")
CHUNKS = (256, 512, 1024, 2048, 4096, 8192)
_AXES = (
    "clients.0.gpu",
    "clients.0.count",
    "clients.0.tensor_parallel_size",
    "clients.0.scheduler.max_num_batched_tokens",
    "clients.0.scheduler.max_num_seqs",
    "router",
)
SHAPES = ((4, 2, 2, 2, 2, 2), (4, 4, 2, 2, 1, 2), (4, 2, 2, 4, 2, 1), (4, 4, 2, 4, 1, 1))
"""Values of each axis: 128 configurations."""
SHARE = 5  # one in so many is tried
NEAR = 0.98  # of the best
SIDE_BY_SIDE = SearchOptions().side_by_side


def space_of(number: int) -> Space:
    """Return a space drawn from a number."""
    rng = Streams(number).generator("spaces")
    lengths = str(rng.choice(["azure-conv-2023", "sharegpt-300", "azure-code-2023"]))
    rate = int(rng.choice([20, 40, 80, 160]))
    scenario = {
        "model": "llama-3.1-8b",
        "workload": {
            "lengths": {"type": "profile", "name": lengths, "num_requests": 60},
            "arrivals": {"type": "poisson", "rate": f"{rate} /s"},
        },
        "clients": [{"name": "llm", "gpu": "h100-sxm"}],
        "cost": {},
    }
    sizes = dict(zip(_AXES, SHAPES[int(rng.integers(len(SHAPES)))], strict=True))
    values: dict[str, list[Any]] = {
        "clients.0.gpu": rng.permutation(GPUS).tolist(),
        "clients.0.count": [1, 2, 3, 4],
        "clients.0.tensor_parallel_size": [1, 2],
        "clients.0.scheduler.max_num_batched_tokens": rng.permutation(CHUNKS).tolist(),
        "clients.0.scheduler.max_num_seqs": [256, int(rng.choice([8, 16, 32]))],
        "router": ["round_robin", "least_outstanding"],
    }
    vary = {key: of[: sizes[key]] for key, of in values.items()}
    return Space(
        scenario=Scenario.from_dict(scenario),
        vary=vary,
        constraints=constraints_of({}),
        objectives=objectives_of(list(OBJECTIVES)),
    )


class Known(Evaluation):
    """Evaluates configurations by what was found before. figures: by number of configuration."""

    def __init__(self, objective: str, figures: Mapping[int, float]) -> None:
        super().__init__(objectives_of(objective), constraints_of({}), runs=None)  # type: ignore[arg-type]
        self._known = figures

    def run(self, several: Any) -> None:
        """Take down the figures of some configurations."""
        for each in several:
            figure = self._known.get(each.number)
            (objective,) = self.objectives
            found = {} if figure is None else {objective.name: figure}
            each.status, each.figures = "kept" if found else "failed", found
            self.told.append(each)


def figures_of(number: int, folder: Path | None) -> list[dict[str, float]]:
    """Return the figures of all configurations of a space. folder: keeps what was found before."""
    path = folder / f"space_{number}.json" if folder is not None else None
    if path is not None and path.exists():
        found: list[dict[str, float]] = json.loads(path.read_text())
        return found
    rows = search_space(space_of(number), SearchOptions(), jobs=1).rows
    found = [dict(row["figures"]) for row in rows]
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
    return found


def reached(
    number: int, method: str, objective: str, seed: int, rows: list[dict[str, float]]
) -> float:
    """Return the best of a space over the best that a method finds in a fifth of the runs."""
    several = space_of(number).configurations()
    figures = {k: row[objective] for k, row in enumerate(rows) if objective in row}
    evaluation = Known(objective, figures)
    most = -(-len(several) // SHARE)
    sample(method, several, evaluation, most, SIDE_BY_SIDE, seed)
    tried = [figures[each.number] for each in evaluation.told if each.number in figures]
    return min(figures.values()) / min(tried) if tried else 0.0


def told(method: str, found: np.ndarray[Any, Any]) -> Iterator[str]:
    """Yield the cells of a row. found: shape (spaces, objectives, seeds)."""
    near = found >= NEAR
    yield method
    yield f"{100 * found.mean():.1f} %"
    yield f"{100 * near.mean():.0f} %"
    yield f"{100 * found.min():.0f} %"
    yield f"{int(near.all(axis=(1, 2)).sum())} of {len(found)}"
    yield f"{int((found.mean(axis=(1, 2)) >= NEAR).sum())} of {len(found)}"


def main() -> None:
    """Print a row a method."""
    first, last, seeds = map(int, (*sys.argv[1:4], *("0", "9", "4")[len(sys.argv[1:4]) :]))
    folder = Path(sys.argv[4]) if len(sys.argv) > 4 else None
    tables = {number: figures_of(number, folder) for number in range(first, last + 1)}
    for method in ("nsga2", "tpe"):
        found = np.array(
            [
                [
                    [reached(number, method, name, seed, rows) for seed in range(seeds)]
                    for name in OBJECTIVES
                ]
                for number, rows in tables.items()
            ]
        )
        print("| " + " | ".join(told(method, found)) + " |", flush=True)


if __name__ == "__main__":
    main()
