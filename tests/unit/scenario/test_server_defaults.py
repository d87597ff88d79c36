"""Limits that a scenario leaves to the server: those of vLLM on the GPU."""

from dataclasses import dataclass, replace

import pytest

from mist_sim import ChunkedScheduler, Scenario, llm_client
from mist_sim.clients.scheduling import SCHEDULERS
from mist_sim.errors import ScenarioError
from mist_sim.hardware import load_gpu
from mist_sim.models.speculative import SpeculativeConfig
from mist_sim.scenario import build, server_limits
from mist_sim.scenario.options import engine_options
from tests.refusals import refused


def scheduler(gpu, said):
    overrides = {"clients.0.gpu": gpu, "clients.0.scheduler": said}
    return Scenario.load("demo", overrides=overrides).clients[0].scheduler


@pytest.mark.parametrize(
    ("gpu", "limits"),
    [
        ("h100-sxm", (1024, 8192)),
        ("rtx-pro-6000", (1024, 8192)),
        ("mi300x", (1024, 16384)),
        ("a100-80gb-sxm", (256, 2048)),
        ("a100-40gb-sxm", (256, 2048)),
        ("l40s", (256, 2048)),
    ],
)
def test_limits_of_a_gpu(gpu, limits):
    """`get_batch_defaults` in vllm/engine/arg_utils.py, for the API server."""
    assert server_limits(load_gpu(gpu)) == limits
    found = scheduler(gpu, "chunked")
    assert (found.max_num_seqs, found.max_num_batched_tokens) == limits
    assert scheduler(gpu, {"order": "priority"}).max_num_seqs == limits[0]
    assert scheduler(gpu, "continuous").max_num_seqs == limits[0]
    client = llm_client("llm", gpu=gpu)
    assert client.scheduler.max_num_seqs == limits[0]


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ('based_on = "a100-80gb-sxm"', (256, 2048)),
        ('based_on = "A100"\nmemory = "200 GB"', (256, 2048)),
        ('based_on = "h100-sxm"\nmemory_bandwidth = "4.8 TB/s"', (1024, 8192)),
        ('based_on = "h100-sxm"\nmemory = "60 GiB"', (1024, 8192)),
        ('based_on = "l40s"\nmemory = "90 GiB"', (256, 2048)),
    ],
)
def test_a_what_if_has_limits_of_its_device(tmp_path, text, limits):
    path = tmp_path / "what-if.toml"
    path.write_text(text)
    assert server_limits(load_gpu(str(path))) == limits
    assert scheduler(str(path), "chunked").max_num_batched_tokens == limits[1]


def test_a_change_in_python_keeps_the_device():
    assert server_limits(replace(load_gpu("a100-80gb-sxm"), name="other")) == (256, 2048)
    smaller = replace(load_gpu("h100-sxm"), memory=60 * 2**30)
    assert server_limits(smaller) == (1024, 8192)


def test_a_spec_of_no_known_device_goes_by_its_memory_and_name():
    unknown = replace(load_gpu("h100-sxm"), based_on="", name="mine")
    assert server_limits(unknown) == (1024, 8192)
    assert server_limits(replace(unknown, memory=60 * 2**30)) == (256, 2048)
    assert server_limits(replace(unknown, name="My-A100")) == (256, 2048)


@pytest.mark.parametrize(
    ("said", "limits"),
    [
        ({"max_num_seqs": 12}, (12, 8192)),
        ({"max_num_batched_tokens": 512}, (512, 512)),
        ({"max_num_batched_tokens": 4096}, (1024, 4096)),
        ({"max_num_seqs": 256, "max_num_batched_tokens": 2048}, (256, 2048)),
    ],
)
def test_what_is_said_goes_first(said, limits):
    found = scheduler("h100-sxm", said)
    assert (found.max_num_seqs, found.max_num_batched_tokens) == limits


def drafting(num_drafts, said):
    config = {"method": "ngram", "num_speculative_tokens": num_drafts, "acceptance_rate": 0.6}
    return {"clients.0.speculative_config": config, "clients.0.scheduler": said}


@pytest.mark.parametrize(
    ("num_drafts", "said", "num_seqs"),
    [
        (7, "chunked", 1024),
        (8, "chunked", 910),
        (8, {"max_num_batched_tokens": 100}, 11),
        (8, {"max_num_seqs": 900}, 900),
        (8, "continuous", 1024),
    ],
)
def test_no_more_run_than_can_verify_their_drafts(num_drafts, said, num_seqs):
    overrides = {"clients.0.gpu": "h100-sxm", **drafting(num_drafts, said)}
    scenario = Scenario.load("demo", overrides=overrides)
    assert scenario.clients[0].scheduler.max_num_seqs == num_seqs
    build(scenario)


def test_a_client_in_python_can_verify_its_drafts():
    config = SpeculativeConfig(method="ngram", num_speculative_tokens=8, acceptance_rate=0.6)
    client = llm_client("llm", speculative_config=config)
    assert client.scheduler.max_num_seqs == 910


def test_limits_that_cannot_verify_drafts_are_still_refused():
    for said in ({"max_num_seqs": 1024}, {"max_num_batched_tokens": 8}):
        overrides = {"clients.0.gpu": "h100-sxm", **drafting(8, said)}
        with pytest.raises(ScenarioError, match="every running request verifies its drafts"):
            build(Scenario.load("demo", overrides=overrides))


def test_the_resolved_scenario_shows_them():
    scenario = Scenario.load("demo", overrides={"clients.0.scheduler": "chunked"})
    assert "max_num_batched_tokens: 8192" in scenario.resolved()


def test_a_default_of_ones_own_stays(monkeypatch):
    monkeypatch.setattr(SCHEDULERS, "_classes", dict(SCHEDULERS._classes))

    @SCHEDULERS.register("few")
    @dataclass(frozen=True, kw_only=True)
    class Few(ChunkedScheduler):
        """Few at once."""

        max_num_seqs: int = 4

    found = scheduler("h100-sxm", "few")
    assert (found.max_num_seqs, found.max_num_batched_tokens) == (4, 8192)


def test_a_default_of_ones_own_stays_where_it_is_the_same_number(monkeypatch):
    monkeypatch.setattr(SCHEDULERS, "_classes", dict(SCHEDULERS._classes))

    @SCHEDULERS.register("measured")
    @dataclass(frozen=True, kw_only=True)
    class Measured(ChunkedScheduler):
        """As our engines are started."""

        max_num_seqs: int = 256
        max_num_batched_tokens: int = 2048

    found = scheduler("h100-sxm", "measured")
    assert (found.max_num_seqs, found.max_num_batched_tokens) == (256, 2048)


def test_a_preset_of_a_paper_keeps_its_own():
    for preset in ("bestserve", "mist-offline", "mist-online", "demo"):
        (client,) = build(Scenario.load(preset)).clients[:1]
        assert client.scheduler.max_num_seqs in (4, 256)


test_wrong_limits_are_still_refused = refused(
    lambda said: scheduler("h100-sxm", said),
    ("chunkd", "did you mean 'chunked'"),
    ({"max_num_batched_tokens": 0}, "max_num_batched_tokens"),
    ({"max_num_batched_tokens": "many"}, "max_num_batched_tokens"),
    ({"max_num_seqs": 10_000}, r"must be >= max_num_seqs \(10000\), got 8192"),
)


def test_the_list_of_options_shows_both():
    defaults = {
        (option.key, option.default)
        for option in engine_options()
        if option.key in ("scheduler.max_num_seqs", "scheduler.max_num_batched_tokens")
    }
    assert defaults == {
        ("scheduler.max_num_seqs", "256 or 1024, by GPU"),
        ("scheduler.max_num_batched_tokens", "2048 or 8192 or 16384, by GPU"),
        ("scheduler.max_num_batched_tokens", "null"),
    }


@pytest.mark.parametrize("engine", [None, "vllm-0.12", "vllm-0.33"])
def test_a_scheduler_of_others_keeps_its_own_defaults_under_every_version(monkeypatch, engine):
    monkeypatch.setattr(SCHEDULERS, "_classes", dict(SCHEDULERS._classes))

    @SCHEDULERS.register("own")
    @dataclass(frozen=True, kw_only=True)
    class Own(ChunkedScheduler):
        max_num_batched_tokens: int = 700
        order: str = "priority"
        long_prefill_token_threshold: int | None = 300

    overrides = {"engine": engine, "clients.0.scheduler": "own"}
    found = Scenario.load("demo", overrides=overrides).clients[0].scheduler
    assert (found.max_num_batched_tokens, found.order) == (700, "priority")
    assert found.long_prefill_token_threshold == 300
    assert found.scheduler_reserve_full_isl is (engine != "vllm-0.12")  # inherited
