"""Dollars and joules of strategies: prices of their GPUs, and full runs at their goodputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import nan

from mist_sim.bestserve.engines import Template
from mist_sim.bestserve.strategy import Strategy
from mist_sim.bestserve.strategy_result import Entry
from mist_sim.errors import ScenarioError
from mist_sim.metrics import CostOptions
from mist_sim.metrics.spending.cost import dollars_an_hour
from mist_sim.search.at_goodput import at_goodput
from mist_sim.studies.built import Built
from mist_sim.studies.driver import Driver


def priced(
    entries: Iterable[Entry], template: Template, longest: int, *, is_needed: bool
) -> Iterator[Entry]:
    """Yield entries with the dollars of their GPUs an hour.

    longest: tokens of the longest prompt. is_needed: raise ScenarioError for a GPU without a price.
    """
    cost = template.scenario.cost
    options = cost.make() if cost else CostOptions()
    known: dict[Strategy, float] = {}
    for entry in entries:
        if entry.left_out:
            yield entry
            continue
        one = replace(entry.strategy.one_of_each, together=1, prefill=0, decode=0)
        if one not in known:
            clients = Built(template.full(one, longest)).simulation.clients
            try:
                known[one] = dollars_an_hour([clients[0].traits.machine], options)
            except ScenarioError:
                if is_needed:
                    raise
                known[one] = nan
        yield replace(entry, usd_per_hour=known[one] * entry.strategy.num_instances)


def powered(
    entries: Sequence[Entry], template: Template, longest: int, driver: Driver
) -> list[Entry]:
    """Return entries with the joules of a request, of a full run at each one's goodput.

    longest: tokens of the longest prompt. An entry without goodput has none, nor one whose run
        failed. Raises what a run raises if all of them fail.
    """
    tasks = [
        at_goodput((k, "at goodput"), Built(template.full(entry.strategy, longest)), entry.goodput)
        for k, entry in enumerate(entries)
        if entry.goodput is not None and entry.rate > 0
    ]
    rows = driver.run(tasks, keep_errors=True)
    found = {row.key[0]: row.result for row in rows if row.failure is None}
    if rows and not found:
        raise rows[0].error or ScenarioError(str(rows[0].failure))
    return [
        replace(entry, joules=1 / found[k]["requests_per_joule"])
        if found.get(k, {}).get("requests_per_joule")
        else entry
        for k, entry in enumerate(entries)
    ]
