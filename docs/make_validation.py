"""Write the tables of docs/validation.md: `python docs/make_validation.py`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from mist_sim.validation import MeasuredRun, known_runs

PAGE = Path(__file__).parent / "validation.md"
BEGIN, END = "<!-- made by docs/make_validation.py -->", "<!-- end -->"


def tables(measurements: Path) -> Iterator[str]:
    """Yield a section for each run. Raises SystemExit when one cannot be simulated here."""
    for run in known_runs(measurements):
        if run.missing:
            raise SystemExit(f"{run.name}: needs {run.missing}; the page is as it was")
        fitted = run.fitted or "nothing"
        yield f"**{run.name}**  \n{run.engine}; {run.provenance}. Fitted: {fitted}.\n"
        yield "| | measured | simulated | error | mean \\|error\\| |\n|---|---|---|---|---|"
        yield from _rows(run)
        yield ""


def _rows(run: MeasuredRun) -> Iterator[str]:
    for row in run.rows():
        name = f"{row.metric}, {row.unit}" if row.unit else row.metric
        spread = "" if row.spread is None else _percent(row.spread, signed=False)
        cells = (name, _number(row.measured), _number(row.simulated), _percent(row.error), spread)
        yield f"| {' | '.join(cells)} |"


def _number(value: float | None) -> str:
    if value is None:
        return "median"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _percent(share: float, *, signed: bool = True) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−") if signed else f"{100 * share:.1f} %"


def page(measurements: Path) -> str:
    """Return the page with its tables as they are now."""
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n" + "\n".join(tables(measurements)) + f"\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measurements", type=Path, default=Path("../shared/measurements"))
    PAGE.write_text(page(parser.parse_args().measurements), encoding="utf-8")


if __name__ == "__main__":
    main()
