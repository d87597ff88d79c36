"""Continuous batching against chunked prefill: the same requests on one H100, a row a policy."""

import pandas as pd

import mist_sim as mist

SCHEDULERS = {
    "continuous": mist.ContinuousScheduler(),
    "chunked, 2048 tokens": mist.ChunkedScheduler(max_num_batched_tokens=2048),
    "chunked, 512 tokens": mist.ChunkedScheduler(max_num_batched_tokens=512),
}
FIGURES = ["p50_ttft_ms", "p99_ttft_ms", "p50_itl_ms", "p99_itl_ms", "p99_tpot_ms"]

rows = {}
for name, scheduler in SCHEDULERS.items():
    client = mist.llm_client("llm", model="llama-3.1-8b", gpu="h100-sxm", scheduler=scheduler)
    workload = mist.Workload(mist.Profile(num_requests=2000), mist.PoissonArrivals(rate=14.0))
    summary = mist.Simulation(clients=[client], workload=workload, seed=1).run().summary
    rows[name] = {figure: summary[figure] for figure in FIGURES}
print(pd.DataFrame(rows).T.round(1).to_string())
