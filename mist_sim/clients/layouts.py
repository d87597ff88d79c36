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

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

from mist_sim.clients.engine.lanes import QueueForm
from mist_sim.clients.engine.stepped import Contents, SteppedEngines, SteppedLane
from mist_sim.clients.kv_cache.lane_memory import LaneMemory
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.clients.traits import ClientTraits, EngineGroup
from mist_sim.core.views import RUNNING, WAITING
from mist_sim.errors import ScenarioError
from mist_sim.hardware.collectives import Spans
from mist_sim.hardware.gpu_group import LayoutPeriod
from mist_sim.hardware.machine import Machine
from mist_sim.hardware.predictors.ranks import PipelinePredictor

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
    for sequence, kv in lane.kept.items():
        num_tokens = contents.held[sequence]
        max(lanes, key=attrgetter("num_free")).carry_held(sequence, kv, num_tokens)
    lane.kept.clear()


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
