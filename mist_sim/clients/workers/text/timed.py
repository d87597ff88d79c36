"""A user's own function as a service time: run for real, and remembered."""

from __future__ import annotations

import hashlib
import inspect
import platform
from collections.abc import Callable
from typing import Generic, TypeVar

from mist_sim.core.request import Stage
from mist_sim.hardware.predictors.measured.timing import Timing, timed_call
from mist_sim.hardware.predictors.measured.timing_store import TimingStore

Input = TypeVar("Input")


class TimedFunction(Generic[Input]):
    """Seconds that a function takes on this machine, as a `SequentialClient`'s service_time.

    The function is timed on inputs of 0, 1, 2, 4, ... tokens, each when a stage first needs it; in
    between, the time is linear. Times are kept in the store of timings (see `MIST_SIM_CACHE`), so
    that they are measured only once, and runs repeat.

    function: the function to time. make: returns an input of so many tokens.
    timing: how often it is run; None: twice to warm up, and five times.
    store: where timings are kept; None: the user's own store.
    """

    def __init__(
        self,
        function: Callable[[Input], object],
        make: Callable[[int], Input],
        *,
        timing: Timing | None = None,
        store: TimingStore | None = None,
    ) -> None:
        self._function, self._make = function, make
        self._timing, self._store = timing or Timing(), store or TimingStore.default()
        self._source = {
            "function": f"{getattr(function, '__module__', '')}.{_name_of(function)}",
            "code": _hash_of(function) + _hash_of(make),
            "machine": f"{platform.node()} {platform.machine()} {platform.processor()}".strip(),
            "python": platform.python_version(),
        }
        self._seconds: dict[int, float] = {}

    def __call__(self, stage: Stage) -> float:
        """Return the seconds of a stage by its `num_tokens`; 0 for one without."""
        num_tokens = int(getattr(stage, "num_tokens", 0))
        if num_tokens < 2:
            return self._timed(num_tokens)
        low = 1 << (num_tokens.bit_length() - 1)
        if num_tokens == low:
            return self._timed(low)
        share = (num_tokens - low) / low
        return (1 - share) * self._timed(low) + share * self._timed(2 * low)

    def _timed(self, num_tokens: int) -> float:
        seconds = self._seconds.get(num_tokens)
        if seconds is None:
            text, function = self._make(num_tokens), self._function
            call = lambda: function(text)  # noqa: E731
            name = f"{num_tokens} tokens"
            seconds = timed_call(self._store, self._source, name, call, self._timing)
            self._seconds[num_tokens] = seconds
        return seconds


def _name_of(function: Callable[..., object]) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _hash_of(function: Callable[..., object]) -> str:
    """Return a hash of a function's code; its name if the code is not available."""
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        text = _name_of(function)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
