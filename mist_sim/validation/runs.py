"""A measured run: its measurements, and the scenario that simulates it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mist_sim.errors import ScenarioError, brief, require_known
from mist_sim.inputs import check_ordinary, check_plain, is_there, object_in, read_csv
from mist_sim.metrics.latency import SHORT_NAMES
from mist_sim.metrics.other_names import as_ours
from mist_sim.scenario import Scenario
from mist_sim.scenario.format import yaml_text
from mist_sim.scenario.format.paths import Origin
from mist_sim.scenario.presets import preset_names
from mist_sim.validation.comparing import Row, request_rows, summary_rows

if TYPE_CHECKING:
    import pandas as pd

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
