"""News search (MIST, Fig. 1): find passages, then answer. What do the probes of the index cost?"""

from dataclasses import replace

import mist_sim as mist

index = mist.IvfPqIndex(
    num_vectors=21_000_000, dimensions=768, num_lists=16_384, num_probes=64, pq_bytes=64
)
cores = mist.SearchCores(cores=16, memory=64 * 2**30, memory_bandwidth=150e9)
embedder = mist.EncoderPass(model="dpr-question-encoder", gpu="l4")
reranker = mist.EncoderPass(model="ms-marco-minilm-l6", gpu="l4")
pipeline = mist.template([mist.Rag(num_query_tokens=20), mist.Prefill, mist.Decode])
questions = mist.Synthetic(
    num_requests=1000,
    prompt=mist.FixedLength(tokens=60),
    output=mist.NormalLength(mean=200, std=60),
)
workload = mist.Workload(questions, mist.PoissonArrivals(rate=20.0), pipeline)
llm = mist.llm_client("llm", model="llama-3.1-8b", gpu="h100-sxm")
print("probes  retrieval ms  p90 TTFT ms")
for num_probes in (16, 64, 256, 1024):
    docs = mist.RagClient(
        "docs",
        passage_tokens=mist.NormalLength(mean=130, std=20),
        num_documents=5,
        num_candidates=50,
        embedder=embedder,
        index=replace(index, num_probes=num_probes),
        search=cores,
        reranker=reranker,
        store=mist.PassageStore(latency=1e-3, bandwidth=1e9),
    )
    result = mist.Simulation(clients=[docs, llm], workload=workload).run()
    rag = result.stages[result.stages.stage == "rag"]
    mean_ms = 1e3 * (rag.finished_at - rag.queued_at).mean()
    p90_ms = 1e3 * result.requests.ttft.quantile(0.9)
    print(f"{num_probes:6} {mean_ms:13.1f} {p90_ms:12.1f}")
