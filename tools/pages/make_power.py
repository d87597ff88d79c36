"""Write the tables of docs/background/power_and_cost.md: `python tools/pages/make_power.py`.

Reads measured power in ../shared/measurements, or in the folder that is given as an argument. With
matplotlib installed it draws docs/images/power.png as well.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from mist_sim.core.batch import StepBatch
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.machine import Machine
from mist_sim.hardware.predictors import EngineOverhead, RooflinePredictor
from mist_sim.hardware.work import StepCounts
from mist_sim.models import load_model
from tools.power.power_fit import fit_draw, left_out_errors, of_kernels, of_runs
from tools.power.power_runs import (
    PowerRun,
    argonne_runs,
    kernel_power,
    mlenergy_runs,
    splitwise_runs,
)
from tools.power.token_energy import token_energy

PAGE = Path(__file__).parents[2] / "docs" / "background" / "power_and_cost.md"
PICTURE = Path(__file__).parents[2] / "docs" / "images" / "power.png"
BEGIN, END = "<!-- made by tools/pages/make_power.py: {} -->", "<!-- end of {} -->"
GPUS = {"A100": "a100-80gb-sxm", "H100": "h100-sxm", "B200": "b200"}
_CONTEXT, _FEW = 1024, 8
_SHARES = ("idle", "active", "memory", "compute", "experts", "peers", "lockstep")


def main(folder: Path) -> None:
    """Print all tables, and write those that the page shows, from the measurements in `folder`."""
    runs = {name: runs_on(folder, name.lower()) for name in GPUS}
    tables = {
        "shares": shares(),
        "phases": phases(),
        "errors": errors(runs),
        "settings": settings(runs),
        "kernels": kernels(folder),
        "tokens": tokens(folder),
    }
    text = PAGE.read_text("utf-8")
    for name, lines in tables.items():
        begin, end = BEGIN.format(name), END.format(name)
        table = "\n".join(lines)
        print(table, end="\n\n")
        text = re.sub(
            f"{re.escape(begin)}.*?{re.escape(end)}",
            lambda _, whole=f"{begin}\n{table}\n{end}": whole,
            text,
            flags=re.DOTALL,
        )
    PAGE.write_text(text, "utf-8")
    draw_picture(runs)


def runs_on(folder: Path, gpu: str) -> list[PowerRun]:
    """Return all measured runs on GPUs whose name begins so."""
    every = [
        *mlenergy_runs(folder / "ml-energy-vllm-0.11" / "mlenergy_calibration.csv"),
        *splitwise_runs(folder / "splitwise_perf_model.csv"),
        *argonne_runs(folder / "argonne-inference-bench" / "Fig_16_a_b__power_results.csv"),
    ]
    return [run for run in every if run.cluster.gpu.name.startswith(gpu)]


def shares() -> Iterator[str]:
    """Yield the shares of the catalog's entries."""
    yield f"| GPU | design power | {' | '.join(f'`{name}`' for name in _SHARES)} |"
    yield f"|---|---|{'---|' * len(_SHARES)}"
    for gpu in (*GPUS.values(), "l40s"):
        spec = load_gpu(gpu)
        cells = " | ".join(f"{getattr(spec.draw, name):g}" for name in _SHARES)
        name = f"{gpu} ({spec.draw.confidence})"
        yield f"| {name} | {spec.power:g} W | {cells} |"


def phases() -> Iterator[str]:
    """Yield the watts of a GPU by what Llama-3.1-8B does there, with the catalog's entries."""
    model, loads = load_model("llama-3.1-8b"), (1, 64)
    names = " | ".join(f"{number} decode{'s' if number > 1 else ''}" for number in loads)
    yield f"| GPU | waiting | {names} | a prompt of 8,192 tokens |"
    yield "|---|---|---|---|---|"
    for gpu in (*GPUS.values(), "h200", "l40s"):
        machine = Machine(model=model, cluster=Cluster(load_gpu(gpu)))
        batches = [StepBatch((), number, number * _CONTEXT) for number in loads]
        batches.append(StepBatch(((8192, 0),), 0, 0))
        watts = [machine.idle_watts, *(step_of(machine, batch) for batch in batches)]
        yield f"| {gpu} | {' | '.join(f'{each:.0f} W' for each in watts)} |"


def step_of(machine: Machine, batch: StepBatch) -> float:
    """Return the watts of a GPU in one step of the roofline with the engine's own time."""
    new, queries = float(batch.num_prefill_tokens), float(batch.num_decodes)
    counts = StepCounts(
        num_steps=np.ones(1),
        num_prefill_tokens=np.array([new]),
        num_samples=np.array([queries + len(batch.chunks)]),
        num_queries=np.array([queries]),
        prefill_keys=np.array([new]),
        prefill_pairs=np.array([new * (new + 1) / 2]),
        num_decodes=np.array([queries]),
        decode_keys=np.array([batch.context_sum + queries]),
    )
    timed = EngineOverhead().around(RooflinePredictor(machine.model, machine.cluster))
    return float(machine.watts(counts, np.array([timed.step_time(batch)]))[0])


def errors(runs: dict[str, list[PowerRun]]) -> Iterator[str]:
    """Yield the mean and median error of watts by GPU and by what was left out."""
    yield (
        "| GPU | runs | configurations | fitted rows | configuration left out | model left out | "
        f"of that, up to {_FEW} sequences |"
    )
    yield "|---|---|---|---|---|---|---|"
    for name, mine in runs.items():
        idle = load_gpu(GPUS[name]).draw.idle
        by_setting, by_model = of_runs(mine, "setting"), of_runs(mine, "model")
        without_model = left_out_errors(by_model, idle)
        cells = [
            _error(by_setting.errors(fit_draw(by_setting, idle))),
            _error(left_out_errors(by_setting, idle)),
            _error(without_model),
            _error(without_model[[run.batch <= _FEW for run in mine]]),
        ]
        number = len(np.unique(by_setting.groups))
        yield f"| {name} | {len(mine)} | {number} | {' | '.join(cells)} |"


def settings(runs: dict[str, list[PowerRun]]) -> Iterator[str]:
    """Yield measured and modelled watts of each configuration, by fits without it."""
    yield "| GPU | configuration, left out | runs | measured, W | modelled, W | mean error |"
    yield "|---|---|---|---|---|---|"
    for name, mine in runs.items():
        samples = of_runs(mine, "setting")
        found = left_out_errors(samples, load_gpu(GPUS[name]).draw.idle)
        modelled = samples.watts * (1 + found)
        for setting in np.unique(samples.groups):
            rows = samples.groups == setting
            watts = f"{_range(samples.watts[rows])} | {_range(modelled[rows])}"
            error = f"{np.abs(found[rows]).mean():.1%}".replace("%", " %")
            yield f"| {name} | {_words(setting)} | {rows.sum()} | {watts} | {error} |"


def kernels(folder: Path) -> Iterator[str]:
    """Yield how the catalog's entries predict matrix products, which no entry was fitted to."""
    yield "| GPU | matrix products | mean error | median of modelled / measured |"
    yield "|---|---|---|---|"
    for gpu in ("h200", "b200"):
        samples = of_kernels(kernel_power(folder / "kernel-power-h200-b200", gpu))
        found = samples.errors(load_gpu(gpu).draw)
        mean, median = np.abs(found).mean(), np.median(found) + 1
        yield f"| {gpu} | {len(found):,} | {mean:.1%} | {median:.2f} |".replace("%", " %")


def tokens(folder: Path) -> Iterator[str]:
    """Yield the errors of J a token, with measured and with modelled step times."""
    runs = mlenergy_runs(folder / "ml-energy-vllm-0.11" / "mlenergy_calibration.csv")
    yield "| GPU | runs | J a token, measured step | J a token, modelled step | step | watts |"
    yield "|---|---|---|---|---|---|"
    for name in ("H100", "B200"):
        mine = [run for run in runs if run.cluster.gpu.name == GPUS[name]]
        samples = of_runs(mine, "setting")
        measured = left_out_errors(samples, load_gpu(GPUS[name]).draw.idle)
        found = np.array([token_energy(run) for run in mine])
        cells = [_error(measured), _error(found[:, 2]), _error(found[:, 0]), _error(found[:, 1])]
        yield f"| {name} | {len(mine)} | {' | '.join(cells)} |"


def draw_picture(runs: dict[str, list[PowerRun]]) -> None:
    """Draw modelled against measured watts of configurations that were left out."""
    try:
        import matplotlib as mpl
    except ImportError:
        print(f"without matplotlib {PICTURE.name} stays as it is", file=sys.stderr)
        return
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(runs), figsize=(10, 3.4))
    for axis, (name, mine) in zip(axes, runs.items(), strict=True):
        samples = of_runs(mine, "setting")
        modelled = samples.watts * (1 + left_out_errors(samples, load_gpu(GPUS[name]).draw.idle))
        most = load_gpu(GPUS[name]).power
        axis.plot([0, most], [0, most], color="#bbbbbb", lw=1)
        axis.scatter(samples.watts, modelled, s=10, color="#2a6f97", alpha=0.6)
        axis.set(title=name, xlabel="measured, W a GPU", xlim=(0, most), ylim=(0, most))
    axes[0].set_ylabel("modelled, W a GPU")
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=110, metadata={"Software": None})


def _error(found: Sequence[float]) -> str:
    sizes = np.abs(found)
    return f"{sizes.mean():.1%} ({np.median(sizes):.1%})".replace("%", " %")


def _range(watts: Sequence[float]) -> str:
    low, high = round(min(watts)), round(max(watts))
    return f"{low} to {high}" if low < high else f"{high}"


def _words(setting: str) -> str:
    return " ".join(setting.split())


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/measurements"))
