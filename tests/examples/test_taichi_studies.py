"""The makers of TaiChi's page: how they search, with services whose goodput is known."""

import json
import sys
from math import exp, inf, log

import numpy as np
import pytest

from mist_sim.errors import ScenarioError
from tests.conftest import ROOT
from tests.refusals import refused

FOLDER = ROOT / "tools/pages"
sys.path.insert(0, str(FOLDER))
try:
    import taichi_chat
    import taichi_plane
    import taichi_runs
    import taichi_search
    from taichi_designs import hybrids, pures, served
finally:
    sys.path.remove(str(FOLDER))

CHATS = {"type": "profile", "name": "sharegpt-2048", "num_requests": 400}
POISSON = {"type": "poisson", "rate": "1 /s"}


class Known(taichi_runs.Service):
    """One whose times grow with the rate: at its goodput nine in ten requests keep 1 s and 1 s."""

    def __init__(self, rate, by_seed=0.0):
        self.rate, self.by_seed = rate, by_seed
        self.asked = []

    def times(self, rate, seed, number):
        self.asked.append((rate, seed, number))
        worst = (rate / self.rate * exp(-self.by_seed * seed)) ** 3
        ttft = np.append(np.full(9, worst), inf)
        return taichi_runs.Times(ttft, np.zeros(10))


# --- margins and crossings ----------------------------------------------------------------------


def test_a_margin_is_that_of_the_worse_limit_of_nine_in_ten():
    times = taichi_runs.Times(np.array([0.5] * 9 + [inf]), np.array([0.02] * 9 + [0.0]))
    assert times.margins((1.0, 0.1)) == pytest.approx((log(0.5), log(0.2), log(0.5)))
    assert times.margins((1.0, 0.01))[2] == pytest.approx(log(2))
    two_bad = taichi_runs.Times(np.array([0.5] * 8 + [inf] * 2), np.zeros(10))
    assert two_bad.margin((1.0, 1.0)) == pytest.approx(log(100))


@pytest.mark.parametrize("guess", [0.01, 1.0, 7.3, 7.4, 900.0])
def test_a_crossing_is_found_from_any_guess(guess):
    asked = []

    def margin(rate):
        asked.append(rate)
        return 3 * log(rate / 7.35)

    assert taichi_runs.crossing(margin, guess) == pytest.approx(7.35)
    below, above = (max(r for r in asked if r <= 7.35), min(r for r in asked if r > 7.35))
    assert above / below <= taichi_runs.STEP * 1.0001


test_rates_that_all_keep_the_limits_or_none_have_no_crossing = refused(
    lambda margin: taichi_runs.crossing(lambda rate: margin, 5.0),
    (-1.0, "at all of them"),
    (1.0, "at none of them"),
    error=ValueError,
)


def test_goodputs_of_seeds_that_are_known_are_not_searched():
    service = Known(4.0, by_seed=0.01)
    found = dict(taichi_runs.goodput(service, (1.0, 1.0), 1.0, seeds=range(3), number=4000))
    assert found == pytest.approx({k: 4.0 * exp(0.01 * k) for k in range(3)})
    assert {number for _, _, number in service.asked} == {1000, 4000}
    again = Known(4.0, by_seed=0.01)
    left = dict(
        taichi_runs.goodput(
            again, (1.0, 1.0), 1.0, seeds=range(3), number=4000, known={0: found[0], 1: found[1]}
        )
    )
    assert left == pytest.approx({2: found[2]})
    assert {(seed, number) for _, seed, number in again.asked} == {(2, 4000)}


def test_an_interval_is_student_s():
    from scipy.stats import t

    mean, width = taichi_runs.mean_and_width([1.0, 2.0, 3.0])
    assert (mean, width) == pytest.approx((2.0, t.ppf(0.975, 2) / 3**0.5), rel=1e-3)
    assert taichi_runs.mean_and_width([1.0]) == (1.0, inf)


def test_ramp_and_end_of_run_do_not_count():
    service = taichi_runs.Service(served(CHATS, POISSON, 1, ahead=True))
    times = service.times(2.0, 0, 200)
    assert len(times.ttft) == len(times.tpot) == 150
    assert service.times(2.0, 0, 200) is times
    assert service.num_run == 200


# --- files --------------------------------------------------------------------------------------


def test_rows_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert taichi_runs.read(path) == []
    taichi_runs.append(path, {"a": 1})
    taichi_runs.append(path, {"a": 2})
    assert taichi_runs.read(path) == [{"a": 1}, {"a": 2}]
    with path.open("a") as file:
        file.write('{"a": ')
    with pytest.raises(SystemExit, match="line 3: must be a row of JSON.*remove it"):
        taichi_runs.read(path)


@pytest.mark.parametrize("maker", [taichi_chat, taichi_plane, taichi_search])
def test_a_page_of_no_rows_is_refused(maker, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["maker", str(tmp_path / "none.jsonl"), "--page"])
    with pytest.raises(SystemExit) as found:
        maker.main()
    assert found.value.code == 2
    assert "none.jsonl must have rows to" in capsys.readouterr().err


# --- designs and rounds -------------------------------------------------------------------------


def test_hybrids_keep_the_limits_and_the_first_ones_have_all_ratios():
    scenario = served(CHATS, POISSON, 4, ahead=True)
    found = dict(hybrids(scenario, (0.5, 0.07)))
    assert len(found) == 24
    assert [name.split(" x ")[0] for name in list(found)[:3]] == [
        "hybrid 1",
        "hybrid 2",
        "hybrid 3",
    ]
    for each in found.values():
        assert each.router.make().ttft == 0.5
        assert each.hand_over.make().policy.tpot == 0.07
        assert {client.async_scheduling for client in each.clients} == {True}
    assert [*pures(scenario)] == [
        *(f"together {chunk}" for chunk in (512, 2048, 8192)),
        *(f"apart {k}:{4 - k}" for k in (1, 2, 3)),
    ]


def setting(name="a", ttft=1.0):
    return taichi_search.Setting(2, (256, 256), (100, 100), 1, (ttft, 0.05))


def test_those_with_the_largest_gains_go_on():
    entries = [
        taichi_search.Entry(setting(ttft=k), {"together": 1.0}, {"hybrid": gain} if gain else {})
        for k, gain in enumerate((0.1, None, -0.2, 0.3), 1)
    ]
    best = taichi_search.best_of(entries, 3)
    assert [entry.setting.limits[0] for entry in best] == [4, 1, 3]
    assert taichi_search.top({"a": 1.0, "b": 3.0, "c": 2.0}, 2) == ["b", "c"]


def test_round_that_file_has_is_not_searched_again(tmp_path):
    path, searched = tmp_path / "rows.jsonl", []

    def find():
        searched.append(1)
        return taichi_search.Entry(setting(), {"together 512": 2.0}, {"hybrid": 0.1})

    first = taichi_search.step(path, "600", setting(), find)
    assert taichi_search.step(path, "600", setting(), find) == first
    assert len(searched) == 1
    taichi_search.step(path, "600", setting(ttft=2.0), find)
    taichi_search.step(path, "1500", setting(), find)
    assert len(searched) == 3


@pytest.mark.parametrize("error", [ValueError("no rate"), ScenarioError("no memory")])
def test_a_design_that_serves_nothing_has_no_goodput(error):
    def find():
        raise error

    assert taichi_search.rate_or_none(find) == 0.0


def test_a_setting_is_tried_at_best_pure_goodput():
    """With short runs; a hybrid that surely keeps the limits gains, one that does not loses."""
    one = setting()._replace(limits=(2.0, 0.06))
    entry = taichi_search.tried(one, 120, 2)
    assert set(entry.pures) == {"together 512", "together 2048", "together 8192", "apart 1:1"}
    assert min(entry.pures.values()) > 0
    assert len(entry.gains) == 2
    assert entry.gain == max(entry.gains.values())


def test_the_tables_say_what_rows_say():
    rows = [
        {"round": "600", "setting": "a", "pures": {}, "gains": {"hybrid": 0.25}},
        {"round": "600", "setting": "b", "pures": {}, "gains": {"hybrid": -0.15}},
    ]
    for seed, (hybrid, pure) in enumerate([(11.0, 10.0), (11.0, 10.0)]):
        for ahead in (True, False):
            long = {"round": "long", "setting": "a", "ahead": ahead, "seed": seed}
            rows.append(long | {"design": "hybrid 1 x 2", "goodput": hybrid})
            rows.append(long | {"design": "together 512", "goodput": pure})
    assert "| 600 | 2 | spare | +5 % | +25 % |" in [*taichi_search.rounds(rows)]
    found = [*taichi_search.long_runs(rows)]
    gain = "11.00 ± 0.00 | +10.0 ± 0.0 %"
    assert f"| a | hybrid 1 x 2 | {gain} | {gain} |" in found
    assert "| a | together 512 | 10.00 ± 0.00 | – | 10.00 ± 0.00 | – |" in found


# --- the plane ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rates", "found"),
    [
        ({"together 512": 0.0, "apart 1:1": 0.0, "hybrid 1": 0.0}, ("none", 0.0)),
        ({"together 512": 3.0, "together 2048": 4.0, "apart 1:1": 2.0}, ("together", 1.0)),
        ({"together 512": 4.0, "apart 1:1": 2.0, "hybrid 1": 5.0}, ("hybrid", 0.25)),
        ({"together 512": 0.0, "apart 1:1": 2.0, "hybrid 1": 0.0}, ("apart", inf)),
    ],
)
def test_the_best_kind_wins_and_by_how_much_the_next_is_behind(rates, found):
    assert taichi_plane.winner(rates) == found


def test_the_plane_is_drawn_and_counted(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(taichi_plane, "IMAGES", tmp_path)
    rates = {"together 512": 10.0, "apart 2:2": 8.0, "hybrid 2": 11.0}
    rows = [
        {
            "ahead": ahead,
            "ttft": ttft,
            "tpot": tpot,
            "rates": rates if ahead else {"together": 0.0, "apart": 0.0},
        }
        for ahead in (False, True)
        for ttft in taichi_plane.TTFT[:2]
        for tpot in taichi_plane.TPOT[:1]
    ]
    taichi_plane.draw(json.loads(json.dumps(rows)))
    assert (tmp_path / "taichi_plane.png").stat().st_size > 5000
    without, with_it = taichi_plane.summary(rows)
    assert "'hybrid': 0}, level 0" in without
    assert "'hybrid': 2}, level 0, a hybrid by 10 %" in with_it


# --- chat ---------------------------------------------------------------------------------------


def test_chat_s_designs_plan_ahead_or_not():
    cell = taichi_chat.CELLS[1]
    for ahead in (False, True):
        found = taichi_chat.designs(cell, ahead=ahead)
        assert [*found][:4] == ["together", "apart 2:2", "hybrid", "hybrid, watermark 0.4"]
        for each in found.values():
            assert {client.async_scheduling for client in each.clients} == {ahead}


def test_gains_are_those_of_equal_seeds():
    assert taichi_chat.gain({0: 11.0, 1: 22.0}, {0: 10.0, 1: 20.0, 2: 5.0}) == "+10.0 ± 0.0 %"
    assert taichi_chat.gain({}, {0: 10.0}) == "–"


def test_chat_s_tables_say_what_rows_say():
    key = {"cell": "chat, 14B, SLO1"}
    rates = {"together": 10.0, "apart 2:2": 8.0, "hybrid": 9.0, "hybrid, watermark 0.4": 12.0}
    rows = [
        key | {"design": name, "ahead": False, "seed": seed, "goodput": rate}
        for name, rate in rates.items()
        for seed in range(2)
    ]
    groups = taichi_chat.grouped(rows)
    assert "| chat, 14B, SLO1 | hybrid | 16.38 | 9.00 ± 0.00 | – | – |" in [
        *taichi_chat.table(groups)
    ]
    last = [*taichi_chat.gains(groups)][-1]
    assert last == (
        "| chat, 14B, SLO1 | no | hybrid, watermark 0.4 | +20.0 ± 0.0 % | +50.0 ± 0.0 % |"
    )
