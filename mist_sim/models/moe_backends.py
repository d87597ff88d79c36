"""Back ends of experts by vLLM's names (`--moe-backend`): where each runs, and which is chosen.

vLLM takes the first of a list that supports format and GPU
(`vllm/model_executor/layers/fused_moe/oracle/`, by format); `Choice` says what comes out of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from mist_sim.models.spec import ModelSpec

MoeBackend = Literal[
    "triton",
    "deep_gemm",
    "cutlass",
    "flashinfer_trtllm",
    "flashinfer_trtllm_afp8",
    "flashinfer_cutlass",
    "flashinfer_cutedsl",
    "marlin",
]
"""vLLM's names. flashinfer_trtllm_afp8: that of MXFP4 experts with activations in MXFP8."""

_HOPPER_ON = ("hopper", "blackwell", "blackwell-ultra", "blackwell-rtx")
_B200 = ("blackwell", "blackwell-ultra")
_FP8 = ("ada", *_HOPPER_ON)

# by format: architectures on which a back end runs (`is_supported_config` of its classes)
_RUNS_ON: Mapping[str, Mapping[MoeBackend, tuple[str, ...]]] = {
    "bf16": {
        "triton": ("ampere", *_FP8),
        "flashinfer_trtllm": _B200,
        "flashinfer_cutlass": _HOPPER_ON,
    },
    "fp8": {
        "triton": _FP8,
        "cutlass": ("hopper", *_B200),
        "flashinfer_trtllm": _B200,
        "flashinfer_cutlass": _HOPPER_ON,
        "marlin": ("ampere", *_FP8),
    },
    "fp8_block": {
        "triton": _FP8,
        "deep_gemm": ("hopper", *_B200),
        "cutlass": ("hopper", *_B200),
        "flashinfer_trtllm": _B200,
        "flashinfer_cutlass": ("hopper",),
        "marlin": ("ampere", *_FP8),
    },
    "int4": {"marlin": ("ampere", *_FP8)},
    "int8": {"triton": ("ampere", *_FP8)},
    "mxfp4": {
        "triton": ("hopper", *_B200),
        "marlin": ("ampere", *_FP8),
        "flashinfer_trtllm": _B200,
        "flashinfer_trtllm_afp8": _B200,
        "flashinfer_cutlass": ("hopper", *_B200),
    },
    "nvfp4": {
        "cutlass": (*_B200, "blackwell-rtx"),
        "flashinfer_trtllm": _B200,
        "flashinfer_cutlass": (*_B200, "blackwell-rtx"),
        "flashinfer_cutedsl": _B200,
        "marlin": ("ampere", *_FP8),
    },
}
_RUNS_ON = {**_RUNS_ON, "fp8_static": _RUNS_ON["fp8"], "mxfp4_afp8": _RUNS_ON["mxfp4"]}
_TILE = 128  # inner values of an expert that FlashInfer's TRTLLM kernel takes at once


_ROWS: Mapping[str, int] = {"deep_gemm": 128}


def rows_computed(backend: str | None) -> int:
    """Return the rows that a back end computes at least for each expert on a GPU.

    DeepGEMM fills the rows of an expert up to a multiple of 128, and vLLM makes room for as many of
    every expert, since the host does not know which a step reaches (`compute_aligned_M` in
    vllm/model_executor/layers/fused_moe/deep_gemm_utils.py); all of it passes through the kernel's
    blocks. Triton's tiles have 16 rows and more, but it loads zeros for those that are
    missing: its runs show no such watts.
    """
    return _ROWS.get(backend or "", 0)


class Choice(NamedTuple):
    """A back end that a version takes, where no choice before it applies.

    on: architectures; empty: all. when: "spread" where experts lie whole on ranks, "narrow" where
    fewer than eight ranks share an expert (`moe_parallel_config.tp_size`, 1 where they lie whole on
    ranks), "replicas" where data-parallel engines share experts, "tiles" where gates are SiLUs and
    a rank's slice of an expert is a multiple of 128 (`TrtLlmBf16ExpertsBase._supports_activation`;
    `_trtllm_bf16_lora_supported`), "gelu" where gates are GELUs.
    """

    backend: MoeBackend
    on: tuple[str, ...] = ()
    when: Literal["", "spread", "narrow", "replicas", "tiles", "gelu"] = ""

    def __str__(self) -> str:
        where = ", ".join(self.on)
        words = {
            "": "",
            "spread": "spread",
            "narrow": "under 8 ranks an expert",
            "replicas": "replicas",
            "tiles": f"SiLU, slices of {_TILE}s",
            "gelu": "GELU",
        }
        said = "; ".join(part for part in (where, words[self.when]) if part)
        return f"{self.backend} ({said})" if said else self.backend


class Deployment(NamedTuple):
    """What a choice depends on beside the format of experts.

    ranks: that share a layer. spread: whether whole experts lie on ranks. replicas: engines that
    share experts. inner: of a rank's slice of an expert. has_gelu: as `MoeSpec` has it.
    """

    architecture: str
    ranks: int = 1
    spread: bool = False
    replicas: int = 1
    inner: int = _TILE
    has_gelu: bool = False

    def meets(self, choice: Choice) -> bool:
        """Whether a choice applies."""
        if choice.on and self.architecture not in choice.on:
            return False
        return {
            "": True,
            "spread": self.spread,
            "narrow": self.spread or self.ranks < 8,
            "replicas": self.replicas > 1,
            "tiles": not self.has_gelu and self.inner % _TILE == 0,
            "gelu": self.has_gelu,
        }[choice.when]


@dataclass(frozen=True, slots=True)
class Choices:
    """The back ends of a format that a version takes: the first that applies."""

    in_order: tuple[Choice, ...]

    def of(self, deployment: Deployment) -> MoeBackend | None:
        """Return the back end of a deployment; None where the GPU is not known."""
        if not deployment.architecture:
            return None
        found = (each.backend for each in self.in_order if deployment.meets(each))
        return next(found, None)

    def __str__(self) -> str:
        return ", ".join(map(str, self.in_order))


def _first(*choices: Choice) -> Choices:
    return Choices(choices)


def expert_format(model: ModelSpec) -> str:
    """Return the format of a model's experts as choices name it; empty without experts."""
    if model.moe is None:
        return ""
    stored = model.quantization_of("routed_experts")
    if stored is None:
        return "bf16"
    attention = model.quantization_of("attention")
    if stored.kernel == "mxfp4" and attention and attention.kernel != "mxfp4":
        return "mxfp4_afp8"  # in a checkpoint of FP8 (DeepSeek-V4)
    return "fp8_static" if stored.kernel == "fp8" and stored.static_inputs else stored.kernel


def stored_name(format_: str) -> str:
    """Return the name of a format's weights alone."""
    return format_.removesuffix("_static").removesuffix("_afp8")


def check_moe_backend(backend: str, model: ModelSpec, gpu: str, architecture: str) -> None:
    """Raise ValueError for a back end that has nothing to do, or does not run on a GPU.

    gpu: its name, for the message. architecture: of it; on one that is not known all may run.
    """
    format_ = expert_format(model)
    if not format_:
        raise ValueError(
            f"moe_backend must be null for {model.name}, which has no experts, got {backend}"
        )
    known = _RUNS_ON.get(format_, {})
    here = [name for name, on in known.items() if not architecture or architecture in on]
    if backend not in here:
        raise ValueError(
            f"moe_backend must be {' or '.join(here) or 'null'} on {gpu} for experts in "
            f"{stored_name(format_)}, where vLLM has no other, got {backend}"
        )


_ON_AMPERE = Choice("marlin", ("ampere",))

OF_0_12: Mapping[str, Choices] = {
    "bf16": _first(Choice("triton")),
    "fp8": _first(_ON_AMPERE, Choice("triton")),
    "fp8_static": _first(_ON_AMPERE, Choice("triton")),
    "fp8_block": _first(
        _ON_AMPERE,
        Choice("deep_gemm", ("hopper", *_B200), "narrow"),
        Choice("cutlass", _B200),
        Choice("triton"),
    ),
    "int4": _first(Choice("marlin")),
    "int8": _first(Choice("triton")),
    "mxfp4": _first(
        Choice("flashinfer_trtllm", _B200), Choice("triton", ("hopper",)), Choice("marlin")
    ),
    "mxfp4_afp8": _first(Choice("flashinfer_trtllm_afp8", _B200), Choice("marlin")),
    "nvfp4": _first(Choice("cutlass", (*_B200, "blackwell-rtx")), Choice("marlin")),
}
"""By format, in 0.12; mxfp4_afp8 as 0.24 has it (`select_deepseek_v4_mxfp4_moe_backend`)."""

OF_0_11: Mapping[str, Choices] = {
    **OF_0_12,
    "mxfp4": _first(Choice("flashinfer_trtllm", _B200), Choice("marlin")),
}
"""Without the package triton_kernels, which is not in the wheel yet, nor required by it."""

OF_0_14: Mapping[str, Choices] = {
    **OF_0_12,
    "fp8_block": _first(
        _ON_AMPERE, Choice("deep_gemm", ("hopper", *_B200), "narrow"), Choice("triton")
    ),
}

OF_0_19: Mapping[str, Choices] = {
    **OF_0_14,
    "fp8_static": _first(
        _ON_AMPERE,
        Choice("flashinfer_trtllm", _B200),
        Choice("flashinfer_cutlass", ("hopper", "blackwell-rtx")),
        Choice("triton"),
    ),
    "fp8_block": _first(
        _ON_AMPERE,
        Choice("flashinfer_trtllm", _B200),
        Choice("flashinfer_cutlass", ("hopper",), "spread"),
        Choice("triton"),
    ),
    "nvfp4": _first(
        Choice("flashinfer_trtllm", _B200),
        Choice("flashinfer_cutlass", ("blackwell-rtx",)),
        Choice("marlin"),
    ),
}

OF_0_24: Mapping[str, Choices] = {
    **OF_0_19,
    "bf16": _first(
        Choice("flashinfer_trtllm", _B200, "tiles"),
        Choice("flashinfer_cutlass", _B200, "gelu"),
        Choice("triton", ("blackwell-rtx",), "replicas"),
        Choice("flashinfer_cutlass", ("blackwell-rtx",)),
        Choice("triton"),
    ),
}

OF_0_33: Mapping[str, Choices] = {
    **OF_0_24,
    "fp8_block": _first(
        _ON_AMPERE,
        Choice("flashinfer_trtllm", _B200, "tiles"),
        Choice("flashinfer_cutlass", ("hopper",), "spread"),
        Choice("triton"),
    ),
}
"""Triton alone takes the smaller blocks that 0.33 makes of experts cut inside one."""
