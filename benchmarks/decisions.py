"""Do comparisons decide rightly? `python -m benchmarks.decisions settings`, `splits`, `coverage`.

settings: random deployments, none chosen by hand, are compared by goodput, and the winner is held
against long runs (`long_runs`): no other may serve 3 % more. splits: the same of `mist compare
--designs --goodput --why`, and what it says binds the winner: with a tenth more of it the winner
has to serve more than with a tenth more of any other resource. coverage: one deployment's goodput
with many seeds: does the interval hold the goodput of long runs? Where long runs contradict, four
times longer ones decide. Each prints a line of JSON when it is done; with `--out FILE` the lines go
to a file, and what is in it is not done again. `summary FILE...` counts them.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from benchmarks.long_runs import FINE, LONG, LONGER, TOLERANCE, LongRuns
from mist_sim.errors import ScenarioError
from mist_sim.rng import Streams
from mist_sim.scenario import Scenario, build
from mist_sim.search import (
    Binding,
    Comparison,
    GoodputOptions,
    compare,
    designs_of,
    find_goodput,
)

Row = dict[str, Any]
MARGIN = 0.03  # by which no other design may be better than one with a star
APART = 0.05  # by which the best two may differ where nothing is decided
LONGEST = 200_000  # requests of a run that tells the goodput of coverage
_LEAST_GAIN = 0.005  # fall of the quantile's logarithm of a resource that is judged
_LIMITS = 2**-20  # a rate so small that nothing waits, 1/s

GPUS = ("h100-sxm", "a100-80gb-sxm", "h200", "l40s", "b200")
MODELS = ("llama-3.1-8b", "qwen2.5-7b", "qwen3-14b", "mistral-7b-v0.3", "qwen3-30b-a3b")


def coverage(seed: int, truth: float) -> Row:
    """Return whether the interval of a goodput, found with a seed, holds the true one."""
    begun = process_time()
    found = find_goodput(Scenario.from_dict(chats() | {"seed": seed}), jobs=1)
    low, high = found.interval
    return {
        "goodput": found.rate,
        "interval": [low, high],
        "truth": truth,
        "covers": low <= truth <= high,
        "width": (high - low) / found.rate,
        "seconds": process_time() - begun,
    }


def chats() -> dict[str, Any]:
    """Return the deployment whose goodput is searched with many seeds."""
    return {
        "model": "llama-3.1-8b",
        "workload": {
            "lengths": {"type": "profile", "name": "azure-conv-2023", "num_requests": 400},
            "arrivals": {"type": "poisson", "rate": "15 /s"},
        },
        "clients": [{"name": "llm", "gpu": "h100-sxm"}],
        "slo": {"ttft": "500 ms", "tpot": "15 ms"},
    }


def setting(
    number: int, kinds: Collection[str] | None = None, most_gpus: int = 4
) -> tuple[str, Mapping[str, Scenario]]:
    """Return the scenarios of a random setting, and of what kind they are.

    kinds: from which that is drawn; None: all. most_gpus: of kind `split`.
    """
    rng = Streams(number).generator("setting")
    kind = str(rng.choice(list(kinds or KINDS)))
    prompt, answer = np.exp(rng.uniform(np.log([150, 50]), np.log([4000, 500])))
    spread = rng.uniform(0.2, 1.2, 2)
    cv = float(rng.choice([1.0, 1.0, 1.5, 2.0]))
    gamma = {"type": "gamma", "rate": "4 /s", "burstiness": cv**-2}
    base: dict[str, Any] = {
        "model": str(rng.choice(MODELS)),
        "workload": {
            "lengths": {
                "type": "synthetic",
                "num_requests": 400,
                "prompt": law(prompt, spread[0]),
                "output": law(answer, spread[1]),
            },
            "arrivals": {"type": "poisson", "rate": "4 /s"} if cv == 1 else gamma,
        },
        "router": str(rng.choice(["round_robin", "least_outstanding"])),
    }
    clients = KINDS[kind](rng)
    first = next(iter(clients.values()))
    if kind == "split":
        first[0]["count"] = min(first[0]["count"], most_gpus)
    lone = lone_times(base | {"clients": first})
    limits = rng.uniform(2, 12) * lone[0], rng.uniform(1.3, 4) * lone[1]
    base["slo"] = {"ttft": f"{limits[0]!r} s", "tpot": f"{limits[1]!r} s"}
    if kind == "split":
        return kind, designs_of(Scenario.from_dict(base | {"clients": first})).scenarios
    return kind, {
        name: Scenario.from_dict(base | {"clients": parts}) for name, parts in clients.items()
    }


def law(mean: float, spread: float) -> dict[str, Any]:
    """Return lengths around a mean. spread: standard deviation over mean."""
    return {"type": "lognormal", "mean": round(float(mean)), "std": round(float(mean * spread))}


def lone_times(data: dict[str, Any]) -> tuple[float, float]:
    """Return the median TTFT and TPOT, seconds, of requests that are alone."""
    changes = {"workload.arrivals.rate": f"{_LIMITS!r} /s", "workload.lengths.num_requests": 200}
    summary = build(Scenario.from_dict(data, changes)).run().summary
    return summary["p50_ttft_ms"] / 1e3, summary["p50_tpot_ms"] / 1e3


Clients = dict[str, list[dict[str, Any]]]


def _gpus(rng: np.random.Generator) -> Clients:
    names = rng.choice(GPUS, 3, replace=False)
    count = int(rng.integers(1, 4))
    return {str(name): [{"name": "llm", "count": count, "gpu": str(name)}] for name in names}


def _chunks(rng: np.random.Generator) -> Clients:
    shared = {"name": "llm", "count": int(rng.integers(1, 4)), "gpu": str(rng.choice(GPUS))}
    sizes = rng.choice([256, 512, 1024, 2048, 4096, 8192], 3, replace=False)
    return {
        f"chunk {size}": [shared | {"scheduler": {"max_num_batched_tokens": int(size)}}]
        for size in sizes
    }


def _layouts(rng: np.random.Generator) -> Clients:
    gpu = str(rng.choice([name for name in GPUS if name != "l40s"]))
    shared = {"name": "llm", "gpu": gpu}
    return {
        f"{4 // tp} x TP {tp}": [shared | {"count": 4 // tp, "tensor_parallel_size": tp}]
        for tp in (1, 2, 4)
    }


def _split(rng: np.random.Generator) -> Clients:
    gpu = str(rng.choice([name for name in GPUS if name != "l40s"]))
    return {"as it stands": [{"name": "llm", "count": int(rng.integers(2, 5)), "gpu": gpu}]}


KINDS: Mapping[str, Callable[[np.random.Generator], Clients]] = {
    "gpus": _gpus,
    "chunks": _chunks,
    "layouts": _layouts,
    "split": _split,
}


def decision(number: int, kinds: Collection[str]) -> Row | None:
    """Compare the designs of a random setting, and hold the winner against long runs.

    kinds: of settings that are compared; None for others.
    """
    begun = process_time()
    kind, scenarios = setting(number)
    if kind not in kinds:
        return None
    is_race = kind == "split"
    try:
        found = compare(scenarios, goodput=GoodputOptions(), race=is_race, jobs=1)
    except ScenarioError as error:
        return {"kind": kind, "error": str(error)}
    row = _decided(kind, found) | {"seconds": process_time() - begun}
    if rates := row["goodputs"]:
        row |= _against_long_runs(scenarios, rates, row["star"])
    return row | {"seconds with long runs": process_time() - begun}


def split(number: int, most_gpus: int) -> Row:
    """Ask whether to split in a random setting, and what binds; hold both against long runs."""
    begun = process_time()
    kind, scenarios = setting(number, ["split"], most_gpus)
    try:
        found = compare(scenarios, goodput=GoodputOptions(), race=True, why=True, jobs=1)
    except ScenarioError as error:
        return {"kind": kind, "error": str(error)}
    row = _decided(kind, found) | {"seconds": process_time() - begun}
    if rates := row["goodputs"]:
        row |= _against_long_runs(scenarios, rates, row["star"])
    for case in found.cases:
        if case.binding is not None:
            row |= _binding_by_long_runs(scenarios[case.name], rates[case.name], case.binding)
    return row | {"seconds with long runs": process_time() - begun}


def _binding_by_long_runs(scenario: Scenario, rate: float, binding: Binding) -> Row:
    """Return what is said to bind, and of what a tenth more serves more in long runs.

    The others are held against a rate that is attained with a tenth more of what binds. Only if one
    attains it, too, is that rate's goodput found.
    rate: the goodput that was found, 1/s.
    """
    row = {"binds": binding.resource, "rivals": binding.rivals, "told": dict(binding.more)}
    if binding.resource is None:
        return row
    asked = {name for name, gain in binding.gains.items() if gain > _LEAST_GAIN}
    ahead, guess = asked - {binding.resource}, rate * (1 + binding.more[binding.resource])
    for number in (LONG, LONGER):
        best = LongRuns(number, binding.resource)
        rate = best.attained_below(scenario, guess)
        ahead = {name for name in ahead if LongRuns(number, name).attains(scenario, rate)}
        if ahead:
            rate, missed = best.goodput(scenario, rate)
            ahead = {name for name in ahead if LongRuns(number, name).attains(scenario, missed)}
        if not ahead:
            break
    return row | {"attained with more": rate, "tried": sorted(asked), "more moves": sorted(ahead)}


def _decided(kind: str, found: Comparison) -> Row:
    """Return what a comparison says."""
    searched = {case.name: case.goodput for case in found.cases if case.goodput is not None}
    rates = {name: each.rate for name, each in searched.items() if each.status == "found"}
    return {
        "kind": kind,
        "goodputs": rates,
        "intervals": {name: list(searched[name].interval) for name in rates},
        "star": found.best["goodput"],
        "verdict": found.verdict,
    }


def _against_long_runs(
    scenarios: Mapping[str, Scenario], rates: Mapping[str, float], star: list[str]
) -> Row:
    """Return who is better than the star in long runs, or how far the best two are apart."""
    if star:
        found = {
            name: _better(
                scenarios[name],
                rates[name],
                {other: scenarios[other] for other in rates if other != name},
            )
            for name in star
        }
        return found[star[0]] | {
            "better": sorted({b for row in found.values() for b in row["better"]})
        }
    best = sorted(rates, key=lambda name: -rates[name])[:2]
    for runs, fine in ((LongRuns(), TOLERANCE), (LongRuns(), FINE), (LongRuns(LONGER), FINE)):
        found = {name: runs.goodput(scenarios[name], rates[name], fine) for name in best}
        apart = max(high for _, high in found.values()) / min(low for low, _ in found.values()) - 1
        if apart <= APART:
            break
    return {"reference": found, "apart at most": apart}


def _better(best: Scenario, rate: float, others: Mapping[str, Scenario]) -> Row:
    """Return who serves more than the winner by more than the margin, in long runs.

    The others are held against a rate that the winner attains, which is at most its goodput. Only
    if one of them attains more is that found, and with longer runs.
    """
    attained = LongRuns().attained_below(best, rate)
    better = LongRuns().attaining(others, attained * (1 + MARGIN))
    if better:
        runs = LongRuns(LONGER)
        attained, _ = runs.goodput(best, attained)
        rivals = {name: others[name] for name in better}
        better = runs.attaining(rivals, attained * (1 + MARGIN))
    return {"attained": attained, "better": better}


def rows(
    numbers: range, do: Callable[[int], Row | None], out: Path | None, done: set[int]
) -> Iterator[Row]:
    """Yield the row of each number that is not done; write it to a file at once."""
    for number in numbers:
        if number not in done and (found := do(number)) is not None:
            row = {"number": number} | found
            if out is not None:
                with out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
            yield row


def summary(found: list[Row]) -> Iterator[str]:
    """Yield lines that count what was found."""
    covered = [row["covers"] for row in found if "covers" in row]
    if covered:
        widths = [row["width"] for row in found if "covers" in row]
        yield f"{sum(covered)} of {len(covered)} intervals hold the goodput of long runs"
        yield f"widths: median {np.median(widths):.1%}, widest {max(widths):.1%}"
    settings = [row for row in found if "kind" in row]
    if settings:
        starred = [row for row in settings if row.get("star")]
        wrong = [row["number"] for row in starred if row["better"]]
        apart = {
            row["number"]: round(row["apart at most"], 3)
            for row in settings
            if row.get("apart at most", 0.0) > APART
        }
        yield f"{len(settings)} settings: {dict(Counter(row['kind'] for row in settings))}"
        yield f"a star in {len(starred)}; another {MARGIN:.0%} better in {len(wrong)}: {wrong}"
        yield f"undecided though more than {APART:.0%} apart: {apart}"
        yield f"no rate attained: {[r['number'] for r in settings if not r.get('goodputs')]}"
        yield from _of_binding([row for row in settings if "more moves" in row])
        seconds = [row["seconds"] for row in settings if "seconds" in row]
        yield f"seconds of a core a comparison: median {np.median(seconds):.0f}"


def _of_binding(found: list[Row]) -> Iterator[str]:
    """Yield how often what is said to bind moves goodput most; nothing where nobody asked."""
    if found:
        right = [row["number"] for row in found if not row["more moves"]]
        rival = [
            row["number"]
            for row in found
            if row["more moves"] and set(row["more moves"]) <= set(row["rivals"])
        ]
        yield f"what binds moves goodput most in {len(right)} of {len(found)}: {right}"
        yield f"what moves it more is named beside it in {len(rival)}: {rival}"


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["settings", "splits", "coverage", "summary"])
    parser.add_argument("files", nargs="*", type=Path, help="of summary")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--kinds", default=",".join(KINDS), help="of settings")
    parser.add_argument("--gpus", type=int, default=4, help="of a split at most (2)")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.what == "summary":
        print(*summary([row for file in options.files for row in _read(file)]), sep="\n")
        return
    known = _read(options.out) if options.out else []
    do: Callable[[int], Row | None] = partial(decision, kinds=options.kinds.split(","))
    if options.what == "splits":
        do = partial(split, most_gpus=options.gpus)
    elif options.what == "coverage":
        truth = sum(LongRuns(LONGEST).goodput(Scenario.from_dict(chats()), 13.5)) / 2
        do = partial(coverage, truth=truth)
    numbers = range(options.first, options.first + options.count)
    for row in rows(numbers, do, options.out, {row["number"] for row in known}):
        print(json.dumps(row), flush=True)
    print(*summary(_read(options.out) if options.out else []), sep="\n")


def _read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main()
