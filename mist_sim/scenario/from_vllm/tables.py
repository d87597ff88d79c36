"""Tables of flags and variables by their effect, with reasons.

Arguments of `vllm serve` that a key of the scenario stands for, and how their values are read.

Source: `EngineArgs.add_cli_args` in `vllm/engine/arg_utils.py`, 0.12 to 0.33.

Flags that older versions lack although a scenario of them has what the flags stand for.

Source: `EngineArgs.add_cli_args` in vllm/engine/arg_utils.py (0.10 to 0.33).

Arguments of `vllm serve` whose effect is not simulated.

Source: `EngineArgs.add_cli_args` in `vllm/engine/arg_utils.py`, 0.12 to 0.33.

Older names of arguments of `vllm serve`, and what took their place.

Source: `EngineArgs.add_cli_args` in `vllm/engine/arg_utils.py` and its deprecation notes, 0.8 to
0.12; for graphs vLLM issue 20283 and pull request 26016.

Variables of a server's environment, by their effect.

Source: vllm/envs.py (0.19), and those of older versions; NCCL's and PyTorch's own documents.

Arguments of `vllm serve` that change no simulated time, and why.

Source: `EngineArgs.add_cli_args` in `vllm/engine/arg_utils.py`, the front end's arguments in
`vllm/entrypoints/openai/cli_args.py` (0.12, 0.19) and `vllm/entrypoints/common/cli_args.py` (0.33);
flags that older versions had, in the same files of 0.5 to 0.11.
"""

from __future__ import annotations

import json
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mist_sim.errors import brief, cut
from mist_sim.scenario.engines.versions import VERSIONS
from mist_sim.scenario.from_vllm.flags import Arity, Flag

_POWERS = {letter: power for power, letter in enumerate("kmgt", start=1)}


def whole_number(text: str) -> int:
    """Return a number such as 8192, 8k (8,000) or 8K (8,192); vLLM's `human_readable_int`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT])", text.strip())
    if not found:
        return int(text)
    number, letter = found.groups()
    if letter.islower():
        return round(float(number) * float(1000 ** _POWERS[letter]))
    if "." in number:
        raise ArgumentTypeError(f"decimals are not allowed with {letter}, got {brief(text)}")
    return int(number) * int(1024 ** _POWERS[letter.lower()])


def context_length(text: str) -> int | str:
    """Return a length in tokens; "auto" where vLLM looks for one that fits (`auto`, -1)."""
    return "auto" if text.strip().lower() in ("-1", "auto") else whole_number(text)


def mapping(text: str) -> dict[str, Any]:
    """Return a JSON object."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ArgumentTypeError(f"not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise ArgumentTypeError(f"must be a JSON object, got {cut(text)}")
    return found


@dataclass(frozen=True)
class Honoured:
    """An argument with a counterpart.

    key: its path below a client. read: what reads its text; None for a switch. short: another
    spelling. many: whether it takes several values. choices: all that vLLM takes, where a scenario
    may say more.
    """

    key: str
    read: Callable[[str], Any] | None = str
    short: str = ""
    many: bool = False
    choices: tuple[str, ...] | None = None


HONOURED: Mapping[str, Honoured] = {
    "--model": Honoured("model"),
    "--quantization": Honoured("quantization", short="-q"),
    "--tensor-parallel-size": Honoured("tensor_parallel_size", int, "-tp"),
    "--pipeline-parallel-size": Honoured("pipeline_parallel_size", int, "-pp"),
    "--prefill-context-parallel-size": Honoured("prefill_context_parallel_size", int, "-pcp"),
    "--decode-context-parallel-size": Honoured("decode_context_parallel_size", int, "-dcp"),
    "--data-parallel-size": Honoured("data_parallel_size", int, "-dp"),
    "--enable-expert-parallel": Honoured("enable_expert_parallel", None, "-ep"),
    "--max-model-len": Honoured("max_model_len", context_length),
    "--async-scheduling": Honoured("async_scheduling", None),
    "--max-num-seqs": Honoured("scheduler.max_num_seqs", int),
    "--max-num-batched-tokens": Honoured("scheduler.max_num_batched_tokens", whole_number),
    "--long-prefill-token-threshold": Honoured("scheduler.long_prefill_token_threshold", int),
    "--scheduling-policy": Honoured("scheduler.order", choices=("fcfs", "priority")),
    "--scheduler-reserve-full-isl": Honoured("scheduler.scheduler_reserve_full_isl", None),
    "--prefill-schedule-interval": Honoured("scheduler.prefill_schedule_interval", int),
    "--block-size": Honoured("kv_cache.block_size", int),
    "--gpu-memory-utilization": Honoured("kv_cache.gpu_memory_utilization", float),
    "--kv-cache-dtype": Honoured("kv_cache.kv_cache_dtype"),
    "--num-gpu-blocks-override": Honoured("kv_cache.num_gpu_blocks_override", int),
    "--watermark": Honoured("kv_cache.watermark", float),
    "--enable-prefix-caching": Honoured("kv_cache.enable_prefix_caching", None),
    "--kv-offloading-size": Honoured("kv_cache.tiers", float),
    "--enforce-eager": Honoured("predictor.enforce_eager", None),
    "--max-cudagraph-capture-size": Honoured("predictor.max_cudagraph_capture_size", int),
    "--cudagraph-capture-sizes": Honoured("predictor.cudagraph_capture_sizes", int, many=True),
    "--speculative-config": Honoured("speculative_config", mapping, "-sc"),
}


_SINCE: Mapping[str, int] = {
    "--moe-backend": 17,
    "--mamba-cache-mode": 16,
    "--lora-target-modules": 19,
    "--language-model-only": 17,
    "--spec-method": 22,
    "--spec-model": 22,
    "--spec-tokens": 22,
}


def marked(flags: Sequence[Flag], engine: str | None) -> list[Flag]:
    """Return flags, with a fault where the version lacks them. engine: known, or anything else."""
    return [
        replace(flag, fault=f"{engine} does not have it; leave it out, or name a newer --engine")
        if not flag.fault and _lacks(engine, flag.name)
        else flag
        for flag in flags
    ]


def _lacks(engine: str | None, flag: str) -> bool:
    version = VERSIONS.get(engine or "")
    return version is not None and version.minor < _SINCE.get(flag, 0)


@dataclass(frozen=True)
class Refused:
    """An argument for something that is not simulated, unless its value is neutral.

    reason: why. instead: what to write. neutral: values that ask for nothing; "True" and "False"
    where it is a switch. short: another spelling. key: of a client; with it in `--set`, the flag is
    not refused.
    """

    reason: str
    instead: str
    neutral: tuple[str, ...] = ()
    short: str = ""
    key: str = ""

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value."""
        return bool(self.neutral) and set(self.neutral) <= {"True", "False"}

    @property
    def message(self) -> str:
        """The message if it is refused."""
        return f"{self.reason}; instead: {self.instead}"


_NO_OFFLOADING = "weights that lie outside the GPU's memory are not simulated"
_BALANCER = "how requests are spread over replicas is the scenario's router"
_COPIES = "count: N in place of data_parallel_size"
_OLD = "vLLM has had one form since 0.8"
_ONE_FORM = "--speculative-config"
_DBO = "batches are not overlapped"

REFUSED: Mapping[str, Refused] = {
    "--dtype": Refused(
        "weights of 16 bits, or quantized ones, alone are simulated",
        "leave it out, or --quantization",
        ("auto", "half", "float16", "bfloat16"),
    ),
    "--enable-chunked-prefill": Refused(
        "it is another scheduler here",
        "--set clients.0.scheduler.type=mixed",
        ("True",),
        key="scheduler.type",
    ),
    "--kv-cache-memory-bytes": Refused(
        "the cache is given in blocks", "--num-gpu-blocks-override, as the engine logs it"
    ),
    "--data-parallel-rank": Refused(_BALANCER, _COPIES, (), "-dpn"),
    "--data-parallel-external-lb": Refused(_BALANCER, _COPIES, ("False",), "-dpe"),
    "--data-parallel-hybrid-lb": Refused(_BALANCER, _COPIES, ("False",), "-dph"),
    "--enable-dbo": Refused(_DBO, "leave it out", ("False",)),
    "--ubatch-size": Refused(_DBO, "leave it out", ("0",)),
    "--enable-elastic-ep": Refused("the number of ranks is fixed", "leave it out", ("False",)),
    "--cpu-offload-gb": Refused(_NO_OFFLOADING, "leave it out", ("0", "0.0")),
    "--offload-group-size": Refused(_NO_OFFLOADING, "leave it out", ("0",)),
    "--quantization-config": Refused(
        "it sets the weights' format layer by layer",
        "--quantization, or --set model=PATH of a config.json with it",
        ("{}",),
    ),
    "--default-mm-loras": Refused("adapters of images are not simulated", "leave it out"),
    "--performance-mode": Refused(
        "it changes several limits", "--max-num-seqs and --max-num-batched-tokens", ("balanced",)
    ),
    "--max-num-partial-prefills": Refused(
        "vLLM 0.12 to 0.26 do not start with it, newer ones do not have it",
        "--long-prefill-token-threshold",
        ("1",),
    ),
    "--max-long-partial-prefills": Refused("one limit is simulated", "leave it out", ("1",)),
    "--max-num-active-seqs": Refused("one limit is simulated", "--max-num-seqs"),
    "--max-num-queued-reqs": Refused(
        "waiting requests alone are counted here", "--set clients.0.admission.max_num_waiting=N"
    ),
    "--max-num-queued-tokens": Refused(
        "waiting requests alone are counted here", "--set clients.0.admission.max_num_waiting=N"
    ),
    "--long-prefill-token-threshold-adaptive": Refused(
        "the threshold is fixed here", "--long-prefill-token-threshold", ("False",)
    ),
    "--scheduler-cls": Refused("a class of vLLM does not run here", "a scheduler plugin"),
    "--kv-cache-dtype-skip-layers": Refused("all layers store alike", "leave it out"),
    "--kv-sharing-fast-prefill": Refused(
        "layers that share their cache are not simulated", "leave it out", ("False",)
    ),
    "--mm-encoder-only": Refused(
        "it is a client of type image_encoder", "leave it out", ("False",)
    ),
    "--ec-transfer-config": Refused("encoders are clients of type image_encoder", "leave it out"),
    "--speculative-model": Refused(_OLD, _ONE_FORM),
    "--num-speculative-tokens": Refused(_OLD, _ONE_FORM),
    "--speculative-draft-tensor-parallel-size": Refused(_OLD, _ONE_FORM),
    "--ngram-prompt-lookup-max": Refused(_OLD, _ONE_FORM),
    "--ngram-prompt-lookup-min": Refused(_OLD, _ONE_FORM),
    "--speculative-max-model-len": Refused(_OLD, _ONE_FORM),
    "--spec-decoding-acceptance-method": Refused(_OLD, _ONE_FORM),
    "--enable-prompt-adapter": Refused(
        "vLLM has had no prompt adapters since 0.10", "leave it out", ("False",)
    ),
    "--runner": Refused("text generation alone is simulated", "leave it out", ("auto", "generate")),
    "--task": Refused("text generation alone is simulated", "leave it out", ("auto", "generate")),
    "--convert": Refused("text generation alone is simulated", "leave it out", ("auto", "none")),
    "--pooler-config": Refused("text generation alone is simulated", "leave it out"),
    "--device": Refused("GPUs alone are simulated", "leave it out", ("auto", "cuda")),
    "--pipeline-parallel-layer-partition": Refused("ranks have equal parts", "leave it out"),
}


@dataclass(frozen=True, slots=True)
class Renamed:
    """An older name.

    now: the flag in its place. until: the last version of vLLM that has the old one. arity: how
    many values it takes. values: of the new flag, where the old one is a switch. alone: the new
    flag where one value is given.
    """

    now: str
    until: str
    arity: Arity = "one"
    values: tuple[str, ...] = ()
    alone: str = ""

    def flag(self, old: Flag) -> Flag:
        """Return the flag as newer versions write it."""
        name = self.alone if self.alone and len(old.values) == 1 else self.now
        return replace(old, name=name, values=self.values or old.values)


RENAMED: Mapping[str, Renamed] = {
    "--cuda-graph-sizes": Renamed(
        "--cudagraph-capture-sizes", "0.11", "many", alone="--max-cudagraph-capture-size"
    ),
    "--override-pooler-config": Renamed("--pooler-config", "0.11"),
    "--enable-multimodal-encoder-data-parallel": Renamed(
        "--mm-encoder-tp-mode", "0.10", "switch", values=("data",)
    ),
    **dict.fromkeys(
        ("--num-redundant-experts", "--eplb-window-size", "--eplb-step-interval"),
        Renamed("--eplb-config", "0.11"),
    ),
    "--eplb-log-balancedness": Renamed("--eplb-config", "0.11", "switch"),
    **dict.fromkeys(
        (
            "--guided-decoding-disable-fallback",
            "--guided-decoding-disable-any-whitespace",
            "--guided-decoding-disable-additional-properties",
        ),
        Renamed("--structured-outputs-config", "0.11", "switch"),
    ),
}


_WHERE = "it names places, and changes no speed"
_LOGS = "logs take no simulated time"
_START = "it is over before the first request"
_KERNELS = "step times are those of vLLM's default kernels"
_LINKS = "links are as fast as the GPU's entry says"
_PLAIN = "vLLM's steps do not depend on it"

NO_EFFECT: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), why)
    for pattern, why in (
        (
            r"VLLM_\w*(LOG|DEBUG|TRACE|PROFILER|USAGE|TRACK|NVTX|RINGBUFFER_WARNING)\w*|NCCL_DEBUG\w*|GLOG_\w+",
            _LOGS,
        ),
        (
            (
                r"VLLM_(HOST_IP|PORT|RPC\w*|LOOPBACK_IP|API_KEY|CONFIG_ROOT|CACHE_ROOT|ASSETS_CACHE\w*|"
                r"NIXL_SIDE_CHANNEL\w*|DP_MASTER\w*|USE_MODELSCOPE|NCCL_SO_PATH|MODEL_REDIRECT_PATH|"
                r"PLUGINS|TUNED_CONFIG_FOLDER|HTTP_TIMEOUT\w*|\w*TIMEOUT\w*|MOONCAKE_\w+|"
                r"XLA_CACHE_PATH|RAY_\w+)"
            ),
            _WHERE,
        ),
        (
            (
                r"VLLM_(WORKER_MULTIPROC_METHOD|ENABLE_V1_MULTIPROCESSING|DISABLE_COMPILE_CACHE|"
                r"SERVER_DEV_MODE|ALLOW_RUNTIME_LORA_UPDATING|DEEP_GEMM_WARMUP|SKIP_P2P_CHECK|"
                r"ALLOW_INSECURE_SERIALIZATION|USE_AOT_COMPILE|ENGINE_READY_TIMEOUT_S|"
                r"KEEP_ALIVE_ON_ENGINE_DEATH|TARGET_DEVICE|LORA_\w+|VERSION\w*)"
            ),
            _START,
        ),
        (
            (
                r"VLLM_ALLOW_LONG_MAX_MODEL_LEN|VLLM_(\w*IMAGE\w*|\w*VIDEO\w*|\w*AUDIO\w*|MM_\w+|"
                r"MEDIA_\w+)"
            ),
            "the scenario's lengths hold, of text",
        ),
        (
            r"(HF|HUGGING_FACE|HUGGINGFACE|TRANSFORMERS|MODELSCOPE|TOKENIZERS|XDG|AWS|S3)_\w+",
            _WHERE,
        ),
        (
            r"(CUDA_DEVICE_ORDER|CUDA_HOME|NVIDIA_\w+|HIP_\w+|ROCR_\w+|HSA_NO_SCRATCH_RECLAIM)",
            _WHERE,
        ),
        (
            r"(NCCL|GLOO|TP|UCX|HCCL)_(SOCKET_IFNAME|NET_DEVICES|IB_HCA|IF_IP)|MASTER_\w+|RAY_\w+",
            _WHERE,
        ),
        (r"LMCACHE_\w+", "no LMCache connector of --kv-transfer-config is there to read it"),
        (r"PYTORCH_(CUDA_|HIP_)?ALLOC_CONF", "memory is counted in blocks, without fragments"),
        (
            r"(SAFETENSORS|TORCH_CUDA_ARCH|TORCHINDUCTOR|TRITON|FLASHINFER)_\w*|TORCH_\w*CACHE\w*",
            _START,
        ),
        (
            (
                r"(PATH|LD_\w+|HOME|PYTHON\w*|LANG|LC_\w+|USER|TZ|http_proxy|https_proxy|no_proxy|\w+_PROXY|"
                r"\w*API_KEY|\w*TOKEN)"
            ),
            _PLAIN,
        ),
    )
)
"""Variables without effect on times, by pattern of the whole name, with the reason."""

ASSUMED: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), why)
    for pattern, why in (
        (
            (
                r"VLLM_(ATTENTION_BACKEND|USE_FLASHINFER\w*|FLASHINFER\w*|USE_DEEP_GEMM\w*|"
                r"MOE_USE_DEEP_GEMM|ROCM_\w+|USE_TRITON\w*|USE_TRTLLM\w*|FLASH_ATTN_VERSION|"
                r"MXFP4_USE_MARLIN|USE_AITER\w*|MARLIN_\w+|NVFP4_\w+|USE_CUDNN\w*|\w*CUTLASS\w*|"
                r"ENABLE_INDUCTOR\w*|KV_CACHE_LAYOUT|MOE_\w+|ENABLE_MOE_DP_CHUNK|USE_OINK_OPS|"
                r"ENABLE_FUSED_MOE\w*|USE_FUSED_MOE\w*|DISABLED_KERNELS|BLOCKSCALE\w*|FUSED_MOE\w*|"
                r"DISABLE_SHARED_EXPERTS_STREAM|SHARED_EXPERTS\w*|TEST_FORCE_FP8_MARLIN|USE_FBGEMM|"
                r"USE_STANDALONE_COMPILE|BATCH_INVARIANT|USE_V2_MODEL_RUNNER)|AMDGCN_\w+|CUDA_MODULE\w*"
            ),
            _KERNELS,
        ),
        (
            (
                r"VLLM_(ALL2ALL_BACKEND|ALLREDUCE\w*|USE_NCCL\w*|DISABLE_PYNCCL|DEEPEP\w*|DEEPEPLL\w*|"
                r"RANDOMIZE_DP\w*|NIXL_EP\w*)|(NCCL|UCX|NVSHMEM|NIXL|GLOO|FI|HCCL)_\w+"
            ),
            _LINKS,
        ),
        (
            (
                r"(OMP|MKL|OPENBLAS)_\w+|VLLM_(V1_OUTPUT_PROC\w*|SLEEP_WHEN_IDLE|CPU_\w*|XGRAMMAR\w*|MQ_\w+|"
                r"MSGPACK\w*)|CUDA_LAUNCH_BLOCKING"
            ),
            "host times are those of overhead",
        ),
    )
)
"""Variables that change times of a real server, which the simulation passes over."""

REFUSED_VARIABLES: dict[str, tuple[tuple[str, ...], str]] = {
    "VLLM_USE_V1": (("1", "true"), "vLLM's v1 engine alone is simulated; instead: leave it out"),
    "VLLM_MLA_DISABLE": (
        ("0",),
        "latents are cached as such; instead: --set model=PATH of a config.json without them",
    ),
    "VLLM_CPU_KVCACHE_SPACE": ((), "GPUs alone are simulated; instead: leave it out"),
    "VLLM_PP_LAYER_PARTITION": ((), "ranks have equal parts; instead: leave it out"),
    "VLLM_ENABLE_DBO": (("0",), "batches are not overlapped; instead: leave it out"),
    "VLLM_DP_RANK": ((), "each rank is one of data_parallel_size; instead: --data-parallel-size"),
    "VLLM_DP_SIZE": ((), "each rank is one of data_parallel_size; instead: --data-parallel-size"),
    "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": (
        (),
        (
            "the version of engine says whether graphs are counted; instead: leave it out, and "
            "write what they take under --set clients.0.kv_cache.context_memory=..."
        ),
    ),
}
"""Variables that ask for what is not simulated, with the values that do not, and what to do."""


@dataclass(frozen=True, slots=True)
class WithoutEffect:
    """A flag that changes no simulated time.

    why: the reason. arity: what it takes. is_assumed: a real server's times do change.
    """

    why: str
    arity: Arity = "one"
    is_assumed: bool = False


_ADDRESS = "it says where and whom the server answers"
_TEXT = "it shapes names and text; the requests determine how many tokens there are"
_LOADING = "it is over before the first request"
_LOGS_AND_METRICS = "logs and metrics take no simulated time"
_IMAGES = "the requests are of text; workload.images and clients.0.images add images"
_PROCESSES = "how processes find each other changes no step"
_GONE = "vLLM's v1 engine, which is what is simulated, does not use it"
_SAMPLING = "requests set their numbers of tokens; top-p and top-k are sampling.top_p and top_k"
_TOKENIZER = "tokenizing is in front_end.request, and front_end.prompt_token for each token"

_CASCADE = (
    "each decode reads its own keys here; vLLM to 0.14 reads a prefix that all requests share once "
    "unless this is given, 0.19 to 0.24 with --no-disable-cascade-attn, and 0.33 never does"
)
_EXPERTS = (
    "experts are as evenly loaded as expert_load_imbalance says, 1.0 by default; moving them takes "
    "no time, and copies of them no memory"
)
_HTTP = "a process of the front end takes front_end.request for each request"

_SEVERAL = {"--api-key", "--served-model-name", "--middleware"}

_VALUES: Mapping[str, str] = {
    _ADDRESS: "host port uds api-key ssl-certfile ssl-keyfile ssl-ca-certs ssl-cert-reqs "
    "ssl-ciphers "
    "root-path allowed-origins allowed-methods allowed-headers middleware "
    "h11-max-incomplete-event-size h11-max-header-count allowed-local-media-path "
    "allowed-media-domains",
    _TEXT: "served-model-name chat-template chat-template-content-format response-role "
    "tool-call-parser tool-parser-plugin tool-server reasoning-parser reasoning-parser-plugin "
    "default-chat-template-kwargs structured-outputs-config guided-decoding-backend "
    "reasoning-config io-processor-plugin",
    _LOADING: "load-format download-dir revision code-revision hf-token hf-config-path "
    "config-format "
    "model-loader-extra-config safetensors-load-strategy ignore-patterns pt-load-map-location "
    "max-parallel-loading-workers weight-transfer-config shutdown-timeout",
    _LOGS_AND_METRICS: "log-level uvicorn-log-level max-log-len log-config-file "
    "disable-access-log-for-endpoints otlp-traces-endpoint collect-detailed-traces "
    "show-hidden-metrics-for-version kv-cache-metrics-sample kv-events-config profiler-config",
    _IMAGES: "mm-processor-kwargs mm-processor-cache-gb "
    "mm-processor-cache-type "
    "mm-shm-cache-max-object-size-mb mm-encoder-tp-mode mm-encoder-attn-backend media-io-kwargs "
    "video-pruning-rate mm-tensor-ipc image-input-type image-token-id image-input-shape",
    _PROCESSES: "master-addr master-port data-parallel-address "
    "data-parallel-backend data-parallel-rpc-port distributed-timeout-seconds worker-cls "
    "worker-extension-cls",
    _GONE: "swap-space max-seq-len-to-capture max-context-len-to-capture num-lookahead-slots "
    "num-scheduler-steps preemption-mode scheduler-delay-factor "
    "speculative-disable-by-batch-size speculative-disable-mqa-scorer "
    "typical-acceptance-sampler-posterior-threshold typical-acceptance-sampler-posterior-alpha "
    "max-prompt-adapters max-prompt-adapter-token long-lora-scaling-factors "
    "quantization-param-path qlora-adapter-name-or-path override-neuron-config",
    "it belongs to --enable-dbo": "dbo-decode-token-threshold dbo-prefill-token-threshold",
    _SAMPLING: "seed max-logprobs logprobs-mode",
    _TOKENIZER: "tokenizer tokenizer-mode tokenizer-revision tokenizer-pool-size",
    "all hashes take the same time": "prefix-caching-hash-algo",
}
_SWITCHES: Mapping[str, str] = {
    _ADDRESS: "allow-credentials disable-fastapi-docs enable-ssl-refresh enable-offline-docs",
    _TEXT: "enable-auto-tool-choice enable-prompt-tokens-details enable-force-include-usage "
    "enable-request-id-headers return-tokens-as-token-ids trust-request-chat-template "
    "exclude-tools-when-tool-choice-none enable-tokenizer-info-endpoint enable-reasoning "
    "enable-return-routed-experts",
    _LOADING: "trust-remote-code enable-sleep-mode use-tqdm-on-load enable-ep-weight-filter "
    "allow-deprecated-quantization fail-on-environ-validation enable-flashinfer-autotune",
    _LOGS_AND_METRICS: "disable-log-requests disable-log-stats enable-log-requests "
    "disable-uvicorn-access-log enable-server-load-tracking enable-log-outputs enable-log-deltas "
    "log-error-stack kv-cache-metrics cudagraph-metrics enable-mfu-metrics "
    "aggregate-engine-logging enable-logging-iteration-details enable-layerwise-nvtx-tracing",
    _IMAGES: "enable-mm-embeds skip-mm-profiling interleave-mm-strings "
    "disable-mm-preprocessor-cache disable-chunked-mm-input",
    _PROCESSES: "disable-frontend-multiprocessing worker-use-ray engine-use-ray "
    "ray-workers-use-nsight disable-nccl-for-dp-synchronization",
    _GONE: "use-v2-block-manager multi-step-stream-outputs disable-async-output-proc",
    _TOKENIZER: "skip-tokenizer-init enable-prompt-embeds",
    "steps without adapters are timed without them": "specialize-active-lora",
}
_ASSUMED_VALUES: Mapping[str, str] = {
    _KERNELS: "gdn-prefill-backend override-attention-dtype mamba-cache-dtype "
    "mamba-ssm-cache-dtype mamba-block-size model-impl additional-config logits-processors "
    "dcp-comm-backend",
    _EXPERTS: "eplb-config expert-placement-strategy",
    _HTTP: "renderer-num-workers",
    "tokens count when they are computed; clients see bundles of them": "stream-interval",
}
_ASSUMED_SWITCHES: Mapping[str, str] = {
    _CASCADE: "disable-cascade-attn",
    _KERNELS: "calculate-kv-scales",
    _EXPERTS: "enable-eplb",
}

SHORT_WITHOUT_EFFECT: Mapping[str, str] = {
    "-dpa": "--data-parallel-address",
    "-dpp": "--data-parallel-rpc-port",
    "-dpb": "--data-parallel-backend",
}


def _table() -> dict[str, WithoutEffect]:
    found: dict[str, WithoutEffect] = {}
    for groups, arity, is_assumed in (
        (_VALUES, "one", False),
        (_SWITCHES, "switch", False),
        (_ASSUMED_VALUES, "one", True),
        (_ASSUMED_SWITCHES, "switch", True),
    ):
        for why, names in groups.items():
            for name in names.split():
                flag = f"--{name}"
                takes: Arity = "many" if flag in _SEVERAL else "one" if arity == "one" else "switch"
                found[flag] = WithoutEffect(why, takes, is_assumed)
    return found


WITHOUT_EFFECT: Mapping[str, WithoutEffect] = _table()
"""Each such flag, with its reason."""
