"""The parts of a table of step times, whatever file it came from."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from mist_sim.bounds import GRID_POINTS, NUMBER
from mist_sim.errors import ScenarioError, brief, listed
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.devices import GpuSpec, device_of, load_gpu
from mist_sim.hardware.interpolation import Array, Curve, Plane, Volume, resampled
from mist_sim.inputs import as_numbers, check_columns, read_csv, text_of
from mist_sim.models.model_loading import load_model
from mist_sim.models.spec import ModelSpec

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class StepTables:
    """Seconds of the parts of a step's time, which are summed.

    alone: time of a step without prompts by its tokens (one per decode).
    tokens: time of a step with prompts by its tokens, new ones and decodes.
    sequences: logits and sampling, by sequences that get a token.
    prefill: added by a chunk, by its new tokens and its context.
    next_prefill: subtracted for every chunk but the longest: the saving of one launch for all.
    decode: added by the decodes of a step without prompts, by their number and mean context.
    beside: added by decodes beside prompts, by their number and mean context; if mixed steps were
        measured, by new tokens and decodes, context of the chunk and mean context (beside several
        chunks the largest counts).
    uneven, uneven_beside: weight of the longest context, alone and beside prompts, by number of
        decodes and mean / longest context: decodes take as long as equal ones of the context
        mean + weight x (longest - mean). None where it was not measured.
    least_even, least_even_beside: the lowest measured mean / longest context, alone and beside
        prompts.
    most_tokens: new tokens and decodes of the largest measured step with prompts.
    moved: (tokens, experts) of measured times of experts that fell with more work, and were
        corrected.
    other_rates: why the times need a `step_time_scale` (see `PredictorTraits.needs_scale`).
    """

    alone: Curve
    tokens: Curve
    sequences: Curve
    prefill: Plane
    next_prefill: float = 0.0
    decode: Plane
    beside: Plane | Volume
    uneven: Plane | None = None
    uneven_beside: Plane | None = None
    least_even: float = 0.0
    least_even_beside: float = 0.0
    most_tokens: float
    moved: tuple[tuple[float, ...], ...] = ()
    other_rates: str = ""


class Reads(Protocol):
    """Reads the tables of one format. Raises ScenarioError for other files."""

    def __call__(
        self, path: Path, model: ModelSpec, cluster: Cluster, subset: str | None
    ) -> StepTables:
        """Return the tables of a model on a cluster. subset: a part of the file, by name."""


class TableFormat(NamedTuple):
    """A form of tables.

    has_subsets: its files hold several settings. of_layers: they hold layers of one rank, without
    all-reduces.
    """

    read: Reads
    has_subsets: bool = False
    of_layers: bool = False


_ENTRY = re.compile(r"(\w+):(.*)")
_FLAG = re.compile(r"\s+enabled:(.*)")
_DIGITS = 9  # of a number of ranks that anybody has
_ON, _OFF = ("true", "yes", "on"), ("false", "no", "off")  # of YAML 1.1


def check_measured(notes: Mapping[str, str], model: ModelSpec, cluster: Cluster, where: str) -> str:
    """Refuse measurements of another model, GPU or number of ranks; missing keys are not checked.

    notes: model and gpu by any name of the catalog; hardware, another name of the GPU;
        tensor_parallel_size.
    Return why a GPU based on the measured one needs a `step_time_scale`; empty if it has its rates.
    Raises ScenarioError with the key and both values.
    """
    gpus = [notes[key] for key in ("gpu", "hardware") if notes.get(key)]
    _check("model", [notes["model"]] if notes.get("model") else [], model.name, _model, where)
    own, device, other_rates = cluster.gpu, device_of(cluster.gpu), ""
    if gpus and own.name not in map(_gpu, gpus):
        _check("gpu", gpus, device.name, _gpu, where)
        other_rates = _other_rates(own, device, where)
    ranks = [notes["tensor_parallel_size"]] if notes.get("tensor_parallel_size") else []
    _check("tensor_parallel_size", ranks, str(cluster.tensor_parallel_size), str, where)
    return other_rates


def read_meta(folder: Path) -> tuple[dict[str, str], str]:
    """Return the top-level entries of a profile's meta.yaml, and the file's name.

    Nested entries: only `enabled`, as "skew_fit.enabled".

    The file lies in the folder, or above it if the folder is for one number of ranks (tp2). Empty
    without a file.
    """
    file = folder / "meta.yaml"
    if not file.is_file() and re.fullmatch(r"tp\d+", folder.resolve().name):
        file = folder.resolve().parent / "meta.yaml"
    if not file.is_file():
        return {}, str(file)
    entries, last = {}, ""
    for line in text_of(file).splitlines():
        if found := _ENTRY.fullmatch(line):
            last = found[1]
            entries[last] = _value(found[2])
        elif found := _FLAG.fullmatch(line):
            entries.setdefault(f"{last}.enabled", _value(found[1]))
    return entries, str(file)


def _value(text: str) -> str:
    """Return the value after a key, without comment and quotes."""
    return text.partition("#")[0].strip().strip("'\"")


def is_on(notes: Mapping[str, str], key: str, where: object) -> bool:
    """Tell whether a part of a profile is enabled (the default).

    Raises ScenarioError for anything but true and false.
    """
    said = notes.get(f"{key}.enabled", "true").lower()
    if said not in (*_ON, *_OFF):
        raise ScenarioError(
            f"{where}: meta.yaml: {key}.enabled must be true or false, got {brief(said)}"
        )
    return said in _ON


def profiled_ranks(folder: Path, notes: Mapping[str, str]) -> int:
    """Return the tensor_parallel_size of a profile's kernels.

    From the folder's name (tp2), or the only one of `tp_degrees` in its meta.yaml; 1 if neither
    gives it.
    """
    named = re.fullmatch(r"tp(\d+)", folder.resolve().name)
    degrees = [named[1]] if named else re.findall(r"\d+", notes.get("tp_degrees", ""))
    return int(degrees[0][:_DIGITS]) if len(degrees) == 1 else 1


def _check(
    key: str, measured: list[str], own: str, name_of: Callable[[str], str], where: str
) -> None:
    if measured and own not in [name_of(name) for name in measured]:
        raise ScenarioError(
            f"{where}: {key} must be what the client has, {own}, got {listed(measured, ' / ')}; "
            "take a table that was measured so, or correct the entry"
        )


def _other_rates(own: GpuSpec, device: GpuSpec, where: str) -> str:
    """Say that a GPU has other rates than the measured device; empty if it has the same."""
    for name in ("flops", "memory_bandwidth"):
        if getattr(own, name) != getattr(device, name):
            return (
                f"{where}: {name} of {own.name} must be that of {device.name}, on which the times "
                "were measured; set step_time_scale of the client to the ratio of step times, or "
                "leave it out"
            )
    return ""


def _model(name: str) -> str:
    try:
        return load_model(name).name
    except ScenarioError:
        return name


def _gpu(name: str) -> str:
    try:
        return load_gpu(name).name
    except ScenarioError:
        return name


def read_columns(
    path: Path,
    numbers: Sequence[str],
    words: Sequence[str] = (),
    *,
    optional: Sequence[str] = (),
    sparse: Sequence[str] = (),
    num_notes: int = 0,
) -> pd.DataFrame:
    """Return columns of a CSV file; the index is the line of each row.

    numbers: columns that must hold finite numbers. words: other columns.
    optional: columns of finite numbers that may be missing.
    sparse: columns as they are, which some rows leave empty; `checked` is for the other rows.
    num_notes: lines before the header.
    Raises ScenarioError that names the file and the missing column or the line.
    """
    needed = [*numbers, *words, *sparse]
    columns = [*needed, *optional]
    frame = read_csv(path, columns, needed=needed, words=words, num_notes=num_notes)
    numbers = [*numbers, *(name for name in optional if name in frame.columns)]
    return checked(frame, numbers, words, str(path), "line", sparse)


def checked(
    frame: pd.DataFrame,
    numbers: Sequence[str],
    words: Sequence[str],
    where: str,
    unit: str,
    sparse: Sequence[str] = (),
) -> pd.DataFrame:
    """Return the columns asked for, with numbers as numbers; see `read_columns`."""
    needed = [*numbers, *words, *sparse]
    check_columns([*map(str, frame.columns)], needed, where)
    frame = frame[needed].dropna(how="all")
    if frame.empty:
        raise ScenarioError(f"{where}: has no rows")
    frame = frame.assign(**{name: frame[name].fillna("").astype(str) for name in words})
    for name in numbers:
        values = as_numbers(frame[name])
        wrong = ~np.isfinite(values) | (values < 0)
        if wrong.any():
            line = frame.index[wrong][0]
            raise ScenarioError(
                f"{where}: {unit} {line}: {name} must be a number >= 0, "
                f"got {_shown(frame.loc[line, name])}"
            )
        beyond = (values > 0) & ~values.between(*NUMBER)
        if beyond.any():
            line = frame.index[beyond][0]
            raise ScenarioError(
                f"{where}: {unit} {line}: {name} must be 0 or from {NUMBER[0]:g} to {NUMBER[1]:g}, "
                f"got {values[line]:g}"
            )
        frame = frame.assign(**{name: values})
    return frame


def _shown(cell: Any) -> str:
    """Return a cell as it stands in the file."""
    plain = cell.item() if isinstance(cell, np.generic) else cell
    is_empty = plain is None or (isinstance(plain, float) and math.isnan(plain))
    return "an empty cell" if is_empty else brief(plain)


def curve(frame: pd.DataFrame, by: str, value: str) -> tuple[Array, Array]:
    """Return the points and median values of a column by another."""
    medians = frame.groupby(by)[value].median()
    return medians.index.to_numpy(float), medians.to_numpy(float)


def measured_grid(
    frame: pd.DataFrame, axes: Sequence[str], value: str, where: str
) -> tuple[list[Array], Array, list[tuple[float, ...]]]:
    """Arrange rows as a grid that rises along all axes and keeps measured values exactly.

    Cells without a row, such as 64 experts that two tokens cannot use, are filled as in
    `full_grid`, and kept between the measured cells below and above them. Measured cells that fall
    with more work are noise: they are replaced by the isotonic fit with the smallest largest
    change. Returns the points of each axis, the values, and the places of the changed cells. Raises
    ScenarioError as `full_grid` does.
    """
    points, filled = full_grid(frame, axes, value, where)
    medians = frame.groupby(list(axes))[value].median()
    columns = [medians.index.get_level_values(axis).to_numpy(float) for axis in axes]
    own = tuple(np.searchsorted(at, column) for at, column in zip(points, columns, strict=True))
    measured = np.full(filled.shape, np.nan)
    measured[own] = medians.to_numpy(float)
    below = _running(np.maximum, np.where(np.isnan(measured), -np.inf, measured))
    above = np.where(np.isnan(measured), np.inf, measured)
    above = np.flip(_running(np.minimum, np.flip(above)))
    kept = np.where(np.isnan(measured), np.clip(filled, below, np.maximum(below, above)), measured)
    moved = ~np.isnan(measured) & (below != above)
    kept[moved] = (below[moved] + above[moved]) / 2
    values = _running(np.maximum, kept)
    places = zip(*(column[moved[own]] for column in columns), strict=True)
    return points, values, [tuple(map(float, place)) for place in places]


def _running(ufunc: np.ufunc, values: Array) -> Array:
    """Return the largest or smallest of each cell and all before it along every axis."""
    for dimension in range(values.ndim):
        values = ufunc.accumulate(values, axis=dimension)
    return values


def full_grid(
    frame: pd.DataFrame, axes: Sequence[str], value: str, where: str
) -> tuple[list[Array], Array]:
    """Arrange rows as a full grid over several columns; repeated points count as their median.

    If a value of one axis has fewer points along the later axes than others, the missing ones are
    interpolated and extrapolated as in a run (see `grids.Axis`). Returns the points of each axis
    and the values. Raises ScenarioError, with the file in `where`, for no rows, and for more points
    than a grid may have.
    """
    if frame.empty:
        raise ScenarioError(f"{where}: has no rows to interpolate {value} by {' and '.join(axes)}")
    num_points = math.prod(frame[axis].nunique() for axis in axes)
    if num_points > GRID_POINTS:
        raise ScenarioError(
            f"{where}: {', '.join(axes)} must make a grid of <= {GRID_POINTS} points, got "
            f"{num_points}; measure at the same values of one for all of the others"
        )
    medians = frame.groupby(list(axes))[value].median()  # sorted by the axes
    columns = [medians.index.get_level_values(axis).to_numpy(float) for axis in axes]
    points = [np.unique(column) for column in columns]
    return points, _filled(columns, medians.to_numpy(float), points)


def _filled(columns: Sequence[Array], values: Array, points: Sequence[Array]) -> Array:
    """Return sorted rows as values on the grid of all points."""
    if len(columns) > 1:
        own, starts = np.unique(columns[0], return_index=True)
        bounds = zip(starts, [*starts[1:], len(values)], strict=True)
        slices = [
            _filled([column[a:b] for column in columns[1:]], values[a:b], points[1:])
            for a, b in bounds
        ]
        values = np.stack(slices)
    else:
        own = columns[0]
    return values if len(own) == len(points[0]) else resampled(values, own, points[0], 0)
