"""Write the tables of docs/validation.md: `python docs/make_validation.py`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mist_sim.validation import MeasuredRun
from mist_sim.validation.comparing import Row
from tools.validation.known import known_runs, missing

PAGE = Path(__file__).parent / "validation.md"
_TITLES = ("", "measured", "simulated", "error", "mean \\|error\\|", "median \\|error\\|")
BEGIN, END = "<!-- made by docs/make_validation.py -->", "<!-- end -->"
BEGIN_GOALS, END_GOALS = "<!-- goals, made by docs/make_validation.py -->", "<!-- end of goals -->"


class Goal(NamedTuple):
    """A figure that was to be reached: the error of a row at most `most` percent.

    run, metric: how the names of run and row end and begin. size: which figure of the row.
    cause: why it is missed, where it is.
    """

    run: str
    metric: str
    size: str
    most: float
    cause: str = ""


_PROFILE, _WITH_HOST = "requests: layer profile", "all requests"
_SILICON, _ROOFLINE = "measured kernels, held out", "points: roofline, held out"
_PLAIN = "a plain scenario (8,192 tokens a step, no think time, no prompt_token)"
_BUDGET = "the engine's token budget decides, and it is not said"
_QUEUES = "prompts at TP 2 are 22.5 % off, those at TP 8 4.4 %"
GOALS = [
    *(
        Goal(run, metric, "error", most)
        for run in (_PROFILE, _WITH_HOST)
        for metric, most in (
            ("TTFT, mean", 3),
            ("TPOT, mean", 0.8),
            ("E2E, mean", 1.0),
            ("throughput", 1),
            ("TTFT, p99", 3),
            ("TPOT, p99", 3),
            ("E2E, p99", 3),
        )
    ),
    *(
        Goal(run, metric, "spread", most)
        for run in (_PROFILE, _WITH_HOST)
        for metric, most in (("TTFT, mean", 10), ("TPOT, mean", 1.5), ("E2E, mean", 1.5))
    ),
    Goal(_SILICON, "TPOT, mean", "spread", 4),
    Goal(_SILICON, "TTFT, mean", "middle", 15),
    Goal(_SILICON, "TTFT, mean", "spread", 12, _QUEUES),
    Goal(_ROOFLINE, "TPOT, mean", "spread", 4),
    Goal(_ROOFLINE, "TTFT, mean", "middle", 25),
    Goal(_ROOFLINE, "TTFT, mean", "spread", 13),
    Goal(_PLAIN, "TTFT, mean", "spread", 25, _BUDGET),
]
_LABELS = {
    _PROFILE: "vLLM 0.19, layer profile, 3 ms a step with prompts as on every machine",
    _WITH_HOST: "the same, `prefill_step` fitted on the first 60 requests",
    _SILICON: "closed loops, measured kernels, held out",
    _ROOFLINE: "closed loops, roofline, held out",
    _PLAIN: "the same, a plain scenario (8,192 tokens a step, no think time, no `prompt_token`)",
}
_SIZES = {"error": "", "spread": ", mean \\|error\\|", "middle": ", median \\|error\\|"}


def simulated(measurements: Path) -> list[tuple[MeasuredRun, list[Row]]]:
    """Return all runs with their rows. Raises SystemExit when one cannot be simulated here."""
    found = []
    for run in known_runs(measurements):
        if needed := missing(run):
            raise SystemExit(f"{run.name}: needs {needed}; the page is as it was")
        found.append((run, list(run.rows())))
    return found


def tables(runs: list[tuple[MeasuredRun, list[Row]]]) -> Iterator[str]:
    """Yield a section for each run."""
    for run, rows in runs:
        fitted = run.fitted or "nothing"
        yield f"**{run.name}**  \n{run.engine}; {run.provenance}. Fitted: {fitted}.\n"
        yield f"| {' | '.join(_TITLES)} |\n|{'---|' * len(_TITLES)}"
        yield from map(_cells, rows)
        yield ""


def goals(runs: list[tuple[MeasuredRun, list[Row]]]) -> Iterator[str]:
    """Yield what was to be reached beside what is, a row for each goal."""
    yield "| | goal, % | reached, % | |\n|---|---|---|---|"
    for goal in GOALS:
        rows = next(rows for run, rows in runs if run.name.endswith(goal.run))
        row = next(row for row in rows if row.metric.startswith(goal.metric))
        size: float = 100 * getattr(row, goal.size)
        shown = f"{size:+.1f}".replace("-", "−") if goal.size == "error" else f"{size:.1f}"
        is_met = float(f"{abs(size):.1f}") <= goal.most
        verdict = "met" if is_met else f"missed: {goal.cause}"
        name = f"{_LABELS[goal.run]}: {row.metric}{_SIZES[goal.size]}"
        yield f"| {name} | {goal.most:g} | {shown} | {verdict} |"


def _cells(row: Row) -> str:
    name = f"{row.metric}, {row.unit}" if row.unit else row.metric
    cells = [name, _number(row.measured), _number(row.simulated), _percent(row.error)]
    cells += ["" if size is None else _size(size) for size in (row.spread, row.middle)]
    return f"| {' | '.join(cells)} |"


def _number(value: float | None) -> str:
    if value is None:
        return "median"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−")


def _size(share: float) -> str:
    return f"{100 * share:.1f} %"


def page(measurements: Path) -> str:
    """Return the page with its tables as they are now."""
    text, runs = PAGE.read_text("utf-8"), simulated(measurements)
    text = _with_block(text, BEGIN_GOALS, END_GOALS, goals(runs))
    return _with_block(text, BEGIN, END, tables(runs))


def _with_block(text: str, begin: str, end: str, lines: Iterator[str]) -> str:
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}{rest.partition(end)[2]}"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measurements", type=Path, default=Path("../shared/measurements"))
    PAGE.write_text(page(parser.parse_args().measurements), encoding="utf-8")


if __name__ == "__main__":
    main()
