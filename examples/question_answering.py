"""Question answering, the standard pipeline of MIST's Fig. 1, with the text work around it.

Cores clean, augment and tokenise a question; a model of 2B parameters looks at it; another one
answers; cores turn tokens into text and check it.
"""

import mist_sim as mist

pipeline = mist.template(
    [
        mist.Preprocess(task="normalize"),
        mist.Augment(num_added_tokens=120),
        mist.Preprocess(task="tokenize"),
        mist.ModelPass(model="shieldgemma-2b", text="prompt"),
        mist.Prefill,
        mist.Decode,
        mist.Postprocess(task="detokenize"),
        mist.Postprocess(task="validate"),
    ]
)
workload = mist.Workload(
    mist.Profile(num_requests=1000),
    mist.PoissonArrivals(rate=8.0),
    pipeline,
    models={"qwen3-8b": 1},
)
clients = [
    mist.TextClient("cpu", num_workers=4),
    mist.ApplicationClient("gateway"),
    mist.llm_client("filter", model="shieldgemma-2b", gpu="l4"),
    mist.llm_client("llm", model="qwen3-8b", gpu="h100-sxm"),
]
result = mist.Simulation(clients=clients, workload=workload).run()
stages = result.stages
stages["ms"] = 1e3 * (stages.finished_at - stages.started_at)
print(stages.groupby(["client", "stage"])["ms"].mean().round(2).to_string())
print(f"mean TTFT {result.summary['mean_ttft_ms']:.0f} ms")
