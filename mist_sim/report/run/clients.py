"""The table of clients: equal ones are one row, from the lowest of them to the highest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mist_sim.report.elements.cells import count, number, percent
from mist_sim.report.elements.layout import Fitting, listed

if TYPE_CHECKING:
    from mist_sim.metrics import Result

_MAX_ROWS = 12
_TITLES = ("", "visits", "busy", "decodes", "KV blocks", "step times")
_BELOW = ("", "", "share", "a step", "peak", "")

Client = dict[str, Any]
"""The cells of a row of `Result.clients`."""
_SHOWN = ("client", "num_visits", "busy", "mean_decodes", "peak_used_blocks", "num_steps")


def clients_table(result: Result, seconds: float) -> Fitting:
    """Return a row a group of equal clients. seconds: how long the run took."""
    estimates = result.summary["estimates"]
    groups: dict[str, list[Client]] = {}
    names = result.client_groups or result.client_names
    table: dict[str, Any] = result.columns("clients")
    columns = {key: table[key].tolist() for key in _SHOWN}
    for name, row in zip(names, zip(*columns.values(), strict=True), strict=True):
        groups.setdefault(name, []).append(dict(zip(columns, row, strict=True)))
    rows = [list(_row(name, clients, estimates, seconds)) for name, clients in groups.items()]
    if len(rows) > _MAX_ROWS:
        rest = len(rows) - _MAX_ROWS
        rows[_MAX_ROWS:] = [[f"and {rest} more", *[""] * (len(_TITLES) - 1)]]
    return listed(_TITLES, rows, right=range(1, 5), below=_BELOW)


def _row(
    name: str, clients: list[Client], estimates: dict[str, str], seconds: float
) -> Iterator[str]:
    yield f"{len(clients)} x {name}" if len(clients) > 1 else name
    yield _range((c["num_visits"] for c in clients), count)
    for values, shown in (
        ((c["busy"] / seconds for c in clients), percent),
        ((c["mean_decodes"] for c in clients), number),
        ((c["peak_used_blocks"] for c in clients), count),
    ):
        yield _range(values, shown) if any(c["num_steps"] for c in clients) else "-"
    yield ", ".join(dict.fromkeys(estimates.get(c["client"], "-") for c in clients))


def _range(values: Iterable[float], shown: Callable[[Any], str]) -> str:
    """Return the lowest and the highest value; one where they look alike."""
    found = list(values)
    low, high = shown(min(found)), shown(max(found))
    if low == high:
        return high
    return f"{low.removesuffix(' %')}–{high}"
