"""The report of a plan: what to buy, how sure that is, and what else was tried at what price."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isnan, nan
from typing import TYPE_CHECKING, Any

from mist_sim.metrics.spending.cost import HOURS_A_MONTH
from mist_sim.report.pages.page import Detail, Drawing, Page, Verdict
from mist_sim.report.pages.printed_page import printed_page
from mist_sim.report.pictures.catalog import require_plotly
from mist_sim.report.pictures.style import COLOURS, LIMIT_COLOUR, WAIT_COLOUR, panels
from mist_sim.report.plan import plan_table

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_LEVELS = {"sure": "good", "likely": "unsure", "unsure": "bad"}
_MARKS = {
    "attained": (COLOURS[2], "circle"),
    "missed": (LIMIT_COLOUR, "x"),
    "undecided": (WAIT_COLOUR, "diamond"),
}


def plan_page(summary: Mapping[str, Any], title: str) -> Page:
    """Return the report of a plan. summary: `Plan.summary`; title: where it has none."""
    require_plotly()
    title = (summary.get("title") or title).splitlines()[0]
    commands = "\n".join([*summary["vllm"], *summary["proxy"]])
    return printed_page(
        title,
        _verdict(summary),
        plan_table(summary),
        figures=list(_drawings(summary)),
        details=[Detail("Commands that deploy it", commands)],
    )


def restored_plan(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary of a `plan.json`: figures that are null there are NaN."""
    numbers = ("attainment", "estimate")
    rows = [
        {**row, **{name: nan if row[name] is None else row[name] for name in numbers}}
        for row in summary["tried"]
    ]
    return {**summary, "tried": rows}


def _verdict(summary: Mapping[str, Any]) -> Verdict:
    """Return the answer, with the confidence of the line that says what to buy."""
    buy = next((line for line in summary["lines"] if line["name"] == "buy"), None)
    level = buy["confidence"] if buy else ""
    headroom = summary["headroom"]
    room = "" if headroom is None else f", with {100 * headroom:.0f} % headroom"
    month = f"{HOURS_A_MONTH * summary['usd_per_hour']:,.0f} $ a month"
    sentence = f"{summary['usd_per_hour']:.2f} $/h, {month}, serve {summary['rate']:.4g} /s{room}"
    told = f"; {level} that the limits are kept." if level else "."
    return Verdict(_LEVELS.get(level, "plain"), f"Buy {summary['name']}.", sentence + told)


def _drawings(summary: Mapping[str, Any]) -> Iterator[Drawing]:
    rows = [row for row in summary["tried"] if not isnan(row["attainment"])]
    if rows:
        yield Drawing("tried", "Good requests of each candidate over its price", _tried(rows))


def _tried(rows: list[Mapping[str, Any]]) -> Figure:
    """Draw the share of good requests over dollars an hour; a mark a candidate."""
    figure = panels(["good requests, %, over $/h"], shared_time=False)
    for verdict, (colour, symbol) in _MARKS.items():
        found = [row for row in rows if row["verdict"] == verdict]
        if found:
            figure.add_scatter(
                x=[row["usd_per_hour"] for row in found],
                y=[100 * row["attainment"] for row in found],
                text=[row["name"] for row in found],
                name=verdict,
                mode="markers",
                marker={"color": colour, "size": 10, "symbol": symbol},
                hovertemplate="%{text}<br>%{x:.2f} $/h, %{y:.1f} % good<extra></extra>",
            )
    figure.update_xaxes(title_text="$/h")
    figure.update_layout(height=380, hovermode="closest")
    return figure
