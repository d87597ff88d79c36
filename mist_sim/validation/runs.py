"""Measured runs of real engines beside simulated ones, with the difference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.result_warnings import ResultWarning
from mist_sim.errors import ScenarioError, brief, require_known
from mist_sim.inputs import check_ordinary, check_plain, is_there, object_in, read_csv
from mist_sim.metrics import Result
from mist_sim.metrics.latency import SHORT_NAMES
from mist_sim.metrics.other_names import as_ours
from mist_sim.scenario import Scenario, simulate
from mist_sim.scenario.format import yaml_text
from mist_sim.scenario.format.paths import Origin
from mist_sim.scenario.presets import preset_names

if TYPE_CHECKING:
    import pandas as pd


LEVEL = 0.05
"""Of the test: the chance to call latencies equivalent that differ by the margin."""
_BATCHES = 20  # requests near one another share queues, so that means of batches are tested
_FEWEST = 2 * _BATCHES


@dataclass(frozen=True)
class Agreement:
    """How latencies agree.

    distance: Kolmogorov and Smirnov's, the largest difference of the two distribution functions.
    ratio: the typical one of simulated to measured, their geometric mean.
    is_equivalent: whether that ratio is inside the margin by two one-sided t-tests at the 5 %
    level (TOST; Schuirmann 1987); None for fewer than 40 requests. p_value: of the tests, the
    larger one.
    """

    distance: float
    ratio: float
    is_equivalent: bool | None
    p_value: float


def agreement(measured: Array, simulated: Array, margin: float) -> Agreement:
    """Return how latencies of the same requests agree.

    margin: share by which the ratio may differ (> 0). The logarithms of the ratios are tested,
    as means of 20 batches of requests in their order.
    """
    from scipy.stats import ks_2samp, ttest_1samp

    distance = float(ks_2samp(measured, simulated).statistic)
    logs = np.log(simulated / measured)
    ratio = float(np.exp(logs.mean()))
    if len(measured) < _FEWEST:
        return Agreement(distance, ratio, None, float("nan"))
    means = np.array([batch.mean() for batch in np.array_split(logs, _BATCHES)])
    low, high = np.log1p(-margin), np.log1p(margin)
    if np.ptp(means) == 0:  # no spread to test against
        inside = bool(low < means[0] < high)
        return Agreement(distance, ratio, inside, 0.0 if inside else 1.0)
    p_value = max(
        float(ttest_1samp(means, low, alternative="greater").pvalue),
        float(ttest_1samp(means, high, alternative="less").pvalue),
    )
    return Agreement(distance, ratio, p_value < LEVEL, p_value)


Array = NDArray[np.float64]


def intakes(scenario: Scenario, result: Result, arrivals: pd.Series[float]) -> Array:
    """Return when the engine took in each request: at once if it was idle.

    Otherwise as its step ended; with replicas in lockstep, as the step of all ended. Requests
    without a token count from their arrival.
    arrivals: seconds by request id, which rises.
    Raises ScenarioError for pipelines, in which several steps are under way at once.
    """
    engines = {
        name: engine
        for client in scenario.clients
        if (engine := client.engine)
        for name in client.names
    }
    if any(engine.pipeline_parallel_size > 1 for engine in engines.values()):
        raise ScenarioError("starts_at: intake needs engines with pipeline_parallel_size 1")
    tracks = _first_tracks(result, arrivals.index.to_numpy())
    found = np.array(arrivals, dtype=np.float64)
    names = result.steps.groupby("track")["client"].first()
    for track in np.unique(tracks[tracks >= 0]):
        client = names[track]
        members = [track]
        if engines[client].lockstep:
            members = names.index[names == client].tolist()
        mine = tracks == track
        found[mine] = _next_boundary(result, members, found[mine])
    return found


def as_of_engines(requests: pd.DataFrame, result: Result) -> pd.DataFrame:
    """Return requests with the engines' own times, without the front end.

    requests: of the result, by id. `queued_at` is when a request reached its first client, or
        arrived, if it reached none.
    """
    import pandas as pd

    visits = pd.DataFrame(dict(result.recorder.visits.columns())).groupby("request_id")
    came, first, over = visits["queued_at"], visits["first_token_at"], visits["finished_at"]
    found = pd.DataFrame({"queued_at": came.min(), "first_token_at": first.min()})
    found = found.assign(finished_at=over.max()).reindex(requests.index)
    found["queued_at"] = found["queued_at"].fillna(requests["arrival_time"])
    return requests.drop(columns=["first_token_at", "finished_at"]).join(found)


def _first_tracks(result: Result, request_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the track of the engine that gave each request its first token; -1 for none."""
    tokens = result.recorder.tokens.columns()
    ids, first = np.unique(tokens["request_id"], return_index=True)
    tracks = np.full(len(request_ids), -1)
    has_token = np.isin(request_ids, ids)
    tracks[has_token] = tokens["track"][first[np.searchsorted(ids, request_ids[has_token])]]
    return tracks


def _next_boundary(result: Result, tracks: list[int], times: Array) -> Array:
    """Return the end of the step under way at each time, or the time itself if there is none."""
    steps = result.steps[result.steps["track"].isin(tracks)].sort_values("start")
    ends = np.unique(np.concatenate([result.recorder.step_ends[track][:] for track in tracks]))
    place = np.minimum(ends.searchsorted(times), len(ends) - 1)
    starts, run_ends = steps["start"].to_numpy(), steps["end"].to_numpy()
    run = np.maximum(starts.searchsorted(times, "right") - 1, 0)
    is_busy = (starts[run] < times) & (times < run_ends[run])
    return np.asarray(np.where(is_busy, ends[place], times))


_STATISTICS: Mapping[str, Callable[[NDArray[np.float64]], float]] = {
    "mean": lambda values: float(values.mean()),
    "p50": lambda values: float(np.percentile(values, 50)),
    "p99": lambda values: float(np.percentile(values, 99)),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of a run beside its simulation.

    measured, simulated: in `unit`; None where the row sums up many points.
    error: simulated / measured - 1; of many points the median.
    spread, middle: mean and median of the absolute errors of single requests or points; None
        where there is one.
    samples: of single requests, measured and simulated in `unit`, in the order of their ids; None
        for other rows. warnings: of the simulated run.
    """

    metric: str
    unit: str
    measured: float | None
    simulated: float | None
    error: float
    spread: float | None = None
    middle: float | None = None
    samples: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
    warnings: tuple[ResultWarning, ...] = ()


def request_rows(
    scenario: Scenario,
    measured: pd.DataFrame,
    *,
    from_intake: bool = False,
    scored: slice | None = None,
) -> Iterator[Row]:
    """Yield statistics of latencies, with the mean error of single requests, and the throughput.

    Requests that do not finish in the simulation count in no latency, and a row gives their number;
    if none finishes ScenarioError is raised.

    from_intake: measured times begin when the engine took in the request, between two steps.
    scored: ids of the requests that count; None: all.
    """
    result = simulate(scenario)
    requests = result.requests.set_index("request_id")
    if missing := set(measured.index) - set(requests.index):
        raise ScenarioError(f"request_id {min(missing)} was measured and is not in the workload")
    simulated = requests
    if from_intake:
        simulated = as_of_engines(requests, result)
        start = intakes(scenario, result, simulated["queued_at"])
        ttft, e2el = simulated["first_token_at"] - start, simulated["finished_at"] - start
        simulated = simulated.assign(ttft=ttft, e2el=e2el)
    simulated = simulated.loc[measured.index]
    if scored is not None:
        measured, simulated = measured.loc[scored], simulated.loc[scored]
    finished = (simulated["status"] == "finished").to_numpy()
    rows = [] if finished.all() else [_finished_row(simulated, finished)]
    rows += _latency_rows(measured[finished], simulated[finished])
    if scored is None:  # requests finished by the time when the last one finished
        ours, arrivals = simulated[finished], simulated["arrival_time"]
        real_end = float((arrivals + measured["e2el"]).max())
        ours_end = float((ours["arrival_time"] + ours["e2el"]).max())
        rates = len(measured) / real_end, len(ours) / ours_end
        rows.append(_row("throughput", "requests/s", *rates))
    yield from (replace(row, warnings=result.warnings) for row in rows)


def _finished_row(simulated: pd.DataFrame, finished: NDArray[np.bool_]) -> Row:
    """Return how many measured requests finished. Raises ScenarioError if none did."""
    left = simulated[~finished]
    first = left.iloc[0]
    reason = f": {first['reason']}" if first["reason"] else ""
    why = f"; request {left.index[0]} was {str(first['status']).replace('_', ' ')}{reason}"
    if not finished.any():
        raise ScenarioError(
            f"none of the {len(finished)} measured requests finished in the simulation{why}; "
            "change the scenario to what was measured"
        )
    noun = "request" if len(left) == 1 else "requests"
    metric = f"finished ({len(left)} measured {noun} did not finish here{why})"
    return _row(metric, "requests", len(finished), int(finished.sum()))


def _latency_rows(measured: pd.DataFrame, simulated: pd.DataFrame) -> Iterator[Row]:
    for key, name in SHORT_NAMES.items():
        real, ours = measured[key].to_numpy(float), simulated[key].to_numpy(float)
        both = ~(np.isnan(real) | np.isnan(ours))
        real, ours = real[both], ours[both]
        if not len(real):  # the answers have one token each
            continue
        for statistic, of in _STATISTICS.items():
            row = _row(f"{name}, {statistic}", "ms", 1e3 * of(real), 1e3 * of(ours))
            if statistic == "mean":
                sizes = np.abs(ours / real - 1)
                spread, middle = float(sizes.mean()), float(np.median(sizes))
                samples = 1e3 * real, 1e3 * ours
                row = replace(row, spread=spread, middle=middle, samples=samples)
            yield row


def summary_rows(scenario: Scenario, measured: Mapping[str, float]) -> Iterator[Row]:
    """Yield every figure in both summaries that a simulation predicts.

    A row gives the number of finished requests if it differs, or if some did not finish in the
    simulation. Figures of 0 count as missing. Raises ScenarioError for figures that are negative or
    not finite, and if no latency or throughput is left to compare.
    """
    result = simulate(scenario)
    simulated: Mapping[str, Any] = result.summary
    rows = []
    for key, value in measured.items():
        ours = simulated.get(key)
        if not key.endswith(("_ms", "_throughput")) or not isinstance(ours, float):
            continue
        if not math.isfinite(value) or value < 0:
            raise ScenarioError(f"summary: {key} must be finite and >= 0, got {value:g}")
        if value:
            rows.append(_row(key, "ms" if key.endswith("_ms") else "/s", value, ours))
    finished, failed = simulated["completed"], simulated["failed"]
    if not rows:
        why = f"; {failed} requests failed in the simulation" if failed else ""
        raise ScenarioError(
            "summary: has no latency or throughput above 0 that the simulation has too, such as "
            f"mean_ttft_ms, p99_tpot_ms, request_throughput{why}"
        )
    count = measured.get("completed") or finished + failed
    if count != finished:
        rows.insert(0, _row(f"finished ({failed} failed here)", "requests", count, finished))
    yield from (replace(row, warnings=result.warnings) for row in rows)


def _row(metric: str, unit: str, measured: float, simulated: float) -> Row:
    return Row(metric, unit, measured, simulated, simulated / measured - 1)


_KEYS = ("name", "engine", "provenance", "fitted", "starts_at", "scenario", "requests", "summary")
_NEEDED = ("name", "engine", "provenance", "scenario")


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """A run of a real engine.

    engine: its name and version. provenance: origin and licence of the measurements.
    fitted: parameters fitted on these rows, which they do not test; empty: none.
    rows: simulates and compares.
    scenario: the simulated scenario; None for a run of several.
    requests: measured seconds by request id. summary: measured figures. None: not measured.
    """

    name: str
    engine: str
    provenance: str
    fitted: str = ""
    rows: Callable[[], Iterator[Row]]
    scenario: Scenario | None = None
    requests: pd.DataFrame | None = None
    summary: Mapping[str, float] | None = None


def read_run(folder: Path, *, allow_programs: bool = True) -> MeasuredRun:
    """Return the run of a folder with a `run.yaml` (see docs/validation.md).

    allow_programs: whether programs named in its scenario may run.
    Raises ScenarioError for a folder without one, unknown or missing keys, and files of another
    form.
    """
    path = folder / "run.yaml"
    if not path.is_file():
        raise ScenarioError(f"{folder}: has no run.yaml that describes a measured run")
    data = yaml_text.parse(yaml_text.read_text(path), str(path))
    if not isinstance(data, dict):
        raise ScenarioError(f"{path}: must hold a mapping of keys to values")
    check_plain(data, str(path))
    _check_keys(data, path)
    scenario = _scenario(data["scenario"], folder, path, allow_programs)
    starts_at = data.get("starts_at", "arrival")
    if starts_at not in ("arrival", "intake"):
        raise ScenarioError(f"{path}: starts_at must be arrival or intake, got {brief(starts_at)}")
    measured: pd.DataFrame | None = None
    summary: Mapping[str, float] | None = None
    if "requests" in data:
        measured = read_requests(folder / str(data["requests"]))

        rows = partial(request_rows, scenario, measured, from_intake=starts_at == "intake")
    else:
        summary = _summary(data["summary"], folder, path)
        rows = partial(summary_rows, scenario, summary)

    return MeasuredRun(
        name=str(data["name"]),
        engine=str(data["engine"]),
        provenance=str(data["provenance"]),
        fitted=str(data.get("fitted") or ""),
        rows=rows,
        scenario=scenario,
        requests=measured,
        summary=summary,
    )


def _check_keys(data: Mapping[str, Any], path: Path) -> None:
    for key in data:
        require_known(key, _KEYS, f"{path}: unknown key")
    if missing := [key for key in _NEEDED if key not in data]:
        raise ScenarioError(f"{path}: missing {', '.join(missing)}")
    if ("requests" in data) == ("summary" in data):
        raise ScenarioError(f"{path}: must have either requests or summary")
    if "summary" in data and data.get("starts_at") == "intake":
        raise ScenarioError(f"{path}: starts_at: intake needs requests, a summary has no intakes")


def _scenario(value: object, folder: Path, path: Path, allow_programs: bool) -> Scenario:
    if isinstance(value, str):
        is_preset = value in preset_names() and not is_there(folder / value)
        file = value if is_preset else folder / value
        if isinstance(file, Path) and is_there(file):
            check_ordinary(file)  # a pipe that a file names would be waited for
        return Scenario.load(file, allow_programs=allow_programs)
    if isinstance(value, dict):
        from mist_sim.scenario.loading import validated

        origin = Origin(f"{path}: scenario", folder, allow_programs=allow_programs)
        return validated(Scenario, value, {}, origin)
    raise ScenarioError(f"{path}: scenario must be a file or a mapping, got {brief(value)}")


def read_requests(path: Path) -> pd.DataFrame:
    """Return ttft, tpot and e2el in seconds by request id, from a CSV file with these columns.

    A tpot may be missing, where an answer has one token.

    Raises ScenarioError for files without requests and times that are not finite and > 0.
    """
    import pandas as pd

    names = ("request_id", *SHORT_NAMES)
    rows = read_csv(path, names, needed=names)
    if rows.empty:
        raise ScenarioError(f"{path}: holds no requests")
    for name in names:
        if not pd.api.types.is_numeric_dtype(rows[name]):
            raise ScenarioError(f"{path}: {name} must hold numbers only")
    if not rows["request_id"].is_unique:
        raise ScenarioError(f"{path}: request_id must be unique")
    _check_latencies(rows, path)
    return rows.set_index("request_id")[[*SHORT_NAMES]].sort_index()


def _check_latencies(rows: pd.DataFrame, path: Path) -> None:
    for name in SHORT_NAMES:
        possible = (rows[name] > 0) & (rows[name] < float("inf"))
        if name == "tpot":
            possible |= rows[name].isna()
        if not possible.all():
            wrong = rows[~possible].iloc[0]
            hint = "; leave it empty where an answer has one token" if name == "tpot" else ""
            raise ScenarioError(
                f"{path}: {name} of request {wrong['request_id']:.0f} must be finite and > 0 "
                f"seconds, got {wrong[name]:g}{hint}"
            )


def _summary(value: object, folder: Path, path: Path) -> dict[str, float]:
    """Return a summary with the keys of `vllm bench serve`, inline or from a JSON file.

    The file may be of SGLang or AIPerf, too.
    """
    if isinstance(value, str):
        value = object_in(folder / value)
    if not isinstance(value, dict):
        raise ScenarioError(f"{path}: summary must be a JSON file or a mapping, got {brief(value)}")
    return as_ours(value)
