"""An order of eviction of your own: long texts that are asked for often stay, beside LRU and LFU.

GreedyDual-Size-Frequency (Cherkasova, HP Labs report HPL-98-69R1): a block's rank is its uses times
what it costs to compute again, plus an age that grows with what was given up, so that nothing stays
for its past alone.
"""

from dataclasses import dataclass

import numpy as np

import mist_sim as mist
from mist_sim.rng import Streams


@mist.EVICTIONS.register("gdsf")
@dataclass
class CostAware(mist.Eviction):
    age: float = 0.0

    def rank(self, blocks):
        return self.age + (1 + blocks.num_uses) * (blocks.start + blocks.num_blocks)

    def evicted(self, blocks, rank):
        self.age = max(self.age, rank)


rng = Streams(7).generator("texts")
lengths = 16 * rng.integers(20, 300, size=400)  # tokens of 400 texts
texts = rng.choice(400, size=2000, p=(w := 1 / np.arange(1, 401) ** 0.9) / w.sum())
rows = [
    mist.TraceRow(int(lengths[text]) + 64, 60, k / 4, content=((int(text), int(lengths[text])),))
    for k, text in enumerate(texts)
]
workload = mist.Workload(mist.Rows(rows), mist.TraceArrivals())
for name in ("lru", "lfu", "gdsf"):
    cache = mist.KvCacheConfig(num_gpu_blocks_override=20_000, eviction=mist.EVICTIONS[name]())
    client = mist.llm_client("llm", model="llama-3.1-8b", gpu="h100-sxm", kv_cache=cache)
    s = mist.Simulation(clients=[client], workload=workload).run().summary
    print(
        f"{name:5} {s['prefix_cache_hit_rate']:.1%} of the tokens found, "
        f"mean TTFT {s['mean_ttft_ms']:.0f} ms"
    )
