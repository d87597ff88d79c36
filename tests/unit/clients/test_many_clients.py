"""Cost of a client beside its requests, in Python calls: sums are taken over many at once."""

import cProfile
import pstats
import re
from typing import Any
from unittest import mock

import pytest

from mist_sim import Result, Scenario, simulate
from mist_sim.clients import LlmClient
from mist_sim.environment import Environment
from mist_sim.hardware.predictors.decode_line import DecodeLine
from mist_sim.scenario import build
from tests.reference.scenarios import of_profile

COMPILED = re.compile(r"clients\W(engine\Wcore|prefixes)\W")


def scenario_of(num_clients: int) -> Scenario:
    client = {"name": "llm", "gpu": "h100-sxm", "count": num_clients}
    workload = of_profile(200, "200 /s", name="azure-conv-2023")
    scenario = {"model": "llama-3.1-8b", "workload": workload, "clients": [client]}
    return Scenario.from_dict(scenario)


def result_of(num_clients: int) -> Result:
    return simulate(scenario_of(num_clients))


def calls_of_summary(num_clients: int) -> int:
    result, profile = result_of(num_clients), cProfile.Profile()
    profile.enable()
    assert result.summary["completed"] == 200
    profile.disable()
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def test_a_client_adds_few_calls_to_a_summary() -> None:
    """Each added 1,000 calls while its steps were looked at by themselves."""
    calls_of_summary(2)  # what is imported or remembered is there
    few, many = calls_of_summary(10), calls_of_summary(50)
    assert (many - few) / 40 < 500


def calls_of_set_up(num_clients: int) -> int:
    """Calls until the first event, outside the modules that may be compiled."""
    profile = cProfile.Profile()

    def stop(*_: object, **__: object) -> None:
        profile.disable()
        raise InterruptedError

    profile.enable()
    with mock.patch.object(Environment, "run", stop), pytest.raises(InterruptedError):
        result_of(num_clients)
    calls = pstats.Stats(profile).stats.items()  # type: ignore[attr-defined]
    return sum(number for (path, *_), (_, number, *_) in calls if not COMPILED.search(path))


def test_a_client_adds_few_calls_to_set_up() -> None:
    """Each added 560 calls while its traits were made anew."""
    calls_of_set_up(2)
    few, many = calls_of_set_up(10), calls_of_set_up(50)
    assert (many - few) / 40 < 350


def test_clients_of_one_entry_share_what_does_not_change() -> None:
    one, two = build(scenario_of(2)).clients
    assert [one.name, two.name] == ["llm-0", "llm-1"]
    assert isinstance(one, LlmClient)
    assert isinstance(two, LlmClient)
    for name in ("traits", "config", "memory", "predictor", "rules", "scheduler"):
        assert getattr(one, name) is getattr(two, name)


def test_lines_of_decodes_are_made_once_for_all_clients() -> None:
    """Each engine asks for those that no other has asked for."""
    made: list[int] = []
    (client,) = build(scenario_of(1)).clients
    assert isinstance(client, LlmClient)
    kind: Any = type(client.predictor.ranks[0])
    make = kind.decode_line

    def note(self: Any, num_decodes: int) -> DecodeLine | None:
        made.append(num_decodes)
        line: DecodeLine | None = make(self, num_decodes)
        return line

    with mock.patch.object(kind, "decode_line", note):
        result_of(20)
    assert len(made) > 2
    assert len(made) == len(set(made))
