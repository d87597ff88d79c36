"""One of MIST's three studies (section V-A): which eight GPUs, and how, for a use case.

    python study.py summarization|reasoning|code [--out DIR] [--jobs N]

Every design is run once at 8 requests a second (Fig. 10). Then a race finds the design with the
most tokens for a dollar at the highest rate that it keeps in a long run, of all designs, and of
what vLLM's auto-tune tries on each kind of GPU (Fig. 11).
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from designs import (
    APART,
    GPUS,
    SHORT,
    SKUS,
    Batching,
    Design,
    Engine,
    Prices,
    apart,
    together,
    tuned,
)
from figures import draw, table
from measuring import Measured, Question, measure_all
from race import AHEAD, LENGTHS, Race, attempt

from mist_sim.errors import MistError
from mist_sim.report.pictures.style import can_draw

HERE = Path(__file__).parent
STUDIES = {
    "summarization": Question(
        HERE / "summarization.yaml",
        p50="2 s",
        whole=163_840,
        paper=Design((6, Engine("a100-80gb-sxm", 1)), (2, Engine("l40s", 1)), APART),
        fastest=Design((3, Engine("h100-sxm", 1)), (5, Engine("h100-sxm", 1)), APART),
    ),
    "reasoning": Question(
        HERE / "reasoning.yaml",
        p50="50 ms",
        whole=8_192,
        paper=Design((1, Engine("h100-sxm", 1)), (7, Engine("l40s", 1)), APART),
        fastest=Design((GPUS, Engine("h100-sxm", 1)), batching=Batching("chunked", 2048)),
    ),
    "code": Question(
        HERE / "code.yaml",
        p50="0.75 s",
        whole=16_384,
        paper=Design((4, Engine("l40s", 2)), batching=Batching("mixed")),
    ),
}
REFERENCE = Design((GPUS, Engine("a100-80gb-sxm", 1)), batching=Batching("chunked", 2048))
"""Throughputs are shares of this one's (Fig. 10)."""


def main() -> int:
    asked = arguments()
    try:
        study(STUDIES[asked.study], asked)
    except MistError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--out", type=Path, help="folder for tables and the plot")
    parser.add_argument("--jobs", type=count, help="processes; one a core without it")
    parser.add_argument("--prices", type=Path, default=HERE / "aws_prices.csv")
    parser.add_argument("--whole", action="store_true", help="price machines of eight GPUs alone")
    parser.add_argument(
        "--requests", type=count, help="of a run at 8 /s; the scenario's without it"
    )
    parser.add_argument("--long", type=count, default=LENGTHS[-1], help="of the runs that decide")
    parser.add_argument("--every", type=count, default=1, help="take every n-th design alone")
    return parser.parse_args()


def count(text: str) -> int:
    """Return a whole number that is at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number >= 1, got {text[:40]!r}")
    return int(text)


def study(question: Question, asked: argparse.Namespace) -> None:
    began = time.perf_counter()
    prices = Prices(asked.prices, whole=asked.whole)
    question = question.loaded(prices, asked.requests)
    tuned_by_sku = {sku: tuned(sku, question.least_tp(sku)) for sku in SKUS}
    own = list(dict.fromkeys([*together(), *apart()]))[:: asked.every]
    tried = [design for grid in tuned_by_sku.values() for design in grid]
    designs = list(dict.fromkeys([*own, REFERENCE, question.paper, *tried]))
    bounds, left_out = question.valid(designs)
    print(f"{question.title}\nprices of AWS, on demand, {', '.join(prices.dates)}")
    print(f"{len(designs)} designs of {GPUS} GPUs, {len(bounds)} of them valid")
    for reason, number in left_out.most_common(3):
        print(f"  {number} left out: {reason}")
    too_slow = sum(bound < question.rate for bound in bounds.values())
    print(f"  {too_slow} cannot be stable at {question.rate:g} /s: proved before any run")

    measured = measure_all(question, bounds, asked.jobs)
    at_rate(question, measured)
    found = raced(question, measured, bounds, tuned_by_sku, asked)
    at_goodput(found, ["the paper's", *(f"auto-tune {SHORT[sku]}" for sku in SKUS)])
    spent = costs(question, measured, tuned_by_sku)
    processors = sum(os.times()[:4])
    print(f"\ntook {time.perf_counter() - began:.0f} s, {processors:.0f} s of processor time")
    if asked.out is not None:
        save(asked.out / question.path.stem, question, measured, found, spent)


def raced(
    question: Question,
    measured: list[Measured],
    bounds: Mapping[Design, float],
    tuned_by_sku: dict[str, list[Design]],
    asked: argparse.Namespace,
) -> dict[str, Measured]:
    """Return the best of all designs, the paper's, and the best of each grid of auto-tune."""
    order = sorted(measured, key=lambda each: -each.tokens_per_dollar)
    lengths = (*(number for number in LENGTHS if number < asked.long), asked.long)
    race = Race(
        question.mean_answer,
        {each.design: each.dollars for each in order},
        {each.design: each.throughput / question.mean_answer for each in order},
        bounds,
        partial(attempt, question, lengths),
    )
    grids = {f"auto-tune {SHORT[sku]}": set(grid) for sku, grid in tuned_by_sku.items()}
    grids = {"the paper's": {question.paper}} | grids
    some = [[each.design for each in order if each.design in grid] for grid in grids.values()]
    with ProcessPoolExecutor(asked.jobs) as pool:
        heats = list(pool.map(race.best, some))
        known = [each for each in heats if each is not None]
        best = max(known, key=lambda each: each.tokens_per_dollar, default=None)
        print(f"\n{len(order)} designs are tried against {len(known)} baselines", flush=True)
        whole = replace(race, run_all=pool.map, tell=lead)
        winner = whole.best([each.design for each in order], best)
    found = {"winner": winner} | dict(zip(grids, heats, strict=True))
    return {name: each for name, each in found.items() if each is not None}


def lead(each: Measured) -> None:
    print(f"  ahead: {each.design.name}, {each.tokens_per_dollar:,.0f} tokens/$", flush=True)


def at_rate(question: Question, measured: list[Measured]) -> None:
    """Print the best designs at the printed rate, and whether any keeps the limits."""
    keep = [each for each in measured if each.keeps(question)]
    print(f"\nAt {question.rate:g} /s: {len(keep)} keep the limits and are not unstable", end="; ")
    print(f"{sum('unstable' in each.stability for each in measured)} are unstable")
    if keep:
        order = sorted(keep, key=lambda each: -each.tokens_per_dollar)
    else:
        print("Nobody keeps them: ranked by attainment, then by tokens for a dollar.")
        order = sorted(measured, key=lambda e: (-round(e.attainment, 2), -e.tokens_per_dollar))
    fastest = max(measured, key=lambda each: each.throughput)
    named = [REFERENCE, question.paper, question.fastest, fastest.design]
    shown = order[:5] + [each for each in measured if each.design in named]
    reference = next(each for each in measured if each.design == REFERENCE).throughput
    print(table(
        ["design", "$/h", "over A100", "tokens/$", "busy", "TTFT p50", "p90", "attained", ""],
        [
            [
                each.design.name, f"{each.dollars:.2f}", f"{each.throughput / reference:.2f}",
                f"{each.tokens_per_dollar:,.0f}", f"{each.utilisation:.0%}", f"{each.p50:.2f} s",
                f"{each.p90:.2f} s", f"{each.attainment:.1%}",
                "" if each.stability == "stable" else each.stability,
            ]
            for each in dict.fromkeys(shown)
        ],
    ))  # fmt: skip


def at_goodput(found: dict[str, Measured], baselines: list[str]) -> None:
    """Print what each serves at the highest rate that it keeps."""
    if not found:
        print("\nNo design keeps the limits at any rate that was tried")
        return
    print(
        f"\nAt the highest rate that keeps the limits, in a long run; no other design gives "
        f"{AHEAD - 1:.0%} more"
    )
    best = found["winner"].tokens_per_dollar
    titles = [
        "",
        "design",
        "/s",
        "$/h",
        "tokens/$",
        "winner is",
        "saves",
        "busy",
        "TTFT p50",
        "p90",
    ]
    print(table(
        [*titles, ""],
        [
            [
                name, each.design.name, f"{each.rate:.3g}", f"{each.dollars:.2f}",
                f"{each.tokens_per_dollar:,.0f}",
                f"{best / each.tokens_per_dollar:.2f} x",
                f"{1 - each.tokens_per_dollar / best:.0%}",
                f"{each.utilisation:.0%}", f"{each.p50:.3f} s", f"{each.p90:.3f} s",
                "" if each.stability == "stable" else each.stability,
            ]
            for name, each in found.items()
        ],
    ))  # fmt: skip
    for name in baselines:
        if name not in found:
            print(f"  {name}: no rate that was tried keeps the limits")


def costs(
    question: Question, measured: list[Measured], tuned_by_sku: dict[str, list[Design]]
) -> dict[str, float]:
    """Print and return what it would cost to run designs on GPUs (Fig. 11, footnote 13)."""
    dollars = {each.design: each.benchmark_dollars for each in measured}
    grid = [design for designs in tuned_by_sku.values() for design in designs if design in dollars]
    spent = {
        f"all {len(dollars)} designs": sum(dollars.values()),
        f"auto-tune's {len(grid)}": sum(dollars[design] for design in grid),
    }
    print(f"\nOn GPUs, {question.num_requests:,} requests of each design and 5 min to start:")
    print("  " + ", ".join(f"{name} {value:,.0f} $" for name, value in spent.items()))
    return spent


def save(
    folder: Path,
    question: Question,
    measured: list[Measured],
    found: dict[str, Measured],
    spent: dict[str, float],
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("at_8_per_s.csv", measured), ("at_goodput.csv", list(found.values()))):
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0].row()))
            writer.writeheader()
            writer.writerows(each.row() for each in rows)
    if can_draw():
        draw(folder / "study.png", question, measured, found, REFERENCE, spent)
    hint = "" if can_draw() else "; pip install 'mist-sim[plot]' draws them"
    print(f"tables are in {folder}{hint}")


if __name__ == "__main__":
    sys.exit(main())
