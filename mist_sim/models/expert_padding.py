"""How kernels of experts round their sizes up: bytes that a rank holds beyond the checkpoint's.

MXFP4 alone is padded here: vLLM pads such experts for every kernel that it has of them
(`mxfp4_round_up_hidden_size_and_intermediate_size` in
`vllm/model_executor/layers/fused_moe/oracle/mxfp4.py`).
"""

from __future__ import annotations

from mist_sim.checks import check_name
from mist_sim.models.moe_backends import OF_0_24, Deployment, MoeBackend
from mist_sim.models.spec import ModelSpec

_MULTIPLES: dict[str, tuple[int, int]] = {
    "marlin": (256, 128),
    "flashinfer_trtllm": (256, 256),
    "flashinfer_trtllm_afp8": (256, 256),
    "flashinfer_cutlass": (128, 128),
    "triton": (1, 64),
}
"""What hidden and inner size of a rank's slice are rounded up to multiples of."""

_HOPPER_ROW = 256  # values: Triton's layout for Hopper rounds each row of a matrix up to it
_VALUE, _SCALE = 0.5, 1 / 32  # bytes a parameter: 4 bits, and 8 bits for each block of 32


def is_padded(model: ModelSpec) -> bool:
    """Whether a model's experts are stored in the format whose kernels pad them."""
    stored = model.quantization_of("routed_experts") if model.moe else None
    return stored is not None and stored.kernel == "mxfp4"


def moe_backend_of(architecture: str) -> MoeBackend:
    """Return the kernel that vLLM takes for MXFP4 experts on GPUs of an architecture.

    All versions from 0.12 on agree; on architectures that are not known it is Marlin.
    """
    return OF_0_24["mxfp4"].of(Deployment(architecture)) or "marlin"


def padding_bytes(
    model: ModelSpec, backend: MoeBackend, architecture: str, ranks: int, expert_ranks: int
) -> float:
    """Return the bytes that padding adds to the weights of a rank; 0 where nothing is padded.

    ranks: of tensor parallelism. expert_ranks: over which whole experts are spread, or 1.
    """
    moe = model.moe
    if moe is None or not is_padded(model):
        return 0.0
    check_name("moe_backend", backend, _MULTIPLES)
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
