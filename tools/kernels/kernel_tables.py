"""Writes fitted figures of kernels: tables of an architecture, and GPU spec files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mist_sim.errors import printable
from mist_sim.spec_files import toml_string
from tools.kernels.kernel_fit import KernelFit

_SECONDS = ("floor", "serial", "per_input")
_PHASES = ("prefill", "decode")


def architecture_text(head: str, fits: Sequence[KernelFit], sources: Mapping[str, str]) -> str:
    """Return the table of an architecture (`mist_sim/hardware/architectures`).

    The shares of plain products in 16 bits are left to the entries of the GPUs.
    sources: where the rows of each kind are from.
    """
    lines = [f"# {printable(head)}"]
    for fit in fits:
        lines += ["", f"[{fit.kind}]", *_entries(_without_shares(fit))]
    lines += ["", "[sources]", *(f"{fit.kind} = {_source(fit, sources)}" for fit in fits)]
    return "\n".join(lines) + "\n"


def gpu_text(base: str, fits: Sequence[KernelFit], sources: Mapping[str, str]) -> str:
    """Return a GPU spec file with fitted kernels, based on an entry of the catalog."""
    lines = ["# Fitted by tools.kernels"]
    lines += [f"# {fit.kind}: {_residual(fit)}" for fit in fits]
    lines += [f"based_on = {toml_string(base)}", 'confidence = "fitted"']
    plain = next((fit for fit in fits if fit.kind == "bf16"), None)
    if plain:
        for phase in _PHASES:
            lines += ["", f"[{phase}]", *(f"{name} = {plain.values[name]:g}" for name in _SHARES)]
    for fit in fits:
        lines += ["", f"[kernels.{fit.kind}]", *_entries(_without_shares(fit))]
    lines += ["", "[sources]"]
    if plain:
        lines += [f"{phase} = {_source(plain, sources)}" for phase in _PHASES]
    lines += [f"kernels.{fit.kind} = {_source(fit, sources)}" for fit in fits]
    return "\n".join(lines) + "\n"


_SHARES = ("mfu", "mbu")


def _without_shares(fit: KernelFit) -> dict[str, float]:
    return {
        name: value
        for name, value in fit.values.items()
        if not (fit.kind == "bf16" and name in _SHARES)
    }


def written(values: Mapping[str, float]) -> dict[str, str]:
    """Return figures by name in their units."""
    return {
        name: f"{value * 1e6:.3g} us" if name in _SECONDS else f"{value:.3g}"
        for name, value in values.items()
    }


def _entries(values: Mapping[str, float]) -> list[str]:
    return [
        f'{name} = "{text}"' if " " in text else f"{name} = {text}"
        for name, text in written(values).items()
    ]


def _residual(fit: KernelFit) -> str:
    ends = f", {' and '.join(fit.at_bound)} at an end of the range" if fit.at_bound else ""
    return (
        f"{fit.num_rows:,} rows, median error {fit.median:.1%}, nine in ten within "
        f"{fit.ninth:.0%}{ends}"
    )


def _source(fit: KernelFit, sources: Mapping[str, str]) -> str:
    return toml_string(f"tools.kernels: {sources[fit.kind]}; {_residual(fit)}")
