"""Write the table of docs/validation.md: `python tools/pages/make_validation.py`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from mist_sim.validation.runs import MeasuredRun, Row
from tools.validation.known import known_runs, missing

PAGE = Path(__file__).parents[2] / "docs" / "validation.md"
METRICS = ("TTFT", "TPOT", "E2E")
BEGIN, END = "<!-- made by tools/pages/make_validation.py -->", "<!-- end -->"


_LABELS = {  # the runs that the page shows, by how their names end
    "requests: layer profile": ("vLLM 0.19, one RTX PRO 6000: layer profile", "nothing here"),
    "prefill_step 4 ms, requests 60 to 299": (
        "the same, requests 60 to 299",
        "`prefill_step`, on requests 0 to 59",
    ),
    "with async scheduling as it ran": ("the same run: roofline", "nothing"),
    "points: roofline, held out": ("vLLM 0.12, closed loops on H100s: roofline", "other points"),
    "points: measured kernels, held out": ("the same: measured kernels", "other points"),
    "no think time, no prompt_token)": ("the same: roofline, a plain scenario", "other points"),
    "six runs fitted": ("vLLM 0.15, twelve runs on H100s: roofline", "`request`, on TTFT"),
    "six runs held out": ("the same, the other six runs", "nothing here"),
}


def simulated(measurements: Path) -> list[tuple[MeasuredRun, list[Row]]]:
    """Return all runs with their rows. Raises SystemExit when one cannot be simulated here."""
    found = []
    for run in known_runs(measurements):
        if needed := missing(run):
            raise SystemExit(f"{run.name}: needs {needed}; the page is as it was")
        found.append((run, list(run.rows())))
    return found


def table(runs: list[tuple[MeasuredRun, list[Row]]]) -> Iterator[str]:
    """Yield a row for each run that the page shows: errors, and means of absolute ones."""
    yield "| run | fitted | TTFT | TPOT | E2E |\n|---|---|---|---|---|"
    for end, (label, fitted) in _LABELS.items():
        rows = next(rows for run, rows in runs if run.name.endswith(end))
        yield f"| {label} | {fitted} | {' | '.join(_cell(rows, m) for m in METRICS)} |"


def _cell(rows: list[Row], metric: str) -> str:
    row = next((row for row in rows if row.metric.startswith(metric)), None)
    if row is None:
        return ""
    return _percent(row.error) + ("" if row.spread is None else f", {_size(row.spread)}")


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−")


def _size(share: float) -> str:
    return f"{100 * share:.1f} %"


def page(measurements: Path) -> str:
    """Return the page with its table as it is now."""
    text, runs = PAGE.read_text("utf-8"), simulated(measurements)
    before, _, rest = text.partition(BEGIN)
    lines = "\n".join(table(runs))
    return f"{before}{BEGIN}\n{lines}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measurements", type=Path, default=Path("../shared/measurements"))
    PAGE.write_text(page(parser.parse_args().measurements), encoding="utf-8")


if __name__ == "__main__":
    main()
