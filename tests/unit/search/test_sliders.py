"""TaiChi's sliders: the designs at their ends, and a race against an exhaustive search."""

from dataclasses import replace
from typing import Any

import pytest

from mist_sim import Scenario, ScenarioError, Slo, simulate
from mist_sim.core.sliders import Sliders, all_sliders
from mist_sim.scenario.loading import as_data
from mist_sim.search.bracketing import Bracket, SeedGoodput
from mist_sim.search.comparison import workloads_differ
from mist_sim.search.designs import Slidable, designs_of
from mist_sim.search.goodput import GoodputOptions, find_goodputs
from mist_sim.search.goodput_result import Goodput
from mist_sim.search.slider_search import SliderSearch, search_sliders
from mist_sim.search.spaces.space import Configuration
from mist_sim.studies.built import Built
from mist_sim.studies.verdicts.request_times import Target
from mist_sim.studies.verdicts.trials import Trial
from tests.reference.scenarios import of_profile


def said(num_requests: int = 120) -> dict[str, Any]:
    def client(name: str, role: str, chunk: int) -> dict[str, Any]:
        return {
            "name": name,
            "role": role,
            "gpu": "a100-sxm-80gb",
            "engine": "vllm-0.12",
            "scheduler": {"max_num_batched_tokens": chunk, "max_num_seqs": 256},
            "async_scheduling": False,
        }

    return {
        "model": "qwen2.5-14b",
        "workload": of_profile(num_requests, "6 /s"),
        "clients": [client("p", "p_heavy", 1024), client("d", "d_heavy", 512)],
        "network": {"bandwidth": "300 GB/s"},
        "hand_over": {"first_token": "decode", "policy": {"type": "flowing", "tpot": "60 ms"}},
        "router": {"type": "length_aware", "ttft": "1 s"},
        "slo": {"ttft": "1 s", "tpot": "60 ms"},
    }


HYBRID = Scenario.from_dict(said())
AGGREGATION = Sliders(num_p=1, num_d=1, s_p=512, s_d=512)
DISAGGREGATION = Sliders(num_p=1, num_d=1, s_p=512, s_d=0)


def test_all_positions_are_there_once_and_the_middle_comes_first():
    found = list(all_sliders(4, [128, 256, 512]))
    assert len(set(found)) == len(found) == 3 + 3 + 3 * 3
    assert [each.name for each in found[:4]] == [
        "4 x 256",
        "4 x 128",
        "4 x 512",
        "2 prefill, 2 decode",
    ]
    assert {each.design for each in found} == {"aggregation", "disaggregation", "hybrid"}
    assert found[6].name == "2 x 256, 2 x 128"


def test_hybrids_have_a_position_for_each_watermark():
    found = list(all_sliders(4, [128, 512], [0.5, 0.95]))
    assert len(set(found)) == len(found) == 2 + 3 + 3 * 2
    hybrids = [each for each in found if each.design == "hybrid"]
    assert {each.watermark for each in hybrids} == {0.5, 0.95}
    assert {each.watermark for each in found if each not in hybrids} == {None}
    assert hybrids[0].name == "2 x 512, 2 x 128, watermark 0.5"


def test_watermark_is_that_of_policy_and_moves_answers():
    mark = Sliders(num_p=1, num_d=1, s_p=1024, s_d=256, watermark=0.02)
    scenario = Slidable(HYBRID).at(mark)
    policy = as_data(scenario)["hand_over"]["policy"]
    assert (policy["watermark"], policy["tpot"]) == (0.02, "0.06 s")
    plain = Slidable(HYBRID).at(replace(mark, watermark=None))
    few, many = simulate(plain).summary, simulate(scenario).summary
    assert many["num_hand_overs"] > few["num_hand_overs"]


@pytest.mark.parametrize(("s_d", "mark"), [(128, 0.0), (128, 1.5), (0, 0.5), (512, 0.5)])
def test_watermarks_are_parts_and_of_hybrids(s_d, mark):
    with pytest.raises(ValueError, match="watermark must be > 0 and <= 1, and of a hybrid"):
        Sliders(num_p=1, num_d=1, s_p=512, s_d=s_d, watermark=mark)


def test_positions_that_attain_nothing_take_one_run_each():
    plain = said(40)
    plain["slo"] = {"ttft": "1 s", "tpot": "1 ms"}  # shorter than any step
    hopeless = Scenario.from_dict(plain)
    race = search_sliders(
        hopeless,
        GoodputOptions(rates=(1, 2), as_is=True),
        chunks=[128, 256, 512],
        designs=["hybrid"],
        jobs=1,
    )
    assert race.best == {}
    first, *others = race.entries
    assert first.num_runs > 1
    assert [entry.num_runs for entry in others] == [1, 1]
    assert race.table["goodput"].isna().all()
    assert race.table["missed_at"].tolist()[1:] == [1.0, 1.0]


def searched(sliders: Sliders, *verdicts: tuple[float, bool]) -> Configuration:
    """Return a position whose search tried these rates."""
    trials = tuple(
        Trial(rate, 0, attained, 0.95 if attained else 0.5, is_whole=True, worst_limit="tpot")
        for rate, attained in verdicts
    )
    seed = SeedGoodput(0, Bracket.of(dict(verdicts)), trials)
    goodput = Goodput((seed,), Target(slo=Slo(tpot=1.0)), 0.02, 100, 2, "")
    name = f"{sliders.design} ({sliders.name})"
    return Configuration(0, name, {"sliders": sliders}, goodput=goodput)


def test_the_verdict_names_the_design_that_serves_most():
    one = searched(AGGREGATION, (4.0, True), (4.1, False))
    best = searched(DISAGGREGATION, (5.0, True), (5.1, False))
    assert SliderSearch((one, best), "").verdict == (
        "disaggregation (1 prefill, 1 decode) serves most, 5 /s: 25 % more than aggregation (2 x "
        "512), for the workload as it stands; short ones flatter; TPOT is the first to miss beyond."
    )
    near = searched(AGGREGATION, (4.95, True), (5.2, False))
    assert SliderSearch((near, best), "").verdict.startswith("Undecided between disaggregation")
    assert SliderSearch((best, best), "").verdict == "", "one design is no comparison"
    never = [searched(each, (1.0, False)) for each in (AGGREGATION, DISAGGREGATION)]
    assert SliderSearch(tuple(never), "").verdict == "No rate is attained; TPOT misses first."
    assert "No rate is attained" in SliderSearch(tuple(never), "")._repr_html_()


def test_a_position_that_attains_all_rates_tried_is_the_best_of_its_design():
    known = searched(DISAGGREGATION, (5.0, True), (5.1, False))
    open_one = searched(AGGREGATION, (4.0, True), (64.0, True))
    found = SliderSearch((known, open_one, searched(AGGREGATION, (4.0, True), (4.1, False))), "")
    assert found.best["aggregation"] is open_one
    assert found.verdict == (
        "Undecided: aggregation (2 x 512) attains all rates tried, up to 64 /s; of the others "
        "disaggregation (1 prefill, 1 decode) (5 /s, 5 to 5.1) serves most. A higher end of "
        "--rates, or a workload of more requests, may tell."
    )
    assert "&gt; 64" in found._repr_html_()
    assert found.summary["best"]["aggregation"]["attained"] == 64.0


def test_the_race_shows_watermarks():
    hybrid = Scenario.from_dict(said(60))
    race = search_sliders(
        hybrid,
        GoodputOptions(tolerance=0.2, as_is=True),
        chunks=[128, 512],
        watermarks=[0.02, 0.95],
        designs=["hybrid"],
        jobs=1,
    )
    assert race.table["watermark"].tolist() == [0.02, 0.95]
    assert race.best["hybrid"] in race.entries
    assert "watermark" in race._repr_html_()


def aggregated() -> Scenario:
    """Plain aggregation, written by hand."""
    plain = said()
    for key in ("network", "hand_over"):
        del plain[key]
    client = plain["clients"][0]
    del client["role"]
    client["count"] = 2
    client["scheduler"] = {"max_num_batched_tokens": 512, "max_num_seqs": 256}
    plain["clients"] = [client]
    return Scenario.from_dict(plain)


def apart() -> Scenario:
    """Plain disaggregation, written by hand."""
    plain = said()
    plain["hand_over"] = {"first_token": "decode"}
    plain["clients"][0] |= {
        "role": "prefill",
        "scheduler": {"max_num_batched_tokens": 131072, "max_num_seqs": 256},
    }
    plain["clients"][1]["role"] = "decode"
    return Scenario.from_dict(plain)


@pytest.mark.parametrize(
    ("sliders", "plain"),
    [(AGGREGATION, aggregated), (DISAGGREGATION, apart)],
    ids=["S_D = S_P", "S_D = 0"],
)
def test_at_the_ends_are_the_pure_designs(sliders, plain):
    mine, theirs = simulate(Slidable(HYBRID).at(sliders)), simulate(plain())
    for name in ("requests", "stages", "steps", "transfers"):
        one, other = getattr(mine, name), getattr(theirs, name)
        assert one.equals(other), name
    assert len(mine.requests) == 120


def test_a_hybrid_between_them_keeps_all_else():
    data = as_data(Slidable(HYBRID).at(Sliders(num_p=3, num_d=2, s_p=2048, s_d=128)))
    p, d = data["clients"]
    assert (p["count"], d["count"]) == (3, 2)
    assert p["scheduler"]["max_num_batched_tokens"] == 2048
    assert d["scheduler"]["max_num_seqs"] == d["scheduler"]["max_num_batched_tokens"] == 128
    others = as_data(HYBRID)
    for client in (*data["clients"], *others["clients"]):
        del client["count"], client["scheduler"]
    assert data == others


@pytest.mark.deep
def test_race_finds_what_search_of_every_position_finds():
    options = GoodputOptions(tolerance=0.05, as_is=True)
    hybrid = Scenario.from_dict(said(60))
    race = search_sliders(hybrid, options, chunks=[128, 512, 1024], jobs=1)
    slidable, positions = Slidable(hybrid), [each.values["sliders"] for each in race.entries]
    assert len(positions) == 3 + 1 + 3
    every = find_goodputs([slidable.at(each) for each in positions], options, jobs=1)
    for design, best in race.best.items():
        mine = [g.rate for g, s in zip(every, positions, strict=True) if s.design == design]
        assert best.rate == pytest.approx(max(mine), rel=2 * options.tolerance)
    for entry, goodput in zip(race.entries, every, strict=True):
        if entry.goodput is None:
            assert goodput.rate < entry.missed_at
    assert any(entry.goodput is None for entry in race.entries)
    assert race.num_runs < sum(goodput.num_runs for goodput in every)
    assert "Best of each design" in race._repr_html_()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda said: said["clients"].pop(), "clients must have one with role p_heavy, whose"),
        (lambda said: said.update(hand_over={"policy": None}), "hand_over.policy must be given to"),
        (lambda said: said.pop("hand_over"), "hand_over.policy must be given to search sliders"),
        (lambda said: said.update(replications=3), "replications must be 1 to search sliders"),
    ],
)
def test_what_has_no_sliders_is_refused(change, message):
    plain = as_data(HYBRID)
    change(plain)
    if len(plain["clients"]) < 2:
        plain["clients"][0]["role"] = None
        del plain["network"], plain["hand_over"]
    with pytest.raises(ScenarioError, match=message):
        search_sliders(Scenario.from_dict(plain))


@pytest.mark.parametrize(("s_p", "s_d"), [(128, 256), (0, 0), (4, -1)])
def test_small_chunks_are_not_the_larger_ones(s_p, s_d):
    with pytest.raises(ValueError, match="s_d in"):
        Sliders(num_p=1, num_d=1, s_p=s_p, s_d=s_d)


@pytest.mark.parametrize(("num_clients", "chunks"), [(1, [128]), (2, []), (2, [0])])
def test_positions_need_clients_and_chunks(num_clients, chunks):
    with pytest.raises(ScenarioError, match="must be >="):
        list(all_sliders(num_clients, chunks))


def test_positions_need_a_watermark_if_any_are_named():
    with pytest.raises(ScenarioError, match="watermarks must be one at least"):
        list(all_sliders(2, [128, 256], []))


def test_sliders_that_move_during_run_are_not_searched():
    plain = as_data(HYBRID)
    plain["reconfigure"] = {"schedule": [{"at": "5 s", "num_p": 1, "s_p": 1024, "s_d": 512}]}
    with pytest.raises(ScenarioError, match="reconfigure must be left out to search sliders"):
        Slidable(Scenario.from_dict(plain))


def test_a_hybrid_is_compared_with_all_ratios_and_both_chunks():
    hybrid = Slidable(HYBRID).at(Sliders(num_p=2, num_d=1, s_p=1024, s_d=256))
    designs = designs_of(hybrid).scenarios
    assert list(designs) == [
        "3 x 1024",
        "3 x 256",
        "1 prefill + 2 decode",
        "2 prefill + 1 decode",
        "2 x 1024 + 1 x 256",
    ]
    assert designs["2 x 1024 + 1 x 256"] is hybrid
    assert designs["3 x 256"].clients[0].engine.scheduler.max_num_batched_tokens == 256
    apart = [client.count for client in designs["1 prefill + 2 decode"].clients]
    assert apart == [1, 2]
    assert not workloads_differ({name: Built(design) for name, design in designs.items()})


@pytest.mark.parametrize("chunk", [1024, 2048])
def test_small_chunks_of_a_hybrid_are_smaller(chunk):
    plain = said()
    plain["clients"][1]["scheduler"]["max_num_batched_tokens"] = chunk
    with pytest.raises(ScenarioError, match=rf"must be < that of the p_heavy one .* got {chunk}"):
        designs_of(Scenario.from_dict(plain))
