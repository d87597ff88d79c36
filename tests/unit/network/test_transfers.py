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


def test_a_transfer_ends_with_its_last_flow():
    """The second flow has left later, and the first one is there later."""
    both = [Flow((0,), 1.0, 9.0), Flow((1,), 4.0, 0.5)]
    assert arrivals([1.0, 1.0], [(0.0, both)]) == [10.0]


def test_no_bytes_take_the_latency_and_no_way_takes_no_time():
    sends = [(1.0, flow(0.0, latency=0.5)), (1.0, flow(5.0, ())), (1.0, [])]
    assert arrivals([1.0], sends) == [1.5, 1.0, 1.0]


def test_no_bytes_wait_for_nobody():
    assert arrivals([1.0], [(0.0, flow(100.0)), (1.0, flow(0.0, latency=0.5))]) == [100.0, 1.5]


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


PATHS = {k: [(0,), (0, 1), (1, 2), (2,), (0, 2)][k % 5] for k in range(20)}
