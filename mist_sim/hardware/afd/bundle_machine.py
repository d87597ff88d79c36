"""The GPUs of a bundle: a group of attention workers and a group of FFN workers.

Steps of a bundle are recorded with the time that a worker spends on them, mean over both kinds. The
FFN's time follows from the batch and the coefficients, and the rest is attention's. The power of
such workers was never measured; the law of `power.py` is applied with half of a step's operators
each, over the seconds in which they work. In between they draw `idle`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from mist_sim.hardware.afd.bundle_coefficients import AfdCoefficients
from mist_sim.hardware.afd.step_work import attention_work, ffn_work
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.devices.specs import GpuSpec
from mist_sim.hardware.gpu_group import GpuWork
from mist_sim.hardware.power import Array, Demand, Load, step_watts
from mist_sim.hardware.work import StepCounts
from mist_sim.models.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleShape:
    """The number of workers that share a batch, and the time of each.

    coefficients: in seconds. slots: of a batch, on all attention workers. static_graph: whether
    empty ones cost the FFN as much as full ones.
    """

    coefficients: AfdCoefficients
    attention_workers: int
    ffn_workers: int
    slots: int
    static_graph: bool

    def ffn_requests(self, counts: StepCounts) -> Array:
        """Return the requests that an FFN worker computes in each step of some runs."""
        requests = counts.num_decodes
        if self.static_graph:
            requests = np.full_like(requests, self.slots)
        return requests / self.ffn_workers

    def ffn_seconds(self, counts: StepCounts) -> Array:
        """Return how long each FFN worker works in some runs."""
        each: Array = self.coefficients.ffn_time(self.ffn_requests(counts))
        return counts.num_steps * each

    def attention_seconds(self, counts: StepCounts, busy: Array) -> Array:
        """Return how long attention workers work in some runs, added up over them.

        busy: seconds of a worker, mean over both kinds.
        """
        in_all = busy * (self.attention_workers + self.ffn_workers)
        return np.maximum(in_all - self.ffn_seconds(counts) * self.ffn_workers, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The workers of one kind; a group of equal GPUs.

    cluster: the GPUs of one worker. number: of workers. price: dollars of a GPU an hour; None: of
    the catalog.
    """

    model: ModelSpec
    cluster: Cluster
    number: int
    shape: BundleShape
    price: float | None = None

    @property
    def gpu(self) -> GpuSpec:
        """The type of GPU, the same for all workers."""
        return self.cluster.gpu

    @property
    def num_gpus(self) -> int:
        """GPUs of all workers of the kind."""
        return self.number * self.gpus_an_engine

    @property
    def gpus_an_engine(self) -> int:
        """GPUs of one worker, which load its weights together."""
        return self.cluster.num_gpus

    @property
    def idle_watts(self) -> float:
        """Watts of one idle GPU."""
        return self.gpu.draw.idle * self.gpu.watts

    def _watts(self, demand: Demand, seconds: Array, *, has_experts: bool = False) -> Array:
        """Return the mean watts of a GPU in runs that took a worker so many seconds."""
        load = Load(has_experts=has_experts, has_peers=self.gpus_an_engine > 1)
        seconds = np.where(seconds > 0, seconds, 1.0)
        return step_watts(self.gpu.draw, self.gpu.watts, demand, seconds, load)


class AttentionGpus(Workers):
    """The GPUs of all attention workers, each of which holds all weights of attention."""

    __slots__ = ()

    @property
    def weight_bytes(self) -> float:
        """Bytes of weights that one worker loads: all except the FFN's."""
        ranks = self.gpus_an_engine
        return ranks * self.model.attention_weight_bytes_per_rank(ranks)

    def work(self, counts: StepCounts, busy: Array) -> GpuWork:
        """Return the work of the GPUs in runs of steps. busy: as recorded of each run, seconds.

        Without a static graph, requests are assumed to be on as many workers as possible.
        """
        seconds = self.shape.attention_seconds(counts, busy)
        num_working = np.full_like(seconds, self.number)
        if not self.shape.static_graph:
            num_working = np.clip(counts.num_decodes, 1, self.number)
        demand = attention_work(self.model, self.cluster, counts, num_working)
        return GpuWork(seconds * self.gpus_an_engine, self._watts(demand, seconds / num_working))


class FfnGpus(Workers):
    """The GPUs of all FFN workers, each of which holds all experts, or the whole MLP."""

    __slots__ = ()

    @property
    def weight_bytes(self) -> float:
        """Bytes of weights that one worker loads: of MLPs, experts and routers."""
        cluster = self.cluster
        ranks, experts = cluster.tensor_parallel_size, cluster.expert_parallel_size
        return ranks * self.model.ffn_weight_bytes_per_rank(ranks, experts)

    def work(self, counts: StepCounts, busy: Array) -> GpuWork:
        """Return the work of the GPUs in runs of steps. busy: as recorded of each run, seconds."""
        seconds, requests = self.shape.ffn_seconds(counts), self.shape.ffn_requests(counts)
        demand = ffn_work(self.model, self.cluster, counts, requests)
        watts = self._watts(demand, seconds, has_experts=self.model.moe is not None)
        return GpuWork(seconds * self.num_gpus, watts)


@dataclass(frozen=True, slots=True)
class BundleMachine:
    """The GPUs of a bundle. Their watts are always an assumption."""

    attention: AttentionGpus
    ffn: FfnGpus

    @property
    def groups(self) -> tuple[AttentionGpus, FfnGpus]:
        """Attention workers, then FFN workers."""
        return self.attention, self.ffn

    @property
    def num_drafts(self) -> int:
        """None: bundles do not draft."""
        return 0

    @property
    def watts_origin(self) -> Literal["assumed"]:
        """Always "assumed": the power of such workers was never measured."""
        return "assumed"
