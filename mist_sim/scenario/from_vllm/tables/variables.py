"""Variables of a server's environment, by their effect.

Source: vllm/envs.py (0.19), and those of older versions; NCCL's and PyTorch's own documents.
"""

from __future__ import annotations

import re

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

REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
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
