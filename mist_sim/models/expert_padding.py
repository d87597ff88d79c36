"""How kernels of experts round their sizes up: bytes that a rank holds beyond the checkpoint's.

MXFP4 alone is padded here: vLLM pads such experts for every kernel that it has of them
(`mxfp4_round_up_hidden_size_and_intermediate_size` in
`vllm/model_executor/layers/fused_moe/oracle/mxfp4.py`).
"""

from __future__ import annotations

from typing import Literal, get_args

from mist_sim.models.quantization import check_name
from mist_sim.models.spec import ModelSpec

MoeBackend = Literal["triton", "marlin", "flashinfer_trtllm", "flashinfer_cutlass"]
"""Kernels of MXFP4 experts, by the names of vLLM's `--moe-backend`."""

_MULTIPLES: dict[str, tuple[int, int]] = {
    "marlin": (256, 128),
    "flashinfer_trtllm": (256, 256),
    "flashinfer_cutlass": (128, 128),
    "triton": (1, 64),
}
"""What hidden and inner size of a rank's slice are rounded up to multiples of."""

_RUNS_ON: dict[str, tuple[str, ...]] = {
    "hopper": ("triton", "marlin", "flashinfer_cutlass"),
    "blackwell": get_args(MoeBackend),
    "blackwell-ultra": get_args(MoeBackend),
}
"""Architectures with more than Marlin (`is_supported_config` of each kernel's class)."""

_HOPPER_ROW = 256  # values: Triton's layout for Hopper rounds each row of a matrix up to it
_VALUE, _SCALE = 0.5, 1 / 32  # bytes a parameter: 4 bits, and 8 bits for each block of 32


def is_padded(model: ModelSpec) -> bool:
    """Whether a model's experts are stored in the format whose kernels pad them."""
    stored = model.quantization_of("routed_experts") if model.moe else None
    return stored is not None and stored.kernel == "mxfp4"


def moe_backend_of(architecture: str) -> MoeBackend:
    """Return the kernel that vLLM takes for MXFP4 experts on GPUs of an architecture.

    `_get_priority_backends_for_gpt_oss` in the same file, and `get_mxfp4_backend` before 0.18,
    agree: FlashInfer on compute capability 10.x, Triton on 9.0, Marlin on all others.
    """
    if architecture in ("blackwell", "blackwell-ultra"):
        return "flashinfer_trtllm"
    return "triton" if architecture == "hopper" else "marlin"


def check_moe_backend(backend: str, model: ModelSpec, gpu: str, architecture: str) -> None:
    """Raise ValueError for a kernel that has nothing to do, or does not run on a GPU.

    gpu: its name, for the message. architecture: of it; on one that is not known all may run.
    """
    if not is_padded(model):
        raise ValueError(
            f"moe_backend must be null for {model.name}, which has no experts in MXFP4, "
            f"got {backend}"
        )
    known = _RUNS_ON.get(architecture, ("marlin",))
    if architecture and backend not in known:
        raise ValueError(
            f"moe_backend must be {' or '.join(known)} on {gpu}, where no other kernel of MXFP4 "
            f"experts runs, got {backend}"
        )


def padding_bytes(
    model: ModelSpec, backend: MoeBackend, architecture: str, ranks: int, expert_ranks: int
) -> float:
    """Return the bytes that padding adds to the weights of a rank; 0 where nothing is padded.

    ranks: of tensor parallelism. expert_ranks: over which whole experts are spread, or 1.
    """
    check_name("moe_backend", backend, get_args(MoeBackend))
    moe = model.moe
    if moe is None or not is_padded(model):
        return 0.0
    hidden, inner = moe.hidden_size or model.hidden_size, moe.intermediate_size
    inner = -(-inner // (ranks if expert_ranks == 1 else 1))
    of_hidden, of_inner = _MULTIPLES[backend]
    wide, deep = _up(hidden, of_hidden), _up(inner, of_inner)
    gates = 2 if model.gated_mlp else 1
    params = (gates + 1) * wide * deep
    values = params
    if backend == "triton" and architecture == "hopper":
        values = gates * deep * _up(wide, _HOPPER_ROW) + wide * _up(deep, _HOPPER_ROW)
    held = -(-moe.num_experts // expert_ranks) * model.num_moe_layers
    plain = (gates + 1) * hidden * inner * (_VALUE + _SCALE)
    return held * (values * _VALUE + params * _SCALE - plain)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
