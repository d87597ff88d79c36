"""Code generation (MIST, Fig. 1 and Table III): entries of a repository's files, computed before.

A share of the prompts has its entries in a store of the rack; the others are computed. How large
must the share be for users to notice?
"""

import mist_sim as mist

model = "llama-3.1-8b"
lengths = mist.Synthetic(  # Table III
    num_requests=300,
    prompt=mist.MeanMedianP95Length(mean=26_979, median=16_204, p95=83_920),
    output=mist.MeanMedianP95Length(mean=1_088, median=329, p95=2_753),
    max_total_tokens=131_000,
)
pipeline = mist.template([mist.KvRetrieval, mist.Prefill, mist.Decode])
workload = mist.Workload(lengths, mist.PoissonArrivals(rate=0.4), pipeline)
for hit_rate in (0.0, 0.5, 0.9):
    rack = mist.StorageLevel(name="rack", read_bandwidth=25e9, latency=1e-3, hit_rate=hit_rate)
    store = mist.KvRetrievalClient(
        "rack",
        bytes_per_token=mist.load_model(model).kv_bytes_per_token,
        levels=[rack],
        hits="drawn",
    )
    engines = [mist.llm_client(f"llm-{n}", model=model, gpu="h100-sxm") for n in range(2)]
    result = mist.Simulation(clients=[store, *engines], workload=workload).run()
    found, summary = result.summary["retrieval_hit_rate"], result.summary
    print(f"{found:4.0%} of the tokens found", end=", ")
    print(f"TTFT {summary['median_ttft_ms']:6,.0f} ms, p90 {summary['p90_ttft_ms']:6,.0f} ms")
