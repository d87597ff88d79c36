"""Writes the expected errors of TTFT and TPOT, and how they did on what they were not found from.

    python docs/make_errors.py

Makes mist_sim/metrics/expected_errors.csv, and the tables of docs/background/error_bars.md and of
docs/validation.md. Takes two minutes. Needs `plugins/silicon`, and the public measurements beside
the repository.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, fields
from pathlib import Path
from statistics import median

from benchmarks import kernel_grid, measured_itl
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.setting import Setting, setting_of
from mist_sim.metrics.expected_errors import ErrorBar
from mist_sim.metrics.load import (
    DECODE_HEAVY,
    LOADS,
    LONG_PROMPT,
    LONG_PROMPTS,
    LOW_BATCH,
    LOW_LOAD,
    OTHER_LOAD,
)
from tools.validation.error_bars import LEAST, SHARE, SOURCES, Point, bars, is_inside
from tools.validation.held_out import Cell, cells, left_out
from tools.validation.measured_points import page_points

HERE = Path(__file__).parent
PAGE = HERE / "validation.md"
CELLS_PAGE = HERE / "background" / "error_bars.md"
FILE = HERE.parent / "mist_sim" / "metrics" / "expected_errors.csv"
MEASUREMENTS = Path("../shared/measurements")
ELSEWHERE = "beside these: inter-token latencies of ML.ENERGY"
ITL = "ml-energy-vllm-0.11/mlenergy_calibration.csv"
BEGIN, END = "<!-- error bars, made by docs/make_errors.py -->", "<!-- end of error bars -->"
HEAD = """\
# Where nine of ten measurements lie, as measured / simulated - 1, by what they are like and load.
# Made by docs/make_errors.py; docs/background/error_bars.md says how.
"""
Scored = tuple[Point, ErrorBar]
_METRICS = {"decode": "tpot", "prompt": "ttft"}
_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2E"}


def all_points(measurements: Path, grid: Path | None = None) -> list[Point]:
    """Return the points of the page, inter-token latencies of other runs, and kernels of steps."""
    found = page_points(measurements)
    return [*found, *itl_points(measurements / ITL), *kernel_points(grid)]


def itl_points(file: Path) -> Iterator[Point]:
    """Yield the runs of ML.ENERGY whose token gaps are even."""
    for run in measured_itl.compared(file).itertuples():
        if run.even:
            factor, series = run.measured / run.computed, f"ML.ENERGY, {run.series}"
            yield Point(
                run.setting, "tpot", factor, series, (run.load,), run=ELSEWHERE, model=run.model
            )


def kernel_points(grid: Path | None) -> Iterator[Point]:
    """Yield the kernels of steps, timed with figures that were fitted without their model.

    Latent attention is left out: one model has it, so without it nothing is fitted.
    """
    steps = kernel_grid.grid_of(grid)
    steps = steps[steps["model"] != "deepseek-v3"].reset_index(drop=True)
    ratio = kernel_grid.ratios(steps, kernel_grid.simulated(steps, kernel_grid.left_out))
    known: dict[tuple[str, str, str, int], Setting] = {}
    for row, factor in zip(steps.itertuples(), 1 / ratio, strict=True):
        key = row.model, row.dtype, row.gpu, row.ranks
        if key not in known:
            model = dict(kernel_grid.formats(row.model))[row.dtype]
            known[key] = setting_of("roofline", model, Cluster(load_gpu(row.gpu), row.ranks))
        series = f"kernels of {row.model}"
        loads = loads_of_kernels(row.step, row.number, row.length)
        yield Point(known[key], _METRICS[row.step], factor, series, loads, is_whole=False)


def loads_of_kernels(step: str, number: int, length: int) -> tuple[str, ...]:
    """Return the kinds of load that have steps like this one.

    A prompt tells of its length alone, decodes tell of their number. Decodes after many tokens
    follow long prompts, and long answers too.
    """
    long = (LONG_PROMPTS,) if length >= LONG_PROMPT else ()
    if step == "prompt":
        return long or LOADS[1:]
    return (*long, *((LOW_LOAD,) if number <= LOW_BATCH else (DECODE_HEAVY, OTHER_LOAD)))


def table(points: Sequence[Point]) -> str:
    """Return what the package's file is to hold."""
    out = io.StringIO()
    out.write(HEAD)
    writer = csv.writer(out, lineterminator="\n")
    names = [field.name for field in (*fields(Setting), *fields(ErrorBar))]
    metric = len(fields(Setting))
    writer.writerow([*names[:metric], "metric", *names[metric:]])
    for setting, name, bar in bars(points):
        writer.writerow([*astuple(setting), name, *astuple(bar)])
    return out.getvalue()


# --- expected against found -----------------------------------------------------------------------


def scores(points: Sequence[Point]) -> Iterator[str]:
    """Yield the tables of the page: by run, and all."""
    found = [(point, bar) for point, bar in left_out(points) if bar]
    yield "| | metric | points | inside | median width | median range |\n|---|---|---|---|---|---|"
    for run, metric in dict.fromkeys((point.run, point.metric) for point, _ in found):
        some = [each for each in found if (each[0].run, each[0].metric) == (run, metric)]
        yield _row(run, _NAMES[metric], some)
    here = of_the_page(found)
    for metric, name in _NAMES.items():
        yield _row("all but the last", name, [e for e in here if e[0].metric == metric])
    here = [each for each in here if each[0].metric != "e2el"]  # the two are its parts
    today = [each for each in here if each[0].setting.source in SOURCES]
    yield _row("all but the last, engines of today", "both", today)
    yield _row("**all but the last**", "both", here)
    yield ""
    share, width = coverage(here), median(bar.width for _, bar in here)
    yield (
        f"Of the {len(here)} TTFTs and TPOTs of this page {100 * share:.0f} % are inside (meant "
        f"are {100 * SHARE:.0f} %), and the median bar is {100 * width:.0f} % wide from end to end."
    )


def of_the_page(found: Iterable[Scored]) -> list[Scored]:
    """Return the points of docs/validation.md."""
    return [(point, bar) for point, bar in found if point.run != ELSEWHERE]


def coverage(found: Iterable[Scored]) -> float:
    """Return the share of points that lie inside their bars."""
    inside = [is_inside(point, bar) for point, bar in found]
    return sum(inside) / len(inside)


def _row(run: str, metric: str, found: Sequence[Scored]) -> str:
    inside = sum(is_inside(point, bar) for point, bar in found)
    width = median(bar.width for _, bar in found)
    ends = [median(getattr(bar, end) for _, bar in found) for end in ("low", "high")]
    share = f"{inside} ({100 * inside / len(found):.0f} %)"
    return f"| {run} | {metric} | {len(found)} | {share} | {100 * width:.0f} % | {_ends(*ends)} |"


def _ends(low: float, high: float) -> str:
    return " to ".join(f"{100 * end:+.0f}".replace("-", "−") for end in (low, high)) + " %"


# --- by group and load ----------------------------------------------------------------------------


def cell_table(points: Sequence[Point]) -> Iterator[str]:
    """Yield the table of groups and kinds of load."""
    head = (
        *("group", "load", "metric", "points", "series", "before", "after", "models left out"),
        *("range before", "now"),
    )
    yield f"| {' | '.join(head)} |\n|{'---|' * len(head)}"
    found = list(cells(points))
    yield from map(_cell_row, found)
    few = [cell for cell in found if cell.few]
    enough = [cell.after for cell in found if not cell.few]
    yield (
        f"\nOf {len(found)} cells {len(found) - len(few)} have a range of their own, with "
        f"{100 * min(enough):.0f} to {100 * max(enough):.0f} % inside; the other {len(few)}, "
        f"marked *, have {max(cell.num_points for cell in few)} points at most and the "
        f"group's range, widened, with {100 * min(cell.after for cell in few):.0f} % and more "
        f"inside. Before, {sum(cell.before < LEAST for cell in found)} cells had less than "
        f"{100 * LEAST:.0f} % inside, the least {100 * min(cell.before for cell in found):.0f} %."
    )


def _cell_row(cell: Cell) -> str:
    load = f"{cell.load}*" if cell.few else cell.load
    shares = f"{100 * cell.before:.0f} % | {100 * cell.after:.0f} %"
    shares += f" | {100 * cell.by_model:.0f} %" if cell.by_model is not None else " | -"
    counts = f"{cell.num_points} | {cell.num_series}"
    ranges = f"{_ends(*cell.old)} | {_ends(*cell.new)}"
    return f"| {cell.like} | {load} | {_NAMES[cell.metric]} | {counts} | {shares} | {ranges} |"


# --- pages ----------------------------------------------------------------------------------------


def pages(points: Sequence[Point]) -> Iterator[tuple[Path, str]]:
    """Yield the pages with a table of these, and their texts as they are to be now."""
    for page, lines in ((PAGE, scores(points)), (CELLS_PAGE, cell_table(points))):
        before, _, rest = page.read_text("utf-8").partition(BEGIN)
        text = "\n".join(lines)
        yield page, f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    """Write file and tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measurements", type=Path, default=MEASUREMENTS)
    parser.add_argument("--grid", type=Path, help="where the measured grid is kept (.parquet)")
    options = parser.parse_args()
    points = all_points(options.measurements, options.grid)
    FILE.write_text(table(points), "utf-8")
    for page, text in pages(points):
        page.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
