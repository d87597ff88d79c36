"""Engines that compute prompts in one layout of their GPUs and answers in another (Seesaw)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any

from mist_sim.errors import ScenarioError
from mist_sim.hardware import GpuSpec, load_gpu
from mist_sim.hardware.resharding import device_of
from mist_sim.models import load_model
from mist_sim.scenario import Scenario
from mist_sim.scenario.loading import as_data
from mist_sim.search.designs.design_fleet import Client, Fleet, Group
from mist_sim.search.designs.lengths import lengths_of
from mist_sim.search.designs.proposal import Proposal
from mist_sim.search.designs.pure import without_sides
from mist_sim.search.resharding import Lengths, PairOptions, PairTimes, rank_pairs

NUM_PAIRS = 2
"""Pairs of layouts to simulate, of all that fit: those that appendix A of Seesaw likes best, as in
the comparison with its figure 10."""


def can_re_shard(fleet: Fleet) -> bool:
    """Tell whether some engine has GPUs enough for two layouts."""
    return any(_gpus_of_a_copy(group) > 1 for group in fleet.groups)


def resharded(fleet: Fleet, num_pairs: int = NUM_PAIRS) -> Iterator[Proposal]:
    """Yield the engines without roles, each with the best pairs of layouts on its GPUs.

    Pairs are ranked by equation 1 of Seesaw for the mean lengths of the workload; pairs that do not
    fit in memory are left out. Engines with one GPU stay unchanged. Raises ScenarioError if no
    engine has two layouts, and for models outside equation 1.
    """
    if not can_re_shard(fleet):
        raise ScenarioError(
            "takes an engine of two GPUs at least, got 1; raise clients."
            f"{fleet.groups[0].position}.tensor_parallel_size"
        )
    prompt, answer = lengths_of(fleet.scenario).mean(axis=0)
    lengths = Lengths(max(float(prompt), 1.0), max(float(answer), 1.0))
    ranked = [_pairs(fleet, group, lengths)[:num_pairs] for group in fleet.groups]
    for several in zip_longest(*ranked):
        chosen = [
            pair if pair is not None else pairs[-1] if pairs else None
            for pair, pairs in zip(several, ranked, strict=True)
        ]
        names = dict.fromkeys(_name(each) for each in chosen if each is not None)
        yield Proposal("re-shard " + " + ".join(names), partial(_with_pairs, fleet, chosen))


def with_best_pair(fleet: Fleet) -> Scenario:
    """Return the engines with the pair of layouts ranked first by equation 1.

    Raises ScenarioError without such a pair.
    """
    return next(resharded(fleet, 1)).make()


def _name(pair: PairTimes) -> str:
    return f"{pair.prefill_layout.label} to {pair.decode_layout.label}"


def _pairs(fleet: Fleet, group: Group, lengths: Lengths) -> Sequence[PairTimes]:
    """Return an engine's pairs of different layouts, the best first; empty for one GPU."""
    if _gpus_of_a_copy(group) == 1:
        return ()
    said = group.said
    if said["quantization"] is not None:
        raise ScenarioError(
            f"clients.{group.position}.quantization must be left out, since equation 1 of Seesaw "
            f"is of weights in 16 bits, got {said['quantization']}"
        )
    choices = rank_pairs(
        load_model(str(said["model"] or fleet.scenario.model)),
        device_of(
            _gpu(said), gpu_memory_utilization=float(said["kv_cache"]["gpu_memory_utilization"])
        ),
        group.num_gpus,
        lengths,
        PairOptions(
            data_parallel_sizes=(int(said["data_parallel_size"]),),
            max_num_seqs=int(said["scheduler"]["max_num_seqs"]),
        ),
    )
    found = [pair for pair in choices.pairs if not pair.is_static]
    if not found:
        stays = choices.best.label
        raise ScenarioError(f"takes two layouts that fit, but of {choices.title} only {stays} does")
    return found


def _gpus_of_a_copy(group: Group) -> int:
    return group.num_gpus // int(group.said["data_parallel_size"])


def _gpu(said: Mapping[str, Any]) -> GpuSpec:
    """Return the GPU of an engine, with the sums over links that its options say."""
    gpu = load_gpu(said["gpu"])
    if said["all_reduce"] is None:
        return gpu
    return replace(gpu, interconnect=replace(gpu.interconnect, all_reduce=said["all_reduce"]))


def _with_pairs(fleet: Fleet, pairs: Sequence[PairTimes | None]) -> Scenario:
    """Return the engines without sides, each with its pair; None: it stays in its layout."""
    chosen = dict(zip((group.position for group in fleet.groups), pairs, strict=True))
    data = as_data(without_sides(fleet, None))
    clients = [
        client if (pair := chosen.get(position)) is None else _re_sharding(client, pair)
        for position, client in enumerate(data["clients"])
    ]
    return fleet.having(clients, hand_over=data["hand_over"], network=data["network"])


def _re_sharding(client: Client, pair: PairTimes) -> Client:
    """Return an engine with a pair of layouts, without options not simulated with them."""
    before, after = pair.prefill_layout, pair.decode_layout
    seats = {"max_num_seqs": client["scheduler"]["max_num_seqs"]}
    return client | {
        "tensor_parallel_size": after.tensor,
        "pipeline_parallel_size": after.pipeline,
        "all_reduce": client["all_reduce"] if after.tensor > 1 else None,
        "async_scheduling": False,
        "virtual_engines": False,  # a pipeline of a layout that changes has them anyway
        "step_loop": "auto",
        "scheduler": {"type": "continuous", **seats},
        "kv_cache": client["kv_cache"] | {"enable_prefix_caching": False},
        "resharding": {
            "tensor_parallel_size": before.tensor,
            "pipeline_parallel_size": before.pipeline,
        },
    }
