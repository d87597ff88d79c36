"""Pairs of layouts by throughput as text for a terminal (`mist reshard`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from mist_sim.report.elements import columns, number, section

_MOST_ROWS = 12


def resharding_table(summary: Mapping[str, Any]) -> RenderableType:
    """Return the tables of `Choices.summary`."""
    rows = _shown(summary["pairs"])
    titles = ["prefill", "decode", "requests/s", "x static", "prompt, s", "answer, s"]
    titles += ["reload, s", "batch"]
    cells = [
        [
            row["prefill"],
            "stays" if row["is_static"] else row["decode"],
            f"{row['requests_per_s']:.3g}",
            f"{row['over_best_static']:.2f}",
            f"{row['prefill_time']:.3g}",
            f"{row['decode_time']:.3g}",
            "-" if row["is_static"] else f"{row['reload_time']:.2g}",
            f"{row['decode_batch']:.0f}",
        ]
        for row in rows
    ]
    asked = (
        f"{number(summary['prompt_tokens'])} prompt and {number(summary['output_tokens'])} "
        "output tokens"
    )
    table = columns(titles, cells, right=range(2, len(titles)))
    parts = [*section(f"Layouts by throughput ({asked}; times a request)", table)]
    parts += [Text(note) for note in _notes(summary, len(rows))]
    parts.append(Text())
    if summary["left_out"]:
        reasons = Group(*(Text(why) for why in summary["left_out"].values()))
        parts += section("Left out", reasons)
    return Group(*parts)


def _shown(pairs: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the first pairs, and the best pair without a change if it is not among them."""
    first = pairs[:_MOST_ROWS]
    if any(row["is_static"] for row in first):
        return first
    return [*first[:-1], next(row for row in pairs if row["is_static"])]


def _notes(summary: Mapping[str, Any], num_shown: int) -> list[str]:
    changing, static = summary["best_resharding"], summary["best_static"]
    found = []
    if changing is None:
        found.append("Only one layout fits, so there is nothing to re-shard.")
    else:
        found.append(
            f"{changing['prefill']} -> {changing['decode']} does {summary['speedup']:.2f} x the "
            f"requests of {static['prefill']}, the best layout that stays."
        )
    num_pairs = len(summary["pairs"])
    if num_shown < num_pairs:
        found.append(f"{num_shown} of {num_pairs} pairs; --out DIR writes all.")
    return found
