"""Figures of kernels by back end, for those that are not an architecture's usual ones.

The tables in `hardware/backends/` have, for each architecture, whose kernels its own figures are
(`usual`), and the figures of other back ends by kind of kernels. `docs/make_backends.py` writes
them from tables of measured kernels: no figure is that of another back end times a constant. Where
a back end has none, the usual ones hold, with the rows that it is known to fill up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache

from mist_sim.hardware.devices.device_loading import gpu_names, load_gpu
from mist_sim.hardware.devices.kernels import Kernel
from mist_sim.hardware.devices.specs import GpuSpec
from mist_sim.models.moe_backends import rows_computed
from mist_sim.spec_files import Table, read_table, tables_in

USUAL, SOURCES = "usual", "sources"


def usual_backend(architecture: str, kind: str) -> str:
    """Return whose kernels the architecture's figures of a kind are; empty: not known."""
    usual = _tables().get(architecture, {}).get(USUAL, {})
    return str(usual.get(kind, "")) if isinstance(usual, dict) else ""


def has_figures(architecture: str, kind: str, backend: str) -> bool:
    """Whether there are figures of a back end for a kind of kernels."""
    return usual_backend(architecture, kind) == backend or kind in _figures(architecture, backend)


def with_backend(gpu: GpuSpec, kinds: Iterable[str], backend: str) -> GpuSpec:
    """Return a GPU with the figures of a back end for kinds of kernels.

    The usual ones, those that were not timed, and figures that a GPU's file changed stay as they
    are; but for the rows that a back end without figures is known to fill up.
    """
    listed = [kind for kind in kinds if _is_listed(gpu, kind)]
    figures = _figures(gpu.architecture, backend)
    found = {kind: figures[kind] for kind in listed if kind in figures}
    if filled := rows_computed(backend):
        for kind in listed:
            kernel = gpu.kernels.get(kind)
            if kernel and not has_figures(gpu.architecture, kind, backend):
                found[kind] = replace(kernel, padding=0.0, padding_from=0.0, filled=filled - 1.0)
    return replace(gpu, kernels={**gpu.kernels, **found}) if found else gpu


def _is_listed(gpu: GpuSpec, kind: str) -> bool:
    """Whether a GPU's figures of a kind are those of the catalog."""
    if gpu.based_on not in gpu_names():
        return False
    return gpu.kernels.get(kind) == load_gpu(gpu.based_on).kernels.get(kind)


@cache
def _figures(architecture: str, backend: str) -> Mapping[str, Kernel]:
    table = _tables().get(architecture, {}).get(backend, {})
    where = f"backends/{architecture}.toml"
    if not isinstance(table, dict):
        return {}
    return {kind: read_table(Kernel, each, where, f"{kind}.") for kind, each in table.items()}


@cache
def _tables() -> Mapping[str, Table]:
    return tables_in("mist_sim.hardware", "backends")
