"""A stage of your own: translate every prompt on a CPU before the model reads it."""

from dataclasses import dataclass

from mist_sim import (
    Decode,
    PoissonArrivals,
    Prefill,
    Profile,
    SequentialClient,
    Simulation,
    Stage,
    Workload,
    llm_client,
    template,
)


@dataclass(frozen=True, kw_only=True)
class Translate(Stage):
    kind = "translate"
    seconds_per_request: float = 0.08


cpu = SequentialClient(
    "cpu", serves=["translate"], num_workers=2, service_time=lambda s: s.seconds_per_request
)
pipeline = template([Translate(), Prefill, Decode])
workload = Workload(Profile(num_requests=1000), PoissonArrivals(rate=5.0), pipeline)
result = Simulation(clients=[cpu, llm_client("llm", gpu="h100-sxm")], workload=workload).run()
waits = result.stages.assign(wait=lambda s: s.started_at - s.queued_at)
print(waits.groupby("stage")["wait"].mean())
