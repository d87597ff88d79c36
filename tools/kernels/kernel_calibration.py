"""Figures of kernels from tables of measured ones: `python -m tools.kernels`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mist_sim.errors import ScenarioError
from mist_sim.hardware import GpuSpec
from mist_sim.hardware.devices import Kernel, kernel_of
from mist_sim.models import ModelSpec
from tools.kernels.aiconfigurator import read_system
from tools.kernels.kernel_fit import KernelFit, fit_kernel
from tools.kernels.kernel_rows import KernelRows, joined
from tools.kernels.kernel_tables import gpu_text
from tools.kernels.layer_tables import read_layers


@dataclass(frozen=True, slots=True)
class KernelFits:
    """Fitted kernels of a GPU, by kind, and the table that they are from."""

    gpu: str
    source: str
    fits: Sequence[KernelFit]

    @property
    def text(self) -> str:
        """A GPU spec file that a scenario can name."""
        return gpu_text(self.gpu, self.fits, dict.fromkeys(map(_kind, self.fits), self.source))


def calibrate_kernels(path: Path, gpu: GpuSpec, model: ModelSpec | None = None) -> KernelFits:
    """Fit the figures of all kinds of kernels that a table has.

    path: a folder of aiconfigurator-core (`systems/data/h100_sxm`), or a table of LLMServingSim or
        Vidur (see `read_layers`).
    model: the measured model, if the table does not contain it.

    Raises ScenarioError for a table of unknown form, or with too few rows.
    """
    fits = [fit for rows in _kinds(_read(path, gpu, model)) if (fit := fit_kernel(rows))]
    if not fits:
        raise ScenarioError(f"{path}: fewer than 20 rows of every kind of kernels; measure more")
    name = path.parent.name if path.stem in ("layers", "dense", "attention") else ""
    return KernelFits(gpu.name, f"{name}/{path.name}".removeprefix("/"), fits)


def _kind(fit: KernelFit) -> str:
    return fit.kind


def _read(path: Path, gpu: GpuSpec, model: ModelSpec | None) -> list[KernelRows]:
    if not path.exists():
        raise ScenarioError(f"{path}: no such file or folder")
    if path.is_dir():
        return read_system(path, gpu, _small(gpu))
    return read_layers(path, gpu, model)


def _small(gpu: GpuSpec) -> Kernel:
    return kernel_of(gpu.kernels, "vector")


def _kinds(rows: Sequence[KernelRows]) -> Iterator[KernelRows]:
    for kind in dict.fromkeys(part.kind for part in rows):
        yield joined([part for part in rows if part.kind == kind])
