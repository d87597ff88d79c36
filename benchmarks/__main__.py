"""Measure speed and memory, and print them beside their budgets: `python -m benchmarks`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Measurement, measure
from benchmarks.predictors import step_times
from benchmarks.transfers import transfers
from benchmarks.workloads import (
    AZURE,
    PRESSED,
    SHORT,
    apart,
    azure,
    flowing,
    lognormal,
    long_prompt,
    long_prompt_in_windows,
    longer_answers,
    prefixes,
)

Row = tuple[str, str, str]


def _cost(found: Measurement) -> str:
    return (
        f"{found.t_per_request:.0f} T, {1e6 / found.requests_per_s:.1f} us a request, "
        f"{found.requests_per_s:,.0f} requests/s "
        f"(T = {found.t_s * 1e6:.2f} us)"
    )


def _ratio(found: Measurement, base: Measurement) -> str:
    ours, other = found.t_per_request, base.t_per_request
    return f"{ours / other:.2f} x ({other:.0f} -> {ours:.0f} T)"


def _cell(found: Measurement) -> str:
    return (
        f"{found.t_per_request:.0f} T, {found.rss_bytes / 2**20:,.0f} MiB\n"
        f"{found.requests_per_s:,.0f}/s, bare {found.bare_requests_per_s:,.0f}/s"
    )


def _import_time(*command: str) -> float:
    """Wall seconds of a fresh process, the best of five."""
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        best = min(best, time.perf_counter() - start)
    return best


def rows(quick: bool) -> Iterator[Row]:
    """Yield (work, budget, measured), as they are measured."""
    ahead = measure(azure(async_scheduling=True), 3)
    source = "trace" if AZURE.exists() else "shipped profile"
    what = f"Azure conversations ({source}), 4 clients, steps planned ahead, the default"
    yield (what, "<= 60 T", _cost(ahead))

    base = measure(azure(), 3)
    yield ("the same with no step planned ahead", "no budget", _ratio(base, ahead))

    drafts = {"method": "ngram", "num_speculative_tokens": 4, "acceptance_rate": 0.7}
    drafted = measure(azure(speculative_config=drafts), 3)
    yield ("the same with 4 drafts a step", "no budget", _ratio(drafted, base))

    yield "prefill and decode apart, 4 + 4 clients", "<= 250 T", _cost(measure(apart(), 3))
    yield "TaiChi, 4 + 4 clients, answers flow", "<= 300 T", _cost(measure(flowing(), 3))

    four = measure(lognormal(num_requests=20_000, num_clients=4))
    eight = measure(lognormal(num_requests=20_000, num_clients=4, output_factor=8))
    yield "answers x 8 at an eighth of the rate", "no budget", _ratio(eight, four)

    one, pieces = measure(long_prompt(16_384)), measure(long_prompt(128))
    yield (
        "a prompt of 16,384 tokens in chunks of 128",
        "<= 2 x the cost in one chunk",
        _ratio(pieces, one),
    )

    one, pieces = (measure(long_prompt_in_windows(chunk)) for chunk in (16_384, 128))
    yield (
        "the same with sliding windows, each prompt with content",
        "<= 2 x the cost in one chunk",
        _ratio(pieces, one),
    )

    wide = measure(lognormal(num_requests=20_000, num_clients=128))
    yield (
        "128 clients, load-aware router",
        "<= 2 x the cost a request of 4 clients",
        _ratio(wide, four),
    )

    yield from step_times()
    yield from transfers()

    yield ("import mist_sim", "<= 0.6 s", f"{_import_time('-c', 'import mist_sim'):.2f} s")
    yield ("mist --help", "<= 0.3 s", f"{_import_time('-m', 'mist_sim', '--help'):.2f} s")


STRATEGIES = ("static", "continuous", "chunked", "mixed")
NUM_CLIENTS = (1, 4, 16, 128)
CELL = "T a request, memory\nrequests/s"
BARE = (
    "bare: SimPy with nothing but a timeout for each arrival and for the end of each run of steps"
)


def strategies(quick: bool) -> Table:
    """Time the Azure conversations under every batching strategy and number of clients."""
    table = Table(
        CELL,
        *(f"{count} clients" for count in NUM_CLIENTS),
        title="Batching strategies; budget <= 120 T with 4 clients",
        caption=BARE,
    )
    for strategy in STRATEGIES:
        found = (
            measure(azure(num_clients=count, scheduler=strategy), 1 if quick else 3)
            for count in NUM_CLIENTS
        )
        table.add_row(strategy, *map(_cell, found))
    return table


def growth(quick: bool) -> Table:
    """Time every strategy with answers eight times as long, and with ten times the requests."""
    large = 100_000 if quick else 1_000_000
    table = Table(
        CELL,
        "Azure, 4 clients, answers x 8",
        f"{large // 10:,} requests, 16 clients",
        f"{large:,} requests, 16 clients",
        title="Longer answers, budget <= 1.3 x; more requests, budget: linear, <= 1.5 GiB",
        caption=BARE,
    )
    for strategy in STRATEGIES:
        longer = "no trace"
        if AZURE.exists():
            with tempfile.TemporaryDirectory() as folder:
                trace = longer_answers(Path(folder), 8)
                runs = (azure(scheduler=strategy), azure(trace, scheduler=strategy))
                short, long = (measure(run, 1 if quick else 3) for run in runs)
            longer = f"{_cell(long)}\n{_ratio(long, short)}"
        small, many = (
            measure(lognormal(num_requests=number, num_clients=16, scheduler=strategy), 1)
            for number in (large // 10, large)
        )
        table.add_row(strategy, longer, _cell(small), f"{_cell(many)}\n{_ratio(many, small)}")
    return table


def memory(quick: bool) -> Table:
    """Time 4 clients under every strategy when memory is short, and when prompts share blocks."""
    table = Table(
        "T a request",
        "KV pool of 900 blocks",
        "shared prefixes",
        title="The same with 4 clients and less memory, or a shared cache; budget <= 150 T",
    )
    for strategy in STRATEGIES:
        runs = (azure(scheduler=strategy, kv_cache=SHORT), prefixes(strategy))
        costs = (measure(run, 1 if quick else 3).t_per_request for run in runs)
        table.add_row(strategy, *(f"{cost:.0f} T" for cost in costs))
    return table


def pressure(quick: bool) -> Table:
    """Time 4 clients that preempt more often than requests finish."""
    title = "Answers x 8, 1,500 blocks for every batch; budget <= 150 T, but for pipelines"
    table = Table("clients", "T a request", "preemptions a request", title=title)
    with tempfile.TemporaryDirectory() as folder:
        trace = longer_answers(Path(folder), 8)
        for name, options in PRESSED.items():
            found = measure(azure(trace, **options), 1 if quick else 3)
            often = found.num_preemptions / found.num_requests
            table.add_row(name, f"{found.t_per_request:.0f} T", f"{often:.2f}")
    return table


ROUTERS: tuple[str | dict[str, str], ...] = (
    "random",
    "round_robin",
    "least_outstanding",
    "power_of_two",
    {"type": "load", "by": "input_length"},
    {"type": "load", "by": "kv_cache"},
    {"type": "heavy_light", "by": "input_length"},
    "session_affinity",
    "prefix_affinity",
)
MANY_CLIENTS = (4, 64, 512, 2048)


def many_clients(quick: bool) -> Table:
    """Time every router with more and more clients, each under the same load."""
    number = 20_000 if quick else 100_000
    table = Table(
        "T a request",
        *(f"{count:,} clients" for count in MANY_CLIENTS),
        "most / fewest",
        title=f"Routers, {number:,} requests; budget <= 2 x from 4 to 2,048 clients",
        caption="with content: prompts begin with one of 12 texts for each client",
    )
    for router in ROUTERS:
        found = [
            measure(lognormal(num_requests=number, num_clients=count, router=router), 1)
            for count in MANY_CLIENTS
        ]
        table.add_row(str(router), *_costs(found))
    for counts_sent in (True, False):
        polls = {"view_interval": "100 ms", "counts_sent": counts_sent}
        found = [
            measure(lognormal(num_requests=number, num_clients=count) | polls, 1)
            for count in MANY_CLIENTS
        ]
        sent = "with" if counts_sent else "without"
        table.add_row(f"least_outstanding, polls, {sent} what was sent", *_costs(found))
    found = [
        measure(
            prefixes(
                "chunked",
                num_requests=number,
                num_clients=count,
                num_prefixes=12 * count,
                router="prefix_affinity",
            ),
            1,
        )
        for count in MANY_CLIENTS
    ]
    table.add_row("prefix_affinity, with content", *_costs(found))
    return table


def _costs(found: list[Measurement]) -> list[str]:
    each = [f"{one.t_per_request:.0f} T" for one in found]
    return [*each, f"{found[-1].t_per_request / found[0].t_per_request:.2f} x"]


def budgets(quick: bool) -> Table:
    """Measure the budgets one by one; each is printed when it is there."""
    console = Console(width=WIDTH)
    table = Table("work", "budget", "measured", title="Budgets; T = CPU time of a SimPy timeout")
    for row in rows(quick):
        console.print(*row, sep="  |  ", style="dim")
        table.add_row(*row)
    return table


TABLES = {
    "strategies": strategies,
    "growth": growth,
    "memory": memory,
    "pressure": pressure,
    "routers": many_clients,
    "budgets": budgets,
}
WIDTH = 140


def _table(name: str) -> str:
    if name not in TABLES:
        raise ArgumentTypeError(f"no table {name!r}; choose from {', '.join(TABLES)}")
    return name


def parsed(words: Sequence[str] | None = None) -> Namespace:
    """Return what the command line says. words: those of the process when None."""
    parser = ArgumentParser(
        prog="python -m benchmarks",
        description="Measure speed and memory, and print them beside their budgets. T is the CPU "
        "time of one SimPy timeout on this machine.",
    )
    parser.add_argument(
        "tables",
        nargs="*",
        metavar="TABLE",
        type=_table,
        help=f"what to measure: {', '.join(TABLES)}; all without it",
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer repetitions, and 100,000 requests at most"
    )
    return parser.parse_args(words)


def main() -> None:
    """Print the tables named on the command line, or all."""
    said = parsed()
    console = Console(width=WIDTH)
    for name in said.tables or TABLES:
        if name == "pressure" and not AZURE.exists():
            console.print(f"pressure: skipped, since there is no {AZURE}")
        else:
            console.print(TABLES[name](said.quick))


if __name__ == "__main__":
    main()
