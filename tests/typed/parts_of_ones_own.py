"""Parts of one's own with types, as users write them; `make lint` checks them with mypy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import mist_sim as mist
from mist_sim.clients.scheduling import Ranked, WaitingQueue
from mist_sim.core.views import ClientView


@dataclass(frozen=True, kw_only=True)
class Translate(mist.Stage):
    """A stage with a length of its own."""

    kind: ClassVar[str] = "translate"
    num_tokens: int = 0


def service_time(stage: Translate) -> float:
    """Seconds of one worker: the stage is the user's own class."""
    return 0.005 + 40e-6 * stage.num_tokens


def noisy(stage: Translate, *, rng: np.random.Generator) -> float:
    """The same, drawn."""
    return service_time(stage) * float(rng.lognormal(-0.02, 0.2))


cpu = mist.SequentialClient("cpu", serves=["translate"], service_time=service_time)
drawn = mist.SequentialClient("drawn", serves=["translate"], service_time=noisy)


@mist.ROUTERS.register("typed_fewest_waiting")
@dataclass
class FewestWaiting:
    """A router."""

    def choose(
        self, request: mist.Request, stage: mist.Stage, candidates: Sequence[ClientView]
    ) -> int:
        return min(candidates, key=lambda client: client.num_waiting).client_id


@mist.SCHEDULERS.register("typed_by_the_clock")
@dataclass(frozen=True, kw_only=True)
class ByTheClock(mist.ChunkedScheduler):
    """A scheduler that makes whole plans, and sees the time; with an order of its own."""

    def plan(self, lane: mist.LaneView) -> None:
        for each in lane.running:
            self.let_run(lane, each)
        most = self.max_num_batched_tokens // (2 if lane.time > 10 else 1)
        while (head := lane.head) is not None and lane.admit(head, most):
            most = lane.num_tokens_left

    def let_run(self, lane: mist.LaneView, each: mist.Inside) -> None:
        while lane.lacks(each):
            last = lane.seated[-1]
            lane.preempt(last)
            if last == each:
                return
        lane.run(each)

    def new_queue(self) -> WaitingQueue:
        return Ranked(lambda sequence: float(sequence.num_prompt_tokens))


@mist.SCHEDULERS.register("typed_by_parts")
@dataclass(frozen=True, kw_only=True)
class ByParts(mist.ChunkedScheduler):
    """A scheduler that says parts of a plan."""

    def budget(self, lane: mist.LaneView) -> int:
        return self.max_num_batched_tokens // (2 if lane.num_decodes > 40 else 1)

    def victim(self, lane: mist.LaneView, running: Sequence[mist.Inside]) -> mist.Inside:
        return running[0]


def latency(result: mist.Result) -> float:
    """Read a figure of a run, in seconds."""
    return result.summary["p99_ttft_ms"] / 1000


def verdicts(summary: mist.Summary) -> dict[str, str]:
    """Read what is there only with limits."""
    return {name: figure["verdict"] for name, figure in summary.get("slo", {}).items()}


def dollars(summary: mist.Summary) -> float | None:
    """Read what is there only with prices."""
    return summary.get("cost_usd")


def many(result: mist.Result) -> list[float]:
    """Read keys that are put together."""
    summary: Mapping[str, Any] = result.summary
    return [float(summary[f"p99_{name}_ms"]) for name in ("ttft", "tpot")]
