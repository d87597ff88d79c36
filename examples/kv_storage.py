"""Where to keep KV entries: the storage architectures of MIST's Table V, with 8 engines."""

import mist_sim as mist

CASES = {  # bytes/s to a client, and in all where clients contend; latency; who share a level
    "A dedicated": (128e9, None, 0.0, 1),
    "B platform-shared": (32e9, None, 0.0, 1),
    "B contended": (32e9, 32e9, 0.0, 4),
    "C rack-shared": (2e9, None, 0.0, 1),
    "C contended": (2e9, 2e9, 0.0, 8),
    "D other rack": (2e9, None, 20e-3, 1),
    "E computed again": None,
}
model, size = "llama-3.1-70b", mist.load_model("llama-3.1-70b").kv_bytes_per_token
room = mist.KvCacheConfig(gpu_memory_utilization=0.95)  # 24K tokens do not fit with 0.9
gpus = {"gpu": "h100-sxm", "tensor_parallel_size": 2, "max_model_len": 25_000, "kv_cache": room}
engines = [mist.llm_client(f"llm-{n}", model=model, **gpus) for n in range(8)]


def serve(context, case):
    stores, stages = [], [mist.Prefill, mist.Decode]
    if case is not None:
        stages.insert(0, mist.KvRetrieval(num_tokens=context))
        each, total, latency, sharing = case
        speed = {"read_bandwidth": each, "total_bandwidth": total, "latency": latency}
        for n in range(8):
            shared = {"name": f"level {n // sharing}", "shared": sharing > 1, "hit_rate": 1.0}
            level = mist.StorageLevel(**shared, **speed)
            stores.append(mist.KvRetrievalClient(f"kv-{n}", bytes_per_token=size, levels=[level]))
    lengths, arrivals = ([context + 256] * 240, [64] * 240), mist.PoissonArrivals(rate=0.8)
    work = mist.Workload.from_lists(*lengths, arrivals=arrivals, pipeline=mist.template(stages))
    return mist.Simulation(clients=[*stores, *engines], workload=work, seed=1).run().summary


for context in (4_096, 24_576):
    print(f"{context:6,} tokens kept    TTFT, ms: mean     p90")
    for name, case in CASES.items():
        found = serve(context, case)
        print(f"  {name:22} {found['mean_ttft_ms']:11,.0f} {found['p90_ttft_ms']:7,.0f}")
