"""Laws of sources that interpolate: more work takes no less time, whatever noise was measured.

What they promise is less than the roofline does, since they look up means and add up parts: for
prompts alone and decodes alone more of anything, for both together longer contexts of the decodes,
also where they are uneven.
Tables of kernels promise more of anything for both together too, in the measured range.
The second half: a GPU with better figures never makes a step longer.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from mist_sim.core.batch import StepBatch
from mist_sim.hardware import Cluster, Efficiency, GpuSpec, load_gpu
from mist_sim.hardware.predictors import (
    BestServePredictor,
    Predictor,
    RooflinePredictor,
    TablePredictor,
)
from mist_sim.hardware.predictors.measured.regression import RegressionPredictor
from mist_sim.hardware.predictors.measured.sampled import SampledSteps, SamplePoints, powers
from mist_sim.hardware.predictors.measured.timing_store import TimingStore
from mist_sim.models import load_model
from mist_sim.rng import Streams
from mist_sim_silicon import SiliconPredictor
from tests.effort import examples
from tests.reference import measured
from tests.reference.regression_files import regression_content, written

MODEL = load_model("llama-3.1-8b")
EXPERTS = load_model("qwen3-30b-a3b")
H100 = load_gpu("h100-sxm")
SPREAD = 0.3  # of the noise on every measured time, up and down


class NoisySource:
    """Seconds by a law of tokens, pairs and keys, each answer off by its own share."""

    def __init__(self) -> None:
        self.identity = {"source": "noise"}
        self._noise = Streams(7).generator("noise")

    def seconds(self, batches: list[StepBatch]) -> list[float]:
        return [self._law(batch) * self._noise.uniform(1 - SPREAD, 1 + SPREAD) for batch in batches]

    def _law(self, batch: StepBatch) -> float:
        pairs = sum(new * (context + new / 2) for new, context in batch.chunks)
        tokens = batch.num_prefill_tokens + batch.num_decodes
        return 1e-3 + 1e-5 * tokens + 1e-9 * pairs + 1e-8 * batch.context_sum


def noisy(path: Path) -> Path:
    """Make the last number of every row of a file, or of all files of a folder, off by a share."""
    noise = Streams(11).generator(path.name)
    for file in sorted(path.glob("*.csv")) if path.is_dir() else [path]:
        lines = file.read_text().splitlines()
        last = [re.fullmatch(r"(.*,)([0-9.eE+-]+)", line) for line in lines]
        file.write_text(
            "\n".join(
                f"{found[1]}{float(found[2]) * noise.uniform(1 - SPREAD, 1 + SPREAD)!r}"
                if found and file.name != "skew.csv"
                else line
                for line, found in zip(lines, last, strict=True)
            )
            + "\n"
        )
    return path


def write_expert_layers(folder: Path) -> Path:
    measured.write_layer_profile(folder, EXPERTS.num_layers)
    return measured.write_experts(folder, EXPERTS.num_layers)


def noisy_regression(folder: Path) -> str:
    noise = Streams(5).generator("regression")
    stages = regression_content()["stages"]
    for stage in stages.values():
        stage["seconds"] = [
            [seconds * noise.uniform(1 - SPREAD, 1 + SPREAD) for seconds in row]
            for row in stage["seconds"]
        ]
    return written(folder / "r.json", stages=stages)


def silicon(name: str) -> Callable[[Path], Predictor]:
    """Return what makes the predictor of a model on eight B200s from aisimulate's tables."""

    def make(_: Path) -> Predictor:
        cluster = Cluster(load_gpu("b200"), 8)
        return SiliconPredictor(load_model(name), cluster, package="aisimulate")

    return make


POINTS = SamplePoints(
    new_tokens=powers(1, 4096),
    prompt_contexts=[0, *powers(256, 16384)],
    decodes=powers(1, 256),
    decode_contexts=[0, *powers(256, 16384)],
)

MAKERS: dict[str, Callable[[Path], Predictor]] = {
    "steps": lambda folder: TablePredictor(
        MODEL, Cluster(H100), str(noisy(measured.write_steps(folder))), "steps"
    ),
    "layer_profile": lambda folder: TablePredictor(
        MODEL,
        Cluster(H100),
        str(noisy(measured.write_layer_profile(folder, MODEL.num_layers))),
        "layer_profile",
    ),
    "experts": lambda folder: TablePredictor(
        EXPERTS,
        Cluster(H100, data_parallel_size=2, enable_expert_parallel=True),
        str(noisy(write_expert_layers(folder))),
        "layer_profile",
    ),
    "vidur": lambda folder: TablePredictor(
        MODEL, Cluster(H100), str(noisy(measured.write_vidur(folder, MODEL.num_layers))), "vidur"
    ),
    "regression": lambda folder: RegressionPredictor(
        MODEL, Cluster(H100), noisy_regression(folder)
    ),
    # silicon, genz, program and execution are of this kind
    "sampled": lambda folder: SampledSteps(NoisySource(), POINTS, TimingStore(None)),
}
if find_spec("aisimulate_core"):  # no extra of ours has it
    MAKERS |= {
        "silicon, states": silicon("qwen3.5-397b-a17b"),
        "silicon, sparse": silicon("glm-5.2-nvfp4"),
    }


@cache
def predictor(name: str) -> Predictor:
    with TemporaryDirectory() as folder:
        return MAKERS[name](Path(folder))


more = st.sampled_from([0, 1, 7, 512, 4_096])


prompts = st.tuples(st.integers(1, 8_192), st.integers(0, 30_000))
decodes = st.tuples(st.integers(1, 300), st.integers(1, 20_000))
measured_prompts = st.tuples(st.integers(1, 400), st.integers(0, 3_000))
measured_decodes = st.tuples(st.integers(1, 200), st.integers(1, 8_192))


def no_less(more: float, less: float) -> bool:
    return more >= less * (1 - 1e-12)


@pytest.mark.parametrize("name", MAKERS)
@given(prompt=prompts, new=more, prior=more)
@example(prompt=(1, 19_409), new=1, prior=0)  # beyond the last context that was measured
def test_a_longer_prompt_or_more_context_of_it_never_takes_less_time(name, prompt, new, prior):
    step_time = predictor(name).step_time
    longer = StepBatch(((prompt[0] + new, prompt[1] + prior),))
    assert no_less(step_time(longer), step_time(StepBatch((prompt,))))


@pytest.mark.parametrize("name", MAKERS)
@given(decodes=decodes, number=more, context=more)
def test_more_decodes_or_longer_contexts_never_take_less_time(name, decodes, number, context):
    step_time = predictor(name).step_time
    (n, mean), (m, longer) = decodes, (decodes[0] + number, decodes[1] + context)
    assert no_less(step_time(StepBatch((), m, m * longer)), step_time(StepBatch((), n, n * mean)))


@pytest.mark.parametrize("name", MAKERS)
@given(prompt=prompts, decodes=decodes, context=more)
def test_decodes_beside_a_prompt_take_no_less_time_with_longer_contexts(
    name, prompt, decodes, context
):
    step_time = predictor(name).step_time
    n, mean = decodes
    longer = StepBatch((prompt,), n, n * (mean + context))
    assert no_less(step_time(longer), step_time(StepBatch((prompt,), n, n * mean)))


@pytest.mark.parametrize("name", ["layer_profile", "experts", "vidur"])
@given(
    chunks=st.lists(measured_prompts, min_size=1, max_size=3),
    decodes=measured_decodes,
    new=st.sampled_from([0, 1, 64, 300]),
    prior=st.sampled_from([0, 1, 300, 1_000]),
    other=st.none() | measured_prompts,
    number=st.sampled_from([0, 1, 9, 56]),
)
def test_more_work_in_a_mixed_step_never_takes_less_time(
    name, chunks, decodes, new, prior, other, number
):
    step_time = predictor(name).step_time
    (tokens, context), (n, mean) = chunks[0], decodes
    longer = [(tokens + new, context + prior), *chunks[1:], *([other] if other else [])]
    m = n + number
    more, less = StepBatch(tuple(longer), m, m * mean), StepBatch(tuple(chunks), n, n * mean)
    assert no_less(step_time(more), step_time(less))


@pytest.mark.parametrize("name", ["layer_profile", "experts", "vidur", "steps"])
@given(
    chunks=st.lists(measured_prompts, min_size=1, max_size=3),
    decodes=measured_decodes,
    other=measured_prompts,
)
def test_another_prompt_beside_decodes_never_makes_step_shorter(name, chunks, decodes, other):
    step_time = predictor(name).step_time
    n, mean = decodes
    more, less = (StepBatch(tuple(some), n, n * mean) for some in ([*chunks, other], chunks))
    assert no_less(step_time(more), step_time(less))


CONTEXTS = st.lists(st.integers(16, 16_384), min_size=1, max_size=130)


@pytest.mark.parametrize("profile", ["noisy", "replayed", "measured"])
@given(
    contexts=CONTEXTS,
    chunks=st.lists(measured_prompts, max_size=2),
    place=st.integers(0, 129),
    longer=st.sampled_from([1, 40, 3_000, 30_000]),
    all_longer=st.sampled_from([0, 1, 500]),
)
def test_longer_contexts_among_uneven_ones_never_take_less_time(
    shared, profile, contexts, chunks, place, longer, all_longer
):
    step_time = _uneven_profile(profile, shared).step_time
    more = [context + all_longer for context in contexts]
    more[place % len(more)] += longer
    assert no_less(step_time(_of(more, chunks)), step_time(_of(contexts, chunks)))


def _of(contexts: list[int], chunks: list[tuple[int, int]]) -> StepBatch:
    return StepBatch(tuple(chunks), len(contexts), sum(contexts), None, max(contexts))


def _uneven_profile(name: str, shared: Callable[[str], Path]) -> Predictor:
    """Layers with skew: noisy times, the same where engines replay graphs, and real ones."""
    if name == "noisy":
        return predictor("layer_profile")
    if name == "replayed":
        return _replayed()
    return _measured_layers(shared("measurements/vllm-0.19-rtxpro6000-llama3.1-8b/profile"))


@cache
def _replayed() -> Predictor:
    with TemporaryDirectory() as folder:
        path = noisy(measured.write_layer_profile(Path(folder), MODEL.num_layers))
        cluster = Cluster(replace(H100, attention_slots=188))
        return TablePredictor(MODEL, cluster, str(path), "layer_profile")


@cache
def _measured_layers(path: Path) -> Predictor:
    return TablePredictor(MODEL, Cluster(load_gpu("rtx-pro-6000")), str(path), "layer_profile")


# --- faster GPUs --------------------------------------------------------------------------------


KINDS: dict[str, Callable[[GpuSpec], Predictor]] = {
    "roofline": lambda gpu: RooflinePredictor(MODEL, Cluster(gpu)),
    "roofline tp4": lambda gpu: RooflinePredictor(load_model("llama-3.1-70b"), Cluster(gpu, 4)),
    "roofline moe": lambda gpu: RooflinePredictor(load_model("mixtral-8x7b"), Cluster(gpu, 2)),
    "roofline mla": lambda gpu: RooflinePredictor(load_model("deepseek-v3"), Cluster(gpu, 8)),
    "roofline window": lambda gpu: RooflinePredictor(load_model("gemma-3-27b"), Cluster(gpu)),
    "bestserve": lambda gpu: BestServePredictor(load_model("codellama-34b"), Cluster(gpu, 4)),
}


def better(gpu: GpuSpec, compute: float, memory: float, link: float, share: float) -> GpuSpec:
    """Return a GPU with higher rates, and efficiencies nearer to 1 by a share."""

    def closer(efficiency: Efficiency) -> Efficiency:
        mfu, mbu = efficiency.mfu, efficiency.mbu
        return Efficiency(mfu=mfu + share * (1 - mfu), mbu=mbu + share * (1 - mbu))

    return replace(
        gpu,
        flops={name: rate * compute for name, rate in gpu.flops.items()},
        memory_bandwidth=gpu.memory_bandwidth * memory,
        interconnect=replace(gpu.interconnect, bandwidth=gpu.interconnect.bandwidth * link),
        prefill=closer(gpu.prefill),
        decode=closer(gpu.decode),
        dispatch={module: seconds * (1 - share) for module, seconds in gpu.dispatch.items()},
    )


factors = st.sampled_from([1.0, 1.01, 1.5, 4.0])


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("gpu", ["h100-sxm", "l40s", "ascend-910b3"])
@examples(30)
@given(
    chunks=st.lists(st.tuples(st.integers(1, 8_192), st.integers(0, 30_000)), max_size=2),
    number=st.integers(0, 300),
    mean=st.integers(1, 20_000),
    compute=factors,
    memory=factors,
    link=factors,
    share=st.sampled_from([0.0, 0.1, 0.9]),
)
def test_a_faster_gpu_is_never_slower(
    name, gpu, chunks, number, mean, compute, memory, link, share
):
    assume(chunks or number)
    batch = StepBatch(tuple(chunks), number, number * mean)
    if name == "roofline window":
        batch = replace(batch, window_sum=min(number * mean, number * 1_024))
    plain = load_gpu(gpu)
    fast = KINDS[name](better(plain, compute, memory, link, share))
    slow = _plain(name, gpu)
    assert fast.step_time(batch) <= slow.step_time(batch) * (1 + 1e-12)


@cache
def _plain(name: str, gpu: str) -> Predictor:
    return KINDS[name](load_gpu(gpu))
