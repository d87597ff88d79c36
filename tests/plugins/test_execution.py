"""Running layers on a device: what is measured, kept, multiplied and refused."""

import sys
import zlib
from dataclasses import replace
from importlib.metadata import EntryPoint
from itertools import count
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from mist_sim import TablePredictor, registry, testing
from mist_sim.calibration.regression import read_steps
from mist_sim.cli.app import app
from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.predictors.measured.profiling import ProfileRange, measure, write_table
from mist_sim.hardware.predictors.measured.timing import Timing, seconds_of, timed_call
from mist_sim.hardware.predictors.measured.timing_store import TimingStore
from mist_sim.models import load_model
from mist_sim_torch.predictor import ExecutionPredictor
from tests.reference.sources import source_of

TINY = replace(
    load_model("llama-3.1-8b"),
    name="tiny",
    num_layers=6,
    hidden_size=64,
    intermediate_size=96,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    vocab_size=96,
)
GPU = load_gpu("h100-sxm")


class FakeSource:
    """Times that follow a formula, and a count of what was asked."""

    def __init__(self):
        self.identity = {"source": "fake"}
        self.num_asked = 0

    def seconds(self, batches):
        self.num_asked += len(batches)
        return [
            1e-3
            + 1e-6 * (batch.num_prefill_tokens + batch.num_decodes)
            + 1e-9 * (batch.context_sum + sum(new * context for new, context in batch.chunks))
            for batch in batches
        ]


@pytest.fixture
def store(tmp_path):
    return TimingStore(tmp_path / "timings.sqlite")


# --- timing -----------------------------------------------------------------------------------


def test_the_median_of_the_repeats_counts_and_warm_up_does_not():
    ticks = iter([9.0, 1.0, 2.0])
    calls = []
    timing = Timing(warmup=2, repeats=3)
    assert seconds_of(lambda: calls.append(1), timing, lambda call: (call(), next(ticks))[1]) == 2.0
    assert len(calls) == 5


def test_runs_go_on_until_the_device_is_warm(monkeypatch):
    ticks = count(step=0.1)
    monkeypatch.setattr(
        "mist_sim.hardware.predictors.measured.timing.perf_counter", lambda: next(ticks)
    )
    timed = []
    timing = Timing(warmup=0, repeats=1, warm_seconds=0.35)
    seconds_of(lambda: None, timing, lambda call: timed.append(call) or 1.0)
    assert len(timed) == 3 + 1


@pytest.mark.parametrize(("field", "value"), [("warmup", -1), ("repeats", 0)])
def test_repeats_that_make_no_sense(field, value):
    with pytest.raises(ValueError, match=f"{field} must be >="):
        Timing(**{field: value})


def test_any_call_is_timed_once(store):
    calls = []
    source = {"source": "preprocess", "version": 1}
    first = timed_call(store, source, "tokenise 1000", lambda: calls.append(1))
    num_calls = len(calls)
    assert num_calls == 7
    assert timed_call(store, source, "tokenise 1000", lambda: calls.append(1)) == first > 0
    assert len(calls) == num_calls


# --- profiles and predictor with a fake source ------------------------------------------------


def test_what_is_in_the_store_is_not_measured_again(store):
    source, seen = FakeSource(), []
    batches = ProfileRange(max_num_batched_tokens=64, max_num_seqs=4, max_context=512).batches
    steps = measure(source, batches, store, seen.append)
    assert source.num_asked == len(batches) == len(steps) == seen[-1]
    assert measure(source, batches, store) == steps
    assert source.num_asked == len(batches)
    kinds = {(bool(batch.chunks), bool(batch.num_decodes)) for batch in batches}
    assert kinds == {(True, False), (False, True), (True, True)}


def test_a_table_is_read_back(tmp_path, store):
    batches = ProfileRange(max_num_batched_tokens=16, max_num_seqs=2, max_context=256).batches
    steps = measure(FakeSource(), batches, store)
    write_table(tmp_path / "t.csv", steps, {"model": "tiny", "tensor_parallel_size": 2})
    read, notes = read_steps(tmp_path / "t.csv")
    assert notes == {"model": "tiny", "tensor_parallel_size": "2"}
    assert read.seconds.tolist() == [seconds for _, seconds in steps]
    with pytest.raises(ScenarioError, match="cannot be written"):
        write_table(tmp_path / "no" / "t.csv", steps, {})


def test_a_table_is_read_by_the_table_predictor(tmp_path, store):
    limits = ProfileRange(max_num_batched_tokens=256, max_num_seqs=16, max_context=1024)
    steps = measure(FakeSource(), limits.batches, store)
    write_table(tmp_path / "t.csv", steps, {"tensor_parallel_size": 1})
    table = TablePredictor(TINY, Cluster(GPU), str(tmp_path / "t.csv"), "steps")
    for batch, seconds in steps:
        assert table.step_time(batch) == pytest.approx(seconds, rel=0.02)


def test_the_predictor_interpolates_what_was_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("MIST_SIM_CACHE", str(tmp_path))
    source = FakeSource()
    monkeypatch.setattr(ExecutionPredictor, "_source", lambda self: source)
    testing.check_predictor(lambda: ExecutionPredictor(TINY, Cluster(GPU)))
    num_asked = source.num_asked
    predictor = ExecutionPredictor(TINY, Cluster(GPU))
    assert source.num_asked == num_asked
    batch = StepBatch((), 5, 5 * 300)
    assert predictor.step_time(batch) == pytest.approx(source.seconds([batch])[0])


class FakeTorch(FakeSource):
    """Times that depend on how the layers are run, and do not grow evenly."""

    def __init__(self, model, cluster, **options):
        super().__init__()
        self.identity = {"source": "fake", "options": str(options)}
        self.factor = 1 + zlib.crc32(str(options).encode()) / 2**32

    def seconds(self, batches):
        return [self.factor * seconds**0.5 for seconds in super().seconds(batches)]


@pytest.mark.parametrize(
    "changed",
    [
        {"device": "cpu"},
        {"num_timed_layers": 3},
        {"max_num_batched_tokens": 512},
        {"max_num_seqs": 8},
        {"max_context": 1024},
        {"repeats": 9},
        {"seed": 1},
    ],
)
def test_every_option_changes_what_is_measured(changed, monkeypatch, tmp_path):
    monkeypatch.setenv("MIST_SIM_CACHE", str(tmp_path))
    place = "mist_sim_torch.source"
    monkeypatch.setitem(sys.modules, place, SimpleNamespace(TorchSource=FakeTorch))
    batch = StepBatch(((1500, 2500),), 30, 30 * 2000)
    plain = ExecutionPredictor(TINY, Cluster(GPU)).step_time(batch)
    assert ExecutionPredictor(TINY, Cluster(GPU), **changed).step_time(batch) != plain


@pytest.mark.parametrize("field", ["max_num_batched_tokens", "max_num_seqs", "max_context"])
def test_ranges_that_make_no_sense(field):
    with pytest.raises(ValueError, match=f"{field} must be >= 1, got 0"):
        ExecutionPredictor(TINY, Cluster(GPU), **{field: 0})


def test_a_profile_without_the_plugin_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "offered", lambda group: [])
    out = tmp_path / "t.csv"
    done = CliRunner().invoke(app, ["profile", "--model", "llama-3.1-8b", "--out", str(out)])
    assert done.exit_code == 2
    assert "pip install ./plugins/torch" in done.output
    assert not out.exists()


# --- with torch, on the CPU -------------------------------------------------------------------


@pytest.fixture
def torch():
    module = pytest.importorskip("torch", reason="needs torch")
    module.set_num_threads(1)
    return module


@pytest.fixture
def make(torch):
    from mist_sim_torch.source import TorchSource

    def source(model=TINY, ranks=1, **options):
        timing = Timing(warmup=1, repeats=3)
        return TorchSource(
            model=model, cluster=Cluster(GPU, ranks), device="cpu", timing=timing, **options
        )

    return source


BATCHES = [
    StepBatch(((33, 0),)),
    StepBatch(((16, 40), (1, 7))),
    StepBatch((), 5, 5 * 60),
    StepBatch(((16, 40),), 3, 90),
]


@pytest.mark.parametrize("batch", BATCHES)
def test_steps_run_and_take_time(make, batch):
    assert 0 < make().seconds([batch])[0] < 10


@pytest.mark.parametrize("batch", BATCHES)
def test_every_token_comes_out(make, torch, batch):
    source = make(replace(TINY, gated_mlp=False), ranks=2)
    with torch.inference_mode():
        found = source.layers.step(batch)()
    assert found.shape == (batch.num_prefill_tokens + batch.num_decodes, TINY.hidden_size)
    assert torch.isfinite(found).all()
    assert source.layers.layers[0]["qkv"].shape == (64, (2 + 2 * 1) * 16)


def test_a_prompt_in_pieces_reads_what_the_whole_prompt_reads(torch):
    """Attention of a second piece, over the cache of the first, is that of one long prompt."""
    from mist_sim_torch.layers import Cache, Layers

    layers = Layers(TINY, 1, 1, torch.device("cpu"), 0)
    draws = torch.Generator().manual_seed(3)
    q, k, v = (
        torch.randn(12, heads, 16, generator=draws).to(torch.bfloat16) for heads in (4, 2, 2)
    )
    whole = Cache(layers, StepBatch(((12, 0),))).attend(q, k, v)
    piece = Cache(layers, StepBatch(((5, 7),)))
    keys, values = piece.chunks[0]
    keys[0, :, :7], values[0, :, :7] = k[:7].transpose(0, 1), v[:7].transpose(0, 1)
    found = piece.attend(q[7:], k[7:], v[7:])
    assert torch.allclose(found, whole[7:], atol=0.02)
    last = Cache(layers, StepBatch((), 1, 11))
    keys, values = last.decodes
    keys[0, :, :11], values[0, :, :11] = k[:11].transpose(0, 1), v[:11].transpose(0, 1)
    assert torch.allclose(last.attend(q[11:], k[11:], v[11:]), whole[11:], atol=0.02)


def test_times_of_layers_are_multiplied_and_collectives_added(make, monkeypatch):
    source = make(num_timed_layers=2, ranks=2)
    monkeypatch.setattr(source, "timed", lambda call: 1.0)
    summed = source.cluster.all_reduce_time(5 * TINY.hidden_size * 2)
    found = source.seconds([StepBatch((), 5, 100)])
    assert found == [pytest.approx(6 / 2 + 1 + 2 * 6 * summed)]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("mixtral-8x7b", "no models with experts, as mixtral-8x7b has"),
        ("deepseek-v3", "no models with experts"),
        ("gemma-3-27b", "no models with sliding windows"),
    ],
)
def test_models_that_are_not_written_here(make, model, message):
    with pytest.raises(ScenarioError, match=message):
        make(load_model(model))


def test_devices_that_are_not_there(make, torch):
    from mist_sim_torch.source import TorchSource

    for device, message in (("gpu9", "no device 'gpu9'"), ("meta", "must be cpu, cuda or auto")):
        with pytest.raises(ScenarioError, match=message):
            TorchSource(model=TINY, cluster=Cluster(GPU), device=device)
    if not torch.cuda.is_available():
        with pytest.raises(ScenarioError, match="cuda needs an NVIDIA GPU"):
            TorchSource(model=TINY, cluster=Cluster(GPU), device="cuda")
    with pytest.raises(ValueError, match="num_timed_layers must be >= 1"):
        make(num_timed_layers=0)


CONFIG = """{"model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96,
"max_position_embeddings": 2048, "torch_dtype": "bfloat16", "hidden_act": "silu"}"""


@pytest.mark.usefixtures("torch")
def test_mist_profile_writes_a_table_and_a_spec(tmp_path, monkeypatch):
    offers = [EntryPoint("torch", "mist_sim_torch.source:TorchSource", "mist_sim.profilers")]
    monkeypatch.setattr(registry, "offered", lambda group: offers)
    monkeypatch.setenv("MIST_SIM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tiny.json").write_text(CONFIG)
    call = ["profile", "--model", str(tmp_path / "tiny.json"), "--device", "cpu"]
    small = ["--max-num-batched-tokens", "4", "--max-num-seqs", "2", "--max-context", "16"]
    table, spec = tmp_path / "t.csv", tmp_path / "d.toml"
    done = CliRunner().invoke(app, [*call, *small, "--repeats", "1", "--out", str(table)])
    assert done.exit_code == 0, done.output
    steps, notes = read_steps(table)
    assert len(steps.seconds) > 20
    assert notes["layers"] == "2 timed, multiplied up to 3"
    done = CliRunner().invoke(app, [*call, "--dispatch", "--out", str(spec)])
    assert done.exit_code == 0, done.output
    gpu = load_gpu(str(spec))
    assert set(gpu.dispatch) == {"rmsnorm", "attention", "mlp"}
    assert gpu.memory == GPU.memory
    assert "tiny" in source_of(gpu, "dispatch")
