"""Arguments of `vllm bench serve` without effect on times, and arguments that are not simulated.

Source: `add_cli_args` in vllm/benchmarks/serve.py and `add_dataset_parser` in
vllm/benchmarks/datasets.py (0.19, 0.33).
"""

from __future__ import annotations

from collections.abc import Mapping

_WHERE = "it says where the server is and what the benchmark tells of itself"
_SAMPLING = "it takes no time here; top-p, top-k and penalties do"
_RESULTS = "it says what is shown and saved"
_LENGTHS = "answers have the lengths of the command"
_OTHER_DATA = "it belongs to another dataset"

VALUES: Mapping[str, str] = {
    _WHERE: "backend base-url endpoint endpoint-type host port label metadata header model "
    "served-model-name tokenizer tokenizer-mode ready-check-timeout-sec request-id-prefix timeout",
    _SAMPLING: "min-p logprobs",
    _RESULTS: "metric-percentiles percentile-metrics result-dir result-filename "
    "timeline-itl-thresholds",
    _OTHER_DATA: "sonnet-input-len sonnet-output-len sonnet-prefix-len spec-bench-output-len "
    "spec-bench-category custom-output-len hf-subset hf-split hf-name hf-output-len "
    "blazedit-min-distance blazedit-max-distance random-mm-base-items-per-request "
    "random-mm-limit-mm-per-prompt random-mm-bucket-config random-mm-num-mm-items-range-ratio",
}
SWITCHES: Mapping[str, str] = {
    _WHERE: "insecure trust-remote-code skip-tokenizer-init skip-chat-template "
    "enable-multimodal-chat",
    _RESULTS: "append-result disable-tqdm profile save-detailed save-result plot-timeline "
    "plot-dataset-stats",
    _LENGTHS: "ignore-eos no-oversample disable-shuffle no-reranker",
}

WITHOUT_EFFECT: Mapping[str, str] = {
    f"--{name}": why
    for table in (VALUES, SWITCHES)
    for why, names in table.items()
    for name in names.split()
}
"""Each flag that changes no time, with the reason."""

REFUSED: Mapping[str, tuple[str, str]] = {
    "--ramp-up-strategy": (
        (
            "not simulated as such; write workload.arrivals: {type: closed_loop, ramp_up: ...}, "
            "or a "
            "trace"
        ),
        "",
    ),
    "--ramp-up-start-rps": ("it belongs to --ramp-up-strategy; leave it out", ""),
    "--ramp-up-end-rps": ("it belongs to --ramp-up-strategy; leave it out", ""),
    "--lora-assignment": ("adapters are drawn at random; leave it out", "random"),
    "--sharegpt-output-len": (
        "answers of the file have their own lengths; instead: --set workload.max_tokens=N",
        "",
    ),
    "--random-batch-size": ("one prompt a request is simulated; leave it out", "1"),
}
"""Flags that are refused, unless they have the value behind the reason."""

REFUSED_SWITCHES: Mapping[str, str] = {
    "--use-beam-search": "beams are not simulated; leave it out",
    "--no-stream": "answers are streamed; leave it out",
}
