"""Requests of ServeGen's clients: each with rates by window, a law of gaps, and lengths."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mist_sim.bounds import COUNT, TRACE_TIME
from mist_sim.checks import NotNegative, Positive, Range
from mist_sim.errors import ScenarioError, TraceError, brief, did_you_mean
from mist_sim.inputs import is_there
from mist_sim.rng import Streams
from mist_sim.traces.base import TRACE_READERS, TraceRow
from mist_sim.traces.readers.opening import At, Faults, FileReader, csv_records, open_trace
from mist_sim.units import PerSecond, Seconds

_RATES = ("workload", "client", "window_start_s", "rate_req_s", "arrival_law", "param1")
_WINDOW = 600.0  # s
_PROMPT = ("input_tokens", "text_tokens", "image_tokens", "audio_tokens", "video_tokens")
_OUTPUT = ("output_tokens",)
_LEVELS = (0, 0.01, *(step / 20 for step in range(1, 20)), 0.97, 0.99, 0.995, 0.999, 1)
_COLUMNS = tuple(f"q{level:g}" for level in _LEVELS)
_BESIDE = ("client_lengths.csv", "client_lengths.csv.gz")
_GAMMA, _WEIBULL = "Gamma", "Weibull"
_SHAPES = (1e-9, 1e9)
_MOST = 10**7  # requests of a client in a window, which are drawn at once

Floats = NDArray[np.float64]


class _Window(NamedTuple):
    client: str
    rate: float
    law: str
    shape: float


@TRACE_READERS.register("servegen")
@dataclass(frozen=True, slots=True, kw_only=True)
class ServeGenReader(FileReader):
    """ServeGen's clients, condensed: requests are drawn from the figures of each client.

    A CSV of rates with workload, client, window_start_s (windows of 600 s), rate_req_s, arrival_law
    (Gamma, Weibull, or empty for a silent window) and param1, its shape; and beside it
    client_lengths.csv, or the same name with lengths for rates, a CSV with workload, client, field
    and quantiles q0 to q1 of its tokens. A window of a client has as many requests as its rate says
    (a fraction at random), at gaps of its law that fill the window. Prompt and answer are drawn
    from quantiles each, so that they do not depend on one another beyond the client; of multimodal
    workloads a prompt is text, images, audio and video together. Clients without lengths are left
    out, and counted.

    path: the file of rates.
    service: the `workload` of the rows to take.
    start: seconds of the source's time at which requests begin.
    duration: seconds of requests; None: to the end of the source.
    rate: requests a second of all clients together, on average over the duration; None: theirs.
    seed: of the draws.
    Source: ServeGen (Xiang et al., NSDI 2026), its client data (Apache-2.0), condensed.
    """

    service: str = "language/m-large"
    start: Annotated[Seconds, Range(f"[0, {TRACE_TIME:g}]")] = 0.0
    duration: Positive[Seconds] | None = None
    rate: Positive[PerSecond] | None = None
    seed: NotNegative[int] = 0

    def _read(self, faults: Faults) -> Iterator[TraceRow]:
        windows = self._windows(faults)
        lengths_path = self._beside()
        lengths = _lengths(lengths_path, self.service, faults)
        sending = {window.client: None for each in windows.values() for window in each}
        for client in sending:
            if client not in lengths:
                faults.note(TraceError(lengths_path, 1, f"no lengths of client {brief(client)}"))
        windows = {
            start: [window for window in each if window.client in lengths]
            for start, each in windows.items()
        }
        scale = self._scale(windows)
        rng = Streams(self.seed).generator("servegen")
        first: float | None = None
        for start in sorted(windows):
            drawn = [self._drawn(start, window, lengths, scale, rng) for window in windows[start]]
            if not drawn:
                continue
            times, prompts, outputs = (np.concatenate(part) for part in zip(*drawn, strict=True))
            order = np.argsort(times, kind="stable")
            rows = (times[order].tolist(), prompts[order].tolist(), outputs[order].tolist())
            for time, prompt, output in zip(*rows, strict=True):
                first = time if first is None else first
                yield TraceRow(prompt, output, time - first)

    def _windows(self, faults: Faults) -> dict[float, list[_Window]]:
        """Return the windows of the workload's clients that lie in the span, by their start."""
        found: dict[float, list[_Window]] = {}
        known: dict[str, None] = {}
        end = math.inf if self.duration is None else self.start + self.duration

        def add(values: tuple[str, ...], at: At) -> None:
            workload, client, begins, rate, law, shape = values
            known[workload] = None
            if workload != self.service:
                return
            start = _number(begins, 0, TRACE_TIME, "window_start_s", at)
            per_s = _number(rate, 0, COUNT, "rate_req_s", at)
            if not law or not per_s or not self.start < start + _WINDOW or start >= end:
                return
            if law not in (_GAMMA, _WEIBULL):
                raise at.error(
                    f"arrival_law must be {_GAMMA}, {_WEIBULL} or empty, got {brief(law)}; "
                    "correct the row"
                )
            of_law = _number(shape, *_SHAPES, "param1", at)
            found.setdefault(start, []).append(_Window(client, per_s, law, of_law))

        with open_trace(self.path) as file:
            for _ in faults.parsed(csv_records(file, self.path, _RATES, faults=faults), add):
                pass
        if self.service not in known and known:
            raise ScenarioError(
                f"trace {self.path}: service must be one of {', '.join(map(brief, known))}, got "
                f"{brief(self.service)}{did_you_mean(self.service, known)}"
            )
        return found

    def _beside(self) -> str:
        path = Path(self.path)
        names = (path.name.replace("rates", "lengths"), *_BESIDE)
        for name in names:
            if name != path.name and is_there(path.with_name(name)):
                return str(path.with_name(name))
        raise ScenarioError(
            f"trace {self.path}: needs the lengths of clients beside it, in {_BESIDE[0]} or the "
            "same name with lengths for rates; put that file into its folder"
        )

    def _scale(self, windows: dict[float, list[_Window]]) -> float:
        if self.rate is None:
            return 1.0
        end = math.inf if self.duration is None else self.start + self.duration
        spans = {at: min(at + _WINDOW, end) - max(at, self.start) for at in windows}
        requests = sum(window.rate * spans[at] for at, each in windows.items() for window in each)
        if not requests:
            return 1.0
        last = max(windows) + _WINDOW
        return self.rate * (min(last, end) - self.start) / requests

    def _drawn(
        self,
        at: float,
        window: _Window,
        lengths: dict[str, tuple[list[Floats], list[Floats]]],
        scale: float,
        rng: np.random.Generator,
    ) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
        """Return times, prompts and answers of a client's window, as far as it is in the span."""
        expected = window.rate * scale * _WINDOW
        if expected > _MOST:
            raise ScenarioError(
                f"trace {self.path}: a client must send at most {_MOST} requests in a window, got "
                f"{expected:.3g}; lower rate"
            )
        number = int(expected + rng.random())
        if window.law == _GAMMA:
            gaps = rng.gamma(window.shape, 1.0, number + 1)
        else:
            gaps = rng.weibull(window.shape, number + 1)
        total = gaps.sum()
        shares = np.cumsum(gaps)[:-1] / total if total > 0 else np.linspace(0, 1, number)
        times = at + _WINDOW * shares
        of_prompt, of_output = lengths[window.client]
        prompts, outputs = (_tokens(fields, number, rng) for fields in (of_prompt, of_output))
        end = math.inf if self.duration is None else self.start + self.duration
        inside = (times >= self.start) & (times < end)
        return times[inside], prompts[inside], outputs[inside]


def _lengths(
    path: str, workload: str, faults: Faults
) -> dict[str, tuple[list[Floats], list[Floats]]]:
    """Return quantiles of the parts of prompts and of answers, by client."""
    found: dict[str, tuple[list[Floats], list[Floats]]] = {}

    def add(fields: tuple[str, ...], at: At) -> None:
        named, client, field, *values = fields
        if named != workload or field not in (*_PROMPT, *_OUTPUT):
            return
        quantiles = np.array(
            [
                _number(value, 0, COUNT, column, at)
                for value, column in zip(values, _COLUMNS, strict=True)
            ]
        )
        if (np.diff(quantiles) < 0).any():
            raise at.error("quantiles must not decrease from q0 to q1; correct the row")
        found.setdefault(client, ([], []))[field in _OUTPUT].append(quantiles)

    with open_trace(path) as file:
        columns = ("workload", "client", "field", *_COLUMNS)
        for _ in faults.parsed(csv_records(file, path, columns, faults=faults), add):
            pass
    return {client: parts for client, parts in found.items() if all(parts)}


def _tokens(fields: list[Floats], number: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return drawn tokens, 1 at least: the sum of the parts."""
    parts = [np.interp(rng.random(number), _LEVELS, quantiles) for quantiles in fields]
    tokens: NDArray[np.int64] = np.maximum(np.rint(np.sum(parts, axis=0)), 1).astype(np.int64)
    return tokens


def _number(text: str, low: float, high: float, column: str, at: At) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if low <= value <= high:
        return value
    raise at.error(
        f"{column} must be a number from {low:g} to {high:g}, got {brief(text)}; correct the row"
    )
