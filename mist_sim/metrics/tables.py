"""Tables of results, the folder of a run, and how findings are saved.

Tables of results: columns by name, which become a pandas frame or a Parquet file.

Importing pandas takes longer than a short run, so files are written without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mist_sim.bounds import RUN_BYTES, RUN_CELLS
from mist_sim.core.result_warnings import ResultWarning, merged
from mist_sim.errors import ScenarioError
from mist_sim.inputs import object_in, read_parquet, text_of
from mist_sim.output import output_file, output_folder

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


_SUMMARY_BYTES = 64 * 2**20  # more than any summary has
_ADVICE = (
    "name a folder that mist run --out wrote, without replications or --vary; "
    "mist report draws others"
)


@dataclass(frozen=True)
class RunFolder:
    """Reads the files of `Result.save`.

    Raises ScenarioError for a folder without the `summary.json` of one run.
    """

    path: Path

    def __post_init__(self) -> None:
        if not (self.path / "summary.json").is_file():
            raise ScenarioError(f"{self.path}: has no summary.json; {_ADVICE}")
        if not {"completed", "duration"} <= self.summary.keys() or "replications" in self.summary:
            raise ScenarioError(f"{self.path / 'summary.json'}: is not of one run; {_ADVICE}")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The metrics of the whole run; None where a figure has no sample.

        Raises ScenarioError for a file that is no summary.
        """
        return object_in(self.path / "summary.json", _SUMMARY_BYTES)

    @cached_property
    def scenario(self) -> str | None:
        """The resolved scenario as YAML text; None if the run came from no scenario."""
        file = self.path / "scenario.resolved.yaml"
        return text_of(file, _SUMMARY_BYTES) if file.is_file() else None

    def table(self, name: str) -> pd.DataFrame:
        """Return a saved table.

        Raises ScenarioError if the table was not saved or its file is damaged.
        """
        if not self.has(name):
            raise ScenarioError(
                f"{self.path}: has no {name}.parquet, so this was not recorded; run the scenario "
                f"again with --tables that name it, such as --tables requests,{name}"
            )
        return read_parquet(
            self.path / f"{name}.parquet",
            most_bytes=RUN_BYTES,
            most_cells=RUN_CELLS,
            advice="read it with pandas, or run fewer requests",
        )[0]

    def has(self, name: str) -> bool:
        """Tell whether a table was saved."""
        return (self.path / f"{name}.parquet").is_file()


class Drawn(Protocol):
    """A picture, which a notebook draws; of `report.pictures.picture.Picture`."""

    def figure(self) -> Any:
        """Return it as a figure of Matplotlib."""

    def save(self, path: str | Path, *, replace: bool = False) -> Path:
        """Write it as PNG, SVG or PDF, as the suffix of the file says."""


_NO_PRESENTER = "these findings were given no presenter, so there is no report and no picture"


class Presenter:
    """Shows findings as `print` does; `report.presenters` has others, with tables and pictures."""

    def show(self, found: Any) -> None:
        """Print the findings."""
        print(found)  # noqa: T201 - on demand

    def as_html(self, found: Any) -> str:
        """Return the HTML for a notebook."""
        return f"<pre>{escape(repr(found))}</pre>"

    def report(self, found: Any) -> str:
        """Return a report of the findings as the text of an HTML file.

        Raises ScenarioError here: no presenter was set that makes pages.
        """
        raise ScenarioError(_NO_PRESENTER)

    def plot(self, found: Any, name: str) -> Drawn:
        """Return a picture of the findings.

        Raises ScenarioError here: no presenter was set that draws.
        """
        raise ScenarioError(_NO_PRESENTER)


ONE_LINE = Presenter()


class UnansweredError(ScenarioError):
    """A search without an answer, with the reason.

    warnings: those of the figures that decided; tracebacks have them as notes. found: all that was
    tried; None: it has no files.
    """

    def __init__(
        self, reason: str, warnings: Sequence[ResultWarning], found: Findings | None = None
    ) -> None:
        super().__init__(reason)
        self.warnings = merged(warnings)
        for each in self.warnings:
            self.add_note(f"warning: {each}")
        self.found = found


class Findings(ABC):
    """Findings of one run, or of a search of many.

    A subclass says which files it has, its data and its warnings. These are part of the summary,
    from which every format is made.

    presenter: shows it.
    """

    presenter: Presenter = ONE_LINE

    @property
    @abstractmethod
    def data(self) -> Mapping[str, Any]:
        """Everything but the warnings as plain data."""

    @property
    @abstractmethod
    def warnings(self) -> Sequence[ResultWarning]:
        """What the reader of the figures has to know; `KINDS` has all kinds."""

    @property
    def summary(self) -> Mapping[str, Any]:
        """Everything as plain data."""
        return {**self.data, "warnings": [each.data for each in merged(self.warnings)]}

    @abstractmethod
    def write_files(self, folder: Path) -> None:
        """Write the files of `save` into an existing empty folder."""

    def show(self) -> None:
        """Print the tables that the `mist` command for it prints."""
        self.presenter.show(self)

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook: the same tables."""
        return self.presenter.as_html(self)

    def plot(self, name: str) -> Drawn:
        """Return a picture which a notebook draws, and `save` writes.

        name: of a run, one of `report.pictures.catalog.PICTURES`, such as "latency"; of other
            findings, one of their report.
        Raises ScenarioError for a name that there is not, and without Matplotlib.
        """
        return self.presenter.plot(self, name)

    def report(self, path: str | Path, *, replace: bool = False) -> Path:
        """Write a report as one HTML file that needs no network; return its path.

        replace: whether to overwrite an existing file.
        Raises ScenarioError if the file cannot be written, and without Jinja2 or Matplotlib.
        """
        with output_file(path, replace=replace) as file:
            file.write(self.presenter.report(self))
        return Path(path)

    def save(self, folder: str | Path, *, replace: bool = False) -> Path:
        """Write the files of `write_files` into a new or empty folder; return it.

        The same findings write the same bytes. replace: remove earlier results in the folder; other
        files are kept. Raises ScenarioError when the folder cannot be written, holds files, or is
        in use.
        """
        with output_folder(folder, replace=replace) as place:
            place.fill(self.write_files)
        return place.path


@dataclass(frozen=True, slots=True)
class WithMissing:
    """Whole numbers, some of which are missing. missing: which; as long as `values`."""

    values: NDArray[np.int64]
    missing: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: NDArray[Any]) -> WithMissing:
        return WithMissing(self.values[rows], self.missing[rows])


@dataclass(frozen=True, slots=True)
class Coded:
    """Text that repeats. codes: of each row, its place in `texts`, the texts that there are."""

    codes: NDArray[np.integer]
    texts: Sequence[str]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: NDArray[Any]) -> Coded:
        return Coded(self.codes[rows], self.texts)

    def array(self) -> NDArray[np.object_]:
        """Return the text of each row, as Python strings."""
        found: NDArray[np.object_] = texts(self.texts)[self.codes]
        return found


Column = NDArray[Any] | WithMissing | Coded
"""Numbers, truth values, or text: as Python strings (dtype object), or as codes."""
Columns = dict[str, Column]
"""Columns of one length, in order."""


def column(values: Iterable[Any]) -> NDArray[Any]:
    """Return values as a column; text stays as Python strings, and an empty column has no type."""
    found = np.array(list(values))
    return found if found.dtype.kind in "bif" and len(found) else found.astype(object)


def texts(values: Iterable[str]) -> NDArray[np.object_]:
    """Return text as a column, even if empty."""
    return np.array(list(values), dtype=object)


def num_rows(columns: Columns) -> int:
    """Return the number of rows of a table."""
    return len(next(iter(columns.values()), ()))


def in_order(columns: Columns, rows: NDArray[np.int64]) -> Columns:
    """Return the columns, which are emptied, with their rows in another order."""
    return {name: columns.pop(name)[rows] for name in list(columns)}


def concatenated(
    parts: Sequence[dict[str, NDArray[Any]] | dict[str, NDArray[Any] | Coded]],
) -> Columns:
    """Return the rows of several tables with the same columns, one table after the other.

    The tables are emptied, so that no column is held twice. Coded text has the same texts in all.
    """
    return {name: _joined([part.pop(name) for part in parts]) for name in list(parts[0])}


def _joined(parts: Sequence[Any]) -> NDArray[Any] | Coded:
    if isinstance(parts[0], Coded):
        return Coded(np.concatenate([part.codes for part in parts]), parts[0].texts)
    return np.concatenate(parts)


def frame_of(columns: Columns) -> pd.DataFrame:
    """Return the columns as a pandas frame; whole numbers with missing ones are `Int64`."""
    import pandas as pd

    def values_of(column: Column) -> Any:
        if isinstance(column, WithMissing):
            return pd.arrays.IntegerArray(column.values, column.missing)
        return column.array() if isinstance(column, Coded) else column

    return pd.DataFrame({name: values_of(column) for name, column in columns.items()})


def write_parquet(columns: Columns, path: Path) -> None:
    """Write the columns into a Parquet file, as `frame_of(columns).to_parquet(path)` would.

    The note in its schema gives a reader with pandas the dtypes back. Source: "pandas metadata" in
    pandas' developer guide; pandas 3 writes the same bytes. Only floats have no dictionary here:
    times hardly repeat, and without it files are smaller by a sixth and written in half the time.
    """
    from pyarrow import Table, default_memory_pool, parquet, schema
    from pyarrow import types as types_of_arrow

    arrays = {name: _arrow(values) for name, values in columns.items()}
    types = [(name, array.type) for name, array in arrays.items()]
    form = schema(types, metadata={"pandas": _note(columns)})
    repeating = [name for name, kind in types if not types_of_arrow.is_floating(kind)]
    table = Table.from_arrays(list(arrays.values()), schema=form)
    parquet.write_table(table, str(path), use_dictionary=repeating)
    default_memory_pool().release_unused()


def _arrow(values: Column) -> pa.Array:
    """Return a column for Arrow; NaN is missing there, and text without rows has no type.

    Made of buffers, since `pyarrow.array` imports pandas.
    """
    import pyarrow as pa

    if isinstance(values, WithMissing):
        return _of_buffers(pa.int64(), values.values, values.missing)
    if isinstance(values, Coded):
        return _coded(values) if len(values) else pa.nulls(0)
    if values.dtype == object:
        return _text(values.tolist()) if len(values) else pa.nulls(0)
    if values.dtype == bool:
        return _of_buffers(pa.bool_(), np.packbits(values, bitorder="little"), None, len(values))
    missing = np.isnan(values) if values.dtype.kind == "f" else None
    return _of_buffers(pa.from_numpy_dtype(values.dtype), values, missing)


def _of_buffers(
    kind: pa.DataType,
    values: NDArray[Any],
    missing: NDArray[np.bool_] | None,
    length: int | None = None,
) -> pa.Array:
    """Return an array of a type over its values. length: by default that of the values."""
    import pyarrow as pa

    valid, num_missing = None, 0
    if missing is not None and (num_missing := int(missing.sum())):
        valid = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    length = len(values) if length is None else length
    buffers = [valid, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(kind, length, buffers, num_missing)


def _text(values: list[str]) -> pa.Array:
    import pyarrow as pa

    content, sizes = "".join(values).encode(), _sizes(values)
    if len(content) != sizes.sum():  # some letters take several bytes
        sizes = _sizes([value.encode() for value in values])
    offsets = pa.py_buffer(np.append(0, np.cumsum(sizes)))
    buffers = [None, offsets, pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.large_string(), len(values), buffers, 0)


def _coded(column: Coded) -> pa.Array:
    """Return coded text for Arrow, without a Python object a row."""
    from pyarrow import DictionaryArray, from_numpy_dtype

    codes = _of_buffers(from_numpy_dtype(column.codes.dtype), column.codes, None)
    return DictionaryArray.from_arrays(codes, _text(list(column.texts))).dictionary_decode()


def _sizes(values: Sequence[str | bytes]) -> NDArray[np.int64]:
    return np.fromiter(map(len, values), np.int64, len(values))


def _note(columns: Columns) -> str:
    """Return pandas' metadata on the columns of a frame without an index."""
    import json
    from importlib.metadata import version

    import pyarrow as pa

    return json.dumps(
        {
            "index_columns": [],
            "column_indexes": [],
            "columns": [
                dict(name=name, field_name=name, **_types(values), metadata=None)
                for name, values in columns.items()
            ],
            "attributes": {},
            "creator": {"library": "pyarrow", "version": pa.__version__},
            "pandas_version": version("pandas"),
        }
    )


def _types(values: Column) -> dict[str, str]:
    """Return the type of a column, and its type in a frame, by pandas' names."""
    if isinstance(values, WithMissing):
        return {"pandas_type": "int64", "numpy_type": "Int64"}
    if not isinstance(values, Coded) and values.dtype != object:
        return {"pandas_type": values.dtype.name, "numpy_type": values.dtype.name}
    if not len(values):
        return {"pandas_type": "empty", "numpy_type": "object"}
    return {"pandas_type": "object", "numpy_type": "str"}
