"""How a model lies on the GPUs of a client, and how a client goes from one layout to another.

A client whose engines may change their layout on its GPUs during a run.

Moves sequences and entries from the engines of one layout to those of the next.

The next engines are empty. First come the entries kept for other clients, and the sequences waiting
with entries on the host. Then come, in order of arrival at the client: running sequences, each to
the lane with the fewest of them that has a seat and room; and sequences whose entries came from
elsewhere and that wait to continue. Then the queue is formed: sequences that found no place, which
are computed again as after a preemption, and waiting ones, in order of arrival; each goes to the
lane that a new request would go to.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from operator import attrgetter
from typing import ClassVar, NamedTuple, Self

from simpy.events import Event

from mist_sim.clients.base import Client
from mist_sim.clients.engine.kv_state import EngineKvState
from mist_sim.clients.engine.prefill_estimate import PrefillEstimate
from mist_sim.clients.engine.queue_form import QueueForm
from mist_sim.clients.engine.stepped import Contents, SteppedEngines, SteppedLane
from mist_sim.clients.engine_config import EngineConfig
from mist_sim.clients.kv_cache.lane_memory import LaneMemory
from mist_sim.clients.overload import AdmissionControl
from mist_sim.clients.scheduling import Scheduler
from mist_sim.clients.scheduling.cadence import interval_of
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.clients.step_track import TokenCount
from mist_sim.clients.traits import ClientTraits, EngineGroup, TimesOrigin
from mist_sim.core.recorder import Recorder
from mist_sim.core.views import RUNNING, WAITING
from mist_sim.core.visit import Visit
from mist_sim.environment import CHANGE, Environment
from mist_sim.errors import ScenarioError
from mist_sim.hardware.collectives import ONE_NODE, Spans, told, told_of_trays
from mist_sim.hardware.gpu_group import LayoutPeriod
from mist_sim.hardware.machine import Machine
from mist_sim.hardware.predictors.ranks import PipelinePredictor
from mist_sim.network import Network

__all__ = ["EngineLayout"]


_TENSOR = "tensor_parallel_size"
_USUAL_DOMAIN = 8  # GPUs of a node, where the GPU's entry does not say how many its links join


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLayout:
    """The engines of a client for a run of steps (see `LlmClient.change_layout`).

    `LlmClient.layout` returns that of a client, so the layout of other options is that of a client
    which was made with them.

    predictor: times the steps; an engine has one lane per rank, or one lane if it has a form.
    memory: the KV cache of each lane.
    shares: sequences that each lane may run at once, engine by engine.
    data_parallel_size: number of engines. lockstep: whether all of them step together.
    async_scheduling: whether engines plan ahead; for pipelines the form decides.
    form: how pipelines queue batches; None: no batch queue.
    kv_block_bytes: size of a block over all GPUs of an engine; None: unknown.
    machine: the GPUs, and the division of the model among them; None: unknown.
    collectives: how its ranks sum over several nodes, as text; empty: one node.
    across: returns the same layout, timed by the nodes that its ranks lie on; None: it is the same
    for all nodes. Raises ScenarioError unless every lane has a share.
    """

    predictor: PipelinePredictor
    memory: LaneMemory
    shares: tuple[int, ...]
    data_parallel_size: int = 1
    lockstep: bool = False
    async_scheduling: bool = False
    form: QueueForm | None = None
    kv_block_bytes: float | None = None
    machine: Machine | None = None
    collectives: str = ""
    across: Callable[[Spans], EngineLayout] | None = None

    def __post_init__(self) -> None:
        if len(self.shares) != self.num_lanes:
            raise ScenarioError(
                f"shares must have one number for each of {self.num_lanes} lanes, "
                f"got {len(self.shares)}"
            )

    @property
    def num_ranks(self) -> int:
        """Ranks of each engine."""
        return len(self.predictor.ranks)

    @property
    def num_lanes(self) -> int:
        """Lanes of all engines."""
        return self.data_parallel_size * (1 if self.form else self.num_ranks)

    @property
    def num_tracks(self) -> int:
        """Tracks on which their steps are recorded."""
        return self.data_parallel_size * self.num_ranks

    @property
    def num_gpu_blocks(self) -> int:
        """KV blocks of all engines."""
        return self.memory.num_in_all * self.data_parallel_size

    @property
    def title(self) -> str:
        """A printable name: "TP 2 x PP 2"; without TP if the GPUs are unknown."""
        tensor = self.machine.cluster.tensor_parallel_size if self.machine else None
        sizes = {"TP": tensor, "PP": self.num_ranks, "DP": self.data_parallel_size}
        named = [f"{name} {size}" for name, size in sizes.items() if size and size > 1]
        return " x ".join(named) or "TP 1"

    def described(self, traits: ClientTraits) -> ClientTraits:
        """Return a client's traits in this layout. traits: its traits in some other layout."""
        (group, *_), machine = traits.engines, self.machine
        tensor = machine.cluster.gpus_a_stage if machine is not None else group.tensor
        form = traits.entries
        if form is not None and form.block_bytes != self.kv_block_bytes:
            form = replace(form, block_bytes=self.kv_block_bytes)
        engines = (EngineGroup(self.data_parallel_size, self.num_ranks, tensor),)
        if traits.engines == engines and traits.entries is form and traits.machine is machine:
            return traits  # many clients share them
        return replace(traits, engines=engines, entries=form, machine=machine)

    def period(self, start: float, ready: float) -> LayoutPeriod:
        """Return the record of the layout. start, ready: seconds."""
        return LayoutPeriod(
            start,
            ready,
            self.title,
            self.machine,
            self.num_tracks,
            self.num_gpu_blocks,
            self.collectives,
        )


def why_not(now: EngineLayout, later: EngineLayout, *, shares_swaps: bool = False) -> str | None:
    """Return why a client cannot change between two layouts during a run; None: it can.

    shares_swaps: whether both have the same swap space.

    The GPUs, the model and the content of a block stay the same. Blocks outside running sequences
    cannot move to another layout yet.
    """
    for what, here, there in (
        ("block_size", now.memory.block_size, later.memory.block_size),
        ("prefix caching", now.memory.caches_prefixes, later.memory.caches_prefixes),
        ("GPUs", *(_gpus(each.machine) for each in (now, later))),
        ("model", *(each.machine and each.machine.model for each in (now, later))),
        ("drafts", *(each.machine and each.machine.num_drafts for each in (now, later))),
        ("price", *(each.machine and each.machine.price for each in (now, later))),
    ):
        if here != there:
            return f"must have the same {what}, got {_text(here)} and then {_text(there)}"
    for name, having in (("a sliding window", "groups"), ("tiers", "tiers")):
        if getattr(now.memory, having) or getattr(later.memory, having):
            return f"must have no {name} in its KV cache; that combination is not simulated"
    if (now.memory.swap_space or later.memory.swap_space) and not shares_swaps:
        return "must have preemption: recompute; that combination is not simulated with swap"
    return None


def check_domain(name: str, machine: Machine | None, predictor: PipelinePredictor) -> None:
    """Raise ScenarioError for ranks that sum over more GPUs than a node's links join.

    name: of the client, which has no places in a topology.
    """
    if machine is None or not predictor.traits.sums_over_links:
        return
    cluster, link = machine.cluster, machine.cluster.gpu.interconnect
    sizes = {_TENSOR: cluster.tensor_parallel_size}
    if cluster.enable_expert_parallel:
        pieces = "prefill_context_parallel_size x " * (cluster.gpus_a_stage > sizes[_TENSOR])
        parallel = f"{_TENSOR} x {pieces}data_parallel_size with enable_expert_parallel"
        sizes[parallel] = cluster.expert_parallel_size
    for what, size in sizes.items():
        if link.domain is not None and size > link.domain:
            raise ScenarioError(
                f"{name}: {what} must be <= {link.domain}, the GPUs that {link.kind} "
                f"joins for {cluster.gpu.name}, got {size}; a network with a topology times "
                "ranks on several nodes, such as network: {topology: hgx-h100, nodes: 2, "
                "spans_nodes: true}, or pipeline_parallel_size puts layers on each"
            )


def in_one_node(machine: Machine | None, predictor: PipelinePredictor) -> tuple[str, ...]:
    """Return that more ranks send by a node's links than such nodes have GPUs, as assumed.

    Empty where they are not more, or where links do not count. For a client without places in a
    topology.
    """
    if machine is None:
        return ()
    cluster, link = machine.cluster, machine.cluster.gpu.interconnect
    size = max(cluster.expert_parallel_size, cluster.gpus_a_stage) * cluster.pipeline_parallel_size
    if not (predictor.traits.sums_over_links or cluster.pipeline_parallel_size > 1):
        return ()
    if size <= (link.domain or _USUAL_DOMAIN):
        return ()
    joined = f"joins {link.domain}" if link.domain else f"seldom joins more than {_USUAL_DOMAIN}"
    return (f"one node: {size} x {cluster.gpu.name} by {link.kind}, which {joined}",)


def _gpus(machine: Machine | None) -> tuple[object, ...] | None:
    if machine is None:
        return None
    gpu = machine.cluster.gpu
    return machine.cluster.num_gpus, gpu.name, gpu.power, gpu.draw


def _text(value: object) -> str:
    if isinstance(value, tuple):
        number, name, power, _ = value
        return f"{number} x {name} of {power:g} W"
    return str(getattr(value, "name", value))


def carry_over(
    sequences: Iterable[SequenceState],
    before: Sequence[SteppedLane],
    contents: Sequence[Contents],
    after: SteppedEngines,
) -> None:
    """Move everything in the lanes of a client to the lanes of new, empty engines.

    sequences: sequences of the client in order of arrival, including those in no lane yet.
    contents: of the lanes before.
    """
    pairs = list(zip(before, contents, strict=True))
    lane_of = {sequence: lane for lane, its in pairs for sequence in its.sequences}
    inside = [sequence for sequence in sequences if sequence in lane_of]
    for number, sequence in enumerate(inside):
        sequence.arrival = number
    swapped = {each for its in contents for each in its.swapped}
    brought = {each for its in contents for each in its.brought}
    decodes = {each: goes_on for its in contents for each, goes_on in its.running.items()}
    running = {
        sequence: _take_off(lane_of[sequence], sequence, decodes=decodes[sequence])
        for sequence in inside
        if sequence in decodes
    }
    for lane, its in pairs:
        _carry_held(lane, its, after.lanes)
    again, waiting = [], []
    for sequence in inside:
        if sequence in running:
            has_place = _carry_running(
                sequence, running[sequence], after.lanes, decodes=decodes[sequence]
            )
        elif sequence in swapped:
            min(after.lanes, key=attrgetter("num_swapped")).carry_swapped(sequence)
            continue
        elif sequence in brought:
            has_place = _carry_brought(sequence, after.lanes)
        else:
            waiting.append(sequence)
            continue
        if not has_place:
            again.append(sequence)
    for sequence in again:
        _begin_again(sequence)
    for sequence in [*again, *waiting]:
        lane = after.next_lane()
        if (reason := lane.needs.outgrown(sequence)) is not None:
            sequence.visit.num_output_tokens = sequence.num_new_tokens
            lane.leave(sequence.visit, reason)
        else:
            lane.carry_waiting(sequence)


def fits_held(contents: Iterable[Contents], layout: EngineLayout) -> bool:
    """Tell whether the entries that lanes keep for other clients have room in those of a layout."""
    free = [layout.memory.num_blocks] * layout.num_lanes
    for its in contents:
        for num_tokens in its.held.values():
            place = free.index(max(free))
            free[place] -= -(num_tokens // -layout.memory.block_size)
    return min(free) >= 0


def _carry_held(lane: SteppedLane, contents: Contents, lanes: Sequence[SteppedLane]) -> None:
    """Let entries that are kept for another client go to the lane with the most free blocks."""
    for sequence, kv in lane.held.kept.items():
        num_tokens = contents.held[sequence]
        max(lanes, key=attrgetter("num_free")).carry_held(sequence, kv, num_tokens)
    lane.held.kept.clear()


def _take_off(lane: SteppedLane, sequence: SequenceState, *, decodes: bool) -> int | None:
    """Take a running sequence out; return its tokens with entries.

    None for a prompt whose memory was reserved at once: it has to be looked up anew.
    """
    num_tokens = lane.take_off(sequence)
    return num_tokens if decodes or lane.scheduler.by_piece else None


def _carry_running(
    sequence: SequenceState, num_tokens: int | None, lanes: Sequence[SteppedLane], *, decodes: bool
) -> bool:
    if num_tokens is None:
        return False
    fewest_first = sorted(lanes, key=attrgetter("num_inside"))
    return any(lane.carry_running(sequence, num_tokens, decodes=decodes) for lane in fewest_first)


def _carry_brought(sequence: SequenceState, lanes: Sequence[SteppedLane]) -> bool:
    fewest_first = sorted(lanes, key=attrgetter("num_inside"))
    return any(lane.carry_brought(sequence) for lane in fewest_first)


def _begin_again(sequence: SequenceState) -> None:
    """Let a sequence whose entries are lost wait, as after a preemption.

    A prompt that has not begun loses only the entries brought for it.
    """
    if sequence.has_rest:
        sequence.visit.num_fetched_tokens = 0
        sequence.forget_brought()
        return
    sequence.have_brought()
    sequence.become(RUNNING)
    sequence.num_queued_tokens = sequence.num_tokens
    sequence.become(WAITING)
    sequence.visit.num_preemptions += 1


class Transition(NamedTuple):
    """A layout that was asked for, the seconds of the transition, and where its engines are.

    first_engine: number of the first of them in the network.
    """

    layout: EngineLayout
    seconds: float
    first_engine: int


class LaidOutClient(Client):
    """The layouts of an `LlmClient`: its present one, its earlier ones, and the way to the next.

    Attributes that depend on the layout are those of the present one.
    """

    config: EngineConfig
    predictor: PipelinePredictor
    timed_across: Callable[[Spans], PipelinePredictor] | None = None
    what_fits: Callable[[int], str] | None = None  # what would hold a request of so many tokens
    memory: LaneMemory
    data_parallel_size: int
    lockstep: bool
    async_scheduling: bool
    form: QueueForm | None
    kv_block_bytes: float | None
    scheduler: Scheduler
    admission: AdmissionControl
    stays: dict[Visit, SequenceState]  # type: ignore[assignment]
    _shares: Sequence[int]
    _predictor_inside: PipelinePredictor  # for ranks on one node
    _times: TimesOrigin  # of these
    _engines: SteppedEngines
    _kv_state: EngineKvState

    shares_swaps: ClassVar[bool] = False  # whether all layouts have the same swap space
    _first_layout: EngineLayout | None = None  # once it has had another
    _asked: Transition | None = None
    _across: Callable[[Spans], EngineLayout] | None = None  # of the present layout; None: its own

    @property
    def lanes(self) -> list[SteppedLane]:
        """Its present lanes, engine by engine."""
        return self._engines.lanes

    @abstractmethod
    def _make_engines(self) -> SteppedEngines:
        """Return new, empty engines of the present layout."""

    @abstractmethod
    def _adopt(self, layout: EngineLayout) -> None:
        """Let all that is asked of the client be as a layout says."""

    def start(self, env: Environment, client_id: int, recorder: Recorder) -> None:
        """Join a simulation, in the layout that it was made with; coming back, in the latest."""
        if getattr(self, "env", None) is not env:
            if self._first_layout is not None:
                self._lie(self._first_layout, 0)
            self.layouts = ()
        self._asked = None
        super().start(env, client_id, recorder)

    def named(self, name: str) -> Self:
        """Return a client like this one, which has joined no run, with another name."""
        other = copy(self)
        other.name = name
        other.streamed = TokenCount()
        return other

    def fail(self, reason: str) -> None:
        """Lose everything inside; the client comes back in the layout requested last."""
        super().fail(reason)
        if self._asked is not None:
            self._enter(self._asked, self.env.now)

    @property
    def _machine(self) -> Machine | None:
        """The GPUs of its engines, as in its traits; None: unknown."""
        machine = self.traits.machine
        return machine if isinstance(machine, Machine) else None

    @property
    def layout(self) -> EngineLayout:
        """The present layout of its engines: times, memory, lanes and GPUs."""
        return EngineLayout(
            predictor=self.predictor,
            memory=self.memory,
            shares=tuple(self._shares),
            data_parallel_size=self.data_parallel_size,
            lockstep=self.lockstep,
            async_scheduling=self.async_scheduling,
            form=self.form,
            kv_block_bytes=self.kv_block_bytes,
            machine=self._machine,
            collectives=self.collectives or self._over_trays,
            across=self._across or partial(_across, copy(self)),
        )

    def join_network(self, network: Network | None) -> None:
        """Time steps by the nodes that the ranks lie on."""
        ways = network.ways if network is not None else None
        if ways is None:
            check_domain(self.name, self._machine, self.predictor)
        self.lie_on(ways.spans(self.name) if ways is not None else ONE_NODE)
        times = self.traits.times
        more = in_one_node(self._machine, self.predictor) if ways is None else ()
        if times is not None and more:
            times = replace(times, assumed=times.assumed + more)
            self.traits = replace(self.traits, times=times)

    def lie_on(self, spans: Spans) -> None:
        """Adapt step times to the nodes of the ranks. spans: groups of ranks over several nodes.

        A predictor passed as an object, or with collectives in its times, stays unchanged;
        `collectives` describes the choice. Raises ScenarioError for a hierarchical all-reduce of
        ranks on one node.
        """
        if self.traits.times is not self._times:
            self.traits = replace(self.traits, times=self._times)
        self.predictor, self.collectives = self._predictor_inside, self._over_trays
        if self.config.all_reduce == "hierarchical" and not spans.tensor:
            raise ScenarioError(
                f"{self.name}: all_reduce must not be hierarchical where the ranks that sum are on "
                "one node; network.topology with spans_nodes puts them on several"
            )
        if not self.config.enable_expert_parallel:
            spans = replace(spans, replicas=None)  # replicas exchange nothing
        if not spans and not self.collectives:
            return
        self.traits = replace(self.traits, times=self._times.across(nodes=bool(spans)))
        if not spans:
            return
        link = None
        machine = self._machine
        if self.timed_across is not None and machine is not None:
            self.predictor = self.timed_across(spans)
            link = machine.cluster.gpu.interconnect
        self.collectives = told(spans, link, sums=self.predictor.traits.sums_over_links)

    @property
    def _over_trays(self) -> str:
        """How its ranks sum where links join hosts, as text; empty: on one, or not by links."""
        machine = self._machine
        if machine is None or not self._predictor_inside.traits.sums_over_links:
            return ""
        cluster = machine.cluster
        return told_of_trays(cluster.gpu.interconnect, cluster.tensor_parallel_size)

    @property
    def _layout_number(self) -> int:
        return max(len(self.layouts) - 1, 0)

    @property
    def is_changing(self) -> bool:
        """Whether another layout was asked for, and the transition has not begun."""
        return self._asked is not None

    def change_layout(self, layout: EngineLayout, seconds: float) -> None:
        """Change to another layout, with a transition of `seconds`.

        Each engine stops after the step in flight; a step planned ahead is not computed. When all
        have stopped, and entries under way to this client have come, the transition begins:
        sequences move to the engines of the new layout, in the order of `carry_over`, and keep
        their computed tokens as far as there is room. Blocks that only the prefix cache keeps are
        lost. Entries kept for other clients move too, and the transition waits until they have
        room. Steps begin when it is over. A client that fails before the transition begins comes
        back in the new layout.

        layout: a layout on the same GPUs, usually taken from another client that was made with
            other options and takes no part in the run. seconds: time for weights and KV entries
            together.
        Raises ScenarioError for a client that is in no run or already about to change, for seconds
        that are not finite and >= 0, and for changes that are not supported: other GPUs, another
        model or block size, sliding windows, tiers, swap space, early rejection, flowing answers.
        """
        if problem := self._why_not(layout, seconds):
            raise ScenarioError(f"{self.name}: {problem}")
        first_engine, ways = 0, self.network.ways if self.network is not None else None
        if ways is None:
            check_domain(self.name, layout.machine, layout.predictor)
        else:
            dp, ranks = layout.data_parallel_size, layout.num_ranks
            first_engine, spans = ways.lay_out(self.name, dp, ranks)
            layout = layout if layout.across is None else layout.across(spans)
        self._asked = asked = Transition(layout, seconds, first_engine)
        self.env.at(self.env.now, CHANGE).callbacks.append(partial(self._stop_for, asked))

    def _why_not(self, layout: EngineLayout, seconds: float) -> str | None:
        """Return why the layout cannot become another one now; None: it can."""
        most = self.scheduler.max_num_seqs
        if not hasattr(self, "env"):
            return "layout must not change before the run has begun"
        if self._asked is not None:
            return "layout must not change while the client is about to change it"
        if not 0 <= seconds < inf:
            return f"seconds must be finite and >= 0, got {seconds}"
        if self.flow is not None:
            return "layout must not change where answers flow; that combination is not simulated"
        if self.admission.early_rejection:
            return "layout must not change with early_rejection; that combination is not simulated"
        if layout.num_ranks > 1 and interval_of(self.scheduler) > 1:
            return "layout must have no pipeline with a prefill_schedule_interval above 1"
        if max(layout.shares) > most:
            shares = max(layout.shares)
            return f"layout must have shares of at most max_num_seqs ({most}), got {shares}"
        problem = why_not(self.layout, layout, shares_swaps=self.shares_swaps)
        return None if problem is None else f"layout {problem}"

    def _stop_for(self, asked: Transition, _: Event) -> None:
        """Let the engines stop, unless the client has failed and come back meanwhile."""
        if self._asked is asked:
            self._engines.stop(self._change_when_still)

    def _change_when_still(self) -> None:
        """Begin the transition if no step is in flight and no entries are on their way."""
        if self._asked is None or not self._engines.are_still:
            return
        before, asked, layout = self._engines, self._asked, self._asked.layout
        if any(lane.has_moves for lane in before.lanes):
            return
        contents = [lane.put_down() for lane in before.lanes]
        if not fits_held(contents, layout):
            return
        ready = self.env.now + self._transition_time(asked)
        self._enter(asked, ready)
        self._engines = after = self._make_engines()
        self._kv_state = self.view.kv = self._kv_state.follow(after)
        self._show_layout()
        carry_over(self.stays.values(), before.lanes, contents, after)
        after.sleep_until(ready)

    def _transition_time(self, asked: Transition) -> float:
        """Return the seconds that a transition takes which begins now."""
        return asked.seconds

    def _enter(self, asked: Transition, ready: float) -> None:
        """Take another layout from now on; its steps begin when it is ready."""
        self._asked, layout = None, asked.layout
        self._first_layout = self._first_layout or self.layout
        known = self.layouts or (self.layout.period(0.0, 0.0),)
        self._lie(layout, asked.first_engine)
        self.layouts = (*known, layout.period(self.env.now, ready))
        self.recorder.record_layout(self.client_id, self.env.now, layout.num_tracks)

    def _lie(self, layout: EngineLayout, first_engine: int) -> None:
        self._adopt(layout)
        self._across = layout.across
        self._first_engine = first_engine
        self._reaches = {}  # other engines may be as near or far

    def _show_layout(self) -> None:
        """Show the present layout's memory to routers."""
        self.view.take_memory(self.num_gpu_blocks)
        self.view.prefill = PrefillEstimate(self._engines, self.predictor)
        self.view.token_bytes = (self.kv_block_bytes or 0.0) / self.memory.block_size


def _across(client: LaidOutClient, spans: Spans) -> EngineLayout:
    """Return the layout of a client that is in no run, its ranks lying on nodes in that way."""
    client.lie_on(spans)
    return client.layout
