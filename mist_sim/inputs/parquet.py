"""Tables in Parquet files, with a limit on their size."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from mist_sim.bounds import TABLE_BYTES, TABLE_CELLS
from mist_sim.errors import ScenarioError, brief
from mist_sim.inputs.files import content_of

if TYPE_CHECKING:
    import pandas as pd


def read_parquet(
    path: Path, columns: Collection[str] | None = None
) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return columns of a Parquet file, and the notes in its schema.

    columns: columns to keep, if the file has them; None: all.
    Raises ScenarioError for a file that is unreadable, too large or not Parquet.
    """
    from pyarrow import ArrowException, BufferReader, parquet

    content = content_of(path, TABLE_BYTES)
    try:
        file = parquet.ParquetFile(BufferReader(content))
        schema = file.schema_arrow
        kept = [name for name in schema.names if columns is None or name in columns]
        if file.metadata.num_rows * max(len(kept), 1) > TABLE_CELLS:
            raise ScenarioError(f"{path}: must have <= {TABLE_CELLS} cells")
        frame: pd.DataFrame = file.read(kept).to_pandas()
    except (OSError, ArrowException) as error:
        problem = brief(str(error), 300)
        raise ScenarioError(f"{path}: cannot be read as Parquet: {problem}") from None
    pairs = (schema.metadata or {}).items()
    return frame, {_text(key): _text(value) for key, value in pairs}


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")
