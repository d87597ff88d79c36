"""Python looks for cyclic garbage rarely while a run is put together, simulated and summed up."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from mist_sim import Scenario, simulate
from mist_sim.clients import LlmClient
from mist_sim.core.recorder import Recorder
from mist_sim.garbage import rare_collections

FEW_CLIENTS = {
    "model": "llama-3.1-8b",
    "workload": {
        "lengths": {"type": "profile", "name": "azure-conv-2023", "num_requests": 3},
        "arrivals": {"type": "poisson", "rate": "1 /s"},
    },
    "clients": [{"name": "llm", "gpu": "h100-sxm", "count": 2}],
}


@pytest.fixture(autouse=True)
def usual_thresholds() -> Iterator[None]:
    """Look as often as Python does by itself; a command line that ran here before does not."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_thresholds_are_as_before_afterwards() -> None:
    before = gc.get_threshold()
    with rare_collections():
        assert gc.get_threshold()[0] > 100 * before[0]
        with rare_collections():
            pass
        assert gc.get_threshold()[0] > 100 * before[0]
    assert gc.get_threshold() == before
    with pytest.raises(KeyError), rare_collections():
        raise KeyError
    assert gc.get_threshold() == before


def test_whole_run_is_within(monkeypatch: pytest.MonkeyPatch) -> None:
    before, seen = gc.get_threshold(), dict[str, int]()

    def watch(owner: type, name: str) -> None:
        inside = getattr(owner, name)

        def watched(*args: Any, **options: Any) -> Any:
            seen[name] = gc.get_threshold()[0]
            return inside(*args, **options)

        monkeypatch.setattr(owner, name, watched)

    watch(LlmClient, "__init__")
    watch(LlmClient, "start")
    watch(LlmClient, "serve_whole")
    result = simulate(Scenario.from_dict(FEW_CLIENTS))
    watch(Recorder, "tracks_of")
    assert result.summary["completed"] == 3
    assert len(seen) == 4
    assert min(seen.values()) > 100 * before[0], seen
    assert gc.get_threshold() == before
