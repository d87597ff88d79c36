"""The TOML file of coefficients that a fit writes, and a client of type rag names."""

from __future__ import annotations

from dataclasses import fields

from mist_sim.calibration.rag.search_fit import KINDS, SearchFit
from mist_sim.hardware.vector_search.coefficients import Rates
from mist_sim.spec_files import toml_string


def coefficients_text(fit: SearchFit) -> str:
    """Return the text of the file, without zeros and defaults."""
    found = fit.coefficients
    lines = [
        "# Seconds of the operations of a search on one core; fitted by mist calibrate rag.",
        f"machine = {toml_string(found.machine)}",
        f"date = {toml_string(found.date)}",
        f"software = {toml_string(found.software)}",
        f"core_exponent = {found.core_exponent:.4g}",
        "",
        "# Median errors on indexes that the fit did not see.",
        "[errors]",
        *(f"{kind} = {found.errors[kind]:.4g}" for kind in KINDS),
    ]
    for kind in KINDS:
        rates: Rates = getattr(found, kind)
        said = {item.name: getattr(rates, item.name) for item in fields(rates)}
        default = {item.name: item.default for item in fields(rates)}
        lines += ["", f"[{kind}]"]
        lines += [f"{key} = {value:.4g}" for key, value in said.items() if value != default[key]]
    return "\n".join(lines) + "\n"
