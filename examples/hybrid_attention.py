"""A model most of whose layers keep a state, beside one whose layers all keep entries.

Qwen3.5-397B-A17B has attention in 15 of 60 layers and Gated DeltaNet in the others; Qwen3-235B-A22B
has attention in all 94. Both in 16 bits on eight H200s, with prompts of 4,096 and 131,072 tokens:
how many requests the memory holds, what a token takes while eight answers are written, and what an
answer of 500 tokens costs when eight requests come at once, at the median price of an H200.
"""

from statistics import median

import mist_sim as mist
from mist_sim.core.batch import StepBatch
from mist_sim.hardware.prices import offers

ANSWER, TOGETHER = 500, 8
PRICE = median(each.price("on_demand") for each in offers() if each.gpu == "h200")

print(f"eight H200s at ${PRICE:.2f} an hour each")
print("model                           prompt  GB each  requests held  TPOT    TTFT   $ an answer")
for model in ("qwen3-235b-a22b-instruct-2507", "qwen3.5-397b-a17b"):
    for prompt in (4_096, 131_072):
        client = mist.llm_client("llm", model=model, gpu="h200", tensor_parallel_size=8)
        pool = client.memory.pool()
        pages = pool.blocks_of(prompt + ANSWER)
        size = pages * client.kv_block_bytes / 1e9  # on all eight GPUs
        step = client.predictor.ranks[0].step_time(StepBatch((), TOGETHER, TOGETHER * prompt))
        workload = mist.Workload.from_lists([prompt] * 8, [ANSWER] * 8, [0.0] * 8)
        summary = mist.Simulation(clients=[client], workload=workload).run().summary
        dollars = summary["duration"] / 3600 * 8 * PRICE / TOGETHER
        print(
            f"{model:30} {prompt:7,} {size:8.2f} {pool.num_blocks // pages:14,}"
            f" {step * 1e3:5.1f} ms {summary['mean_ttft_ms'] / 1e3:5.1f} s {dollars:11.4f}"
        )
