"""A report as data, its one HTML file, and what sheets of several kinds of findings share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Self

from mist_sim.core.result_warnings import ResultWarning, of_data
from mist_sim.errors import ScenarioError, brief
from mist_sim.metrics.expected_errors import WITHIN
from mist_sim.metrics.latency import limit_of, limit_title
from mist_sim.metrics.spending import HOURS_A_MONTH, billed_per_hour
from mist_sim.report.elements import as_html, in_ms, number, warning_lines
from mist_sim.report.run import expected_rows

if TYPE_CHECKING:
    from markupsafe import Markup
    from rich.console import RenderableType

    from mist_sim.report.pictures.picture import Picture

_SHEET_PICTURE = 2.2  # inches of all panels of the picture on a sheet of A4
_SHEET_PANELS = 3
_SHEET_WARNINGS, _SHEET_ASSUMED, _SHEET_BESIDE = 650, 300, 750  # letters of these parts there
_LINE = 100  # letters of a line there
MISSING = "a report needs Jinja2 and Matplotlib: pip install 'mist-sim[report]'"


@dataclass(frozen=True)
class Verdict:
    """The main answer of a page. level: good, unsure, bad, or plain if there is no verdict."""

    level: str
    word: str
    sentence: str


@dataclass(frozen=True)
class Card:
    """A figure that stands at the top. key: of the summary that has it. note: below it."""

    name: str
    value: str
    unit: str = ""
    key: str = ""
    note: str = ""


@dataclass(frozen=True)
class Drawing:
    """A picture of the page. name: its place; title: heads it."""

    name: str
    title: str
    figure: Picture

    @property
    def on_a_sheet(self) -> Drawing:
        """It with panels so low that a sheet has room for them."""
        panels = self.figure.panels[:_SHEET_PANELS]
        most = _SHEET_PICTURE / max(len(panels), 1)
        lower = [replace(panel, height=min(panel.height, most)) for panel in panels]
        return replace(self, figure=replace(self.figure, panels=lower))

    @property
    def svg(self) -> Markup:
        """The picture as an element of a page."""
        from markupsafe import Markup

        return Markup(self.figure.svg(self.name))  # noqa: S704 - Matplotlib escapes all texts


@dataclass(frozen=True)
class Brief:
    """What a page of one sheet has beside the verdict, the first picture and the warnings.

    question: that the verdict answers. sure: how sure that is. tiles: limits, dollars, room.
    assumed: what the answer rests on and the scenario does not say. answer: of several candidates
        the one whose warnings count; empty: those of all do. figure: in place of the page's first.
    beside: the other answers, a sentence each.
    """

    question: str
    sure: str
    tiles: Sequence[Card]
    assumed: Sequence[str] = ()
    answer: str = ""
    figure: Drawing | None = None
    beside: Sequence[str] = ()

    def concerns(self, warning: ResultWarning) -> bool:
        """Whether a warning is of all that was simulated, or of the answer or its engine."""
        whose = f" {self.answer},"
        return not (self.answer and warning.of) or any(f" {of}," in whose for of in warning.of)


@dataclass(frozen=True)
class Page:
    """A report: the verdict first, then figures, pictures, and where all of it comes from.

    printed: tables as a command prints them, HTML by `wide` and `narrow` screens. details: texts by
    title that open when a reader asks for them. warnings: set by `warned`, as told.
    """

    title: str
    verdict: Verdict
    subtitle: Sequence[str] = ()
    cards: Sequence[Card] = ()
    warnings: Sequence[str] = ()
    told: Sequence[ResultWarning] = ()
    printed: Mapping[str, Markup] = field(default_factory=dict)
    figures: Sequence[Drawing] = ()
    details: Mapping[str, str] = field(default_factory=dict)
    brief: Brief | None = None

    def warned(self, summary: Mapping[str, Any]) -> Self:
        """Return it with the warnings of findings. summary: `Findings.summary`."""
        return replace(self, warnings=warning_lines(summary), told=of_data(summary))

    def only(self, names: Sequence[str]) -> Self:
        """Return it with its pictures alone, all of them or those that are named.

        Raises ScenarioError for a name that none has, and where there is no picture.
        """
        drawings = {each.name: each for each in self.figures}
        for name in names:
            if name not in drawings:
                known = ", ".join(drawings) or "none"
                raise ScenarioError(f"there is no picture {brief(name)} of this. Known: {known}")
        if not drawings:
            raise ScenarioError("there is no picture of this; mist report writes its tables")
        chosen = [drawings[name] for name in dict.fromkeys(names or drawings)]
        return replace(self, figures=chosen, printed={}, details={})

    def sheet(self) -> str:
        """Return one sheet of A4: the answer alone, as one file.

        Raises ScenarioError for a page that has none, and without Jinja2 or Matplotlib.
        """
        if self.brief is None:
            raise ScenarioError(
                "one sheet is of a run, a goodput, a plan, or a comparison or run --vary with "
                "limits; leave out --brief"
            )
        lines = self.warnings
        if others := [each for each in self.told if not self.brief.concerns(each)]:
            mine = [each.data for each in self.told if each not in others]
            lines = warning_lines({"warnings": mine})
        warnings, left = _that_fit(lines, _SHEET_WARNINGS)
        left += len(others)
        assumed, more = _that_fit(self.brief.assumed, _SHEET_ASSUMED)
        beside, rest = _that_fit(self.brief.beside, _SHEET_BESIDE)
        figures = [self.brief.figure] if self.brief.figure else self.figures[:1]
        shown = replace(
            self,
            warnings=[*warnings, *_more(left)],
            brief=replace(
                self.brief,
                assumed=[*assumed, *_more(more)],
                beside=[*beside, *_more(rest)],
            ),
            figures=[each.on_a_sheet for each in figures],
        )
        return _rendered(shown, "brief.html.j2")

    def html(self) -> str:
        """Return the page as one file. Raises ScenarioError without Jinja2 or Matplotlib."""
        return _rendered(self, "page.html.j2")


def require_report() -> None:
    """Raise ScenarioError if a package that reports need is not installed."""
    if not can_report():
        raise ScenarioError(MISSING)


def can_report() -> bool:
    """Tell whether Jinja2 and Matplotlib are installed."""
    from importlib.util import find_spec

    return all(find_spec(name) is not None for name in ("jinja2", "matplotlib"))


_WIDTHS = {"wide": 110, "narrow": 46}
"""Columns of the tables on a screen and on a phone; they lay themselves out for each."""


def printed(page: Page, body: RenderableType) -> Page:
    """Return a page with tables as a command prints them. Raises ScenarioError without Jinja2."""
    require_report()
    from markupsafe import Markup

    html = {
        place: Markup(as_html("", body, width=width))  # noqa: S704 - Rich escapes
        for place, width in _WIDTHS.items()
    }
    return replace(page, printed=html)


def _rendered(page: Page, template: str) -> str:
    require_report()
    from importlib.metadata import version

    from jinja2 import Environment
    from markupsafe import Markup

    style, script = (Markup(_text(name)) for name in ("page.css", "page.js"))  # noqa: S704 - ours
    form = Environment(autoescape=True, trim_blocks=True).from_string(_text(template))
    return form.render(page=page, style=style, script=script, version=version("mist-sim"))


def _that_fit(texts: Sequence[str], letters: int) -> tuple[list[str], int]:
    """Return the first texts that have so many letters at most, and how many are left."""
    found: list[str] = []
    for text in texts:
        letters -= max(len(text), _LINE)
        if letters < 0:
            break
        found.append(text)
    return found, len(texts) - len(found)


def _more(number: int) -> list[str]:
    return [f"... and {number} more: see the long report"] if number else []


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def how_sure(how: str, summary: Mapping[str, Any]) -> str:
    """Return a sentence on how sure an answer is, with the expected error of its step times.

    how: in words; empty if there is nothing to be sure of. summary: has `expected_errors`.
    """
    bars = [
        f"{metric} {shown} ({like})"
        for metric, shown, like in expected_rows(summary.get("expected_errors", {}))
    ]
    told = f"nine of ten measurements would lie within {'; '.join(bars)}" if bars else ""
    words = "; ".join(filter(None, (how, told)))
    return f"How sure: {words}." if words else ""


def limits_kept(slo: Mapping[str, Mapping[str, Any]], *notes: str) -> Card:
    """Return the tile of the limits that the simulation keeps, and of those that are not sure.

    slo: of a run's summary, one limit at least.
    """
    kept = sum(bool(each["kept"]) for each in slo.values())
    near = sum(each["verdict"] == WITHIN for each in slo.values())
    unsure = [f"by the expected error {near} may turn out otherwise"] if near else []
    note = "; ".join(["in the simulation", *unsure, *notes])
    return Card("limits", f"{kept} of {len(slo)}", "kept", note=note)


def monthly(summary: Mapping[str, Any]) -> Card:
    """Return the tile of dollars a month, of all GPUs if all are rented.

    summary: has `usd_per_hour` and `price_origins`, if they are known.
    """
    if (hourly := summary.get("usd_per_hour")) is None:
        return Card("cost", "-", note="not known: a GPU has no price; give gpu_price")
    origins = "; ".join(summary.get("price_origins", ()))
    note = f"{hourly:.2f} $/h; a GPU {origins}" if origins else f"{hourly:.2f} $/h"
    return Card("cost", f"{HOURS_A_MONTH * hourly:,.0f}", "$ a month", note=note)


def billed(summary: Mapping[str, Any]) -> Card:
    """Return the tile of dollars a month at what a run was billed, else as `monthly`.

    summary: of a run.
    """
    rent, bill = summary.get("usd_per_hour"), billed_per_hour(summary)
    if bill is None or bill == rent:
        return monthly(summary)
    told = f"{bill:.2f} $/h, as billed in this run"
    note = told if rent is None else f"{told}; all GPUs all the time: {rent:.2f} $/h"
    return Card("cost", f"{HOURS_A_MONTH * bill:,.0f}", "$ a month", note=note)


def cheapest_token(dollars: Mapping[str, float]) -> Card:
    """Return the tile of dollars a million output tokens: the lowest of those by name."""
    known = {name: value for name, value in dollars.items() if value == value}
    if not known:
        return Card("cost", "-", note="not known: give cost in the scenario, and every gpu_price")
    best = min(known, key=lambda name: known[name])
    unit = "$ a million output tokens"
    return Card("cost", number(known[best]), unit, note=f"the least, of {best}")


Cases = Mapping[str, Mapping[str, Any]]
"""By name, as `metrics.keeping.judged` has them; empty for one that was not judged."""


def decision(cases: Cases, room: Card) -> tuple[Verdict, Brief] | None:
    """Return the answer and the sheet; None unless two keep or miss limits.

    The answer is the cheapest that keeps its limits, or has fewest GPUs where prices are unknown.
    room: the tile of how much more is served.
    """
    judged = {name: each for name, each in cases.items() if each}
    sizes = ("usd_per_hour", "num_gpus")
    known = [key for key in sizes if all(each.get(key) is not None for each in judged.values())]
    if len(judged) < 2 or not known:
        return None
    order = sorted(judged, key=lambda name: judged[name][known[0]])
    kept = [name for name in order if judged[name]["keeps"]]
    cheapest, dearest = order[0], order[-1]
    answer = kept[0] if kept and len(order) > 2 else cheapest
    of_answer, others = judged[answer], [name for name in order if name != answer]
    doubt, is_kept = _doubt(of_answer), bool(of_answer["keeps"])
    if len(order) == 2:
        question = f"May {cheapest} take the place of {dearest}?"
        if not is_kept:
            word = f"No, {answer} misses its limits."
        elif doubt:
            word = f"Perhaps: {answer} keeps its limits, but that is not sure."
        else:
            word = f"Yes, {answer} may take the place of {dearest}."
    else:
        question = f"Which is the cheapest that keeps its limits: {', '.join(judged)}?"
        best = f"{answer} is the cheapest that keeps its limits."
        word = best if is_kept else "None keeps its limits."
    level = ("unsure" if doubt else "good") if is_kept else "bad"
    missed = [name for name in others if name not in kept]
    told = "; ".join([*_limits(of_answer), *(f"{name} misses its limits" for name in missed)])
    tiles = [_kept(answer, of_answer), _cost(answer, others, judged), room]
    sheet = Brief(question, how_sure(doubt or "sure beyond the expected error", of_answer), tiles)
    return Verdict(level, word, f"{told}."), sheet


def _doubt(case: Mapping[str, Any]) -> str:
    """Return why it is not sure that limits are kept or missed; empty if it is."""
    doubts = {
        "is_sure": "a limit lies within the expected error of the step times, or of other seeds",
        "is_long": "the run is too short to tell whether queues grow",
        "has_error": "the error of the step times is not known",
    }
    found = [text for key, text in doubts.items() if not case[key]]
    return f"unsure, since {' and '.join(found)}" if found else ""


def _limits(case: Mapping[str, Any]) -> list[str]:
    told = []
    if "asked" in case:
        told.append(f"{100 * case['good']:.1f} % of the requests are good, {_asked(case)}")
    for name, each in case["slo"].items():
        latency, percentile = limit_of(name)
        value = "-" if each["value"] is None else in_ms(each["value"])
        told.append(f"{percentile} {limit_title(latency)} {value} of {each['limit']:g} ms")
    return told


def _asked(case: Mapping[str, Any]) -> str:
    return f"{100 * case['asked']:g} % asked"


def _kept(name: str, case: Mapping[str, Any]) -> Card:
    if "asked" in case:
        share = f"{100 * case['good']:.1f} %"
        return Card("limits", share, "good", note=f"requests of {name}; {_asked(case)}")
    kept = sum(bool(each["kept"]) for each in case["slo"].values())
    return Card("limits", f"{kept} of {len(case['slo'])}", "kept", note=f"by {name}")


def _cost(answer: str, others: list[str], cases: Cases) -> Card:
    """Return the tile of dollars a month of the answer, with those of the others."""
    hourly = {name: cases[name].get("usd_per_hour") for name in (answer, *others)}
    month = {name: HOURS_A_MONTH * rate for name, rate in hourly.items() if rate is not None}
    if answer not in month:
        return Card("cost", "-", note="not known: a GPU has no price; give gpu_price")
    beside = [f"{name} {month[name]:,.0f}" for name in others if name in month]
    note = f"of {answer}; {', '.join(beside)}"
    return Card("cost", f"{month[answer]:,.0f}", "$ a month", note=note)
