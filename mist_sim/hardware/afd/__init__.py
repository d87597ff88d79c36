"""Attention-FFN disaggregation (AFD): times and power of the parts of a bundle's cycle."""

from mist_sim.hardware.afd.bundle_coefficients import PRESETS, AfdCoefficients
from mist_sim.hardware.afd.bundle_machine import AttentionGpus, BundleMachine, BundleShape, FfnGpus
from mist_sim.hardware.afd.choice import chosen_coefficients, named_coefficients
from mist_sim.hardware.afd.derivation import FfnCards, activation_bytes, derive_coefficients
from mist_sim.hardware.afd.kernel_shares import KernelShares, attention_shares, expert_shares

__all__ = [
    "PRESETS",
    "AfdCoefficients",
    "AttentionGpus",
    "BundleMachine",
    "BundleShape",
    "FfnCards",
    "FfnGpus",
    "KernelShares",
    "activation_bytes",
    "attention_shares",
    "chosen_coefficients",
    "derive_coefficients",
    "expert_shares",
    "named_coefficients",
]
