"""Should I split prompts from answers? Yes or no, by how much, and what would turn it.

And, of every design that loses, why it does: a line each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, isnan
from typing import Any, NamedTuple

import numpy as np

from mist_sim.metrics.keeping import GOOD, LimitOnShare
from mist_sim.metrics.latency import limit_title
from mist_sim.metrics.run_warnings import room_line
from mist_sim.search.binding_result import MOST_TOLD, Binding, name_of
from mist_sim.search.compared_case import Case, Form
from mist_sim.search.ranking import sentence, starred, without_error
from mist_sim.search.slo_plane import SloPlane


class Split(NamedTuple):
    """The answer to the question, and what would turn it.

    answer: "yes", "no" (also where both serve as much, or both keep the limits) or "undecided".
    together, apart: the best design of each form; "" if none keeps the limits. turns: what would
    turn it, a clause each. does_not_turn: what was looked at and would not; "" for nothing.
    """

    answer: str
    sentence: str
    together: str
    apart: str
    turns: tuple[str, ...] = ()
    does_not_turn: str = ""

    @property
    def data(self) -> dict[str, Any]:
        """It as plain data."""
        return self._asdict() | {"turns": list(self.turns)}


def split_of(cases: Sequence[Case], plane: SloPlane | None = None) -> Split | None:
    """Return whether to split; None unless both forms are compared, on equally many GPUs.

    plane: of the same scenarios; it knows under which limits the answer turns.
    """
    sides: list[list[Case]] = [[], []]
    for case in cases:
        if case.summaries and case.form != "between":
            sides[case.form == "apart"].append(case)
    together, apart = sides
    if not (together and apart) or len({case.num_gpus for case in (*together, *apart)}) > 1:
        return None
    if any(case.goodput is not None for case in (*together, *apart)):
        return _by_goodput(together, apart, plane)
    return _by_limits(together, apart)


def best_of_form(cases: Sequence[Case], form: Form) -> Case | None:
    """Return the design of a form that has the largest goodput; None if none is known."""
    known = [
        case
        for case in cases
        if case.form == form and case.goodput is not None and not isnan(case.goodput.rate)
    ]
    return max(known, key=_rate) if known else None


def _rate(case: Case) -> float:
    return case.goodput.rate if case.goodput is not None else 0.0


# --- by goodput -------------------------------------------------------------------------------


def _by_goodput(together: list[Case], apart: list[Case], plane: SloPlane | None) -> Split:
    """Return the answer by who serves more."""
    one, two = best_of_form(together, "together"), best_of_form(apart, "apart")
    of_each = [*([one] if one else together), *([two] if two else apart)]
    every = [case.ranked for case in (*together, *apart)]
    told = sentence([case.ranked for case in of_each], among=every)
    names = one.name if one else "", two.name if two else ""
    if any(case.ranked.is_open or case.ranked.is_undecided for case in of_each):
        return Split("undecided", told, *names)
    if one is None and two is None:
        return Split("undecided", told, *names)
    if one is None or two is None:
        return Split("yes" if one is None else "no", told, *names)
    is_known = not without_error(every)
    stars = starred("goodput", "more", [one.ranked, two.ranked]) if is_known else []
    if len(stars) != 1:
        return Split("no" if stars else "undecided", told, *names)
    wins, loses = (two, one) if stars == [two.name] else (one, two)
    needed, binds = _resource_needed(wins, loses)
    is_enough = needed <= MOST_TOLD
    turns = [f"about {100 * needed:.0f} % more of {binds}"] if binds and is_enough else []
    turns += [*_by_plane(wins, loses, plane), *_by_limit(wins, loses)]
    not_even = f"{100 * MOST_TOLD:.0f} % more of {binds}" if binds and not is_enough else ""
    return Split("yes" if wins is two else "no", told, *names, tuple(turns), not_even)


def _resource_needed(wins: Case, loses: Case) -> tuple[float, str]:
    """Return how much more of its binding resource the loser needs, as a share, and which it is.

    By a line through its goodput and that with a little more; "" if nothing is known to bind it.
    """
    binding: Binding | None = loses.binding
    if binding is None or binding.resource is None:
        return inf, ""
    lead, gain = _rate(wins) / _rate(loses) - 1, binding.more.get(binding.resource, 0.0)
    needed = lead / gain * binding.by if gain > 0 else inf
    return needed, f"what binds {loses.name} ({name_of(binding.resource)})"


def _by_limit(wins: Case, loses: Case) -> Iterator[str]:
    """Yield which limits favour the loser, by those that are missed first."""
    of_loser, of_winner = (
        case.goodput.first_limit if case.goodput is not None else None for case in (loses, wins)
    )
    if of_loser and of_winner and of_loser != of_winner:
        yield (
            f"a looser limit on {limit_title(of_loser)}, which {loses.name} misses first, or a "
            f"tighter one on {limit_title(of_winner)}, which {wins.name} does"
        )


def _by_plane(wins: Case, loses: Case, plane: SloPlane | None) -> Iterator[str]:
    """Yield the limits at which the loser serves as much, read off the runs of the plane."""
    if plane is None or loses.target is None or {wins.name, loses.name} - plane.goodput.keys():
        return
    limits = loses.target.slo.limits
    if not {"ttft", "tpot"} <= limits.keys():
        return
    own = {name: np.array([limits[name]]) for name in ("ttft", "tpot")}
    for metric, values in (("ttft", plane.ttft), ("tpot", plane.tpot)):
        read = plane.with_limits(**{**own, metric: values}).goodput
        more = (read[loses.name].value >= read[wins.name].value).ravel()
        turned = [float(v) for v, is_so in zip(values, more, strict=True) if is_so]
        if turned:
            nearest = min(turned, key=lambda value: abs(value / limits[metric] - 1))
            now = _ms(1e3 * limits[metric])
            yield f"a limit on {limit_title(metric)} of {_ms(1e3 * nearest)} (now {now})"


# --- at one rate ------------------------------------------------------------------------------


def _by_limits(together: list[Case], apart: list[Case]) -> Split | None:
    """Return the answer by who keeps the limits at the rate that was run; None without limits."""
    if any(case.ranked.keeps is None for case in (*together, *apart)):
        return None
    kept = [
        [case for case in side if case.ranked.keeps and not case.ranked.doubts.is_overloaded]
        for side in (together, apart)
    ]
    one, two = (
        max(mine or side, key=lambda case: case.figures[GOOD])
        for mine, side in zip(kept, (together, apart), strict=True)
    )
    names = one.name if kept[0] else "", two.name if kept[1] else ""
    if all(kept):
        told = f"at this rate {_good(one)} keeps the limits, as {_good(two)} does."
        return Split("no", told, *names, tuple(_tighter(kept[0], kept[1], one)))
    if not any(kept):
        told = f"neither keeps the limits at this rate; {_good(one)} and {_good(two)} come nearest."
        return Split("undecided", told, *names)
    wins, loses = (one, two) if kept[0] else (two, one)
    form = "of those apart" if kept[0] else "of those together"
    told = f"{_good(wins)} keeps the limits at this rate; {form} {_good(loses)} comes nearest."
    if any(case.kept is not None and not case.kept.is_sure for case in (wins, loses)):
        told += " That is within the error of the step times."
    turns = tuple(_looser(loses))
    return Split("no" if kept[0] else "yes", told, *names, turns)


def _good(case: Case) -> str:
    good = case.figures[GOOD]  # NaN where no limit is on requests
    return case.name if isnan(good) else f"{case.name} ({100 * good:.1f} % good)"


def _tighter(together: Sequence[Case], apart: Sequence[Case], case: Case) -> Iterator[str]:
    """Yield tighter limits that only designs apart would keep."""
    for limit in _limits(case):
        low, high = (min(_at(each, limit) for each in side) for side in (apart, together))
        if low < high:
            yield (
                f"a limit on {_named(limit)} below {_ms(high)} (now {_ms(1e3 * limit.limit)}), "
                f"which only designs apart keep, down to {_ms(low)}"
            )


def _looser(case: Case) -> Iterator[str]:
    """Yield limits that the loser would keep."""
    missed = [limit for limit in _limits(case) if _at(case, limit) > 1e3 * limit.limit]
    if missed:
        limits = " and ".join(
            f"{_named(limit)} of {_ms(_at(case, limit))} (now {_ms(1e3 * limit.limit)})"
            for limit in missed
        )
        yield f"a limit on {limits}, which {case.name} keeps, too"


def _limits(case: Case) -> Sequence[LimitOnShare]:
    return case.target.limits_on_shares if case.target is not None else ()


def _at(case: Case, limit: LimitOnShare) -> float:
    """Return the percentile beside a limit, milliseconds; NaN if the summaries have it not."""
    values = [float(each.get(limit.figure, float("nan"))) for each in case.summaries]
    return sum(values) / len(values)


def _named(limit: LimitOnShare) -> str:
    return f"p{100 * limit.share:g} {limit_title(limit.metric)}"


def _ms(value: float) -> str:
    """Return milliseconds with three digits, as a number without an exponent."""
    return f"{float(f'{value:.3g}'):,.10g} ms"


def _over(ratio: float) -> str:
    """Return how far a figure is above its limit."""
    return f"{ratio:.2g} times" if ratio >= 2 else f"{100 * (ratio - 1):.0f} % over"


# --- why the others lose ----------------------------------------------------------------------


def losers(cases: Sequence[Case], best: Sequence[str]) -> dict[str, str]:
    """Return why each design that loses does, a line by name.

    best: those that do not. By goodput, where it was searched; else by the limits at the rate that
    was run.
    """
    found = {}
    most = max((_rate(case) for case in cases if not isnan(_rate(case))), default=0.0)
    for case in cases:
        if case.name in best:
            continue
        told = [f"failed: {case.failure}"] if case.failure else [*_loss(case, most)]
        if told:
            found[case.name] = "; ".join(told)
    return found


def _loss(case: Case, most: float) -> Iterator[str]:
    """Yield what keeps a design back. most: the largest goodput, requests per second."""
    goodput = case.goodput
    if goodput is None:
        if case.ranked.keeps is not False and not case.ranked.doubts.is_overloaded:
            return
        if not isnan(good := case.figures[GOOD]):
            yield f"{100 * good:.1f} % good"
        over = {limit: _at(case, limit) / (1e3 * limit.limit) for limit in _limits(case)}
        worst = max(over, key=lambda each: over[each], default=None)
        if worst is not None and over[worst] > 1:
            yield f"{_named(worst)} is {_ms(_at(case, worst))}, {_over(over[worst])} its limit"
    else:
        rate = goodput.rate
        if isnan(rate):
            yield goodput.status if goodput.status == "undecided" else "attains no rate tried"
        elif rate < most:
            yield f"{'at most ' * goodput.is_coarse}{100 * (1 - rate / most):.0f} % less"
        if first := goodput.first_limit:
            yield f"{limit_title(first)} misses first"
        if case.binding is not None and case.binding.resource is not None:
            yield f"{name_of(case.binding.resource)} binds"
    if line := next(filter(None, map(room_line, case.summaries)), ""):
        yield f"{line[0].lower()}{line[1:].rstrip('.')}"
