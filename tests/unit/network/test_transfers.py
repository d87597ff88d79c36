"""Transfers that share links: closed forms, what is conserved, and ties."""

from itertools import permutations
from math import inf

import pytest

from mist_sim.environment import MOVE, Environment
from mist_sim.network.flows import Flows, fill_up
from mist_sim.network.transfers import Flow, Transfers

ONE = (0,)


def arrivals(capacities, sends):
    """Return when what was sent at each (time, flows) has arrived."""
    env, transfers, times = Environment(), Transfers(capacities), [inf] * len(sends)
    transfers.start(env)

    def send(number, flows):
        transfers.send(flows).callbacks.append(lambda _: times.__setitem__(number, env.now))

    for number, (time, flows) in enumerate(sends):
        env.at(time).callbacks.append(lambda _, n=number, f=flows: send(n, f))
    env.run(until=env.at(1e9))
    return times


def flow(num_bytes, path=ONE, latency=0.0):
    return [Flow(path, num_bytes, latency)]


def test_one_takes_its_latency_and_its_bytes_over_the_bandwidth():
    assert arrivals([64.0], [(1.0, flow(16.0, latency=0.5))]) == [1.75]


def test_two_have_half_each_while_both_are_there():
    """They share from 1 s on; the first has 32 bytes left and leaves at 2 s, then 32 are left."""
    assert arrivals([64.0], [(0.0, flow(96.0)), (1.0, flow(64.0))]) == [2.0, 2.5]


@pytest.mark.parametrize("number", [1, 3, 10, 100])
def test_n_leave_as_the_water_rises(number):
    """Of sizes s_1 <= ... <= s_n, number k leaves (n - k + 1) (s_k - s_{k - 1}) / b after k - 1."""
    sizes = [float(2 + k * k) for k in range(number)]
    expected, now, before = [], 0.0, 0.0
    for k, size in enumerate(sizes):
        now += (number - k) * (size - before) / 1024.0
        before = size
        expected.append(now)
    got = arrivals([1024.0], [(0.0, flow(size)) for size in sizes])
    assert got == pytest.approx(expected, rel=1e-12)


def test_who_crosses_two_links_has_what_the_fuller_one_leaves():
    """A on both links, B on the first, two on the second: A and those have 1/3 each, B has 2/3.

    A leaves at 3 s; B, with 2/3 of the first link until then, has 2 of its 3 bytes, and leaves at
    4 s. The other two have 1/3 each until 3 s and 1/2 then.
    """
    sends = [
        (0.0, flow(1.0, (0, 1))),
        (0.0, flow(3.0, (0,))),
        (0.0, flow(2.0, (1,))),
        (0.0, flow(2.0, (1,))),
    ]
    assert arrivals([1.0, 1.0], sends) == pytest.approx([3.0, 4.0, 5.0, 5.0], rel=1e-15)


def test_flows_that_share_nothing_do_not_slow_one_another():
    assert arrivals([1.0, 2.0], [(0.0, flow(1.0)), (0.0, flow(1.0, (1,)))]) == [1.0, 0.5]


def test_a_transfer_ends_with_its_last_flow():
    """The second flow has left later, and the first one is there later."""
    both = [Flow((0,), 1.0, 9.0), Flow((1,), 4.0, 0.5)]
    assert arrivals([1.0, 1.0], [(0.0, both)]) == [10.0]


def test_no_bytes_take_the_latency_and_no_way_takes_no_time():
    sends = [(1.0, flow(0.0, latency=0.5)), (1.0, flow(5.0, ())), (1.0, [])]
    assert arrivals([1.0], sends) == [1.5, 1.0, 1.0]


def test_no_bytes_wait_for_nobody():
    assert arrivals([1.0], [(0.0, flow(100.0)), (1.0, flow(0.0, latency=0.5))]) == [100.0, 1.5]


SIMULTANEOUS = [
    (1.0 / 3, flow(7.3, (0, 2), 0.1)),
    (1.0 / 3, flow(1.7, (0,))),
    (1.0 / 3, flow(2.9, (1, 2))),
    (1.0 / 3, flow(0.3, (2,))),
    (1.0 / 3, flow(1.1, (0, 1))),
]


def test_order_of_simultaneous_starts_is_irrelevant_to_bit():
    before = [(0.0, flow(5.0, (0, 1, 2)))]
    capacities = [3.7, 2.3, 5.9]
    first = arrivals(capacities, before + SIMULTANEOUS)
    for order in permutations(range(len(SIMULTANEOUS))):
        got = arrivals(capacities, before + [SIMULTANEOUS[k] for k in order])
        assert got[0] == first[0]
        assert got[1:] == [first[1:][k] for k in order]


def test_what_is_there_at_one_instant_is_told_in_the_order_of_sending():
    for order in permutations(range(3)):
        env, transfers, told = Environment(), Transfers([2.0, 3.0, 1.0]), []
        transfers.start(env)
        for k in order:
            end = transfers.send(flow([2.0, 3.0, 1.0][k], (k,)))
            end.callbacks.append(lambda _, k=k, told=told: told.append(k))
        env.run(until=env.at(2.0))
        assert told == list(order)


@pytest.mark.parametrize("is_alone", [True, False])
@pytest.mark.parametrize("latency", [0.0, 0.5])
def test_what_was_sent_is_there_before_requests_move(is_alone, latency):
    """Whether it shared a link or not, and however late the moves of that instant were known."""
    env, transfers, told = Environment(), Transfers([2.0, 2.0]), []
    transfers.start(env)
    env.at(2.0 + latency, MOVE).callbacks.append(lambda _: told.append("early"))
    for path, name in ((0, "sent"), (1, "other"))[: 2 - is_alone]:
        end = transfers.send_alike(((path,),), 4.0, latency)
        end.callbacks.append(lambda _, name=name: told.append(name))
    env.at(1.0).callbacks.append(
        lambda _: env.at(2.0 + latency, MOVE).callbacks.append(lambda _: told.append("late"))
    )
    env.run(until=env.at(10.0))
    assert told == ["sent", "early", "late"] if is_alone else ["sent", "other", "early", "late"]


def test_a_transfer_that_stays_alone_is_one_event():
    """Four flows of one rate; the second transfer begins when the first has left, not arrived."""
    env, transfers, told = Environment(), Transfers([2.0] * 4), []
    transfers.start(env)
    rails = ((0,), (1,), (2,), (3,))
    for start in (0.0, 3.0):
        env.run(until=env.at(start))
        end = transfers.send_alike(rails, 6.0, 0.5)
        end.callbacks.append(lambda _: told.append(env.now))
        assert not transfers._flows
    num_scheduled = len(env._queue)
    env.run(until=env.at(10.0))
    assert (told, num_scheduled) == ([3.5, 6.5], 2)


def test_who_comes_later_shares_with_who_was_alone():
    """Alone until 1 s, then half of the first link each: 4 bytes are left, 2 a second."""
    env, transfers, told = Environment(), Transfers([4.0, 4.0]), []
    transfers.start(env)
    for start, paths, num_bytes in [(0.0, ((0,), (1,)), 8.0), (1.0, ((0,),), 6.0)]:
        env.run(until=env.at(start))
        end = transfers.send_alike(paths, num_bytes, 0.0)
        end.callbacks.append(lambda _, start=start: told.append((start, env.now)))
    env.run(until=env.at(10.0))
    assert told == [(0.0, 3.0), (1.0, 3.5)]


def test_when_the_last_flow_has_ended_nothing_is_left_to_share():
    flows: Flows[str] = Flows([2.0, 3.0])
    flows.begin((0,), 2.0, "one")
    flows.begin((1,), 3.0, "other")
    assert flows.settle(0.0) == 1.0
    assert flows.ended(1.0) == ["one", "other"]
    assert flows.paths == []
    flows.begin((0,), 4.0, "next")
    assert flows.settle(5.0) == 7.0


def test_links_that_were_shared_like_this_before_are_not_filled_again(monkeypatch):
    filled = []

    def fill(capacities, counts):
        filled.append(counts)
        return fill_up(capacities, counts)

    monkeypatch.setattr("mist_sim.network.flows.fill_up", fill)
    sends = [(float(t), flow(1.0, (0,)) + flow(1.0, (0, 1))) for t in range(3)]
    assert arrivals([2.0, 2.0], sends) == [1.0, 2.0, 3.0]
    assert filled == [{(0,): 1, (0, 1): 1}]


def test_bytes_are_conserved_and_no_link_carries_more_than_it_can():
    """Rates over time add up to what was sent; every flow crosses a link that is full."""
    capacities = [3.0, 5.0, 2.0]
    starts = [
        (0.1 * k, [(0,), (0, 1), (1, 2), (2,), (0, 2)][k % 5], 1.0 + k % 3) for k in range(20)
    ]
    flows: Flows[int] = Flows(capacities)
    left = {k: num_bytes for k, (_, _, num_bytes) in enumerate(starts)}
    under_way: set[int] = set()
    now, end = 0.0, inf
    while starts or under_way:
        then = min(end, starts[0][0] if starts else inf)
        rates = flows.rates()
        for k in under_way:
            left[k] -= rates[PATHS[k]] * (then - now)
        now = then
        if now == end:
            for k in flows.ended(now):
                assert left[k] == pytest.approx(0.0, abs=1e-12)
                under_way.remove(k)
        while starts and starts[0][0] <= now:
            _, path, num_bytes = starts.pop(0)
            k = 20 - len(starts) - 1
            flows.begin(path, num_bytes, k)
            under_way.add(k)
        end = flows.settle(now)
        carried = [
            sum(flows.rates()[PATHS[k]] for k in under_way if link in PATHS[k]) for link in range(3)
        ]
        assert all(got <= most * (1 + 1e-12) for got, most in zip(carried, capacities, strict=True))
        for k in under_way:
            assert any(carried[link] >= capacities[link] * (1 - 1e-12) for link in PATHS[k])
    assert not len(flows)


PATHS = {k: [(0,), (0, 1), (1, 2), (2,), (0, 2)][k % 5] for k in range(20)}
