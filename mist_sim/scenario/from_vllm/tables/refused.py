"""Arguments of `vllm serve` whose effect is not simulated.

Source: `EngineArgs.add_cli_args` in `vllm/engine/arg_utils.py`, 0.12 to 0.33.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
