"""Attention-FFN disaggregation (AFD): how long the parts of a bundle's cycle take."""

from mist_sim.hardware.afd.choice import chosen_coefficients, named_coefficients
from mist_sim.hardware.afd.coefficients import PRESETS, AfdCoefficients
from mist_sim.hardware.afd.derivation import FfnCards, activation_bytes, derive_coefficients

__all__ = [
    "PRESETS",
    "AfdCoefficients",
    "FfnCards",
    "activation_bytes",
    "chosen_coefficients",
    "derive_coefficients",
    "named_coefficients",
]
