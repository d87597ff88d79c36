"""Retrieval on a GPU, and the P99 of first tokens: MIST's box "RAG" (section V-A1)."""

from __future__ import annotations

from dataclasses import replace

import mist_sim as mist
from benchmarks.mist_insights import SAMPLING

INDEX = mist.IvfPqIndex(
    num_vectors=500_000_000, dimensions=768, num_lists=65_536, num_probes=64, pq_bytes=64
)
PROBES = (16, 64, 256, 1024)
PROMPTS = {"700 tokens": mist.FixedLength(tokens=700), "Table III": None}
SEARCHERS = {
    "64 cores": mist.SearchCores(cores=64, memory=512 * 2**30, memory_bandwidth=300e9),
    "H100": mist.SearchGpu(gpu="h100-sxm"),
}


def retrieval(where: str, probes: int, prompt: str, rate: float, requests: int) -> dict[str, float]:
    """Return P50 and P99 of TTFT and the mean time of a search, in s.

    Qwen3-4B on eight H100s with the answers of MIST's summaries.
    """
    docs = mist.RagClient(
        "docs",
        passage_tokens=0,  # prompts have their passages, as those of Table III do
        num_documents=10,
        embedder=mist.EncoderPass(model="dpr-question-encoder", gpu="h100-sxm"),
        index=replace(INDEX, num_probes=probes),
        search=SEARCHERS[where],
    )
    law = PROMPTS[prompt] or mist.MeanMedianP95Length(mean=19260, median=11284, p95=59497)
    answers = mist.MeanMedianP95Length(mean=218, median=232, p95=332)
    llms = [
        mist.llm_client(
            f"llm-{n}", model="qwen3-4b", gpu="h100-sxm", max_model_len=262144, sampling=SAMPLING
        )
        for n in range(8)
    ]
    work = mist.Workload(
        mist.Synthetic(num_requests=requests, prompt=law, output=answers),
        mist.PoissonArrivals(rate=rate),
        mist.template([mist.Rag(num_query_tokens=20), mist.Prefill, mist.Decode]),
    )
    simulation = mist.Simulation(
        clients=[docs, *llms], workload=work, router=mist.LeastOutstandingRouter(), seed=1
    )
    result = simulation.run()
    stages = result.stages
    search = stages[stages["stage"] == "rag"]
    ttft = result.requests["ttft"]
    return {
        "p50": float(ttft.quantile(0.5)),
        "p99": float(ttft.quantile(0.99)),
        "rag": float((search["finished_at"] - search["queued_at"]).mean()),
    }
