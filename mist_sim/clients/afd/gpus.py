"""The GPUs of a bundle's workers, where its options name them."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf

from mist_sim.clients.afd.bundle_config import BundleConfig
from mist_sim.hardware import Cluster, GpuSpec, load_gpu
from mist_sim.hardware.afd import AttentionGpus, BundleMachine, BundleShape, FfnGpus
from mist_sim.models import ModelSpec

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGpus:
    """The options of a bundle that describe its GPUs.

    gpu: GPU of attention workers, and of FFN workers if `ffn_gpu` is None; None: unknown.
    attention, ffn: GPUs of a worker of each kind. price, ffn_price: dollars of a GPU an hour; None:
    as the catalog says. kv_memory: bytes for KV entries of an attention worker; None: not known.

    Raises ValueError for prices out of range, and for options that need an unset GPU.
    """

    gpu: str | GpuSpec | None
    ffn_gpu: str | GpuSpec | None
    attention: int
    ffn: int
    price: float | None
    ffn_price: float | None
    kv_memory: float | None

    def __post_init__(self) -> None:
        for name, value in (("gpu_price", self.price), ("ffn_gpu_price", self.ffn_price)):
            if value is not None and not 0 <= value < inf:
                raise ValueError(f"{name} must be finite and >= 0 $/h, got {value}")
        for name, said, needed, gpu in (
            ("ffn_gpu", self.ffn_gpu, "gpu", self.gpu),
            ("gpu_price", self.price, "gpu", self.gpu),
            ("ffn_gpu_price", self.ffn_price, "ffn_gpu", self.ffn_gpu),
        ):
            if said is not None and gpu is None:
                raise ValueError(f"{needed} is required with {name}")

    def machine(self, model: ModelSpec, config: BundleConfig) -> BundleMachine | None:
        """Return the machine of a bundle; None if its GPUs are unknown.

        Raises ValueError if weights and `kv_memory` do not fit, and ScenarioError for an unknown
        GPU.
        """
        if self.gpu is None:
            return None
        gpu = load_gpu(self.gpu)
        ffn_gpu = gpu if self.ffn_gpu is None else load_gpu(self.ffn_gpu)
        self._check_split(model)
        shape = BundleShape(
            coefficients=config.coefficients,
            attention_workers=config.attention_workers,
            ffn_workers=config.ffn_workers,
            slots=config.slots_per_batch,
            static_graph=config.static_graph,
        )
        attention = AttentionGpus(
            model=model,
            cluster=Cluster(gpu, self.attention),
            number=config.attention_workers,
            shape=shape,
            price=self.price,
        )
        spreads = model.moe is not None and self.ffn > 1
        ffn = FfnGpus(
            model=model,
            cluster=Cluster(ffn_gpu, self.ffn, enable_expert_parallel=spreads),
            number=config.ffn_workers,
            shape=shape,
            price=self.price if self.ffn_gpu is None else self.ffn_price,
        )
        self._check_memory(attention, ffn)
        return BundleMachine(attention, ffn)

    def _check_split(self, model: ModelSpec) -> None:
        """Raise ValueError for a model that cannot be divided among the GPUs of a worker."""
        if model.layers:
            raise ValueError(f"model must have layers that are alike; those of {model.name} differ")
        if model.num_attention_heads % self.attention:
            raise ValueError(
                f"attention_gpus must divide the {model.num_attention_heads} attention heads of "
                f"{model.name}, got {self.attention}"
            )
        if model.moe is not None and model.moe.num_experts < self.ffn:
            raise ValueError(
                f"ffn_gpus must be <= {model.moe.num_experts}, the experts of {model.name}, "
                f"got {self.ffn}"
            )
        if model.moe is None and model.intermediate_size % self.ffn:
            raise ValueError(
                f"ffn_gpus must divide the MLP size {model.intermediate_size} of {model.name}, "
                f"got {self.ffn}"
            )

    def _check_memory(self, attention: AttentionGpus, ffn: FfnGpus) -> None:
        """Raise ValueError for workers that do not hold their weights and KV entries."""
        kv_memory = self.kv_memory or 0.0
        beside = f" and {kv_memory / _GIB:.1f} GiB of kv_memory" if kv_memory else ""
        for name, workers, more in (("attention", attention, kv_memory), ("ffn", ffn, 0.0)):
            needed, gpu = workers.weight_bytes + more, workers.gpu
            if needed > workers.gpus_an_engine * gpu.memory:
                raise ValueError(
                    f"{name}_gpus must be >= {ceil(needed / gpu.memory)}: weights of "
                    f"{workers.weight_bytes / _GIB:.1f} GiB{beside if more else ''} are on each "
                    f"worker, and {gpu.name} has {gpu.memory / _GIB:.1f} GiB; "
                    f"got {workers.gpus_an_engine}"
                )
