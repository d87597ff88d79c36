"""MIST's boxed insights: where they hold and where they turn (docs/background/mist.md)."""

import importlib.util

import pytest

from benchmarks.mist_insights.copies import CONTEXT, NETWORK, TOKEN, copies
from benchmarks.mist_insights.gaps import gaps
from benchmarks.mist_insights.placement import placement
from benchmarks.mist_insights.retrieval import retrieval
from mist_sim.stages import STAGES
from tests.conftest import ROOT


def p99_gain(probes: int, prompt: str) -> float:
    cores, gpu = (retrieval(w, probes, prompt, 8.0, 300)["p99"] for w in ("64 cores", "H100"))
    return cores / gpu


def test_retrieval_on_a_gpu_lowers_the_p99_where_prompts_are_short():
    few, many = (p99_gain(probes, "700 tokens") for probes in (16, 256))
    assert 1.3 < few < 2.5
    assert many > 2 * few


def test_retrieval_on_a_gpu_does_nothing_for_the_p99_of_long_prompts():
    assert 0.95 < p99_gain(256, "Table III") < 1.05


def test_a_long_prompt_lengthens_the_gaps_beside_it_in_chunks_and_not_apart():
    """The smaller the chunk the less."""
    large, small, apart = (
        gaps(name, 32_768, 0.02, 300)["beside"]
        for name in ("chunked, 2,048 tokens", "chunked, 256 tokens", "1 prefill, 7 decode")
    )
    assert large > 3 * small
    assert small > 1.5 * apart
    assert apart < 0.02


def test_a_few_long_prompts_do_not_show_in_the_p99_of_all_gaps():
    found = gaps("chunked, 2,048 tokens", 8_192, 0.02, 300)
    assert found["all"] < 0.02 < 0.08 < found["beside"]


@pytest.mark.parametrize("bandwidth", [8e9, 32e9])
def test_copies_at_once_save_second_way_of_context(bandwidth):
    """One request: what is saved is the context's time between the two clients, to the last ms."""
    turn, once = (
        copies(bandwidth, at_once=at_once, shares_outlet=False, rate=1.0, requests=1)["mean"]
        for at_once in (False, True)
    )
    assert turn - once == pytest.approx(CONTEXT * TOKEN / NETWORK, rel=1e-6)


def test_copies_at_once_turn_where_both_share_a_slow_outlet():
    for bandwidth, is_better in ((2e9, False), (32e9, False), (128e9, True)):
        turn, once = (
            copies(bandwidth, at_once=at_once, shares_outlet=True, rate=0.02, requests=20)["mean"]
            for at_once in (False, True)
        )
        assert (once < turn) == is_better


def test_answers_beside_their_prompts_spare_a_crowded_spine():
    """A rack's bandwidth over the spine's: 4 cost milliseconds, with 200 everything waits."""
    wide, crowded, beside = (
        placement(where, over, 300)
        for where, over in (
            ("in another rack", 4),
            ("in another rack", 200),
            ("beside the prompts", 200),
        )
    )
    assert 5 < wide["hand_over"] / beside["hand_over"] < 15
    assert wide["p90_e2el"] == pytest.approx(beside["p90_e2el"], rel=0.01)
    assert crowded["hand_over"] > 0.5
    assert crowded["p90_e2el"] > 1.2 * beside["p90_e2el"]


def test_a_small_model_first_saves_nothing_where_most_answers_go_on(monkeypatch):
    """Twice as many GPU seconds of the large model are saved with one in ten, none with six."""
    # the stage of the example is not for the tests that come after
    monkeypatch.setattr(STAGES, "_classes", dict(STAGES._classes))
    names, found = zip(*escalate().compared((0.1, 0.6)), strict=True)
    assert names[0] == "always the large one"
    always, few, most = (each["gpu_seconds"] for each in found)
    assert few < 0.6 * always
    assert 0.9 * always < most < 1.1 * always
    assert found[0]["mean"] < found[1]["mean"] < found[2]["mean"]


def escalate():
    spec = importlib.util.spec_from_file_location("escalate", ROOT / "examples" / "escalate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.deep
def test_sums_of_operators_are_far_from_steps_and_whole_steps_near(shared):
    """Fig. 8a: sums are too low beside an engine that launches kernels one by one, as MIST says."""
    from benchmarks.mist_insights.operators import against_runs, against_steps

    folder = shared("measurements")
    steps = against_steps(folder)
    for _, mine in steps.groupby("stage"):
        assert mine["operators"].mean() < -0.2
        assert mine["whole"].abs().mean() < 0.05
    assert (against_runs(folder)["operators"] > 0).all()  # CUDA graphs: no launches to leave out
