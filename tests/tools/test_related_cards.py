"""Shares of Ada cards that were not measured follow a rule from the L40S."""

from dataclasses import replace

import pytest

from mist_sim.hardware import Cluster, gpu_from_table, load_gpu
from mist_sim.hardware.setting import comparable
from mist_sim.metrics.expected_errors import error_bar
from mist_sim.models import load_model
from tools.related_cards import MOST, Card, related_shares

# boost clocks: NVIDIA's data sheets of L40S, L40 and RTX 6000 Ada, its Ada white paper (RTX 4090),
# and TechPowerUp's database (L4)
CLOCKS = {"l40s": 2520, "l40": 2490, "l4": 2040, "rtx-4090": 2520, "rtx-6000-ada": 2505}
NOMINAL = {"l40s": 48, "l40": 48, "l4": 24, "rtx-4090": 24, "rtx-6000-ada": 48}


def card_of(name: str) -> Card:
    gpu = load_gpu(name)
    ecc = gpu.memory < 0.95 * NOMINAL[name] * 2**30
    return Card(gpu.flops["bf16"], CLOCKS[name], gpu.power, ecc)


L40S = load_gpu("l40s")


@pytest.mark.parametrize("name", CLOCKS)
def test_shares_of_the_catalog_follow_the_rule(name):
    gpu = load_gpu(name)
    mfu, mbu = related_shares(card_of(name), card_of("l40s"), L40S.prefill.mfu, L40S.prefill.mbu)
    assert gpu.prefill == gpu.decode
    assert gpu.prefill.mfu == pytest.approx(mfu, abs=0.006)
    assert gpu.prefill.mbu == pytest.approx(mbu, abs=0.006)


def test_an_rtx_3090_by_an_a6000():
    """The one pair of measured cards; the 3090's own shares are 0.91 and 0.87."""
    a6000, gpu = load_gpu("rtx-a6000"), load_gpu("rtx-3090")
    cards = (Card(71e12, 1695, gpu.power, False), Card(154.8e12, 1800, a6000.power, False))
    mfu, mbu = related_shares(*cards, a6000.prefill.mfu, a6000.prefill.mbu)
    assert mfu == pytest.approx(gpu.prefill.mfu, rel=0.01)
    assert mbu / gpu.prefill.mbu == pytest.approx(1.09, abs=0.005)


def test_less_power_never_computes_faster_and_check_bits_cost_bandwidth():
    card = card_of("l40s")
    limits = [100.0, 200.0, 350.0, 500.0, 2000.0]
    found = [related_shares(replace(card, power=w), card, 0.65, 0.83)[0] for w in limits]
    assert found == sorted(found)
    assert found[2] == pytest.approx(0.65)
    assert found[-1] == MOST
    without = related_shares(replace(card, ecc=False), card, 0.65, 0.83)[1]
    assert without == pytest.approx(0.83 * 16 / 15)


def test_a_card_without_a_limit_tells_nothing():
    with pytest.raises(ValueError, match="must be < 0.91"):
        related_shares(card_of("l40"), card_of("l40s"), 0.91, 0.87)


@pytest.mark.parametrize("name", ["h100-sxm", "l40s", "rtx-4090"])
def test_a_copy_of_a_card_has_its_bar_and_one_with_other_figures_none(name):
    model = load_model("llama-3.1-8b")

    def bar(gpu):
        return error_bar(comparable("roofline", model, Cluster(gpu)), "tpot")

    def based(**own):
        return gpu_from_table({"based_on": name, **own}, name="mine", source="mine.toml")

    assert bar(based()) == bar(load_gpu(name))
    assert bar(based(confidence="fitted")) == bar(load_gpu(name)), "that is said, not measured"
    assert bar(based(memory_bandwidth="1.5 TB/s")) is None
