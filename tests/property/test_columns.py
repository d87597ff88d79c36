"""Every column of every table says what its documentation says, in random full scenarios.

Clients fail, drain and are scaled; requests are retried, time out, share prefixes, are handed over,
flow, load from tiers, use tools, and wait for children.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

import mist_sim as mist
from mist_sim.clients import Client, LlmClient, SequentialClient
from mist_sim.core.request import Request, Stage, token_totals
from mist_sim.core.visit import Served, Visit
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.machine import Machine
from mist_sim.lifecycle import Failures, Lifecycle
from mist_sim.metrics import Result
from mist_sim.metrics.spending import ApiPrices, CostOptions
from mist_sim.models import load_model
from mist_sim.scenario import Scenario
from mist_sim.simulation import Simulation
from mist_sim.stages import Decode, Prefill, Preprocess, ToolCall
from mist_sim.traces import template
from tests.effort import examples, features_seen, missing
from tests.property.cluster_strategies import STEP
from tests.property.test_accounts import (
    INTERVALS,
    assert_intervals_add_up,
    assert_parts_are_the_latency,
)
from tests.property.test_failures import Lives, lives
from tests.property.test_flowing import crowds, flowing
from tests.property.test_hand_overs import apart, crowds_apart, in_a_loop
from tests.property.test_laws import simulations
from tests.property.test_shared_links import TieredLives, tiered_lives
from tests.reference.column_laws import assert_columns_keep_their_laws
from tests.reference.comparison import EngineOptions, workload
from tests.reference.predictors import AWKWARD, EVEN
from tests.reference.stepwise import Job

PAGE = Path(__file__).parents[2] / "docs/guides/results.md"
H100 = Machine(model=load_model("llama-3.1-8b"), cluster=Cluster(load_gpu("h100-sxm")), price=2.0)
COST = CostOptions(api=ApiPrices(input=0.1, cached_input=0.05, output=0.4))


@dataclass(frozen=True, kw_only=True)
class Plan(Stage):
    """Sends children, and adds a stage."""

    kind: ClassVar[str] = "plan"


class Planner(Client):
    """Plans at once: two children, a tool and a completion, and a tool of its own after them."""

    def __init__(self) -> None:
        super().__init__("planner", frozenset({Plan.kind}))

    def accept(self, visit: Visit) -> None:
        self.begin(visit)
        stages = ((ToolCall(duration=0.02),), (Prefill(num_prompt_tokens=9), Decode(num_tokens=4)))
        children = tuple(Request(0, None, each, *token_totals(each)) for each in stages)
        visit.outcome = Served(then=(ToolCall(duration=0.01),), children=children)
        self.finish(visit)

    def abort(self, visit: Visit) -> None:
        """It never has anybody."""


TURN = (ToolCall(duration=0.01), Prefill(num_prompt_tokens=20), Decode(num_tokens=5))
PIPELINES = {
    "plain": (Preprocess(num_tokens=1), Prefill, Decode),
    "two turns": (Preprocess(num_tokens=1), Prefill, Decode, *TURN),
    "children": (Plan(), Prefill, Decode, Preprocess(num_tokens=1)),
}


@dataclass(frozen=True)
class FullLives:
    """Lives of clients, some with tiers, whose requests have stages before, between and after."""

    lives: Lives | TieredLives
    pipeline: str
    has_gpus: bool

    @property
    def asked(self) -> dict[int, int]:
        """Output tokens of each request."""
        plain = self.lives.lives if isinstance(self.lives, TieredLives) else self.lives
        more = token_totals(TURN)[1] if self.pipeline == "two turns" else 0
        return {k: job.num_output_tokens + more for k, job in enumerate(plain.jobs)}

    def simulation(self) -> Simulation:
        plain = self.lives.simulation()
        tool = SequentialClient(
            "tool", serves=["tool_call"], service_time=lambda s: s.duration, num_workers=2
        )
        clients = [*plain.clients, tool, Planner()]
        for client in clients:
            if self.has_gpus and isinstance(client, LlmClient):
                client.traits = replace(client.traits, machine=H100)
        return Simulation(
            clients=clients,
            workload=replace(plain.workload, pipeline=template(PIPELINES[self.pipeline])),
            router=plain.router,
            network=plain.network,
            lifecycle=plain.lifecycle,
            hand_over=plain.hand_over,
            slo=plain.slo,
            cost=COST if self.has_gpus else None,
        )


def full_lives() -> st.SearchStrategy[FullLives]:
    some = lives() | tiered_lives()
    return st.builds(FullLives, some, st.sampled_from(sorted(PIPELINES)), st.booleans())


def features(case: FullLives, result: Result) -> set[str]:
    r, losses = result.requests, result.recorder.losses.columns()
    found = {f"{status}, {case.pipeline}" for status in r["status"]}
    found |= {f"a {kind}" for kind in result.transfers["kind"]}
    lost = r["request_id"].isin(losses["request_id"])
    if (lost & (r["status"] == "finished") & (r["num_cached_tokens"] > 0)).any():
        found.add("cached, and computed again after a loss")
    if ((r["status"] == "timed_out") & (r["num_output_tokens"] > 0)).any():
        found.add("timed out with tokens")
    if (r["first_token_at"].isna() & (r["num_output_tokens"] > 0)).any():
        found.add("a first token that came too late")
    if (r["num_attempts"] > 1).any():
        found.add("sent again")
    return found


@examples(300)
@given(case=full_lives(), interval=INTERVALS)
def test_columns_of_full_scenarios(case, interval):
    result = case.simulation().run()
    assert_columns_keep_their_laws(result, case.asked)
    assert_intervals_add_up(result, interval)
    if case.pipeline == "plain":
        assert_parts_are_the_latency(result)
    for feature in features(case, result):
        event(feature)


@examples(100)
@given(case=apart() | in_a_loop(apart()) | crowds_apart() | crowds() | flowing())
def test_columns_where_prompts_and_answers_are_apart(case):
    if case.flows is not None and any(
        outcome.status == "unfinished" for outcome in case.stepwise(AWKWARD).outcomes
    ):
        return  # they are stuck, and the run says so
    asked = {k: job.num_output_tokens for k, job in enumerate(case.jobs)}
    assert_columns_keep_their_laws(case.simulate(AWKWARD), asked)


@given(simulation=simulations())
def test_columns_of_engines_of_all_kinds(simulation):
    result = simulation.run()
    requests = simulation.workload.requests(simulation.streams)
    asked = {request.request_id: request.num_output_tokens for request in requests}
    assert_columns_keep_their_laws(result, asked)


@pytest.mark.deep
def test_each_feature_of_full_scenarios_is_reached():
    wanted = (
        "cached, and computed again after a loss",
        "a first token that came too late",
        "timed out with tokens",
        "sent again",
        "a hand_over",
        "a load",
        "finished, children",
        "timed_out, children",
        "lost, two turns",
        "finished, two turns",
    )
    seen = features_seen(full_lives(), lambda case: features(case, case.simulation().run()), wanted)
    assert not missing(seen, wanted), seen


def run_through_a_failure(
    jobs: list[Job], names: tuple[str, ...] = ("first", "other"), **failure: Any
) -> Result:
    """Run engines in turn, of which the first fails."""
    options = EngineOptions("chunked", 60, 4, 4, 64, caching=True)
    return Simulation(
        clients=[options.client(EVEN, name) for name in names],
        workload=workload(jobs),
        lifecycle=Lifecycle(failures=(Failures(clients=("first",), **failure),)),
    ).run()


def test_what_is_computed_again_elsewhere_is_not_found_again():
    """Both engines have the prompt's first four blocks; the third request is lost in its answer."""
    alike = {"content": ((0, 60),)}
    jobs = [Job(0.0, 20, 2, **alike), Job(0.0, 20, 2, **alike), Job(10 * STEP, 20, 30, **alike)]
    result = run_through_a_failure(jobs, at=(15 * STEP,))
    assert result.requests["num_cached_tokens"].tolist() == [0, 0, 16]
    assert len(result.recorder.losses.columns()["retried"]) == 1
    assert result.summary["prefix_cache_hit_rate"] == 16 / 60


def test_a_prompt_that_was_lost_before_its_turn_is_looked_up_for_the_first_time():
    """The last request waits for a seat at the first engine, which fails; the other knows it."""
    jobs = [Job(0.0, 8, 20, content=((number, 8),)) for number in range(8)]
    late = Job(STEP, 20, 2, content=((1, 8),))
    result = run_through_a_failure([*jobs, late], at=(3 * STEP,))
    assert result.requests["num_cached_tokens"].tolist() == [0] * 8 + [8]


def test_a_first_token_after_the_sender_gave_up_is_counted_and_came_to_nobody():
    result = Simulation(
        clients=[EngineOptions("chunked", 60, 4, 4, 64).client(EVEN, "engine")],
        workload=workload([Job(0.0, 20, 5, timeout=STEP / 2)]),
    ).run()
    row = result.requests.iloc[0]
    assert (row["status"], row["finished_at"]) == ("timed_out", STEP / 2)
    assert row[["first_token_at", "ttft"]].isna().all()
    assert result.token_times(0).tolist() == [STEP]
    assert row["num_output_tokens"] == row["wasted_output_tokens"] == 1


def test_peak_of_engine_that_comes_back_is_one():
    """A prompt of 50 blocks and an answer of eight, of which a part comes before the failure."""
    result = run_through_a_failure([Job(0.0, 200, 30)], ("first",), at=(5 * STEP,), repair=STEP)
    assert result.clients["peak_used_blocks"].tolist() == [58]


def documented(table: str) -> list[str]:
    """Return the columns that the page has for a table, in its order."""
    section = PAGE.read_text("utf-8").partition(f"\n## {table}\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


@pytest.mark.parametrize("table", ["requests", "stages", "steps", "clients", "transfers"])
def test_every_column_is_documented(table):
    clients = (("llm", {}), ("worker", {"role": "preprocess"}))
    plain = Lives(clients, (Job(0.0, 5, 2),), "random", None, Lifecycle())
    result = FullLives(plain, "plain", has_gpus=True).simulation().run()
    found = set(documented(table)) - {"layout"}  # a column where some client changed its own
    assert sorted(found) == sorted(getattr(result, table).columns)


@pytest.mark.parametrize("virtual_engines", [False, True])
@pytest.mark.parametrize("engines", [1, 2])
def test_ranks_that_share_a_pool_have_one_peak(virtual_engines, engines):
    """Eight prompts of 100 blocks and answers of ten, all there at once."""
    lengths = {"type": "synthetic", "num_requests": 8}
    lengths |= {"prompt": {"type": "fixed", "tokens": 1600}}
    lengths |= {"output": {"type": "fixed", "tokens": 160}}
    client = {"name": "llm", "gpu": "l40s", "pipeline_parallel_size": 2}
    client |= {"data_parallel_size": engines, "virtual_engines": virtual_engines}
    result = mist.simulate(
        Scenario.from_dict(
            {
                "model": "llama-3.1-8b",
                "workload": {"lengths": lengths, "arrivals": {"type": "all_at_once"}},
                "clients": [client],
            }
        )
    )
    steps, peak = result.steps, result.clients["peak_used_blocks"].item()
    of_tracks = steps.groupby("track")["num_used_blocks"].max().tolist()
    each = 1 if virtual_engines else 2  # tracks of a pool
    assert peak == sum(max(of_tracks[k : k + each]) for k in range(0, len(of_tracks), each)) <= 880
