"""Settings of docs/background/taichi.md: those of the paper's evaluation, and its sliders."""

from __future__ import annotations

from typing import Any, NamedTuple

from mist_sim import Scenario
from mist_sim.core.sliders import Sliders
from mist_sim.scenario.loading import as_data

CHUNKS = {
    "chat": (256, 512, 1024),
    "summaries": (24, 32, 64, 128, 256, 512, 2048),
}  # that are tried
WATERMARKS = {"chat": (0.4, 0.55), "summaries": (0.7, 1.0)}
SOONEST = {"router.if_none": "soonest"}
REQUESTS = {"chat": 2000, "summaries": 400}
LONGEST = {
    "chat": 4096,
    "summaries": 16384,
}  # tokens of a request, and of a step of a prefill client
RATES = {"chat": 16, "summaries": 1.4}  # requests a second, at which the searches begin
LIMITS = {  # Table 3: TTFT in s, and TPOT in ms, which is 10 more for 32B
    ("chat", 1): (3, 110),
    ("chat", 2): (4, 70),
    ("summaries", 1): (4, 70),
    ("summaries", 2): (6, 50),
}
PAPER_SLIDERS = {  # the chunk of aggregation, S_P and S_D; always two clients of each kind
    ("chat", 1): (1024, 1024, 512),
    ("chat", 2): (512, 1024, 128),
    ("summaries", 1): (512, 1024, 256),
    ("summaries", 2): (512, 1024, 128),
}


class Cell(NamedTuple):
    """One of the eight settings: the workload, the model's size in billions, and Table 3's SLO."""

    work: str
    size: int
    slo: int

    @property
    def limits(self) -> tuple[float, float]:
        """TTFT and TPOT that users ask for, seconds."""
        ttft, tpot = LIMITS[self.work, self.slo]
        return ttft, 1e-3 * (tpot + (10 if self.size == 32 else 0))

    @property
    def name(self) -> str:
        """The cell in words: work, model size and SLO."""
        return f"{self.work}, {self.size}B, SLO{self.slo}"


CELLS = [Cell(work, size, slo) for work in REQUESTS for slo in (1, 2) for size in (14, 32)]
ABLATED = Cell("summaries", 14, 1)  # of figures 18 and 19


def scenario(cell: Cell, **changes: Any) -> Scenario:
    """Return the hybrid of a setting, whose sliders are moved then."""
    ttft, tpot = cell.limits
    limits = {"ttft": f"{ttft} s", "tpot": f"{tpot} s"}
    overrides: dict[str, Any] = {
        "model": f"qwen2.5-{cell.size}b",
        "slo": limits,
        "router.ttft": limits["ttft"],
        "hand_over.policy.tpot": limits["tpot"],
    }
    for k in (0, 1):
        overrides[f"clients.{k}.tensor_parallel_size"] = 2 if cell.size == 32 else 1
        overrides[f"clients.{k}.max_model_len"] = LONGEST[cell.work]
    if cell.work == "summaries":
        overrides["workload"] = as_data(Scenario.load("taichi-summarisation"))["workload"]
    overrides["workload.lengths.num_requests"] = REQUESTS[cell.work]
    overrides["workload.arrivals.rate"] = f"{RATES[cell.work]} /s"
    return Scenario.load("taichi-hybrid", overrides=overrides | changes)


def paper_sliders(cell: Cell) -> dict[str, Sliders]:
    """Return where the paper has the sliders of each design."""
    together, s_p, s_d = PAPER_SLIDERS[cell.work, cell.slo]
    return {
        "aggregation": Sliders(num_p=2, num_d=2, s_p=together, s_d=together),
        "disaggregation": Sliders(num_p=2, num_d=2, s_p=s_p, s_d=0),
        "hybrid": Sliders(num_p=2, num_d=2, s_p=s_p, s_d=s_d),
    }
