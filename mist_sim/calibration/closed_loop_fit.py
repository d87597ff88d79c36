"""Fits an engine's own time to mean TTFT and TPOT of a real engine under closed loops.

Each point is simulated as a whole: ten requests a user, all of one length. TPOT counts fully, TTFT
half: it depends on the protocol of the measurement, which is rarely known in every detail.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mist_sim.calibration.fitted_figures import (
    Array,
    Calibration,
    Figure,
    Observations,
    calibrate,
    require_rows,
)
from mist_sim.checks import NotNegative, check_fields
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.errors import ScenarioError
from mist_sim.hardware import GpuSpec
from mist_sim.hardware.sampling import Sampling
from mist_sim.hardware.tables.base import read_columns
from mist_sim.scenario import llm_client, server_limits
from mist_sim.scenario.engines.versions import version_of
from mist_sim.simulation import Simulation
from mist_sim.traces import ClosedLoop, Workload

if TYPE_CHECKING:
    import pandas as pd

REQUESTS_PER_USER = 10
GREEDY = Sampling(temperature=0)  # of loads with given lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopProtocol:
    """The drivers of closed loops, and the limits of the engine that served them, greedily.

    think_time: seconds from an answer to the user's next request (>= 0).
    max_num_batched_tokens, max_num_seqs: of the engine; None: the defaults of vLLM's server on the
        GPU.
    tokens_beyond_prompt: if the engine was restarted for each length of prompts with
        max_num_batched_tokens of that length plus this; None: one value for all.
    engine: the version of vLLM that was measured, which says whether host and GPU took turns; None:
        the newest that is known.
    """

    think_time: float = 0.0
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    tokens_beyond_prompt: NotNegative[int] | None = None
    engine: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        version_of(self.engine)  # refuses names that are not known
        ClosedLoop(concurrency=1, think_time=self.think_time)  # refuses invalid times
        if self.tokens_beyond_prompt is None:
            return
        if self.max_num_batched_tokens is not None:
            raise ValueError(
                "max_num_batched_tokens has no effect together with tokens_beyond_prompt"
            )

    def scheduler(self, gpu: GpuSpec, prompt: int) -> ChunkedScheduler:
        """Return the scheduler of the engine that served prompts of that many tokens.

        Raises ScenarioError for limits that no engine has.
        """
        limits = server_limits(gpu, version=version_of(self.engine))
        tokens = self.max_num_batched_tokens or limits.max_num_batched_tokens
        if self.tokens_beyond_prompt is not None:
            tokens = prompt + self.tokens_beyond_prompt
        seqs = self.max_num_seqs or min(limits.max_num_seqs, tokens)
        try:
            return ChunkedScheduler(max_num_seqs=seqs, max_num_batched_tokens=tokens)
        except ValueError as error:
            raise ScenarioError(str(error)) from None

    def simulated(self, gpu: GpuSpec, model: str, point: tuple[int, ...]) -> tuple[float, float]:
        """Return mean TPOT and mean TTFT in seconds.

        point: tokens of a prompt and of an answer, users, and ranks.
        Raises ScenarioError for a point with requests that the engine cannot serve.
        """
        prompt, output, concurrency, ranks = point
        client = llm_client(
            "llm",
            model=model,
            gpu=gpu,
            engine=self.engine,
            tensor_parallel_size=ranks,
            scheduler=self.scheduler(gpu, prompt),
            sampling=GREEDY,
        )
        number = REQUESTS_PER_USER * concurrency
        users = ClosedLoop(concurrency=concurrency, think_time=self.think_time)
        workload = Workload.from_lists([prompt] * number, [output] * number, arrivals=users)
        summary = Simulation(clients=[client], workload=workload).run().summary
        if summary["failed"]:
            raise ScenarioError(
                f"isl {prompt}, osl {output}, concurrency {concurrency}, tp_size {ranks}: "
                f"{summary['failed']} of {number} requests do not fit into {model} on {gpu.name}; "
                "leave such points out"
            )
        return summary["mean_tpot_ms"] * 1e-3, summary["mean_ttft_ms"] * 1e-3

    def __str__(self) -> str:
        """The differences to the default, for the source of figures."""
        limits = ("max_num_batched_tokens", "tokens_beyond_prompt", "max_num_seqs")
        said = [f"{name} {value}" for name in limits if (value := getattr(self, name)) is not None]
        delay = [f"think_time {self.think_time * 1e3:g} ms"] if self.think_time else []
        version = f"engine {version_of(self.engine).name}"
        return ", ".join([f"{REQUESTS_PER_USER} requests a user", version, *delay, *said])


FIGURES = (
    Figure("overhead.step", 2.5e-3, 0.0, 0.02),
    Figure("overhead.sequence", 2e-5, 0.0, 1e-3),
    Figure("overhead.request", 0.02, 0.0, 0.2),
)
PROMPT_TOKEN = Figure("overhead.prompt_token", 2e-6, 0.0, 1e-4)
_COLUMNS = ("isl", "osl", "concurrency", "tp_size", "silicon_ttft_ms", "silicon_tpot_ms")


def calibrate_closed_loop(
    path: Path, gpu: GpuSpec, model: str, protocol: LoopProtocol | None = None
) -> Calibration:
    """Fit to every second point of each number of ranks, and score the others.

    The time of a prompt's token is fitted where the points to fit have prompts of several lengths,
    which alone tell it from the time of a request.

    Raises ScenarioError for files that are not of the form (see `closed_loop_observations`), and
    for fewer points to fit than figures, and limits that no engine has.
    """
    protocol = protocol or LoopProtocol()
    source = f"{path.name}, {model}, {protocol}"
    figures = _figures(_points(path))
    return calibrate(gpu, figures, closed_loop_observations(path, model, protocol), source)


def closed_loop_observations(path: Path, model: str, protocol: LoopProtocol) -> Observations:
    """Return mean TPOT of every point and then mean TTFT, every second one held out.

    path: CSV of aiconfigurator's form: isl, osl, concurrency, tp_size, silicon_ttft_ms,
    silicon_tpot_ms.

    Raises ScenarioError for columns that are missing, sizes and times that are not > 0, answers of
    one token, which have no TPOT, and fewer points to fit than figures.
    """
    rows = _points(path)
    points = [tuple(map(int, point)) for point in rows[list(_COLUMNS[:4])].to_numpy()]
    number = len(points)
    held_out = rows["held_out"].to_numpy()
    require_rows(held_out, len(_figures(rows)), str(path))

    def predict(spec: GpuSpec, chosen: NDArray[np.bool_]) -> Array:
        wanted = chosen[:number] | chosen[number:]
        means = np.full((2, number), np.nan)
        for position in np.flatnonzero(wanted):
            means[:, position] = protocol.simulated(spec, model, points[position])
        return np.asarray(means.ravel()[chosen])

    return Observations(
        predict,
        measured=rows[["silicon_tpot_ms", "silicon_ttft_ms"]].to_numpy(float).T.ravel() * 1e-3,
        quantity=["mean TPOT"] * number + ["mean TTFT"] * number,
        weight=np.repeat([1.0, 0.5], number),
        held_out=np.tile(held_out, 2),
    )


def _points(path: Path) -> pd.DataFrame:
    """Return the measured points by number of ranks, every second one `held_out`."""
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
    return rows.assign(held_out=rows.groupby("tp_size").cumcount() % 2 == 1)


def _figures(points: pd.DataFrame) -> tuple[Figure, ...]:
    """Return the figures that the points to fit can tell apart."""
    lengths = points.loc[~points["held_out"], "isl"]
    return (*FIGURES, PROMPT_TOKEN) if lengths.nunique() > 1 else FIGURES
