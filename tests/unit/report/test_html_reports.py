"""Reports: every number is the summary's, what users wrote is escaped, damaged folders are told."""

import json
import re
from html import escape
from io import StringIO

import numpy as np
import pytest

from mist_sim import Scenario, ScenarioError, simulate
from mist_sim.bounds import TABLE_CELLS
from mist_sim.inputs import read_parquet
from mist_sim.metrics.tables import RunFolder, write_parquet
from mist_sim.report.elements import Terminal, number
from mist_sim.report.pages.run_page import run_page
from mist_sim.report.pictures.catalog import draw
from mist_sim.report.presenters import folder_page
from mist_sim.report.run import saved_tables
from mist_sim.studies import replicate
from tests.browser import console_of, dom_of, needs_browser
from tests.commands import mist

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

SHORT = {"workload.lengths.num_requests": 60}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "run"
    simulate(Scenario.load("demo", overrides=SHORT)).save(folder)
    return folder


@pytest.fixture(scope="module")
def page(saved):
    path = saved.parent / "report.html"
    path.write_text(folder_page(saved, "a run").html(), encoding="utf-8")
    return path


def _check_numbers(html: str, saved) -> None:
    """The tables are those that files of a run tell; tiles have their figures of the summary."""
    summary = json.loads((saved / "summary.json").read_text())
    told = re.sub("<[^>]+>", "", html)
    console = Terminal(width=110, file=StringIO())
    console.print(saved_tables(RunFolder(saved)))
    lines = [line.strip() for line in console.file.getvalue().splitlines() if line.strip()]
    assert len(lines) > 30
    assert [line for line in lines if escape(line) not in told] == []
    tiles = dict(re.findall(r'data-key="(\w+)">([^<]+)<', html))
    assert len(tiles) > 3
    assert tiles == {key: number(summary[key]) for key in tiles}


def test_every_number_is_that_of_the_summary(saved, page):
    _check_numbers(page.read_text(encoding="utf-8"), saved)


@needs_browser
def test_a_browser_shows_the_same_numbers_without_an_error(saved, page):
    _check_numbers(dom_of(page), saved)
    assert console_of(page) == []


@needs_browser
@pytest.mark.parametrize("width", [1200, 390])
def test_the_verdict_is_seen_without_scrolling(page, width):
    probe = page.with_name(f"probe{width}.html")
    script = (
        "<script>addEventListener('load', () => { document.body.dataset.bottom = "
        "document.getElementById('verdict').getBoundingClientRect().bottom;"
        "document.body.dataset.wide = document.documentElement.scrollWidth; });</script>"
    )
    text = page.read_text(encoding="utf-8").replace("</body>", script + "</body>")
    probe.write_text(text, encoding="utf-8")
    html = dom_of(probe, width=width)
    assert float(re.search(r'data-bottom="([\d.]+)"', html)[1]) < 700
    assert float(re.search(r'data-wide="([\d.]+)"', html)[1]) <= max(width, 500)


@needs_browser
def test_a_pointer_reads_the_values_of_lines(saved, page):
    """The middle of the first panel of the first picture."""
    probe = page.with_name("pointer.html")
    script = (
        "<script>addEventListener('load', () => { const svg = document.querySelector('svg');"
        "const [l, b, w, h] = JSON.parse(svg.dataset.panels)[0].box;"
        "const f = svg.getBoundingClientRect(); const clientX = f.left + f.width * (l + w / 2);"
        "const clientY = f.bottom - f.height * (b + h / 2);"
        "svg.dispatchEvent(new PointerEvent('pointermove', {clientX, clientY})); });</script>"
    )
    text = page.read_text(encoding="utf-8").replace("</body>", script + "</body>")
    probe.write_text(text, encoding="utf-8")
    told = re.search(r'<div class="tip"[^>]*>(p50: [^<]+)</div>', dom_of(probe))[1]
    first = draw(RunFolder(saved), "latency").panels[0]
    ends = first.lines[0].x[[0, -1]]
    for line, text in zip(first.lines, told.splitlines(), strict=True):
        near = np.argmin(np.abs(line.x - ends.mean()))
        assert text == f"{line.name}: {line.y[near]:.4g} at {line.x[near]:.4g}"


def test_a_report_of_a_result_is_that_of_its_folder(saved, tmp_path):
    result = simulate(Scenario.load("demo", overrides=SHORT))
    path = result.report(tmp_path / "r.html")
    mine = _pictures(path.read_text(encoding="utf-8"))
    assert mine.pop("power")  # a folder has it only with --tables over_time
    assert mine == _pictures(folder_page(saved, "x").html())
    assert len(mine) == 9
    assert path.stat().st_size < 1.5e6
    with pytest.raises(ScenarioError, match="is there already"):
        result.report(path)


def _pictures(html: str) -> dict[str, str]:
    found = re.findall(r'<div class="figure" id="picture-(\w+)">(.*?)</div>', html, re.DOTALL)
    return {name: svg for name, svg in found if "<svg" in svg}


def test_what_users_wrote_is_escaped():
    evil = '</script><script>alert("x")</script>'
    scenario = {
        "model": "llama-3.1-8b",
        "workload": {"lengths": {"type": "profile", "num_requests": 3},
                     "arrivals": {"type": "constant", "rate": "1 /s"}},
        "clients": [{"name": "a<b>&", "gpu": "h100-sxm"}],
    }  # fmt: skip
    html = run_page(simulate(Scenario.from_dict(scenario)), evil).html()
    assert evil not in html
    assert "a<b>&" not in html
    assert "a&lt;b&gt;&amp;" in html
    assert "a&lt;b&gt;&amp;" in _pictures(html)["memory"] + _pictures(html)["queue"]


def test_dollars_in_a_name_are_no_formula():
    name = r"$\frac$ <b>"
    clients = [{"name": each, "gpu": "h100-sxm"} for each in (name, "b")]
    workload = {"lengths": {"type": "profile", "num_requests": 3}, "arrivals": "all_at_once"}
    run = {"model": "llama-3.1-8b", "workload": workload, "clients": clients}
    found = simulate(Scenario.from_dict(run))
    drawn = draw(found, "queue").as_bytes("svg").decode()
    assert f">{escape(name, quote=False)}<" in drawn


def test_replications_and_studies_have_reports(tmp_path):
    found = replicate(Scenario.load("demo", overrides=SHORT | {"replications": 3}), jobs=1)
    html = found.report(tmp_path / "r.html").read_text(encoding="utf-8")
    assert "3 replications." in html
    panels = found.plot("spread").panels
    assert [len(panel.marks) for panel in panels] == [2] * 5  # dots, and their mean
    with pytest.raises(ScenarioError, match="no picture 'load' of this. Known: spread"):
        found.plot("load")


def test_run_writes_a_report_beside_its_tables(tmp_path, capsys):
    mist("run", "demo", "--set", "workload.lengths.num_requests=20", "--out", tmp_path / "o",
          "--report", "--quiet")  # fmt: skip
    assert "report.html" in (tmp_path / "o" / "SHA256SUMS").read_text()
    mist("run", "demo", "--report", code=2)
    assert "--report has no effect without --out" in capsys.readouterr().err
    mist("run", "demo", "--report", "--replications", 2, "--out", tmp_path / "p", code=2)
    assert "--report is of one run" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda folder: (folder / "summary.json").unlink(), "holds no results"),
        (lambda folder: (folder / "summary.json").write_text("{"), "not valid JSON"),
        (lambda folder: (folder / "summary.json").write_text("{}"), "is not of one run"),
        (lambda folder: (folder / "summary.json").write_text("[]"), "must hold a JSON object"),
        (lambda folder: (folder / "clients.parquet").write_bytes(b"PAR1"), "cannot be read"),
        (lambda folder: (folder / "clients.parquet").unlink(), "was not recorded"),
        (
            lambda folder: (folder / "summary.json").write_text('{"completed": 1, "duration": 2}'),
            "not a table of results",
        ),
    ],
)
def test_damaged_folders_are_told(damage, told, saved, tmp_path, capsys):
    import shutil

    shutil.copytree(saved, tmp_path / "run")
    damage(tmp_path / "run")
    mist("report", tmp_path / "run", "--out", tmp_path / "r.html", code=2)
    assert told in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()


def test_reports_of_comparisons_searches_and_sweeps(tmp_path, capsys):
    small = ("--set", "workload.lengths.num_requests=60", "--quiet")
    mist("compare", "demo", "--vary", "clients.0.count=1,2", *small, "--out", tmp_path / "c")
    mist("sweep", "demo", "clients.0.count=1,2", *small, "--out", tmp_path / "s")
    for folder, told in (("c", "count=1"), ("s", "2 points.")):
        mist("report", tmp_path / folder, "--out", tmp_path / f"{folder}.html")
        html = (tmp_path / f"{folder}.html").read_text(encoding="utf-8")
        assert told in html
        assert "<svg" in html
    capsys.readouterr()
    mist("report", tmp_path / "c", "--out", tmp_path / "quiet.html", "-q")
    mist("plot", tmp_path / "c", "--out", tmp_path / "plots.html", "-q")
    assert capsys.readouterr() == ("", "")
    mist("report", tmp_path / "c", "--brief", "--out", tmp_path / "sheet.html")
    html = (tmp_path / "sheet.html").read_text(encoding="utf-8")
    assert "May count=1 take the place of count=2?" in html
    assert "$ a month" in html


def test_a_table_of_a_day_can_be_read_again(tmp_path):
    """It has more cells than tables that users bring may have, and fewer than a run's."""
    (tmp_path / "summary.json").write_text(json.dumps({"completed": 1, "duration": 1.0}))
    rows = TABLE_CELLS // 2 + 1
    write_parquet({"a": np.zeros(rows, dtype=bool), "b": np.zeros(rows, dtype=bool)},
                  tmp_path / "requests.parquet")  # fmt: skip
    assert len(RunFolder(tmp_path).table("requests")) == rows
    with pytest.raises(ScenarioError, match=f"must have <= {TABLE_CELLS} cells"):
        read_parquet(tmp_path / "requests.parquet")
