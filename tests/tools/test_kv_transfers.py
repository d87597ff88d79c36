"""Transfers that Mooncake measured, simulated over a topology like that of the measurement.

Qwen3-8B, TP 8, from one node of eight H800s to another, whose NICs could do 200 GB/s together. The
sizes that it prints are those of the prompt's blocks and one more, in powers of 1,024.
"""

import csv

import pytest

from mist_sim.environment import Environment
from mist_sim.models import load_model
from mist_sim.network import Connector, Fabric, Message, MooncakeConnector, Seat, Tenant
from tools.kv_transfers import fit_connector

NICS = 200e9
MODEL = load_model("qwen3-8b")


@pytest.fixture
def rows(shared) -> list[tuple[int, float]]:
    """Tokens and seconds of each transfer, by size."""
    path = shared("measurements/kv-transfer-mooncake-vllm/vllm_qwen3-8b_h800_roce.csv")
    with path.open() as lines:
        return [
            (int(row["prompt_tokens"]), 1e-3 * float(row["transfer_ms"]))
            for row in csv.DictReader(lines)
        ]


def test_a_line_through_transfers_is_found_again():
    """5 ms, and a quarter of the bandwidth; what is slower than the way cannot be faster."""
    sizes = [1e6, 1e8, 3e9]
    times, given = [5e-3 + size / 50e9 for size in sizes], MooncakeConnector(per_descriptor=1e-6)
    found = fit_connector(sizes, times, NICS, given)
    assert (found.start, found.efficiency) == pytest.approx((5e-3, 0.25))
    assert found.per_descriptor == 1e-6
    faster = fit_connector(sizes, [-1e-3 + size / 50e9 for size in sizes], NICS)
    assert faster.start == 0.0
    with pytest.raises(ValueError, match="must have two different sizes or more, got"):
        fit_connector([1e6, 1e6], [1.0, 1.0], NICS)
    with pytest.raises(ValueError, match="must grow by 1 / bandwidth a byte or more"):
        fit_connector(sizes, [size / 500e9 for size in sizes], NICS)


def num_blocks(num_tokens: int) -> int:
    return num_tokens // 16 + 1


def num_bytes(num_tokens: int) -> float:
    return num_blocks(num_tokens) * 16 * MODEL.kv_bytes_per_token


def fitted(rows: list[tuple[int, float]]) -> Connector:
    return fit_connector([num_bytes(row[0]) for row in rows], [row[1] for row in rows], NICS)


def seconds(num_tokens: int, connector: Connector) -> float:
    """Return what a simulated transfer of so many tokens takes."""
    fabric = Fabric(topology="hgx-h100", nodes=2, nic=NICS / 8, connector=connector)
    fabric.admit(
        [Tenant("p", 1, 1, 8, "node0", sends=True), Tenant("d", 1, 1, 8, "node1", takes=True)]
    )
    env = Environment()
    fabric.start(env)
    size, blocks = num_bytes(num_tokens), num_blocks(num_tokens)
    end = fabric.send(Message(Seat("p"), Seat("d"), size, MODEL.num_layers, 0.0, blocks))
    env.run(until=end)
    return env.now


def test_printed_sizes_are_powers_of_two(shared):
    """A megabyte there is 2**20 bytes; from 8,192 tokens on it is gigabytes of 2**30, in MB."""
    path = shared("measurements/kv-transfer-mooncake-vllm/vllm_qwen3-8b_h800_roce.csv")
    with path.open() as lines:
        for row in csv.DictReader(lines):
            tokens, printed = int(row["prompt_tokens"]), float(row["kv_mb"])
            unit = 2**20 if tokens < 8192 else 2**30 / 1000
            assert num_bytes(tokens) / unit == pytest.approx(printed, rel=0.015)


@pytest.mark.parametrize("first", [0, 1])
def test_every_second_row_says_how_long_others_take(rows, first):
    """From 2,048 tokens on within 10 %; fitted on the other half of the rows."""
    connector = fitted(rows[first::2])
    scored = [row for row in rows[1 - first :: 2] if row[0] >= 2048]
    assert len(scored) >= 2
    for num_tokens, measured in scored:
        assert seconds(num_tokens, connector) == pytest.approx(measured, rel=0.10)


def test_without_connector_they_would_be_fifth_too_fast(rows):
    for num_tokens, measured in rows:
        assert seconds(num_tokens, Connector()) < 0.8 * measured


def test_defaults_of_mooncake_are_fitted_to_all_rows(rows):
    """One start a layer for two engines and models: within 8 % of the start of each fit."""
    connector, named = fitted(rows), MooncakeConnector()
    assert connector.start == pytest.approx(named.before(1, MODEL.num_layers), rel=0.08)
    assert connector.efficiency == pytest.approx(named.efficiency, rel=0.001)
