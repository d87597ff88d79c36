"""Figures of kernels that fit measured ones best, kind by kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from tools.kernels.kernel_rows import KernelRows

Array = NDArray[np.float64]

_MOST_ROWS = 5000  # of a kind: more change no figure by more than a percent
_FEWEST_ROWS = 20
_MILD = 0.1  # relative errors beyond this count less than their square
_AT_BOUND = 1e-3
_LOW_MFU = 0.12
_DEEP = 1.0  # thousands of keys one after the other, from which they count in a kernel

# where each figure begins, and its range, in the units of `Kernel`
_RANGES: Mapping[str, tuple[float, float, float]] = {
    "mfu": (0.6, 0.005, 1.0),
    "mbu": (0.8, 0.02, 0.95),  # no memory gives more
    "floor": (5e-6, 2e-6, 2e-4),
    "serial": (1e-6, 1e-9, 1e-4),
    "per_input": (3e-6, 1e-9, 1e-4),
    "padding": (30.0, 0.01, 500.0),
    "padding_from": (10.0, 0.01, 500.0),
    "per_pair": (100.0, 0.1, 5000.0),
}
# A search of towers begins at 100 keys of padding and may go further: fits reach 808 keys.
_OF_TOWERS = {**_RANGES, "padding": (100.0, 0.01, 5000.0)}


_ON_TOP = ("serial", "per_input", "padding", "padding_from", "per_pair")  # may be empty

# Their kernels choose tiles by the rows of a mean expert: Marlin's of 8 to 64 (`fused_marlin_moe`),
# Triton's of 16 to 128.
_TILES_BY_ROWS = ("experts_int4", "experts_mxfp4")


def figures_of(kind: str) -> tuple[str, ...]:
    """Return the figures that a kind of kernels has."""
    if kind in _TILES_BY_ROWS:
        return "floor", "mfu", "mbu", "padding", "padding_from", "per_input"
    if kind.startswith("experts_"):
        return "floor", "mfu", "mbu", "padding", "per_input"
    if kind == "tower_attention":
        return "floor", "mfu", "serial", "per_pair", "padding"
    if "prefill_attention" in kind:
        return ("floor", "mfu", "serial") + (() if kind.startswith("latent") else ("per_pair",))
    if kind == "latent_decode_attention":
        return "floor", "mfu", "mbu"
    if "attention" in kind or kind == "vector":
        return "floor", "mbu"
    if kind in ("bf16", "int4", "mxfp4"):
        return "floor", "mfu", "mbu"
    return "floor", "mfu", "mbu", "serial", "per_input"


@dataclass(frozen=True, slots=True)
class KernelFit:
    """Fitted figures of one kind, and how far rows are from them.

    num_rows: fitted. median, ninth: median and 90th percentile of the absolute relative errors of
    all rows. at_bound: figures at an end of their range, which these rows do not determine.
    """

    kind: str
    values: Mapping[str, float]
    num_rows: int
    median: float
    ninth: float
    at_bound: Sequence[str] = ()


def _starts(names: Sequence[str], start: Array) -> list[Array]:
    """Return where to begin: with a low share of the compute rate as well, for odd kernels."""
    if "mfu" not in names:
        return [start]
    low = start.copy()
    low[names.index("mfu")] = np.log(_LOW_MFU)
    return [start, low]


def fit_kernel(rows: KernelRows, leave_out: Iterable[str] = ()) -> KernelFit | None:
    """Fit the figures of a kind; None for too few rows.

    leave_out: shapes that are not looked at.
    """
    rows = rows.only(~np.isin(rows.shape, list(leave_out)))
    if len(rows) < _FEWEST_ROWS:
        return None
    if rows.kind == "decode_attention" and rows.depth.any():
        return _with_serial(rows)
    return _fitted(rows, figures_of(rows.kind), {})


def _with_serial(rows: KernelRows) -> KernelFit:
    """Fit attention of decodes that is not split along contexts: all else first, as without it."""
    alone = _fitted(replace(rows, depth=np.zeros_like(rows.depth)), figures_of(rows.kind), {})
    deep = rows.only(rows.depth >= _DEEP)
    serial = _fitted(deep, ("serial",), alone.values).values["serial"]
    return replace(alone, values={**alone.values, "serial": serial})


def _fitted(rows: KernelRows, names: Sequence[str], given: Mapping[str, float]) -> KernelFit:
    """Fit some figures. given: the remaining ones."""
    fitted = rows.only(slice(None, None, -(-len(rows) // _MOST_ROWS)))
    logs = np.log(fitted.seconds)
    ranges = _OF_TOWERS if rows.kind == "tower_attention" else _RANGES
    start, low, high = (np.log([ranges[name][place] for name in names]) for place in range(3))

    def residuals(values: Array) -> Array:
        figures = {**given, **dict(zip(names, np.exp(values).tolist(), strict=True))}
        return np.asarray(np.log(fitted.times(figures)) - logs)

    best = min(
        (
            least_squares(
                residuals, begin, bounds=(low, high), loss="soft_l1", f_scale=_MILD, max_nfev=60
            )
            for begin in _starts(names, start)
        ),
        key=lambda found: float(found.cost),
    )
    values = {
        name: float(f"{value:.3g}") for name, value in zip(names, np.exp(best.x), strict=True)
    }
    ends = np.minimum(best.x - low, high - best.x) < _AT_BOUND
    for name, end in zip(names, best.x - low < _AT_BOUND, strict=True):
        if end and name in _ON_TOP:
            values[name] = 0.0
    if values.get("padding") == 0:
        values.pop("padding_from", None)
    errors = np.abs(rows.times({**given, **values}) / rows.seconds - 1)
    return KernelFit(
        kind=rows.kind,
        values=values,
        num_rows=len(rows),
        median=float(np.median(errors)),
        ninth=float(np.quantile(errors, 0.9)),
        at_bound=tuple(
            name for name, end in zip(names, ends, strict=True) if end and values.get(name)
        ),
    )
