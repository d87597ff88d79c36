"""Admission by the first piece of a prompt or by the whole: long prompts, and memory is full.

vLLM 0.14 admits a prompt when its first piece fits, 0.19 when all of it does; blocks come piece by
piece in both. The same requests, with and without a prefix cache in which those who are thrown out
find their blocks again. Reads scenarios/full_memory.yaml beside this file.
"""

from pathlib import Path

import mist_sim as mist

SCENARIO = Path(__file__).parent / "scenarios/full_memory.yaml"

print(
    "prefix cache  engine     preemptions  mean TTFT   mean E2E  tokens/s  prompt tokens computed"
)
for caching in (False, True):
    for engine in ("vllm-0.14", "vllm-0.19"):
        changes = {"engine": engine, "clients.0.kv_cache.enable_prefix_caching": caching}
        result = mist.simulate(mist.Scenario.load(SCENARIO, overrides=changes))
        s = result.summary
        computed = result.clients["num_prefill_tokens"].sum() / s["total_input_tokens"]
        print(
            f"{'on' if caching else 'off':13} {engine:10} {s['num_preemptions']:11,}"
            f" {s['mean_ttft_ms'] / 1e3:8.1f} s {s['mean_e2el_ms'] / 1e3:8.1f} s"
            f" {s['output_throughput']:9.1f} {computed:12.1f} times"
        )
