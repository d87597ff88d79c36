"""Work on texts before and after the model: its times, measured, and the client that does it."""

from __future__ import annotations

import hashlib
import inspect
import platform
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cache
from importlib.resources import files
from math import inf
from typing import Any, Generic, TypeVar

from mist_sim.checks import Positive, check_fields
from mist_sim.clients.registry import CLIENTS
from mist_sim.clients.workers.base import Device, Workers
from mist_sim.clients.workers.processing import worker_traits
from mist_sim.core.request import Stage
from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.hardware.predictors.measured.timing import Timing, timed_call
from mist_sim.hardware.predictors.measured.timing_store import TimingStore
from mist_sim.inputs import object_of, text_of
from mist_sim.stages import Augment, Postprocess, Preprocess
from mist_sim.user_paths import user_path

LONG = 2048
"""Tokens from which on a text is long."""

_KEYS = ("base_s", "token_s", "long_token_s")


@dataclass(frozen=True, slots=True)
class TaskTime:
    """Seconds of a task on one core, linear in the tokens up to and beyond a length.

    base, per_token: for every text and every token. beyond: more for each token behind the first
    `LONG` ones, where a text with all that is made of it leaves a core's caches.
    """

    base: float
    per_token: float
    beyond: float = 0.0

    def seconds(self, num_tokens: int) -> float:
        """Return the time of a text of so many tokens."""
        return self.base + self.per_token * num_tokens + self.beyond * max(0, num_tokens - LONG)


@dataclass(frozen=True, slots=True)
class TextTimes:
    """Times of tasks measured together.

    machine, date: where and when. source: the measured functions, and their programs.
    """

    tasks: Mapping[str, TaskTime]
    machine: str
    date: str
    source: str

    def __call__(self, stage: Stage) -> float:
        """Return the seconds of a stage by its task and tokens. Raises ScenarioError."""
        task = getattr(stage, "task", None)
        time = self.tasks.get(str(task))
        if time is None:
            known = ", ".join(self.tasks)
            hint = did_you_mean(task, self.tasks) if task else "."
            raise ScenarioError(
                f"{stage.kind}: task must be one that was measured, got {brief(task)}{hint} "
                f"Known: {known}"
            )
        return time.seconds(int(getattr(stage, "num_tokens", 0)))


def load_times(path: str | None = None) -> TextTimes:
    """Return the times of a file of `mist calibrate text`; None: those of the package.

    Raises ScenarioError for a file that cannot be read or has another form.
    """
    if path is None:
        return _of_the_package()
    return _parsed(text_of(user_path(path)), path)


@cache
def _of_the_package() -> TextTimes:
    text = files("mist_sim.clients.workers").joinpath("measured_text.json").read_text("utf-8")
    return _parsed(text, "measured_text.json")


def _parsed(text: str, where: str) -> TextTimes:
    data = object_of(text, where)
    tasks = data.get("tasks")
    if not isinstance(tasks, dict) or not tasks:
        raise ScenarioError(f"{where}: must have tasks, as mist calibrate text writes them")
    found = {str(name): _task(where, str(name), value) for name, value in tasks.items()}
    machine, date, source = (str(data.get(key, "")) for key in ("machine", "date", "source"))
    return TextTimes(found, machine, date, source)


def _task(where: str, name: str, value: Any) -> TaskTime:
    numbers: list[float] = []
    for key in _KEYS:
        number = value.get(key) if isinstance(value, dict) else None
        if type(number) not in (int, float) or not 0 <= float(number or 0) < inf:
            raise ScenarioError(
                f"{where}: tasks.{name}.{key} must be finite seconds >= 0, got {brief(number)}"
            )
        numbers.append(float(number or 0))
    return TaskTime(*numbers)


@CLIENTS.register("text")
@dataclass(eq=False)
class TextClient(Workers):
    """Cores that normalise, tokenise, augment, detokenise, validate and enhance texts.

    Each takes one visit, in order of arrival (MIST's scheduler "Sequential"). A stage names its
    `task`; its time is linear in the stage's tokens. The package's times were measured on one core,
    with Python's own functions and a tokenizer of the `tokenizers` package.

    num_workers: cores (>= 1). speed: of a core, as a multiple of the one measured (> 0).
    device: the processor shared with other clients; a visit takes one of its slots.
    path: a file with times of the user's machine, as `mist calibrate text` writes it; None: the
        package's.
    Raises ValueError for values out of range, and ScenarioError for a file that holds no times.
    """

    name: str
    _: KW_ONLY
    num_workers: Positive[int] = 1
    speed: Positive[float] = 1.0
    path: str | None = None
    device: Device | None = None

    def __post_init__(self) -> None:
        kinds = [cls.kind for cls in (Preprocess, Augment, Postprocess)]
        super().__init__(self.name, worker_traits(kinds, fetches=False, device=self.device))
        check_fields(self)
        self._times = load_times(self.path)

    def service_times(self) -> Callable[[Stage], float]:
        """Return the function for a stage's seconds: its drawn time, divided by the CPU's speed."""
        times, speed = self._times, self.speed
        return lambda stage: times(stage) / speed


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
