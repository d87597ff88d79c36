"""Whole schedules of flows on random graphs end when plain water-filling says that they do."""

from itertools import product
from math import inf

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim.environment import Environment
from mist_sim.network.transfers import Flow, Transfers
from mist_sim.network.ways import Routes
from mist_sim.rng import Streams
from tests.effort import examples
from tests.reference.water_filling import Sent, ends_of


def ends(capacities, flows):
    return ends_of_sends(capacities, [(sent.start, one_flow(sent)) for sent in flows])


def one_flow(sent):
    return lambda transfers: transfers.send([Flow(sent.path, sent.num_bytes, 0.0)])


def ends_of_sends(capacities, sends):
    """Return when each of some transfers has arrived, which begin at (seconds, how)."""
    env, transfers, times = Environment(), Transfers(capacities), [inf] * len(sends)
    transfers.start(env)

    def send(number, begin):
        end = begin(transfers)
        end.callbacks.append(lambda _: times.__setitem__(number, env.now))

    for number, (start, begin) in enumerate(sends):
        env.at(start).callbacks.append(lambda _, n=number, b=begin: send(n, b))
    env.run(until=env.at(1e9))
    return times


BANDWIDTHS = st.sampled_from([1.0, 2.0, 8.0]) | st.floats(0.5, 50.0)


@st.composite
def graphs(draw, bandwidth=BANDWIDTHS, largest=10):
    """A connected graph of up to ten places, with links of few or of many bandwidths."""
    size = draw(st.integers(2, largest))
    graph = nx.DiGraph(name="random")
    parents = [(draw(st.integers(0, node - 1)), node) for node in range(1, size)]
    more = draw(st.lists(st.tuples(*[st.integers(0, size - 1)] * 2), max_size=8))
    for one, other in parents + [pair for pair in more if pair[0] != pair[1]]:
        for pair in ((one, other), (other, one)):
            if not graph.has_edge(*pair):
                number = graph.number_of_edges()
                graph.add_edge(*pair, bandwidth=draw(bandwidth), latency=0.0, number=number)
    return nx.relabel_nodes(graph, str)


@given(graph=graphs(), data=st.data())
def test_accelerators_that_surely_connect_have_routes(graph, data):
    """In graphs that have lost links in one direction, too."""
    graph.remove_edges_from(data.draw(st.sets(st.sampled_from(list(graph.edges)))))
    gpus = data.draw(st.sets(st.sampled_from(list(graph)), min_size=1))
    nx.set_node_attributes(graph, dict.fromkeys(gpus, "gpu"), "kind")
    routes = Routes(graph)
    if routes.surely_connect(gpus):
        assert all(routes.find(*pair) for pair in product(gpus, gpus))


@st.composite
def schedules(draw):
    """Flows between places of a graph, some at the same time, between the same places."""
    graph = draw(graphs())
    routes = Routes(graph)
    links = sorted(graph.edges.values(), key=lambda link: link["number"])
    place = st.sampled_from(sorted(graph.nodes))
    pairs = draw(st.lists(st.tuples(place, place), min_size=1, max_size=6))
    flow = st.builds(
        lambda start, pair, num_bytes: Sent(start, routes.between(*pair).path, num_bytes),
        st.sampled_from([0.0, 0.0, 1.0, 2.0]) | st.floats(0.0, 10.0),
        st.sampled_from(pairs),
        st.sampled_from([1.0, 4.0]) | st.floats(0.01, 40.0),
    )
    flows = draw(st.lists(flow, min_size=1, max_size=14))
    return [link["bandwidth"] for link in links], [flow for flow in flows if flow.path]


@examples(150)
@given(schedules())
def test_schedules_end_as_plain_water_filling_says(schedule):
    assert ends(*schedule) == pytest.approx(ends_of(*schedule), rel=1e-9)


@examples(50)
@given(schedules(), st.randoms(use_true_random=False))
def test_order_in_which_flows_are_told_is_irrelevant(schedule, random):
    capacities, flows = schedule
    order = list(range(len(flows)))
    random.shuffle(order)
    shuffled = ends(capacities, [flows[k] for k in order])
    assert shuffled == [ends(capacities, flows)[k] for k in order]


@st.composite
def crowds(draw):
    """More classes than are looked at one by one, which begin and end at few times."""
    num_links = draw(st.integers(3, 8))
    capacity = st.sampled_from([1.0, 2.0]) | st.floats(0.5, 50.0)
    capacities = draw(st.lists(capacity, min_size=num_links, max_size=num_links))
    path = st.lists(st.integers(0, num_links - 1), min_size=1, max_size=4, unique=True)
    paths = draw(st.lists(path.map(tuple), min_size=45, max_size=60, unique=True))
    rng = Streams(draw(st.integers(0, 100))).generator("crowd")
    starts = rng.integers(0, 3, len(paths)) * draw(st.sampled_from([0.0, 1.0, 20.0]))
    sizes = rng.uniform(0.5, 20.0, len(paths))
    return capacities, [
        Sent(float(start), path, float(num_bytes))
        for start, path, num_bytes in zip(starts, paths, sizes, strict=True)
    ]


@examples(15)
@given(crowds())
def test_crowds_end_as_plain_water_filling_says(crowd):
    assert ends(*crowd) == pytest.approx(ends_of(*crowd), rel=1e-9)


@examples(5)
@given(crowds(), st.randoms(use_true_random=False))
def test_order_in_which_crowds_are_told_is_irrelevant(crowd, random):
    capacities, flows = crowd
    order = list(range(len(flows)))
    random.shuffle(order)
    told = ends(capacities, flows)
    assert ends(capacities, [flows[k] for k in order]) == [told[k] for k in order]


@st.composite
def alike(draw):
    """Transfers on several ways each, mostly of the same width, some at once and most alone."""
    num_links = draw(st.integers(2, 8))
    capacity = st.sampled_from([2.0, 2.0, 2.0, 3.0]) | st.floats(0.5, 50.0)
    capacities = draw(st.lists(capacity, min_size=num_links, max_size=num_links))
    path = st.lists(st.integers(0, num_links - 1), min_size=1, max_size=3, unique=True).map(tuple)
    rails = st.integers(1, num_links).map(lambda size: tuple((link,) for link in range(size)))
    paths = rails | st.lists(path, min_size=1, max_size=4).map(tuple)
    start = st.sampled_from([0.0, 1.0, 20.0]) | st.floats(0.0, 100.0)
    num_bytes = st.sampled_from([0.0, 1.0, 4.0]) | st.floats(0.01, 40.0)
    latency = st.sampled_from([0.0, 0.5]) | st.floats(0.0, 2.0)
    sends = st.tuples(start, paths, num_bytes, latency)
    return capacities, draw(st.lists(sends, min_size=1, max_size=12))


@examples(150)
@given(alike())
def test_who_is_alone_ends_as_among_others_to_the_bit(case):
    """A transfer as one event until another begins, and as flows that share from its beginning."""
    capacities, sends = case
    at_once = [(start, lambda t, what=what: t.send_alike(*what)) for start, *what in sends]
    as_flows = [
        (start, lambda t, paths=paths, rest=rest: t.send([Flow(path, *rest) for path in paths]))
        for start, paths, *rest in sends
    ]
    assert ends_of_sends(capacities, at_once) == ends_of_sends(capacities, as_flows)
