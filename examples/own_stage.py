"""A stage of your own: translate every prompt on a CPU before the model reads it."""

from dataclasses import dataclass

import mist_sim as mist


@dataclass(frozen=True, kw_only=True)
class Translate(mist.Stage):
    kind = "translate"
    seconds: float = 0.08


cpu = mist.SequentialClient(
    "cpu", serves=["translate"], num_workers=2, service_time=lambda stage: stage.seconds
)
llm = mist.llm_client("llm", model="llama-3.1-8b", gpu="h100-sxm")
pipeline = mist.template([Translate(), mist.Prefill, mist.Decode])
requests = mist.Profile(num_requests=1000)
workload = mist.Workload(requests, mist.PoissonArrivals(rate=20.0), pipeline)
result = mist.Simulation(clients=[cpu, llm], workload=workload).run()
waits = result.stages.assign(wait_s=lambda rows: rows.started_at - rows.queued_at)
print(waits.groupby("stage")["wait_s"].mean().round(4).to_string())
print(f"mean TTFT {result.summary['mean_ttft_ms']:.0f} ms")
