"""Back ends of attention by vLLM's names (`--attention-backend`), and which is chosen.

`_get_backend_priorities` in `vllm/platforms/cuda.py`; the first that supports the cache's format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mist_sim.models.spec import ModelSpec

AttentionBackend = Literal[
    "FLASH_ATTN",
    "FLASHINFER",
    "TRITON_ATTN",
    "FLEX_ATTENTION",
    "FLASH_ATTN_MLA",
    "FLASHMLA",
    "FLASHINFER_MLA",
    "CUTLASS_MLA",
    "TRITON_MLA",
]
"""vLLM's names; those with MLA are of latent attention."""

_B200 = ("blackwell", "blackwell-ultra")
_ONLY_ON: dict[AttentionBackend, tuple[str, ...]] = {
    "FLASH_ATTN_MLA": ("hopper",),
    "FLASHMLA": ("hopper", *_B200),
    "FLASHINFER_MLA": _B200,
    "CUTLASS_MLA": _B200,
}

_WITH_SINKS = frozenset({"gpt_oss"})
"""Families (`model_type`) whose layers are alike and have a sink for each head."""


@dataclass(frozen=True, slots=True)
class AttentionChoices:
    """The back ends that a version takes.

    latent_on_blackwell: of latent attention on B200 and B300.
    """

    latent_on_blackwell: AttentionBackend

    def of(self, model: ModelSpec, architecture: str) -> AttentionBackend | None:
        """Return the back end of a model; None where layers differ or the GPU is not known."""
        if not architecture or model.layers:
            return None
        narrow = model.kv_entry_bytes == 1
        if model.mla:
            if architecture in _B200:
                return self.latent_on_blackwell
            on_hopper: AttentionBackend = "FLASHMLA" if narrow else "FLASH_ATTN_MLA"
            return on_hopper if architecture == "hopper" else "TRITON_MLA"
        if architecture in _B200 or (narrow and architecture != "hopper"):
            return "FLASHINFER"  # FlashAttention 2 has no caches of 8 bits
        if model.architecture in _WITH_SINKS and architecture != "hopper":
            return "TRITON_ATTN"  # nor sinks
        return "FLASH_ATTN"

    def __str__(self) -> str:
        return (
            f"FLASH_ATTN; FLASHINFER on {', '.join(_B200)}, and for caches of 8 bits where "
            "FlashAttention is 2; TRITON_ATTN there for attention with sinks; latent: "
            f"{self.latent_on_blackwell} on {', '.join(_B200)}, "
            "FLASH_ATTN_MLA or FLASHMLA on hopper, else TRITON_MLA"
        )


OF_0_12 = AttentionChoices("CUTLASS_MLA")
OF_0_19 = AttentionChoices("FLASHINFER_MLA")


def check_attention_backend(backend: str, model: ModelSpec, gpu: str, architecture: str) -> None:
    """Raise ValueError for a back end that does not suit a model or does not run on a GPU.

    gpu: its name, for the message. architecture: of it; on one that is not known all may run.
    """
    if model.layers:
        raise ValueError(
            f"attention_backend must be null for {model.name}, whose layers have kernels of their "
            f"own, got {backend}"
        )
    latent = model.mla is not None
    if backend.endswith("MLA") != latent:
        kind = "one with MLA in its name" if latent else "one without MLA in its name"
        raise ValueError(
            f"attention_backend must be {kind} for {model.name}, whose attention is "
            f"{'' if latent else 'not '}latent, got {backend}"
        )
    on = next((places for name, places in _ONLY_ON.items() if name == backend), ())
    if architecture and on and architecture not in on:
        raise ValueError(
            f"attention_backend must not be {backend} on {gpu}: it runs on {', '.join(on)}"
        )
