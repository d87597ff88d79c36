"""The winner of a comparison: the stars, and the sentence below the table.

A star marks designs that keep their limits, and a certain difference. If intervals of goodput
overlap by more than `NEAR`, the question stays open; so it does if step times of one are known to
be off in one direction, and by more than its lead. Where the error of one's step times is not
known, no goodput has a star, and none is called sure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, isclose, isnan, nan
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from mist_sim.errors import listed
from mist_sim.metrics.expected_errors import Range
from mist_sim.metrics.keeping import NO_RATE, Doubts, Kept
from mist_sim.metrics.keeping import sentence as sentence_of_kept
from mist_sim.metrics.latency import limit_title
from mist_sim.metrics.replications import estimate
from mist_sim.report.elements import number

if TYPE_CHECKING:
    from mist_sim.search.goodput_result import Goodput

Better = Literal["more", "less"]

NEAR = 0.03
"""By this share another may be better than one with a star, as far as its interval tells."""

BIASED = "their step times are off by more than that, to one side"
"""Why designs stay undecided that longer runs cannot tell apart."""

_ALIKE = 0.0005  # share by which times may differ that are called the same
_MORE = "--most-requests or --replications may tell"
_AS_IT_STANDS = "for the workload as it stands; short ones flatter"
_GOODPUTS = ("goodput", "goodput_per_gpu")
_WHO, _RATES = "--goodput tells who serves most.", "--goodput finds the rates that they serve."


class Beside(NamedTuple):
    """The outcome of runs beside the best design, with the same requests (`side_by_side`).

    best: its name. tolerance: a share of a goodput. not_more, not_less: whether this design surely
    serves at most so much more than the best, or less.
    """

    best: str
    tolerance: float
    not_more: bool
    not_less: bool

    @property
    def is_equal(self) -> bool:
        """Whether it serves as much, within the tolerance."""
        return self.not_more and self.not_less


class Ranked(NamedTuple):
    """A scenario of a comparison, with the data for ranking.

    figures: by name; NaN if unknown. interval: of its goodput, requests per second; None if not
        searched. Without a goodput: `Goodput.bounds`. is_steady: whether that is of steady
        state; else of the workload as it stands: the attained and the missed rate.
    kept: whether enough requests keep the limits at the rate that was run; None where there are no
    limits. first_limit: the one missed first above the goodput, or where no rate is attained.
    doubts: about the run; an overloaded case has no star.
    by_seed: the figures of each seed's run at the scenario's own rate, in the same order in all
    cases. is_coarse: as in `Goodput`. beside: None: it was not run beside the best one.
    is_undecided: whether its goodput is not known, since runs that matter tell nothing.
    error_interval: as `Goodput` has it. has_step_ends: whether it has run with other step times.
    has_cap: whether a power cap is assumed, under which no joules were measured. has_rate: whether
    its requests are sent at a rate, which may change. window: the time of its tokens a second: the
    whole run, its steady part, or one in which requests come at a rate ("sent").
    biases: ranges of measured / simulated - 1 on one side of 0, as `biases_of` has them.
    throughput_error: that of the throughput, nine times in ten; None: not known.
    """

    name: str
    figures: Mapping[str, float] = MappingProxyType({"goodput": nan})
    interval: tuple[float, float] | None = None
    kept: Kept | None = None
    first_limit: str | None = None
    is_steady: bool = True
    doubts: Doubts = Doubts()
    by_seed: Sequence[Mapping[str, float]] = ()
    is_coarse: bool = False
    beside: Beside | None = None
    is_undecided: bool = False
    biases: Mapping[str, Range] = MappingProxyType({})
    error_interval: tuple[float, float] | None = None
    has_step_ends: bool = False
    has_cap: bool = False
    has_rate: bool = True
    window: Literal["whole", "steady", "sent"] = "whole"
    throughput_error: Range | None = None

    def by_rate(self, found: Goodput | None) -> Self:
        """Return it with a goodput, and what the search for it tells; None: not searched."""
        if found is None:
            return self
        return self._replace(
            figures={**self.figures, "goodput": found.rate},
            interval=found.bounds,
            first_limit=limit_title(found.first_limit) if found.first_limit else None,
            is_steady=found.is_steady,
            is_coarse=found.is_coarse,
            is_undecided=found.status == "undecided",
        )

    @property
    def keeps(self) -> bool | None:
        """Whether it keeps its limits; None where there are none."""
        return None if self.kept is None else self.kept.keeps

    @property
    def is_fit(self) -> bool:
        """Whether its figures at the rate that was run are worth a star."""
        return self.keeps is not False and not self.doubts.is_overloaded

    @property
    def is_open(self) -> bool:
        """Whether it attains all rates tried, so that its goodput has no known upper end."""
        low, high = self.interval or (0.0, 0.0)
        is_unbounded = low > 0 and high == inf and not self.is_undecided
        return is_unbounded and isnan(self.figures["goodput"])


def starred(figure: str, better: Better, cases: Sequence[Ranked]) -> list[str]:
    """Return the names of those with the best value of a figure; empty if not certain."""
    if figure in _GOODPUTS:
        best = _most(figure, cases)
        if best is None or rivals(best, figure, cases) or without_error(cases):
            return []
        return [best.name, *(case.name for case in _equals(best, figure, cases))]
    windows = {case.window for case in cases if not isnan(case.figures.get(figure, nan))}
    if figure.startswith("steady_") and (len(windows) > 1 or "sent" in windows):
        return []  # all that keep up serve what is sent: they differ by when each is measured
    at_goodput = "_at_goodput" in figure
    fit = [case for case in cases if at_goodput or case.is_fit]
    values = {case.name: case.figures[figure] for case in fit if not isnan(case.figures[figure])}
    known = {case.figures[figure] for case in cases if not isnan(case.figures[figure])}
    if not values or len(known) < 2:
        return []
    best_value = max(values.values()) if better == "more" else min(values.values())
    leaders = [case for case in fit if case.figures[figure] == best_value]
    if "energy" in figure and any(case.has_cap for case in leaders):
        return []
    others = [case for case in fit if case.name in values and case not in leaders]
    sure = all(
        _is_surely_better(leaders[0], other, figure, better)
        and _leads_beyond_bias(leaders[0], other, figure, better)
        for other in others
    )
    return [case.name for case in leaders] if sure else []


def _is_surely_better(best: Ranked, other: Ranked, figure: str, better: Better) -> bool:
    """Tell whether the best is better than another one beyond the noise that is known.

    Of a run at the goodput: as its interval says, since dollars and joules a token fall as the rate
    grows. Else by the differences of runs with the same seed, where there are several.
    """
    if "_at_goodput" in figure:
        return _at(best, figure, 0) <= _at(other, figure, 1) * (1 + NEAR)
    pairs = zip(best.by_seed, other.by_seed, strict=False)
    gain = estimate([one[figure] - two[figure] for one, two in pairs])
    if isnan(gain.half_width):  # one seed: the figures of that run
        return True
    return gain.low > 0 if better == "more" else gain.high < 0


def _leads_beyond_bias(best: Ranked, other: Ranked, figure: str, better: Better) -> bool:
    """Tell whether the best stays ahead with the known biases of both."""
    one, two, lead = best.figures[figure], other.figures[figure], _lead_needed(best, other, figure)
    return one >= two * lead if better == "more" else one * lead <= two


def _lead_needed(best: Ranked, other: Ranked, figure: str) -> float:
    """Return the factor by which the best has to lead, since step times have known biases.

    Equal ones cancel. A latency has its own bias; other figures may have any.
    """
    own = [name for name in ("ttft", "tpot", "e2el") if f"_{name}_" in figure]
    needed = 1.0
    for name in own or {*best.biases, *other.biases}:
        mine, theirs = best.biases.get(name), other.biases.get(name)
        if mine != theirs:
            longer = 1 + mine.high if mine else 1.0
            needed = max(needed, longer / (1 + theirs.low if theirs else 1.0))
    return needed


def _at(case: Ranked, figure: str, end: int) -> float:
    """Return a figure at an end of the interval of the goodput, to which it is inverse."""
    value = case.figures[figure]
    if case.interval is None:
        return value
    rate = case.interval[end]
    return value * case.figures["goodput"] / rate if rate else inf


def _errors(best: Ranked, second: Ranked, unknown: Sequence[str]) -> str:
    """Return whether the best stays ahead for the expected errors of the step times.

    unknown: names of all compared whose error is not known.
    """
    if unknown:
        return f"not sure, since the error of the step times of {listed(unknown)} is not known"
    ends = best.error_interval, second.error_interval
    if ends[0] is None or ends[1] is None:
        return "errors of the step times, which may differ between GPUs and models, are not in them"
    told = ", ".join(
        f"{case.name} {low:.4g} to {high:.4g} /s"
        for case, (low, high) in zip((best, second), filter(None, ends), strict=True)
    )
    if ends[0][0] >= ends[1][1]:
        if best.has_step_ends and second.has_step_ends:
            return f"sure, even with the expected errors of the step times ({told})"
        return (
            f"their expected errors at the same load are less ({told}); slower steps that fill "
            "queues are not in them"
        )
    return (
        f"not sure if the step times of the two are off differently, since the lead is within "
        f"their expected errors ({told})"
    )


def rivals(best: Ranked, figure: str, cases: Sequence[Ranked]) -> list[Ranked]:
    """Return those that may be better than the best by more than `NEAR`, or equal to it."""
    least = lowest(best, figure)
    return [
        case
        for case in cases
        if case is not best
        and case.interval is not None
        and (
            _highest(case, best, figure) > least * (1 + NEAR)
            or case.figures[figure] == best.figures[figure]
        )
        and not ((beside := _beside(case, best, figure)) and beside.not_more)
    ]


def _highest(case: Ranked, best: Ranked, figure: str) -> float:
    """Return the upper end of a goodput beside that of the best, whose step times may be off."""
    return _scaled(case, figure)[1] * _lead_needed(best, case, figure)


def _equals(best: Ranked, figure: str, cases: Sequence[Ranked]) -> list[Ranked]:
    """Return the designs that surely serve as much as the best one, within the tolerance."""
    return [case for case in cases if (b := _beside(case, best, figure)) and b.is_equal]


def _beside(case: Ranked, best: Ranked, figure: str) -> Beside | None:
    """Return how runs with the best design's requests ended, if that holds for a figure; else None.

    It holds for a goodput over something, such as GPUs, if both have as much of that.
    """
    if case.beside is None or case.beside.best != best.name or case.biases != best.biases:
        return None
    return case.beside if isclose(_factor(case, figure), _factor(best, figure)) else None


def lowest(case: Ranked, figure: str) -> float:
    """Return the lower end of the interval of a goodput, or of one over something known."""
    return _scaled(case, figure)[0]


def sentence(
    cases: Sequence[Ranked], *, is_stopped: bool = False, among: Sequence[Ranked] = ()
) -> str:
    """Return the winner, with margin and certainty, or why there is none.

    Without limits, of requests that come at no rate: who finishes first; else it is empty.

    is_stopped: the comparison was stopped; goodputs are only bounded. among: all compared, if that
    is more: nothing is sure where the error of one of them is not known.
    """
    searched = [case for case in cases if case.interval is not None]
    judged = searched or [case for case in cases if case.keeps is not None]
    if is_stopped and searched:
        return f"Stopped before the goodputs were known: {', '.join(map(_with_interval, judged))}."
    if not judged:
        return _of_finish([case for case in cases if not isnan(case.figures.get("duration", nan))])
    told = (
        _of_goodput(judged, without_error(among or judged))
        if searched
        else _of_kept(judged, is_stopped=is_stopped)
    )
    failed = [case.name for case in cases if case not in judged]
    return f"{told} Not judged: {listed(failed)}." if failed else told


def _of_finish(cases: Sequence[Ranked]) -> str:
    """Return who finishes the same requests first, by how much, and how sure that is.

    Empty for fewer than two, where requests come at a rate, and where some failed.
    """
    if len(cases) < 2 or any(case.has_rate or case.figures["failed"] for case in cases):
        return ""
    first, second, *others = sorted(cases, key=lambda case: case.figures["duration"])
    mine, next_one = (case.figures["duration"] for case in (first, second))
    if isclose(mine, next_one, rel_tol=_ALIKE):
        return f"{first.name} and {second.name} finish at the same time, after {number(mine)} s."
    ratio = next_one / mine
    longer = f"{100 * (ratio - 1):.1f} % longer" if ratio < 2 else f"{ratio:.1f} times as long"
    more = " The others take longer still." if others else ""
    return (
        f"{first.name} finishes first, after {number(mine)} s; {second.name} takes {longer} "
        f"({number(next_one)} s), {_finish_errors(first, second)}.{more}"
    )


def _finish_errors(first: Ranked, second: Ranked) -> str:
    """Return whether the first of two stays first with other seeds, and by its step times."""
    if not _is_surely_better(first, second, "duration", "less"):
        return "not more than runs with other seeds differ"
    ends = []
    for case in (first, second):
        if (error := case.throughput_error) is None:
            return "how far off their step times are is not known of both"
        seconds = case.figures["duration"]
        ends.append((seconds / (1 + error.high), seconds / (1 + error.low)))
    told = ", ".join(
        f"{case.name} {number(low)} to {number(high)} s"
        for case, (low, high) in zip((first, second), ends, strict=True)
    )
    if ends[0][1] < ends[1][0]:
        return f"more than the expected errors of the step times ({told})"
    return (
        f"within the expected errors of the step times ({told}), so not sure if those of the two "
        "are off differently"
    )


def _of_kept(cases: Sequence[Ranked], *, is_stopped: bool) -> str:
    kept = [case.kept for case in cases if case.kept is not None]
    otherwise = _WHO if any(case.lasts for case in kept) else _RATES
    if not any(case.has_rate for case in cases):
        otherwise = NO_RATE
    otherwise = "" if is_stopped else otherwise
    return sentence_of_kept(kept, where=" at this rate", otherwise=otherwise)


def _of_goodput(cases: Sequence[Ranked], unknown: Sequence[str]) -> str:
    best = _most("goodput", cases)
    if any(case.is_open for case in cases):
        return _of_open([case for case in cases if case.is_open], best)
    undecided = [case for case in cases if case.is_undecided]
    if best is None and undecided:
        told = ", ".join(map(_with_interval, undecided))
        may = _MORE if undecided[0].is_steady else _AS_IT_STANDS
        return f"Undecided: {told}; {may}."
    if best is None:
        limits = {case.first_limit for case in cases if case.first_limit}
        which = f"; {' and '.join(sorted(limits))} misses first" if limits else ""
        return f"No rate is attained{which}."
    if near := rivals(best, "goodput", cases):
        other = max(near, key=lambda case: _highest(case, best, "goodput"))
        num_more = len(near) - 1
        more = f" and {num_more} other{'s' if num_more > 1 else ''}" if num_more else ""
        may = _MORE if best.is_steady else _AS_IT_STANDS
        may = BIASED if _lead_needed(best, other, "goodput") > 1 else may
        return f"Undecided between {_with_interval(best)} and {_with_interval(other)}{more}; {may}."
    others = [case for case in cases if case is not best and not isnan(case.figures["goodput"])]
    why = f"; {best.first_limit} is the first to miss beyond" if best.first_limit else ""
    if not others and undecided:
        told = ", ".join(map(_with_interval, undecided))
        return f"{_with_interval(best)} serves more than {told}{why}."
    if not others:
        return f"{best.name} alone attains a rate: {best.figures['goodput']:.4g} /s{why}."
    if equals := _equals(best, "goodput", cases):
        others = [case for case in others if case not in equals]
        if not others:
            told = f"{_serves_most(best, equals)}; {_errors(best, equals[0], unknown)}"
            return f"{told}{why}."
    return f"{_of_next(best, equals, others, unknown)}{why}."


def _of_open(cases: Sequence[Ranked], best: Ranked | None) -> str:
    """Return the designs that attain all rates tried. best: of those whose goodput is known."""
    verb = "attains" if len(cases) == 1 else "attain"
    most = max(case.interval[0] for case in cases if case.interval)
    told = f"{listed(case.name for case in cases)} {verb} all rates tried, up to {most:.4g} /s"
    if best is not None:
        told += f"; of the others {_with_interval(best)} serves most"
    more = "" if cases[0].is_steady else ", or a workload of more requests,"
    return f"Undecided: {told}. A higher end of --rates{more} may tell."


def _of_next(
    best: Ranked, equals: Sequence[Ranked], others: Sequence[Ranked], unknown: Sequence[str]
) -> str:
    """Return by how much the best one serves more than the next of others, and how sure that is.

    equals: those that serve as much as the best.
    """
    second = max(others, key=lambda case: (case.figures["goodput"], *(case.interval or ())[::-1]))
    rate, most = second.figures["goodput"], _serves_most(best, equals)
    num_tied = sum(case.figures["goodput"] == rate for case in others) - 1
    percent = f"{100 * (best.figures['goodput'] / rate - 1):.0f} %"
    gain = f"up to {percent}" if second.is_coarse else percent
    than = f"{'; that is' if equals else ','} {gain} more than {'the next, ' * bool(equals)}"
    tied = f" and {num_tied} other{'s' * (num_tied > 1)} with as much" * (num_tied > 0)
    if not best.is_steady:
        than = than if equals else f": {than[2:]}"
        return f"{most}{than}{second.name}{tied}, {_AS_IT_STANDS}"
    named = _with_interval(second)
    if (beside := _beside(second, best, "goodput")) and beside.not_more:
        within = f"{100 * beside.tolerance:g} %"
        most = (
            f"{most}; of the others" if equals else f"{most} to within the --tolerance of {within}:"
        )
        return (
            f"{most} {named} serves at most {within} more (95 %), by runs of the same requests; "
            f"{_errors(best, second, unknown)}"
        )
    return (
        f"{most}{than}{named}{tied}: {_by_intervals(best, second)}; "
        f"{_errors(best, second, unknown)}"
    )


def _serves_most(best: Ranked, equals: Sequence[Ranked]) -> str:
    """Return which design serves most, and which serve as much."""
    most = f"{_with_interval(best)} serves most"
    if not best.is_steady:
        most = f"{best.name} serves most, {best.figures['goodput']:.4g} /s"
    if not equals:
        return most
    tolerance = 100 * equals[0].beside.tolerance if equals[0].beside else 0.0  # of the search
    names = " and ".join(case.name for case in equals)
    return (
        f"{most}, and {names} as much, within the --tolerance of {tolerance:g} % (95 %), by runs "
        "of the same requests"
    )


def _by_intervals(best: Ranked, second: Ranked) -> str:
    """Return how far the intervals of two designs are from telling them apart."""
    low, high = (best.interval or (0.0, 0.0))[0], (second.interval or (0.0, 0.0))[1]
    if f"{low:.4g}" == f"{high:.4g}":
        return f"these 95 % intervals of the runs only touch, at {low:.4g} /s"
    if low > high:
        return "these 95 % intervals of the runs do not overlap"
    return (
        f"even at the ends of these 95 % intervals of the runs the second serves at most "
        f"{100 * NEAR:.0f} % more than the first"
    )


def without_error(cases: Iterable[Ranked]) -> list[str]:
    """Return the names of those with a limit for which the error of the step times is not known."""
    return [case.name for case in cases if not case.doubts.has_error]


def _with_interval(case: Ranked) -> str:
    low, high = case.interval or (0.0, 0.0)
    if isnan(case.figures["goodput"]):
        most = f"less than {high:.4g} /s" if high < inf else ""
        least = f"{low:.4g} /s or more" if low else ""
        return f"{case.name} ({', '.join(filter(None, (least, most))) or 'not known'})"
    return f"{case.name} ({case.figures['goodput']:.4g} /s, {low:.4g} to {high:.4g})"


def _most(figure: str, cases: Sequence[Ranked]) -> Ranked | None:
    known = [case for case in cases if not isnan(case.figures[figure])]
    return max(known, key=lambda case: case.figures[figure]) if known else None


def _scaled(case: Ranked, figure: str) -> tuple[float, float]:
    """Return the interval of a goodput, or of one over something known, such as GPUs."""
    low, high = case.interval or (0.0, 0.0)
    factor = _factor(case, figure)
    return low * factor, high * factor


def _factor(case: Ranked, figure: str) -> float:
    """Return a goodput over something, such as GPUs, divided by the goodput; NaN if unknown."""
    if figure == "goodput":
        return 1.0
    rate = case.figures["goodput"]
    if isnan(rate):
        return 1 / (case.figures.get("num_gpus") or nan)
    return case.figures[figure] / rate if rate else 0.0
