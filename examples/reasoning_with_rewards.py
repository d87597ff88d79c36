"""Maths with a reward model (MIST Fig. 1): a long answer, the best of four, a tree search."""

import mist_sim as mist

PRM = "qwen2.5-math-prm-7b"
STRATEGIES = {
    "one answer": [mist.Prefill, mist.Decode],
    "best of 4": [mist.BestOfN(num_branches=4, reward_model=PRM)],
    "tree search": [mist.TreeSearch(num_branches=4, num_rounds=8, beam_width=2, reward_model=PRM)],
}
lengths = mist.Synthetic(  # Table III
    num_requests=100,
    prompt=mist.MeanMedianP95Length(mean=158, median=93, p95=566),
    output=mist.MeanMedianP95Length(mean=6818, median=5237, p95=17454),
    max_total_tokens=32_000,
)
for name, stages in STRATEGIES.items():
    clients = [
        mist.ApplicationClient("app"),
        mist.llm_client("llm", model="qwen3-14b", gpu="h100-sxm"),
        mist.llm_client("prm", model=PRM, gpu="h100-sxm", max_model_len=40_960),
    ]
    workload = mist.Workload(
        lengths, mist.PoissonArrivals(rate=0.1), mist.template(stages), models={"qwen3-14b": 1}
    )
    result = mist.Simulation(clients=clients, workload=workload).run()
    engines = result.clients.set_index("client")
    answers, scored = engines.loc["llm", "num_output_tokens"], engines.loc["prm", "num_visits"]
    seconds = result.summary["median_e2el_ms"] / 1e3
    print(f"{name:12} {answers:9,} tokens generated, {scored:5,} passes, median {seconds:4.0f} s")
