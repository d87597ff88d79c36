"""Fits an engine's own time to mean TTFT and TPOT of a real engine under closed loops.

Each point is simulated as a whole: ten requests a user, all of one length, no think time. TPOT
counts fully, TTFT half: the protocol of the measurement was not published, and TTFT hangs on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.calibration.figures import (
    Array,
    Calibration,
    Figure,
    Observations,
    calibrate,
    require_rows,
)
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.errors import ScenarioError
from mist_sim.hardware import GpuSpec
from mist_sim.hardware.tables.reading import read_columns
from mist_sim.scenario import llm_client
from mist_sim.simulation import Simulation
from mist_sim.traces import ClosedLoop, Workload

REQUESTS_PER_USER = 10
FIGURES = (
    Figure("overhead.step", 2.5e-3, 0.0, 0.02),
    Figure("overhead.sequence", 2e-5, 0.0, 1e-3),
    Figure("overhead.request", 0.02, 0.0, 0.2),
)
_COLUMNS = ("isl", "osl", "concurrency", "tp_size", "silicon_ttft_ms", "silicon_tpot_ms")


def calibrate_closed_loop(
    path: Path, gpu: GpuSpec, model: str, limits: Mapping[str, Any] | None = None
) -> Calibration:
    """Fit to every second point of each number of ranks, and score the others.

    limits: `max_num_batched_tokens` and `max_num_seqs` of the engine measured; else the default.

    Raises ScenarioError for files that are not of the form (see `closed_loop_observations`), and
    for fewer points to fit than figures, and limits that no engine has.
    """
    limits = limits or {}
    try:
        ChunkedScheduler(**limits)
    except ValueError as error:
        raise ScenarioError(str(error)) from None
    parts = [path.name, model, f"{REQUESTS_PER_USER} requests a user"]
    source = ", ".join([*parts, *(f"{name} {value}" for name, value in limits.items())])
    return calibrate(gpu, FIGURES, closed_loop_observations(path, model, limits), source)


def closed_loop_observations(
    path: Path, model: str, limits: Mapping[str, Any] | None = None
) -> Observations:
    """Return mean TPOT of every point and then mean TTFT, every second one held out.

    path: CSV of aiconfigurator's form: isl, osl, concurrency, tp_size, silicon_ttft_ms,
    silicon_tpot_ms.

    Raises ScenarioError for columns that are missing, sizes and times that are not > 0, answers of
    one token, which have no TPOT, and fewer points to fit than figures.
    """
    rows = read_columns(path, _COLUMNS).sort_values("tp_size", kind="stable")
    wrong = (rows[list(_COLUMNS)] <= 0).any(axis=1)
    if wrong.any():
        raise ScenarioError(f"{path}: line {wrong.idxmax()}: lengths, users and times must be > 0")
    single = rows.index[rows["osl"] < 2]
    if len(single):
        raise ScenarioError(
            f"{path}: line {single[0]}: osl must be >= 2, got {rows['osl'][single[0]]}; "
            "an answer of one token has no TPOT, leave such points out"
        )
    points = [tuple(map(int, point)) for point in rows[list(_COLUMNS[:4])].to_numpy()]
    number = len(points)
    held_out = rows.groupby("tp_size").cumcount().to_numpy() % 2 == 1
    require_rows(held_out, len(FIGURES), str(path))

    def predict(spec: GpuSpec, chosen: NDArray[np.bool_]) -> Array:
        wanted = chosen[:number] | chosen[number:]
        means = np.full((2, number), np.nan)
        for position in np.flatnonzero(wanted):
            means[:, position] = _simulated(spec, model, points[position], limits or {})
        return np.asarray(means.ravel()[chosen])

    return Observations(
        predict,
        measured=rows[["silicon_tpot_ms", "silicon_ttft_ms"]].to_numpy(float).T.ravel() * 1e-3,
        quantity=["mean TPOT"] * number + ["mean TTFT"] * number,
        weight=np.repeat([1.0, 0.5], number),
        held_out=np.tile(held_out, 2),
    )


def _simulated(
    gpu: GpuSpec, model: str, point: tuple[int, ...], limits: Mapping[str, Any]
) -> tuple[float, float]:
    """Return mean TPOT and mean TTFT of a point in seconds.

    Raises ScenarioError for a point whose requests the engine cannot serve.
    """
    prompt, output, concurrency, ranks = point
    scheduler = ChunkedScheduler(**limits)
    client = llm_client(
        "llm", model=model, gpu=gpu, tensor_parallel_size=ranks, scheduler=scheduler
    )
    number = REQUESTS_PER_USER * concurrency
    users = ClosedLoop(concurrency=concurrency)
    workload = Workload.from_lists([prompt] * number, [output] * number, arrivals=users)
    summary = Simulation(clients=[client], workload=workload).run().summary
    if summary["failed"]:
        raise ScenarioError(
            f"isl {prompt}, osl {output}, concurrency {concurrency}, tp_size {ranks}: "
            f"{summary['failed']} of {number} requests do not fit into {model} on {gpu.name}; "
            "leave such points out"
        )
    return summary["mean_tpot_ms"] * 1e-3, summary["mean_ttft_ms"] * 1e-3
