"""The result of one strategy, and what its goodput is divided by."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import Literal

from mist_sim.bestserve.strategy import Strategy
from mist_sim.core.result_warnings import ResultWarning
from mist_sim.search.goodput_result import Goodput

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
