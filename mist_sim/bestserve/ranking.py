"""Result of the Optimizer: strategies by goodput, and reasons why others were left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from math import isnan, nan
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal

from mist_sim.bestserve.drawn_requests import Requests
from mist_sim.bestserve.strategy import Strategy
from mist_sim.core import result_warnings as kinds
from mist_sim.core.result_warnings import ResultWarning, of_points
from mist_sim.output import write_text
from mist_sim.report.presenters import BESTSERVE
from mist_sim.search.goodput_result import Goodput
from mist_sim.search.verdicts.request_times import Target
from mist_sim.studies.tabled import Tabled, write_csv

Per = Literal["gpu", "usd", "joule"]
"""A goodput a GPU, for a dollar, or for a joule."""

_HOUR = 3600.0


@dataclass(frozen=True)
class Entry:
    """The result of a strategy.

    goodput: in BestServe's simulators. full: in the full simulation, if requested;
    full_failure: why there is none. left_out: why it is impossible, such as a model that does not
        fit.
    too_slow: why it attains no rate at all.
    usd_per_hour: of all its GPUs; NaN if unknown. joules: of a request at the goodput, in a full
        run at that rate; NaN if not requested. known_warnings: of its engines.
    """

    strategy: Strategy
    goodput: Goodput | None = None
    full: Goodput | None = None
    full_failure: str | None = None
    left_out: str | None = None
    too_slow: str | None = None
    usd_per_hour: float = nan
    joules: float = nan
    known_warnings: tuple[ResultWarning, ...] = ()

    @property
    def label(self) -> str:
        """Name, layout, and batches of prompts and answers, such as "2m-tp4 4/16"."""
        strategy = self.strategy
        return f"{strategy.label} {strategy.prefill_batch}/{strategy.decode_batch}"

    @property
    def rate(self) -> float:
        """The goodput, requests per second; 0 if no rate is attained, NaN if unknown."""
        if self.too_slow:
            return 0.0
        if self.goodput is None:
            return nan
        return 0.0 if self.goodput.status == "all missed" else self.goodput.rate

    @property
    def per_gpu(self) -> float:
        """The paper's normalised goodput: requests per second and GPU."""
        return self.per("gpu")

    def per(self, what: Per) -> float:
        """Return the goodput in requests per second and GPU, for a dollar, or for a joule."""
        return self.rate / self.divisor(what) if self.rate else self.rate

    def divisor(self, what: Per) -> float:
        """Return by what a rate is divided: GPUs, dollars a second, or watts at the goodput."""
        if what == "gpu":
            return float(self.strategy.num_gpus)
        return self.usd_per_hour / _HOUR if what == "usd" else self.joules * self.rate

    @property
    def interval(self) -> tuple[float, float]:
        """Interval of the goodput, requests per second."""
        if self.goodput is None:
            return (0.0, 0.0) if self.too_slow else (nan, nan)
        return self.goodput.interval


_CAUTION = (
    "BestServe's models find the goodputs; they take TPOT for shorter than the full simulation "
    "does. At such a rate mist run may show many bad requests: mist goodput finds the rate that is "
    "served, and --check does for the best."
)


def in_order(entries: Iterable[Entry], by: Per) -> tuple[Entry, ...]:
    """Return entries by their goodput per GPU, dollar or joule; of equal ones fewer GPUs first."""

    def place(entry: Entry) -> tuple[bool, float, int]:
        value = entry.per(by)
        return isnan(value), 0.0 if isnan(value) else -value, entry.strategy.num_gpus

    return tuple(sorted(entries, key=place))


@dataclass(frozen=True, repr=False)
class Ranking(Tabled):
    """Strategies by goodput per GPU, dollar or joule, the best first; those left out are last.

    entries: as `in_order` has them. requests: of a run. target: the condition of attainment. seeds:
    of the searches. title: what was simulated, in words. by: what the goodput is divided by.
    """

    presenter = BESTSERVE
    stem = "bestserve"

    entries: tuple[Entry, ...]
    requests: Requests = field(compare=False)
    target: Target
    seeds: tuple[int, ...]
    title: str = ""
    by: Per = "gpu"

    @property
    def mean_output(self) -> float:
        """Tokens of an answer, on average."""
        return float(self.requests.output.mean())

    @property
    def best(self) -> Entry | None:
        """The strategy with the largest goodput per GPU, dollar or joule; None if none has any."""
        first = self.entries[0]
        return first if first.per(self.by) > 0 else None

    def is_close(self, entry: Entry) -> bool:
        """Whether an entry's interval of goodput, divided alike, overlaps the best one's.

        With one seed intervals are the search's own, and do not cover other seeds.
        """
        best = self.best
        if best is None or isnan(entry.rate):
            return False
        high, low = entry.interval[1], best.interval[0]
        return high / entry.divisor(self.by) >= low / best.divisor(self.by)

    @property
    def num_runs(self) -> int:
        """Number of runs in both simulations."""
        both = [found for e in self.entries for found in (e.goodput, e.full) if found]
        return sum(found.num_runs for found in both)

    @property
    def cells(self) -> Iterator[dict[str, Any]]:
        """A row a strategy, the best first; rates in requests per second, tokens per second.

        full_goodput, full_error: where the full simulation was asked: its goodput, and the share by
        which BestServe's is above it.
        """
        return map(self._row, self.entries)

    def _row(self, entry: Entry) -> dict[str, Any]:
        strategy, found = entry.strategy, entry.goodput
        prompt = float(self.requests.prompt.mean())
        full = entry.full.rate if entry.full else nan
        return {
            "strategy": strategy.name,
            "gpu": strategy.gpu or "",
            "tensor_parallel_size": strategy.tensor_parallel_size,
            "pipeline_parallel_size": strategy.pipeline_parallel_size,
            "prefill_batch": strategy.prefill_batch,
            "decode_batch": strategy.decode_batch,
            "num_gpus": strategy.num_gpus,
            "usd_per_hour": entry.usd_per_hour,
            "goodput": entry.rate,
            "low": entry.interval[0],
            "high": entry.interval[1],
            "goodput_per_gpu": entry.per_gpu,
            "goodput_per_usd": entry.per("usd"),
            "goodput_per_joule": entry.per("joule"),
            "output_tokens_per_s": entry.rate * self.mean_output,
            "output_tokens_per_s_per_gpu": entry.per_gpu * self.mean_output,
            "total_tokens_per_s_per_gpu": entry.per_gpu * (prompt + self.mean_output),
            "first_limit": (found.first_limit or "") if found else "",
            "is_close": self.is_close(entry),
            "full_goodput": full,
            "full_error": entry.rate / full - 1 if full else nan,
            "left_out": entry.left_out or "",
            "too_slow": entry.too_slow or "",
        }

    @property
    def warnings(self) -> tuple[ResultWarning, ...]:
        """Warnings of the searches of strategies.

        A strategy that misses at every rate is in the table with a goodput of 0, so its search has
        nothing to add.
        """
        mine: dict[str, list[ResultWarning]] = {}
        for entry in self.entries:
            found = list(entry.goodput.warnings) if entry.goodput is not None else []
            if entry.goodput is not None and entry.goodput.status == "all missed":
                found = [each for each in found if each.kind not in _OF_MISSED]
            if entry.full is not None:
                found += entry.full.warnings
            if entry.full_failure:
                text = f"the full simulation failed: {entry.full_failure}"
                found.append(ResultWarning(kinds.FULL_FAILED, text))
            mine[entry.label] = [*found, *entry.known_warnings]
        return (ResultWarning(kinds.BESTSERVE, _CAUTION), *of_points(mine))

    @property
    def data(self) -> dict[str, Any]:
        """Everything but the warnings as plain data; rates in requests per second."""
        best, target = self.best, self.target
        return {
            "best": self._row(best) | {"strategy_fields": asdict(best.strategy)} if best else None,
            "num_strategies": len(self.entries),
            "num_left_out": sum(entry.left_out is not None for entry in self.entries),
            "num_runs": self.num_runs,
            "num_requests": len(self.requests),
            "mean_prompt_tokens": float(self.requests.prompt.mean()),
            "mean_output_tokens": self.mean_output,
            "seeds": list(self.seeds),
            "by": self.by,
            "slo_ms": {name: limit * 1e3 for name, limit in target.slo.limits.items()},
            "attainment_asked": target.attainment,
            "relaxation": target.relaxation,
            "each_limit_alone": target.each,
            "strategies": self.table.to_dict("records"),
        }

    def __repr__(self) -> str:
        found = f"best {self.best.label}" if self.best else "none attains"
        return f"<Ranking: {len(self.entries)} strategies, {found}>"

    def write_files(self, folder: Path) -> None:
        """Write bestserve.json, bestserve.csv, trials.csv, and the best one's scenario."""
        import pandas as pd

        super().write_files(folder)
        tried = [
            entry.goodput.trials.assign(strategy=entry.label)
            for entry in self.entries
            if entry.goodput is not None
        ]
        if tried:
            write_csv(folder / "trials.csv", pd.concat(tried))
        if (best := self.best) is not None and best.goodput is not None:
            caution = "".join(f"# {line}\n" for line in wrap(_CAUTION, 98))
            write_text(folder / "best.yaml", caution + best.goodput.scenario)


_OF_MISSED = (kinds.ALL_MISSED, kinds.LONE_REQUESTS)
