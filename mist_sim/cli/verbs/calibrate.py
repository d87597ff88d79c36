"""`mist fit` and `mist calibrate`: learn from measurements of steps, engines and searches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from mist_sim.cli.options import option_of
from mist_sim.cli.session import note, saving
from mist_sim.cli.values import given
from mist_sim.errors import ScenarioError, brief, did_you_mean

if TYPE_CHECKING:
    from mist_sim.calibration.fitted_figures import Calibration
    from mist_sim.calibration.rag import SearchFit
    from mist_sim.calibration.regression import Regression
    from mist_sim.validation.own_time import OwnTime


def fit(
    measurements: Path,
    *,
    out: Path,
    form: str = "steps",
    subset: str = "",
    model: str = "",
    gpu: str = "",
    tensor_parallel_size: Annotated[int, {"show_default": False}] = 0,
    replace: bool = False,
) -> None:
    """Learn step times from measured steps.

    Writes an ensemble of regressors as plain numbers, and prints how far points were off that the
    ensemble had not seen.

    measurements MEASUREMENTS: A file of measured steps, as mist profile writes it, or Splitwise's
        CSV file.
    out FILE: Write the regression into this JSON file.
    form --format: The file's form: steps or splitwise.
    subset: MODEL/HARDWARE of a Splitwise file, such as llama2-70b/h100-80gb.
    model: The model measured, if the file does not name it.
    gpu: The GPU measured, if the file does not name it.
    tensor_parallel_size: The ranks measured, if the file does not give them.
    """
    from mist_sim.calibration.regression import fit_file
    from mist_sim.report.elements import Terminal, listed

    console = Terminal()
    with saving(out, replace=replace) as file:
        with console.status("learning ..."):
            found = fit_file(
                measurements,
                form=form,
                subset=subset,
                model=model,
                gpu=gpu,
                tensor_parallel_size=tensor_parallel_size,
            )
        file.write(found.text)
        titles = ("points held out", "number", "mean error", "median error")
        console.print(listed(titles, list(_held_out(found)), right=range(1, 4)))
        for remark in found.content["remarks"]:
            note(f"note: {remark}")
        note(f"Written to {out}")


def _held_out(found: Regression) -> Iterator[list[str]]:
    """Yield a row for each place of the points held out: how far off the ensemble was."""
    for stage in ("prefill", "decode"):
        for place, errors in found.content["stages"][stage]["held_out"].items():
            shares = [errors["mean"], errors["median"]]
            cells = ["-" if share is None else f"{share:.1%}" for share in shares]
            yield [f"{stage}, {place}", str(errors["points"]), *cells]


_DRIVEN = (
    *("engine", "think_time", "max_num_batched_tokens"),
    *("tokens_beyond_prompt", "max_num_seqs"),
)  # options of how a closed loop drove the engine that was measured
KINDS = {  # of measurements, with the options that each takes
    "splitwise": ("gpu", "out"),
    "closed_loop": ("gpu", "model", *_DRIVEN, "out"),
    "text": ("out",),
    "rag": ("measure", "out"),
    "run": ("out",),
}
_IN_A_CHECKOUT = ("kernels", "catalog")  # kinds that the package's own catalog was made with


def _kinds(incomplete: str) -> list[str]:
    """Return completions for the shell."""
    return [kind for kind in KINDS if kind.startswith(incomplete)]


def calibrate(
    kind: Annotated[str, {"autocompletion": _kinds}],
    measurements: Path,
    *,
    gpu: str | None = None,
    model: str | None = None,
    engine: str | None = None,
    think_time: str | None = None,
    max_num_batched_tokens: Annotated[int | None, {"min": 1}] = None,
    tokens_beyond_prompt: Annotated[int | None, {"min": 0}] = None,
    max_num_seqs: Annotated[int | None, {"min": 1}] = None,
    measure: bool = False,
    out: Path | None = None,
    replace: bool = False,
) -> None:
    """Fit a GPU's figures, an engine's own time, or vector searches, to measurements.

    Prints how well they fit; every second row is held out and scored.

    The file that it writes is a GPU spec, which a scenario names as its gpu; for text it holds the
    times of a client of type text, for rag the coefficients of a client's search, and for run the
    scenario of the run with the engine's own time in it.

    kind KIND: splitwise: prompt and token times. closed_loop: mean TTFT and TPOT by concurrency.
        text: normalisation, tokenisation and more of texts, timed here on one core for a minute or
        two (pip install 'mist-sim[text]'). rag: searches of vector indexes, which faiss makes here
        with --measure. run: TTFT and TPOT of a server, as mist observe writes them.
    measurements MEASUREMENTS: The file; for text, a folder of texts; for rag, the CSV of searches,
        which --measure writes; for run, a folder with a run.yaml.
    gpu: The GPU measured, as the catalog calls it; by default h100-sxm.
    model: The model measured, for closed_loop; by default qwen3-32b.
    engine VERSION: The version of vLLM measured, such as vllm-0.19, for closed_loop; the newest
        that is known without it.
    think_time TIME: Time from an answer to the user's next request, such as '2 ms', for
        closed_loop; by default 0.
    max_num_batched_tokens: Token budget of a step of the engine measured, for closed_loop; by
        default vLLM's for the GPU.
    tokens_beyond_prompt: Token budget of a step beyond the prompt's length, if the engine was
        started anew for each prompt length, for closed_loop.
    max_num_seqs: Sequences in a step of the engine measured, for closed_loop; by default vLLM's for
        the GPU.
    measure: Time searches of faiss on this machine first, for rag (some ten minutes of one core;
        pip install 'mist-sim[rag]').
    out FILE: Write the figures into this spec file (.toml).
    """
    driven = given(
        engine=engine,
        think_time=think_time,
        max_num_batched_tokens=max_num_batched_tokens,
        tokens_beyond_prompt=tokens_beyond_prompt,
        max_num_seqs=max_num_seqs,
    )
    _check(kind, given(gpu=gpu, model=model, **driven, measure=measure or None, out=out))
    with saving(out, replace=replace) if out else nullcontext() as file:
        if measure:
            _time_searches(measurements, replace=replace)
        if kind in ("splitwise", "closed_loop"):
            found = _figures(kind, measurements, gpu or "h100-sxm", model or "qwen3-32b", driven)
        else:
            found = {"text": _texts, "rag": _searches, "run": _own_time}[kind](measurements)
        if file is not None:
            file.write(found.text())
        found.show()
        if out is not None and found.is_told:
            further = f"; next: mist run {quote(str(out))}" if kind == "run" else ""
            note(f"Written to {out}{further}")


def _check(kind: str, options: Mapping[str, object]) -> None:
    """Raise ScenarioError for an unknown kind, and for options that it does not take."""
    if kind in _IN_A_CHECKOUT:
        raise ScenarioError(f"{kind}: run python -m tools.{kind} in a checkout of mist-sim instead")
    if kind not in KINDS:
        raise ScenarioError(
            f"no measurements of kind {brief(kind)}{did_you_mean(kind, KINDS)} "
            f"Known: {', '.join(KINDS)}"
        )
    for name in options:
        if name not in KINDS[kind]:
            raise ScenarioError(
                f"{option_of(name)} has no effect with {kind} measurements; leave it out"
            )


class _Fitted(NamedTuple):
    """What was fitted: its file, and what prints it. is_told: whether the file's place is said."""

    text: Callable[[], str]
    show: Callable[[], None]
    is_told: bool = True


def _figures(kind: str, path: Path, gpu: str, model: str, driven: dict[str, Any]) -> _Fitted:
    """Fit the figures of a GPU. driven: options of the loops that are set."""
    from mist_sim.calibration.fitted_figures import (
        LoopProtocol,
        calibrate_closed_loop,
        calibrate_splitwise,
        spec_text,
    )
    from mist_sim.hardware import load_gpu
    from mist_sim.report.elements import Terminal
    from mist_sim.units import DURATION

    spec = load_gpu(gpu)
    try:
        if "think_time" in driven:
            driven["think_time"] = DURATION.parse(driven["think_time"])
        protocol = LoopProtocol(**driven)
    except ValueError as error:
        raise ScenarioError(str(error)) from None
    with Terminal(stderr=True).status("fitting ..."):
        if kind == "splitwise":
            found = calibrate_splitwise(path, spec)
        else:
            found = calibrate_closed_loop(path, spec, model, protocol)
    return _Fitted(partial(spec_text, found), partial(_show_figures, found))


def _show_figures(found: Calibration) -> None:
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


def _texts(folder: Path) -> _Fitted:
    """Time tasks on texts, and fit lines to them."""
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
    table = listed(titles, rows, right=range(1, 6))
    return _Fitted(found.text, lambda: Terminal().print(table), is_told=False)


def _time_searches(csv: Path, *, replace: bool) -> None:
    """Time searches of faiss, and write them once all are timed."""
    from mist_sim.calibration.rag import (
        faiss_version,
        machine_name,
        measure,
        notes_of,
        searches_text,
    )
    from mist_sim.output import output_file
    from mist_sim.report.elements import Terminal

    notes = notes_of(
        f"faiss-cpu {faiss_version()}", machine_name(), datetime.now(UTC).date().isoformat()
    )
    with output_file(csv, replace=replace) as file, Terminal(stderr=True).status("") as status:
        searches = list(measure(status.update))
        file.write(searches_text(searches, notes))


def _searches(csv: Path) -> _Fitted:
    """Fit the searches of a CSV. Raises ScenarioError for a file that cannot be read."""
    from mist_sim.calibration.rag import calibrate_rag, coefficients_text

    found = calibrate_rag(csv)
    return _Fitted(partial(coefficients_text, found), partial(_show_searches, found))


def _show_searches(found: SearchFit) -> None:
    """Print the errors by kind of index, and how cores scale."""
    from mist_sim.calibration.rag import KINDS
    from mist_sim.report.elements import Terminal, listed

    coefficients = found.coefficients
    rows = [
        (
            kind,
            f"{found.num_fitted[kind]:,}",
            f"{found.fitted_errors[kind]:.1%}",
            f"{found.num_held_out[kind]:,}",
            f"{coefficients.errors[kind]:.1%}",
        )
        for kind in KINDS
    ]
    console = Terminal()
    titles = ("index", "searches", "median error", "held out", "median error")
    console.print(listed(titles, rows, right=range(1, 5)))
    console.print(f"cores search as (number of cores) to the {coefficients.core_exponent:.2f}")
    console.print(f"{coefficients.software}, {coefficients.machine}, {coefficients.date}")


def _own_time(folder: Path) -> _Fitted:
    """Fit the run of a folder. Raises ScenarioError for what is no run, and as `fit_own_time`."""
    from mist_sim.report.elements import Terminal
    from mist_sim.validation.own_time import fit_own_time
    from mist_sim.validation.runs import read_run

    run = read_run(folder)
    with Terminal(stderr=True).status("fitting ..."):
        found = fit_own_time(run)
    return _Fitted(found.scenario.resolved, partial(_show_own_time, run.name, found))


def _show_own_time(name: str, found: OwnTime) -> None:
    from mist_sim.core.result_warnings import merged
    from mist_sim.report.elements import Terminal, listed, with_warnings

    console = Terminal()
    console.print(name, style="bold")
    figures = [(f"overhead.{key}", _time(value)) for key, value in found.seconds.items()]
    console.print(listed(("own time", "fitted"), figures, right=[1]))
    console.print()
    errors = [
        (metric.upper(), *("-" if error is None else f"{error:.1%}" for error in row))
        for metric, row in found.errors.items()
    ]
    titles = ("mean error of a request", "before", "fitted", "held out")
    told = {"warnings": [each.data for each in merged(found.warnings)]}
    console.print(with_warnings(told, listed(titles, errors, right=range(1, 4))))
    ttft, tpot = found.lone
    later = "" if tpot is None else f", then {_time(tpot)} a token"
    console.print(f"\nA request that is alone: first token after {_time(ttft)}{later}")
    places = dict.fromkeys(where.rpartition(".")[0] for where in found.overrides)
    words = " ".join(
        f"--set {place}.{key}='{_time(value)}'"
        for place in places
        for key, value in found.seconds.items()
    )
    console.print(f"In another scenario: {words}", soft_wrap=True)
    for remark in found.notes:
        note(f"note: {remark}")


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds * 1e6:.4g} us"
