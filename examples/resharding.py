"""Seesaw on eight A10s: the best pair of layouts by appendix A, and the best that stays, simulated.

python resharding.py
"""

from mist_sim import ContinuousScheduler, Simulation, Workload, llm_client, load_gpu
from mist_sim.clients.kv_cache import KvCacheConfig
from mist_sim.clients.options.resharding_options import Resharding
from mist_sim.hardware.resharding import device_of
from mist_sim.models import load_model
from mist_sim.search.resharding import Lengths, rank_pairs

PROMPT, ANSWER, NUM = 3000, 200, 120
MODEL, GPU = load_model("llama-2-70b"), load_gpu("a10")


def sizes(layout):
    return {"tensor_parallel_size": layout.tensor, "pipeline_parallel_size": layout.pipeline}


def requests_per_s(prefill, decode):
    client = llm_client(
        "llm",
        model=MODEL,
        gpu=GPU,
        scheduler=ContinuousScheduler(max_num_seqs=256, max_num_batched_tokens=4096),
        kv_cache=KvCacheConfig(enable_prefix_caching=False),
        resharding=Resharding(**sizes(prefill)) if prefill != decode else None,
        **sizes(decode),
    )
    workload = Workload.from_lists([PROMPT] * NUM, [ANSWER] * NUM, [0.0] * NUM)
    return Simulation(clients=[client], workload=workload).run().summary["request_throughput"]


found = rank_pairs(MODEL, device_of(GPU), 8, Lengths(PROMPT, ANSWER))
for pair in (found.best_static, found.best):
    rate = requests_per_s(pair.prefill_layout, pair.decode_layout)
    print(f"{pair.label:14} {1 / pair.total:.3f} requests/s by appendix A, {rate:.3f} simulated")
