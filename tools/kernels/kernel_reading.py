"""Tables of measured kernels in aiconfigurator-core and aisimulate: their files and number formats.

A folder of a system holds `PART/vllm/VERSION/FILE.parquet`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mist_sim.bounds import NUMBER
from mist_sim.errors import ScenarioError
from mist_sim.inputs import read_parquet
from tools.kernels.kernel_rows import KernelRows

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

FORMATS = {
    "bfloat16": ("bf16", 2.0, "bf16"),
    "fp8": ("fp8", 1.0, "fp8"),
    "fp8_block": ("fp8_block", 1.0 + 4 / 128**2, "fp8"),
    "nvfp4": ("nvfp4", 0.5 + 1 / 16, "fp4"),
    "int4_wo": ("int4", 0.5 + 2 / 128, "bf16"),
    "w4a16_mxfp4": ("mxfp4", 0.5 + 1 / 32, "bf16"),
}
"""By their names of formats: ours, bytes of a parameter, the type that is multiplied."""


def versions_of(folder: Path, name: str) -> list[Path]:
    """Return the tables of a part ("moe/moe_perf") of vLLM, the oldest version first."""
    part, _, file = name.partition("/")
    return sorted(folder.glob(f"{part}/vllm/*/{file}.parquet"), key=_version)


def newest(folder: Path, name: str) -> Path | None:
    """Return the table of the newest version, or None."""
    found = versions_of(folder, name)
    return found[-1] if found else None


def _version(path: Path) -> list[int]:
    return [int(number[:9]) for number in re.findall(r"[0-9]+", path.parent.name)]


def table_of(path: Path) -> pd.DataFrame:
    """Read a table; rows without a latency are left out. Raises ScenarioError for huge numbers."""
    table, _ = read_parquet(path)
    numbers = table.select_dtypes("number")
    if (numbers.abs() > NUMBER[1]).any(axis=None):
        raise ScenarioError(f"{path}: numbers must be <= {NUMBER[1]:g}")
    return table[table["latency"] > NUMBER[0]]


def columns(table: pd.DataFrame, *names: str) -> list[Array]:
    """Return columns as arrays of numbers."""
    return [table[name].to_numpy(dtype=float) for name in names]


def cold(rows: KernelRows) -> KernelRows:
    """Leave out times faster than memory allows: their data lay in the chip's cache."""
    return rows.only(rows.memory * rows.launches < rows.seconds)
