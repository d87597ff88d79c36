"""Fits kernels of experts by back end, and writes `mist_sim/hardware/backends/*.toml`.

And products in FP8 with scales of blocks, and the attention of vision towers, in
`mist_sim/hardware/architectures/*.toml`.

    python tools/pages/make_backends.py .../aisimulate_core/systems/data

The folder is in the wheel of aisimulate (`pip download --no-deps --pre aisimulate`, Apache-2.0).
Takes a minute. The figures of the usual back ends are those of `hardware/architectures/`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.kernel_grid import BLOCKS_OF, SYSTEMS, block_rows
from mist_sim.hardware import load_gpu
from tools.kernels.expert_rows import backend_rows, expert_rows
from tools.kernels.kernel_fit import KernelFit, fit_kernel
from tools.kernels.kernel_reading import table_of
from tools.kernels.kernel_rows import KernelRows, joined
from tools.kernels.kernel_tables import written
from tools.kernels.tower_rows import read_towers

HARDWARE = Path(__file__).parents[2] / "mist_sim" / "hardware"
VERSION = "aisimulate 0.13.0.dev202610270000000085"
TOWERS_OF = "0.24.0"  # the version of vLLM that all cards have
SGLANG = "0.5.10"
LEAST = 500  # rows: those of fewer sizes leave figures open
_DENSE = ("prefill_attention", "decode_attention")
_NARROW = tuple(f"{name}_fp8" for name in _DENSE)
_LATENT = ("latent_prefill_attention", "latent_decode_attention")
_WIDE = ("experts_bf16", "experts_fp8", "experts_fp8_block")
_OF_BLACKWELL = {
    **dict.fromkeys((*_WIDE, "experts_nvfp4", "experts_mxfp4"), "flashinfer_trtllm"),
    "experts_int4": "marlin",
    **dict.fromkeys((*_DENSE, *_NARROW), "FLASHINFER"),
    **dict.fromkeys(_LATENT, "FLASHINFER_MLA"),
}
_BY_FLASH_2 = {
    **dict.fromkeys(("experts_int4", "experts_mxfp4"), "marlin"),
    **dict.fromkeys(_DENSE, "FLASH_ATTN"),
    **dict.fromkeys(_NARROW, "FLASHINFER"),
    **dict.fromkeys(_LATENT, "TRITON_MLA"),
}
# whose kernels the tables are from to which the architectures' own figures were fitted
USUAL: Mapping[str, Mapping[str, str]] = {
    "ampere": {
        "experts_bf16": "triton",
        **dict.fromkeys(("experts_int4", "experts_mxfp4"), "marlin"),
        **dict.fromkeys(_DENSE, "FLASH_ATTN"),
    },
    "ada": {**dict.fromkeys(_WIDE, "triton"), **_BY_FLASH_2},
    "hopper": {
        **dict.fromkeys((*_WIDE, "experts_mxfp4"), "triton"),
        "experts_int4": "marlin",
        **dict.fromkeys((*_DENSE, *_NARROW), "FLASH_ATTN"),
        **dict.fromkeys(_LATENT, "FLASH_ATTN_MLA"),
    },
    "blackwell": _OF_BLACKWELL,
    "blackwell-ultra": _OF_BLACKWELL,
    "blackwell-rtx": {
        **dict.fromkeys(("experts_bf16", "experts_fp8", "experts_nvfp4"), "flashinfer_cutlass"),
        **_BY_FLASH_2,
    },
}
# FlashAttention 2 has no sinks; vLLM's Triton kernel takes 16 rows of queries at a time
# (`BLOCK_M` in vllm/attention/ops/triton_unified_attention.py), so the chip's cache bounds it: 16
# FLOPs for a byte read from there, for heads of any size.
WITHOUT_SINKS = ("ampere", "ada", "blackwell-rtx")
OF_16_ROWS = 0.122


def others(folder: Path, architecture: str) -> Iterator[tuple[str, str, KernelFit]]:
    """Yield back end, version and fit of each kind of experts beside the usual ones."""
    systems = SYSTEMS[architecture]
    cards = [load_gpu(gpu) for gpu in systems]
    small = [replace(card.kernels["vector"], mbu=0.8) for card in cards]
    found = backend_rows([folder / name for name in systems.values()], cards, small)
    for (kind, backend), (version, rows) in found.items():
        if USUAL[architecture].get(kind) == backend or len(rows) < LEAST:
            continue
        if fit := fit_kernel(rows):
            yield backend, version, fit


def text(architecture: str, fits: Sequence[tuple[str, str, KernelFit]]) -> str:
    """Return the table of an architecture."""
    lines = ["# Kernels by back end; made by tools/pages/make_backends.py", "", "[usual]"]
    lines += [f'{kind} = "{backend}"' for kind, backend in USUAL[architecture].items()]
    sources = []
    for backend, version, fit in sorted(fits, key=lambda each: (each[0], each[2].kind)):
        lines += ["", f"[{backend}.{fit.kind}]", *_entries(fit)]
        source = _source(fit, f"moe tables of vLLM {version} on {cards_of(architecture)}")
        sources.append(f'"{backend}.{fit.kind}" = "{source}"')
    if architecture in WITHOUT_SINKS:
        for kind, values, source in _with_sinks(architecture):
            lines += ["", f"[TRITON_ATTN.{kind}]", *_lines(values)]
            sources.append(f'"TRITON_ATTN.{kind}" = "{source}"')
    return "\n".join([*lines, "", "[sources]", *sources]) + "\n"


def _with_sinks(architecture: str) -> Iterator[tuple[str, dict[str, float], str]]:
    """Yield the attention of models with sinks, which no table has: whole runs do."""
    usual = load_gpu(next(iter(SYSTEMS[architecture]))).kernels
    prompts, decodes = (usual[kind] for kind in _DENSE)
    values = {"floor": prompts.floor, "mfu": OF_16_ROWS, "serial": prompts.serial}
    fitted = "mfu: prompts of 32,000 tokens of gpt-oss-20b and 120b on A100 (gpustack-lab)"
    if architecture != "ampere":
        fitted += ", assumed here"
    yield "prefill_attention", values, f"{fitted}; others: those of FlashAttention"
    names = ("floor", "mbu", "serial", "beside_prompts")
    values = {name: getattr(decodes, name) for name in names if getattr(decodes, name)}
    yield "decode_attention", values, "assumed: those of FlashAttention"


def _entries(fit: KernelFit) -> list[str]:
    return _lines(fit.values)


def _lines(values: Mapping[str, float]) -> list[str]:
    return [
        f'{name} = "{value}"' if " " in value else f"{name} = {value}"
        for name, value in written(values).items()
    ]


def _source(fit: KernelFit, of: str) -> str:
    ends = f", {' and '.join(fit.at_bound)} at an end of the range" if fit.at_bound else ""
    return (
        f"tools/pages/make_backends.py: {VERSION}, {of}; {fit.num_rows:,} rows, median error "
        f"{fit.median:.1%}, nine in ten within {fit.ninth:.0%}{ends}"
    )


def cards_of(architecture: str) -> str:
    """Return the measured cards of an architecture, in words."""
    return " and ".join(name.split("_")[0].upper() for name in SYSTEMS[architecture].values())


def with_kernel(text: str, fit: KernelFit, of: str, before: str) -> str:
    """Return the table of an architecture with a kind of kernels before another kind.

    of: the tables that it was fitted to, in words.
    """
    kind = fit.kind
    text = re.sub(rf"^\[{kind}\]\n(?:[^\[\n].*\n)+\n", "", text, flags=re.MULTILINE)
    text = re.sub(rf"^{kind} = .*\n", "", text, flags=re.MULTILINE)
    body = "\n".join([f"[{kind}]", *_entries(fit)])
    text = text.replace(f"[{before}]", f"{body}\n\n[{before}]", 1)
    line = f'\n{kind} = "{_source(fit, of)}"\n{before} = '
    return text.replace(f"\n{before} = ", line, 1)


def tower_rows(folder: Path, architecture: str, version: str = TOWERS_OF) -> KernelRows | None:
    """Return the attention of vision towers of an architecture; None without a table."""
    found: list[KernelRows] = []
    for gpu, system in SYSTEMS[architecture].items():
        found += read_towers(folder / system, version, load_gpu(gpu))
    return joined(found) if found else None


def widened_experts(folder: Path, gpu: str) -> KernelRows:
    """Return Marlin's experts on a card of Ampere, which vLLM's tables lack and SGLang's have."""
    card = load_gpu(gpu)
    small = replace(card.kernels["vector"], mbu=0.8)
    table = table_of(folder / SYSTEMS["ampere"][gpu] / f"moe/sglang/{SGLANG}/moe_perf.parquet")
    found = expert_rows(table[table["moe_dtype"].eq("int4_wo")], card, small)
    return next(iter(found))


def _written(folder: Path, architecture: str) -> None:
    """Write the kernels of an architecture that are not by back end."""
    path = HARDWARE / "architectures" / f"{architecture}.toml"
    text, cards = path.read_text("utf-8"), cards_of(architecture)
    blocks = [rows for part in block_rows(architecture, folder) for rows in part]
    if blocks and (fit := fit_kernel(joined(blocks))):
        of = f"gemm tables of vLLM {BLOCKS_OF} on {cards}"
        text = with_kernel(text, fit, of, "prefill_attention")
    towers = tower_rows(folder, architecture)
    if towers and (fit := fit_kernel(towers)):
        of = f"encoder_attention tables of vLLM {TOWERS_OF} on {cards}"
        text = with_kernel(text, fit, of, "vector")
    if architecture == "ampere" and (fit := fit_kernel(widened_experts(folder, "a100-80gb-sxm"))):
        of = f"moe table of SGLang {SGLANG}, whose Marlin is vLLM's, on {cards}"
        text = with_kernel(text, fit, of, "prefill_attention")
    path.write_text(text, "utf-8")
    print(f"{architecture}: {len(blocks)} tables of blocks, {len(towers or ())} rows of towers")


def main() -> None:
    """Write the tables of all architectures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for architecture in SYSTEMS:
        fits = list(others(folder, architecture))
        (HARDWARE / "backends" / f"{architecture}.toml").write_text(
            text(architecture, fits), "utf-8"
        )
        print(f"{architecture}: {len(fits)} fits")
        _written(folder, architecture)


if __name__ == "__main__":
    main()
