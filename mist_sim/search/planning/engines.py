"""The engines that can be bought: a GPU, and how many of them share every layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError, TraceError, first_problem
from mist_sim.hardware import load_gpu
from mist_sim.hardware.machine import Machine
from mist_sim.metrics.spending import dollars_an_hour
from mist_sim.scenario.startable import startable
from mist_sim.search.designs import Fleet, chunks_to_try
from mist_sim.search.planning.question import Question
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
    """

    gpu: str
    width: int
    built: Built

    @property
    def name(self) -> str:
        """Its name in tables."""
        return _label(self.gpu_name, self.built.scenario.clients[0].parameters())

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


def _label(gpu: str, sizes: Mapping[str, Any]) -> str:
    """Return an engine's name: its GPU, and by how many of them it is split."""
    told = [f" {short} {sizes[size]}" for size, short in _SPLITS.items() if sizes.get(size, 1) != 1]
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
    for name, gpu in names.items():
        for width in options.tensor_parallel_sizes:
            _add(shop, question, gpu, width, name)
    shop.engines.sort(key=lambda engine: (engine.dollars, engine.name))
    return shop


def _add(shop: Shop, question: Question, gpu: str, width: int, gpu_name: str) -> None:
    options = question.options
    name = _label(gpu_name, question.sizes(width))

    def leave_out(kind: str, reason: str) -> None:
        shop.others.append(LeftOut(name, gpu_name, kind, reason))

    link = load_gpu(gpu).interconnect
    room = link.domain or _SLOTS
    if width > room:
        leave_out("the node", f"the links of a node join {room} GPUs")
        return
    try:
        engine = Engine(gpu, width, Built(startable(question.having(gpu, width, 1))))
        num_gpus, dollars = engine.num_gpus, engine.dollars
    except TraceError:
        raise  # no other engine would read it
    except ScenarioError as error:
        text = first_problem(error)
        leave_out(_kind(text), text)
        return
    if num_gpus > options.max_gpus:
        leave_out("the budget", f"has {num_gpus} GPUs; max_gpus is {options.max_gpus}")
        return
    most = options.max_usd_per_hour
    if most is not None and dollars > most:
        told = f"costs {dollars:.4g} $/h; max_usd_per_hour is {most:g}"
        leave_out("the budget", told)
        return
    shop.engines.append(engine)


def _kind(problem: str) -> str:
    """Return the topic of an engine's problem, in one or two words."""
    for kind, marks in _KINDS.items():
        if any(mark in problem for mark in marks):
            return kind
    return "the scenario"
