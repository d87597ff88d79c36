"""What views tell is exact at any time: as of the last step that ended, however steps are taken."""

from dataclasses import dataclass, field
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from mist_sim import Simulation
from mist_sim.clients.engine import stepped
from mist_sim.core.candidates import Candidates
from mist_sim.core.request import Request, Stage
from mist_sim.core.views import NUMBERS
from tests.property.loop_cases import engines
from tests.property.strategies import cases, with_arrivals_on_boundaries
from tests.reference.comparison import Case, workload
from tests.reference.predictors import AWKWARD, DYADIC


@dataclass
class SpyRouter:
    """Notes all that views tell at every arrival, and asks for the longest prefix."""

    seen: list[tuple[float, ...]] = field(default_factory=list)

    def choose(self, request: Request, stage: Stage, candidates: Candidates) -> int:
        least = candidates.least("num_outstanding")
        by_index = candidates.longest_prefix(request, least.num_outstanding + 2)
        assert by_index == Candidates(candidates).longest_prefix(request, least.num_outstanding + 2)
        for view in candidates:
            prefix = view.prefix_tokens(request)
            numbers = [getattr(view, name) for name in NUMBERS]
            times = view.prefill_time(request), view.transfer_time(request)
            self.seen.append((view.client_id, prefix, *numbers, *times))
        return least.client_id


def seen(case: Case, predictor, num_clients: int) -> list[tuple[float, ...]]:
    router = SpyRouter()
    clients = [case.options.client(predictor, str(number)) for number in range(num_clients)]
    Simulation(clients=clients, workload=workload(case.jobs), router=router).run()
    return router.seen


@given(
    case=cases() | engines(longest=60),
    num_clients=st.integers(1, 3),
    predictor=st.sampled_from([AWKWARD, DYADIC]),
    data=st.data(),
)
def test_views_tell_the_same_however_steps_are_taken(case, num_clients, predictor, data):
    case = with_arrivals_on_boundaries(data, case, predictor)
    many_at_a_time = seen(case, predictor, num_clients)
    with patch.object(stepped, "FAST_FORWARD", False):
        assert seen(case, predictor, num_clients) == many_at_a_time
