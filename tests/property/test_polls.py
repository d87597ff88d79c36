"""Views as of polls, against a simulation that takes a picture of every client at each poll."""

from dataclasses import dataclass, field
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from mist_sim import Simulation
from mist_sim.clients import Client
from mist_sim.core.candidates import Candidates
from mist_sim.core.request import Request, Stage
from mist_sim.core.views import COUNTS
from mist_sim.environment import POLL
from tests.effort import examples
from tests.property.strategies import cases, with_arrivals_on_boundaries
from tests.reference.comparison import workload
from tests.reference.predictors import AWKWARD, DYADIC

SHOWN = (*COUNTS, "num_kv_blocks", "num_kv_tokens", "num_remaining_tokens")

Picture = list[tuple[float, ...]]


def picture(views: Candidates) -> Picture:
    return [tuple(getattr(view, name) for name in SHOWN) for view in views]


@dataclass
class Comparison:
    """Goes by what polls say, and holds it against pictures that events take at the same times."""

    clients: list[Client]
    interval: float
    latest: Picture = field(default_factory=list)
    num_stale: int = 0

    def choose(self, request: Request, stage: Stage, candidates: Candidates) -> int:
        seen = candidates.polled(self.interval, counts_sent=False)
        if not self.latest:
            env = self.clients[0].env
            self.latest = picture(candidates)
            env.process(self._take_pictures(env, candidates))
        assert picture(seen) == self.latest
        by_index = [seen.least(count_).client_id for count_ in COUNTS]
        assert by_index == [Candidates(seen).least(count_).client_id for count_ in COUNTS]
        self.num_stale += self.latest != picture(candidates)
        return seen.least("num_prompt_tokens").client_id

    def _take_pictures(self, env, candidates):
        for number in count():
            if number * self.interval > env.now:
                yield env.at(number * self.interval, POLL)
                self.latest = picture(candidates)


def test_polls_find_what_was_there_at_their_times():
    """The router holds each view against a picture; some are out of date, or nothing is shown."""
    num_stale = 0

    @given(
        case=cases(),
        num_clients=st.integers(1, 3),
        interval=st.sampled_from([0.25, 0.1, 1.0, 3.0]),
        predictor=st.sampled_from([AWKWARD, DYADIC]),
        data=st.data(),
    )
    @examples(60)
    def compare(case, num_clients, interval, predictor, data):
        nonlocal num_stale
        case = with_arrivals_on_boundaries(data, case, predictor)
        clients = [case.options.client(predictor, str(number)) for number in range(num_clients)]
        router = Comparison(clients, interval)
        Simulation(clients=clients, workload=workload(case.jobs), router=router).run()
        num_stale += router.num_stale

    compare()
    assert num_stale > 20
