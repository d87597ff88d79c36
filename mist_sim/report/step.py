"""A step as text for a terminal: its time, the bottleneck, and each operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from mist_sim.report.elements import Fitting, columns, count, number, percent, section
from mist_sim.report.run import told

_BOUNDS = {
    "compute": "compute",
    "memory": "memory bandwidth",
    "latency": "short kernels",
    "links": "links between GPUs",
    "host": "the engine's host",
    "unknown": "not taken apart",
}

_TYPES = {"bf16": "16 bits", "fp8": "FP8", "int8": "INT8", "fp4": "FP4"}


def step_table(summary: Mapping[str, Any]) -> RenderableType:
    """Return the tables of a step. summary: `StepExplained.summary`."""
    told = _batch(summary), _verdict(summary), *_of_peak(summary), _error(summary)
    lines = [Text(line) for line in (*told, *summary["notes"])]
    tables = [_table(summary, wide=wide) for wide in (True, False)]
    return Group(
        *section("Step", Group(*lines)),
        *section("Operators, in all their layers, on one GPU", Fitting(*tables)),
        *_peaks(summary),
    )


def _batch(summary: Mapping[str, Any]) -> str:
    parts, engines, who = [], summary["num_engines"], summary["client"]
    is_by_hand = summary["starts_at_s"] is None
    if engines > 1 and not is_by_hand:
        who += f", one of its {engines} engines"

    def in_all(how_many: int, what: str, more: str = "") -> str:
        each = _several(how_many, what) + more
        if engines == 1 or not is_by_hand:
            return each
        return f"{each} on each of {engines} engines, {count(engines * how_many)} in all,"

    if prompts := summary["prompts"]:
        tokens = _several(summary["num_prefill_tokens"], "new token")
        parts.append(f"{in_all(len(prompts), 'prompt')} with {tokens}")
    if decodes := summary["num_decodes"]:
        mean = summary["context_sum"] / decodes
        drafts = f" and {summary['num_drafts']} drafts each" if summary["num_drafts"] else ""
        parts.append(f"{in_all(decodes, 'decode', drafts)} with {number(mean)} tokens of context")
    when = ""
    if (start := summary["starts_at_s"]) is not None:
        when = f"; it begins at {start:.6g} s, with {count(summary['num_waiting'])} more waiting"
    reads_cache = decodes or any(context for _, context in prompts)
    if reads_cache and (stored := summary["kv_entries"]):
        parts[-1] += f", KV entries {stored}"
    return f"{who}: {', '.join(parts)}{when}."


def _several(how_many: int, what: str) -> str:
    return f"{count(how_many)} {what}{'' if how_many == 1 else 's'}"


def _verdict(summary: Mapping[str, Any]) -> str:
    shares = [f"{percent(share)} {_BOUNDS[bound]}" for bound, share in summary["shares"].items()]
    return (
        f"{summary['step_ms']:.4g} ms ({summary['estimate']}). Of that time, by what binds each "
        f"operator: {', '.join(shares)}."
    )


def _of_peak(summary: Mapping[str, Any]) -> Iterator[str]:
    if (shares := summary["of_peak"]) is not None:
        yield (
            f"All operators together: {percent(shares['flops'])} of the FLOPs, and "
            f"{percent(shares['bandwidth'])} of the bytes, that the data sheet's peaks would do in "
            "that time."
        )


def _error(summary: Mapping[str, Any]) -> str:
    """Return the error of the latency of runs that such steps make up."""
    bar = summary["expected_error"]
    shown, like = told(bar)
    if bar is None or bar["low"] is None:
        return f"Expected error: {like}."
    return f"Expected error, nine in ten: {shown}, as of {bar['metric'].upper()} in runs ({like})."


def _table(summary: Mapping[str, Any], *, wide: bool) -> RenderableType:
    titles = ["operator", "layers", "ms", "share", "bound by", "of peak"]
    titles += ["GFLOP", "MB", "FLOP/byte", "type", "kernels"] if wide else []
    rows = [_cells(row, wide=wide) for row in summary["operators"]]
    return columns(titles, rows, right=(1, 2, 3, 5, 6, 7, 8), dim=(9, 10))


def _cells(row: Mapping[str, Any], *, wide: bool) -> list[str]:
    cells = [
        row["operator"],
        count(row["layers"]),
        f"{row['seconds'] * 1e3:.4g}",
        percent(row["share"], 1),
        row["bound"],
        "-" if row["of_peak"] is None else percent(row["of_peak"]),
    ]
    if wide:
        per_byte = row["flops_per_byte"]
        cells += [
            number(row["flops"] / 1e9) if row["flops"] else "-",
            number(row["bytes"] / 1e6) if row["bytes"] else "-",
            number(per_byte) if per_byte else "-",
            row["dtype"] if row["flops"] else "-",
            row["kernel"],
        ]
    return cells


def _peaks(summary: Mapping[str, Any]) -> Iterator[RenderableType]:
    peaks, bandwidth = summary["peak_flops"], summary["memory_bandwidth"]
    if peaks and bandwidth:
        rates = [f"{flops / 1e12:,.0f} TFLOP/s in {_TYPES[name]}" for name, flops in peaks.items()]
        ridges = [f"{flops / bandwidth:,.0f}" for flops in peaks.values()]
        yield Text(
            f"The GPU's data sheet: {', '.join(rates)} and {bandwidth / 1e12:.2f} TB/s, equal at "
            f"{' and '.join(ridges)} FLOP/byte.",
            style="dim",
        )
