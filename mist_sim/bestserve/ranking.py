"""Result of the Optimizer: strategies by goodput per GPU, and reasons why others were left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from mist_sim.bestserve.requests import Requests
from mist_sim.bestserve.strategy import Strategy
from mist_sim.metrics.tables.findings import Findings
from mist_sim.output.texts import json_text, write_text
from mist_sim.report.presenters import BESTSERVE
from mist_sim.search.goodput_result import Goodput
from mist_sim.search.verdicts.request_times import Target

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Entry:
    """The result of a strategy.

    goodput: in BestServe's simulators. full: in the full simulation, if requested;
    full_failure: why there is none. left_out: why it is impossible, such as a model that does not
        fit.
    too_slow: why it attains no rate at all.
    """

    strategy: Strategy
    goodput: Goodput | None = None
    full: Goodput | None = None
    full_failure: str | None = None
    left_out: str | None = None
    too_slow: str | None = None

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
        return self.rate / self.strategy.num_gpus

    @property
    def interval(self) -> tuple[float, float]:
        """Interval of the goodput, requests per second."""
        if self.goodput is None:
            return (0.0, 0.0) if self.too_slow else (nan, nan)
        return self.goodput.interval


@dataclass(frozen=True, repr=False)
class Ranking(Findings):
    """Strategies by goodput per GPU, the best first; those that were left out are last.

    target: the condition of attainment. num_requests: per run. mean_prompt, mean_output,
    longest_prompt: tokens. seeds: of the searches. title: what was simulated, in words.
    """

    presenter = BESTSERVE

    entries: tuple[Entry, ...]
    target: Target
    num_requests: int
    mean_prompt: float
    mean_output: float
    longest_prompt: int
    seeds: tuple[int, ...]
    title: str = ""

    @classmethod
    def of(
        cls,
        entries: Sequence[Entry],
        requests: Requests,
        target: Target,
        title: str,
        seeds: Sequence[int],
    ) -> Self:
        """Return a ranking of entries in any order; of equal ones, the fewer GPUs come first."""

        def place(entry: Entry) -> tuple[bool, float, int]:
            is_unknown = isnan(entry.per_gpu)
            return is_unknown, 0.0 if is_unknown else -entry.per_gpu, entry.strategy.num_gpus

        return cls(
            tuple(sorted(entries, key=place)),
            target,
            len(requests),
            float(requests.prompt.mean()),
            float(requests.output.mean()),
            int(requests.prompt.max()),
            tuple(seeds),
            title,
        )

    def with_entries(self, entries: Sequence[Entry]) -> Self:
        """Return it with other entries in the same order."""
        return replace(self, entries=tuple(entries))

    @property
    def best(self) -> Entry | None:
        """The strategy with the largest goodput per GPU; None if none attains any rate."""
        first = self.entries[0]
        return first if first.rate > 0 else None

    def is_close(self, entry: Entry) -> bool:
        """Whether an entry's interval of goodput per GPU overlaps the best one's.

        With one seed intervals are the search's own, and do not cover other seeds.
        """
        best = self.best
        if best is None or isnan(entry.rate):
            return False
        high, low = entry.interval[1], best.interval[0]
        return high / entry.strategy.num_gpus >= low / best.strategy.num_gpus

    @property
    def num_runs(self) -> int:
        """Number of runs in both simulations."""
        both = [found for e in self.entries for found in (e.goodput, e.full) if found]
        return sum(found.num_runs for found in both)

    @property
    def table(self) -> pd.DataFrame:
        """A row a strategy, the best first; rates in requests per second, tokens per second.

        full_goodput, full_error: where the full simulation was asked: its goodput, and the share by
        which BestServe's is above it.
        """
        import pandas as pd

        return pd.DataFrame([self._row(entry) for entry in self.entries])

    def _row(self, entry: Entry) -> dict[str, Any]:
        strategy, found = entry.strategy, entry.goodput
        full = entry.full.rate if entry.full else nan
        return {
            "strategy": strategy.name,
            "tensor_parallel_size": strategy.tensor_parallel_size,
            "pipeline_parallel_size": strategy.pipeline_parallel_size,
            "prefill_batch": strategy.prefill_batch,
            "decode_batch": strategy.decode_batch,
            "num_gpus": strategy.num_gpus,
            "goodput": entry.rate,
            "low": entry.interval[0],
            "high": entry.interval[1],
            "goodput_per_gpu": entry.per_gpu,
            "output_tokens_per_s": entry.rate * self.mean_output,
            "output_tokens_per_s_per_gpu": entry.per_gpu * self.mean_output,
            "total_tokens_per_s_per_gpu": entry.per_gpu * (self.mean_prompt + self.mean_output),
            "first_limit": (found.first_limit or "") if found else "",
            "is_close": self.is_close(entry),
            "full_goodput": full,
            "full_error": entry.rate / full - 1 if full else nan,
            "left_out": entry.left_out or "",
            "too_slow": entry.too_slow or "",
        }

    @property
    def warnings(self) -> list[str]:
        """Warnings for the reader of the ranking."""
        found = [
            f"{entry.label}: {text}"
            for entry in self.entries
            if entry.goodput is not None and entry.goodput.status != "all missed"
            for text in entry.goodput.warnings
        ]
        found += [
            f"{e.label}: the full simulation failed: {e.full_failure}"
            for e in self.entries
            if e.full_failure
        ]
        return found

    @property
    def summary(self) -> dict[str, Any]:
        """Everything as plain data; rates in requests per second."""
        best, target = self.best, self.target
        return {
            "best": self._row(best) | {"strategy_fields": asdict(best.strategy)} if best else None,
            "num_strategies": len(self.entries),
            "num_left_out": sum(entry.left_out is not None for entry in self.entries),
            "num_runs": self.num_runs,
            "num_requests": self.num_requests,
            "mean_prompt_tokens": self.mean_prompt,
            "mean_output_tokens": self.mean_output,
            "seeds": list(self.seeds),
            "slo_ms": {name: limit * 1e3 for name, limit in target.slo.limits.items()},
            "attainment_asked": target.attainment,
            "relaxation": target.relaxation,
            "each_limit_alone": target.each,
            "strategies": self.table.to_dict("records"),
            "warnings": self.warnings,
        }

    def __repr__(self) -> str:
        found = f"best {self.best.label}" if self.best else "none attains"
        return f"<Ranking: {len(self.entries)} strategies, {found}>"

    def write_files(self, folder: Path) -> None:
        """Write bestserve.json, bestserve.csv, trials.csv, and the best one's scenario."""
        import pandas as pd

        write_text(folder / "bestserve.json", json_text(self.summary))
        write_text(folder / "bestserve.csv", _csv(self.table))
        tried = [
            entry.goodput.trials.assign(strategy=entry.label)
            for entry in self.entries
            if entry.goodput is not None
        ]
        if tried:
            write_text(folder / "trials.csv", _csv(pd.concat(tried)))
        if (best := self.best) is not None and best.goodput is not None:
            write_text(folder / "best.yaml", best.goodput.scenario)


def _csv(frame: pd.DataFrame) -> str:
    return frame.to_csv(index=False, lineterminator="\n")
