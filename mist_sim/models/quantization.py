"""Formats of numbers: of the layers' matrices, and of the KV cache's entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from mist_sim.checks import Range, check_fields, check_name

Part = Literal[
    "attention",
    "attention_output",
    "linear_attention",
    "linear_output",
    "mlp",
    "shared_experts",
    "routed_experts",
    "lm_head",
]
"""Matrices that a checkpoint stores in one format, in every layer that has them.

attention: those before attention (queries, keys, values, latents). attention_output: the one
behind it. linear_attention, linear_output: the same of layers with a state. mlp: of dense layers.
lm_head: the output head.
"""

LINEAR_PARTS: frozenset[Part] = frozenset({"linear_attention", "linear_output"})
LAYER_PARTS: frozenset[Part] = frozenset(get_args(Part)) - LINEAR_PARTS - {"lm_head"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """Formats in which the matrices of attention, MLP and experts are stored and multiplied.

    Norms, biases, routers and the embedding keep 16 bits.

    name: "fp8", "int8", "int4", "nvfp4" or "mxfp4", for messages.
    bytes_per_param: bytes of one parameter, its share of scales and zero points included.
    compute: FLOP rate at which the products run ("fp8", "int8", "fp4"); "bf16" if only the weights
        are quantized and kernels widen them before multiplying (GPTQ, AWQ).
    parts: quantized matrices; the others keep 16 bits.
    static_inputs: whether the checkpoint has the scales of the products' inputs, for whole tensors;
        otherwise they are found anew for each step. It decides which kernels take FP8 experts.
    by_modelopt: whether NVIDIA's Model Optimizer wrote the whole checkpoint in FP8, for which vLLM
        asks for other GPUs.
    block: (outputs, inputs) of a matrix that share a scale; None: whole tensors or channels do, or
        it is not known, as where options name the format and no checkpoint does.
    """

    name: str
    bytes_per_param: Annotated[float, Range("(0, 2]")]
    compute: str = "bf16"
    parts: frozenset[Part] = LAYER_PARTS
    static_inputs: bool = False
    by_modelopt: bool = False
    block: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        check_name("compute", self.compute, ("bf16", "fp8", "int8", "fp4"))
        for part in self.parts:
            check_name("parts", part, get_args(Part))

    @property
    def kernel(self) -> str:
        """Kind of the kernels that compute these matrices.

        FP8 with block scales has its own kernels; all kernels that widen weights are one kind.
        """
        if self.compute == "bf16":
            return "mxfp4" if self.name == "mxfp4" else "int4"
        return "fp8_block" if self.name == "fp8" and self.bytes_per_param > 1 else self.name


WeightDtype = Literal["fp8", "fp8_block", "int8", "int4", "nvfp4"]
"""Formats that weights can be stored in instead of as the checkpoint does."""

# Formats of `--quantization` and of the common recipes, if no config is more specific. int4: groups
# of 128 with one 16-bit scale, the default of AutoAWQ, GPTQModel and llm-compressor.
QUANTIZATIONS: Mapping[str, Quantization] = {
    "fp8": Quantization(name="fp8", bytes_per_param=1.0, compute="fp8"),
    # Blocks of 128 x 128 share a scale of 32 bits (DeepSeek-V3, §3.3), as Qwen's checkpoints do.
    "fp8_block": Quantization(
        name="fp8", bytes_per_param=1 + 4 / 128**2, compute="fp8", block=(128, 128)
    ),
    "int8": Quantization(name="int8", bytes_per_param=1.0, compute="int8"),
    "int4": Quantization(name="int4", bytes_per_param=0.5 + 2 / 128),
    # Blocks of 16 values of 4 bits share a scale of 8 bits (NVIDIA, "Introducing NVFP4", 2025).
    "nvfp4": Quantization(name="nvfp4", bytes_per_param=0.5 + 1 / 16, compute="fp4"),
}
UNQUANTIZED = ("bf16", "fp16", "bfloat16", "float16")

KvCacheDtype = Literal[
    "auto", "bf16", "fp16", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "int8"
]
"""vLLM's names of `--kv-cache-dtype`; "auto" is the model's own."""

# Bytes of one cached value.
KV_CACHE_BYTES: Mapping[str, int] = {
    name: 2 if name in UNQUANTIZED else 1 for name in get_args(KvCacheDtype) if name != "auto"
}
