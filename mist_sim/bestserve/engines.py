"""Strategies of a scenario: its one engine in other numbers and layouts, as scenarios.

BestServe's simulators use the step times of the scenario's engine, and the memory check of every
scenario.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from mist_sim.bestserve.drawn_requests import Requests
from mist_sim.bestserve.oracle import Oracle, Times
from mist_sim.bestserve.strategy import Strategy
from mist_sim.core.result_warnings import ResultWarning
from mist_sim.errors import ScenarioError
from mist_sim.scenario import Scenario
from mist_sim.scenario.loading import as_data
from mist_sim.scenario.startable import startable
from mist_sim.studies.built import Built

_NO_HAND_OVER = {"bandwidth": "1e18 B/s", "latency": "0 s"}
"""BestServe's prompts reach the decode instances at once; the widest link that a scenario has."""


@dataclass(frozen=True)
class Template:
    """A scenario with one client entry, an engine, from which strategies are made.

    Raises ScenarioError for a scenario with other clients, or clients that fail, start or draft.
    """

    scenario: Scenario

    def __post_init__(self) -> None:
        clients = as_data(self.scenario)["clients"]
        if len(clients) != 1 or clients[0].get("type", "llm") != "llm":
            kinds = ", ".join(str(client.get("type", "llm")) for client in clients)
            raise ScenarioError(
                "clients must be one entry of type llm, which the strategies multiply, got "
                f"{len(clients)} ({kinds})"
            )
        for name, usual in (("role", None), ("data_parallel_size", 1)):
            if (value := clients[0].get(name, usual)) != usual:
                raise ScenarioError(
                    f"clients.0.{name} must be left out, since the strategies set the number and "
                    f"the roles of instances; got {value}"
                )
        if clients[0].get("speculative_config"):
            raise ScenarioError(
                "clients.0.speculative_config must be left out: BestServe's simulators have a "
                "token a step"
            )
        for name in ("lifecycle", "reconfigure"):
            if getattr(self.scenario, name) is not None:
                raise ScenarioError(
                    f"{name} must be left out: BestServe's instances are always up and stay alike"
                )

    @property
    def layout(self) -> tuple[int, int]:
        """Tensor and pipeline parallel size as the scenario has them."""
        client = as_data(self.scenario)["clients"][0]
        return client["tensor_parallel_size"], client["pipeline_parallel_size"]

    def full(self, strategy: Strategy, longest: int) -> Scenario:
        """Return the scenario that a strategy is in the full simulation.

        Instances are engines with the continuous scheduler, which computes prompts first and alone,
        as BestServe's do. Apart, KV entries arrive at once, unless the scenario has a network.

        longest: tokens of the longest prompt.
        Raises ScenarioError for an engine that cannot be.
        """
        data = as_data(self.scenario)
        first = data["clients"][0]
        first |= {
            "tensor_parallel_size": strategy.tensor_parallel_size,
            "pipeline_parallel_size": strategy.pipeline_parallel_size,
        }
        if strategy.gpu is not None:
            first["gpu"] = strategy.gpu
        if strategy.pipeline_parallel_size > 1 and first["async_scheduling"]:
            del first["async_scheduling"]  # not with whole prompts, and not set by the user
        prompts = strategy.prefill_batch * longest
        if strategy.is_apart:
            data["clients"] = [
                _engines(first, "prefill", strategy.prefill, strategy.prefill_batch, prompts),
                _engines(first, "decode", strategy.decode, strategy.decode_batch, prompts),
            ]
            data["network"] = data["network"] or _NO_HAND_OVER
        else:
            engines = _engines(first, None, strategy.together, strategy.decode_batch, prompts)
            data["clients"] = [engines]
        return startable(Scenario.from_dict(data))


@dataclass(frozen=True)
class Engines:
    """The instances of a strategy.

    times: step times of prompts, and of answers. blocks: of KV cache of an instance of each kind
    (the same one twice where they are together), and tokens in a block. warnings: what results of
    their runs warn of.
    """

    times: tuple[Times, Times]
    blocks: tuple[int, int]
    block_size: int
    warnings: tuple[ResultWarning, ...]

    @classmethod
    def of(cls, template: Template, strategy: Strategy, longest: int) -> Engines:
        """Return the engines of a strategy. Raises ScenarioError if the model does not fit."""
        built = Built(template.full(strategy.one_of_each, longest))
        clients: Sequence[Any] = built.simulation.clients  # of type llm, as the template requires
        first, last = clients[0], clients[-1]
        return cls(
            (Oracle(first.predictor), Oracle(last.predictor)),
            (first.num_gpu_blocks, last.num_gpu_blocks),
            first.config.kv_cache.block_size,
            built.warnings,
        )

    def lacks_room(self, strategy: Strategy, requests: Requests) -> str | None:
        """Return why batches do not fit in the KV cache; None: they do.

        BestServe itself does not look (its section 5). A batch is of requests of mean length, and
        the longest one has to fit as well. Instances that do both hold the answers in their boxes
        beside the prompts that they compute.
        """
        prompt = float(requests.prompt.mean())
        total = prompt + float(requests.output.mean())
        prompts, answers = strategy.prefill_batch * prompt, strategy.decode_batch * total
        if strategy.is_apart:
            asked = [(prompts, "prefill", 0), (answers, "decode", 1)]
        else:
            asked = [(prompts + answers, "instance", 0)]
        for tokens, who, which in asked:
            needed = max(tokens, float((requests.prompt + requests.output).max()))
            room = self.blocks[which] * self.block_size
            if needed > room:
                return (
                    f"KV cache: {who} needs {ceil(needed):,} tokens, and {room:,} fit; lower its "
                    "batch or use more GPUs an instance"
                )
        return None


def _engines(
    first: dict[str, Any], role: str | None, count: int, most: int, prompts: int
) -> dict[str, Any]:
    """Return a client entry. most: requests at a time. prompts: tokens of a batch of prompts."""
    scheduler = {
        "type": "continuous",
        "max_num_seqs": most,
        "max_num_batched_tokens": prompts,
        "order": "fcfs",
    }
    more = {"name": role or first["name"], "role": role, "count": count, "scheduler": scheduler}
    return {**first, **more, "place": None}
