"""What keeps vLLM's server from starting: the one list of it (`server_start.toml`), with sources.

Every client of type llm asks it as it is made, so that all verbs do, and `mist from-vllm`. What
cannot be is a ScenarioError; searches leave such a design out with that reason. Two rules only
warn, since they do not change what is served: a default longest context that does not fit, and more
sequences than there is room for states. Generated designs get values that fit
(`mist_sim.scenario.startable`).

All files were read in vLLM 0.12.0, 0.14.0, 0.19.0, 0.24.0 and 0.33.0; those between say when a
change came. Options that a version does not have are in `versions.py` (`Lack`).
"""

from __future__ import annotations

import tomllib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import gcd, inf
from pathlib import Path
from typing import Any, NamedTuple

from mist_sim.clients import EngineConfig
from mist_sim.clients.kv_cache.capacity import NULL_BLOCKS
from mist_sim.clients.kv_cache.lane_memory import LaneMemory
from mist_sim.clients.options.engine_config import AUTO_LENGTH
from mist_sim.clients.scheduling import ChunkedScheduler, Scheduler
from mist_sim.core.result_warnings import (
    LONGEST_CONTEXT,
    OLDER_ENGINES,
    STATE_BLOCKS,
    ResultWarning,
)
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.models import ModelSpec
from mist_sim.models.block_slices import (
    BlockSlice,
    expert_slices,
    input_slices,
    merged_slices,
    output_slices,
)
from mist_sim.models.mixers import CompressedMixer, LatentMixer
from mist_sim.scenario.engines.versions import LATEST, OLDEST, EngineVersion, version_of

LENGTH, SEQUENCES = "max_model_len", "scheduler.max_num_seqs"
"""Options that a client assumes (`TimesOrigin.assumed`) where vLLM needs them to start."""

_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_REFINE = 32  # values of a block that Triton's kernels take at least


class Server(NamedTuple):
    """A server to start: its options, and the model and GPUs with these options applied."""

    config: EngineConfig
    model: ModelSpec
    cluster: Cluster

    @property
    def version(self) -> EngineVersion:
        """The version of vLLM."""
        return version_of(self.config.engine)

    @property
    def ranks(self) -> int:
        """Ranks that share each layer."""
        return self.cluster.tensor_parallel_size

    @property
    def slices(self) -> int:
        """Ranks that share each expert."""
        return 1 if self.cluster.enable_expert_parallel else self.ranks

    def split(self, ranks: int) -> Server:
        """Return the same server with another tensor parallel size."""
        cluster = Cluster(
            self.cluster.gpu,
            ranks,
            enable_expert_parallel=self.cluster.enable_expert_parallel,
            data_parallel_size=self.cluster.data_parallel_size,
        )
        return self._replace(cluster=cluster)


@dataclass(frozen=True)
class StartRule:
    """A rule that vLLM checks as it starts.

    what: it asks for, in words. problems: yields what is wrong with a server, the option first, and
    what to write instead. source: where vLLM has it. since, until: minor numbers of the first and
    the last release that has it. is_told: whether results say that it held before, where no version
    is named.
    """

    what: str
    problems: Callable[[Server], Iterator[str]]
    source: str
    since: int = OLDEST
    until: int = LATEST
    is_told: bool = False

    def holds(self, version: EngineVersion) -> bool:
        """Whether a release has it."""
        return self.since <= version.minor <= self.until


def check_start(server: Server) -> None:
    """Raise ScenarioError unless vLLM's server starts, as far as options, model and GPUs say it.

    Memory is counted later: see `context_length` and `most_sequences`.
    """
    for rule in RULES:
        for problem in rule.problems(server) if rule.holds(server.version) else ():
            raise ScenarioError(f"{problem}; {server.version.title} does not start otherwise")


def older_versions(server: Server) -> Iterator[ResultWarning]:
    """Yield why versions before the newest do not start, where no version is named."""
    if server.config.engine is not None:
        return
    for rule in RULES:
        lacks_it = rule.is_told and not rule.holds(server.version)
        for problem in rule.problems(server) if lacks_it else ():
            yield ResultWarning(
                OLDER_ENGINES,
                f"No engine is named, so that it is {server.version.title}; "
                f"vLLM 0.{rule.until} and older do not start: {problem}.",
            )


# --- splits -------------------------------------------------------------------------------------


def _split(server: Server) -> Iterator[str]:
    try:
        server.cluster.check_split(server.model)
    except ScenarioError as error:
        yield str(error)


def _too_new(server: Server) -> Iterator[str]:
    first = _DATA["came_in"].get(server.model.architecture, OLDEST)
    if server.version.minor < first:
        yield (
            f"engine must be vllm-0.{first} or newer for {server.model.name}, got "
            f"{server.version.name}: the architecture {server.model.architecture} came later"
        )


def _few_experts(server: Server) -> Iterator[str]:
    moe = server.model.moe
    if moe and server.ranks > moe.num_experts:
        yield (
            f"tensor_parallel_size must be <= {moe.num_experts}, the experts of "
            f"{server.model.name}, got {server.ranks}"
        )


def _rows(server: Server) -> Iterator[BlockSlice]:
    """Yield the slices that every version checks, but those of experts.

    Shared experts lie whole on ranks where replicas share the routed ones
    (`use_sequence_parallel_moe` in vllm/config/parallel.py), and DeepSeek-V4's are padded to whole
    blocks (`DeepseekV4MLP` in vllm/models/deepseek_v4/nvidia/model.py).
    """
    model, cluster = server.model, server.cluster
    is_spread = cluster.enable_expert_parallel and cluster.data_parallel_size > 1
    is_padded = any(isinstance(layer.mixer, CompressedMixer) for layer in model.layers)
    for each in input_slices(model, server.ranks):
        if each.what != "shared experts" or not (is_spread or is_padded):
            yield each
    yield from output_slices(model, server.ranks)


def _experts(server: Server) -> Iterator[BlockSlice]:
    """Yield the slices of experts in FP8; those in fewer bits have kernels for smaller groups."""
    stored = server.model.quantization_of("routed_experts")
    if stored is not None and stored.kernel == "fp8_block":
        yield from expert_slices(server.model, server.slices)


def _unrefined(server: Server) -> Iterator[BlockSlice]:
    """Yield the slices of experts whose blocks can be neither made smaller nor padded."""
    moe, stored = server.model.moe, server.model.quantization_of("routed_experts")
    for each in _experts(server):
        if each.is_whole or moe is None or stored is None or stored.block is None:
            continue
        hidden = moe.hidden_size or server.model.hidden_size
        finest = gcd(*stored.block, each.slice, hidden)
        by_triton = finest >= _REFINE and server.cluster.gpu.architecture != "ampere"
        is_padded = moe.intermediate_size % each.block == 0 == hidden % each.block
        may_pad = is_padded and server.slices > 1 and server.config.lora is None
        if not (by_triton if server.config.moe_backend in (None, "triton") else may_pad):
            yield each


def _cut(server: Server, slices: str) -> Iterator[str]:
    """Yield which slices end inside a block, and the sizes with which none does."""
    cut = _SLICES[slices]
    found = next((each for each in cut(server) if not each.is_whole), None)
    if found is None:
        return
    good = [
        str(ranks)
        for ranks in range(1, server.ranks + 1)
        if not any(_split(other := server.split(ranks)))
        and all(each.is_whole for each in cut(other))
    ]
    works = f"; these work: {', '.join(good)}" if good else ""
    if found.what == "experts" and not server.cluster.enable_expert_parallel:
        works += "; enable_expert_parallel: true leaves experts whole"
    yield (
        f"tensor_parallel_size must leave whole blocks of {found.block} to each rank, of the "
        f"{found.size} values of {server.model.name}'s {found.what}, got {server.ranks}, which "
        f"leaves {found.slice}{works}"
    )


# --- kernels ------------------------------------------------------------------------------------

_KNOWN = {"ampere", "ada", "hopper", "blackwell", "blackwell-ultra", "blackwell-rtx"}


def _sparse(server: Server, has_kernels: Sequence[str]) -> Iterator[str]:
    mixers = {layer.mixer for layer in server.model.layers}
    is_sparse = any(isinstance(each, LatentMixer) and each.topk for each in mixers)
    gpu = server.cluster.gpu
    if is_sparse and gpu.architecture in _KNOWN - {*has_kernels}:
        yield (
            f"gpu must be of {', '.join(has_kernels)} for {server.model.name}, whose sparse latent "
            f"attention has kernels on no other, got {gpu.name}"
        )


_MODELOPT_FP8 = "fp8 of Model Optimizer"


def _too_old(server: Server, least: float, formats: Sequence[str], why: str) -> Iterator[str]:
    """Yield why a GPU is too old for weights in some formats; none named: for all weights.

    least: the compute capability that vLLM asks for. GPUs whose entry has none are newer.
    """
    gpu, model = server.cluster.gpu, server.model
    if gpu.compute_capability is None or gpu.compute_capability >= least:
        return
    stored = [
        _MODELOPT_FP8 if each.by_modelopt else each.name
        for each in (model.quantization, *model.more_quantizations)
        if each
    ]
    found = next((f" for weights in {name}" for name in stored if name in formats), "")
    if found or not formats:
        yield (
            f"gpu must have a compute capability of {least} or more{found}, got {gpu.name} with "
            f"{gpu.compute_capability:.1f}: {why}"
        )


# --- options that a version refuses together ----------------------------------------------------


def _draft_model(server: Server) -> Iterator[str]:
    drafts = server.config.speculative_config
    if drafts and drafts.method == "draft_model":
        yield (
            "speculative_config.method must not be draft_model, which came later; take engine: "
            "vllm-0.19 or newer, or ngram, eagle or mtp"
        )


def _uneven_drafts(server: Server) -> Iterator[str]:
    drafts, layers = server.config.speculative_config, server.model.num_nextn_predict_layers
    number = drafts.num_speculative_tokens if drafts and drafts.method == "mtp" else 0
    if number > layers > 0 and number % layers:
        yield (
            f"speculative_config.num_speculative_tokens must be a multiple of the {layers} "
            f"drafting layers of {server.model.name}, got {number}"
        )


def _ahead(server: Server) -> Iterator[str]:
    config, rules, of = server.config, server.version.rules, server.version.title
    drafts, ranks = config.speculative_config, config.pipeline_parallel_size
    refused = ""
    if drafts and not rules.async_any_drafts and drafts.method not in rules.async_drafts:
        refused = (
            f"speculative_config.method {drafts.method} in {of}, which plans ahead with "
            f"{', '.join(rules.async_drafts)} alone"
        )
    elif ranks > 1 and not rules.async_pipelines:
        refused = f"pipeline_parallel_size {ranks} in {of}, whose pipelines do not plan ahead"
    if config.async_scheduling and refused:
        yield f"async_scheduling must be false with {refused}; engine: vllm-0.19 or newer can"


def _all_memory(server: Server) -> Iterator[str]:
    if server.config.kv_cache.gpu_memory_utilization == 1:
        yield (
            "kv_cache.gpu_memory_utilization must be < 1, got 1: CUDA takes some of the memory "
            "before vLLM asks for that share of all"
        )


_SLICES: Mapping[str, Callable[[Server], Iterable[BlockSlice]]] = {
    "rows": _rows,
    "merged": lambda server: merged_slices(server.model, server.ranks),
    "experts": _experts,
    "unrefined": _unrefined,
}
_PROBLEMS: Mapping[str, Callable[..., Iterator[str]]] = {
    each.__name__.removeprefix("_"): each
    for each in (
        *(_too_new, _split, _few_experts, _cut, _sparse, _too_old),
        *(_draft_model, _uneven_drafts, _ahead, _all_memory),
    )
}


def _rule(row: Mapping[str, Any]) -> StartRule:
    problems = partial(_PROBLEMS[row["problems"]], **row.get("with", {}))
    source = row["source"].format(**_DATA["places"])
    said = {key: value for key, value in row.items() if key != "with"}
    return StartRule(**{**said, "problems": problems, "source": source})


RULES = tuple(map(_rule, _DATA["rules"]))
"""In the order in which they are checked."""


# --- command lines ------------------------------------------------------------------------------


_USUAL = 8  # GPUs of a node of HGX boards


def room_of_a_node(gpu: str) -> int | None:
    """Return how many such GPUs a node has; None where the entry of the GPU does not say.

    Links may join fewer than all, as those between pairs of cards.
    Raises ScenarioError for a GPU that is not known.
    """
    link = load_gpu(gpu).interconnect
    joined = link.domain
    return link.tray or (joined if joined and joined >= _USUAL else None)


def nodes_problem(ranks: int, engines: int, *, nodes: int | None, room: int | None) -> str:
    """Return why a command does not start on its nodes; empty: it does.

    ranks: GPUs of an engine. engines: of the server. nodes: that `--nnodes` names; None: no flag
    says how many there are, and Ray does not either. room: GPUs of a node; None: not known.

    Source: `ParallelConfig.__post_init__` in `vllm/config/parallel.py` ("World size ... is larger
    than the number of available GPUs") and `EngineArgs.create_engine_config` in
    `vllm/engine/arg_utils.py` (`world_size % self.nnodes`), in all versions; up to 0.24 engines do
    not count there.
    """
    if nodes is None:
        if room is None or ranks <= room:
            return ""
        return (
            f"an engine has {ranks} ranks, and a node {room} of these GPUs: vLLM does not start "
            f"without --nnodes {-(-ranks // room)} in the command of each node, or "
            "--distributed-executor-backend ray; it is timed as with one of them"
        )
    if nodes and ranks % nodes and ranks * engines % nodes:
        return f"{nodes} must divide the {ranks} ranks of an engine: vLLM does not start otherwise"
    return ""


def length_problem(said: int, own: int) -> str:
    """Return why a longest context is refused at the start; empty: it is not.

    said: asked for, in tokens. own: the model's own.

    Source: `_get_and_verify_max_len` in `vllm/config/model.py`, in all versions.
    """
    if said <= own:
        return ""
    return (
        f"the model's own context is {own}, and vLLM does not start with more; write at most "
        f"{own}, or VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 in front of the command"
    )


# --- memory -------------------------------------------------------------------------------------


class ContextLength(NamedTuple):
    """The most tokens of a prompt and its answer, and of a request that fits alone."""

    max_model_len: int
    fits: int

    @property
    def is_too_long(self) -> bool:
        """Whether it is more than fits."""
        return self.max_model_len > self.fits

    def warnings(self, sequences: int, most: float) -> Iterator[ResultWarning]:
        """Yield what results warn of, where vLLM would not start.

        sequences: that may run at once. most: as `most_sequences` has it.
        """
        if self.is_too_long:
            yield ResultWarning(
                LONGEST_CONTEXT,
                "The KV cache is too small for the model's longest context, so vLLM would not "
                "start without max_model_len. Set yours, or auto for the longest that fits.",
                f"{self.fits:,} of its {self.max_model_len:,} tokens fit.",
            )
        if sequences > most:
            yield ResultWarning(
                STATE_BLOCKS,
                "Fewer sequences have room for their states in the KV cache than may run, so vLLM "
                "would not start: lower scheduler.max_num_seqs.",
                f"{most:,.0f} of {sequences:,} have room.",
            )


def context_length(config: EngineConfig, own: int, memory: LaneMemory) -> ContextLength:
    """Return the longest context of an engine: as set, as its memory allows, as the model allows.

    own: the model's own, in tokens, which is the default. vLLM does not start if that does not fit;
    here it is accepted, so that short requests need no such option, and requests that do not fit
    are rejected one by one. Raises ScenarioError for a given length that does not fit, and if
    nothing fits.

    Source: `_check_enough_kv_cache_memory` and `_auto_fit_max_model_len` in
    `vllm/v1/core/kv_cache_utils.py` (0.33: `kv_cache_planning.py`). Here the null block counts as
    taken under every version; vLLM does so since 0.31 or a little before, which is one block's
    difference.
    """
    said = config.max_model_len
    asked = own if said in (None, AUTO_LENGTH) else int(said or own)
    most = longest_that_fits(memory, asked)
    if said is None or most == asked:
        return ContextLength(asked, most)
    if said == AUTO_LENGTH and most:
        return ContextLength(most, most)
    pool, counted = memory.pool(), config.kv_cache.num_gpu_blocks_override is not None
    raised = "num_gpu_blocks_override" if counted else "gpu_memory_utilization"
    raise ScenarioError(
        f"max_model_len must be <= {most}, got {said}: a request of {asked} tokens takes "
        f"{pool.blocks_alone(asked)} blocks of {pool.block_size}, and there are {pool.num_blocks}; "
        f"raise {raised}, or write max_model_len: auto, which takes what fits"
    )


def longest_that_fits(memory: LaneMemory, most: int) -> int:
    """Return the tokens of the longest request, up to `most`, that fits alone; 0 if none does."""
    pool = memory.pool()
    return bisect_right(range(1, most + 1), pool.num_blocks, key=pool.blocks_alone)


def check_length(config: EngineConfig, scheduler: Scheduler, longest: int) -> None:
    """Raise ScenarioError for a threshold of long prompts beyond the longest context.

    Source: `SchedulerConfig.verify_max_model_len` in `vllm/config/scheduler.py`, in 0.33 and not
    in 0.24, where it holds with several partial prefills alone.
    """
    threshold = getattr(scheduler, "long_prefill_token_threshold", None)
    version = version_of(config.engine)
    if not isinstance(scheduler, ChunkedScheduler) or version.minor < 33:
        return
    if threshold is not None and threshold > longest:
        raise ScenarioError(
            f"scheduler.long_prefill_token_threshold must be <= max_model_len {longest}, got "
            f"{threshold}; {version.title} does not start otherwise"
        )


def most_sequences(config: EngineConfig, memory: LaneMemory, *, has_graphs: bool) -> float:
    """Return how many sequences may run at once so that each has a block for its states.

    Infinite for models without states. More are accepted here as a context that is too long is: the
    blocks are an estimate, and vLLM's default is often more.

    has_graphs: whether steps are replayed as CUDA graphs.

    Source: `resolve_cudagraph_mode_and_sizes` in `vllm/config/compilation.py`, in 0.24 and not in
    0.19.
    """
    version, groups = version_of(config.engine), memory.groups
    if groups is None or not groups.num_state_groups or not has_graphs:
        return inf
    return memory.num_in_all + NULL_BLOCKS if version.minor >= 20 else inf
