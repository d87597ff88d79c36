"""Which rules give MIST's search spaces of 552, 612 and 378, and what do they cost to run?

    python sizes.py

Section V-A has the sizes, footnotes 2 and 13 have the cost by brute force.

The paper names what is varied, not how. This tries every combination of the rules below: each fixes
how many layouts of engines that do both (A), and how many of prompts and answers apart (D), each
model has. Any number a of batchings for the first and d for the second is then allowed, as long as
it is the same for the three models: a A + d D has to be the paper's number for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import NamedTuple

from designs import SKUS, Design, Engine, Prices

from mist_sim import load_gpu, load_model

PAPER = {"qwen3-4b": 552, "qwen3-14b": 612, "qwen3-32b": 378}
P95_TOKENS = {"qwen3-4b": 59_497, "qwen3-14b": 17_454, "qwen3-32b": 83_920}  # of Table III
GPUS, SHARE = 8, 0.9  # of a GPU's memory that an engine takes
MOST_BATCHINGS = 24
QUERIES = {"qwen3-4b": 47_000, "qwen3-14b": 114_000, "qwen3-32b": 465_000}  # of Table III
RATE = 8.0  # requests a second
PAPER_DOLLARS, PAPER_CONFIGURATIONS = 51_000, 3_500  # section I
A100S = ("a100-80gb-sxm", "a100-40gb-sxm")


class Rules(NamedTuple):
    """One way to enumerate.

    tensor, pipeline: sizes. divides: pipelines divide the layers. fills: how many engines that do
    both: those that fill all GPUs, any number, or powers of two. splits: those for prompts and for
    answers: all that fill the GPUs, any that they hold, powers of two of each, or as many of both.
    memory: what an engine has to hold. a100: its kind. pairs: kinds of GPUs apart. layouts: of
    prompts and answers. apart_pipeline: whether these have pipelines.
    """

    tensor: tuple[int, ...]
    pipeline: tuple[int, ...]
    divides: bool
    fills: str
    splits: str
    memory: str
    a100: str
    pairs: str
    layouts: str
    apart_pipeline: bool


CHOICES: dict[str, tuple[object, ...]] = {
    "tensor": ((1, 2, 4, 8), (1, 2, 4)),
    "pipeline": ((1,), (1, 2), (1, 2, 4), (1, 2, 4, 8)),
    "divides": (True, False),
    "fills": ("all", "any", "powers"),
    "splits": ("all", "any", "powers", "even"),
    "memory": ("nothing", "weights", "weights and a prompt", "weights in half"),
    "a100": A100S,
    "pairs": ("equal", "any", "unequal"),
    "layouts": ("equal", "any"),
    "apart_pipeline": (True, False),
}


@cache
def memory_of(gpu: str) -> float:
    return SHARE * load_gpu(gpu).memory


@cache
def needs(model: str, rule: str) -> float:
    """Return bytes that an engine has to hold."""
    found = load_model(model)
    weights = float(found.num_parameters * found.dtype_bytes)
    return {
        "nothing": 0.0,
        "weights": weights,
        "weights in half": 2.0 * weights,  # as much again for KV entries
        "weights and a prompt": weights + P95_TOKENS[model] * found.kv_bytes_per_token,
    }[rule]


@cache
def engines(
    model: str,
    gpu: str,
    tensor: tuple[int, ...],
    pipeline: tuple[int, ...],
    divides: bool,
    memory: str,
) -> tuple[int, ...]:
    """Return the GPUs of each layout of an engine that can be."""
    layers = load_model(model).num_layers
    return tuple(
        tp * pp
        for tp, pp in product(tensor, pipeline)
        if tp * pp <= GPUS
        and not (divides and layers % pp)
        and needs(model, memory) <= tp * pp * memory_of(gpu)
    )


@cache
def numbers(size: int, fills: str) -> int:
    """Return how many numbers of engines of so many GPUs there are."""
    most = GPUS // size
    return {"all": 1, "any": most, "powers": most.bit_length()}[fills]


@cache
def splits(one: int, other: int, rule: str) -> int:
    """Return how many numbers of engines for prompts and for answers there are."""
    counts = [
        (p, d)
        for p, d in product(range(1, GPUS + 1), repeat=2)
        if (p * one + d * other == GPUS if rule in ("all", "even") else p * one + d * other <= GPUS)
    ]
    if rule == "powers":
        counts = [pair for pair in counts if all(n.bit_count() == 1 for n in pair)]
    if rule == "even":
        counts = [(p, d) for p, d in counts if p == d]
    return len(counts)


def layouts(model: str, rules: Rules) -> tuple[int, int]:
    """Return A and D of a model."""
    gpus = ("h100-sxm", rules.a100, "l40s")
    own = {
        gpu: engines(model, gpu, rules.tensor, rules.pipeline, rules.divides, rules.memory)
        for gpu in gpus
    }
    pipeline = rules.pipeline if rules.apart_pipeline else (1,)
    apart = {
        gpu: engines(model, gpu, rules.tensor, pipeline, rules.divides, rules.memory)
        for gpu in gpus
    }
    both = sum(numbers(size, rules.fills) for sizes in own.values() for size in sizes)
    pairs = [
        pair
        for pair in product(gpus, repeat=2)
        if rules.pairs == "any" or (pair[0] == pair[1]) == (rules.pairs == "equal")
    ]
    two = sum(
        splits(one, other, rules.splits)
        for a, b in pairs
        for one, other in product(apart[a], apart[b])
        if rules.layouts == "any" or one == other
    )
    return both, two


def all_rules() -> Iterator[Rules]:
    for values in product(*CHOICES.values()):
        yield Rules(*values)  # type: ignore[arg-type]


def batchings(found: dict[str, tuple[int, int]], models: tuple[str, ...]) -> list[tuple[int, int]]:
    """Return the numbers of batchings with which layouts give the paper's sizes."""
    return [
        (a, d)
        for a, d in product(range(1, MOST_BATCHINGS + 1), range(MOST_BATCHINGS + 1))
        if all(a * found[model][0] + d * found[model][1] == PAPER[model] for model in models)
    ]


def brute_force() -> None:
    """Print what footnote 13's sum, of configurations times their dollars, comes to."""
    prices = Prices()
    hourly = [Design((GPUS, Engine(sku, 1))).dollars(prices) for sku in SKUS]
    mean = sum(hourly) / len(hourly)
    each = PAPER_DOLLARS / PAPER_CONFIGURATIONS
    print(
        f"\nEight GPUs cost {', '.join(f'{one:.2f}' for one in hourly)} $/h, {mean:.2f} on average"
    )
    print(f"section I: {each:.2f} $ a configuration, which buys {60 * each / mean:.0f} minutes")
    for model, number in PAPER.items():
        hours = QUERIES[model] / RATE / 3600
        told = f"{number} x {hours:.2f} h x {mean:.2f} $/h = {number * hours * mean:,.0f} $"
        print(f"{model}, all {QUERIES[model]:,} queries at {RATE:g} /s: {told}")


def main() -> None:
    distinct: dict[tuple[tuple[int, int], ...], Rules] = {}
    number = 0
    for rules in all_rules():
        number += 1
        distinct.setdefault(tuple(layouts(model, rules) for model in PAPER), rules)
    print(f"{number:,} sets of rules, {len(distinct):,} of them different; a to {MOST_BATCHINGS}")
    for models in ((*PAPER,), *((m, n) for m, n in product(PAPER, PAPER) if m < n)):
        hits = []
        for counts, rules in distinct.items():
            found = dict(zip(PAPER, counts, strict=True))
            hits += [(rules, found, pair) for pair in batchings(found, models)]
        sizes = ", ".join(f"{PAPER[model]}" for model in models)
        print(f"\n{sizes}: {len(hits)} ways")
        for rules, found, (a, d) in hits[:4]:
            print(f"  a = {a}, d = {d}; (A, D) = {list(found.values())}")
            print(f"    {rules._asdict()}")
    brute_force()


if __name__ == "__main__":
    main()
