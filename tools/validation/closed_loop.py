"""Closed loops on H100s: sixty measured points against steps of measured kernels.

Qwen3-32B in bf16 on vLLM 0.12 with 2 and 8 H100s; mean TTFT and TPOT at fixed concurrency, from
the sample of measurements in aiconfigurator-core, whose kernel times the simulation uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.predictors import EngineOverhead, Predictor
from mist_sim.hardware.sampling import Sampling
from mist_sim.hardware.tables.base import read_columns
from mist_sim.models import load_model
from mist_sim.scenario import llm_client
from mist_sim.simulation import Simulation
from mist_sim.traces import ClosedLoop, Workload

if TYPE_CHECKING:
    import pandas as pd

    from mist_sim_silicon import SiliconPredictor

# How the project that measured them starts engines and loads them, as far as that is public:
# batch size (128 where none is chosen) + prompt + 1,500 tokens in a step (aiconfigurator,
# generator/rule_plugin/benchmark/vllm.rule); ten requests a user, all of one length, after a
# warm-up that does not count (eval/benchmarks/genai_perf_runner.py). The digits of the measured
# means, sums over the number of requests, say ten a user too.
TOKENS_BEYOND_PROMPT = 128 + 1500
REQUESTS_PER_USER = 10
GPUS = (2, 8)
MAX_NUM_SEQS = 1024  # vLLM's server by default on GPUs of 70 GiB and more (engine/arg_utils.py)

GREEDY = Sampling(temperature=0)  # what the load asks for is not said; TPOT shows no sort

CLIENT_DELAY = 2e-3  # seconds; an assumption, which hardly matters as long as there is one
# Seconds that a token of a prompt takes on its way to the engine, fitted on TTFT of half of the
# points: around measured kernels (benchmarks/closed_loop.py), and around the roofline by mist
# calibrate closed_loop (examples/gpus/h100-sxm-vllm-0.12.toml). With the client's delay they are
# the way of these requests, in place of the front end.
PROMPT_TOKEN, PROMPT_TOKEN_ROOFLINE = 2.5e-6, 2.33e-6
_SIZES = ("isl", "osl", "concurrency", "tp_size")
QUEUES = 4.0  # seconds of TTFT from which on a point is one of a queue for memory


def measured_points(file: Path) -> pd.DataFrame:
    """Return the measured points; `half` says which the engine's own time was fitted on."""
    points = read_columns(file, [*_SIZES, "silicon_ttft_ms", "silicon_tpot_ms"])
    points = points.astype(dict.fromkeys(_SIZES, int)).reset_index(drop=True)
    if not points["tp_size"].isin(GPUS).all():
        raise ScenarioError(f"{file}: tp_size must be one of {', '.join(map(str, GPUS))}")
    points["half"] = np.where(np.arange(len(points)) // 2 % 2, "held out", "fitted")
    return points


def predictors() -> dict[int, SiliconPredictor]:
    """Return the predictors of measured kernels (`plugins/silicon`), by the number of GPUs."""
    from mist_sim_silicon import SiliconPredictor

    model, gpu = load_model("qwen3-32b"), load_gpu("h100-sxm")
    return {ranks: SiliconPredictor(model, Cluster(gpu, ranks)) for ranks in GPUS}


def simulated(
    points: pd.DataFrame,
    timed_by: Mapping[int, Predictor],
    *,
    step: float | None = None,
    sequence: float | None = None,
    prompt_token: float | None = PROMPT_TOKEN,
    max_num_batched_tokens: Callable[[int], int] = lambda prompt: prompt + TOKENS_BEYOND_PROMPT,
) -> pd.DataFrame:
    """Return the points with simulated means, and errors in percent.

    step, sequence: the engine's own time in seconds; None: the predictor's default.
    prompt_token: additional client delay per prompt token, seconds; None: requests come through the
        default front end.
    """
    if prompt_token is None:
        way, delay = EngineOverhead(step=step, sequence=sequence), 0.0
    else:
        way = EngineOverhead(step=step, sequence=sequence, request=0.0, prompt_token=prompt_token)
        delay = CLIENT_DELAY
    means = [
        _summary(
            point,
            predictor=timed_by[point.tp_size],
            overhead=way,
            scheduler=ChunkedScheduler(
                max_num_seqs=MAX_NUM_SEQS,
                max_num_batched_tokens=max_num_batched_tokens(point.isl),
            ),
            users=ClosedLoop(concurrency=point.concurrency, think_time=delay),
        )
        for point in _rows(points)
    ]
    found = points.assign(
        ttft_ms=[mean["mean_ttft_ms"] for mean in means],
        tpot_ms=[mean["mean_tpot_ms"] for mean in means],
    )
    for metric in ("ttft", "tpot"):
        measured = found[f"silicon_{metric}_ms"]
        found[f"{metric}_error"] = 100 * (found[f"{metric}_ms"] / measured - 1)
    return found


def _rows(points: pd.DataFrame) -> Iterator[Any]:
    return points.itertuples()


def _summary(
    point: Any, users: ClosedLoop, overhead: EngineOverhead, **parts: Any
) -> Mapping[str, Any]:
    client = llm_client(
        "llm",
        model="qwen3-32b",
        gpu="h100-sxm",
        engine="vllm-0.12",
        tensor_parallel_size=point.tp_size,
        overhead=overhead,
        sampling=GREEDY,
        **parts,
    )
    num_requests = REQUESTS_PER_USER * point.concurrency
    workload = Workload.from_lists(
        [point.isl] * num_requests, [point.osl] * num_requests, arrivals=users
    )
    return Simulation(clients=[client], workload=workload).run().summary


def queued(points: pd.DataFrame) -> pd.Series[bool]:
    """Tell which points were measured with a queue for memory."""
    return points["silicon_ttft_ms"] >= 1e3 * QUEUES
