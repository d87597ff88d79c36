"""`engine`: the version of vLLM whose defaults hold for what is not said."""

from dataclasses import fields
from itertools import pairwise
from typing import Any

import pytest

from benchmarks import measured_itl
from mist_sim import ChunkedScheduler, KvCacheConfig, Scenario, llm_client, simulate
from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError
from mist_sim.hardware import load_gpu
from mist_sim.hardware.predictors import EngineOverhead
from mist_sim.hardware.predictors.analytic.cuda_graphs import MOST_CAPTURED
from mist_sim.hardware.sampling import Sampling
from mist_sim.metrics.replications import Replications
from mist_sim.models.speculative import SpeculativeConfig
from mist_sim.scenario import server_limits
from mist_sim.scenario.engines.defaults import origins, value_at
from mist_sim.scenario.engines.versions import (
    HIDES,
    LATER,
    LIMITS,
    NEWEST,
    RESERVE,
    SAMPLER,
    TEMPLATES,
    VERSIONS,
    version_of,
)
from tests.reference.predictors import EVEN
from tests.reference.scenarios import synthetic

BARE = {"scheduler": "chunked"}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "acceptance_rate": 0.7}


def llm(**client):
    overrides = {f"clients.0.{key}": value for key, value in (BARE | client).items()}
    return Scenario.load("demo", overrides=overrides).clients[0]


@pytest.mark.parametrize(
    ("engine", "ahead", "share"),
    [
        (None, True, 0.92),
        ("vllm-0.12", False, 0.9),
        ("vllm-0.14", True, 0.9),
        ("vllm-0.19", True, 0.9),
        ("vllm-0.24", True, 0.92),
        ("vllm-0.33", True, 0.92),
        ("vllm", True, 0.92),
    ],
)
def test_defaults_of_a_version_in_a_file_and_in_python(engine, ahead, share):
    """`SchedulerConfig.async_scheduling` and `CacheConfig.gpu_memory_utilization` of vLLM."""
    found = llm(engine=engine)
    assert found.async_scheduling is ahead
    assert found.kv_cache.gpu_memory_utilization == share
    made = llm_client("llm", engine=engine)
    assert made.async_scheduling is ahead
    assert made.num_gpu_blocks == build_one(found).num_gpu_blocks
    said = KvCacheConfig(gpu_memory_utilization=share)
    assert made.num_gpu_blocks == llm_client("llm", engine=engine, kv_cache=said).num_gpu_blocks


@pytest.mark.parametrize(
    ("engine", "first"),
    [(None, True), ("vllm-0.19", False), ("vllm-0.24", True), ("vllm-0.33", True)],
)
def test_rules_follow_from_the_version(engine, first):
    """In a file and in Python."""
    for client in (build_one(llm(engine=engine)), llm_client("llm", engine=engine)):
        assert client.rules.uncached_first is first
        assert client.memory.uncached_first is first
        assert client.rules.threshold_spares_one is (engine in (None, "vllm-0.33"))
        assert client.rules.pass_goes_on is (engine in (None, "vllm-0.33"))


def build_one(part):
    return next(iter(part.clients("llama-3.1-8b")))


@pytest.mark.parametrize(
    ("engine", "gpu", "limits"),
    [
        ("vllm-0.24", "b200", (1024, 8192)),
        ("vllm-0.33", "b200", (1024, 16384)),
        ("vllm-0.33", "mi300x", (1024, 16384)),
        ("vllm-0.33", "h200", (1024, 8192)),
        ("vllm-0.33", "a100-80gb-sxm", (256, 2048)),
        ("vllm-0.33", "l40s", (256, 2048)),
        ("vllm-0.24", "gb10", (1024, 8192)),
        ("vllm-0.33", "gb10", (256, 2048)),  # whatever its memory
    ],
)
def test_limits_by_version_and_memory(engine, gpu, limits):
    """`EngineArgs.get_batch_defaults` in vllm/engine/arg_utils.py, for the API server."""
    assert server_limits(load_gpu(gpu), version=version_of(engine)) == limits
    found = llm(engine=engine, gpu=gpu).scheduler
    assert (found.max_num_seqs, found.max_num_batched_tokens) == limits
    assert llm_client("llm", engine=engine, gpu=gpu).scheduler.max_num_seqs == limits[0]


@pytest.mark.parametrize(
    ("engine", "gpu", "scheduler", "largest"),
    [
        ("vllm-0.24", "b200", "chunked", 512),
        ("vllm-0.33", "b200", "chunked", 1024),
        ("vllm-0.33", "b200", {"max_num_seqs": 300}, 600),
        ("vllm-0.33", "h100-sxm", "chunked", 512),
        ("vllm-0.33", "h100-sxm", {"max_num_seqs": 100}, 200),
    ],
)
def test_the_largest_cuda_graph(engine, gpu, scheduler, largest):
    """`VllmConfig._set_cudagraph_sizes` in vllm/config/vllm.py."""
    found = llm(engine=engine, gpu=gpu, scheduler=scheduler)
    assert found.predictor.max_cudagraph_capture_size == largest
    assert build_one(found).predictor.ranks[0].predictor.max_cudagraph_capture_size == largest
    if scheduler == "chunked":
        made = llm_client("llm", engine=engine, gpu=gpu).predictor.ranks[0].predictor
        assert (made.max_cudagraph_capture_size or MOST_CAPTURED) == largest
    for other in ({"enforce_eager": True}, {"cudagraph_capture_sizes": [1, 8]}):
        found = llm(engine=engine, gpu=gpu, scheduler=scheduler, predictor=other)
        assert found.predictor.max_cudagraph_capture_size is None


@pytest.mark.parametrize(("engine", "largest"), [("vllm-0.12", 128), ("vllm-0.14", 512)])
def test_the_largest_cuda_graph_with_drafts(engine, largest):
    """64 sequences verify 3 drafts each: 256 tokens, which are no graph in 0.12."""
    found = llm(engine=engine, scheduler={"max_num_seqs": 64}, speculative_config=NGRAM)
    assert found.predictor.max_cudagraph_capture_size == largest
    key = "predictor.max_cudagraph_capture_size"
    client = found.model_dump(mode="json", by_alias=True)
    assert key in [origin.key for origin in origins(client)]
    made = llm_client(
        "llm",
        engine=engine,
        scheduler=ChunkedScheduler(max_num_seqs=64),
        speculative_config=SpeculativeConfig(**NGRAM),
    )
    target = made.predictor.ranks[0].predictor.target
    assert (target.max_cudagraph_capture_size or MOST_CAPTURED) == largest


def test_what_is_said_goes_first():
    said = llm(
        engine="vllm-0.33",
        async_scheduling=False,
        scheduler={"max_num_seqs": 64, "max_num_batched_tokens": 4096},
        kv_cache={"gpu_memory_utilization": 0.8, "watermark": 0.01},
        predictor={"max_cudagraph_capture_size": 32},
    )
    assert said.async_scheduling is False
    assert (said.scheduler.max_num_seqs, said.scheduler.max_num_batched_tokens) == (64, 4096)
    assert (said.kv_cache.gpu_memory_utilization, said.kv_cache.watermark) == (0.8, 0.01)
    assert said.predictor.max_cudagraph_capture_size == 32
    made = llm_client(
        "llm",
        engine="vllm-0.33",
        async_scheduling=False,
        kv_cache=KvCacheConfig(gpu_memory_utilization=0.8),
    )
    assert not made.async_scheduling
    assert made.num_gpu_blocks < llm_client("llm", engine="vllm-0.33").num_gpu_blocks


def test_a_block_count_needs_no_share_of_memory():
    found = llm(engine="vllm-0.33", kv_cache={"num_gpu_blocks_override": 500})
    assert found.kv_cache.gpu_memory_utilization is None
    assert build_one(found).num_gpu_blocks == 499  # and the null block


@pytest.mark.parametrize(
    "unlike",
    [
        {"pipeline_parallel_size": 2, "virtual_engines": True},
        {"pipeline_parallel_size": 2, "speculative_config": NGRAM},
    ],
)
def test_no_asynchronous_scheduling_where_it_is_not_simulated(unlike):
    found = llm(engine="vllm", **unlike)
    assert found.async_scheduling is False
    assert not build_one(found).async_scheduling


def drafted(method: str) -> dict[str, Any]:
    """Return who drafts in a scenario."""
    model = {"model": "llama-3.2-1b"} if method == "draft_model" else {}
    return {"method": method, "num_speculative_tokens": 3, "acceptance_rate": 0.7, **model}


@pytest.mark.parametrize(
    ("engine", "methods"),
    [
        ("vllm-0.12", ()),
        ("vllm-0.14", ("eagle",)),
        ("vllm-0.19", ("eagle",)),
        ("vllm-0.24", ("eagle",)),
        ("vllm-0.33", ("eagle", "draft_model", "ngram")),
    ],
)
def test_drafts_are_planned_ahead_by_default_as_the_version_does(engine, methods):
    for method in ("eagle", "draft_model", "ngram"):
        if method == "draft_model" and engine in ("vllm-0.12", "vllm-0.14"):
            continue  # which do not start with one
        found = llm(engine=engine, speculative_config=drafted(method))
        assert found.async_scheduling is (method in methods)
        assert build_one(found).async_scheduling is (method in methods)


def test_other_drafts_are_planned_ahead_where_the_version_can():
    build_one(llm(engine="vllm-0.19", speculative_config=drafted("ngram"), async_scheduling=True))
    wrong = llm(engine="vllm-0.14", speculative_config=drafted("ngram"), async_scheduling=True)
    message = (
        "async_scheduling must be false with speculative_config.method ngram in vLLM 0.14, which "
        "plans ahead with mtp, eagle, eagle3 alone"
    )
    with pytest.raises(ScenarioError, match=message):
        build_one(wrong)


def test_the_key_of_the_scenario_holds_for_clients_without_one():
    scenario = Scenario.load("demo", overrides={"engine": "vllm-0.14"})
    assert scenario.clients[0].async_scheduling is True
    both = {"engine": "vllm-0.14", "clients.0.engine": "vllm-0.12"}
    assert Scenario.load("demo", overrides=both).clients[0].async_scheduling is False


def test_the_key_needs_a_client_that_runs_a_model():
    data = {
        "engine": "vllm",
        "workload": synthetic(2, 5, 5, "1 /s", pipeline=["preprocess"]),
        "clients": [
            {"name": "w", "type": "sequential", "serves": ["preprocess"], "base_time": "1 ms"}
        ],
    }
    with pytest.raises(ScenarioError, match="engine: has no effect: no client has type llm"):
        Scenario.from_dict(data)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (0.19, "got 0.19; write it as a text with vllm- before it"),
        ("vllm-0.9", "older than all of them: write vllm-0.10"),
        ("vllm-0.99", "newer than all of them: write vllm-0.33"),
        ("sglang", "other engines are not known by name: leave engine out"),
    ],
)
@pytest.mark.parametrize("place", ["engine", "clients.0.engine"])
def test_a_version_that_is_not_known(name, said, place):
    with pytest.raises(ScenarioError) as caught:
        Scenario.load("demo", overrides={place: name})
    assert str(caught.value).startswith(f"override {place}: must be vllm-0.10 to vllm-0.33, ")
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(ScenarioError, match="engine must be vllm-0.10 to"):
        llm_client("llm", engine=name)


def test_the_first_patch_of_0_11_is_a_release_of_its_own():
    """FlashInfer's sampler, which needs less memory, and a template for each chat."""
    first, later = version_of("v0.11.0"), version_of("0.11.2")
    assert (first.name, later.name) == ("vllm-0.11.0", "vllm-0.11")
    big = {"model": "gpt-oss-120b", "gpu": "a100-80gb-sxm", "max_model_len": 32768}
    blocks = [llm_client("llm", engine=each.name, **big).num_gpu_blocks for each in (first, later)]
    assert blocks[0] > 1.2 * blocks[1]
    for engine, chats, harmony in (("vllm-0.11.0", 12.5e-3, 1.5e-3), ("vllm-0.12", 0.0, 0.0)):
        assert llm_client("llm", engine=engine).traits.times.parse == pytest.approx(chats)
        small = llm_client("llm", model="gpt-oss-20b", gpu="h100-sxm", engine=engine)
        assert small.traits.times.parse == harmony


@pytest.mark.parametrize("name", ["vllm-0.21", "0.21", "v0.21.0", "vLLM 0.21", "vllm-0.21.1"])
def test_every_spelling_of_a_release_is_known(name):
    assert version_of(name) is VERSIONS["vllm-0.21"]


@pytest.mark.parametrize(
    ("key", "releases"),
    [
        ("async_scheduling", (14,)),
        ("kv_cache.gpu_memory_utilization", (20,)),
        (RESERVE, (19,)),
        ("rules.async_pipelines", (16,)),
        (HIDES, (14,)),
        ("memory.counts_graphs", (20,)),
        (SAMPLER, (LATER, 17, 21)),
        (LIMITS, (28,)),
        (TEMPLATES, (11, LATER)),
    ],
)
def test_a_rule_changes_where_its_release_did(key, releases):
    """`vllm/config` and `vllm/envs.py` in the source distributions of 0.10 to 0.33."""
    changes = [
        now.minor
        for before, now in pairwise(VERSIONS.values())
        if before.default(key) != now.default(key)
    ]
    assert tuple(changes) == releases


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("scheduler", {"type": [1]}),
        ("scheduler", {"max_num_seqs": "x"}),
        ("predictor", 5),
        ("kv_cache", 5),
        ("pipeline_parallel_size", "x"),
        ("async_scheduling", None),
        ("engine", [1]),
    ],
)
def test_defaults_do_not_hide_what_is_wrong(key, value):
    with pytest.raises(ScenarioError) as caught:
        llm(**{"engine": "vllm", key: value})
    assert str(caught.value).startswith(f"override clients.0.{key}")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("engine", "key", "value", "instead"),
    [
        ("vllm-0.19", "kv_cache.watermark", 0.01, "engine: vllm-0.24 or newer"),
        (
            "vllm-0.33",
            "scheduler.max_num_partial_prefills",
            2,
            "scheduler.long_prefill_token_threshold",
        ),
        (
            "vllm-0.12",
            "scheduler.max_num_partial_prefills",
            2,
            "scheduler.long_prefill_token_threshold",
        ),
        ("vllm-0.12", "scheduler.preemption", "swap", "recompute"),
        ("vllm-0.19", "scheduler.prefill_schedule_interval", 2, "engine: vllm-0.24 or newer"),
    ],
)
def test_an_option_that_the_version_does_not_have(engine, key, value, instead):
    title = f"vLLM {engine.removeprefix('vllm-')}"
    said = {key: value, "scheduler.long_prefill_token_threshold": 512}  # else it has no effect
    with pytest.raises(ScenarioError, match=f"clients.0.{key}: {title} has no such option") as it:
        llm(engine=engine, **said)
    assert f"write {instead}" in str(it.value)
    assert value_at(llm(**said).model_dump(by_alias=True), key) == value


@pytest.mark.parametrize("engine", [None, *VERSIONS])
def test_a_resolved_scenario_says_the_same_when_it_is_read_again(engine, tmp_path):
    scenario = Scenario.load("demo", overrides={"engine": engine, "clients.0.gpu": "b200"})
    path = tmp_path / "again.yaml"
    path.write_text(scenario.resolved())
    assert Scenario.load(path).resolved() == scenario.resolved()


def test_the_resolved_scenario_names_values_and_their_origins():
    text = Scenario.load("demo", overrides={"engine": "vllm-0.24"}).resolved()
    assert "# clients 0: the defaults of vLLM 0.24, with their places in its package" in text
    assert "#   kv_cache.gpu_memory_utilization: 0.92 (CacheConfig.gpu_memory_utilization" in text
    assert "#   async_scheduling: true (" in text
    assert "#   kv_cache.enable_prefix_caching: true (" in text
    assert "#   rules.uncached_first: true (BlockPool.free_blocks in" in text
    assert "#   memory.counts_graphs: true (" in text
    assert "#   memory.beside_torch: '0.25 GiB, several ranks 0.25, on H100 or B200 2.1' (" in text
    said = Scenario.load(
        "demo", overrides={"engine": "vllm-0.24", "clients.0.async_scheduling": False}
    )
    assert "#   async_scheduling" not in said.resolved()


def test_every_run_says_which_engine_it_imitates():
    short = {"workload.lengths.num_requests": 20}
    scenario = Scenario.load("demo", overrides=short | {"engine": "vllm"})
    assert scenario.headline.splitlines()[-1] == f"options as in {NEWEST.title}"
    result = simulate(scenario)
    assert result.summary["engines"] == dict.fromkeys(("llm-0", "llm-1"), NEWEST.name)
    several = Replications((0, 1), (result.summary, result.summary), "")
    assert several.summary["engines"] == result.summary["engines"]


def test_what_is_assumed_is_said():
    scenario = Scenario.load("demo", overrides={"workload.lengths.num_requests": 20})
    assert scenario.headline.splitlines()[-1] == (
        f"options as in {NEWEST.title} (assumed; versions before 0.14 schedule synchronously)"
    )
    assert set(simulate(scenario).summary["engines"].values()) == {f"{NEWEST.name} (assumed)"}
    synchronous = Scenario.load("demo", overrides={"clients.0.async_scheduling": False})
    assert synchronous.headline.splitlines()[-1] == f"options as in {NEWEST.title} (assumed)"


@pytest.mark.parametrize(
    ("engine", "said"), [(None, f"{NEWEST.title} (assumed)"), ("vllm", NEWEST.title)]
)
def test_a_default_that_cannot_be_simulated_is_named(engine, said):
    short = {"workload.lengths.num_requests": 20}
    unlike = {"engine": engine, "clients.0.pipeline_parallel_size": 2}
    unlike["clients.0.virtual_engines"] = True
    scenario = Scenario.load("demo", overrides=short | unlike)
    off = "async_scheduling off: not simulated with pipeline_parallel_size 2 and virtual_engines"
    assert scenario.headline.splitlines()[-1] == f"options as in {said}, {off}"
    (found,) = set(simulate(scenario).summary["engines"].values())
    assert found.endswith(f", {off}")
    old = Scenario.load("demo", overrides=short | unlike | {"engine": "vllm-0.12"})
    assert off not in old.headline


def test_the_newest_version_holds_without_the_key():
    """What `pip install vllm` gives to those who say nothing."""
    short = {"workload.lengths.num_requests": 100}
    unsaid = simulate(Scenario.load("demo", overrides=short)).requests
    said = simulate(Scenario.load("demo", overrides=short | {"engine": NEWEST.name})).requests
    assert unsaid.equals(said)


@pytest.mark.parametrize("old", [{"engine": "vllm-0.12"}, {"clients.0.async_scheduling": False}])
def test_how_to_get_the_figures_of_synchronous_engines(old):
    """Mean TPOT of the greedy demo is 20.91 ms with 0.12, and without asynchronous scheduling."""
    greedy = {"clients.0.sampling": {"temperature": 0}}
    ahead = simulate(Scenario.load("demo", overrides=greedy)).summary
    assert ahead["mean_tpot_ms"] == pytest.approx(12.43, abs=0.01)
    synchronous = simulate(Scenario.load("demo", overrides=greedy | old)).summary
    assert synchronous["mean_tpot_ms"] == pytest.approx(20.91, abs=0.01)


@pytest.mark.parametrize("name", VERSIONS)
def test_options_of_the_scheduler_by_version(name):
    """In a file and in Python."""
    defaults = {
        key.removeprefix("scheduler."): default.value
        for key, default in VERSIONS[name].defaults.items()
        if key.startswith("scheduler.")
    }
    assert all(default.source for default in VERSIONS[name].defaults.values())
    options = {field.name for field in fields(ChunkedScheduler)} & defaults.keys()
    assert {"order", "long_prefill_token_threshold", "scheduler_reserve_full_isl"} <= options
    for scheduler in (llm(engine=name).scheduler, llm_client("llm", engine=name).scheduler):
        assert {option: getattr(scheduler, option) for option in options} == {
            option: defaults[option] for option in options
        }


# --- host time that async scheduling does not hide ----------------------------------------------


def test_versions_before_0_14_hide_little_host_time():
    """A part, with async scheduling, unless a scenario says what is left."""
    batch = StepBatch((), 100, 100_000)

    def seconds(engine, **options):
        client = llm_client("llm", engine=engine, sampling=Sampling(temperature=0), **options)
        return client.predictor.ranks[0].step_time(batch)

    in_turn = seconds("vllm-0.12", async_scheduling=False)
    part = 0.58e-3 + 100 * 19e-6  # of 1.3 ms and 47.8 us
    for engine in ("vllm-0.11.0", "vllm-0.12"):
        assert seconds(engine, async_scheduling=True) == pytest.approx(in_turn - part)
    for engine in ("vllm-0.14", "vllm-0.19", "vllm-0.24", "vllm-0.33"):
        assert seconds(engine, async_scheduling=False) == in_turn
        assert seconds(engine) == pytest.approx(in_turn - 1.3e-3 - 100 * 47.8e-6)
    hidden, said = seconds("vllm-0.14"), EngineOverhead(exposed_step=2e-3)
    for engine in ("vllm-0.12", "vllm-0.14"):
        found = seconds(engine, overhead=said, async_scheduling=True)
        assert found == pytest.approx(hidden + 2e-3)


@pytest.mark.parametrize("name", VERSIONS)
def test_no_version_has_exposed_times_of_its_own(name):
    assert not [key for key in VERSIONS[name].defaults if "exposed" in key]
    found = llm(engine=name).model_dump(mode="json", by_alias=True)
    (rule,) = [each for each in origins(found) if each.key == HIDES]
    assert (rule.value == "all") == VERSIONS[name].default("async_scheduling")


def test_runs_of_another_source_leave_as_much_of_the_hosts_time(shared):
    """ML.ENERGY's of 0.11.1; GPUStack's pairs of 0.11.0 leave 0.72 ms and 28.8 us."""
    file = shared("measurements/ml-energy-vllm-0.11/mlenergy_calibration.csv")
    step, sequence = measured_itl.exposed_time(measured_itl.compared(file))
    assert step == pytest.approx(0.83e-3, rel=0.05)
    assert sequence == pytest.approx(28.6e-6, rel=0.01)


def test_whole_steps_have_the_host_in_them():
    steps = llm_client("llm", predictor=EVEN, engine="vllm-0.12", async_scheduling=True)
    assert steps.predictor.ranks[0].step_time(StepBatch((), 9, 900)) == EVEN.seconds


def test_nothing_is_left_exposed_where_nothing_is_hidden():
    text = r"overhead.exposed_step must be left out with async_scheduling: false"
    with pytest.raises(ScenarioError, match=text):
        llm(async_scheduling=False, overhead={"exposed_step": "1 ms"})
    with pytest.raises(ScenarioError, match=text):
        llm_client("llm", engine="vllm-0.12", overhead=EngineOverhead(exposed_step=1e-3))
