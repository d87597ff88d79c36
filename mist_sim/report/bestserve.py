"""BestServe's ranking of strategies as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isinf, isnan
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from mist_sim.metrics.latency import limit_title
from mist_sim.report.elements import Fitting, columns, count, number, section, who
from mist_sim.report.goodput import asked

_UNITS = {"gpu": "GPU", "usd": "dollar", "joule": "joule"}
_DIVIDED = {"usd": "requests per $", "joule": "requests per J"}


def bestserve_table(summary: Mapping[str, Any]) -> RenderableType:
    """Return the tables of a ranking. summary: `Ranking.summary`."""
    unit = _UNITS[summary["by"]]
    rows = summary["strategies"]
    ranked = [row for row in rows if not row["left_out"]]
    left_out = [row for row in rows if row["left_out"]]
    runs = f"{count(summary['num_runs'])} runs of {count(summary['num_requests'])} requests"
    table = Fitting(_ranked(ranked, summary, wide=True), _ranked(ranked, summary, wide=False))
    parts = [*section(f"Strategies by goodput per {unit} ({runs})", table)]
    told = asked(summary)
    parts.append(Text(f"{told[:1].upper()}{told[1:]}."))
    parts += [Text(note) for note in _notes(ranked, summary)]
    parts.append(Text())
    if left_out:
        parts += section("Left out", Group(*(Text(text) for text in _reasons(left_out))))
    return Group(*parts)


def _ranked(
    rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], *, wide: bool
) -> RenderableType:
    has_full = any(not isnan(row["full_goodput"]) for row in rows)
    titles = ["", "batches", "GPUs", "goodput, /s", "per GPU"]
    titles += [_DIVIDED[summary["by"]]] if summary["by"] != "gpu" else []
    titles += ["between, /s", "output tokens/s/GPU", "first to miss"] if wide else []
    titles += ["full, /s", "differs"] if has_full else []
    cells = [_cells(row, summary["by"], wide=wide, has_full=has_full) for row in rows]
    right = [k for k, title in enumerate(titles) if title not in ("", "first to miss")]
    return columns(titles, cells, right=right)


def _cells(row: Mapping[str, Any], by: str, *, wide: bool, has_full: bool) -> list[str]:
    label = strategy_label(row) + (" *" if row["is_close"] else "")
    found = [
        label,
        f"{row['prefill_batch']}/{row['decode_batch']}",
        str(row["num_gpus"]),
        _rate(row["goodput"]),
        _rate(row["goodput_per_gpu"]),
    ]
    if by != "gpu":
        per = row[f"goodput_per_{by}"]
        found.append(number(per) if per > 1 else _rate(per))
    if wide:
        found += [
            f"{_rate(row['low'])} to {_rate(row['high'])}" if row["goodput"] else "-",
            number(row["output_tokens_per_s_per_gpu"]) if row["goodput"] else "-",
            limit_title(row["first_limit"], ""),
        ]
    if has_full:
        is_known = not isnan(row["full_error"])
        differs = f"{100 * row['full_error']:+.0f} %".replace("-", "−") if is_known else "-"
        found += [_rate(row["full_goodput"]), differs]
    return found


def strategy_label(row: Mapping[str, Any]) -> str:
    """Return name and layout of a row, as in the paper's Figure 11."""
    stages = row["pipeline_parallel_size"]
    gpu = f"-{row['gpu']}" if row["gpu"] else ""
    depth = f"-pp{stages}" if stages > 1 else ""
    return f"{row['strategy']}{gpu}-tp{row['tensor_parallel_size']}{depth}"


def _notes(rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> list[str]:
    found = []
    if sum(row["is_close"] for row in rows) > 1:
        found.append("* as good as the best one: these runs show no difference.")
    slow = [row for row in rows if row["too_slow"]]
    if slow:
        same = {row["too_slow"] for row in slow}
        what = f": {slow[0]['too_slow']}" if len(same) == 1 else ", where a request that is alone"
        found.append(f"A goodput of 0{what if len(same) == 1 else what + ' misses a limit'}.")
    if not rows or not rows[0]["goodput"]:
        found.append("No strategy attains the limits at any rate.")
    if summary["by"] == "joule":
        found.append("Joules are those of a run at the goodput in the full simulation.")
    if any(not isnan(row["full_goodput"]) for row in rows):
        found.append("full: the goodput of the same strategy in the full simulation.")
    return found


def _reasons(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each reason, with the strategies that it holds for."""
    names: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        layout = strategy_label(row).removeprefix(row["strategy"] + "-")
        key = f"{layout} {row['prefill_batch']}/{row['decode_batch']}", row["left_out"]
        names.setdefault(key, []).append(row["strategy"])
    return [f"{layout} ({who(every)}): {why}" for (layout, why), every in names.items()]


def _rate(value: float) -> str:
    if isnan(value):
        return "-"
    return "-" if isinf(value) else f"{value:.3g}"
