"""Studies in a paper's form: paired differences, tables, pictures for a column."""

import numpy as np
import pytest
from scipy import stats

import mist_sim as mist
from mist_sim.errors import ScenarioError
from mist_sim.metrics.replications import Estimate
from mist_sim.studies.text_tables import latex, markdown
from tests.refusals import refused

ROUTERS = ["random", "round_robin"]
SCENARIO = mist.Scenario.load(
    "demo", overrides={"workload.lengths.num_requests": 60, "clients.0.count": 2}
)


@pytest.fixture(scope="module")
def found():
    return mist.study(SCENARIO, vary={"router": ROUTERS}, rates=[20, 40], seeds=4, jobs=1)


def test_differences_are_of_pairs_with_equal_seeds(found):
    told = found.difference("p99_ttft_ms", between="router", to="random")
    assert told.router.tolist() == ["round_robin", "round_robin"]
    assert told.rate.tolist() == [20, 40]
    for row in told.itertuples():
        rows = found.rows[found.rows.rate == row.rate]
        of = {name: rows[rows.router == name].set_index("seed").p99_ttft_ms for name in ROUTERS}
        gaps = (of["round_robin"] - of["random"]).to_numpy()
        low, high = stats.t.interval(0.95, 3, gaps.mean(), stats.sem(gaps))
        assert row.mean == pytest.approx(gaps.mean())
        assert (row.low, row.high) == (pytest.approx(low), pytest.approx(high))


def test_the_only_key_needs_no_name():
    found = mist.study(SCENARIO, vary={"router": ROUTERS}, seeds=2, jobs=1)
    named = found.difference("p99_ttft_ms", between="router", to="random")
    assert found.difference("p99_ttft_ms", to="random").equals(named)


test_differences_refuse = refused(
    lambda *said: mist.study(SCENARIO, vary={"seed": [1, 2]}, jobs=1).difference(
        said[0], to=said[1], between=said[2]
    ),
    ("p99_tfft_ms", 1, "seed", "metric must be a number of the runs.* 'p99_ttft_ms'"),
    ("p99_ttft_ms", 3, "seed", "to must be a value of seed, one of 1, 2, got 3"),
    ("p99_ttft_ms", 1, "router", "between must be a varied key, one of seed, got 'router'"),
)


ROWS = [
    {"a_b": "x|y", "m": Estimate(12.345, 0.678), "n": Estimate(3.0, float("nan"))},
    {"a_b": "50 %", "m": Estimate(1234.5, 321.0), "n": None},
]


def test_tables_are_written_as_a_paper_needs_them():
    assert markdown(ROWS).splitlines() == [
        "| a_b | m | n |",
        "| --- | --- | --- |",
        r"| x\|y | 12.35 ± 0.68 | 3 |",
        "| 50 % | 1234 ± 321 |  |",
    ]
    assert latex(ROWS).splitlines() == [
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"a\_b & m & n \\",
        r"\midrule",
        r"x|y & $12.35 \pm 0.68$ & $3$ \\",
        r"50 \% & $1234 \pm 321$ &  \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_a_study_writes_its_means_and_differences(found):
    told = found.markdown("p99_ttft_ms", between="router", to="random")
    assert told.splitlines()[0] == (
        "| router | rate | p99_ttft_ms | p99_ttft_ms, less that of random |"
    )
    assert len(told.splitlines()) == 2 + 4
    assert found.latex("p99_ttft_ms", "mean_tpot_ms").count(r"\pm") == 8
    with pytest.raises(ScenarioError, match="a table needs a metric or more"):
        found.latex()


def test_pictures_fit_a_column(found):
    pytest.importorskip("matplotlib")
    picture = found.plot("p99_ttft_ms")
    column = picture.for_print()
    assert column.figure().get_size_inches()[0] == pytest.approx(3.33)
    assert not column.caption
    assert [panel.title for panel in column.panels] == [panel.title for panel in picture.panels]
    axes = column.figure().axes[0].get_position()
    assert 0 < axes.x0 < axes.x1 < 1
    assert picture.for_print(width=7.0).figure().get_size_inches()[0] == pytest.approx(7.0)
    for wrong in (1.0, np.inf):
        with pytest.raises(ScenarioError, match="width must be 2.5 to 20 inches"):
            picture.for_print(width=wrong)
