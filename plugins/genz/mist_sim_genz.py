"""Step times of GenZ, an analytic model of LLM inference (genz-llm)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import Any

from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.devices import Efficiency, GpuSpec
from mist_sim.hardware.predictors.base import PREDICTORS, PredictorTraits
from mist_sim.hardware.predictors.external import installed_version
from mist_sim.hardware.predictors.measured.sampled import (
    SampledSteps,
    SamplePoints,
    check_whole_model,
)
from mist_sim.hardware.predictors.measured.timing_store import TimingStore
from mist_sim.models.spec import ModelSpec

_PACKAGE = "genz-llm"
_GIGABYTE = 2**30  # GenZ's unit of bandwidth
_LINK_LATENCY = 1.0  # microseconds; what GenZ takes for its own systems


@PREDICTORS.register("genz")
@dataclass
class GenzPredictor(SampledSteps):
    """GenZ's times for the model's operators on a system with the GPU's figures.

    Prompts run at the efficiencies of the GPU's prefill, decodes at those of its decode. The first
    use with a model and GPUs takes seconds; the times are kept on disk.

    model, cluster: what is timed; raises ScenarioError for what GenZ cannot time right.
    """

    model: ModelSpec
    cluster: Cluster

    def __post_init__(self) -> None:
        longest = self.model.max_position_embeddings
        points = SamplePoints.up_to(longest, 8, prompt_context=4096, decode_context=1024)
        super().__init__(_Genz(self.model, self.cluster), points, TimingStore.default())

    @property
    def traits(self) -> PredictorTraits:
        """Traits of its times."""
        return replace(super().traits, estimate="analytic", kernels_only=True)


class _Genz:
    """GenZ's estimate of one step, as a source."""

    def __init__(self, model: ModelSpec, cluster: Cluster) -> None:
        version = installed_version(_PACKAGE, "genz", f"pip install {_PACKAGE}")
        check_whole_model(cluster, "genz")
        _check(model)
        self._ranks = cluster.tensor_parallel_size
        self._model = {
            "model": "model",  # a name for files
            "num_decoder_layers": model.num_layers,
            "hidden_size": model.hidden_size,
            "intermediate_size": model.intermediate_size,
            "num_ffi": 2 if model.gated_mlp else 1,
            "num_attention_heads": model.num_attention_heads,
            "num_key_value_heads": model.num_key_value_heads,
            "head_dim": model.head_dim,
            "vocab_size": model.vocab_size,
        }
        gpu = cluster.gpu
        self._prefill = _system(gpu, gpu.prefill)
        self._decode = _system(gpu, gpu.decode)
        self.identity = {
            "source": _PACKAGE,
            "version": version,
            "model": self._model,
            "prefill": self._prefill,
            "decode": self._decode,
            "tensor_parallel_size": self._ranks,
        }

    def seconds(self, batches: Sequence[StepBatch]) -> list[float]:
        """Return GenZ's seconds of each batch."""
        with TemporaryDirectory() as folder:  # GenZ hands its operators over in files
            return [self._ask(batch, folder) for batch in batches]

    def _ask(self, batch: StepBatch, folder: str) -> float:
        """Return the seconds of a chunk alone or of decodes alone."""
        import GenZ

        config = GenZ.ModelConfig(**self._model)
        where: dict[str, Any] = {"data_path": folder, "tensor_parallel": self._ranks}
        if batch.chunks:
            chunks = [(context, new) for new, context in batch.chunks]
            layers = GenZ.create_full_chunked_model(config, chunks, [], **where)
            system, size = self._prefill, 1
        else:
            each = max(batch.context_sum // batch.num_decodes, 1)
            layers = GenZ.create_full_decode_model(config, each, **where)
            system, size = self._decode, batch.num_decodes
        table = GenZ.get_model_df(
            layers,
            GenZ.System(**system),
            batch_size=size,
            data_path=folder,
            intermediate_on_chip=True,  # as GenZ's own functions for prompts and decodes do
        )
        return float(GenZ.get_summary_table(table)["Latency (msec)"].iloc[0]) / 1e3


def _system(gpu: GpuSpec, efficiency: Efficiency) -> dict[str, Any]:
    """Return the system description of a GPU in one phase, as GenZ takes it."""
    link = gpu.interconnect
    return {
        "flops": gpu.flops["bf16"] / 1e12,
        "offchip_mem_bw": gpu.memory_bandwidth / _GIGABYTE,
        "interchip_link_bw": link.bandwidth / _GIGABYTE,
        "interchip_link_latency": _LINK_LATENCY,
        "compute_efficiency": efficiency.mfu,
        "memory_efficiency": efficiency.mbu,
        "comm_efficiency": link.efficiency,
        "bits": "bf16",
    }


def _check(model: ModelSpec) -> None:
    """Raise ScenarioError for models whose operators GenZ lacks or gets wrong.

    Its decodes read the weights of one token's experts, however many tokens there are.
    """
    kinds = {
        "experts": model.moe,
        "latent attention": model.mla,
        "sliding windows": model.sliding_window,
        "layers that differ": model.layers,
        "quantized weights": model.quantization,
        "a quantized KV cache": model.kv_entry_bytes != model.dtype_bytes,
    }
    found = [kind for kind, there in kinds.items() if there]
    if found:
        raise ScenarioError(
            f"genz times dense models in 16 bits, not {model.name} with {' and '.join(found)}; "
            "roofline does"
        )
