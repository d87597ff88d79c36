"""`mist profile`: measure engine steps on this machine, and write them as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mist_sim.cli.session import note, saving
from mist_sim.errors import ScenarioError

if TYPE_CHECKING:
    from mist_sim.core.batch import StepBatch
    from mist_sim.hardware.predictors.measured.profiling import Profiler
    from mist_sim.output import OutputFile


def profile(
    *,
    model: str,
    out: Path,
    gpu: str = "h100-sxm",
    device: str = "auto",
    tensor_parallel_size: int = 1,
    max_num_batched_tokens: int = 2048,
    max_num_seqs: int = 64,
    max_context: int = 4096,
    num_timed_layers: int = 2,
    repeats: int = 5,
    seed: int = 0,
    dispatch: bool = False,
    replace: bool = False,
) -> None:
    """Measure steps of a model's layers on this machine.

    The layers run with random weights. Steps that were measured before on this device are not
    measured again.

    model: A catalog name, or the path of a config.json.
    out FILE: Write the table (.csv), or with --dispatch the GPU spec (.toml).
    gpu: The catalog's name of the GPU that is measured.
    device: cpu, cuda, cuda:1, ...; auto takes CUDA if it is available.
    tensor_parallel_size: Run one of N ranks; the time of the collectives is computed.
    max_num_batched_tokens: Largest number of new tokens of a prompt.
    max_num_seqs: Largest number of decodes in a step.
    max_context: Largest number of cached tokens of a request.
    num_timed_layers: Layers that run; the time is scaled up to all layers.
    repeats: Number of runs; their median counts.
    seed: Seed of the random weights.
    dispatch: Measure the host's time to launch each module instead.
    """
    from mist_sim.hardware import Cluster, load_gpu
    from mist_sim.hardware.predictors.measured.profiling import ProfileRange
    from mist_sim.hardware.predictors.measured.timing import Timing
    from mist_sim.models import load_generating
    from mist_sim.registry import installing, offered

    points = list(offered("mist_sim.profilers"))
    if not points:
        raise ScenarioError(f"mist profile needs a plugin: {installing('torch')}")
    with saving(out, replace=replace) as file:
        try:
            limits = ProfileRange(
                max_num_batched_tokens=max_num_batched_tokens,
                max_num_seqs=max_num_seqs,
                max_context=max_context,
            )
            source: Profiler = points[0].load()(
                model=load_generating(model),
                cluster=Cluster(load_gpu(gpu), tensor_parallel_size),
                device=device,
                num_timed_layers=num_timed_layers,
                timing=Timing(repeats=repeats),
                seed=seed,
            )
        except ValueError as error:
            raise ScenarioError(str(error)) from None
        if dispatch:
            _write_dispatch(source, gpu, file)
        else:
            _write_steps(source, limits.batches, file)


def _write_steps(source: Profiler, batches: list[StepBatch], out: OutputFile) -> None:
    """Write a table of measured steps; steps in the store are not measured again."""
    from mist_sim.cli.progress import Progress
    from mist_sim.hardware.predictors.measured.profiling import measure, table_text
    from mist_sim.hardware.predictors.measured.timing_store import TimingStore

    with Progress(len(batches), unit="steps measured") as progress:
        steps = measure(source, batches, TimingStore.default(), progress)
    out.write(table_text(steps, source.notes))
    note(f"Written to {out.path}: {len(steps)} steps on {source.device_name}")


def _write_dispatch(source: Profiler, gpu: str, out: OutputFile) -> None:
    """Write a GPU spec with the host times of a family's modules."""
    from mist_sim.spec_files import toml_string

    times = source.dispatch_times()
    told = f"mist profile --dispatch: {source.model.name} on {source.device_name}"
    lines = [f"based_on = {toml_string(gpu)}", "", "[dispatch]"]
    lines += [f'{module} = "{seconds * 1e6:.3g} us"' for module, seconds in times.items()]
    lines += ["", "[sources]", f"dispatch = {toml_string(told)}", ""]
    out.write("\n".join(lines))
    for module, seconds in times.items():
        typer.echo(f"{module:10} {seconds * 1e6:8.1f} us")
    note(f"Written to {out.path}; name it as the gpu of a scenario")
