"""The result of a search for goodput: the rate, its interval, and every run behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf, isnan, log1p, nan
from statistics import fmean
from typing import TYPE_CHECKING, Any

from mist_sim.core import result_warnings as kinds
from mist_sim.core.result_warnings import ResultWarning, over_runs
from mist_sim.errors import listed
from mist_sim.metrics.expected_errors import Range, expected_ranges
from mist_sim.metrics.latency import limit_title
from mist_sim.metrics.replications import estimate
from mist_sim.metrics.run_warnings import rounded_up
from mist_sim.metrics.stability import AT_END
from mist_sim.report.presenters import GOODPUT
from mist_sim.search.binding_result import Binding, LoneRequests
from mist_sim.search.bracketing import SeedGoodput, last_kept, near_limit
from mist_sim.studies.built import RATE, load_in_words, unit_of
from mist_sim.studies.tabled import Tabled
from mist_sim.studies.verdicts.request_times import Target
from mist_sim.studies.verdicts.trials import Trial

if TYPE_CHECKING:
    import pandas as pd

_MOST_RATES = 8  # that a warning lists
_MOST_USEFUL = 1_000_000  # requests of a run that is worth its minutes


@dataclass(frozen=True, repr=False)
class Goodput(Tabled):
    """The largest arrival rate at which a scenario attains its SLO; of a closed loop, users.

    searches: one per seed. target: the condition of attainment. tolerance: of the search.
    num_requests: in each run. num_gpus: of the scenario; None if unknown, 0 for none.
    scenario: resolved, as YAML text. title: description of what was simulated. settings: scenario
        settings for the rate found; empty with several seeds, or if none was found.
    expected_errors: expected errors of TTFT and TPOT against a real engine, as in a run's summary.
    assumed_host: effect of an assumed host of its GPUs, by client, as in a run's summary.
    rent: dollars an hour of its GPUs, as there.
    known_warnings: warnings known before its runs.
    binding: what binds at that rate; None: not requested, or no goodput. is_coarse: the search
        ended before it was within the tolerance, since another design surely serves more.
    is_stopped: the search was stopped; what is known are its `bounds`. out_of_time: what is left
        open since its time was up; "" for nothing.
    lone_requests: latencies of requests that run alone, if no rate is attained; else None.
    longer: what a longer workload takes, of one that is judged as it stands.
    step_ends: the goodputs with all step times as long, and as short, as nine in ten measured TPOTs
        leave them (`with_step_ends`); None: not run, or not known.
    spending: of a run at that rate (`at_goodput.spending_at`); empty without goodput, or if the
        scenario says nothing of power and cost.
    """

    presenter = GOODPUT
    stem, sheet = "goodput", "trials"

    searches: tuple[SeedGoodput, ...]
    target: Target
    tolerance: float
    num_requests: int
    num_gpus: int | None
    scenario: str
    title: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    expected_errors: Mapping[str, Any] = field(default_factory=dict)
    assumed_host: Mapping[str, Any] = field(default_factory=dict)
    rent: Mapping[str, Any] = field(default_factory=dict)
    known_warnings: tuple[ResultWarning, ...] = ()
    binding: Binding | None = None
    is_coarse: bool = False
    is_stopped: bool = False
    out_of_time: str = ""
    lone_requests: LoneRequests | None = None
    longer: str = ""
    step_ends: tuple[float, float] | None = None
    spending: Mapping[str, float] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """Return "found" if every seed's search found it, else the status of one that did not.

        "stopped" if the search was stopped.
        """
        if self.is_stopped:
            return "stopped"
        return next((s.status for s in self.searches if s.status != "found"), "found")

    @property
    def rate(self) -> float:
        """Requests per second: the largest rate that was attained up to it, a mean over seeds.

        NaN unless every search found the rate at which attainment ends.
        """
        if self.status != "found":
            return nan
        return estimate([search.bracket.low or nan for search in self.searches]).mean

    @property
    def unit(self) -> str:
        """The unit of its rates: "/s", or "users" of a closed loop."""
        return unit_of(next((t.rate for each in self.searches for t in each.trials), 0.0))

    @property
    def what(self) -> str:
        """What was searched for, in words."""
        return "rate" if self.unit == RATE else "number of users"

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of the rate, requests per second.

        With one seed, that of its search; with more in steady state, the means of the ends. For a
        workload as it stands, the union of the 95 % confidence intervals over seeds of the attained
        and of the missed rate.
        """
        if len(self.searches) == 1:
            return self.searches[0].interval
        if self.is_steady:
            ends = [search.interval for search in self.searches]
            lows = [low for low, _ in ends]
            return fmean(lows) if all(lows) else 0.0, fmean(high for _, high in ends)
        lows = [search.bracket.low or 0.0 for search in self.searches]
        highs = [search.bracket.high or inf for search in self.searches]
        low, high = estimate(lows).low, inf if inf in highs else estimate(highs).high
        return max(low, 0.0), high

    @property
    def is_open(self) -> bool:
        """Whether all rates tried are attained with a seed, so that the goodput is higher."""
        return any(search.status == "all attained" for search in self.searches)

    @property
    def blindness(self) -> str:
        """Why limits are kept at every rate tried, even in overload; "" if that is not so.

        A stream of tokens is as even for those that wait long before it begins.
        """
        if not self.is_open or self.target.sees_queues:
            return ""
        if not any(trial.keeps_in_overload for each in self.searches for trial in each.trials):
            return ""
        limits = [*dict.fromkeys(map(limit_title, self.target.slo.named_limits))]
        verb = "does" if len(limits) == 1 else "do"
        return f"{listed(limits)} alone {verb} not see queues; add a limit on TTFT"

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval; without a rate, the highest surely attained and the lowest missed.

        Requests per second, the lowest of the seeds and the highest; 0 and infinity where no rate
        is. If all rates tried are attained with a seed, the highest of these, and infinity.
        """
        if self.status == "found":
            return self.interval
        lows = [search.bracket.low or 0.0 for search in self.searches]
        if self.is_open:
            return max(lows), inf
        missed = max(search.surely_missed for search in self.searches)
        return min(search.sure for search in self.searches), missed

    @property
    def error_interval(self) -> tuple[float, float] | None:
        """The goodput if latencies are off as far as nine in ten measured ones; None: not known.

        Requests per second; 0 and infinite: no rate tried is as low, or as high; 0, too, where no
        rate tried is known to be attained. That of the same runs with other latencies, and with
        `step_ends` that of slower and faster steps as well, which also fill queues and seats.
        """
        ends, steps = self._latency_interval, self.step_ends
        if ends and steps:
            low, high = ends
            ends = min(low or steps[0], steps[0]), max(high if high < inf else 0.0, steps[1])
        ends = ends or steps
        return ends if ends is None or self.interval[0] else (0.0, ends[1])

    @property
    def _latency_interval(self) -> tuple[float, float] | None:
        """The goodput if latencies of the same runs are off; None: not known.

        A mean over seeds, interpolated between the rates tried; infinite beyond the highest of
        them. At each rate the error counts of the limit that is worst there (`expected_ranges`; E2E
        has those of both its parts). Longer times serve no more than the rate found, and shorter
        ones no less, wherever beyond it the times leave their limit.
        """
        ranges = expected_ranges({"expected_errors": self.expected_errors})
        ttft, tpot = ranges["ttft"], ranges["tpot"]
        if ttft and tpot:
            ranges["e2el"] = Range(min(ttft.low, tpot.low), max(ttft.high, tpot.high))
        ends = []
        for search in self.searches:
            off = []
            for trial in search.trials:
                if (margin := trial.margin) is None:
                    continue
                metric = (trial.worst_limit or "").split(".")[-1].split("_")[-1]
                if (error := ranges.get(metric)) is None:
                    return None
                off.append((trial.rate, near_limit(margin), error))
            if self.status != "found" or not off:
                return None
            low = last_kept([(rate, margin + log1p(error.high)) for rate, margin, error in off])
            most = [(rate, margin + log1p(error.low)) for rate, margin, error in off]
            high = inf if max(m for _, m in most) < 0 else last_kept(most)
            rate = search.bracket.low or 0.0
            ends.append(
                (
                    min(low, rate) if any(error.high > 0 for *_, error in off) else low,
                    max(high, rate) if any(error.low < 0 for *_, error in off) else high,
                )
            )
        low, high = fmean(low for low, _ in ends), fmean(high for _, high in ends)
        return None if low == 0 and high == inf else (low, high)

    @property
    def per_gpu(self) -> float:
        """Requests per second and GPU; NaN without known GPUs."""
        return self.rate / self.num_gpus if self.num_gpus else nan

    @property
    def is_steady(self) -> bool:
        """Whether rates were judged in steady state, and not by the workload as a whole."""
        return any(trial.is_steady for search in self.searches for trial in search.trials)

    @property
    def first_limit(self) -> str | None:
        """The limit that most requests miss just above the goodput, if what binds is known.

        Otherwise the one furthest missed at the lowest missed rate; None if no rate was missed.
        """
        if self.binding is not None:
            return self.binding.limit
        missed = [t for s in self.searches for t in s.trials if t.tells and not t.seems_attained]
        return min(missed, key=lambda trial: trial.rate).worst_limit if missed else None

    @property
    def num_runs(self) -> int:
        """Number of runs, including those ended early."""
        return sum(len(search.trials) for search in self.searches)

    @property
    def is_monotone(self) -> bool:
        """Whether no rate tried was attained above a missed one."""
        return not any(search.bracket.attained_above for search in self.searches)

    @property
    def warnings(self) -> tuple[ResultWarning, ...]:
        """Warnings of the searches, of the runs that decide, and those known before the runs."""
        searches = () if self.is_stopped else self.searches
        found = [each for search in searches for each in _warnings(search, self)]
        if self.out_of_time:
            found.append(ResultWarning(kinds.OUT_OF_TIME, self.out_of_time))
        if self.lone_requests:
            found.append(ResultWarning(kinds.LONE_REQUESTS, self.lone_requests.sentence))
        of_runs = over_runs([_of_deciding_runs(search) for search in self.searches])
        return (*found, *of_runs, *self.known_warnings)

    @property
    def cells(self) -> Iterator[dict[str, Any]]:
        """A row a run, by seed and rate.

        attainment: the share of good requests; if `is_whole` is false, the run was ended once it
        could no longer attain, and the share is an upper bound.
        """
        return (trial.figures for search in self.searches for trial in search.trials)

    @property
    def trials(self) -> pd.DataFrame:
        """The table of its runs, as `cells` has them."""
        return self.table

    @property
    def data(self) -> dict[str, Any]:
        """Everything but the warnings as plain data; rates in `unit`."""
        classes = self.target.slo.classes.items()
        shares = {name: of.attainment for name, of in classes if of.attainment is not None}
        return {
            "goodput": self.rate,
            "goodput_per_gpu": self.per_gpu,
            "unit": self.unit,
            "status": self.status,
            "interval": list(self.interval),
            **({} if self.status == "found" else {"bounds": list(self.bounds)}),
            **({"error_interval": list(off)} if (off := self.error_interval) else {}),
            **({"step_ends": list(self.step_ends)} if self.step_ends else {}),
            "is_monotone": self.is_monotone,
            "is_steady": self.is_steady,
            "first_limit": self.first_limit,
            "num_runs": self.num_runs,
            "num_requests": self.num_requests,
            "num_gpus": self.num_gpus,
            **self.rent,
            "attainment_asked": self.target.attainment,
            "relaxation": self.target.relaxation,
            "each_limit_alone": self.target.each,
            "slo_ms": {name: limit * 1e3 for name, limit in self.target.slo.named_limits.items()},
            **({"attainment_asked_of": shares} if shares else {}),
            "percentiles_ms": {
                each.name: each.limit * 1e3
                for each in self.target.percentiles
                if each.name not in self.target.slo.figures
            },
            "tolerance": self.tolerance,
            **({"is_coarse": True} if self.is_coarse else {}),
            **({"lone_requests": asdict(self.lone_requests)} if self.lone_requests else {}),
            "settings": dict(self.settings),
            "expected_errors": dict(self.expected_errors),
            **({"assumed_host": dict(self.assumed_host)} if self.assumed_host else {}),
            **({"binding": self.binding.summary} if self.binding else {}),
            **({"at_goodput": dict(self.spending)} if self.spending else {}),
            "seeds": [_seed_data(search) for search in self.searches],
        }

    def __repr__(self) -> str:
        found = self.status if isnan(self.rate) else f"{self.rate:g} {self.unit}"
        return f"<Goodput: {found}, {self.num_runs} runs>"

    @property
    def files(self) -> dict[str, str]:
        """The scenario."""
        return {"scenario.resolved.yaml": self.scenario}


def _seed_data(search: SeedGoodput) -> Mapping[str, Any]:
    bracket = search.bracket
    low, high = search.at(bracket.low), search.at(bracket.high)
    return {
        "seed": search.seed,
        "status": search.status,
        "attained_rate": bracket.low,
        "attainment": low.attainment if low else None,
        "stability": low.stability if low else None,
        "missed_rate": bracket.high,
        "missed_attainment": high.attainment if high else None,
        "missed_is_upper_bound": not high.is_whole if high else None,
        "attained_above": list(bracket.attained_above),
        "trials": [trial.figures for trial in search.trials],
    }


_LONE = 1e-3  # requests a second


def _how_bad(trial: Trial, target: Target) -> str:
    """Return how many requests are good, or finish where none has a limit; and what misses most."""
    judges = target.slo.judges_requests
    if not judges and trial.attainment >= target.attainment:
        return f"{limit_title(trial.worst_limit)} misses most"
    share = f"{'' if trial.is_whole else 'at most '}{100 * trial.attainment:.1f} %"
    worst = f", and {limit_title(trial.worst_limit)} misses most" if trial.worst_limit else ""
    return f"{share} of the requests {'are good' if judges else 'finish'}{worst}"


def _undecided(search: SeedGoodput, trials: Sequence[Trial]) -> str:
    """Return the undecided rates, with the reasons and the remedy."""
    reasons: dict[str, list[Trial]] = {}
    for trial in trials:
        reasons.setdefault(trial.reason, []).append(trial)
    most = max(trial.num_requests for trial in trials)
    why = "; ".join(f"at {_rates(each)} {reason}" for reason, each in reasons.items())
    told = [f"undecided after {most:,} requests: {why}."]
    within = [trial for trial in trials if 0 < (trial.needs or 0) <= _MOST_USEFUL]
    beyond = [trial for trial in trials if (trial.needs or 0) > _MOST_USEFUL]
    low, high = search.bracket.low or 0.0, search.bracket.high or inf
    near = [trial for trial in beyond if low <= trial.rate <= high]
    if within:
        where = f" at {_rates(within)}" if len(within) < len(trials) else ""
        told.append(f"--most-requests {_most(within)} may tell{where}.")
    if near:
        told.append(
            f"At {_rates(near)} not even {_MOST_USEFUL:,} would: that is too near to the "
            "goodput. Go by its interval, or take a wider --tolerance."
        )
    known = (*within, *near)
    if far := [each for each in trials if each not in known and (each.needs or each.tells)]:
        told.append(
            f"At {_rates(far)} runs are too short to say how many requests would tell: raise "
            "--most-requests, or go by the other rates."
        )
    if search.status == "found" and not search.interval[0]:
        told.append(
            "No rate tried is known to be attained, so that the goodput may be lower than all of "
            "them."
        )
    return " ".join(told)


def _most(trials: Sequence[Trial]) -> str:
    """Return the requests that would tell of all runs, with one digit."""
    needs = float(f"{max(trial.needs or 0 for trial in trials):.1g}")
    return f"{needs:.0f}"


def _rates(trials: Sequence[Trial]) -> str:
    """Return rates with their unit; of many, the first, and up to where the others go."""
    rates = [f"{trial.rate:g}" for trial in trials]
    unit = unit_of(trials[0].rate)
    if len(rates) <= _MOST_RATES:
        return f"{', '.join(rates)} {unit}"
    first = rates[: _MOST_RATES // 2]
    return f"{', '.join(first)} and {len(rates) - len(first)} more up to {rates[-1]} {unit}"


def _of_deciding_runs(search: SeedGoodput) -> tuple[ResultWarning, ...]:
    """Return the warnings of the run at the goodput; without one, of the run at the lowest rate.

    The answer rests on that run. Others only narrow its interval: above the goodput they show
    overload and requests that time out, which no user of the answer will see. A full front end
    above the goodput is what limits it, so the lowest missed rate tells of that.
    """
    trial = search.at(search.bracket.low) or next(iter(search.trials), None)
    shown = [(trial, each) for each in trial.warnings] if trial is not None else []
    missed = search.at(search.bracket.high)
    if missed is not None and all(each.kind is not kinds.FRONT_END_FULL for _, each in shown):
        full = [each for each in missed.warnings if each.kind is kinds.FRONT_END_FULL]
        shown += [(missed, each) for each in full]
    return tuple(
        replace(each, text=f"in the run at {load_in_words(run.rate)}: {each.text}")
        for run, each in shown
    )


def _beyond(search: SeedGoodput, found: Goodput) -> str:
    """Return why all rates tried are attained, and what would tell where that ends."""
    full = [trial.rate for trial in search.trials if trial.keeps_in_overload]
    if found.blindness and full:
        return (
            f"From {full[0]:g} {found.unit} on more may arrive than is served: {found.blindness}."
        )
    if found.unit != RATE:
        return "Try more users, with --rates."
    return (
        "Try higher rates, or send more requests: so few may be served in time however close "
        "together they come."
    )


def _warnings(search: SeedGoodput, found: Goodput) -> Iterator[ResultWarning]:
    where = f"Seed {search.seed}: " if len(found.searches) > 1 else ""
    bracket, trials = search.bracket, search.trials
    if search.status == "all attained":
        yield ResultWarning(
            kinds.ALL_ATTAINED,
            f"{where}attained at every {found.what} tried, the highest {trials[-1].rate:g} "
            f"{found.unit}: the goodput is not known. {_beyond(search, found)}",
        )
    nothing_kept = search.status != "undecided" and bracket.low is None
    end = bracket.high or inf  # runs beyond it that say nothing do not matter
    undecided = [t for t in trials if t.attained is None and (t.tells or t.rate <= end)]
    if found.blindness:
        undecided = [trial for trial in undecided if not trial.keeps_in_overload]
    if undecided and not (nothing_kept and trials[0].attained is None):
        yield ResultWarning(kinds.UNDECIDED, where + _undecided(search, undecided))
    if search.status == "undecided":
        rates = _rates(search.untold)
        yield ResultWarning(
            kinds.UNDECIDED,
            f"{where}the goodput is not known, since runs at {rates} tell nothing.",
        )
    elif nothing_kept:
        first = trials[0]
        rate = f"{first.rate:g} {found.unit}"
        if first.rate < _LONE:  # a request is long over before the next
            rate = f"less than {_LONE:g} /s, of lone requests"
        told = ""
        if first.attained is None:
            told = f" A longer run may tell otherwise: {first.reason}"
            told += f"; --most-requests {_most([first])} may tell." if first.needs else "."
        yield ResultWarning(
            kinds.ALL_MISSED,
            f"{where}missed at the lowest {found.what} tried, {rate}, where "
            f"{_how_bad(first, found.target)}: there is no goodput from there on.{told}",
        )
    if bracket.attained_above:
        rates = ", ".join(f"{rate:g}" for rate in bracket.attained_above)
        yield ResultWarning(
            kinds.NOT_MONOTONE,
            f"{where}not monotone: missed at {bracket.high:g} {found.unit}, but attained at "
            f"{rates} {found.unit}. The goodput is the {found.what} up to which "
            "all tried are attained.",
        )
    low = search.at(bracket.low)
    if low and bracket.high and low.stability in ("unstable", AT_END):
        yield ResultWarning(
            kinds.UNSTABLE_THERE,
            f"{where}{load_in_words(low.rate)} is no {found.what} that lasts: queues grow until "
            f"the run ends, so that with more requests the goodput is lower.{found.longer}",
        )
    elif low and bracket.high and low.stability not in ("stable", None):
        needs = f" {rounded_up(low.needs):,} requests would tell, about." if low.needs else ""
        yield ResultWarning(
            kinds.TOO_SHORT_THERE,
            f"{where}{low.num_requests:,} requests are too few for a steady answer: whether the "
            f"clients keep up at {load_in_words(low.rate)} is not known, and if not, the "
            f"goodput is lower.{needs}{found.longer}",
        )
