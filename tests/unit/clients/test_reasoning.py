"""Branches, reward models and tools: time lines by hand, limits, and what is refused."""

import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

import mist_sim as mist
from mist_sim import Served
from mist_sim.clients import ApplicationClient, LlmClient, SequentialClient
from mist_sim.clients.kv_cache import CacheTier
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.coordination import growth
from mist_sim.core.batch import StepBatch
from mist_sim.core.request import Request, Stage
from mist_sim.lifecycle import Failures, Lifecycle
from mist_sim.metrics import Result
from mist_sim.network import Link
from mist_sim.report.run import note_on_turns
from mist_sim.simulation import Simulation
from mist_sim.stages import BestOfN, Deliver, Growing, ModelPass, ToolLoop, TreeSearch
from mist_sim.traces import (
    Rows,
    TimeLimits,
    TraceArrivals,
    TraceRow,
    Workload,
    completion_pipeline,
    template,
)
from tests.reference.engines import llm_engine
from tests.reference.predictors import ConstantPredictor
from tests.refusals import refused


@dataclass(frozen=True)
class PromptPredictor(ConstantPredictor):
    """A second a step, and a sixteenth for each token of a prompt."""

    def step_time(self, batch: StepBatch) -> float:
        return self.seconds + batch.num_prefill_tokens / 16


def engine(name: str, model: str | None = None, **more: Any) -> LlmClient:
    """An engine with steps of a second."""
    options = {
        "scheduler": ChunkedScheduler(),
        "predictor": ConstantPredictor(1.0),
        "num_gpu_blocks": 100,
        "block_size": 4,
    }
    client = llm_engine(name, **options | more)
    client.traits = replace(client.traits, model=model)
    return client


def row(num_prompt: int, num_output: int, time: float = 0.0) -> TraceRow:
    return TraceRow(num_prompt, num_output, time)


def run(stages: list[Any], rows: list[TraceRow], *clients: mist.Client, **more: Any) -> Result:
    models = more.pop("models", {"generator": 1.0})
    workload = Workload(Rows(rows), TraceArrivals(), template(stages), models=models, **more)
    return Simulation(clients=[ApplicationClient("app"), *clients], workload=workload).run()


def tools() -> SequentialClient:
    return SequentialClient("tools", serves=["tool_call"], num_workers=9)


def of_users(result: Result) -> Any:
    requests = result.requests
    return requests[requests["parent_id"].isna()].sort_values("request_id")


# --- time lines by hand -------------------------------------------------------------------------


@pytest.mark.parametrize(("max_num_seqs", "ends"), [(2, [4.0, 4.0]), (1, [4.0, 7.0])])
def test_best_of_two_with_a_reward_model(max_num_seqs, ends):
    """Answers of three steps, side by side or in turn, and a pass of a second over each."""
    generator = engine("llm", "generator", scheduler=ChunkedScheduler(max_num_seqs=max_num_seqs))
    reward = engine("prm", "reward")
    result = run([BestOfN(num_branches=2, reward_model="reward")], [row(4, 3)], generator, reward)
    stages = result.stages
    passes = stages[stages["client"] == "prm"].sort_values("started_at")
    assert passes["started_at"].tolist() == [end - 1 for end in ends]
    assert passes["finished_at"].tolist() == ends
    user = of_users(result).iloc[0]
    assert (user["ttft"], user["e2el"], user["num_output_tokens"]) == (ends[-1], ends[-1], 3)
    counts = stages["stage"].value_counts().to_dict()
    expected = {"prefill": 4, "decode": 2, "model_pass": 2, "best_of_n": 1, "deliver": 1}
    assert counts == expected
    assert (
        result.clients.set_index("client").loc["prm", "num_prefill_tokens"] == 7 + 3
    )  # one prompt


def test_branches_share_the_entries_of_their_prompt():
    """Two blocks of eight tokens; the second branch begins after the first has computed them."""
    generator = engine("llm", "generator", scheduler=ChunkedScheduler(max_num_seqs=1))
    result = run([BestOfN(num_branches=2)], [row(9, 2)], generator)
    children = result.requests[result.requests["parent_id"] == 0].sort_values("finished_at")
    assert children["num_cached_tokens"].tolist() == [0, 8]


def test_a_tree_of_two_rounds():
    """2 chains, of which 1 is kept and continued twice; steps of 2 tokens, a pass over each."""
    search = TreeSearch(num_branches=2, num_rounds=2, reward_model="reward")
    reward = engine("prm", "reward")
    result = run([search], [row(8, 4)], engine("llm", "generator"), reward)
    user = of_users(result).iloc[0]
    assert (user["e2el"], user["num_output_tokens"]) == (2 * (2 + 1), 4)
    prompts = result.requests.query("model == 'generator' and parent_id == 0")["num_prompt_tokens"]
    assert sorted(prompts) == [8, 8, 10, 10]
    passes = result.requests.query("model == 'reward'")["num_prompt_tokens"]
    assert sorted(passes) == [10, 10, 12, 12]


@pytest.mark.parametrize(("beam_width", "num_chains"), [(1, 3 * 3), (2, 3 + 6 + 6), (9, 39)])
def test_as_many_chains_are_kept_as_the_beam_is_wide(beam_width, num_chains):
    """Three branches and three rounds; nine beams keep 3, then 9 chains."""
    search = TreeSearch(num_branches=3, num_rounds=3, beam_width=beam_width)
    result = run([search], [row(8, 3)], engine("llm", "generator"))
    assert len(result.requests) == 1 + num_chains


FIRST = 1 + 40 / 16 + 4  # the first turn: a prompt, and four tokens after the first
BACK = FIRST + 20  # the tool is done


@pytest.mark.parametrize(
    ("others", "more", "second"),
    [
        ([], {}, 1 + 4 / 16),  # the entries of 44 tokens are still there
        ([row(180, 1, 8.0)], {}, 1 + 48 / 16),  # another prompt took all memory
        (
            [row(180, 1, 8.0)],
            {"cache_tiers": [CacheTier("cpu", 200, 0.0, 1 / 8)]},
            11 / 8 + 1 + 4 / 16,  # eleven blocks come back from the tier
        ),
        ([], {"enable_prefix_caching": False}, 1 + 48 / 16),
    ],
    ids=["kept", "forgotten", "parked", "dropped"],
)
def test_a_tool_call_between_two_turns(others, more, second):
    """A prompt of 40 tokens, 5 of an answer, 20 s of a tool that gives 3 tokens, 5 of an answer."""
    client = engine("llm", predictor=PromptPredictor(1.0), num_gpu_blocks=45, **more)
    loop = ToolLoop(num_turns=2, duration=20.0, num_result_tokens=3)
    agent = lambda r: (  # noqa: E731
        template([loop])(r) if r.num_output_tokens > 1 else template([mist.Prefill])(r)
    )
    workload = Workload(Rows([row(40, 5), *others]), TraceArrivals(), agent)
    result = Simulation(
        clients=[ApplicationClient("app"), tools(), client], workload=workload
    ).run()
    stages = result.stages.query("request_id == 0").set_index("stage")
    assert stages.loc["tool_call", ["started_at", "finished_at"]].tolist() == [FIRST, BACK]
    user = of_users(result).iloc[0]
    assert (user["ttft"], user["e2el"]) == (1 + 40 / 16, BACK + second + 4)
    assert (user["num_prompt_tokens"], user["num_output_tokens"]) == (40 + 48, 10)


@pytest.mark.parametrize(("roles", "num_cached"), [((None,), 44), (("prefill", "decode"), 40)])
def test_no_cache_knows_what_a_tool_will_tell(roles, num_cached):
    """Of 40 + 48 tokens 45 were there before; the last of an answer is not computed."""
    clients = [ApplicationClient("app"), tools()]
    clients += [engine(str(role), role=role, kv_block_bytes=1.0) for role in roles]
    loop = ToolLoop(num_turns=2, duration=20.0, num_result_tokens=3)
    workload = Workload(Rows([row(40, 5)]), TraceArrivals(), template([loop]))
    found = (
        Simulation(clients=clients, workload=workload, network=Link(bandwidth=1e9)).run().summary
    )
    assert found["prefix_cache_hit_rate_unbounded"] == 44 / (40 + 48)
    assert found["prefix_cache_hit_rate"] == num_cached / (40 + 48)


@pytest.mark.parametrize(("num_turns", "note"), [(1, ""), (3, "first call.* all 3 calls")])
def test_a_result_says_whose_first_token_counts(num_turns, note):
    loop = ToolLoop(num_turns=num_turns, duration=1.0)
    result = run([loop], [row(8, 2)], tools(), engine("llm"))
    assert re.search(note, note_on_turns(result.summary))
    assert bool(note_on_turns(result.summary)) is bool(note)


def test_what_is_retrieved_lengthens_the_prompt():
    """A search of 2 s finds 16 tokens: a prompt of 32 takes 1 + 2 s and not 1 + 1."""

    @dataclass(frozen=True, kw_only=True)
    class Search(Growing):
        kind: ClassVar[str] = "search"

        def follow(self, request, rng):
            return Served(changes=(mist.Longer(mist.Prefill, 16),))

    search = SequentialClient("search", serves=["search"], base_time=2.0)
    client = engine("llm", "generator", predictor=PromptPredictor(1.0))
    result = run([Search(), mist.Prefill, mist.Decode], [row(16, 2)], search, client)
    user = of_users(result).iloc[0]
    assert (user["ttft"], user["e2el"], user["num_prompt_tokens"]) == (2 + 3, 2 + 3 + 1, 32)


def test_a_filter_before_the_model_and_score_behind():
    """Passes over 8 and over 8 + 2 tokens; the answer itself takes 2 s."""
    stages = [
        ModelPass(model="filter", text="prompt"),
        mist.Prefill,
        mist.Decode,
        ModelPass(model="reward"),
    ]
    clients = [engine(name, name) for name in ("generator", "filter", "reward")]
    result = run(stages, [row(8, 2)], *clients)
    user = of_users(result).iloc[0]
    assert (user["ttft"], user["e2el"]) == (1 + 1, 1 + 2 + 1)
    passes = result.requests.dropna(subset="parent_id").set_index("model")["num_prompt_tokens"]
    assert passes.to_dict() == {"filter": 8, "reward": 10}


def test_work_of_the_application_takes_its_time():
    app = ApplicationClient("slow", base_time=0.25)
    workload = Workload(Rows([row(4, 3)]), TraceArrivals(), template([BestOfN(num_branches=2)]))
    result = Simulation(clients=[app, engine("llm")], workload=workload).run()
    assert of_users(result)["e2el"].tolist() == [0.25 + 3 + 0.25]


# --- limits -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Endless(Growing):
    """Follows itself, or sends itself as its child."""

    kind: ClassVar[str] = "endless"
    as_child: bool = False

    def follow(self, request, rng):
        if self.as_child:
            return Served(children=(Request(0, None, (self,)), Request(0, None, (self,))))
        return Served(then=(self,))


@pytest.mark.parametrize("as_child", [False, True])
def test_a_stage_that_spawns_without_end_fails_its_request_alone(as_child, monkeypatch):
    monkeypatch.setattr(growth, "GROWN", 50)
    clients = [SequentialClient("w", serves=["endless"], base_time=0.0), engine("llm")]
    pipeline = lambda r: (  # noqa: E731
        (Endless(as_child=as_child),) if r.num_prompt_tokens == 1 else completion_pipeline(r)
    )
    workload = Workload(Rows([row(1, 1), row(8, 2)]), TraceArrivals(), pipeline)
    result = Simulation(clients=clients, workload=workload).run()
    users = of_users(result)
    assert users["status"].tolist() == ["rejected", "finished"]
    assert (
        "more than 50 stages and children (bounds.GROWN), the last ones" in users["reason"].iloc[0]
    )
    assert 50 < len(result.stages) < 110


def test_a_child_has_one_parent():
    shared = Request(0, None, (mist.ToolCall(duration=1.0),))

    @dataclass(frozen=True, kw_only=True)
    class Same(Growing):
        kind: ClassVar[str] = "same"

        def follow(self, request, rng):
            return Served(children=(shared,))

    worker = SequentialClient("w", serves=["same"], base_time=0.0)
    with pytest.raises(mist.ScenarioError, match="is awaited by request 0 already; an outcome"):
        run([Same()], [row(1, 1), row(1, 1)], worker, tools(), models=None)


def test_branches_end_when_the_user_goes():
    clients = [engine("llm", "generator"), engine("prm", "reward")]
    stage = BestOfN(num_branches=3, reward_model="reward", num_output_tokens=50)
    result = run([stage], [row(4, 9)], *clients, time_limits=TimeLimits(timeout=5.0))
    assert set(result.requests["status"]) == {"timed_out"}
    assert result.requests["e2el"].dropna().empty or result.requests["finished_at"].max() <= 6.0


test_nonsense_is_refused = refused(
    lambda make: make(),
    (lambda: BestOfN(num_branches=0), "num_branches must be >= 1, got 0"),
    (lambda: BestOfN(num_branches=1, num_output_tokens=0), "num_output_tokens must be >= 1"),
    (lambda: TreeSearch(num_branches=1, num_rounds=0), "num_rounds must be >= 1, got 0"),
    (lambda: TreeSearch(num_branches=1, num_rounds=1, beam_width=0), "beam_width must be >= 1"),
    (lambda: ToolLoop(num_turns=1, duration=-1.0), "duration must be finite and >= 0 s, got -1"),
    (lambda: ToolLoop(num_turns=1, duration=1.0, more=2.0), r"more must be in \[0, 1\], got 2"),
    (lambda: ModelPass(model="m", text="all"), "text must be one of prompt, answer, both"),
    (lambda: Deliver(num_tokens=0), "num_tokens must be >= 1, got 0"),
    (lambda: ApplicationClient("a", base_time=-1.0), "base_time must be finite and >= 0 s"),
    error=ValueError,
)


@pytest.mark.parametrize("stage", [BestOfN(num_branches=2), ModelPass(model="generator")])
def test_lengths_that_nobody_gave_are_asked_for(stage: Stage):
    workload = Workload(Rows([row(4, 3)]), TraceArrivals(), lambda _: (stage,))
    clients = [ApplicationClient("app"), engine("llm", "generator")]
    with pytest.raises(
        mist.ScenarioError, match=f"app: what follows .*{stage.kind}.* must be given"
    ):
        Simulation(clients=clients, workload=workload).run()


def test_a_model_that_nobody_serves_is_named():
    message = (
        "a request that an outcome sent names the model 'reward', .*; they serve generator; add a"
    )
    with pytest.raises(mist.ScenarioError, match=message):
        run([BestOfN(num_branches=2, reward_model="reward")], [row(4, 3)], engine("g", "generator"))


@pytest.mark.parametrize(
    ("stage", "clients", "message"),
    [
        ("best_of_n, num_branches: 2", ["app"], "leads to 'prefill', which no client serves"),
        ("best_of_n, num_branches: 2", ["llm"], "no client serves 'best_of_n'; the clients serve"),
        ("tool_loop, num_turns: 2, duration: 1 s", ["app", "llm"], "leads to 'tool_call', which"),
        (
            "best_of_n, num_branches: 2, reward_model: prm",
            ["app", "llm"],
            "workload.pipeline.0.reward_model: got 'prm': no client serves it",
        ),
        (
            "tree_search, num_branches: 2, num_rounds: 1, model: qwen3-1.6b",
            ["app", "llm"],
            "workload.pipeline.0.model: .* did you mean 'qwen3-0.6b'",
        ),
        ("model_pass, model: qwen3", ["app", "llm"], "workload.pipeline.0.model: got 'qwen3': no"),
        ("model_pass, model: m, text: al", ["app", "llm"], "text: must be 'prompt', 'answer' or"),
    ],
)
def test_scenarios_lack_nobody(stage, clients, message):
    known = {
        "app": {"name": "app", "type": "application"},
        "llm": {"name": "llm", "model": "qwen3-0.6b", "gpu": "l4"},
    }
    with pytest.raises(mist.ScenarioError, match=message):
        mist.Scenario.from_dict(
            {
                "workload": {
                    "lengths": {"type": "profile", "num_requests": 3},
                    "arrivals": "all_at_once",
                    "pipeline": [dict(_pair(text) for text in f"type: {stage}".split(", "))],
                },
                "clients": [known[name] for name in clients],
            }
        )


def test_engines_count_thinking_tokens_in_the_answer():
    stages = ["prefill", {"type": "reasoning", "num_tokens": 9}, "decode"]
    lengths = {"type": "profile", "num_requests": 3}
    workload = {"lengths": lengths, "arrivals": "all_at_once", "pipeline": stages}
    clients = [{"name": "llm", "model": "qwen3-0.6b", "gpu": "l4"}]
    with pytest.raises(mist.ScenarioError, match="count such tokens in the output"):
        mist.Scenario.from_dict({"workload": workload, "clients": clients})


def _pair(text: str) -> tuple[str, Any]:
    key, value = text.split(": ")
    return key, int(value) if value.isdecimal() else value


# --- what comes before lengthens the prompts of branches and turns -------------------------------


@pytest.mark.parametrize(
    ("stage", "prompts"),
    [
        (BestOfN(num_branches=2), [14, 14]),
        (TreeSearch(num_branches=2, num_rounds=2), [14, 14, 16, 16]),
        (ToolLoop(num_turns=2, duration=1.0, num_result_tokens=3), [14, 21]),
    ],
    ids=["best_of_n", "tree_search", "tool_loop"],
)
@pytest.mark.parametrize("content", [(), ((8, 12),)], ids=["own", "of the row"])
def test_instructions_lengthen_the_prompt_of_what_grows(stage, prompts, content):
    """8 tokens and 6 of instructions; what a row's answer is, no longer follows its prompt."""
    text = mist.TextClient("cpu")
    augment = mist.Augment(num_added_tokens=6)
    of_row = row(8, 4)._replace(content=content)
    result = run([augment, stage], [of_row], text, tools(), engine("llm", "generator"))
    stages = result.stages.query("client == 'llm' and stage == 'prefill'")
    assert len(stages) == len(prompts)
    children = result.requests[result.requests["parent_id"] == 0]
    if len(children):
        assert sorted(children["num_prompt_tokens"]) == prompts
    else:
        assert of_users(result).iloc[0]["num_prompt_tokens"] == sum(prompts)


@pytest.mark.parametrize(
    "stages",
    [
        [BestOfN(num_branches=2, reward_model="reward")] * 2,
        [TreeSearch(num_branches=2, num_rounds=1, reward_model="reward")] * 2,
        [
            BestOfN(num_branches=2, reward_model="reward"),
            TreeSearch(num_branches=2, num_rounds=1, reward_model="reward"),
        ],
    ],
    ids=["best of two twice", "two trees", "both"],
)
def test_answers_of_a_second_stage_are_others(stages):
    """A prompt of two blocks is known from the first score on; the four answers are all new."""
    reward = engine("prm", "reward", scheduler=ChunkedScheduler(max_num_seqs=1))
    result = run(stages, [row(8, 5)], engine("llm", "generator"), reward)
    assert result.clients.set_index("client").loc["prm", "num_prefill_tokens"] == 8 + 4 * 5


def test_draws_of_an_application_go_on_after_failure():
    """Twenty visits of drawn length; a failure between them repeats none of the draws."""
    law = mist.UniformDuration(low=1.0, high=2.0)
    app = ApplicationClient("app", base_time=law)
    fails = Failures(clients=("app",), at=(55.0,), repair=0.5)
    workload = Workload(
        Rows([row(1, 1, 10.0 * k) for k in range(20)]),
        TraceArrivals(),
        template([BestOfN(num_branches=1)]),
    )
    result = Simulation(
        clients=[app, engine("llm")], workload=workload, lifecycle=Lifecycle(failures=(fails,))
    ).run()
    stages = result.stages.query("stage == 'best_of_n'")
    seconds = (stages["finished_at"] - stages["started_at"]).round(9)
    assert seconds.nunique() == len(seconds) == 20


def test_turns_of_an_application_go_on_after_failure():
    """Whether a session has another turn is drawn for each, before and after a failure."""
    loop = ToolLoop(num_turns=30, duration=0.0, more=0.5)

    def lengths(at: tuple[float, ...]) -> list[int]:
        fails = Failures(clients=("app",), at=at, repair=0.5)
        rows = [row(1, 1, 100.0 * k) for k in range(40)]
        workload = Workload(Rows(rows), TraceArrivals(), template([loop]))
        result = Simulation(
            clients=[ApplicationClient("app"), tools(), engine("llm")],
            workload=workload,
            lifecycle=Lifecycle(failures=(fails,)),
        ).run()
        return result.requests["num_output_tokens"].tolist()

    assert lengths((1999.0,)) == lengths((1e6,))


@pytest.mark.parametrize("stage", [ToolLoop(num_turns=1, duration=0.0), BestOfN(num_branches=1)])
def test_what_is_put_into_a_prompt_is_like_nothing_else(stage):
    """Two rows say twelve tokens alike: eight of a prompt, and of an answer that moves behind."""
    rows = [row(8, 4, time)._replace(content=((8, 12),)) for time in (0.0, 50.0)]
    text, client = mist.TextClient("cpu"), engine("llm", "generator")
    result = run([mist.Augment(num_added_tokens=6), stage], rows, text, tools(), client)
    assert result.requests["num_cached_tokens"].max() == 8


# --- who reads what -------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "num_tokens"), [("prompt", 9), ("both", 18), ("answer", 9)])
def test_a_pass_finds_what_it_has_read_before(text, num_tokens):
    """A pass over an answer alone does not begin with the prompt, whose entries are there."""
    rows = [row(9, 9, time)._replace(content=((8, 18),)) for time in (0.0, 50.0)]
    filters = engine("filter", "small")
    result = run([ModelPass(model="small", text=text)], rows, filters, engine("g", "generator"))
    passes = result.requests.query("model == 'small'").sort_values("arrival_time")
    assert passes["num_prompt_tokens"].tolist() == [num_tokens] * 2
    known = 0 if text == "answer" else (num_tokens - 1) // 4 * 4
    assert passes["num_cached_tokens"].tolist() == [0, known]


@pytest.mark.parametrize(
    "stage",
    [
        BestOfN(num_branches=2, model="thinker"),
        TreeSearch(num_branches=2, num_rounds=1, model="thinker"),
    ],
)
def test_a_model_of_its_own_generates(stage):
    engines = engine("llm", "generator"), engine("other", "thinker")
    result = run([stage], [row(4, 3)], *engines)
    assert result.clients.set_index("client")["num_visits"][["llm", "other"]].tolist() == [0, 2]


def test_more_is_the_probability_of_another_turn():
    """Of 400 sessions nine in ten go on after each turn: 1 / 0.1 turns on average, within 15 %."""
    loop = ToolLoop(num_turns=1000, duration=0.0, more=0.9)
    rows = [row(1, 1, 100.0 * number) for number in range(400)]
    client = engine("llm", "generator", num_gpu_blocks=1000)
    turns = run([loop], rows, tools(), client).clients.set_index("client")["num_visits"]["llm"]
    assert turns / 400 == pytest.approx(10, rel=0.15)
