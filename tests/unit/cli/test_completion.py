"""Completion of --set in a shell: keys as far as the next dot, and values that have names."""

import os
import subprocess
import sys

import pytest

from mist_sim import Scenario
from mist_sim.cli.completion import completions
from mist_sim.scenario.format.yaml_text import parse
from mist_sim.scenario.json_schema import json_schema


@pytest.fixture(scope="module")
def schema():
    return json_schema()


@pytest.fixture(scope="module")
def demo():
    return parse(Scenario.load("demo").resolved(), "demo")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("rout", {"router.", "router=", "routers."}),
        ("clients.", {"clients.0."}),
        ("clients.0.ten", {"clients.0.tensor_parallel_size="}),
        ("clients.0.scheduler.max_num_b", {"clients.0.scheduler.max_num_batched_tokens="}),
        ("clients.0.gpu=h100-s", {"clients.0.gpu=h100-sxm"}),
        ("model=qwen3-3", {"model=qwen3-30b-a3b", "model=qwen3-32b"}),
        ("router=ra", {"router=random"}),
        ("clients.0.enable_expert_parallel=", {"=true", "=false"}),
        ("clients.0.no_such_key", set()),
        ("nowhere.deep.down", set()),
    ],
)
def test_what_is_typed_goes_on(schema, demo, typed, offered):
    found = set(completions(schema, typed, demo))
    wanted = {typed + one[1:] if one.startswith("=") else one for one in offered}
    assert wanted <= found
    assert all(one.startswith(typed) for one in found)
    assert bool(found) == bool(offered)


def test_options_are_those_of_type_that_scenario_has(schema, demo):
    assert "clients.0.attention_workers=" not in completions(schema, "clients.0.", demo)
    assert "clients.0.attention_workers=" in completions(schema, "clients.0.")


def test_every_value_offered_for_the_router_is_accepted(schema, demo):
    offered = {one.partition("=")[2] for one in completions(schema, "router=", demo)}
    assert "random" in offered
    for name in offered:
        Scenario.load("demo", overrides={"router": name})


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("clients.0.gpu=h100-s", "clients.0.gpu=h100-sxm"), ("clients.0.attention_w", None)],
)
def test_a_shell_gets_it(typed, offered):
    """In zsh, with the scenario read, whose clients are no bundles of attention workers."""
    asked = {
        "_MIST_COMPLETE": "complete_zsh",
        "_TYPER_COMPLETE_ARGS": f"mist run demo --set {typed}",
    }
    out = subprocess.check_output(
        [sys.executable, "-m", "mist_sim"], env={**os.environ, **asked}, text=True
    )
    assert offered in out.replace("\\", "") if offered else "attention" not in out
