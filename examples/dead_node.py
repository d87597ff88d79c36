"""What a dead node does to p99, with and without a spare: four H100s on two nodes, one dies.

The spare node is off until the other one fails, then loads the weights and starts its engines.
"""

import pandas as pd

import mist_sim as mist

SERVING = ("node0-gpu0", "node0-gpu1", "node1-gpu0", "node1-gpu1")
SPARE = ("node2-gpu0", "node2-gpu1")
DEATH = mist.Failures(clients=SERVING[:2], at=(60.0,), repair=90.0)
START = mist.StartUp(storage=5e9, compilation=0.0)  # 5 GB/s; what was compiled is cached
REPLACED = mist.Autoscaling(
    clients=SERVING + SPARE, policy=mist.QueueLength(target=1000), min=4, max=4
)
LIVES = {
    "nothing happens": None,
    "a node dies": mist.Lifecycle(failures=(DEATH,), start_up=START),
    "a node dies, one is spare": mist.Lifecycle(
        failures=(DEATH,), start_up=START, autoscaling=(REPLACED,)
    ),
}
FIGURES = ["p50_ttft_ms", "p99_ttft_ms", "p99_itl_ms", "p99_e2el_ms", "request_goodput"]

rows = {}
for name, lifecycle in LIVES.items():
    has_spare = lifecycle is not None and lifecycle.autoscaling
    clients = [
        mist.llm_client(client, model="llama-3.1-8b", gpu="h100-sxm")
        for client in SERVING + (SPARE if has_spare else ())
    ]
    summary = (
        mist.Simulation(
            clients=clients,
            workload=mist.Workload(mist.Profile(num_requests=12000), mist.PoissonArrivals(rate=60)),
            router=mist.LeastOutstandingRouter(),
            slo=mist.Slo(ttft=1.0, tpot=0.05),
            lifecycle=lifecycle,
            seed=1,
        )
        .run()
        .summary
    )
    rows[name] = {figure: summary[figure] for figure in FIGURES}
    rows[name]["sent again"] = summary.get("num_retried_visits", 0)
print(pd.DataFrame(rows).T.round(1).to_string())
