"""Pictures of several runs beside one another, and pictures for print."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from mist_sim import Scenario, ScenarioError, overlaid, side_by_side, simulate
from mist_sim.report.pictures.catalog import draw, drawn
from mist_sim.report.pictures.findings import axis_of
from mist_sim.report.pictures.picture import Band, Bars, Cells, Limit, Line
from mist_sim.report.presenters import folder_page
from mist_sim.report.study import metric_picture, study_table
from tests.commands import mist

pytest.importorskip("matplotlib")

FEW = {"workload.lengths.num_requests": 150}


@pytest.fixture(scope="module")
def runs():
    routers = ("random", "round_robin")
    return {each: simulate(Scenario.load("demo", FEW | {"router": each})) for each in routers}


@pytest.mark.parametrize("name", ["latency", "cdf", "queue", "stages", "requests"])
def test_each_column_has_what_its_run_has(runs, name):
    whole = side_by_side(runs, name)
    assert list(whole.heads) == ["random", "round_robin"]
    for column, run in enumerate(runs.values()):
        mine = [panel for panel in whole.panels[column::2] if panel.marks]
        alone = draw(run, name).panels
        for there, here in zip(alone, mine, strict=True):
            assert there.title == here.title
            for one, other in zip(there.marks, here.marks, strict=True):
                assert type(one) is type(other)
                if not isinstance(one, Limit):
                    np.testing.assert_array_equal(one.x, other.x)


def test_columns_have_the_same_axes_and_one_legend(runs):
    figure = side_by_side(runs, "latency").figure()
    axes = figure.axes
    assert axes[0].get_ylim() == axes[1].get_ylim()
    assert {each.get_xlim() for each in axes} == {axes[0].get_xlim()}
    assert [text.get_text() for text in figure.subfigs[0].legends[0].get_texts()] == ["p50", "p99"]
    assert [each.get_title("left") != "" for each in axes] == [True, False] * 3


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
def test_the_suffix_is_the_form_and_files_repeat(folders, tmp_path, form, begin):
    files = [tmp_path / f"{k}.{form}" for k in range(2)]
    for file in files:
        mist("plot", folders[0], "latency", "load", "--out", file)
    first, second = (file.read_bytes() for file in files)
    assert first.startswith(begin)
    assert first == second


def test_a_png_is_not_blank(folders, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    mist("plot", folders[0], "--out", tmp_path / "all.png")
    pixels = image.imread(tmp_path / "all.png")
    height, width = pixels.shape[:2]
    assert width == 1290
    assert height > 3 * width  # nine pictures below one another
    for tenth in np.array_split(pixels[..., :3].mean(axis=2), 10):
        assert 0.001 < (tenth < 0.9).mean() < 0.5


def test_other_forms_are_refused(folders, tmp_path, capsys):
    mist("plot", folders[0], "--format", "gif", code=2)
    assert "must be html, png, svg, pdf" in capsys.readouterr().err
    mist("plot", folders[0], "--out", tmp_path / "x.gif", code=2)
    assert "must be a file of html, png, svg, pdf" in capsys.readouterr().err
    mist("plot", folders[0], "--out", tmp_path / "x.png", "--format", "svg", code=2)
    assert "differ; leave one out" in capsys.readouterr().err
    assert not list(tmp_path.glob("x.*"))


def test_axes_have_the_lines_limits_and_bars_of_panels(runs):
    for name, picture in drawn(runs["random"]):
        axes = picture.figure().axes
        for panel, each in zip(picture.panels, axes, strict=True):
            limits = [mark for mark in panel.marks if isinstance(mark, Limit)]
            bars = sum(len(mark.x) for mark in panel.marks if isinstance(mark, Bars))
            assert len(each.lines) == len(panel.lines) + len(limits), name
            assert len(each.patches) == bars, name
            for line, shown in zip(panel.lines, each.lines, strict=False):
                np.testing.assert_array_equal(shown.get_ydata(), line.y)


# ------------------------------------------------------------ in the same axes, one panel


def test_runs_in_the_same_axes_keep_their_lines(runs):
    whole = overlaid(runs, "latency")
    alone = [draw(run, "latency") for run in runs.values()]
    for place, panel in enumerate(whole.panels):
        theirs = [line for each in alone for line in each.panels[place].lines]
        for found, line in zip(panel.lines, theirs, strict=True):
            np.testing.assert_array_equal(found.y, line.y)
        names = [f"{name}: {kind}" for name in runs for kind in ("p50", "p99")]
        assert [line.name for line in panel.lines] == names
        assert len({line.colour for line in panel.lines}) == 2


def test_bars_do_not_stand_in_the_same_axes(runs):
    with pytest.raises(ScenarioError, match="stages has bars"):
        overlaid(runs, "stages")
    with pytest.raises(ScenarioError, match="runs must be 2 to 8 in the same axes, got 1"):
        overlaid({"one": runs["random"]})


@pytest.mark.parametrize(("name", "row"), [("latency.tpot", 2), ("cdf.E2E", 3), ("load.flight", 2)])
def test_a_panel_is_that_of_its_picture(runs, name, row):
    whole = draw(runs["random"], name.split(".")[0])
    (panel,) = draw(runs["random"], name).panels
    assert panel.title == whole.panels[row - 1].title
    for found, line in zip(panel.lines, whole.panels[row - 1].lines, strict=True):
        np.testing.assert_array_equal(found.y, line.y)


def test_a_panel_that_there_is_not_names_those_there_are(runs):
    with pytest.raises(ScenarioError, match=r"no panel 'tpott'; those .*: TTFT, ms, by arrival;"):
        draw(runs["random"], "latency.tpott")


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
    (panel,) = metric_picture({"points": points}, "p99_ttft_ms").panels
    assert [line.name for line in panel.lines] == ["count=1", "count=2"]
    assert list(panel.lines[1].x) == [10.0, 20.0, 40.0]
    assert list(panel.lines[1].y) == [50.0, 100.0, 200.0]
    bands = [mark for mark in panel.marks if isinstance(mark, Band)]
    assert [list(band.high) for band in bands] == [[200.0, 400.0, 800.0]] * 2
    assert panel.across == "rate, /s"


def plane(*, last="16 GB/s"):
    points = []
    for count in (1, 2, 4):
        for width in ("4 GB/s", "8 GB/s", last):
            values = {"clients.0.count": count, "network.bandwidth": width}
            figures = {"p99_ttft_ms": 100.0 * count} if (count, width) != (4, last) else {}
            points.append({**point(1, 1, 0.0), "values": values, "figures": figures})
    return {"points": points}


def test_one_figure_over_two_numbers_is_a_heat_map():
    (panel,) = metric_picture(plane(), "p99_ttft_ms").panels
    (cells,) = panel.marks
    assert (list(panel.rows), list(panel.columns)) == (
        ["1", "2", "4"],
        ["4 GB/s", "8 GB/s", "16 GB/s"],
    )
    values = [[100.0, 100.0, 100.0], [200.0, 200.0, 200.0], [400.0, 400.0, np.nan]]
    np.testing.assert_array_equal(cells.values, values)
    assert cells.texts[2] == ["400", "400", "-"]
    (axes,) = metric_picture(plane(), "p99_ttft_ms").figure().axes
    assert [text.get_text() for text in axes.texts] == [text for row in cells.texts for text in row]
    (other,) = metric_picture(plane(last="fast"), "p99_ttft_ms").panels
    assert len(other.lines) == 3  # words are no scale: a line for each over the numbers


def test_the_title_of_a_short_axis_stays_below_the_caption():
    tokens, sequences = (f"clients.0.scheduler.max_num_{n}" for n in ("batched_tokens", "seqs"))
    figures = {"p99_ttft_ms": 100.0}
    points = [
        {**point(1, 1, 0.0), "values": {tokens: budget, sequences: most}, "figures": figures}
        for budget in (2048, 8192, 16384)
        for most in (64, 128, 256)
    ]
    picture = metric_picture({"points": points}, "p99_ttft_ms")
    figure = replace(picture, caption=["What was simulated"] * 3).figure()
    figure.canvas.draw()
    (axes,) = figure.axes
    (caption,) = axes.figure.texts
    title = axes.yaxis.label.get_window_extent()
    assert len(axes.get_ylabel()) > 20
    assert 0 <= title.y0 < title.y1 < caption.get_window_extent().y0


def test_a_sweep_of_one_key_is_a_line_and_of_two_a_map(tmp_path):
    few = ("--set", "workload.lengths.num_requests=20", "-q", "--metric", "p99_ttft_ms")
    for name, axes, kind in (("one", ["clients.0.count=1,2"], Line),
                             ("two", ["clients.0.count=1,2", "seed=1,2"], Cells)):  # fmt: skip
        mist("sweep", "demo", *axes, *few, "--out", tmp_path / name, "--jobs", 1)
        mist("plot", tmp_path / name, "--out", tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        (drawing,) = folder_page(tmp_path / name, name).figures
        assert kind in {type(mark) for mark in drawing.figure.panels[0].marks}


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
    assert "TTFT" not in told.partition("Expected error")[0]
    summary = json.loads((study / "study.json").read_text("utf-8"))
    (mark,) = metric_picture(summary, "p99_itl_ms").panels[0].marks
    assert list(mark.x) == [each["figures"]["p99_itl_ms"] for each in summary["points"]]
    with pytest.raises(ScenarioError, match="did you mean 'p99_itl_ms'"):
        metric_picture(summary, "p99_itl")
    with pytest.raises(ScenarioError, match=r"banana.*docs/reference/metrics\.md has all"):
        metric_picture(summary, "banana")
    mist("plot", study, "p99_itl_ms", "--out", tmp_path / "itl.html")
    assert "p99 ITL" in (tmp_path / "itl.html").read_text("utf-8")
    mist("plot", study, "p99_itl", "--out", tmp_path / "x.html", code=2)
    assert "did you mean 'p99_itl_ms'" in capsys.readouterr().err
    mist("report", study, "--out", tmp_path / "study.html")
    page = (tmp_path / "study.html").read_text("utf-8")
    assert "2 points" in page
    assert "2 x llm (llama-3.1-8b on h100-sxm); seed 0" in page
    assert "router least_outstanding" not in page


def test_many_metrics_are_a_table_of_every_width():
    keys = ["p99_ttft_ms", "p99_itl_ms", "mean_ttft_ms", "request_throughput", "num_preemptions"]
    points = [
        {**point(10, 1, 0.0), "name": name, "figures": dict.fromkeys(keys, value)}
        for name, value in (("a", 1.5), ("b", 2.5))
    ]
    found = {"points": points, "shown": keys, "num_points": 2, "num_runs": 2, "num_failed": 0,
             "verdict": ""}  # fmt: skip
    console = Console(width=40)
    with console.capture() as capture:
        console.print(study_table(found))
    rows = [line.split() for line in capture.get().splitlines()]
    assert sum(len(row) - 1 for row in rows if row[:1] == ["a"] and "1.50" in row) == len(keys)
    assert sum(len(row) - 1 for row in rows if row[:1] == ["b"]) == len(keys)


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
