"""How layers are timed on a CUDA device, as far as it shows without one."""

from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="needs torch")

import torch  # the plugin brings it

from mist_sim.core.batch import StepBatch
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.predictors.measured.timing import Timing
from mist_sim.models import load_model
from mist_sim_torch import cuda_timing, pointwise
from mist_sim_torch import source as torch_source
from mist_sim_torch.layers import Cache, Layers
from mist_sim_torch.pointwise import Pointwise, fuses

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
CUDA = torch.device("cuda:1")


@pytest.fixture
def source(monkeypatch):
    """A source that believes it has a second GPU; nothing runs on it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"fake {device}")
    return torch_source.TorchSource(
        model=TINY, cluster=Cluster(load_gpu("h100-sxm")), device="cuda:1"
    )


def test_device_is_busy_when_timed_run_is_queued(monkeypatch):
    log = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            log.append("record")

        def synchronize(self):
            log.append("wait")

        def elapsed_time(self, end):
            return 4.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("idle"))
    assert cuda_timing.seconds_on_device(lambda: log.append("run")) == pytest.approx(4e-3)
    assert log == ["idle", "run", "record", "run", "record", "wait"]


def test_every_step_is_a_graph_on_warm_device(source, monkeypatch):
    seen = []
    monkeypatch.setattr(torch_source, "captured", lambda call: ("graph of", call))
    monkeypatch.setattr(torch_source, "seconds_of", lambda *told: seen.append(told) or 1.0)
    assert source.timed("call") == 1.0
    timing = Timing(warm_seconds=cuda_timing.WARM_SECONDS)
    assert seen == [(("graph of", "call"), timing, cuda_timing.seconds_on_device)]


def test_streams_and_events_are_those_of_the_device(source, monkeypatch):
    entered = []

    class Device:
        def __init__(self, device):
            self.device = device

        def __enter__(self):
            entered.append(self.device)

        def __exit__(self, *error):
            entered.append(None)

    monkeypatch.setattr(torch.cuda, "device", Device)
    monkeypatch.setattr(source, "_step", lambda batch: entered.append(batch) or 1.0)
    assert source.seconds(["a", "b"]) == [1.0, 1.0]
    assert entered == [CUDA, "a", "b", None]
    entered.clear()
    with cuda_timing.current(torch.device("cpu")):
        assert entered == []


def test_kernels_are_fused_where_they_can_be_compiled(monkeypatch):
    found = {"triton", "clang"}
    monkeypatch.setattr(pointwise, "find_spec", lambda name: name in found or None)
    monkeypatch.setattr(pointwise.shutil, "which", lambda name: name in found or None)
    monkeypatch.delenv("CC", raising=False)
    assert fuses(CUDA)
    assert not fuses(torch.device("cpu"))
    found.remove("clang")
    assert not fuses(CUDA)
    monkeypatch.setenv("CC", "nvc")
    found.add("nvc")
    assert fuses(CUDA)
    found.remove("triton")
    assert not fuses(CUDA)


@pytest.mark.parametrize(("can", "told"), [(True, "fused"), (False, "a kernel an operation")])
def test_what_was_measured_says_whether_kernels_were_fused(can, told, source, monkeypatch):
    monkeypatch.setattr(torch_source, "fuses", lambda device: can)
    source.__post_init__()
    assert source.identity["fused"] is can
    assert source.notes["pointwise"].startswith(told)


def test_fused_operations_have_the_same_values(monkeypatch):
    compile_ = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda call: compile_(call, backend="eager", fullgraph=True)
    )
    plain, fused = Pointwise(), Pointwise.fused()
    draws = torch.Generator().manual_seed(5)
    for tokens in (1, 4, 9):
        x, more = torch.randn(2, tokens, 64, generator=draws)
        weight = torch.randn(64, generator=draws)
        heads = torch.randn(tokens, 6, 16, generator=draws)
        rotary = torch.randn(2, tokens, 1, 16, generator=draws)
        for one, other in zip(
            (*plain.added_norm(x, more, weight), plain.rotated(heads, rotary), plain.gated(x)),
            (*fused.added_norm(x, more, weight), fused.rotated(heads, rotary), fused.gated(x)),
            strict=True,
        ):
            assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)


def test_rotations_turn_pairs_by_their_angles():
    angles = torch.tensor([[0.3, 1.1], [0.0, 2.0]])
    twice = torch.cat([angles, angles], dim=-1).unsqueeze(1)
    rotary = torch.stack([twice.cos(), twice.sin()])
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]], [[5.0, 6.0, 7.0, 8.0]]])
    pairs = torch.complex(x[..., :2], x[..., 2:])
    turned = pairs * torch.polar(torch.ones_like(angles), angles).unsqueeze(1)
    expected = torch.cat([turned.real, turned.imag], dim=-1)
    assert torch.allclose(pointwise.rotated(x, rotary), expected)


def test_a_sum_and_its_norm():
    x, more = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 4.0]])
    total, inner = pointwise.added_norm(x, more, torch.tensor([1.0, 2.0]))
    assert total.tolist() == [[3.0, 4.0]]
    assert torch.allclose(inner, torch.tensor([[3.0, 8.0]]) / 12.5**0.5)


def test_caches_hold_numbers_and_no_zeros():
    """Zeros take less power, and on the CPU all their pages are one."""
    layers = Layers(TINY, 1, 1, torch.device("cpu"), 0)
    cache = Cache(layers, StepBatch(((4, 30),), 3, 3 * 20))
    for values in (*cache.chunks[0], *cache.decodes):
        assert (values != 0).float().mean() > 0.99
    keys = cache.decodes[0]
    assert keys.is_contiguous()
    assert keys.shape == (3, 2, 21, 16)
