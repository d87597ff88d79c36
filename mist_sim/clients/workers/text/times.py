"""Measured times of tasks on texts: linear in tokens, with the machine and the day."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import inf
from typing import Any

from mist_sim.core.request import Stage
from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.inputs.files import text_of
from mist_sim.inputs.json_files import object_of
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
    text = files("mist_sim.clients.workers.text").joinpath("measured.json").read_text("utf-8")
    return _parsed(text, "measured.json")


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
