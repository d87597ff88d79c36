"""One run of a strategy in BestServe's simulators: TTFT and TPOT of every request."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from mist_sim.bestserve.drawn_requests import Floats, Requests
from mist_sim.bestserve.oracle import Times
from mist_sim.bestserve.orders import Order, Routing
from mist_sim.bestserve.simulators import contexts, decode, prefill, together
from mist_sim.bestserve.strategy import Strategy
from mist_sim.errors import ScenarioError
from mist_sim.rng import Streams
from mist_sim.search.verdicts.request_times import RequestTimes

TAU = 2.5
"""The balance of the pseudo batch size: BestServe, section 3.4.2."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """Options of the simulators.

    tau: the balance of equation 9 (> 0): one that joins b others decodes as if in a batch of
        max(floor((b + 1) / tau), 1). routing: order in which instances are asked: "shuffle" as
        printed, or "round_robin".

    Raises ScenarioError for another tau or routing.
    """

    tau: float = TAU
    routing: Routing = "shuffle"

    def __post_init__(self) -> None:
        if not 0 < self.tau < inf:
            raise ScenarioError(f"tau must be finite and > 0, got {self.tau:g}")
        Order(self.routing, 1, Streams(0).generator("routing"))


@dataclass(frozen=True)
class Served:
    """Times of every request, seconds, in order of arrival.

    prefilled: its first token was out (D1). done: its answer was complete (D2).
    """

    requests: Requests
    prefilled: Floats
    done: Floats

    @property
    def ttft(self) -> Floats:
        """Seconds from arrival to the first token."""
        return self.prefilled - self.requests.arrival

    @property
    def tpot(self) -> Floats:
        """Seconds a token of the answer: (D2 - D1) / s+, waits for a box included; 0 of one."""
        return (self.done - self.prefilled) / self.requests.output

    def times(self, warmup: float = 0.0) -> RequestTimes:
        """Return the latencies of requests that arrive `warmup` seconds after the start or later.

        `Target` judges these.
        """
        rows = self.requests.arrival >= warmup
        e2el = self.done - self.requests.arrival
        return RequestTimes(self.ttft[rows], self.tpot[rows], e2el[rows])


def simulate_strategy(
    strategy: Strategy,
    requests: Requests,
    times: Times | tuple[Times, Times],
    *,
    seed: int = 0,
    method: Method | None = None,
) -> Served:
    """Serve requests by a strategy (the SIMULATE of Algorithm 9).

    times: step times of an instance, such as `Oracle(predictor)`, of the layout that the strategy
    names; two where those that prefill and those that decode differ. seed: of the shuffling.
    """
    method = method or Method()
    both = times if isinstance(times, tuple) else (times, times)
    rng = Streams(seed).generator("bestserve routing")
    if strategy.is_apart:
        return _apart(strategy, requests, both, rng, method)
    order = Order(method.routing, strategy.together, rng)
    prefilled, done = together(
        requests.arrival.tolist(),
        requests.prompt.tolist(),
        requests.output.tolist(),
        ((strategy.together, strategy.prefill_batch), strategy.decode_batch),
        both,
        method.tau,
        order,
    )
    return Served(requests, np.array(prefilled), np.array(done))


def _apart(
    strategy: Strategy,
    requests: Requests,
    times: tuple[Times, Times],
    rng: np.random.Generator,
    method: Method,
) -> Served:
    """Serve in tandem: the end of a prefill is the arrival at a decode instance (section 3.4.3)."""
    prompts, outputs = requests.prompt.tolist(), requests.output.tolist()
    pool = strategy.prefill, strategy.prefill_batch
    prefilled = np.array(prefill(requests.arrival.tolist(), prompts, pool, times[0]))
    in_turn = np.argsort(prefilled, kind="stable")
    in_turn = in_turn[requests.output[in_turn] > 1]
    done = prefilled.copy()
    context = np.array(contexts(prompts, outputs))
    done[in_turn] = decode(
        prefilled[in_turn].tolist(),
        requests.output[in_turn].tolist(),
        context[in_turn].tolist(),
        (strategy.decode, strategy.decode_batch),
        times[1],
        method.tau,
        Order(method.routing, strategy.decode, rng),
    )
    return Served(requests, prefilled, done)
