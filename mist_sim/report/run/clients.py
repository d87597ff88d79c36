"""The table of clients: equal ones are one row, from the lowest of them to the highest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from numpy import nan, nan_to_num
from rich.console import Group, RenderableType
from rich.text import Text

from mist_sim.metrics.run_warnings import LEAST_AT_LIMIT
from mist_sim.metrics.tables.tabular import column
from mist_sim.report.elements.cells import count, number, percent, who
from mist_sim.report.elements.widths import listed

if TYPE_CHECKING:
    from mist_sim.metrics import Result
    from mist_sim.metrics.clients.room import Room

_MAX_ROWS = 12
_TITLES = ("", "visits", "room", "decodes", "KV use", "step times")
_BELOW = ("", "", "of time", "a step", "peak", "")

Client = dict[str, Any]
"""The cells of a row of `Result.clients`."""
_SHOWN = ("client", "num_visits", "room", "mean_decodes", "kv_use", "num_steps")


def clients_table(result: Result) -> RenderableType:
    """Return a row a group of equal clients, and which limits their steps reach."""
    estimates = result.summary["estimates"]
    groups: dict[str, list[Client]] = {}
    names = result.client_groups or result.client_names
    table: dict[str, Any] = result.columns("clients")
    blocks = zip(table["peak_used_blocks"].tolist(), table["num_gpu_blocks"].tolist(), strict=True)
    table["kv_use"] = column(peak / most if most else nan for peak, most in blocks)
    columns = {key: table[key].tolist() for key in _SHOWN}
    for name, row in zip(names, zip(*columns.values(), strict=True), strict=True):
        groups.setdefault(name, []).append(dict(zip(columns, row, strict=True)))
    seats = _seats(result, names)
    rows = [list(_row(name, each, estimates, seats.get(name))) for name, each in groups.items()]
    if len(rows) > _MAX_ROWS:
        rest = len(rows) - _MAX_ROWS
        rows[_MAX_ROWS:] = [[f"and {rest} more", *[""] * (len(_TITLES) - 1)]]
    shown = listed(_TITLES, rows, right=range(1, 5), below=_BELOW)
    below = *_capacities(result, names), *_at_limits(names, result.rooms)
    return Group(shown, *(Text(line, style="dim") for line in below))


def _capacities(result: Result, names: Sequence[str]) -> Iterator[str]:
    """Yield how much each group of clients can keep, a line for clients that can keep the same."""
    sizes = result.block_tokens or [0] * len(names)
    stored = result.kv_entries or [""] * len(names)
    told: dict[tuple[str, str], dict[str, None]] = {}
    every = zip(names, result.num_gpu_blocks, sizes, stored, strict=True)
    for name, blocks, tokens, entries in every:
        if blocks:
            held = f" of {tokens} tokens, {count(blocks * tokens)} tokens" if tokens else ""
            how = f", {entries}" if entries else ""
            told.setdefault((how, f"{count(blocks)} blocks{held}"), {})[name] = None
    for (how, room), mine in list(told.items())[:_MAX_ROWS]:
        yield f"KV cache of {who(list(mine))}{how}: {room}"


def _at_limits(names: Sequence[str], rooms: Sequence[Room]) -> Iterator[str]:
    """Yield a line for each group of clients whose steps reach a limit for some time."""
    groups: dict[str, list[Room]] = {}
    for name, room in zip(names, rooms, strict=True):
        groups.setdefault(name, []).append(room)
    for name, found in list(groups.items())[:_MAX_ROWS]:
        least = min(found, key=lambda room: nan_to_num(room.room, nan=1.0))
        if 1 - least.room >= LEAST_AT_LIMIT:
            share = percent(1 - least.room)
            yield f"no room in {share} of the time at {name}, mostly for {least.limit}"


def _seats(result: Result, names: Sequence[str]) -> dict[str, int]:
    """Return the most requests of a step of an engine (`max_num_seqs`), where it is known."""
    limits = zip(names, result.step_limits, strict=False)
    return {name: max(each.sequences) for name, each in limits if each is not None}


def _row(
    name: str, clients: list[Client], estimates: dict[str, str], seats: int | None
) -> Iterator[str]:
    yield f"{len(clients)} x {name}" if len(clients) > 1 else name
    yield _range((c["num_visits"] for c in clients), count)
    yield _range((c["room"] for c in clients), percent)
    for values, shown in (
        ((c["mean_decodes"] for c in clients), number),
        ((c["kv_use"] for c in clients), percent),
    ):
        told = _range(values, shown) if any(c["num_steps"] for c in clients) else "-"
        yield f"{told} of {count(seats)}" if shown is number and seats and told != "-" else told
    yield ", ".join(dict.fromkeys(estimates.get(c["client"], "-") for c in clients))


def _range(values: Iterable[float], shown: Callable[[Any], str]) -> str:
    """Return the lowest and the highest value; one where they look alike."""
    found = [value for value in values if value == value]
    if not found:
        return "-"
    low, high = shown(min(found)), shown(max(found))
    if low == high:
        return high
    return f"{low.removesuffix(' %')}–{high}"
