"""Operators, and the two kinds that every layer is made of."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mist_sim.models.quantization import Part, Quantization
from mist_sim.models.spec import ModelSpec

Number = float | NDArray[np.float64]
"""Token counts may be floats or arrays; both are computed with the same operations."""


class Operator(NamedTuple):
    """Work (FLOPs) and memory traffic (bytes) of one operator on one rank.

    dtype: the type it is computed in, which picks the FLOP rate of the GPU.
    kernel: the kind of kernels that compute it (`mist_sim.hardware.devices.kernels`).
    depth: inputs of a matrix, which a block sums up one after the other.
    inputs: values put into a product.
    """

    name: str
    flops: Number
    bytes: Number
    dtype: str = "bf16"
    kernel: str = "vector"
    depth: float = 0.0
    inputs: Number = 0.0


def norm(model: ModelSpec, n: float) -> Operator:
    """RMSNorm of n tokens, with the residual: reads and writes both."""
    h = model.hidden_size
    return Operator("norm", 6 * n * h, 4 * n * h * model.dtype_bytes)


def matrix(
    model: ModelSpec, part: Part, name: str, n: float, inputs: float, outputs: float
) -> Operator:
    """Apply a matrix of that part, inputs x outputs, to n tokens; activations have 16 bits."""
    quantization = model.quantization_of(part)
    compute = quantization.compute if quantization else "bf16"
    size = model.bytes_per_param(part)
    plain = product(model, name, n, inputs, outputs, size)
    return plain._replace(dtype=compute, kernel=kernel_format(quantization))


def kernel_format(quantization: Quantization | None) -> str:
    """Return the format that picks the kernels of a product."""
    return quantization.kernel if quantization else "bf16"


def product(
    model: ModelSpec, name: str, n: float, inputs: float, outputs: float, weight_bytes: float
) -> Operator:
    """Apply a matrix of `weight_bytes` a parameter, computed in 16 bits."""
    traffic = inputs * outputs * weight_bytes + n * (inputs + outputs) * model.dtype_bytes
    flops = 2 * n * inputs * outputs
    return Operator(name, flops, traffic, "bf16", "bf16", inputs, n * inputs)
