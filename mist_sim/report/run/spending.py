"""Energy and cost: a section of the tables of a run that asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from mist_sim.report.elements.cells import number, percent, section
from mist_sim.report.elements.pairs import pairs

if TYPE_CHECKING:
    from mist_sim.metrics import Result

_KILO = 1e3


def spending_section(result: Result) -> Iterator[RenderableType]:
    """Yield energy and cost where a scenario says something of either."""
    summary = result.summary
    if result.asks_for_spending and ("energy_j" in summary or "cost_usd" in summary):
        yield from section("Energy and cost", pairs(_rows(summary)))


def _rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    if "energy_j" in summary:
        yield from _joules(summary)
    if "cost_usd" in summary:
        yield from _dollars(summary)


def _joules(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    idle = summary["idle_energy_j"] / summary["energy_j"] if summary["energy_j"] else 0.0
    remark = f"kJ, {percent(idle)} idle; GPU power {_origins(summary['power_estimates'])}"
    yield "energy", number(summary["energy_j"] / _KILO), remark
    yield "average power", number(summary["average_power_w"]), "W"
    yield "energy per output token", number(summary["energy_per_output_token_j"]), "J"
    if "good_tokens_per_j" in summary:
        yield "good output tokens", number(summary["good_tokens_per_j"]), "per J"


def _dollars(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    yield "cost", f"{summary['cost_usd']:.3g}", f"$; GPUs at {_origins(summary['prices'])}"
    if "electricity_cost_usd" in summary:
        yield "of it electricity", f"{summary['electricity_cost_usd']:.3g}", "$"
    million = "cost_per_million_output_tokens_usd"
    yield "a million output tokens", number(summary[million]), "$"
    if "good_tokens_per_usd" in summary:
        yield "good output tokens", number(summary["good_tokens_per_usd"]), "per $"
    if f"api_{million}" in summary:
        yield "the same from an API", number(summary[f"api_{million}"]), "$ a million"


def _origins(names: Mapping[str, str]) -> str:
    return "; ".join(dict.fromkeys(names.values()))
