"""Every option of an engine, in one place and in the words of vLLM's arguments.

The scenario's schema of a client of type llm, `mist list options`, the reference, `llm_client` and
`LlmClient` follow from this class. A new option is a field here with its line in the docstring,
and the code that uses it; its flag stands in `scenario/from_vllm/flags.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from mist_sim.checks import NotNegative, Positive
from mist_sim.clients.kv_cache import KvCacheConfig
from mist_sim.clients.options.overload import AdmissionControl
from mist_sim.clients.options.resharding_options import Resharding
from mist_sim.clients.scheduling import ChunkedScheduler, Scheduler
from mist_sim.clients.scheduling.cadence import interval_of
from mist_sim.clients.traits import (
    FLOWING_ROLES,
    ROLES,
    ClientTraits,
    EngineGroup,
    KvForm,
    Role,
    Slider,
)
from mist_sim.hardware import Cluster, GpuSpec, HostSpec
from mist_sim.hardware.cluster import GATHERS, All2AllBackend
from mist_sim.hardware.devices import AllReduce
from mist_sim.hardware.predictors import EngineOverhead, PipelinePredictor, Predictor
from mist_sim.hardware.predictors.scaled import StepTimeScale
from mist_sim.hardware.sampling import Sampling
from mist_sim.models import ModelSpec, load_generating
from mist_sim.models.adapters import LoraConfig
from mist_sim.models.attention_backends import AttentionBackend
from mist_sim.models.moe_backends import MoeBackend
from mist_sim.models.quantization import WeightDtype
from mist_sim.models.speculative import SpeculativeConfig
from mist_sim.models.vision import ImagesConfig
from mist_sim.stages import Decode, Prefill
from mist_sim.units import DollarsPerHour, Watts

TokenLimit = Annotated[int, ">= 1, or -1"]


class PredictorFactory(Protocol):
    """Makes the predictor of a model's part on one rank; a predictor's class is one."""

    def __call__(self, *, model: ModelSpec, cluster: Cluster) -> Predictor:
        """Return the predictor of a model on a cluster."""


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Engines that serve prefill and decode of a language model.

    model: model to serve instead of the scenario's.
    gpu: a catalog name, the path of a .toml spec, or a mapping of a spec's keys, such as
        {based_on: b200, memory_bandwidth: 10 TB/s}.
    engine: version of vLLM whose defaults hold for unset options, such as vllm-0.19; vllm is the
        newest known version, and the default.
    quantization: quantizes the weights in this way instead of the checkpoint's.
    tensor_parallel_size: GPUs that share every layer.
    pipeline_parallel_size: ranks that each hold some of the layers.
    virtual_engines: a pipeline has a scheduler and a part of the memory for each batch in flight
        (vLLM v0), and not one for all batches (v1). The default is that of `engine`'s version: v1
        wherever v1 is simulated (docs/background/parallelism.md).
    role: prefill or decode for a client that serves only this; prompts' KV entries are handed over
        from one to the other on the network. p_heavy or d_heavy for a client with large or small
        chunks that serves both, and whose answers may move to the other kind (TaiChi; needs
        hand_over.policy: flowing). Without a role it serves both, in one visit.
    decode_context_parallel_size: of the GPUs that share every layer, those that share out the
        tokens of each context, where all would hold the same KV entries.
    prefill_context_parallel_size: groups of GPUs of an engine that share out its tokens: pieces of
        every prompt, and whole decodes. Each group holds all KV entries.
    data_parallel_size: engines of the client, each with that many GPUs and a cache of its own; a
        request goes to the least loaded one.
    enable_expert_parallel: spreads whole experts over the GPUs instead of slices of each.
    expert_load_imbalance: tokens of the GPU with the busiest experts over the mean (>= 1).
    all2all_backend: how engines that share experts exchange tokens, by vLLM's name. By default all
        gather all tokens; the others send each to the GPUs of its experts. With
        deepep_low_latency or nixl_ep say scheduler.max_num_batched_tokens, too: vLLM takes 256.
    moe_backend: kernels of experts, by vLLM's name. By default those that the version of `engine`
        takes for that format and GPU. Step times are of these kernels where public tables have
        them; otherwise the GPU's usual ones are timed, and the results have no error bar. It also
        says how MXFP4 weights are padded in memory.
    attention_backend: kernels of attention, by vLLM's name; default and step times as for
        `moe_backend`.
    all_reduce: how ranks sum their parts of a layer, in place of the way in the GPU's entry.
    host: host of the GPUs, for those on PCIe: a catalog name (`mist list hosts`), the path of a
        .toml spec, or a mapping of a spec's keys. By default a slow one without peer access, and
        the results show the effect of this assumption.
    speculative_config: drafts tokens, and verifies several per request in one step.
    lora: serves LoRA adapters of the model; requests name them (workload.adapters).
    images: encodes images of prompts on its GPUs, with the vision tower of the model
        (workload.images).
    language_model_only: leaves out the towers of images and sound of the model, which otherwise
        take memory whether or not prompts have images.
    resharding: computes prompts in another layout than answers (Seesaw; needs scheduler:
        continuous). The sizes above are those for answers.
    scheduler: forms the batches of a step.
    kv_cache: memory for keys and values.
    predictor: times a step.
    overhead: the engine's own time per step and request, in addition to the kernels.
    step_time_scale: what if steps took that many times as long? A factor of every step's time,
        whatever the predictor, or one of steps with prompts and one of steps of decodes alone; for
        a card that differs from the measured one, too.
    async_scheduling: a step is planned while the step before it runs: the GPU's time hides the
        host's, but requests join, and seats and blocks are freed, one step later. The default is
        that of the version of `engine`: on from 0.14 on, where it is simulated.
    power_limit: watts that a GPU is capped at (nvidia-smi -pl); it then computes more slowly, and
        reads memory as fast.
    gpu_price: dollars of one GPU an hour in place of the catalog's; for the cost of the run.
    sampling: top-p, top-k and penalties of the requests, which cost time. By default what the
        model's `generation_config.json` asks for, as vLLM's server does (since 0.7).
    admission: which requests are rejected when the engine is too busy.
    max_model_len: largest number of tokens of a prompt and its answer. It must fit in the KV cache,
        and may exceed the model's own (vLLM: VLLM_ALLOW_LONG_MAX_MODEL_LEN). auto, or -1: the
        model's own, or as much of it as fits. By default the model's own, whether it fits or not.

    In Python, model, GPU and host may be specs themselves. The default scheduler is chunked prefill
    with the limits of vLLM's server on that GPU (see `server_limits`). The predictor is an object,
    which clients may share, or a function that makes one for a model and a cluster; by default a
    roofline. Overheads that are None come from the GPU's entry; other options that are None follow
    the version of `engine`.

    Raises ScenarioError for options that contradict one another.
    """

    model: str | ModelSpec = "llama-3.1-8b"
    gpu: str | Mapping[str, Any] | GpuSpec = "h100-sxm"
    engine: str | None = None
    quantization: WeightDtype | None = None
    tensor_parallel_size: Positive[int] = 1
    pipeline_parallel_size: Positive[int] = 1
    virtual_engines: bool = False
    role: Role | None = None
    decode_context_parallel_size: Positive[int] = 1
    prefill_context_parallel_size: Positive[int] = 1
    data_parallel_size: Positive[int] = 1
    enable_expert_parallel: bool = False
    expert_load_imbalance: float = 1.0
    all2all_backend: All2AllBackend = GATHERS
    moe_backend: MoeBackend | None = None
    attention_backend: AttentionBackend | None = None
    all_reduce: AllReduce | None = None
    host: str | Mapping[str, Any] | HostSpec | None = None
    speculative_config: SpeculativeConfig | None = None
    lora: LoraConfig | None = None
    images: ImagesConfig | None = None
    language_model_only: bool = False
    resharding: Resharding | None = None
    scheduler: Scheduler | None = None
    kv_cache: KvCacheConfig = KvCacheConfig()
    predictor: Predictor | PipelinePredictor | PredictorFactory | None = None
    overhead: EngineOverhead = EngineOverhead()
    step_time_scale: float | StepTimeScale | None = None
    async_scheduling: bool | None = None
    power_limit: Watts | None = None
    gpu_price: NotNegative[DollarsPerHour] | None = None
    sampling: Sampling | None = None
    admission: AdmissionControl = AdmissionControl()
    max_model_len: TokenLimit | None = None

    @property
    def traits(self) -> ClientTraits:
        """The client's traits, as far as its options determine them.

        `LlmClient` adds memory and step times.
        """
        serves, scheduler = ROLES[self.role], self.scheduler
        return ClientTraits(
            serves=tuple(kind for kind in (Prefill.kind, Decode.kind) if kind in serves),
            model=self.model if isinstance(self.model, str) else self.model.name,
            role=self.role,
            entries=KvForm(block_size=self.kv_cache.block_size, dtype=self._kv_dtype),
            sends_entries=Prefill.kind in serves,
            takes_entries=Decode.kind in serves and (scheduler is None or scheduler.takes_over),
            reserves=True,
            serves_whole=self.role is None,
            emits_first_token=self.speculative_config is None,
            slider=self._slider,
            engines=(
                EngineGroup(
                    self.data_parallel_size,
                    self.pipeline_parallel_size,
                    self.tensor_parallel_size * self.prefill_context_parallel_size,
                ),
            ),
            uses_links=bool(self.kv_cache.tiers),
            deadline_option=self.uses_deadlines,
            uses_priorities=self.uses_priorities,
            uses_predictions=self.uses_predictions,
            turns_away=self.turns_away,
        )

    @property
    def _kv_dtype(self) -> str:
        """The dtype of KV entries, by vLLM's name; the model resolves `auto`."""
        dtype = self.kv_cache.kv_cache_dtype
        if dtype != "auto":
            return dtype
        return (
            load_generating(self.model) if isinstance(self.model, str) else self.model
        ).kv_cache_dtype

    @property
    def _slider(self) -> Slider | None:
        """The options that can change during a run, for a client whose answers flow."""
        scheduler = self.scheduler
        if self.role not in FLOWING_ROLES:
            return None
        return Slider(
            chunk=scheduler.max_num_batched_tokens
            if isinstance(scheduler, ChunkedScheduler)
            else None,
            max_num_seqs=scheduler.max_num_seqs if scheduler else 1,
            scheduler=type(scheduler).__name__,
            obstacle="kv_cache.tiers" if self.kv_cache.tiers else "",
        )

    @property
    def prefill_interval(self) -> int:
        """Every how many steps one carries prompts; 1 if the scheduler has no such option."""
        return interval_of(self.scheduler)

    @property
    def no_batch_queue(self) -> str:
        """The option that makes a pipeline use virtual engines; empty if there is none.

        With one scheduler are not simulated roles, lockstep, drafts, tiers, swapping, whole
        prompts, schedulers that plan themselves and layouts of resharding.
        """
        scheduler = self.scheduler
        for option, is_set in (
            ("virtual_engines", self.virtual_engines),
            (f"role {self.role}", self.role is not None),
            ("enable_expert_parallel and data_parallel_size", self.lockstep),
            ("speculative_config", self.speculative_config is not None),
            ("resharding", self.resharding is not None),
            ("kv_cache.tiers", bool(self.kv_cache.tiers)),
            (f"scheduler.type {type(scheduler).__name__}", not _is_chunked(scheduler)),
            ("scheduler.preemption", scheduler and scheduler.swaps),
        ):
            if is_set:
                return option
        return ""

    @property
    def no_planning_ahead(self) -> str:
        """The option that prevents async scheduling from being simulated; empty if none does."""
        if self.pipeline_parallel_size > 1 and (option := self.no_batch_queue):
            return f"pipeline_parallel_size {self.pipeline_parallel_size} and {option}"
        if self.resharding:
            return "resharding"
        return ""

    @property
    def num_drafts(self) -> int:
        """Tokens that are drafted for each decode of a step; 0 without drafting."""
        return self.speculative_config.num_speculative_tokens if self.speculative_config else 0

    @property
    def lockstep(self) -> bool:
        """Whether the engines share their experts, so that they step together."""
        return self.enable_expert_parallel and self.data_parallel_size > 1

    @property
    def turns_away(self) -> bool:
        """Whether the engine may turn requests away because it is busy."""
        return self.admission != AdmissionControl()

    @property
    def uses_priorities(self) -> bool:
        """Whether the engine looks at the requests' priorities."""
        return getattr(self.scheduler, "order", "") == "priority"

    @property
    def uses_predictions(self) -> bool:
        """Whether the engine looks at the predicted lengths of answers."""
        return getattr(self.scheduler, "order", "") == "shortest_predicted_first"

    @property
    def uses_deadlines(self) -> str:
        """The option with which the engine looks at deadlines; empty when it does not."""
        if self.admission.drop_expired:
            return "admission.drop_expired"
        if self.admission.early_rejection:
            return "admission.early_rejection"
        by_deadline = getattr(self.scheduler, "order", "") == "earliest_deadline_first"
        return "scheduler.order: earliest_deadline_first" if by_deadline else ""


def _is_chunked(scheduler: Scheduler | None) -> bool:
    """Tell whether a scheduler, the default if None, cuts prompts."""
    return scheduler is None or isinstance(scheduler, ChunkedScheduler)
