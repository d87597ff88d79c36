"""Reads `quantization_config`: FP8, GPTQ, AWQ, MXFP4 and compressed-tensors checkpoints.

Source of keys: the quantization documents of the `transformers` library, and vLLM's readers in
`model_executor/layers/quantization`. Scales of a whole tensor or channel are left out (less than
0.1 % of the weights); those of a block or a group are counted.
"""

from __future__ import annotations

import re

from mist_sim.models.huggingface.config_reader import ConfigReader
from mist_sim.models.quantization import Quantization

_METHODS = ("fp8", "gptq", "awq", "compressed-tensors", "mxfp4")
# What stays in 16 bits here whatever a checkpoint says; other exceptions would be timed wrongly.
_PLAIN = re.compile(
    r"(.*[.*/:])?(lm_head|embed_tokens|\w*norm\w*|gate|router|shared_expert_gate)\$?"
)
_SCALE_BYTES = 2  # 16-bit scales of groups; blocks of FP8 have 32-bit ones (DeepSeek-V3, §3.3)
_BLOCK_SCALE_BYTES = 4
# OCP Microscaling Formats v1.0: blocks of 32 values of 4 bits share a scale of 8 bits. vLLM's
# `Mxfp4Config` applies it to routed experts only; kernels widen to 16 bits before they multiply
# (Triton and Marlin on Hopper).
_MXFP4 = Quantization(name="mxfp4", bytes_per_param=0.5 + 1 / 32, experts_only=True)


def read_quantization(reader: ConfigReader) -> tuple[Quantization | None, str]:
    """Return how a checkpoint stores its matrices (None: in 16 bits) and its KV cache."""
    table = reader.table("quantization_config")
    if table is None:
        return None, "auto"
    method = table.config.get("quant_method")
    if method not in _METHODS:
        raise reader.error(
            f"quantization_config means quantized weights; quant_method {method!r} is not "
            f"simulated yet. Known: {', '.join(_METHODS)}"
        )
    if method == "mxfp4":
        return _MXFP4, "auto"
    for key in ("modules_to_not_convert", "ignored_layers", "ignore"):
        _check_exceptions(table, key)
    if method == "compressed-tensors":
        return _compressed_tensors(table), _kv_cache_dtype(table)
    return (_fp8(table) if method == "fp8" else _groups(table, method == "awq")), "auto"


def _check_exceptions(table: ConfigReader, key: str) -> None:
    for module in table.items(key):
        if not _PLAIN.fullmatch(str(module)):
            raise table.error(
                f"{key} names {module!r}; layers with quantized and plain matrices are not "
                "simulated yet"
            )


def _fp8(table: ConfigReader) -> Quantization:
    block = table.items("weight_block_size")
    rows, columns = block or (0, 0)
    size = 1.0
    if isinstance(rows, int) and isinstance(columns, int) and rows * columns > 0:
        size += _BLOCK_SCALE_BYTES / (rows * columns)
    return Quantization(name="fp8", bytes_per_param=size, compute="fp8")


def _groups(table: ConfigReader, zero_point: bool) -> Quantization:
    """GPTQ and AWQ: integers of few bits; a scale, and perhaps a zero point, for each group.

    vLLM drops the zero points of a symmetric GPTQ checkpoint when it repacks for Marlin.
    """
    zeros = table.flag("zero_point", True) if zero_point else not table.flag("sym", True)
    return _integers(
        table,
        bits=table.size("bits", "w_bit"),
        group_size=_group_size(table, "group_size", "q_group_size"),
        zeros=zeros,
        lm_head=table.flag("lm_head", False),
    )


def _compressed_tensors(table: ConfigReader) -> Quantization:
    sparsity = table.table("sparsity_config")
    if sparsity and sparsity.config.get("format", "dense") != "dense":
        raise table.error("sparsity_config means sparse weights, which are not simulated yet")
    groups = table.table("config_groups")
    group = groups.table(next(iter(groups.config))) if groups else None
    weights = group.table("weights") if group else None
    if groups is None or len(groups.config) != 1 or group is None or weights is None:
        raise table.error("config_groups must hold one group with weights")
    if group.config.get("targets") not in (["Linear"], None):
        raise group.error(f"targets other than Linear are not simulated yet: {group.config}")
    kind, bits = weights.config.get("type", "int"), weights.size("num_bits")
    inputs = group.table("input_activations")
    if kind == "float" and bits == 8:
        compute = "fp8" if inputs else "bf16"
        return Quantization(name="fp8", bytes_per_param=1.0, compute=compute)
    if kind != "int":
        raise weights.error(f"type {kind!r} of {bits} bits is not simulated yet")
    return _integers(
        weights,
        bits=bits,
        group_size=_group_size(weights, "group_size"),
        zeros=not weights.flag("symmetric", True),
        compute="int8" if bits == 8 and inputs else "bf16",
    )


def _group_size(table: ConfigReader, *keys: str) -> int | None:
    """Weights that share a scale; None (written -1 or absent) shares it over a whole channel."""
    given = [table.config.get(key) for key in keys]
    return None if all(size in (None, -1) for size in given) else table.size(*keys)


def _integers(
    table: ConfigReader,
    *,
    bits: int,
    group_size: int | None,
    zeros: bool,
    compute: str = "bf16",
    lm_head: bool = False,
) -> Quantization:
    if bits not in (4, 8):
        raise table.error(f"bits must be 4 or 8, got {bits}")
    group_bytes = _SCALE_BYTES + (bits / 8 if zeros else 0)
    size = bits / 8 + (group_bytes / group_size if group_size else 0)
    return Quantization(name=f"int{bits}", bytes_per_param=size, compute=compute, lm_head=lm_head)


def _kv_cache_dtype(table: ConfigReader) -> str:
    scheme = table.table("kv_cache_scheme")
    if scheme is None:
        return "auto"
    if scheme.size("num_bits") != 8:
        raise scheme.error(f"num_bits must be 8, got {scheme.config['num_bits']}")
    return "int8" if scheme.config.get("type") == "int" else "fp8"
