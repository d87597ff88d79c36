"""What can be bought: engines (a GPU, and how many of them share every layer), and all their ways.

A candidate is a way to set a number of engines: their design, chunks and router.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError, TraceError, first_problem
from mist_sim.hardware import load_gpu
from mist_sim.hardware.machine import Machine
from mist_sim.metrics.spending import HOURS_A_MONTH, dollars_an_hour
from mist_sim.scenario import Scenario
from mist_sim.scenario.loading import as_data
from mist_sim.scenario.startable import startable
from mist_sim.search.designs import (
    DESIGNS,
    USUAL,
    Fleet,
    chunks_to_try,
    hybrid,
    in_two,
    ratios_to_try,
    with_best_bundle,
    with_best_pair,
    without_sides,
)
from mist_sim.search.planning.question import LEAST_OUTSTANDING, Question, Settings
from mist_sim.studies.built import Built

_SLOTS = 8  # GPUs per node if these are linked by PCIe
_SPLITS = {
    "tensor_parallel_size": "TP",
    "pipeline_parallel_size": "PP",
    "data_parallel_size": "DP",
}
_KINDS = {
    "memory": ("does not fit", "KV cache"),
    "the price": ("gpu_price",),
    "the model's sizes": (*_SPLITS, "must divide"),
}


@dataclass(frozen=True, eq=False)
class Engine:
    """An engine that can be bought, as it stands alone.

    gpu: as it was asked for. width: its tensor parallel size. built: a scenario with one of it.
    settings: of the options that vary.
    """

    gpu: str
    width: int
    built: Built
    settings: Settings = ()

    @property
    def name(self) -> str:
        """Its name in tables."""
        own = self.built.scenario.clients[0].parameters()
        return _label(self.gpu_name, own, self.settings)

    @cached_property
    def gpu_name(self) -> str:
        """The name of its GPU."""
        return load_gpu(self.gpu).name

    @cached_property
    def client(self) -> Any:
        """The engine (a client of type llm), which never runs."""
        return self.built.simulation.clients[0]

    @cached_property
    def machine(self) -> Machine:
        """Its GPUs, and the model that lies on them. Raises ScenarioError for one without."""
        found = self.client.traits.machine
        if not isinstance(found, Machine):
            raise ScenarioError("clients.0 must have GPUs that are known, for a plan")
        return found

    @cached_property
    def num_gpus(self) -> int:
        """GPUs of it."""
        return self.built.num_gpus or 1

    @cached_property
    def dollars(self) -> float:
        """Dollars of it an hour. Raises ScenarioError for a GPU without a price."""
        cost = self.built.scenario.cost
        if cost is None:
            raise ScenarioError("cost must be set for a plan, got null")
        return dollars_an_hour([self.machine], cost.make())

    @cached_property
    def fleet(self) -> Fleet:
        """Its scenario, as designs take it."""
        return Fleet(self.built.scenario)

    @cached_property
    def chunks(self) -> tuple[int, ...]:
        """Chunks to try, its own first; empty if prompts are not cut."""
        own = self.fleet.chunks
        return chunks_to_try(own) if own else ()

    @cached_property
    def kv_tokens(self) -> int:
        """Tokens that its KV cache holds."""
        entries = self.client.traits.entries
        size = entries.block_size if entries else None
        return int(self.client.num_gpu_blocks * (size or 1))

    def step_time(self, batch: StepBatch) -> float:
        """Return the seconds of a step through all its ranks."""
        return float(sum(rank.step_time(batch) for rank in self.client.predictor.ranks))


def _label(gpu: str, sizes: Mapping[str, Any], settings: Settings = ()) -> str:
    """Return an engine's name: its GPU, by how many of them it is split, and what varies."""
    told = [f" {short} {sizes[size]}" for size, short in _SPLITS.items() if sizes.get(size, 1) != 1]
    told += [f" {key.split('.')[-1]}={value}" for key, value in settings if key not in _SPLITS]
    return gpu + "".join(told)


class LeftOut(NamedTuple):
    """An engine that cannot be bought, and why. kind: one or two words for the reason."""

    name: str
    gpu: str
    kind: str
    reason: str


@dataclass
class Shop:
    """The engines of a question, and those that cannot be bought."""

    engines: list[Engine] = field(default_factory=list)
    others: list[LeftOut] = field(default_factory=list)

    @property
    def left_out(self) -> dict[str, str]:
        """The reasons against engines, by their name."""
        return {each.name: each.reason for each in self.others}

    @property
    def lost(self) -> dict[str, str]:
        """The first reason against each GPU of which no engine can be bought."""
        bought = {engine.gpu_name for engine in self.engines}
        found: dict[str, str] = {}
        for each in self.others:
            if each.gpu not in bought:
                found.setdefault(each.gpu, each.reason)
        return found


def engines_of(question: Question) -> Shop:
    """Return the engines that a model can be served by, the cheapest first.

    A GPU without a price is left out. Raises ScenarioError for one that is not known, and
    TraceError for a trace that cannot be read.
    """
    options, shop = question.options, Shop()
    names: Mapping[str, str] = {load_gpu(gpu).name: gpu for gpu in options.gpus}
    if len(names) < len(options.gpus):
        raise ScenarioError(f"gpus must differ, got {', '.join(options.gpus)}")
    ways = names.items(), options.tensor_parallel_sizes, list(question.settings)
    for (name, gpu), width, settings in product(*ways):
        found = _offer(question, gpu, width, settings)
        if isinstance(found, Engine):
            shop.engines.append(found)
        else:
            label = _label(name, question.sizes(width, settings), settings)
            shop.others.append(LeftOut(label, name, *found))
    shop.engines.sort(key=lambda engine: (engine.dollars, engine.name))
    return shop


def _offer(
    question: Question, gpu: str, width: int, settings: Settings
) -> Engine | tuple[str, str]:
    """Return an engine; for one that cannot be bought, the kind of the reason, and the reason."""
    options = question.options
    room = load_gpu(gpu).interconnect.domain or _SLOTS
    if width > room:
        return "the node", f"the links of a node join {room} GPUs"
    try:
        alone = question.having(gpu, width, 1, settings=settings)
        engine = Engine(gpu, width, Built(startable(alone)), settings)
        num_gpus, dollars = engine.num_gpus, engine.dollars
    except TraceError:
        raise  # no other engine would read it
    except ScenarioError as error:
        text = first_problem(error)
        return _kind(text), text
    if num_gpus > options.max_gpus:
        return "the budget", f"has {num_gpus} GPUs; max_gpus is {options.max_gpus}"
    most = options.max_usd_per_hour
    if most is not None and dollars > most:
        return "the budget", f"costs {dollars:.4g} $/h; max_usd_per_hour is {most:g}"
    return engine


def _kind(problem: str) -> str:
    """Return the topic of an engine's problem, in one or two words."""
    for kind, marks in _KINDS.items():
        if any(mark in problem for mark in marks):
            return kind
    return "the scenario"


_PREFILL_CHUNKS = 2  # to try: smaller ones cost as many runs and seldom more than a little
_ALL_RATIOS = 16  # engines up to which every ratio is tried; of more, every sixteenth of them


@dataclass(frozen=True)
class Candidate:
    """One way to use a number of engines.

    engine: the engine type. design: one of `DESIGNS`. first: engines that take prompts, or all if
        they do both. second: engines that only or mainly decode. chunks: tokens per step, of the
        first and of the second; empty to keep them. router: None: the scenario's own.
    """

    engine: Engine
    design: str
    first: int
    second: int = 0
    chunks: tuple[int, ...] = ()
    router: str | None = None

    @property
    def num_engines(self) -> int:
        """Engines in all."""
        return self.first + self.second

    @property
    def num_gpus(self) -> int:
        """GPUs in all."""
        return self.num_engines * self.engine.num_gpus

    @property
    def dollars(self) -> float:
        """Dollars an hour in all."""
        return self.num_engines * self.engine.dollars

    @property
    def price(self) -> float:
        """Dollars an hour, without the rounding errors of a sum, to compare."""
        return round(self.dollars, 9)

    @property
    def priced(self) -> str:
        """Its dollars an hour and a month, in words."""
        return f"{self.dollars:.4g} $/h, {HOURS_A_MONTH * self.dollars:,.0f} $ a month"

    @property
    def offer(self) -> str:
        """Its GPUs, where its engines have several each, and its dollars, in words."""
        return f"{self.num_gpus} GPUs, {self.priced}" if self.engine.num_gpus > 1 else self.priced

    @property
    def family(self) -> tuple[object, ...]:
        """All but the counts: equal for candidates that differ in their counts only."""
        engine = self.engine
        settings = repr(engine.settings)  # values may be lists
        return engine.gpu, engine.width, settings, self.design, self.chunks, self.router

    @property
    def setting(self) -> str:
        """Settings of its engines, in words."""
        if self.design == "together":
            told = "together" + "".join(f" {chunk}" for chunk in self.chunks)
        elif self.design == "apart":
            chunk = f" x {self.chunks[0]}" if self.has_smaller_chunk else ""
            told = f"{self.first} prefill{chunk} + {self.second} decode"
        elif self.design == "hybrid":
            large, small = self.chunks
            told = f"hybrid {self.first} x {large} + {self.second} x {small}"
        elif self.design == "reshard":
            told = "re-sharding"
        else:
            told = f"{self.first} prefill + a bundle"
        return told if self.router in (None, LEAST_OUTSTANDING) else f"{told}, {self.router}"

    @property
    def keeps_chunk(self) -> bool:
        """Whether its engines, or those for prompts, take as much in a step as they do unasked."""
        return not self.chunks or self.chunks[0] == self.engine.chunks[0]

    @property
    def has_smaller_chunk(self) -> bool:
        """Whether its engines for prompts take less in a step than the most that is tried."""
        is_cut = self.design == "apart" and bool(self.chunks)
        return is_cut and self.chunks[0] < prefill_chunks(self.engine.chunks)[0]

    @property
    def name(self) -> str:
        """Its design and size, in words."""
        return f"{self.num_engines} x {self.engine.name}, {self.setting}"

    @property
    def rank(self) -> tuple[float, int, int, str]:
        """Key to order those that attain: dollars, then simplicity."""
        return self.price, DESIGNS.index(self.design), self.num_gpus, self.name

    @property
    def without_one(self) -> dict[str, Candidate | None]:
        """The candidate without one engine, by kind of engine; None: no engine is left."""
        first, second = self.first, self.second
        fewer = replace(self, first=first - 1) if first > 1 else None
        if not second:
            return {"one less": fewer}
        names = {"apart": ("prefill", "decode"), "hybrid": ("P-heavy", "D-heavy")}
        sides = names.get(self.design)
        if sides is None:
            return {}
        other = replace(self, second=second - 1) if second > 1 else None
        return {f"one {sides[0]} less": fewer, f"one {sides[1]} less": other}

    def with_one(self, metric: str) -> Candidate | None:
        """Return the candidate with one engine more, for a latency; None: its design has no such.

        metric: such as "ttft", which an engine for prompts shortens where they are apart.
        """
        if self.design not in ("together", "apart", "hybrid"):
            return None
        if not self.second or metric == "ttft":
            return replace(self, first=self.first + 1)
        return replace(self, second=self.second + 1)

    def covers(self, other: Candidate) -> bool:
        """Whether it has at least as much of everything as another one of its family."""
        return (
            self.design != "afd"
            and self.family == other.family
            and self.first >= other.first
            and self.second >= other.second
        )


def candidates(engines: Iterable[Engine], question: Question) -> Iterator[Candidate]:
    """Yield all that the budget allows."""
    options = question.options
    for engine in engines:
        most = options.max_gpus // engine.num_gpus
        if options.max_usd_per_hour is not None:
            most = min(most, int(options.max_usd_per_hour / engine.dollars + 1e-9))
        for number in range(1, most + 1):
            yield from _of_fleet(engine, number, question)


def _of_fleet(engine: Engine, number: int, question: Question) -> Iterator[Candidate]:
    options, target = question.options, question.target
    routers: Sequence[str | None] = question.routers if number > 1 else question.routers[:1]
    chunks = engine.chunks
    for router in routers:
        if "together" in options.designs:
            for chunk in _each(chunks):
                yield Candidate(engine, "together", number, 0, chunk, router)
        if "apart" in options.designs:
            pairs: list[tuple[int, ...]] = [
                (each, chunks[0]) for each in prefill_chunks(chunks)
            ] or [()]
            for first, pair in product(_ratios(number), pairs):
                yield Candidate(engine, "apart", first, number - first, pair, router)
        if "reshard" in options.designs and engine.num_gpus > 1:
            yield Candidate(engine, "reshard", number, router=router)
    has_both = target.slo.ttft is not None and target.slo.tpot is not None
    if "hybrid" in options.designs and number > 1 and len(chunks) > 1 and has_both:
        small, *larger = sorted(chunks)
        for first in ratios_to_try(number):
            for large in larger:
                yield Candidate(engine, "hybrid", first, number - first, (large, small))
    if "afd" in options.designs and number > 1 and engine.machine.model.moe is not None:
        for first in ratios_to_try(number):
            yield Candidate(engine, "afd", first, number - first, (), routers[0])


def prefill_chunks(chunks: Sequence[int]) -> list[int]:
    """Return the chunks of engines that only compute prompts, the largest first.

    chunks: those to try where engines do both; empty: prompts are not cut. No decode waits for a
    large chunk there, but prompts computed in one step get their first token together, so that the
    next smaller chunk may let most of them have it earlier.
    """
    return sorted({*chunks, *USUAL}, reverse=True)[:_PREFILL_CHUNKS] if chunks else []


def _each(chunks: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the chunks one by one; empty if prompts are not cut."""
    found: list[tuple[int, ...]] = [(each,) for each in chunks]
    return found or [()]


def _ratios(number: int) -> list[int]:
    """Return how many of some engines take prompts, for each ratio to try."""
    if number <= _ALL_RATIOS:
        return list(range(1, number))
    steps = {round(number * k / _ALL_RATIOS) for k in range(1, _ALL_RATIOS)}
    return sorted(steps - {0, number})


def scenario_of(candidate: Candidate, question: Question, rate: float | None = None) -> Scenario:
    """Return the scenario of a candidate, at a rate (requests per second).

    rate: None: the required rate.
    Raises ScenarioError for an impossible design.
    """
    engine = candidate.engine
    number, router = candidate.num_engines, candidate.router
    base = question.having(engine.gpu, engine.width, number, router, engine.settings)
    found = _designed(candidate, Fleet(base))
    if question.network is not None and found.network is not None:
        found = Scenario.from_dict(as_data(found), {"network": question.network})
    return question.at_rate(found, rate)


def _designed(candidate: Candidate, fleet: Fleet) -> Scenario:
    if candidate.design == "together":
        own = fleet.chunks
        chunk = candidate.chunks[0] if candidate.chunks else None
        return without_sides(fleet, None if own and chunk == own[0] else chunk)
    if candidate.design == "apart":
        return in_two(fleet, candidate.first, *candidate.chunks[:1])
    if candidate.design == "hybrid":
        return hybrid(fleet, candidate.first, *candidate.chunks)
    if candidate.design == "afd":
        return with_best_bundle(fleet, candidate.first)
    if candidate.design == "reshard":
        return with_best_pair(fleet)
    raise ScenarioError(f"no design is named {candidate.design}")
