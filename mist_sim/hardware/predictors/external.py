"""Step times from other tools."""

from __future__ import annotations

import json
import math
import os
import queue
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from time import monotonic
from typing import IO, Any, ClassVar, NoReturn, Self, cast

from mist_sim.checks import Positive, check_fields
from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError, brief
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.predictors.base import PREDICTORS
from mist_sim.hardware.predictors.measured.sampled import (
    SampledSteps,
    SamplePoints,
    check_whole_model,
)
from mist_sim.hardware.predictors.measured.timing_store import TimingStore
from mist_sim.models.spec import ModelSpec
from mist_sim.units import Seconds


def installed_version(package: str, extra: str, install: str = "") -> str:
    """Return the version of an installed package, without importing it.

    Raises ScenarioError that names the extra that installs the package, or another way to install
    it.
    """
    try:
        return version(package)
    except PackageNotFoundError:
        remedy = install or f"pip install 'mist-sim[{extra}]'"
        raise ScenarioError(
            f"{extra} needs the package {package}, which is not installed; {remedy}"
        ) from None


PROTOCOL = 1
_LONGEST_LINE = 2**22  # characters
_SHOWN = 300  # characters of an answer in a message
_SHOWN_ERRORS = 2_000
_PATIENCE = 1.0  # seconds for a program to end by itself


@PREDICTORS.register("program")
@dataclass
class ProgramPredictor(SampledSteps):
    """A program of your own that times steps; it reads and writes lines of JSON.

    It is started when the predictor is made, asked for some 250 steps that are not known yet, and
    ended. See docs/background/calibration.md for the protocol.

    model, cluster: told to the program.
    command: the program and its arguments, as in a shell; no shell runs it.
    timeout: seconds that it may take for one line, which asks for up to 64 steps (> 0).

    Raises ScenarioError, with what the program wrote to its standard error, if it cannot be
    started, ends, takes too long or answers with something other than times.
    """

    programs: ClassVar[tuple[str, ...]] = ("command",)

    model: ModelSpec
    cluster: Cluster
    command: str
    timeout: Positive[Seconds] = 60.0

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.command.strip():
            raise ValueError("command must not be empty")
        check_whole_model(self.cluster, "program")
        longest = self.model.max_position_embeddings
        points = SamplePoints.up_to(longest, 4, prompt_context=512, decode_context=512)
        with _Program(self.command, self.timeout, _setting(self.model, self.cluster)) as program:
            super().__init__(program, points, TimingStore.default())


def _setting(model: ModelSpec, cluster: Cluster) -> dict[str, Any]:
    """Return the first line for a program, without fields that mean nothing to it."""
    setting = {"model": asdict(model), "cluster": asdict(cluster)}
    for part in (setting["model"], setting["cluster"]["gpu"]):
        part.pop("source", None)
        part.pop("sources", None)
    plain: dict[str, Any] = json.loads(json.dumps(setting, default=sorted))  # sets as lists
    return plain


class _Program:
    """A running program as a source; ends it when left."""

    def __init__(self, command: str, timeout: float, setting: Mapping[str, Any]) -> None:
        self._command = command
        self._timeout = timeout
        self._setting = setting
        self._answers: queue.Queue[str] = queue.Queue(1)  # a program may write without end

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            self._errors = opened.enter_context(tempfile.TemporaryFile())
            opened.callback(self._end, self._start())
            version = self._greet()
            self._opened = opened.pop_all()
        what = {"source": "program", "command": self._command, "version": version}
        self.identity = {**what, **self._setting}
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def seconds(self, batches: Sequence[StepBatch]) -> list[float]:
        """Ask the program for the seconds of each step.

        Raises ScenarioError for an answer that is not a finite time > 0 for every one.
        """
        asked = [
            {"chunks": b.chunks, "num_decodes": b.num_decodes, "context_sum": b.context_sum}
            for b in batches
        ]
        answer = self._ask({"batches": asked})
        seconds = answer.get("seconds")
        if not isinstance(seconds, list) or len(seconds) != len(batches):
            wanted = f'{{"seconds": [...]}} with {len(batches)} numbers'
            self._fail(f"must answer {wanted}, got {_short(answer)}")
        for batch, value in zip(asked, seconds, strict=True):
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 < value < math.inf:
                self._fail(f"must give finite times > 0 s, got {_short(value)} for {_short(batch)}")
        return [float(value) for value in seconds]

    def _start(self) -> subprocess.Popen[str]:
        try:
            process = subprocess.Popen(  # noqa: S603 (what the user asked to run)
                shlex.split(self._command, posix=os.name == "posix"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                encoding="utf-8",
                errors="replace",
                process_group=0 if os.name == "posix" else None,
            )
        except (OSError, ValueError) as error:
            raise ScenarioError(
                f"program {brief(self._command, _SHOWN)} cannot be started: {error}"
            ) from None
        self._process = process
        self._questions = cast("IO[str]", process.stdin)
        self._reader = threading.Thread(target=self._read, args=(process.stdout,), daemon=True)
        self._reader.start()
        return process

    def _greet(self) -> str:
        hello = self._ask({"protocol": PROTOCOL, **self._setting})
        version = hello.get("version")
        if hello.get("protocol") != PROTOCOL or not isinstance(version, str):
            wanted = f'{{"protocol": {PROTOCOL}, "version": "..."}}'
            self._fail(f"must answer {wanted} first, got {_short(hello)}")
        return str(version)

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        late = threading.Timer(self._timeout, _kill, [self._process])  # one that does not read
        late.start()
        with suppress(OSError):  # it has ended, which the missing answer will tell
            self._questions.write(json.dumps(question) + "\n")
            self._questions.flush()
        if not late.is_alive():
            self._fail(f"did not read its question within {self._timeout:g} s")
        late.cancel()
        try:
            line = self._answers.get(timeout=self._timeout)
        except queue.Empty:
            self._fail(f"gave no answer within {self._timeout:g} s")
        if not line:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(self._timeout)
            self._fail(f"ended with exit code {self._process.returncode} instead of an answer")
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            self._fail(f"must answer with a line of one JSON object, got {_short(line.strip())}")
        return answer

    def _read(self, lines: IO[str]) -> None:
        """Pass on answers, and an empty one at the end; runs in its own thread."""
        with suppress(ValueError):  # closed meanwhile
            while line := lines.readline(_LONGEST_LINE):
                self._answers.put(line)
        self._answers.put("")

    def _fail(self, problem: str) -> NoReturn:
        self._errors.seek(max(self._errors.seek(0, os.SEEK_END) - _SHOWN_ERRORS, 0))
        wrote = self._errors.read().decode("utf-8", "replace").strip()
        said = f"; on its standard error: {wrote}" if wrote else ""
        raise ScenarioError(f"program {brief(self._command, _SHOWN)} {problem}{said}")

    def _end(self, process: subprocess.Popen[str]) -> None:
        with suppress(OSError):
            self._questions.close()  # a program that reads to the end ends now
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE)
        _kill(process)
        process.wait()
        ends = monotonic() + _PATIENCE
        while self._reader.is_alive() and monotonic() < ends:
            with suppress(queue.Empty):  # it may hold an answer to no request
                self._answers.get(timeout=0.05)
        if not self._reader.is_alive():  # closing a pipe that a thread reads would wait for a line
            cast("IO[str]", process.stdout).close()


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a program, and those that it has started, which may hold its output open."""
    if os.name != "posix":
        process.kill()
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _short(value: object) -> str:
    return json.dumps(value)[:_SHOWN]
