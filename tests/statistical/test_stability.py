"""How often runs are called unstable or stable: a small part of benchmarks/stability.py.

docs/background/verdicts.md has the rates of the whole grid: of the queues below the limit 0.01 %
are called unstable, at it 1 %; of those with an overload of 10 % and more 1 % are called stable.
"""

from collections import Counter

import pytest

from benchmarks.stability import ENGINES, QUEUES, engine_verdicts, queue_verdicts

pytestmark = pytest.mark.statistical


@pytest.mark.parametrize("load", [0.5, 0.8, 0.95])
def test_queues_below_the_limit_are_not_called_unstable(load):
    """At most 1 % of 1,000 runs at each load; about 1 in 1,000 is expected."""
    alarms = 0
    for queue in QUEUES.values():
        for num_requests in (300, 1000):
            alarms += queue_verdicts(queue, load, num_requests, 100).count("unstable")
    assert alarms <= 10


@pytest.mark.parametrize(
    ("load", "num_requests", "least"),
    [(1.1, 3000, 0.35), (1.2, 1000, 0.3), (1.2, 3000, 0.9), (1.3, 1000, 0.7), (1.3, 3000, 0.97)],
)
def test_overloaded_queues_are_found(load, num_requests, least):
    """`least` is what the whole grid finds in the hardest queue, less three standard errors.

    Of those that are not found, at most 5 % are called stable where the overload is 20 %.
    """
    for name, queue in QUEUES.items():
        found = Counter(queue_verdicts(queue, load, num_requests, 100))
        assert found["unstable"] >= 100 * least, name
        assert load < 1.2 or found["stable"] <= 5, name


@pytest.mark.parametrize(("load", "most"), [(1.05, 20), (1.1, 10), (1.15, 5)])
def test_small_overloads_are_not_called_stable(load, most):
    """11 % of the hardest queue at 1.05, 2,000 requests; `most` is three standard errors more."""
    for name, queue in QUEUES.items():
        for num_requests in (1000, 2000):
            found = Counter(queue_verdicts(queue, load, num_requests, 100))
            assert found["stable"] <= most, (name, num_requests)


def test_half_a_load_is_stable_in_thousand_requests():
    for name, queue in QUEUES.items():
        assert queue_verdicts(queue, 0.5, 1000, 100).count("stable") >= 95, name


def test_engines_keep_up_below_their_capacity_and_not_above():
    engines = ENGINES["short answers (azure-code-2023)"]
    assert "unstable" not in engine_verdicts(engines, 0.8, 1000, 4)
    assert set(engine_verdicts(engines, 1.3, 1000, 4)) == {"unstable"}
