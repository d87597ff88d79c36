"""`mist calibrate`: fit figures of GPUs, engines and searches to measurements."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mist_sim.cli.options import ReplaceFile
from mist_sim.cli.session import note

if TYPE_CHECKING:
    from mist_sim.calibration.closed_loop_fit import LoopProtocol
    from mist_sim.calibration.fitted_figures import Calibration
    from mist_sim.hardware import GpuSpec

# the options that each kind of measurements takes
KINDS = {
    "splitwise": ("gpu", "out"),
    "closed_loop": (
        "gpu",
        "model",
        "engine",
        "think-time",
        "max-num-batched-tokens",
        "tokens-beyond-prompt",
        "max-num-seqs",
        "out",
    ),
    "text": ("out",),
    "rag": ("measure", "out"),
    "run": ("out",),
}
_IN_A_CHECKOUT = ("kernels", "catalog")  # kinds that the package's own catalog was made with
_GPU, _MODEL = "h100-sxm", "qwen3-32b"


# how the engine was driven that a closed loop measured
Engine = Annotated[
    str | None,
    typer.Option(
        metavar="VERSION",
        help="The version of vLLM measured, such as vllm-0.19, for closed_loop; the newest that "
        "is known without it.",
    ),
]
ThinkTime = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Time from an answer to the user's next request, such as '2 ms', for "
        "closed_loop; by default 0.",
    ),
]
MaxNumBatchedTokens = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Token budget of a step of the engine measured, for closed_loop; by default "
        "vLLM's for the GPU.",
    ),
]
TokensBeyondPrompt = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Token budget of a step beyond the prompt's length, if the engine was started "
        "anew for each prompt length, for closed_loop.",
    ),
]
MaxNumSeqs = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Sequences in a step of the engine measured, for closed_loop; by default vLLM's "
        "for the GPU.",
    ),
]


def _kinds(incomplete: str) -> list[str]:
    """Return completions for the shell."""
    return [kind for kind in KINDS if kind.startswith(incomplete)]


def calibrate(
    kind: str = typer.Argument(
        metavar="KIND",
        help="splitwise: prompt and token times. closed_loop: mean TTFT and TPOT by concurrency. "
        "text: normalisation, tokenisation and more of texts, timed here on one core for a minute "
        "or two (pip install 'mist-sim[text]'). "
        "rag: searches of vector indexes, which faiss makes here with --measure. "
        "run: TTFT and TPOT of a server, as mist observe writes them.",
        show_default=False,
        autocompletion=_kinds,
    ),
    measurements: Path = typer.Argument(
        metavar="MEASUREMENTS",
        help="The file; for text, a folder of texts; for rag, the CSV of searches, which --measure "
        "writes; for run, a folder with a run.yaml.",
        show_default=False,
    ),
    gpu: str | None = typer.Option(
        None, help=f"The GPU measured, as the catalog calls it; by default {_GPU}."
    ),
    model: str | None = typer.Option(
        None,
        help=f"The model measured, for closed_loop; by default {_MODEL}.",
    ),
    engine: Engine = None,
    think_time: ThinkTime = None,
    max_num_batched_tokens: MaxNumBatchedTokens = None,
    tokens_beyond_prompt: TokensBeyondPrompt = None,
    max_num_seqs: MaxNumSeqs = None,
    measure: bool = typer.Option(
        False,
        "--measure",
        help="Time searches of faiss on this machine first, for rag (some ten minutes of one "
        "core; pip install 'mist-sim[rag]').",
    ),
    out: Path | None = typer.Option(
        None, metavar="FILE", help="Write the figures into this spec file (.toml)."
    ),
    force: ReplaceFile = False,
) -> None:
    """Fit a GPU's figures, an engine's own time, or vector searches, to measurements.

    Prints how well they fit; every second row is held out and scored.

    The file that it writes is a GPU spec, which a scenario names as its gpu; for text it holds the
    times of a client of type text, for rag the coefficients of a client's search, and for run the
    scenario of the run with the engine's own time in it.
    """
    from contextlib import nullcontext

    from mist_sim.calibration.fitted_figures import spec_text
    from mist_sim.cli.signals import Saved
    from mist_sim.hardware import load_gpu
    from mist_sim.output import output_file

    driven = {
        "engine": engine,
        "think-time": think_time,
        "max-num-batched-tokens": max_num_batched_tokens,
        "tokens-beyond-prompt": tokens_beyond_prompt,
        "max-num-seqs": max_num_seqs,
    }
    _check(kind, {"gpu": gpu, "model": model, **driven, "measure": measure or None, "out": out})
    if kind == "rag":
        from mist_sim.cli.calibrations import calibrate_searches

        calibrate_searches(measurements, measure, out, force)
        return
    if kind == "run":
        from mist_sim.cli.calibrations import calibrate_own_time

        calibrate_own_time(measurements, out, force)
        return
    with Saved() as saved, output_file(out, replace=force) if out else nullcontext() as file:
        saved.output = file
        if kind == "text":
            times = _texts(measurements)
            if file is not None:
                file.write(times)
            return
        found = _calibrated(kind, measurements, load_gpu(gpu or _GPU), model or _MODEL, driven)
        if file is not None:
            file.write(spec_text(found))
        _print(found)
        if out is not None:
            note(f"Written to {out}")


def _check(kind: str, options: Mapping[str, object]) -> None:
    """Raise ScenarioError for an unknown kind, and for options that it does not take."""
    from mist_sim.errors import ScenarioError, brief, did_you_mean

    if kind in _IN_A_CHECKOUT:
        raise ScenarioError(f"{kind}: run python -m tools.{kind} in a checkout of mist-sim instead")
    if kind not in KINDS:
        raise ScenarioError(
            f"no measurements of kind {brief(kind)}{did_you_mean(kind, KINDS)} "
            f"Known: {', '.join(KINDS)}"
        )
    for name, given in options.items():
        if given is not None and name not in KINDS[kind]:
            raise ScenarioError(f"--{name} has no effect with {kind} measurements; leave it out")


def _print(found: Calibration) -> None:
    """Print how well the figures fit, and the figures."""
    from mist_sim.calibration.fitted_figures import as_quantity
    from mist_sim.report.elements import Terminal, listed

    errors = [
        (f"{quantity}, {rows}", str(number), f"{mean:.1%}", f"{median:.1%}")
        for quantity, rows, number, mean, median in found.report()
    ]
    unknown = "at an end of its range: these rows do not determine it"
    figures = [
        (name, as_quantity(name, value), unknown if name in found.at_bound else "")
        for name, value in found.values.items()
    ]
    console = Terminal()
    titles = ("rows", "number", "mean error", "median error")
    console.print(listed(titles, errors, right=range(1, 4)))
    console.print()
    console.print(listed(("figure", "value", ""), figures, right=[1]))


def _texts(folder: Path) -> str:
    """Time tasks on texts, print how well lines fit, and return the file of a text client."""
    from statistics import median

    from mist_sim.calibration.text import calibrate_text
    from mist_sim.report.elements import Terminal, listed

    with Terminal(stderr=True).status("timing ..."):
        found = calibrate_text(folder)
    rows = [
        (
            name,
            f"{time.base * 1e6:.1f} us",
            f"{time.per_token * 1e9:.1f} ns",
            f"{time.beyond * 1e9:.1f} ns",
            f"{median(found.errors[name]):.1%}",
            f"{found.share_within(name, 0.15):.0%}",
        )
        for name, time in found.tasks.items()
    ]
    titles = ("task", "a text", "a token", "more, if long", "median error", "within 15 %")
    Terminal().print(listed(titles, rows, right=range(1, 6)))
    return found.text()


def _calibrated(
    kind: str, path: Path, gpu: GpuSpec, model: str, driven: Mapping[str, Any]
) -> Calibration:
    from mist_sim.calibration.closed_loop_fit import calibrate_closed_loop
    from mist_sim.calibration.splitwise_fit import calibrate_splitwise
    from mist_sim.report.elements import Terminal

    protocol = _protocol(driven)
    with Terminal(stderr=True).status("fitting ..."):
        if kind == "splitwise":
            return calibrate_splitwise(path, gpu)
        return calibrate_closed_loop(path, gpu, model, protocol)


def _protocol(driven: Mapping[str, Any]) -> LoopProtocol:
    """Return the options of the loops; unset ones are None."""
    from mist_sim.calibration.closed_loop_fit import LoopProtocol
    from mist_sim.errors import ScenarioError
    from mist_sim.units import DURATION

    said = {name.replace("-", "_"): value for name, value in driven.items() if value is not None}
    try:
        if "think_time" in said:
            said["think_time"] = DURATION.parse(said["think_time"])
        return LoopProtocol(**said)
    except ValueError as error:
        raise ScenarioError(str(error)) from None
