"""The GPUs behind a client, and the watts that its steps draw."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.devices import GpuSpec
from mist_sim.hardware.drafter import Drafter
from mist_sim.hardware.gpu_group import GpuWork
from mist_sim.hardware.power import Array, Demand, DrawConfidence, Load, step_watts
from mist_sim.hardware.work import StepCounts, step_demand
from mist_sim.models.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The GPUs of all engines of a client, as one group.

    num_drafts: draft tokens per decode and step. drafter: the drafting model.
    power_limit: watts of a GPU that its steps do not exceed; None: the design power.
    price: dollars per hour of a GPU, in place of the catalog's.
    expert_rows: rows that an expert's kernel computes at least; 0: no more than it has.
    """

    model: ModelSpec
    cluster: Cluster
    num_drafts: int = 0
    drafter: Drafter | None = None
    expert_rows: int = 0
    power_limit: float | None = None
    price: float | None = None

    @property
    def groups(self) -> tuple[Machine]:
        """Itself: all its GPUs are equal, and take turns in the same steps."""
        return (self,)

    @property
    def gpu(self) -> GpuSpec:
        """The GPU that all of them are."""
        return self.cluster.gpu

    @property
    def num_gpus(self) -> int:
        """GPUs of all engines."""
        return self.cluster.num_gpus

    @property
    def gpus_an_engine(self) -> int:
        """GPUs of one engine, which load its weights together."""
        return self.cluster.gpus_a_stage * self.cluster.pipeline_parallel_size

    @property
    def weight_bytes(self) -> float:
        """Bytes of weights that one engine loads."""
        ranks = self.cluster.tensor_parallel_size
        held = self.model.weight_bytes_per_rank(ranks, self.cluster.expert_parallel_size)
        return self.cluster.gpus_a_stage * held

    @property
    def watts_origin(self) -> DrawConfidence:
        """Where watts come from; those under a cap are assumed."""
        is_capped = self.power_limit is not None and self.power_limit < self.gpu.watts
        return "assumed" if is_capped else self.gpu.draw.confidence

    @property
    def gpus_a_step(self) -> int:
        """GPUs that are busy in a step: in a pipeline those of one rank."""
        return self.cluster.gpus_a_stage

    @property
    def idle_watts(self) -> float:
        """Watts of one idle GPU."""
        gpu = self.cluster.gpu
        return gpu.draw.idle * gpu.watts

    @property
    def load(self) -> Load:
        """Load of the GPUs in all steps beside memory and arithmetic."""
        return load_of(self.model, self.cluster)

    def work(self, counts: StepCounts, busy: Array) -> GpuWork:
        """Return the work of the GPUs in runs of steps. busy: seconds of each run."""
        watts = self.watts(counts, np.where(busy > 0, busy, 1.0))
        return GpuWork(busy * self.gpus_a_step, watts)

    def watts(self, counts: StepCounts, busy: Array) -> Array:
        """Return the mean watts of one GPU in runs of steps. busy: seconds of each run (> 0)."""
        gpu, limit = self.cluster.gpu, self.power_limit
        return step_watts(
            gpu.draw,
            gpu.watts,
            self._demand(counts.shared_out(self.cluster.prefill_context_parallel_size)),
            busy,
            self.load,
            math.inf if limit is None else limit,
        )

    def _demand(self, counts: StepCounts) -> Demand:
        """Return the demand of runs on a GPU, with drafting.

        A draft model reads the same tokens as the target, and in every further pass one token of
        each sequence.
        """
        demand = step_demand(self.model, self.cluster, counts, self.expert_rows)
        if self.drafter is None:
            return demand
        model, cluster = self.drafter.model, self.drafter.cluster
        demand = demand + step_demand(model, cluster, counts)
        if self.num_drafts == 1:
            return demand
        times, nothing = self.num_drafts - 1, np.zeros_like(counts.num_steps)
        later = replace(
            counts,
            num_steps=counts.num_steps * times,
            num_prefill_tokens=nothing,
            num_queries=counts.num_samples,
            num_decodes=counts.num_samples,
            prefill_keys=nothing,
            prefill_pairs=nothing,
            decode_keys=(counts.decode_keys + counts.prefill_keys) * times,
        )
        return demand + step_demand(model, cluster, later)


def load_of(model: ModelSpec, cluster: Cluster) -> Load:
    """Return a model's load on its GPUs beyond memory and arithmetic."""
    return Load(
        has_experts=model.moe is not None,
        has_peers=cluster.tensor_parallel_size * cluster.num_sharing_replicas > 1,
        in_lockstep=cluster.num_sharing_replicas > 1,
    )
