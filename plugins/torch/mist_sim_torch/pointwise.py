"""What a layer computes between its matrices and its attention: norms, rotations, activations.

Engines fuse these into a kernel each; PyTorch starts one for every operation. On CUDA
`torch.compile` fuses them where it can run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu


def normed(x: Tensor, weight: Tensor) -> Tensor:
    """RMS norm."""
    return rms_norm(x, (x.shape[-1],), weight, 1e-6)


def added_norm(x: Tensor, more: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of the residual and a module's output, and its RMS norm."""
    x = x + more
    return x, normed(x, weight)


def rotated(x: Tensor, rotary: Tensor) -> Tensor:
    """Rotary embedding: pairs of a head's values turn by an angle; cosines come twice."""
    one, other = x.chunk(2, dim=-1)
    sine = rotary[1, ..., : x.shape[-1] // 2]
    turned = x * rotary[0]
    first, second = turned.chunk(2, dim=-1)
    first.addcmul_(other, sine, value=-1.0)
    second.addcmul_(one, sine)
    return turned


def gated(up: Tensor) -> Tensor:
    """Activation of a gated MLP."""
    gate, values = up.chunk(2, dim=-1)
    return silu(gate) * values


@dataclass(frozen=True, slots=True)
class Pointwise:
    """The operations of a layer, fused or not."""

    added_norm: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = added_norm
    rotated: Callable[[Tensor, Tensor], Tensor] = rotated
    gated: Callable[[Tensor], Tensor] = gated

    @classmethod
    def fused(cls) -> Pointwise:
        """Return each as one kernel, compiled at its first call.

        What was compiled before is dropped: after another model's sizes, PyTorch would compile for
        any size, and kernels for any size are slower.
        """
        torch.compiler.reset()
        return cls(*(torch.compile(one) for one in (added_norm, rotated, gated)))


def fuses(device: torch.device) -> bool:
    """Return whether `torch.compile` runs here: a CUDA device, Triton and its C compiler."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    compilers = (os.environ.get("CC") or "cc", "gcc", "clang")
    return any(shutil.which(name) for name in compilers)
