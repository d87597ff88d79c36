"""Chat support (MIST, Fig. 1): RAG, and KV entries of what was said before.

Each turn of a customer repeats 6,000 tokens of conversation. Five passages of a knowledge base are
found for its question, and go behind it. The entries of the conversation are computed again, or
come from levels that keep what engines have computed.
"""

import mist_sim as mist

model, size = "llama-3.1-8b", mist.load_model("llama-3.1-8b").kv_bytes_per_token
docs = {
    "passage_tokens": 130,
    "num_documents": 5,
    "embedder": mist.EncoderPass(model="dpr-question-encoder", gpu="l4"),
    "index": mist.HnswIndex(num_vectors=2_000_000, dimensions=768, ef_search=64),
    "search": mist.SearchCores(cores=16, memory=64 * 2**30, memory_bandwidth=150e9),
}
dram = mist.StorageLevel(name="dram", read_bandwidth=25e9, capacity=64e9)
disk = mist.StorageLevel(name="disk", read_bandwidth=7e9, latency=50e-6)
turns = mist.PrefixRepetition(
    num_requests=1000,
    num_prefixes=200,
    prefix_len=6000,
    suffix=mist.FixedLength(tokens=60),
    output=mist.NormalLength(mean=200, std=60),
)
cache = mist.KvCacheConfig(enable_prefix_caching=False)
for name, levels in {"computed again": [], "dram": [dram], "dram, disk": [dram, disk]}.items():
    stages = [mist.Rag(num_query_tokens=30), mist.Prefill, mist.Decode]
    clients = [mist.RagClient("docs", **docs)]
    clients += [mist.llm_client("llm", model=model, gpu="h100-sxm", kv_cache=cache)]
    if levels:
        stages.insert(1, mist.KvRetrieval)
        kept = {"bytes_per_token": size, "hits": "stored", "levels": levels}
        clients.append(mist.KvRetrievalClient("kv", **kept))
    work = mist.Workload(turns, mist.PoissonArrivals(rate=4.0), mist.template(stages))
    found = mist.Simulation(clients=clients, workload=work).run().summary
    rate = found.get("retrieval_hit_rate") or 0.0
    print(f"{name:15} {rate:4.0%} found, mean TTFT {found['mean_ttft_ms']:4.0f} ms")
