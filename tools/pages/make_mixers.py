"""Fits the kernels of states and sparse attention, and writes figures and errors.

    python tools/pages/make_mixers.py .../aisimulate_core/systems/data [--write]

The folder is in the wheel of aisimulate (`pip download --no-deps --pre aisimulate`, Apache-2.0).
Prints the figures and their errors; with --write puts the figures into
`mist_sim/hardware/architectures/*.toml`. Takes half a minute.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from mist_sim.hardware import architectures
from tools.kernels.kernel_tables import written
from tools.mixers.mixer_calibration import Calibration, calibrations
from tools.mixers.mixer_fit import Score
from tools.mixers.mixer_sources import ARCHITECTURES, Tables

VERSION = "aisimulate 0.13.0.dev202610270000000085"
CARDS = {"hopper": "H100, H200", "blackwell": "B200", "blackwell-ultra": "B300"}
# the rows that each kind of kernels is fitted to: tables, versions of vLLM, models
ROWS = {
    "Gated DeltaNet": "linear_attention of vLLM 0.25.0 (nine models of Qwen)",
    "KDA": "kda of vLLM 0.31.0 and 0.1.dev19262 (prompts: the newer one that there is)",
    "DSA": "sparse_attention of vLLM 0.24.0 (modules of GLM-5.2 without indexer, 16 bits)",
    "DSA with indexer": "sparse_attention of vLLM 0.24.0 (modules of GLM-5.2, 16 bits)",
    "HCA": "sparse_attention of vLLM 0.24.0 and 0.25.0 (modules of DeepSeek-V4-Flash)",
    "MiniMax-M3": "msa of vLLM 0.24.0 and 0.25.0 (modules of MiniMax-M3 with its indexer)",
}


def source(of: Calibration, architecture: str) -> str:
    """Return where the figures of some kernels are from, with their errors."""
    cards = " and ".join(each.split("_")[0].upper() for each in ARCHITECTURES[architecture])
    open_ = " and ".join(of.fit.undetermined)
    notes = f", {open_} not determined" if open_ else ""
    return (
        f"tools/pages/make_mixers.py: {VERSION}, {ROWS[of.name]} on {cards}; {of.fit.score}{notes}"
    )


def with_figures(text: str, of: Calibration, architecture: str) -> str:
    """Return the table of an architecture with some fitted kernels."""
    for kind, figures in of.entries.items():
        lines = [
            f'{name} = "{value}"' if " " in value else f"{name} = {value}"
            for name, value in written(figures).items()
        ]
        body = f"[{kind}]\n" + "\n".join(lines) + "\n"
        text = re.sub(rf"^\[{kind}\]\n(?:[^\[\n].*\n)+", body, text, flags=re.MULTILINE)
        line = f'{kind} = "{source(of, architecture)}"'
        text = re.sub(rf"^{kind} = .*$", line, text, flags=re.MULTILINE)
    return text


def short(score: Score | None) -> str:
    """Return a score for a table."""
    return f"{score.median:.0%}, {score.ninth:.0%}".replace("%", " %") if score else ""


def tables(found: dict[str, Sequence[Calibration]]) -> list[str]:
    """Return the errors of what was fitted, and of what was not."""
    titles = ["median, nine in ten", *(CARDS[name] for name in found)]
    fitted, others = [titles], [titles]
    for at, of in enumerate(next(iter(found.values()))):
        every = [each[at] for each in found.values()]
        name = f"{of.name}, {'prompts' if of.prefill else 'decodes'}"
        fitted.append([name, *(short(each.fit.score) for each in every)])
        for other in of.others:
            scores = [short(each.others.get(other)) for each in every]
            phase = name.rpartition(", ")[2]
            own = other.startswith("CSA")
            others.append([f"{other}, {phase}" if own else f"{name}: {other}", *scores])
    lines = ["On the rows that they were fitted to:", "", *_markdown(fitted), ""]
    return [*lines, "On rows that no figure was fitted to:", "", *_markdown(others)]


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *body = ("| " + " | ".join(row) + " |" for row in rows)
    return [head, "|---" * len(rows[0]) + "|", *body]


def main() -> None:
    """Fit all architectures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder aisimulate_core/systems/data")
    parser.add_argument("--write", action="store_true", help="replace the catalog's figures")
    options = parser.parse_args()
    found = {name: list(calibrations(Tables(options.data, name))) for name in ARCHITECTURES}
    for architecture, fits in found.items():
        path = Path(architectures.__path__[0]) / f"{architecture}.toml"
        text = path.read_text("utf-8")
        for of in fits:
            for kind, figures in of.entries.items():
                print(architecture, kind, written(figures), of.fit.score)
            text = with_figures(text, of, architecture)
        if options.write:
            path.write_text(text, "utf-8")
    print("\n".join(tables(found)))


if __name__ == "__main__":
    main()
