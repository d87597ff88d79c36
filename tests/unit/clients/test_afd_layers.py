"""Steps of a bundle layer by layer, with batches that begin steps when they are back, or together.

What a scenario makes of it is in tests/property/test_afd.py, beside a bundle stepped singly.
"""

from dataclasses import replace

import pytest

from mist_sim.clients.afd import Bundle, BundleConfig, Resident
from mist_sim.hardware.afd import AfdCoefficients
from mist_sim.rng import Streams
from mist_sim.search import simulate_bundle
from tests.refusals import refused

# a step of one request: attention 20, legs of 4, FFN 12
C = AfdCoefficients(alpha_a=1, beta_a=10, alpha_f=2, beta_f=10, alpha_c=2, beta_c=6)
CONFIG = BundleConfig(coefficients=C, attention_workers=1, slots=1, layers=2)


def filled(config, tokens=(10, 10), steps=9):
    bundle = Bundle(config)
    for slots, num_tokens in zip(bundle.batches, tokens, strict=True):
        slots.join(Resident(0, num_tokens, steps))
    return bundle


def passes(bundle, number):
    """Return (batch, start, end) of the next passes, and (batch, time) of steps that they end."""
    found, ends = [], []
    for _ in range(number):
        step, ended = bundle.run_pass(bundle.next_batch())
        found.append((step.batch, step.start, step.end))
        ends += [(end.batch, end.time) for end in ended]
    return found, ends


def test_layers_by_hand():
    """A layer: attention 10, legs of 2, FFN 6. So it is back after 20, when the other one is done.

    After two layers the contexts are a token longer, and attention of a layer takes 10.5.
    """
    found, ends = passes(filled(CONFIG), 6)
    assert found[:4] == [(0, 0, 20), (1, 10, 30), (0, 20, 40), (1, 30, 50)]
    assert found[4:] == [(0, 40, 60.5), (1, 50.5, 71)]
    assert ends == [(0, 40), (1, 50)]


def test_joint_steps_by_hand():
    """The first batch is back at 40, and its next step waits for the other one until 50."""
    found, ends = passes(filled(replace(CONFIG, joint_steps=True)), 6)
    assert found[:4] == [(0, 0, 20), (1, 10, 30), (0, 20, 40), (1, 30, 50)]
    assert found[4:] == [(0, 50, 70.5), (1, 60.5, 81)]
    assert ends == [(0, 50), (1, 50)]


def test_work_does_not_depend_on_the_layers():
    """Two steps of both batches: attention 20 and 21 each, FFN 12."""
    for layers in (None, 2, 4):
        bundle = filled(replace(CONFIG, layers=layers))
        passes(bundle, 4 * (layers or 1))
        assert (bundle.attention_work, bundle.ffn_work) == (2 * (20 + 21), 4 * 12)


@pytest.mark.parametrize(
    ("ffn", "batches", "layers"), [(12, 2, 2), (12, 3, 5), (30, 2, 5), (30, 3, 7), (12, 2, 60)]
)
def test_what_a_joint_step_takes(ffn, batches, layers):
    """All but the last layer at the pace of the bottleneck, then one pass and who comes after."""
    config = replace(CONFIG, coefficients=replace(C, alpha_a=1e-9, beta_a=20, beta_f=ffn - 2))
    config = replace(config, batches=batches, layers=layers, joint_steps=True)
    _, ends = passes(filled(config, [1] * batches), batches * layers)
    a, f, c = 20 / layers, ffn / layers, 8 / layers
    pace = max(batches * a, batches * f, a + f + c)
    expected = (layers - 1) * pace + a + f + c + (batches - 1) * max(a, f)
    assert [time for _, time in ends] == pytest.approx([expected] * batches)


def test_full_bundles_are_as_fast_layer_by_layer():
    """Slots that are always full: dividing steps changes throughput by less than 1 %."""
    rng = Streams(5).generator("lengths")
    prefill, decode = rng.geometric(1 / 100, 1500), rng.geometric(1 / 50, 1500)
    c = replace(C, alpha_a=0.02, alpha_f=1.0)
    plain = BundleConfig(coefficients=c, attention_workers=2, slots=32)
    runs = [
        simulate_bundle(
            replace(plain, **changes), prefill, decode, Streams(6).generator("start")
        ).throughput
        for changes in ({}, {"layers": 20}, {"layers": 20, "joint_steps": True})
    ]
    assert runs[1] == pytest.approx(runs[0], rel=0.01)
    assert 0.95 < runs[2] / runs[0] < 0.99


test_layers_that_are_refused = refused(
    lambda changes: replace(CONFIG, **changes),
    ({"layers": 0}, "layers must be in [1, 10000], got 0"),
    ({"layers": None, "joint_steps": True}, "layers are required with joint_steps"),
    error=ValueError,
)
