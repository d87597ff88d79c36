"""Arguments of `vllm serve` that change no simulated time, and why.

Source: `EngineArgs.add_cli_args` in `vllm/engine/arg_utils.py`, the front end's arguments in
`vllm/entrypoints/openai/cli_args.py` (0.12, 0.19) and `vllm/entrypoints/common/cli_args.py` (0.33);
flags that older versions had, in the same files of 0.5 to 0.11.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mist_sim.scenario.from_vllm.flags import Arity


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
_LOGS = "logs and metrics take no simulated time"
_IMAGES = "the requests are of text; workload.images and clients.0.images add images"
_PROCESSES = "how processes find each other changes no step"
_GONE = "vLLM's v1 engine, which is what is simulated, does not use it"
_SAMPLING = "requests set their numbers of tokens; top-p and top-k are sampling.top_p and top_k"
_TOKENIZER = "tokenizing is in front_end.request, and front_end.prompt_token for each token"
_KERNELS = "step times are those of vLLM's default kernels"
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
    _LOGS: "log-level uvicorn-log-level max-log-len log-config-file "
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
    _LOGS: "disable-log-requests disable-log-stats enable-log-requests "
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
