"""Steps give the same results, taken one by one or many at a time: what is compared."""

from collections.abc import Callable
from unittest.mock import patch

from mist_sim.clients.engine import stepped
from mist_sim.metrics import Result
from tests.reference.comparison import expanded_steps


def assert_rows_do_not_show(simulate: Callable[[], Result]) -> None:
    """Compare all records of a simulation with those of steps that are taken one by one."""
    normal = records(simulate())
    with patch.object(stepped, "FAST_FORWARD", False):
        assert records(simulate()) == normal


def records(result: Result) -> dict[str, object]:
    """All that does not depend on how steps were put together into rows."""
    visits = result.recorder.visits.columns()
    return {
        "left": list(zip(visits["client_id"], visits["request_id"], strict=True)),
        "steps": [expanded_steps(result, k) for k in range(len(result.recorder.steps))],
        "requests": result.requests.to_csv(),  # floats as repr writes them: all their bits
        "stages": result.stages.to_csv(),
        "tokens": [result.token_times(int(k)).tolist() for k in result.requests["request_id"]],
    }
