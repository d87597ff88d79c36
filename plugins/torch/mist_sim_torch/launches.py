"""Host seconds to launch each module of a layer (BestServe §3.3.3).

On a GPU a call returns when its kernels are queued, so its time on an idle device is the host's
launch time. On a CPU a call returns when it is done; there a small model gives the host's share
plus a little computing. BestServe measures a small model of a family and uses the figures for its
larger ones, whose modules launch the same kernels.
"""

from __future__ import annotations

from time import perf_counter

import torch

from mist_sim.core.batch import StepBatch
from mist_sim.hardware.predictors.measured.timing import Call, Timing, seconds_of
from mist_sim.models.spec import ModelSpec
from mist_sim_torch.cuda_timing import current
from mist_sim_torch.layers import Cache, Layers
from mist_sim_torch.pointwise import normed

_MANY = Timing(warmup=20, repeats=101)  # single launches take microseconds


def launch_seconds(
    model: ModelSpec, ranks: int, device: torch.device, seed: int
) -> dict[str, float]:
    """Return seconds of host time by module ("rmsnorm", "attention", "mlp") of a layer.

    One decode with a context of 16 tokens runs, so that the device is never the slower one.
    """
    with torch.inference_mode(), current(device):
        layers = Layers(model, ranks, 1, device, seed)
        weights, cache = layers.layers[0], Cache(layers, StepBatch((), 1, 16))
        x = layers.drawn(1, model.hidden_size)
        rotary = layers.rotary(1)
        calls: dict[str, Call] = {
            "rmsnorm": lambda: normed(x, weights["norm"]),
            "attention": lambda: layers.attention(weights, x, rotary, cache),
            "mlp": lambda: layers.mlp(weights, x),
        }
        clock = _until_queued if device.type == "cuda" else None
        return {name: seconds_of(call, _MANY, clock) for name, call in calls.items()}


def _until_queued(call: Call) -> float:
    """Run a call on an idle device; return the seconds until the host is free again."""
    torch.cuda.synchronize()
    begin = perf_counter()
    call()
    return perf_counter() - begin
