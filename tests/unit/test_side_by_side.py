"""Pictures of several runs beside one another, and pictures for print."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mist_sim import Scenario, ScenarioError, overlaid, side_by_side, simulate
from mist_sim.report.pages.study_page import metric_picture
from mist_sim.report.pictures.catalog import draw, drawn
from mist_sim.report.pictures.findings.study_lines import axis_of
from mist_sim.report.pictures.run_data import OfResult
from tests.commands import mist

pytest.importorskip("plotly")

FEW = {"workload.lengths.num_requests": 150}


@pytest.fixture(scope="module")
def runs():
    routers = ("random", "round_robin")
    return {each: simulate(Scenario.load("demo", FEW | {"router": each})) for each in routers}


@pytest.mark.parametrize("name", ["latency", "cdf", "queue", "stages", "requests"])
def test_each_column_has_what_the_picture_of_its_run_has(runs, name):
    whole = side_by_side(runs, name)
    alone = [draw(OfResult(run), name) for run in runs.values()]
    assert len(whole.data) == sum(len(figure.data) for figure in alone)
    assert len(whole.layout.shapes) == sum(len(figure.layout.shapes) for figure in alone)
    drawn_there = [trace for figure in alone for trace in figure.data]
    for there, here in zip(drawn_there, whole.data, strict=True):
        assert list(there.x) == pytest.approx(list(here.x), nan_ok=True)
    titles = [note.text for note in whole.layout.annotations]
    assert titles[:2] == ["<b>random</b>", "<b>round_robin</b>"]


def test_columns_have_the_same_axes_and_one_legend(runs):
    whole = side_by_side(runs, "latency")
    assert whole.layout.yaxis2.matches == "y"
    assert {axis.matches for axis in whole.select_xaxes() if axis.matches} == {"x5"}
    assert [trace.name for trace in whole.data if trace.showlegend] == ["p50", "p99"]


def test_limits_stand_in_the_panel_of_their_run(runs):
    whole = side_by_side(runs, "latency")
    rows = sorted(shape.yref for shape in whole.layout.shapes)
    assert rows == ["y", "y2", "y3", "y4"]  # TTFT and TPOT of both runs


@pytest.mark.parametrize("number", [1, 5])
def test_another_number_of_runs_is_refused(runs, number):
    with pytest.raises(ScenarioError, match="2 to 4"):
        side_by_side({str(k): runs["random"] for k in range(number)})


@pytest.fixture(scope="module")
def folders(runs, tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    return [run.save(place / name) for name, run in runs.items()]


def test_the_command_draws_runs_side_by_side(folders, tmp_path, capsys):
    first, second = folders
    page = tmp_path / "both.html"
    mist("plot", first, "latency", "--beside", second, "--out", page)
    assert "2 runs side by side" in page.read_text("utf-8")
    mist("plot", first, "--beside", first, "--out", tmp_path / "x.html", code=2)
    assert "named twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("form", "begin"), [("pdf", b"%PDF"), ("svg", b"<?xml"), ("png", b"\x89PNG")]
)
def test_pictures_for_print_are_files_of_their_kind_and_repeat(folders, tmp_path, form, begin):
    pytest.importorskip("matplotlib")
    files = [tmp_path / f"{k}.{form}" for k in range(2)]
    for file in files:
        mist("plot", folders[0], "latency", "--format", form, "--out", file)
    first, second = (file.read_bytes() for file in files)
    assert first.startswith(begin)
    assert first == second


def test_a_form_of_one_picture_refuses_several(folders, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out = tmp_path / "all.svg"
    mist("plot", folders[0], "--format", "svg", "--out", out, code=2)
    assert "holds one picture" in capsys.readouterr().err
    assert not out.exists()
    mist("plot", folders[0], "--format", "gif", code=2)
    assert "must be html, pdf, svg, png" in capsys.readouterr().err


def test_print_has_the_lines_limits_and_titles_of_the_page(runs):
    pytest.importorskip("matplotlib")
    from mist_sim.report.pictures.printed import printed

    for name, figure in drawn(OfResult(runs["random"])):
        axes = printed(figure).axes
        shown = [
            trace for trace in figure.data if trace.type == "scatter" and trace.line.width != 0
        ]
        limits = [shape for shape in figure.layout.shapes if shape.type == "line"]
        assert sum(len(each.lines) for each in axes) == len(shown) + len(limits), name
        bars = sum(len(trace.x) for trace in figure.data if trace.type == "bar")
        assert sum(len(each.patches) for each in axes) == bars, name


def test_print_keeps_the_numbers(runs):
    pytest.importorskip("matplotlib")
    from mist_sim.report.pictures.printed import printed

    figure = side_by_side(runs, "latency")
    axes = printed(figure).axes
    np.testing.assert_array_equal(axes[1].lines[0].get_ydata(), figure.data[6].y)
    assert axes[0].get_ylim() == axes[1].get_ylim()


# ------------------------------------------------------------ in the same axes, one panel


def test_runs_in_the_same_axes_have_a_colour_each_and_their_own_lines(runs):
    whole = overlaid(runs, "latency")
    alone = [draw(OfResult(run), "latency") for run in runs.values()]
    lines = [trace for figure in alone for trace in figure.data]
    assert len(whole.data) == len(lines)
    for found, line in zip(whole.data, lines, strict=True):
        np.testing.assert_array_equal(found.y, line.y)
        assert found.yaxis == line.yaxis
    assert {trace.name for trace in whole.data} == {
        f"{name}: {kind}" for name in runs for kind in ("p50", "p99")
    }
    colours = {trace.name.partition(":")[0]: trace.line.color for trace in whole.data}
    assert len(set(colours.values())) == 2
    assert sum(trace.showlegend for trace in whole.data) == 4
    assert len(whole.layout.shapes) == len(alone[0].layout.shapes)


def test_bars_do_not_stand_in_the_same_axes(runs):
    with pytest.raises(ScenarioError, match="stages has bars"):
        overlaid(runs, "stages")
    with pytest.raises(ScenarioError, match="runs must be 2 to 8 in the same axes, got 1"):
        overlaid({"one": runs["random"]})


@pytest.mark.parametrize(("name", "row"), [("latency.tpot", 2), ("cdf.E2E", 3), ("load.flight", 2)])
def test_a_panel_is_that_of_its_picture(runs, name, row):
    whole = draw(OfResult(runs["random"]), name.split(".")[0])
    panel = draw(OfResult(runs["random"]), name)
    lines = [trace for trace in whole.data if trace.yaxis == f"y{row}"]
    assert len(panel.data) == len(lines) > 0
    for found, line in zip(panel.data, lines, strict=True):
        np.testing.assert_array_equal(found.y, line.y)
    titles = [note.text for note in whole.layout.annotations if note.yref == "paper"]
    assert panel.layout.annotations[0].text == titles[row - 1]
    limits = [shape for shape in whole.layout.shapes if shape.yref.startswith(f"y{row}")]
    assert len(panel.layout.shapes) == len(limits)


def test_a_panel_that_there_is_not_names_those_there_are(runs):
    with pytest.raises(ScenarioError, match=r"no panel 'tpott'; those .*: TTFT, ms, by arrival;"):
        draw(OfResult(runs["random"]), "latency.tpott")


def test_the_command_draws_one_panel_of_runs_in_the_same_axes(folders, tmp_path, capsys):
    first, second = folders
    page = tmp_path / "both.html"
    mist("plot", first, "latency.ttft", "--over", second, "--out", page)
    assert "2 runs in the same axes" in page.read_text("utf-8")
    mist("plot", first, "--over", second, "--beside", second, "--out", page, code=2)
    assert "leave one out" in capsys.readouterr().err


# ------------------------------------------------------------------- studies


def point(rate, count, value, interval=None):
    values = {"workload.arrivals.rate": rate, "clients.0.count": count}
    intervals = {"p99_ttft_ms": interval} if interval else {}
    return {
        "name": f"{rate} {count}",
        "values": values,
        "figures": {"p99_ttft_ms": value},
        "confidence_intervals": intervals,
    }


def test_a_study_of_rates_is_a_line_for_each_series():
    points = [
        point(f"{rate} /s", count, 10.0 * rate / count, (rate, 20.0 * rate))
        for rate in (20, 10, 40)
        for count in (1, 2)
    ]
    figure = metric_picture({"points": points}, "p99_ttft_ms")
    lines = [trace for trace in figure.data if trace.mode == "lines+markers"]
    assert [trace.name for trace in lines] == ["count=1", "count=2"]
    assert list(lines[1].x) == [10.0, 20.0, 40.0]
    assert list(lines[1].y) == [50.0, 100.0, 200.0]
    bands = [trace for trace in figure.data if trace.fill == "tonexty"]
    assert [list(trace.y) for trace in bands] == [[200.0, 400.0, 800.0]] * 2
    assert figure.layout.xaxis.title.text == "rate, /s"


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ([{"n": 1, "r": "a"}, {"n": 2, "r": "a"}], None),
        ([{"n": k, "rate": f"{k} /s"} for k in range(3)], "rate"),
        ([{"n": k, "m": k // 2} for k in range(6)], "n"),
        ([{"rate": "1 /s"}, {"rate": "2 /min"}], None),
        ([{"on": True}, {"on": False}], None),
        ([], None),
    ],
)
def test_lines_go_along_the_rate_or_the_key_with_most_numbers(values, key):
    found = axis_of(values)
    assert (found and found.key) == key


def test_a_study_shows_the_numbers_that_are_asked_for(tmp_path, capsys):
    study = tmp_path / "study"
    words = ("demo", "--set", "workload.lengths.num_requests=60", "--vary", "router=random,load")
    mist("run", *words, "--metric", "p99_itl_ms,prefix_cache_hit_rate", "--out", study, "-q")
    told = capsys.readouterr().out
    assert "p99 ITL" in told
    assert "0.0 %" in told
    assert "TTFT" not in told
    summary = json.loads((study / "study.json").read_text("utf-8"))
    figure = metric_picture(summary, "p99_itl_ms")
    assert list(figure.data[0].x) == [each["figures"]["p99_itl_ms"] for each in summary["points"]]
    with pytest.raises(ScenarioError, match="did you mean 'p99_itl_ms'"):
        metric_picture(summary, "p99_itl")
    mist("plot", study, "p99_itl_ms", "--out", tmp_path / "itl.html")
    assert "p99 ITL" in (tmp_path / "itl.html").read_text("utf-8")
    mist("plot", study, "p99_itl", "--out", tmp_path / "x.html", code=2)
    assert "did you mean 'p99_itl_ms'" in capsys.readouterr().err
    mist("report", study, "--out", tmp_path / "study.html")
    assert "2 points." in (tmp_path / "study.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--metric", "p99_itl_ms"), "no effect on one run"),
        (("--metric", "p99_it", "--vary", "seed=1,2"), "did you mean 'p99_itl_ms'"),
        (("--metric", "slo", "--vary", "seed=1,2"), "has no number 'slo'"),
    ],
)
def test_a_metric_that_cannot_be_shown_is_refused_before_a_run(words, message, capsys):
    mist("run", "demo", *words, code=2)
    assert message in capsys.readouterr().err
