"""A measured run: what was measured, the scenario that simulates it, and how far the two differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.errors import ScenarioError, did_you_mean
from mist_sim.scenario import Scenario, simulate, yaml_text
from mist_sim.scenario.paths import Origin
from mist_sim.scenario.presets import preset_names

if TYPE_CHECKING:
    import pandas as pd

    from mist_sim.metrics import Result

LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2E"}
_STATISTICS: Mapping[str, Callable[[NDArray[np.float64]], float]] = {
    "mean": lambda values: float(values.mean()),
    "p50": lambda values: float(np.percentile(values, 50)),
    "p99": lambda values: float(np.percentile(values, 99)),
}
_KEYS = ("name", "engine", "provenance", "fitted", "starts_at", "scenario", "requests", "summary")
_NEEDED = ("name", "engine", "provenance", "scenario")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of a run beside its simulation.

    measured, simulated: in `unit`; None where the row sums up many points.
    error: simulated / measured - 1; of many points the median.
    spread: mean of the absolute errors of single requests or points; None where there is one.
    """

    metric: str
    unit: str
    measured: float | None
    simulated: float | None
    error: float
    spread: float | None = None


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """A run of a real engine.

    engine: its name and version. provenance: who measured it, and the licence.
    fitted: what was fitted on these rows, and so is not tested by them; empty: nothing.
    rows: simulates and compares.
    """

    name: str
    engine: str
    provenance: str
    fitted: str = ""
    rows: Callable[[], Iterator[Row]]


def read_run(folder: Path) -> MeasuredRun:
    """Return the run of a folder with a `run.yaml` (see docs/validation.md).

    Raises ScenarioError for a folder without one, unknown or missing keys, and files that do not
    hold what they should.
    """
    path = folder / "run.yaml"
    if not path.is_file():
        raise ScenarioError(f"{folder}: has no run.yaml that describes a measured run")
    data = yaml_text.parse(yaml_text.read_text(path), str(path))
    if not isinstance(data, dict):
        raise ScenarioError(f"{path}: must hold a mapping of keys to values")
    _check_keys(data, path)
    scenario = _scenario(data["scenario"], folder, path)
    starts_at = data.get("starts_at", "arrival")
    if starts_at not in ("arrival", "intake"):
        raise ScenarioError(f"{path}: starts_at must be arrival or intake, got {starts_at!r}")
    if "requests" in data:
        measured = read_requests(folder / str(data["requests"]))

        def rows() -> Iterator[Row]:
            return request_rows(scenario, measured, from_intake=starts_at == "intake")
    else:
        summary = _summary(data["summary"], folder, path)

        def rows() -> Iterator[Row]:
            return summary_rows(scenario, summary)

    return MeasuredRun(
        name=str(data["name"]),
        engine=str(data["engine"]),
        provenance=str(data["provenance"]),
        fitted=str(data.get("fitted") or ""),
        rows=rows,
    )


def _check_keys(data: Mapping[str, Any], path: Path) -> None:
    for key in data:
        if key not in _KEYS:
            hint = did_you_mean(str(key), _KEYS)
            raise ScenarioError(f"{path}: unknown key {key!r}{hint} Known: {', '.join(_KEYS)}")
    if missing := [key for key in _NEEDED if key not in data]:
        raise ScenarioError(f"{path}: missing {', '.join(missing)}")
    if ("requests" in data) == ("summary" in data):
        raise ScenarioError(f"{path}: must have either requests or summary")
    if "summary" in data and data.get("starts_at") == "intake":
        raise ScenarioError(f"{path}: starts_at: intake needs requests, a summary has no intakes")


def _scenario(value: object, folder: Path, path: Path) -> Scenario:
    if isinstance(value, str):
        is_preset = value in preset_names() and not (folder / value).exists()
        return Scenario.load(value if is_preset else folder / value)
    if isinstance(value, dict):
        from mist_sim.scenario.load import validated

        return validated(value, {}, Origin(f"{path}: scenario", folder))
    raise ScenarioError(f"{path}: scenario must be a file or a mapping, got {value!r}")


def read_requests(path: Path) -> pd.DataFrame:
    """Return ttft, tpot and e2el in seconds by request id, from a CSV file with these columns.

    A tpot may be missing, where an answer has one token.
    """
    import pandas as pd

    try:
        rows = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{path}: cannot be read as CSV: {error}") from None
    for name in ("request_id", *LATENCIES):
        if name not in rows.columns:
            hint = did_you_mean(name, map(str, rows.columns))
            raise ScenarioError(f"{path}: no column {name!r}{hint}")
        if not pd.api.types.is_numeric_dtype(rows[name]):
            raise ScenarioError(f"{path}: {name} must hold numbers only")
    if not rows["request_id"].is_unique:
        raise ScenarioError(f"{path}: request_id must be unique")
    return rows.set_index("request_id")[[*LATENCIES]].sort_index()


def _summary(value: object, folder: Path, path: Path) -> dict[str, float]:
    """Return a summary with the keys of `vllm bench serve`, inline or from its JSON file."""
    if isinstance(value, str):
        try:
            value = json.loads((folder / value).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ScenarioError(f"{folder / str(value)}: cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise ScenarioError(f"{path}: summary must be a JSON file or a mapping, got {value!r}")
    return {
        str(key): float(figure)
        for key, figure in value.items()
        if isinstance(figure, int | float) and not isinstance(figure, bool)
    }


# --- comparing --------------------------------------------------------------------------------


def request_rows(
    scenario: Scenario,
    measured: pd.DataFrame,
    *,
    from_intake: bool = False,
    scored: slice | None = None,
) -> Iterator[Row]:
    """Yield statistics of latencies, with the mean error of single requests, and the throughput.

    from_intake: measured times begin when the engine took the request in, between two steps.
    scored: which requests count, by id; None: all.
    """
    result = simulate(scenario)
    requests = result.requests.set_index("request_id")
    if missing := set(measured.index) - set(requests.index):
        raise ScenarioError(f"request_id {min(missing)} was measured and is not in the workload")
    start = requests["arrival_time"].to_numpy()
    if from_intake:
        start = _intakes(result, start)
    simulated = requests.assign(
        ttft=requests["first_token_at"] - start, e2el=requests["finished_at"] - start
    ).loc[measured.index]
    if scored is not None:
        measured, simulated = measured.loc[scored], simulated.loc[scored]
    for key, name in LATENCIES.items():
        real, ours = measured[key].to_numpy(float), simulated[key].to_numpy(float)
        both = ~(np.isnan(real) | np.isnan(ours))
        real, ours = real[both], ours[both]
        for statistic, of in _STATISTICS.items():
            spread = float(np.abs(ours / real - 1).mean()) if statistic == "mean" else None
            yield _row(f"{name}, {statistic}", "ms", 1e3 * of(real), 1e3 * of(ours), spread)
    if scored is None:
        ends = requests["arrival_time"].loc[measured.index]
        real_end = float((ends + measured["e2el"]).max())
        ours_end = float((ends + simulated["e2el"]).max())
        count = len(measured)
        yield _row("throughput", "requests/s", count / real_end, count / ours_end)


def _intakes(result: Result, arrivals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return when the engine took each request in: at once when idle, else as its step ended."""
    steps = result.steps
    if steps["track"].nunique() != 1:
        raise ScenarioError("starts_at: intake needs a scenario with a single engine")
    ends = np.array(result.recorder.step_ends[0])
    place = np.minimum(ends.searchsorted(arrivals), len(ends) - 1)
    starts, run_ends = steps["start"].to_numpy(), steps["end"].to_numpy()
    run = np.maximum(starts.searchsorted(arrivals, "right") - 1, 0)
    busy = (starts[run] < arrivals) & (arrivals < run_ends[run])
    return np.where(busy, ends[place], arrivals)


def summary_rows(scenario: Scenario, measured: Mapping[str, float]) -> Iterator[Row]:
    """Yield every figure that both summaries have and that a simulation is about."""
    simulated = simulate(scenario).summary
    for key, value in measured.items():
        timed = key.endswith(("_ms", "_throughput"))
        if timed and value and isinstance(simulated.get(key), float):
            yield _row(key, "ms" if key.endswith("_ms") else "/s", value, simulated[key])


def _row(
    metric: str, unit: str, measured: float, simulated: float, spread: float | None = None
) -> Row:
    return Row(metric, unit, measured, simulated, simulated / measured - 1, spread)
