"""What the queueing tests share: engines that are textbook queues, and intervals over seeds.

An engine whose steps all take the same time, with `max_num_seqs` = c, is a queue with c servers:
a request of n output tokens holds its slot for n steps (its prompt of one token is one of them).

Every test draws 16 independent seeds and compares theory with a t-interval of confidence 0.999
over the 16 means, so that by design one draw of seeds in 1,000 gives a false alarm; the seeds are
fixed, so that a test that passes keeps passing. A guard on the half width stops a test from
passing because it is blind. The measured rates beside the tests come from 300 repeats with new
seeds, by recursions equivalent to the engine (Lindley; Kiefer and Wolfowitz for c servers): how
often theory was outside ("false"), and how often an error of 2 % and 5 % in the step time was
noticed ("power").
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mist_sim.clients import LlmClient
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.core.request import Request, Stage
from mist_sim.core.views import ClientView
from mist_sim.metrics import Result
from mist_sim.simulation import Simulation
from mist_sim.traces import FixedLength, LengthDistribution, PoissonArrivals, Synthetic, Workload
from tests.reference.engines import llm_engine
from tests.reference.predictors import ConstantPredictor

CONFIDENCE = 0.999
NUM_SEEDS = 16
NUM_WARMUP = 500

Array = NDArray[np.float64]


@dataclass
class CountingRouter:
    """Sends all to the first client, and notes how many each arrival finds there."""

    found: list[int] = field(default_factory=list)

    def choose(self, request: Request, stage: Stage, candidates: Sequence[ClientView]) -> int:
        self.found.append(candidates[0].num_outstanding)
        return candidates[0].client_id


@dataclass(frozen=True)
class Queue:
    """Poisson arrivals of `rate` per second; service of `output` tokens x `step` seconds."""

    rate: float
    output: LengthDistribution
    step: float
    servers: int = 1
    num_requests: int = 6_000

    def client(self, kind: type[LlmClient] = LlmClient) -> LlmClient:
        return llm_engine(
            "queue",
            kind=kind,
            scheduler=ChunkedScheduler(max_num_seqs=self.servers),
            predictor=ConstantPredictor(self.step),
            num_gpu_blocks=1_000_000,
        )

    def run(
        self,
        seed: np.random.SeedSequence,
        client: LlmClient | None = None,
        router: CountingRouter | None = None,
    ) -> Result:
        lengths = Synthetic(
            num_requests=self.num_requests, prompt=FixedLength(tokens=1), output=self.output
        )
        return Simulation(
            clients=[client or self.client()],
            workload=Workload(lengths, PoissonArrivals(rate=self.rate)),
            router=router or CountingRouter(),
            seed=int(seed.generate_state(1)[0]),
        ).run()


def waits(result: Result) -> Array:
    """Return every request's time from arrival to its first step, seconds."""
    requests = result.requests
    return np.asarray(requests["queued"], dtype=float)


def over_seeds(sample: Callable[[np.random.SeedSequence], float], entropy: int) -> Array:
    """Return the sample's mean for each of the independent seeds."""
    return np.array([sample(seed) for seed in np.random.SeedSequence(entropy).spawn(NUM_SEEDS)])


def mean_waits(queue: Queue, entropy: int) -> Array:
    """Return the mean wait after the warm-up for each seed, seconds."""
    return over_seeds(lambda seed: float(waits(queue.run(seed))[NUM_WARMUP:].mean()), entropy)


def assert_mean(means: Array, expected: float, guard: float) -> None:
    """Check that theory lies in the interval, and that the interval is narrower than `guard`."""
    low, high = stats.t.interval(CONFIDENCE, len(means) - 1, np.mean(means), stats.sem(means))
    assert (high - low) / 2 < guard, "too few samples to notice a real error"
    assert low <= expected <= high, f"theory {expected:.5g}, simulated [{low:.5g}, {high:.5g}]"


def lindley(arrivals: Array, services: Array) -> Array:
    """Return the waits of a single server, first come first served, by Lindley's recursion."""
    result = np.zeros(len(arrivals))
    for k in range(1, len(arrivals)):
        idle = arrivals[k] - arrivals[k - 1]
        result[k] = max(0.0, result[k - 1] + services[k - 1] - idle)
    return result
