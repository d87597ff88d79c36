"""Cables fail under way: flows go round them or wait, every byte arrives, and none twice."""

from math import inf

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim.environment import CHANGE, Environment
from mist_sim.network.transfers import Flow, Transfers
from mist_sim.network.ways import Outages, Routes
from tests.effort import examples, features_seen, missing
from tests.property.test_transfers import graphs
from tests.reference.water_filling import Sent, ends_of

GRAPHS = graphs()
TIMES = st.sampled_from([0.0, 0.5, 1.0, 2.0]) | st.floats(0.0, 10.0)
BYTES = st.sampled_from([1.0, 4.0]) | st.floats(0.01, 40.0)
LENGTHS = st.sampled_from([0.5, 1.0]) | st.floats(0.01, 10.0)


@st.composite
def broken(draw, graphs=GRAPHS, time=TIMES, num_bytes=BYTES, length=LENGTHS):
    """A graph, flows between its places, and cables that are down for some time each."""
    graph = draw(graphs)
    routes = Routes(graph)
    place = st.sampled_from(sorted(graph.nodes))
    pairs = draw(st.lists(st.tuples(place, place), min_size=1, max_size=6))
    flow = st.builds(
        lambda start, pair, num_bytes: Sent(start, routes.between(*pair).path, num_bytes),
        time,
        st.sampled_from(pairs),
        num_bytes,
    )
    flows = draw(st.lists(flow, min_size=1, max_size=10))
    cable = st.sampled_from(sorted(graph.edges))
    outages = draw(st.lists(st.tuples(cable, time, length), min_size=1, max_size=4))
    return graph, [flow for flow in flows if flow.path], outages


def broken_on_time():
    """The same in halves of a second, with few places: bytes leave as cables fail."""
    return broken(
        graphs(st.sampled_from([1.0, 2.0, 4.0]), largest=4),
        st.integers(0, 8).map(lambda halves: halves / 2),
        st.sampled_from([1.0, 2.0, 4.0, 8.0]),
        st.sampled_from([0.5, 1.0, 2.0, 1000.0]),
    )


def ends(graph, flows, outages):
    """Return when the last byte of each flow has left, and how many had to wait."""
    env, routes, times = Environment(), Routes(graph), [inf] * len(flows)
    down = Outages(routes)
    transfers = Transfers(capacities(graph), down.way)
    transfers.start(env)
    num_waiting = 0

    def send(number, sent):
        if number % 2:
            end = transfers.send([Flow(sent.path, sent.num_bytes, 0.0)])
        else:
            end = transfers.send_alike((sent.path,), sent.num_bytes, 0.0)
        end.callbacks.append(lambda _: times.__setitem__(number, env.now))

    def change(what, cable):
        nonlocal num_waiting
        what(cable)
        transfers.change_ways()
        num_waiting = max(num_waiting, len(transfers._waiting))

    for cable, time, length in outages:
        for at, what in ((time, down.fail), (time + length, down.repair)):
            happens = env.at(at, CHANGE)
            happens.callbacks.append(lambda _, w=what, c=cable: change(w, c))
    for number, sent in enumerate(flows):
        env.at(sent.start).callbacks.append(lambda _, n=number, s=sent: send(n, s))
    env.run(until=env.at(1e9))
    return times, num_waiting


def capacities(graph):
    links = sorted(graph.edges.values(), key=lambda link: link["number"])
    return [link["bandwidth"] for link in links]


def plain_ends(graph, flows, outages):
    """Every flow takes, at each time, the shortest route of a graph that has lost its cables."""
    routes = Routes(graph)
    number_of = {link["number"]: pair for pair, link in graph.edges.items()}
    changes = [at for _, time, length in outages for at in (time, time + length)]

    def way(now, path):
        gone = [cable for cable, time, length in outages if time <= now < time + length]
        found = routes.without(gone).find(number_of[path[0]][0], number_of[path[-1]][1])
        return None if found is None else found.path

    return ends_of(capacities(graph), flows, changes, way)


@examples(300)
@given(broken() | broken_on_time())
def test_every_byte_arrives_as_plain_water_filling_through_outages_says(case):
    assert ends(*case)[0] == pytest.approx(plain_ends(*case), rel=1e-9)


@pytest.mark.exact
def test_byte_that_leaves_as_its_cable_fails_arrives():
    """After another outage, so that the flow is one of those that share links."""
    graph = nx.DiGraph(name="line")
    for number, pair in enumerate([("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")]):
        graph.add_edge(*pair, bandwidth=2.0, latency=0.0, number=number)
    outages = [(("b", "c"), 0.25, 1e6), (("a", "b"), 0.5, 1e6)]
    assert ends(graph, [Sent(0.0, (0,), 1.0)], outages)[0] == [0.5]


def features(case) -> set[str]:
    graph, flows, outages = case
    times, num_waiting = ends(graph, flows, outages)
    found = {"waits"} if num_waiting else set()
    fails = {(graph.edges[cable]["number"], time) for cable, time, _ in outages}
    crossed = {(link, time) for flow, time in zip(flows, times, strict=True) for link in flow.path}
    if fails & crossed and len(outages) > 1:
        found.add("ends as its cable fails")
    undisturbed = ends(graph, flows, [])[0]
    if any(time < inf and time != before for time, before in zip(times, undisturbed, strict=True)):
        found.add("is late")
        if not num_waiting:
            found.add("goes round")
    return found


def test_cases_wait_and_go_round():
    wanted = ("waits", "is late", "goes round", "ends as its cable fails")
    seen = features_seen(broken() | broken_on_time(), features, wanted)
    assert not missing(seen, wanted), seen
