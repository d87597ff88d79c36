"""Limits of MLPerf Inference's server scenarios, by name, for `slo` of a scenario.

LoadGen asks for the 99th percentile of TTFT and for that of TPOT, each for itself
(`Server.target_latency_percentile = 99`; `use_token_latencies = 1`), at Poisson arrivals. Its
queries come in equal shares from a data set, so that a run with other lengths keeps MLPerf's limits
and is no MLPerf result.

Source: github.com/mlcommons/inference, loadgen/mlperf.conf at 001712e (v5.1), and for gpt-oss-120b
language/gpt-oss-120b/mlperf_gptoss.conf at 8d6e250 (v6.0), which repeats the others unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PREFIX = "mlperf-"

_LIMITS_MS: Mapping[str, tuple[float, float]] = {
    "llama2-70b": (2000, 200),
    "llama2-70b-interactive": (450, 40),
    "mixtral-8x7b": (2000, 200),
    "llama3.1-8b": (2000, 100),
    "llama3.1-8b-interactive": (500, 30),
    "llama3.1-405b": (6000, 175),
    "llama3.1-405b-interactive": (4500, 80),
    "deepseek-r1": (2000, 80),
    "deepseek-r1-interactive": (1500, 15),
    "gpt-oss-120b": (3000, 80),
    "gpt-oss-120b-interactive": (2000, 15),
}
"""TTFT and TPOT in milliseconds, by LoadGen's name of the benchmark (with dots for underscores)."""

_PERCENTILE = 99


def slo_preset_names() -> list[str]:
    """Return the names of all presets."""
    return [PREFIX + name for name in _LIMITS_MS]


def slo_preset(name: str) -> dict[str, Any]:
    """Return a preset's limits as a file has them; `name` is one of `slo_preset_names()`."""
    ttft, tpot = _LIMITS_MS[name.removeprefix(PREFIX)]
    return {
        "ttft": f"{ttft:g} ms",
        "tpot": f"{tpot:g} ms",
        "percentiles": [_PERCENTILE],
        "attainment": _PERCENTILE / 100,
        "each": True,
    }
