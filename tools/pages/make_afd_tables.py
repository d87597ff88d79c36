"""Prints the tables of docs/background/afd.md that take longer than a block of a page may.

    python tools/pages/make_afd_tables.py [TRACES]

TRACES: a folder with the Azure traces (AzureLLMInferenceTrace_conv.csv and _code.csv), for the last
table. Takes some minutes on one core.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mist_sim import Scenario, simulate
from mist_sim.cli.verbs.afd import slot_lengths
from mist_sim.clients.afd import BundleConfig
from mist_sim.hardware.afd import PRESETS
from mist_sim.rng import Streams
from mist_sim.search import (
    BundleRun,
    BundleSpec,
    estimate_slot_load,
    geometric_slot_load,
    predict,
    provision,
    provision_interval,
    simulate_bundle,
)
from mist_sim.traces import TRACE_READERS

C = PRESETS["deepseek-v3-ascend-910c"]
SCENARIO = Path(__file__).parents[2] / "examples/scenarios/attention_ffn.yaml"
LAYERS = 61  # of deepseek-v3
Lengths = tuple[NDArray[np.int64], NDArray[np.int64]]


def drawn(ratio: int, num_requests: int, batches: int) -> Lengths:
    """Lengths of the paper, the same for all forms of a bundle."""
    rng = Streams(1).generator(f"{ratio}")
    n = max(num_requests * ratio, 2 * 256 * ratio * batches)
    return rng.geometric(1 / 100, n), rng.geometric(1 / 500, n)


def run(lengths: Lengths, ratio: int, **options: int | bool) -> BundleRun:
    """Return a simulated run of a bundle of so many attention workers."""
    config = BundleConfig(coefficients=C, attention_workers=ratio, slots=256, **options)
    return simulate_bundle(config, *lengths, Streams(2).generator("start"))


def figure_3() -> Iterator[str]:
    """Figure 3: seven ratios, 10,000 requests a worker."""
    spec = BundleSpec(C, geometric_slot_load(100, 9900, 500), 256)
    yield "| ratio | throughput | predicted, 2 in flight | Gaussian | TPOT | idle A | idle F |"
    begun = time.process_time()
    for ratio in (1, 2, 4, 8, 16, 24, 32):
        found, theory = run(drawn(ratio, 10_000, 2), ratio), predict(spec, ratio)
        yield (
            f"| {ratio} | {found.throughput:.3f} | {theory.throughput:.3f} "
            f"| {theory.throughput_gaussian:.3f} | {found.tpot:.0f} "
            f"| {found.attention_idle:.1%} | {found.ffn_idle:.1%} |"
        )
    yield f"{time.process_time() - begun:.0f} s of CPU time"


def layers() -> Iterator[str]:
    """Steps at once, layer by layer, and layer by layer with joint steps."""
    forms: list[dict[str, int | bool]] = [
        {},
        {"layers": LAYERS},
        {"layers": LAYERS, "joint_steps": True},
        {"layers": 8, "joint_steps": True},
    ]
    yield f"| ratio | batches | whole steps | {LAYERS} layers | joint | 8 layers, joint |"
    for batches in (2, 3):
        for ratio in (4, 8, 16):
            lengths = drawn(ratio, 2000, batches)
            rates = [run(lengths, ratio, batches=batches, **form).throughput for form in forms]
            cells = [f"{rate / rates[0] - 1:+.1%}" for rate in rates[1:]]
            yield " | ".join([f"| {ratio}", f"{batches}", f"{rates[0]:.3f}", *cells]) + " |"


def scenario() -> Iterator[str]:
    """The same in examples/scenarios/attention_ffn.yaml, where slots are partly empty."""
    yield "| form | mean TPOT | p99 TPOT | first decode token after |"
    for name, said in (
        ("whole steps", {}),
        (f"{LAYERS} layers", {"layers": LAYERS}),
        (f"{LAYERS} layers, joint", {"layers": LAYERS, "joint_steps": True}),
    ):
        changes = {f"clients.1.{key}": value for key, value in said.items()}
        changes["workload.lengths.num_requests"] = 500
        result = simulate(Scenario.load(SCENARIO, overrides=changes))
        stages = result.stages.query("stage == 'decode'").set_index("request_id")
        waits = [result.token_times(k)[1] - row.started_at for k, row in stages.iterrows()]
        s = result.summary
        yield (
            f"| {name} | {s['mean_tpot_ms']:.2f} ms | {s['p99_tpot_ms']:.2f} ms "
            f"| {1e3 * np.mean(waits):.1f} ms |"
        )


def azure(folder: Path) -> Iterator[str]:
    """The estimator's ratios beside the best simulated ones."""
    yield "| trace | theta | mean field | Gaussian | 3 batches | predicted, 2 | 2 batches |"
    for name, ratios in (("conv", range(12, 29, 2)), ("code", range(24, 49, 4))):
        path = str(folder / f"AzureLLMInferenceTrace_{name}.csv")
        prefill, decode = slot_lengths(TRACE_READERS["azure"](path=path).rows())
        decodes = decode > 0
        prefill, decode = prefill[decodes], decode[decodes]
        estimate = estimate_slot_load(prefill, decode)
        spec = BundleSpec(C, estimate.load, 256)
        best, (low, high) = provision(spec), provision_interval(spec, estimate)
        tops = {}
        for batches in (2, 3):
            found = {}
            for ratio in ratios:
                rng = Streams(3).generator(f"{ratio}")
                which = rng.integers(len(decode), size=1500 * ratio)
                drawn = prefill[which], decode[which]
                found[ratio] = run(drawn, ratio, batches=batches).throughput
            tops[batches] = max(found, key=found.__getitem__)
        theta, ratio = estimate.theta, best.mean_field.ratio
        yield (
            f"| {name} | {theta.value:,.0f} ({theta.low:,.0f} to {theta.high:,.0f}) "
            f"| {ratio:.1f} ({low:.1f} to {high:.1f}) | {best.gaussian.attention_workers} "
            f"| {tops[3]} | {best.in_flight.attention_workers} | {tops[2]} |"
        )


def main() -> None:
    """Print the tables; with a folder of traces, that of the Azure trace too."""
    for table in (figure_3, layers, scenario):
        print("\n".join(table()), flush=True)
    if len(sys.argv) > 1:
        print("\n".join(azure(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
