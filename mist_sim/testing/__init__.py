"""Contract checks: the rules for plugins of each family, as functions for their tests.

    from mist_sim.testing import check_router

    def test_my_router():
        check_router(MyRouter)

    def test_my_router_avoids_queues():
        candidates = Candidates([FakeView(0, num_waiting=9), FakeView(1)])
        assert MyRouter().choose(request, stage, candidates) == 1

Every check takes a factory that makes a new, equally configured plugin at each call (`check_stage`
takes the class itself) and raises AssertionError with the rule, the case and the values. All
random cases come from fixed seeds, so that a check that passes keeps passing.
"""

from mist_sim.core.candidates import Candidates
from mist_sim.testing.clients import check_client, check_stage
from mist_sim.testing.doubles import FakeView
from mist_sim.testing.policies import (
    check_admission,
    check_autoscaler,
    check_eviction,
    check_router,
)
from mist_sim.testing.predictors import check_predictor
from mist_sim.testing.schedulers import check_scheduler
from mist_sim.testing.workloads import (
    check_arrivals,
    check_duration_law,
    check_length_law,
    check_sampler,
    check_trace_reader,
)

__all__ = [
    "Candidates",
    "FakeView",
    "check_admission",
    "check_arrivals",
    "check_autoscaler",
    "check_client",
    "check_duration_law",
    "check_eviction",
    "check_length_law",
    "check_predictor",
    "check_router",
    "check_sampler",
    "check_scheduler",
    "check_stage",
    "check_trace_reader",
]
