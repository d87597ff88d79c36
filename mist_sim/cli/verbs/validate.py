"""`mist validate`: measured runs of real engines beside simulated ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mist_sim.cli.scenario_input import Settings
from mist_sim.cli.values import overrides_of
from mist_sim.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mist_sim.validation.benchmarks import Benchmark
    from mist_sim.validation.runs import MeasuredRun, Row


def validate(
    paths: Sequence[Path] = (),
    *,
    margin: float | None = None,
    serve: str = "",
    gpu: str = "",
    engine: str = "",
    settings: Settings = (),
    as_json: bool = False,
    allow_programs: bool = False,
) -> None:
    """Simulate measured runs, and print both with the errors.

    paths RUN: Folders with a run.yaml, as mist observe writes it; or files of benchmarks: a table
        (CSV) with a vllm serve line a row, what vllm bench serve --save-result wrote, or a report
        of GuideLLM (JSON).
    margin PERCENT: Compare single requests: how far the distributions are apart, and whether the
        typical ratio (geometric mean), the mean and the p99 are within this margin.
    serve LINE: Files: the vllm serve line of the server, where they do not say.
    gpu: Files: the server's GPU (mist list gpus).
    engine: Files: the server's version, such as vllm-0.19.
    as_json --json: Files: JSON in place of the tables.
    """
    from mist_sim.validation.runs import read_run

    if margin is not None and not 0 < margin < 100:
        raise ScenarioError(f"--margin must be percent above 0 and below 100, got {margin:g}")
    if not paths:
        raise ScenarioError(
            "name the folder of a run with a run.yaml, as mist observe writes it, or a file of "
            "benchmarks; published runs: python -m tools.validation in a checkout of mist-sim"
        )
    files = [path for path in paths if path.is_file()]
    if files and len(files) < len(paths):
        raise ScenarioError("name either folders of runs or files of benchmarks, not both")
    if settings and not files:
        raise ScenarioError("--set goes with files; a run.yaml has its own scenario, to be edited")
    if files:
        from mist_sim.validation.benchmarks import read_benchmarks

        runs = [run for path in files for run in read_benchmarks(path, serve, gpu, engine)]
        own = overrides_of(settings)
        show_benchmarks([replace(run, overrides=own) for run in runs], as_json=as_json)
        return
    show_runs([read_run(folder, allow_programs=allow_programs) for folder in paths], margin)


_SHARES = ("median", "nine in ten", "signed", "inside", "width")  # of `benchmarks.table`


def show_benchmarks(runs: Sequence[Benchmark], *, as_json: bool = False) -> None:
    """Simulate measured benchmarks, and print each figure with its bar; of several, by group."""
    import pandas as pd

    from mist_sim.cli.progress import Progress
    from mist_sim.core.result_warnings import merged, of_data
    from mist_sim.output import json_text
    from mist_sim.report.elements import Terminal, listed, with_warnings
    from mist_sim.report.run import error_range
    from mist_sim.validation.benchmarks import scores, table, turned

    found = []
    with Progress(len(runs), unit="runs", patience=0.0) as progress:
        for number, run in enumerate(runs):
            progress(number)
            found += list(scores(run))
    out = Terminal()
    if as_json:
        print(json_text({"figures": found}))
        return
    cells = [
        (
            row["label"],
            _short(row["metric"]),
            _number(row["measured"]),
            _number(row["simulated"]),
            f"{100 * row['error']:+.1f} %",
            "-" if row["low"] is None else error_range(*turned(row["low"], row["high"])),
            {True: "inside", False: "outside", None: ""}[row["inside"]],
        )
        for row in found
    ]
    titles = ("", "", "measured", "simulated", "error", "bar", "")
    told = merged(each for row in found for each in of_data(row))
    body = listed(titles, cells, right=range(2, 5))
    out.print(with_warnings({"warnings": [each.data for each in told]}, body))
    if len(runs) == 1:
        return
    figures = pd.DataFrame(found)
    for by in ("source", "release", "gpu", "kernel", "load"):
        rows = [
            (
                str(row[by]) or "not known",
                _short(row["metric"]),
                str(row["number"]),
                *(_share(row[name]) for name in _SHARES),
            )
            for row in table(figures, by).reset_index().to_dict("records")
        ]
        out.print(listed((by, "", "figures", *_SHARES), rows, right=range(2, 8)))


_SHORT = {"request_throughput": "requests/s", "output_throughput": "tokens/s"}


def _short(figure: str) -> str:
    """Return the name of a figure for a table: "TTFT" for mean_ttft_ms, "p99 TTFT"."""
    if figure in _SHORT:
        return _SHORT[figure]
    statistic, metric, _ = figure.split("_")
    return metric.upper() if statistic == "mean" else f"{statistic} {metric.upper()}"


def _share(value: float) -> str:
    return "-" if value != value else f"{100 * value:.0f} %"


def show_runs(runs: Sequence[MeasuredRun], margin: float | None = None) -> None:
    """Simulate runs, and print each beside its measurements.

    margin: percent, within which the typical ratio of single requests is to be; None: not asked.
    """
    from mist_sim.cli.progress import Progress
    from mist_sim.errors import in_words

    for number, run in enumerate(runs):
        try:
            with Progress(len(runs), unit="runs", patience=0.0) as progress:
                progress(number)
                found = list(run.rows())
        except KeyboardInterrupt as stop:
            stop.add_note("nothing is written to files")
            if number:
                missing = in_words(len(runs) - number, "run")
                stop.add_note(f"stopped after {in_words(number, 'run')}: {missing} missing")
            raise
        _show(run, found, margin)


def _show(run: MeasuredRun, found: Sequence[Row], margin: float | None) -> None:
    from rich.padding import Padding

    from mist_sim.core.result_warnings import merged
    from mist_sim.report.elements import Terminal, listed, with_warnings

    out = Terminal()
    titles = ("", "measured", "simulated", "error", "mean |error|", "median")
    rows = [
        (
            f"{row.metric}, {row.unit}" if row.unit else row.metric,
            _number(row.measured),
            _number(row.simulated),
            f"{100 * row.error:+.1f} %",
            *("" if size is None else f"{100 * size:.1f} %" for size in (row.spread, row.middle)),
        )
        for row in found
    ]
    table = listed(titles, rows, right=range(1, 6))
    out.print(run.name, style="bold")
    fitted = f"; fitted: {run.fitted}" if run.fitted else ""
    out.print(f"{run.engine}; {run.provenance}{fitted}", style="dim")
    told = merged(each for row in found for each in row.warnings)
    body = Padding(table, (0, 0, 1, 2), expand=False)
    out.print(with_warnings({"warnings": [each.data for each in told]}, body))
    if margin is not None and (lines := list(_agreements(found, margin))):
        out.print(Padding("\n".join(lines), (0, 0, 1, 2), expand=False))


def _agreements(rows: Sequence[Row], margin: float) -> Iterator[str]:
    """Yield a line a latency of single requests."""
    from mist_sim.validation.runs import agreement

    errors = {row.metric: row.error for row in rows}
    for row in rows:
        if row.samples is None:
            continue
        found = agreement(*row.samples, margin / 100)
        name = row.metric.removesuffix(", mean")
        told = {
            True: f"within {margin:g} %",
            False: f"not shown to be within {margin:g} %",
            None: "too few requests to test",
        }[found.is_equivalent]
        p_value = "" if found.is_equivalent is None else f" (TOST, p = {found.p_value:.2g})"
        figures = [(short, 100 * errors[f"{name}, {short}"]) for short in ("mean", "p99")]
        outside = [f"{short} {error:+.0f} %" for short, error in figures if abs(error) > margin]
        but = f"; but not equivalent: {', '.join(outside)}" if outside else ""
        yield (
            f"{name}: distributions {found.distance:.3f} apart (KS); typical ratio (geometric "
            f"mean) {found.ratio:.3f}, {told}{p_value}{but}"
        )


def _number(value: float | None) -> str:
    if value is None:
        return "median"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
