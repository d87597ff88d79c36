"""The report of a search for goodput: the rate, and how every rate that was tried fared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf, isinf, isnan, nan
from typing import TYPE_CHECKING, Any

from mist_sim.metrics.latency import limit_title
from mist_sim.report.goodput import asked, goodput_table
from mist_sim.report.pages.page import Drawing, Page, Verdict
from mist_sim.report.pages.printed_page import printed_page
from mist_sim.report.pictures.catalog import require_plotly
from mist_sim.report.pictures.style import COLOURS, LIMIT_COLOUR, WAIT_COLOUR, limit_line, panels

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_MARKS = {
    True: ("attained", COLOURS[2], "circle"),
    False: ("missed", LIMIT_COLOUR, "x"),
    None: ("undecided", WAIT_COLOUR, "diamond"),
}


def goodput_page(summary: Mapping[str, Any], title: str) -> Page:
    """Return the report of a search. summary: `Goodput.summary`."""
    require_plotly()
    return printed_page(
        title, _verdict(summary), goodput_table(summary), figures=list(_drawings(summary))
    )


def restored_goodput(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary of a `goodput.json`: null is NaN, or the open end of an interval."""
    found = dict(summary)
    for name in ("goodput", "goodput_per_gpu"):
        found[name] = nan if found[name] is None else found[name]
    low, high = found["interval"]
    found["interval"] = [0.0 if low is None else low, inf if high is None else high]
    found["seeds"] = [
        {**seed, "trials": [_restored_trial(trial) for trial in seed["trials"]]}
        for seed in found["seeds"]
    ]
    return found


def _restored_trial(trial: Mapping[str, Any]) -> dict[str, Any]:
    share = trial["attainment"]
    return {**trial, "attainment": nan if share is None else share}


def _verdict(summary: Mapping[str, Any]) -> Verdict:
    if isnan(summary["goodput"]):
        found = f"Goodput not known: {summary['status']}."
        return Verdict("unsure", found, f"Asked: {asked(summary)}.")
    first = summary["first_limit"]
    beyond = f"; beyond it {limit_title(first)} misses first" if first else ""
    sentence = f"{asked(summary)}{beyond}."
    return Verdict("plain", f"{summary['goodput']:.4g} requests a second.", sentence)


def _drawings(summary: Mapping[str, Any]) -> Iterator[Drawing]:
    trials = [trial for seed in summary["seeds"] for trial in seed["trials"]]
    known = [trial for trial in trials if not isnan(trial["attainment"])]
    if known:
        yield Drawing("rates", "Good requests at each rate tried", _rates(summary, known))


def _rates(summary: Mapping[str, Any], trials: list[Mapping[str, Any]]) -> Figure:
    """Draw the share of good requests over the rate, and the interval of the goodput as a band."""
    figure = panels(["good requests, %, over requests a second"], shared_time=False)
    for attained, (name, colour, symbol) in _MARKS.items():
        rows = [trial for trial in trials if trial["attained"] is attained]
        if rows:
            figure.add_scatter(
                x=[row["rate"] for row in rows],
                y=[100 * row["attainment"] for row in rows],
                text=[_told(row) for row in rows],
                name=name,
                mode="markers",
                marker={"color": colour, "size": 10, "symbol": symbol},
                hovertemplate="%{x:.4g} /s: %{text}<extra></extra>",
            )
    low, high = summary["interval"]
    if not isnan(summary["goodput"]) and not isinf(high):
        figure.add_vrect(x0=low, x1=high, fillcolor=COLOURS[0], opacity=0.15, line_width=0)
    limit_line(figure, 100 * summary["attainment_asked"], "asked for")
    figure.update_xaxes(title_text="requests a second")
    figure.update_layout(height=380, hovermode="closest")
    return figure


def _told(trial: Mapping[str, Any]) -> str:
    """Return what a mark says when it is pointed at."""
    most = "" if trial["is_whole"] else "at most "
    return f"{most}{100 * trial['attainment']:.1f} % good, {trial['num_requests']:,} requests"
