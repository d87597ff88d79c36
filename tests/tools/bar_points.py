"""Points of error bars, made by hand."""

from dataclasses import replace

from mist_sim.hardware.setting import Setting
from mist_sim.metrics.load import LOW_LOAD
from tools.validation.error_bars import Point

HOPPER = Setting("roofline", "hopper", "dense", "bf16", "one")


def points(factors, setting=HOPPER, *, series=4, load=LOW_LOAD, **more):
    return [
        Point(setting, "tpot", factor, f"{setting} {load} {k % series}", (load,), **more)
        for k, factor in enumerate(factors)
    ]


NARROW = [0.98 + 0.01 * k for k in range(5)] * 3
WIDE = [0.8 + 0.1 * k for k in range(5)] * 3
TWO_GPUS, FP8 = replace(HOPPER, parallel="NVLink"), replace(HOPPER, weights="fp8")
ADA, EXPERTS = replace(HOPPER, architecture="ada"), replace(HOPPER, model="experts")
