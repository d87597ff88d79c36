"""Parts of one's own that break a rule: each is refused, in words that name it and what it gave."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import mist_sim as mist
from mist_sim.clients.scheduling import Ranked
from mist_sim.environment import Environment
from tests.refusals import refused

DATA = {
    "model": "llama-3.1-8b",
    "workload": {
        "lengths": {"type": "profile", "num_requests": 5},
        "arrivals": {"type": "poisson", "rate": "5 /s"},
    },
    "clients": [{"name": "llm", "gpu": "h100-sxm"}],
}
FIVE = mist.Profile(num_requests=5)
NAN, FULL = math.nan, np.full


def llm(name="llm", **options):
    return mist.llm_client(name, gpu="h100-sxm", **options)


def jobs(number=6):
    return mist.Workload.from_lists([100] * number, [10] * number, [0.1 * k for k in range(number)])


def run(**said):
    return mist.Simulation(**{"clients": [llm()], "workload": jobs(), **said}).run()


def part(base=object, **methods):
    """Return an object with these methods, whose first argument is not itself."""
    own = {
        name: (lambda self, *given, _of=made: _of(*given)) if callable(made) else made
        for name, made in methods.items()
    }
    return type("Mine", (base,), own)


def choosing(choice):
    return {"clients": [llm("a"), llm("b")], "router": part(choose=choice)()}


def sends(request, priority):
    request.priority = priority
    return 0


class TakesTwo:
    def choose(self, request, candidates):
        return candidates[0].client_id


test_routers = refused(
    lambda said: run(**said),
    (choosing(lambda r, s, c: None), r"Mine.choose must return .*one of 0, 1 \(a, b\), got None"),
    (choosing(lambda r, s, c: c[0].name), "Mine.choose must return the client_id .* got 'a'"),
    (choosing(lambda r, s, c: True), "Mine.choose must return the client_id .* got True"),
    (choosing(lambda r, s, c: 1.0), "Mine.choose must return the client_id .* got 1.0"),
    (choosing(lambda r, s, c: 7), "Mine.choose must return the client_id .* got 7"),
    (
        choosing(lambda r, s, c: sends(r, 5)),
        "Mine.choose must change nothing, and set priority of request 0 from 0 to 5",
    ),
    (
        {"router": TakesTwo()},
        r"TakesTwo.choose must take choose\(request, stage, candidates\), got choose\(request",
    ),
)


def test_a_router_that_chooses_a_client_of_another_model():
    clients = [llm("a"), llm("b", model="qwen2.5-7b")]
    rows = mist.Rows([mist.TraceRow(10, 5, model="llama-3.1-8b")])
    workload = mist.Workload(rows, mist.AllAtOnce())
    with pytest.raises(mist.ScenarioError, match=r"one of 0 \(a\), got 1"):
        run(clients=clients, workload=workload, router=part(choose=lambda r, s, c: 1)())


def test_numbers_of_numpy_are_numbers():
    two = choosing(lambda r, s, c: np.int64(1))
    assert run(**two, seed=np.int64(3)).clients.num_visits.tolist() == [0, 6]
    started = mist.Simulation(clients=[llm()], workload=jobs()).start()
    assert started.run(until=np.float32(0.25)).now == 0.25
    changed = mist.Scenario.from_dict(DATA, {"seed": np.int64(7)})
    assert changed.seed == 7
    lists = mist.Workload.from_lists((x for x in (5, 6)), np.array([2, 2]))
    assert lists.num_requests == 2


@dataclass(frozen=True, kw_only=True)
class NoKind(mist.Stage):
    pass


def piped(pipeline):
    return {"workload": mist.Workload(FIVE, mist.AllAtOnce(), pipeline)}


test_pipelines = refused(
    lambda make: run(**piped(make)),
    (lambda row: None, r"pipeline of request 0: must return stages, .* got None"),
    (lambda row: (mist.Prefill, mist.Decode), r"got <class .*Prefill'> among them: template"),
    (lambda row: (NoKind(),), "NoKind needs a `kind` of its own"),
    ((mist.Prefill(num_prompt_tokens=5),), "pipeline must be a function from a row to stages"),
)


def test_a_pipeline_may_be_a_generator():
    def stages(row):
        yield mist.Prefill(num_prompt_tokens=row.num_prompt_tokens)
        yield mist.Decode(num_tokens=3)

    assert run(**piped(stages)).summary["total_output_tokens"] == 20


test_stages_have_whole_tokens = refused(
    lambda make: make(),
    (lambda: mist.Prefill(num_prompt_tokens=10.5), "num_prompt_tokens must be whole, got 10.5"),
    (lambda: mist.Decode(num_tokens=2.5), "num_tokens must be whole, got 2.5"),
    error=ValueError,
)


class Ends(mist.Client):
    """Ends a visit in its own way."""

    def __init__(self, outcome=None, times=1):
        super().__init__("mine", ["rag"])
        self.outcome, self.times = outcome, times

    def accept(self, visit):
        self.begin(visit)
        visit.outcome = self.outcome
        for _ in range(self.times):
            self.finish(visit)

    def abort(self, visit):
        pass


def served_by(client):
    pipeline = mist.template([mist.Rag(), mist.Prefill, mist.Decode])
    return run(clients=[client, llm()], workload=mist.Workload(FIVE, mist.AllAtOnce(), pipeline))


test_clients = refused(
    served_by,
    (Ends(times=2), "mine: finish was called for request 0 at .* call it once a visit"),
    (Ends("done"), "mine: visit.outcome of request 0 must be Served, Moved or None, got 'done'"),
    (mist.SequentialClient, "clients must be clients, .* got <class .*SequentialClient"),
)


@pytest.mark.parametrize("seconds", [-1, NAN, "1 s", None])
def test_time_passes_forwards(seconds):
    with pytest.raises(ValueError, match=r"env.timeout needs seconds >= 0, got .* at 0 s"):
        Environment().timeout(seconds)


def scheduled(**methods):
    scheduler = part(mist.ChunkedScheduler, **methods)
    return dataclass(frozen=True, kw_only=True)(scheduler)(max_num_seqs=4)


test_schedulers = refused(
    lambda methods: run(clients=[llm(scheduler=scheduled(**methods))]),
    ({"budget": lambda lane: None}, "Mine.budget must return a whole number .* got None"),
    ({"budget": lambda lane: "256"}, "Mine.budget must return a whole number .* got '256'"),
    ({"budget": lambda lane: 100.5}, "Mine.budget must return a whole number .* got 100.5"),
    ({"budget": lambda lane: NAN}, "Mine.budget must return a whole number .* got nan"),
    ({"piece": lambda lane, p, n, m: None}, "Mine.piece must return a whole number .* got None"),
    ({"admits": lambda lane, p, n: None}, "Mine.admits must return True or False, got None"),
    ({"admits": lambda lane, p, n: "no"}, "Mine.admits must return True or False, got 'no'"),
    ({"new_queue": list}, r"Mine.new_queue must return a WaitingQueue, .* got \[\]"),
    ({"new_queue": lambda: Ranked(lambda s: None)}, "the key of Ranked.* got None for request 0"),
    ({"new_queue": lambda: Ranked(lambda s: NAN)}, "the key of Ranked.* got nan for request 0"),
)


@dataclass(frozen=True, kw_only=True)
class ShortPiece(mist.ChunkedScheduler):
    def piece(self, lane, prompt):
        return 1


test_engines_take_parts_that_fit = refused(
    lambda options: run(clients=[llm(**options)]),
    ({"scheduler": ShortPiece()}, r"ShortPiece.piece must take piece\(lane, prompt, num_tokens, m"),
    ({"scheduler": mist.ChunkedScheduler}, "scheduler must be a ChunkedScheduler or a child of it"),
    ({"max_model_len": "long"}, "max_model_len must be a whole number, or -1 .* got 'long'"),
)


def test_a_length_may_be_auto():
    assert llm(max_model_len="auto").max_model_len == llm(max_model_len=-1).max_model_len


def timed(step_time, steps=None):
    return part(step_time=step_time, run=steps or (lambda batch, growth, n: FULL(n, 0.01)))()


test_predictors = refused(
    lambda predictor: run(clients=[llm(predictor=predictor)]),
    (timed(lambda batch: None), "predictor Mine: step_time must return seconds, .* got None"),
    (timed(lambda batch: "5 ms"), "predictor Mine: step_time must return seconds, .* got '5 ms'"),
    (timed(lambda b: 0.01, lambda b, g, n: [0.01] * n), r"run must return a NumPy array .* \[0.01"),
    (timed(lambda b: 0.01, lambda b, g, n: 0.01), "run must return a NumPy array .* got 0.01"),
    (timed(lambda b: 0.01, lambda b, g, n: FULL(n + 1, 0.1)), "run must return a NumPy array"),
    (part(step_time=lambda batch: 0.01)(), r"predictor must have a method run\(batch, growth, num"),
)


def evicting(rank):
    cache = mist.KvCacheConfig(
        num_gpu_blocks_override=64, eviction=part(mist.Eviction, rank=rank)()
    )
    rows = [mist.TraceRow(300, 10, 0.5 * k, content=((1000 + k % 7, 300),)) for k in range(40)]
    return run(
        clients=[llm(kv_cache=cache)],
        workload=mist.Workload(mist.Rows(rows), mist.TraceArrivals()),
    )


test_evictions = refused(
    evicting,
    (lambda blocks: None, "Mine.rank must return a number, or a tuple of numbers, got None"),
    (lambda blocks: NAN, "Mine.rank must return a number, or a tuple of numbers, got nan"),
)


def arriving(times):
    return run(workload=mist.Workload(FIVE, part(times=times)()))


test_arrivals = refused(
    arriving,
    (lambda rng: None, "Mine.times must yield seconds, got None"),
    (lambda rng: [0.1, 0.2], "got 2 times from Mine.times: yield them without end"),
    (lambda rng: ["1 s"] * 5, "arrival times must be finite, .* got '1 s' s after 0.0 s"),
    (lambda rng: [0.1, None, 0.3], "arrival times must be finite, .* got None s after 0.1 s"),
    (lambda rng: [0.1, NAN, 0.3], "arrival times must be finite, .* got nan s after 0.1 s"),
)


def lengths_of(sample):
    law = part(sample=sample)()
    source = mist.Synthetic(num_requests=5, prompt=law, output=mist.FixedLength(tokens=5))
    return run(workload=mist.Workload(source, mist.AllAtOnce()))


test_lengths = refused(
    lengths_of,
    (lambda rng, n: None, r"Mine.sample\(rng, n\) must return n whole numbers .* got None"),
    (
        lambda rng, n: FULL(n, 10.7),
        r"Mine.sample\(rng, n\) must return n whole .* got array\(\[10.7",
    ),
    (lambda rng, n: FULL(n, NAN), r"Mine.sample\(rng, n\) must return n whole .* got array\(\[nan"),
    (lambda rng, n: FULL(n - 1, 5), r"Mine.sample\(rng, n\) must return n whole .*\(4095,\)"),
)


def test_lengths_may_be_a_list():
    assert lengths_of(lambda rng, n: [10] * n).summary["total_input_tokens"] == 50


class NoRng:
    def times(self):
        yield 0.0

    def sample(self, n):
        return [1] * n

    def sample_rows(self):
        yield mist.TraceRow(5, 5)


test_parts_of_a_workload_take_what_they_are_given = refused(
    lambda make: make(),
    (lambda: mist.Workload(FIVE, NoRng()), r"NoRng.times must take times\(rng\), got times\(\)"),
    (
        lambda: mist.Workload(NoRng(), mist.AllAtOnce()),
        r"NoRng.sample_rows must take sample_rows\(r",
    ),
    (
        lambda: mist.Synthetic(num_requests=1, prompt=NoRng(), output=NoRng()),
        r"prompt .*: NoRng.sample must take sample\(rng, n\), got sample\(n\)",
    ),
    (
        lambda: mist.Synthetic(num_requests=1, prompt=100, output=NoRng()),
        r"prompt \(such as FixedLength\(tokens=100\)\) must have a method sample.* got 100",
    ),
    (lambda: mist.Workload.from_lists(["100"], [10]), "prompt_tokens must be a whole .* got '100'"),
)


def reading(rows):
    return run(workload=mist.Workload(part(rows=lambda: iter(rows))(), mist.AllAtOnce()))


test_readers = refused(
    reading,
    ([], "source Mine gives no row"),
    ([(10, 5)], r"row 0 of Mine must be a TraceRow\(.*\), got \(10, 5\)"),
    (
        [mist.TraceRow(9, 5), mist.TraceRow(10.5, 5)],
        "num_prompt_tokens of row 1 of Mine .* got 10.5",
    ),
    ([mist.TraceRow(10, "5")], "num_output_tokens of row 0 of Mine must be a whole .* got '5'"),
    (
        [mist.TraceRow(10, 5, num_predicted_tokens=NAN)],
        "num_predicted_tokens of row 0 of Mine must be a whole number, got nan",
    ),
)


test_simulations = refused(
    lambda said: run(**said),
    ({"seed": "7"}, "seed must be a whole number, got '7'"),
    ({"seed": 1.5}, "seed must be a whole number, got 1.5"),
    ({"seed": True}, "seed must be a whole number, got True"),
    ({"network": "100 Gb/s"}, "network must be one, .* got '100 Gb/s'"),
    ({"cost": True}, r"cost must be of type CostOptions, such as CostOptions\(\), got True"),
    ({"power": {"pue": 1.2}}, "power must be of type PowerOptions, .* got {'pue': 1.2}"),
    ({"lifecycle": []}, r"lifecycle must be of type Lifecycle, .* got \[\]"),
    ({"hand_over": "push"}, "hand_over must be of type HandOver, .* got 'push'"),
    ({"front_end": 0.01}, "front_end must be of type FrontEnd, .* got 0.01"),
    ({"routers": ["random"]}, r"routers must be of type Mapping, .* got \['random'\]"),
)


def test_a_warmup_that_outlasts_the_run_is_told():
    told = [warning.text for warning in run(warmup=100.0).warnings]
    assert any("the end of the warmup 100 s: the run ended at" in text for text in told)


def registered(name, made):
    return mist.ROUTERS.register(name)(made)


@dataclass(frozen=True, kw_only=True)
class Polish(mist.Stage):
    kind: ClassVar[str] = "polish_56"


test_registries = refused(
    lambda make: make(),
    (lambda: mist.ROUTERS.register(TakesTwo), r'register needs a name.* register\("my_router"\)'),
    (lambda: registered("an_object_56", TakesTwo()), "routers 'an_object_56' must be a class"),
    (
        lambda: mist.STAGES.register("other_56")(Polish),
        "stages 'other_56' must have this `kind`.* got 'polish_56' of Polish",
    ),
)


test_scenarios = refused(
    lambda make: make(),
    (lambda: mist.Scenario.load(5), "named by a preset or the path of a file, got 5"),
    (lambda: mist.Scenario.load("demo", overrides=["seed=5"]), r"overrides must be a mapping"),
    (lambda: mist.Scenario.from_dict(None), "a scenario must be a mapping of its keys, got None"),
)


STUDIED = mist.Scenario.from_dict(DATA)


test_studies = refused(
    lambda vary: mist.study(STUDIED, vary=vary),
    ({"seed": 5}, "vary seed: must be a list of values, got 5"),
    (["seed"], r"vary must be a mapping from keys to lists of values, got \['seed'\]"),
)


def test_a_generator_of_values_is_a_list_of_them():
    assert mist.study(STUDIED, vary={"seed": (x for x in (1, 2))}).table.seed.tolist() == [1, 2]


RESULT = run()


test_results = refused(
    lambda make: make(),
    (
        lambda: RESULT.save("x", tables="requests"),
        r"tables must be a list .*: write \['requests'\]",
    ),
    (
        lambda: mist.side_by_side([RESULT, RESULT], "latency"),
        "runs must be a mapping from titles to results",
    ),
    (lambda: RESULT.over_time("1 s"), "interval must be a number, got '1 s', write 1:"),
    error=ValueError,
)


def test_unknown_keys_name_the_nearest():
    with pytest.raises(KeyError, match="the summary has no 'p99_ttft'; did you mean 'p99_ttft_ms'"):
        RESULT.summary["p99_ttft"]
    with pytest.raises(KeyError, match="the run has no client 'lm'; did you mean 'llm'"):
        mist.Simulation(clients=[llm()], workload=jobs()).start().views["lm"]


def test_progress_is_a_function():
    with pytest.raises(mist.ScenarioError, match=r"progress must be a function .* got True"):
        mist.Simulation(clients=[llm()], workload=jobs()).run(progress=True)
