"""Attention-FFN disaggregation (AFD): bundles of attention and FFN workers that decode.

Placement of requests on attention workers with free slots.

All workers wait for the slowest, so tokens should be spread evenly. A request stays where it is
placed: its KV entries are there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from heapq import heappop, heappush
from itertools import chain
from math import ceil, inf, nan
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from simpy.events import Event

from mist_sim.bounds import BUNDLE, COPIES, LAYERS
from mist_sim.checks import NotNegative, Positive, Range, check_fields
from mist_sim.clients.base import Client
from mist_sim.clients.kv_cache.moves import GPU, KvMove
from mist_sim.clients.registry import CLIENTS
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.clients.stay import Stay
from mist_sim.clients.step_track import write_move
from mist_sim.clients.stores import Mover, OtherClients, Stores
from mist_sim.clients.traits import ClientTraits, EngineGroup, KvForm, TimesOrigin
from mist_sim.core.batch import StepBatch
from mist_sim.core.recorder import Recorder
from mist_sim.core.visit import Visit
from mist_sim.environment import Environment, engine_phases
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, GpuSpec, load_gpu
from mist_sim.hardware.afd import (
    AfdCoefficients,
    AttentionGpus,
    BundleMachine,
    BundleShape,
    FfnGpus,
    activation_bytes,
    chosen_coefficients,
    named_coefficients,
)
from mist_sim.models import ModelSpec, load_generating
from mist_sim.network import Network, Seat, Tenant, Ways
from mist_sim.stages import Decode
from mist_sim.units import Bytes, DollarsPerHour, Seconds

__all__ = [
    "PLACEMENTS",
    "AfdClient",
    "Bundle",
    "BundleConfig",
    "LeastLoad",
    "Pass",
    "Placement",
    "RandomPlacement",
    "Resident",
]


class Phases(NamedTuple):
    """How long the phases of one pass take: attention, one transfer of two, FFN."""

    attention: float
    transfer: float
    ffn: float


class Pass(NamedTuple):
    """One way of a batch from attention to the FFN and back: a layer of a step, or all of them.

    ready: when it had returned from the pass before. start, attention_end, ffn_start, ffn_end: of
    its phases. end: when it is back; after the last layer, its tokens are there.
    """

    batch: int
    ready: float
    start: float
    attention_end: float
    ffn_start: float
    ffn_end: float
    end: float


class BundleClock:
    """When the workers are free, and when each batch returns from its last pass.

    Attention workers take one batch after the other, in the order in which these are ready; so do
    the FFN workers, which share a batch evenly. Batches do not overtake one another. So the end of
    a pass is known as soon as its attention begins. A step consists of one pass per layer, and its
    end is known when the last of them begins.

    layers: passes per step (>= 1). layer: next layer of each batch's step under way.
    """

    def __init__(self, num_batches: int, layers: int = 1) -> None:
        self.layers = layers
        self.attention_free = self.ffn_free = 0.0
        self.ready = [0.0] * num_batches
        self.layer = [0] * num_batches

    def start(self, batch: int, now: float) -> float:
        """Return when the attention of a batch can begin, now or later."""
        return max(self.ready[batch], self.attention_free, now)

    def next_pass(self, batch: int, phases: Phases, now: float) -> Pass:
        """Return the next pass of a batch, whose attention begins now or later."""
        start = self.start(batch, now)
        attention_end = start + phases.attention
        ffn_start = max(attention_end + phases.transfer, self.ffn_free)
        ffn_end = ffn_start + phases.ffn
        end = ffn_end + phases.transfer
        return Pass(batch, self.ready[batch], start, attention_end, ffn_start, ffn_end, end)

    def begin(self, step: Pass, batches: Collection[int]) -> Collection[int]:
        """Record the beginning of a pass; return the batches whose step's end, `ready`, is known.

        batches: batches with members.
        """
        self.attention_free, self.ffn_free = step.attention_end, step.ffn_end
        self.ready[step.batch] = step.end
        layer = self.layer[step.batch] = (self.layer[step.batch] + 1) % self.layers
        return () if layer else (step.batch,)

    def is_first(self, batch: int) -> bool:
        """Tell whether the next pass of a batch is the first of its step."""
        return not self.layer[batch]

    def is_under_way(self, batch: int) -> bool:
        """Tell whether a step is under way whose end is unknown, so that no request may join."""
        return self.layer[batch] > 0


class JointClock(BundleClock):
    """A clock of batches that begin every step together, as parts of one engine batch.

    All tokens are emitted when the last batch returns from its last layer.

    under_way: batches whose last layer of the step has not begun. last: when the other batches
        return.
    """

    def __init__(self, num_batches: int, layers: int = 1) -> None:
        super().__init__(num_batches, layers)
        self.under_way: set[int] = set()
        self.last: dict[int, float] = {}

    def begin(self, step: Pass, batches: Collection[int]) -> Collection[int]:
        """Note that a pass begins; return all batches of the step when its end is known."""
        if not self.under_way:
            self.under_way.update(batches)
            self.ready = [
                ready if k in self.under_way else inf for k, ready in enumerate(self.ready)
            ]
        if not super().begin(step, batches):
            return ()
        self.under_way.remove(step.batch)
        self.last[step.batch] = step.end
        self.ready[step.batch] = inf
        if self.under_way:
            return ()
        self.ready = [max(self.last.values())] * len(self.ready)
        done = tuple(self.last)
        self.last.clear()
        return done

    def is_first(self, batch: int) -> bool:
        """Tell whether the next pass of a batch is the first of its step."""
        return super().is_first(batch) and batch not in self.last

    def is_under_way(self, batch: int) -> bool:
        """Tell whether a step is under way whose end is unknown, so that no request may join."""
        return bool(self.under_way)


Tokens = NDArray[np.int64]


class Resident:
    """A request in a slot.

    worker: the attention worker that holds its KV entries. num_tokens: entries when it came.
    num_steps: steps that it stays for (>= 1). guest: any object by which its client identifies it.
    first_step: steps that its batch had made when it came.
    """

    __slots__ = ("first_step", "guest", "num_steps", "num_tokens", "worker")

    def __init__(self, worker: int, num_tokens: int, num_steps: int, guest: Any = None) -> None:
        self.worker = worker
        self.num_tokens = num_tokens
        self.num_steps = num_steps
        self.guest = guest
        self.first_step = 0


class BatchSlots:
    """The slots of one batch, on all attention workers.

    held: tokens in the KV cache of each worker. filled: requests on each. num_steps: steps made.
    A step adds a token to each request, so all of this is arithmetic between two changes.
    """

    def __init__(self, num_workers: int, slots: int) -> None:
        self.held: Tokens = np.zeros(num_workers, dtype=np.int64)
        self.filled: Tokens = np.zeros(num_workers, dtype=np.int64)
        self.num_filled = 0
        self.num_steps = 0
        self.slots = slots
        self._due: dict[int, list[Resident]] = {}  # requests that leave, by their last step

    def join(self, resident: Resident) -> None:
        """Let a request take a free slot of its worker."""
        resident.first_step = self.num_steps
        self._due.setdefault(self.num_steps + resident.num_steps, []).append(resident)
        self.held[resident.worker] += resident.num_tokens
        self.filled[resident.worker] += 1
        self.num_filled += 1

    def leave(self, resident: Resident) -> None:
        """Free the slot of a request that has not come to its end."""
        self._due[resident.first_step + resident.num_steps].remove(resident)
        self._free(resident)

    def advance(self) -> list[Resident]:
        """Make a step; return the requests that leave, slots freed."""
        self.held += self.filled
        self.num_steps += 1
        leaving = self._due.pop(self.num_steps, [])
        for resident in leaving:
            self._free(resident)
        return leaving

    def _free(self, resident: Resident) -> None:
        tokens = resident.num_tokens + self.num_steps - resident.first_step
        self.held[resident.worker] -= tokens
        self.filled[resident.worker] -= 1
        self.num_filled -= 1


def _of_bundle(name: str) -> Range:
    """Return the range of a size of a bundle."""
    return Range(f"[1, {BUNDLE[name]}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleConfig:
    """A bundle of attention and FFN workers.

    coefficients: of its phases; times have their unit.
    attention_workers, ffn_workers: x and y of xA-yF.
    slots: requests of an attention worker in one batch (B).
    batches: in flight (m), each with slots of its own.
    static_graph: whether an empty slot costs FFN and communication as much as a full one, as it
        does where CUDA graphs of one size are replayed.
    layers: a step is divided into them evenly, and each goes to the FFN and back; None: a step goes
        there and back once.
    joint_steps: whether all batches begin each of their steps together, as parts of one batch of an
        engine do; else each begins its next step when it is back from the last.
    Raises ValueError for numbers below 1 and beyond the bounds (`mist_sim.bounds.BUNDLE`), and for
    joint steps without layers.
    """

    coefficients: AfdCoefficients
    attention_workers: Annotated[int, _of_bundle("attention_workers")]
    ffn_workers: Annotated[int, _of_bundle("ffn_workers")] = 1
    slots: Annotated[int, _of_bundle("slots")]
    batches: Annotated[int, _of_bundle("batches")] = 2
    static_graph: bool = True
    layers: Annotated[int, Range(f"[1, {LAYERS}]")] | None = None
    joint_steps: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.joint_steps and self.layers is None:
            raise ValueError(
                "layers are required with joint_steps: without them no batch would be in attention "
                "while another one is in the FFN of the layer before; set layers, such as 61"
            )

    @property
    def slots_per_batch(self) -> int:
        """Slots of all attention workers in one batch."""
        return self.slots * self.attention_workers

    @property
    def num_workers(self) -> int:
        """Workers of both kinds."""
        return self.attention_workers + self.ffn_workers

    @property
    def num_slots(self) -> int:
        """Slots of all batches."""
        return self.slots_per_batch * self.batches


class StepEnd(NamedTuple):
    """A step with a known end: its batch, the time, and the requests that leave."""

    batch: int
    time: float
    leaving: list[Resident]


class Bundle:
    """The batches of a bundle, and the times of their phases.

    config: the bundle's sizes and times. batches: their slots. clock: progress of each batch.
    num_steps: that have begun. attention_work, ffn_work: time that workers have spent on them,
        added up over all of a kind. last_end: of the passes that have begun, the latest.
    """

    def __init__(self, config: BundleConfig) -> None:
        self.config = config
        self.batches = [
            BatchSlots(config.attention_workers, config.slots) for _ in range(config.batches)
        ]
        kind = JointClock if config.joint_steps else BundleClock
        self.clock = kind(config.batches, config.layers or 1)
        self.attention_work = self.ffn_work = self.last_end = 0.0
        self.num_steps = 0
        self._phases = [Phases(0.0, 0.0, 0.0)] * config.batches  # of the steps under way
        self._works = [(0.0, 0.0)] * config.batches  # of attention and FFN in the latest steps

    @property
    def filled(self) -> list[int]:
        """The batches that have members."""
        return [k for k, slots in enumerate(self.batches) if slots.num_filled]

    def next_batch(self) -> int | None:
        """Return which batch is in attention next: the first to be ready; None: all are empty."""
        busy = self.filled
        return min(busy, key=self.clock.ready.__getitem__) if busy else None

    def phases(self, batch: int) -> Phases:
        """Return how long the phases of a layer take in the next step of a batch.

        Attention ends with the worker that holds the most tokens.
        """
        config, slots, layers = self.config, self.batches[batch], self.clock.layers
        c = config.coefficients
        requests = config.slots_per_batch if config.static_graph else slots.num_filled
        transfer = c.communication_time(requests / config.ffn_workers) / 2 / layers
        ffn = c.ffn_time(requests / config.ffn_workers) / layers
        return Phases(c.attention_time(slots.held.max().item()) / layers, transfer, ffn)

    def begin(self, step: Pass) -> list[StepEnd]:
        """Begin the next pass of a batch; return the steps whose end is known now."""
        if self.clock.is_first(step.batch):
            self._work(step)
        self.last_end = max(self.last_end, step.end)
        return [
            StepEnd(batch, self.clock.ready[batch], self.batches[batch].advance())
            for batch in self.clock.begin(step, self.filled)
        ]

    def _work(self, step: Pass) -> None:
        """Add the workers' time for a step that begins, in all layers."""
        config, slots = self.config, self.batches[step.batch]
        c = config.coefficients
        num_working = config.attention_workers
        if not config.static_graph:
            num_working = int(np.count_nonzero(slots.filled))
        self.num_steps += 1
        attention = c.alpha_a * slots.held.sum().item() + num_working * c.beta_a
        self.attention_work += attention
        ffn = (step.ffn_end - step.ffn_start) * self.clock.layers
        self.ffn_work += ffn * config.ffn_workers
        self._works[step.batch] = attention, ffn * config.ffn_workers

    def lose_step(self, batch: int, now: float, *, is_counted: bool) -> None:
        """Take back the step of a batch that is under way, since the workers stop now.

        is_counted: whether its end was known, so that its members have it behind them already.
        """
        attention, ffn = self._works[batch]
        self.attention_work -= attention
        self.ffn_work -= ffn
        self.num_steps -= 1
        self.last_end = min(self.last_end, now)
        if is_counted:
            self.batches[batch].num_steps -= 1

    def next_pass(self, batch: int, now: float = 0.0) -> Pass:
        """Return the next pass of a batch that is not empty. now: it begins no earlier."""
        if self.clock.is_first(batch):
            self._phases[batch] = self.phases(batch)
        return self.clock.next_pass(batch, self._phases[batch], now)

    def run_pass(self, batch: int, now: float = 0.0) -> tuple[Pass, list[StepEnd]]:
        """Make that pass; return it, and the steps that it ends."""
        step = self.next_pass(batch, now)
        return step, self.begin(step)


class Placement(Protocol):
    """Chooses attention workers for the requests that come to a batch at one time."""

    def place(self, coming: Sequence[int], held: Tokens, free: Tokens) -> list[int]:
        """Return a worker for each request, none beyond its free slots.

        coming: tokens of each request, no more of them than there are free slots. held: tokens on
        each worker. free: free slots of each.
        """


class RandomPlacement:
    """Takes free slots at random with equal probability, as in the paper's theory."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def place(self, coming: Sequence[int], held: Tokens, free: Tokens) -> list[int]:
        """Return the workers of as many free slots, drawn without putting back."""
        numbers = self._rng.multivariate_hypergeometric(free, len(coming))
        workers: list[int] = self._rng.permutation(
            np.repeat(np.arange(len(free)), numbers)
        ).tolist()
        return workers


class LeastLoad:
    """Gives the longest prompt to the worker that holds the fewest tokens, and so on downwards.

    If the slots are full, a request takes the slot of one that left, so a policy can only choose
    among requests that arrive together.
    Source: longest processing time first (Graham, SIAM J. Appl. Math. 17, 1969).
    """

    def __init__(self, rng: np.random.Generator) -> None:
        del rng  # no random draws

    def place(self, coming: Sequence[int], held: Tokens, free: Tokens) -> list[int]:
        """Return the workers; of workers with equal loads the first, of equal requests too."""
        held, free, workers = held.copy(), free.copy(), [0] * len(coming)
        for request in sorted(range(len(coming)), key=lambda k: -coming[k]):
            worker = int(np.where(free > 0, held, _FULL).argmin())
            workers[request] = worker
            held[worker] += coming[request]
            free[worker] -= 1
        return workers


_FULL = np.iinfo(np.int64).max

PLACEMENTS: Mapping[str, type[RandomPlacement | LeastLoad]] = {
    "random": RandomPlacement,
    "least_load": LeastLoad,
}
"""Placements by name."""


class BundleSeat(NamedTuple):
    """A slot: its batch, and the attention worker that holds the KV entries."""

    batch: int
    worker: int


class Seats:
    """Slots reserved before their requests are seated.

    bundle: the seated requests. placement: chooses the worker.
    """

    def __init__(self, bundle: Bundle, placement: Placement) -> None:
        config = bundle.config
        shape = (config.batches, config.attention_workers)
        self._bundle = bundle
        self._placement = placement
        self._taken = np.zeros(shape, dtype=np.int64)
        self._beside = np.zeros(shape, dtype=np.int64)  # tokens that come, or leave with a step
        self._num_taken = [0] * config.batches

    @property
    def num_free(self) -> int:
        """Slots neither taken nor reserved."""
        return self._bundle.config.num_slots - sum(self._num_taken)

    def take(self, coming: Sequence[int]) -> list[BundleSeat]:
        """Give away slots to requests with so many tokens each, no more than are free.

        Each goes to the batch with the fewest requests, so that batches take equally long.
        """
        by_batch: dict[int, list[int]] = {}
        for request in range(len(coming)):
            batch = min(range(len(self._num_taken)), key=self._num_taken.__getitem__)
            self._num_taken[batch] += 1
            by_batch.setdefault(batch, []).append(request)
        seats: dict[int, BundleSeat] = {}
        for batch, requests in by_batch.items():
            held = self._bundle.batches[batch].held + self._beside[batch]
            free = self._bundle.config.slots - self._taken[batch]
            workers = self._placement.place([coming[k] for k in requests], held, free)
            for request, worker in zip(requests, workers, strict=True):
                self._taken[batch, worker] += 1
                self._beside[batch, worker] += coming[request]
                seats[request] = BundleSeat(batch, worker)
        return [seats[request] for request in range(len(coming))]

    def arrive(self, seat: BundleSeat, num_tokens: int) -> None:
        """Note that a request sits down, or does not come any more."""
        self._beside[seat] -= num_tokens

    def leave(self, seat: BundleSeat, num_tokens: int) -> None:
        """Note that a request leaves with the step under way; it keeps its slot until then."""
        self._beside[seat] += num_tokens

    def left(self, seat: BundleSeat, num_tokens: int) -> None:
        """Note that the step has ended."""
        self._beside[seat] -= num_tokens

    def free(self, seat: BundleSeat) -> None:
        """Take a slot back."""
        self._taken[seat] -= 1
        self._num_taken[seat.batch] -= 1


class BatchTrack:
    """The steps of one batch: each lasts from when the batch is ready until its last pass ends.

    Steps with the same members are one row. They are written before members change. A token's time
    is the end of a step, so a request's tokens are recorded as the range of its steps; where a
    decode waited between two steps, the gap is recorded separately.
    """

    def __init__(self, recorder: Recorder, client_id: int) -> None:
        self._recorder = recorder
        self._track = recorder.add_track(client_id)
        self._num_steps = 0  # that are written
        self._last_end = 0.0
        self._joined: list[SequenceState] = []  # since the last step that is written
        self.move = partial(write_move, recorder, self._track)
        """Writes which tokens' entries were moved for a sequence, and when."""
        self._ends: list[float] = []  # of steps that are not written
        self._start = 0.0
        self._batch = StepBatch()
        self._busy = 0.0  # in these steps
        self._busy_last = 0.0  # in the latest that has begun
        self._is_open = False  # whether a step with unknown end has begun

    def begin(self, step: Pass, slots: BatchSlots, was_empty: bool) -> None:
        """Note that a step begins with the present members.

        was_empty: whether the batch had no members before, so that it was not waiting.
        """
        self._is_open = True
        if not self._ends:
            self._start = step.start if was_empty else step.ready
            self._batch = StepBatch(
                num_decodes=slots.num_filled, context_sum=slots.held.sum().item()
            )

    def work(self, busy: float) -> None:
        """Note the workers' time for that step, mean over all workers of both kinds, seconds."""
        self._busy += busy
        self._busy_last = busy or self._busy_last

    def end(self, time: float) -> None:
        """Note when the step that has begun ends."""
        self._ends.append(time)
        self._is_open = False

    def lose_step(self, now: float) -> bool | None:
        """Forget the step under way, which will never end.

        Return whether its end was known already; None if no step is under way.
        """
        is_known = bool(self._ends) and self._ends[-1] > now
        if not (is_known or self._is_open):
            return None
        if is_known:
            self._ends.pop()
        self._busy -= self._busy_last
        self._is_open = False
        return is_known

    def write(self, num_waiting: int) -> None:
        """Write the steps up to now. num_waiting: requests that wait for a slot."""
        if not self._ends:
            return
        start, ends, batch = self._start, self._ends, self._batch
        num_gaps = batch.num_decodes
        if num_gaps:
            if self._last_end != start or self._joined:
                num_gaps = self._stalls(start, ends[0], num_gaps)
            self._last_end = ends[-1]
            self._joined.clear()
        self._num_steps += len(ends)
        self._recorder.record_steps(
            self._track,
            start,
            list(ends),
            len(ends),
            batch,
            self._busy,
            num_waiting,
            0,
            num_gaps,
            0,
        )
        ends.clear()
        self._busy = 0.0

    def _stalls(self, start: float, first_end: float, num_decodes: int) -> int:
        """Record the gaps of decodes that waited before a step; return how many did not."""
        num_fresh = 0
        for sequence in self._joined:
            if not sequence.visit.has_token:  # those before were another client's
                sequence.visit.first_token_at = first_end
                sequence.visit.num_beside = num_decodes - 1
            if sequence.last_token_at == start:
                num_fresh += 1
            elif sequence.last_token_at == sequence.last_token_at:  # else it is the first token
                gap = first_end - sequence.last_token_at
                self._recorder.gaps.add((first_end, gap, 1))
        num_stalled = num_decodes - len(self._joined)
        if self._last_end == start:
            num_fresh += num_stalled
        elif num_stalled:
            gap = first_end - self._last_end
            self._recorder.gaps.add((first_end, gap, num_stalled))
        return num_fresh

    def resume(self, sequence: SequenceState) -> None:
        """Note that a member goes on with the next step."""
        sequence.first_step = self._num_steps
        self._joined.append(sequence)

    def finish(self, sequence: SequenceState, num_waiting: int) -> None:
        """Write that a member leaves at the end of the latest step, and which ones it was in."""
        self.write(num_waiting)
        last = sequence.last_token_at
        if sequence in self._joined:
            self._joined.remove(sequence)  # no step has given it a token
        elif last == last or sequence.visit.has_token:
            sequence.last_token_at = max(self._last_end, last)
        if sequence.first_step is not None:
            request_id = sequence.visit.request.request_id
            self._recorder.record_tokens(
                self._track, request_id, sequence.first_step, self._num_steps, None, resumed=True
            )
            sequence.first_step = None


class AfdStay(SequenceState):
    """The record of a visit to a bundle.

    num_held: tokens that have KV entries when it comes. num_steps: steps that it stays for.
    seat: its slot, once one is given to it. resident: it in the slot, once it sits there.
    is_leaving: whether it is given up and leaves at the end of the step under way.
    """

    __slots__ = ("is_leaving", "num_held", "num_steps", "resident", "seat")

    def __init__(self, visit: Visit, num_prompt_tokens: int, num_output_tokens: int) -> None:
        super().__init__(visit, num_prompt_tokens, num_output_tokens)
        self.num_held = self.num_steps = 0
        self.seat: BundleSeat | None = None
        self.resident: Resident | None = None
        self.is_leaving = False


class BundleEngine:
    """Runs a bundle: an event for every pass that begins, and for every departure.

    A request takes a slot as soon as one is free, its KV entries move there, and it joins before
    the next step of its batch. Its slot is free again when its last step has ended. A halted engine
    stops for good; its client comes back with a new one.

    fetch: starts to bring a request's KV entries; `arrive` is called when they are there.
    leave: receives a request that has its last token, or that was given up.
    num_waiting: returns the number of requests waiting for a slot, for the records.
    """

    def __init__(
        self,
        env: Environment,
        client_id: int,
        bundle: Bundle,
        seats: Seats,
        tracks: list[BatchTrack],
        *,
        fetch: Callable[[AfdStay], None],
        leave: Callable[[AfdStay, int], None],
        num_waiting: Callable[[], int],
    ) -> None:
        self._env = env
        self._step_end, self._plan_phase = engine_phases(client_id, 0)
        self._bundle = bundle
        self._seats = seats
        self._tracks = tracks
        self._fetch = fetch
        self._leave = leave
        self._num_waiting = num_waiting
        self._waiting: deque[AfdStay] = deque()
        self._arrived: list[list[tuple[BundleSeat, AfdStay]]] = [
            [] for _ in tracks
        ]  # by batch, to join it
        self._was_empty = [True for _ in tracks]
        self._leaving: list[list[AfdStay]] = [[] for _ in tracks]  # with the step under way
        self._ends: list[tuple[float, int, AfdStay]] = []  # departures by time, a heap
        self._num_ends = 0
        self._due: Event | None = None
        self._is_halted = False
        env.start(self._work())

    def add_request(self, stay: AfdStay) -> None:
        """Queue a request for a slot."""
        self._waiting.append(stay)
        self._give_slots()

    def abort(self, stay: AfdStay) -> None:
        """Let a request go that is given up: at once, or at the end of the step under way."""
        if self._is_halted:
            self._let_go(stay)
            return
        if stay.seat is None:
            self._waiting.remove(stay)
        elif stay.resident is None:
            self._seats.arrive(stay.seat, stay.num_held)
            arrived = self._arrived[stay.seat.batch]
            if (stay.seat, stay) in arrived:
                arrived.remove((stay.seat, stay))
                self._seats.free(stay.seat)
                self._give_slots()
            else:
                stay.is_leaving = True  # the slot is free when the entries have come
        else:
            self._abort_resident(stay, stay.seat.batch)
            return
        self._leave(stay, 0)

    def _abort_resident(self, stay: AfdStay, batch: int) -> None:
        if stay.is_leaving:
            return  # it ends with the step under way anyway
        stay.is_leaving = True
        clock = self._bundle.clock
        if clock.is_under_way(batch):
            self._leaving[batch].append(stay)
        else:
            self._leave_at(max(clock.ready[batch], self._env.now), stay)
        self._cut()

    # --- failures ---------------------------------------------------------------------------

    def halt(self) -> None:
        """Stop: steps that have ended count; those in flight are lost, on all workers.

        Requests stay until they are aborted; requests given up during a step leave now.
        """
        if self._is_halted:
            return
        self._is_halted, now = True, self._env.now
        if self._due is not None:
            self._env.put_off(self._due)
            self._due = None
        for batch, track in enumerate(self._tracks):
            is_counted = track.lose_step(now)
            if is_counted is not None:
                self._bundle.lose_step(batch, now, is_counted=is_counted)
        leaving = [stay for _, _, stay in sorted(self._ends, key=lambda end: end[:2])]
        self._ends.clear()
        for stay in (*leaving, *chain.from_iterable(self._leaving)):
            if stay.visit.outcome is not None:
                self._let_go(stay)

    def _let_go(self, stay: AfdStay) -> None:
        """Hand back a request of a halted engine, with the tokens of the steps that have ended."""
        seat, resident, num_tokens = stay.seat, stay.resident, 0
        if seat is None:
            self._waiting.remove(stay)
        elif resident is not None:
            num_tokens = self._bundle.batches[seat.batch].num_steps - resident.first_step
            self._tracks[seat.batch].finish(stay, self._num_waiting())
        self._leave(stay, num_tokens)

    # --- slots ------------------------------------------------------------------------------

    def _give_slots(self) -> None:
        """Give free slots to the waiting requests, in order."""
        num_coming = min(len(self._waiting), self._seats.num_free)
        if not num_coming:
            return
        coming = [self._waiting.popleft() for _ in range(num_coming)]
        seats = self._seats.take([stay.num_held for stay in coming])
        for stay, seat in zip(coming, seats, strict=True):
            stay.seat = seat
            self._fetch(stay)

    def arrive(self, stay: AfdStay) -> None:
        """A request's KV entries are there."""
        seat = stay.seat
        if seat is None or self._is_halted:
            return
        if stay.is_leaving:  # given up meanwhile
            self._seats.free(seat)
            self._give_slots()
            return
        self._arrived[seat.batch].append((seat, stay))
        self._cut()

    def _join(self) -> None:
        """BundleSeat the requests whose entries have arrived, in batches that are not in a step."""
        clock = self._bundle.clock
        for batch, arrived in enumerate(self._arrived):
            if not arrived or clock.is_under_way(batch) or clock.ready[batch] > self._env.now:
                continue
            slots, track = self._bundle.batches[batch], self._tracks[batch]
            track.write(self._num_waiting())
            for seat, stay in arrived:
                stay.resident = Resident(seat.worker, stay.num_held, stay.num_steps, stay)
                slots.join(stay.resident)
                self._seats.arrive(seat, stay.num_held)
                track.resume(stay)
            arrived.clear()

    # --- passes -----------------------------------------------------------------------------

    def _work(self) -> Generator[Event, Any, None]:
        env = self._env
        while not self._is_halted:
            start, end = self._begin_passes(), self._ends[0][0] if self._ends else inf
            if min(start, end) < inf:
                time, phase = (start, self._plan_phase) if start < end else (end, self._step_end)
                self._due = env.at(time, phase)
            else:
                self._due = Event(env)
            yield self._due
            self._due = None
            self._end_passes()
            self._give_slots()
            if not env.phase_is_last():
                yield env.at(env.now, self._plan_phase)

    def _begin_passes(self) -> float:
        """Let those join who wait for a step, and passes begin now; return when the next begins."""
        self._join()
        now, clock = self._env.now, self._bundle.clock
        while in_turn := [
            batch
            for batch, slots in enumerate(self._bundle.batches)
            if slots.num_filled or self._arrived[batch]
        ]:
            batch = min(in_turn, key=clock.ready.__getitem__)
            start = clock.start(batch, now)
            if start > now or (self._ends and self._ends[0][0] <= now):
                return start
            self._begin(batch)
        return inf

    def _cut(self) -> None:
        """Plan again now, since something has changed."""
        due = self._due
        if due is None:
            return
        self._due = None
        if due.triggered:
            self._env.move(due, self._env.now, self._step_end)
        else:
            self._env.trigger(due, self._env.now, self._step_end)

    def _begin(self, batch: int) -> None:
        """Let the next pass of a batch begin now."""
        bundle, track = self._bundle, self._tracks[batch]
        is_first, work = bundle.clock.is_first(batch), bundle.attention_work + bundle.ffn_work
        step = bundle.next_pass(batch, self._env.now)
        if is_first:
            track.begin(step, bundle.batches[batch], self._was_empty[batch])
        ends = bundle.begin(step)
        track.work((bundle.attention_work + bundle.ffn_work - work) / bundle.config.num_workers)
        for end in ends:
            self._end_step(end)

    def _end_step(self, end: StepEnd) -> None:
        """Note when a step ends that is under way."""
        batch, time, leaving = end
        self._tracks[batch].end(time)
        self._was_empty[batch] = not self._bundle.batches[batch].num_filled
        stays = [resident.guest for resident in leaving]
        for stay in stays:
            self._seats.leave(stay.seat, stay.num_held + stay.num_steps)
        stays += [stay for stay in self._leaving[batch] if stay not in stays]
        self._leaving[batch].clear()
        for stay in stays:
            stay.is_leaving = True
            self._leave_at(time, stay)

    def _leave_at(self, time: float, stay: AfdStay) -> None:
        self._num_ends += 1
        heappush(self._ends, (time, self._num_ends, stay))

    def _end_passes(self) -> None:
        """Release the requests whose last step has ended."""
        while self._ends and self._ends[0][0] <= self._env.now:
            _, _, stay = heappop(self._ends)
            seat, resident = stay.seat, stay.resident
            if seat is None or resident is None:
                continue
            slots = self._bundle.batches[seat.batch]
            num_tokens = slots.num_steps - resident.first_step
            if num_tokens < stay.num_steps:  # given up before its end
                slots.leave(resident)
                self._was_empty[seat.batch] = not slots.num_filled
            else:
                self._seats.left(seat, stay.num_held + stay.num_steps)
            self._tracks[seat.batch].finish(stay, self._num_waiting())
            self._seats.free(seat)
            self._leave(stay, num_tokens)


_GIB = 2**30


def linked(
    coefficients: AfdCoefficients,
    ways: Ways,
    attention: Tenant,
    ffn: Tenant,
    model: ModelSpec,
) -> AfdCoefficients:
    """Return coefficients in seconds, with the communication of a step that the links allow.

    In each layer every attention GPU sends an equal part of the activations to every FFN GPU, all
    at once, and gets as much back. The links are assumed to carry nothing else. `beta_c`
    comes on top of latencies. attention, ffn: the workers.
    """
    there = ways.exchange(attention.seats, ffn.seats)
    back = ways.exchange(ffn.seats, attention.seats)
    bytes_there, bytes_back = activation_bytes(model)
    per_request = bytes_there * there.seconds_per_byte + bytes_back * back.seconds_per_byte
    return replace(
        coefficients,
        # of the requests in the batch of one FFN worker, and all share the links
        alpha_c=per_request * ffn.data,
        beta_c=coefficients.beta_c + model.num_layers * (there.latency + back.latency),
    )


_COEFFICIENTS = ("alpha_a", "beta_a", "alpha_f", "beta_f", "alpha_c", "beta_c")


@CLIENTS.register("afd")
@dataclass(eq=False)
class AfdClient(Client):
    """A bundle of attention and FFN workers that decodes answers begun by prefill clients.

    model: model of the KV entries.
    attention_workers: attention workers of the bundle (x of xA-yF).
    ffn_workers: FFN workers of the bundle (y of xA-yF), which share each batch evenly.
    slots: requests per attention worker and batch.
    batches: batches in flight, each with its own slots.
    coefficients: published coefficients by name; each of the next six overrides one.
    alpha_a: attention time per token in a worker's slots, cycles.
    beta_a: fixed attention time, cycles.
    alpha_f: FFN time per request in an FFN worker's batch, cycles.
    beta_f: fixed FFN time, cycles.
    alpha_c: communication time, both ways, per such request, cycles.
    beta_c: fixed communication time, cycles.
    communication: how its time is computed: from `coefficients`; or `topology`, from the network's
        links between the GPUs of the workers, plus beta_c if it is given.
    place: where the GPUs of the attention workers are in network.topology, node1 or node1/gpu4;
        null: the first node with room.
    ffn_place: place of the FFN workers' GPUs.
    attention_gpus: GPUs per attention worker.
    ffn_gpus: GPUs per FFN worker, over which whole experts are spread.
    gpu: GPU of the attention workers, and of the FFN workers if ffn_gpu is null: for power, cost
        and start-up; times do not depend on it. null: unknown.
    ffn_gpu: GPU of the FFN workers, if different.
    gpu_price: dollars per hour of one gpu, in place of the catalog's.
    ffn_gpu_price: dollars per hour of one ffn_gpu.
    cycle_s: length of a cycle.
    static_graph: whether an empty slot costs as much FFN and communication time as a full one.
    layers: a step is divided into them evenly, and each goes to the FFN and back; null: a step goes
        there and back once.
    joint_steps: whether all batches begin each step together, as parts of one batch of an engine;
        needs layers. Otherwise each begins its next step as soon as it is back.
    placement: how requests choose an attention worker: random among free slots, or least_load, the
        worker with the fewest tokens.
    max_model_len: longest context; answers are cut there.
    kv_memory: memory for KV entries per attention worker; slots of the longest context must fit.
    kv_cache_dtype: how entries are stored; auto as the model says.
    Raises ValueError for numbers out of range, coefficients that are missing, slots without memory,
    and GPUs that the model cannot be divided among, or that are too small.
    Source: arXiv 2601.21351v3, section 5.1.
    """

    name: str
    _: KW_ONLY
    model: str
    attention_workers: int
    ffn_workers: int = 1
    slots: int
    batches: int = 2
    coefficients: str | None = None
    alpha_a: float | None = None
    beta_a: float | None = None
    alpha_f: float | None = None
    beta_f: float | None = None
    alpha_c: float | None = None
    beta_c: float | None = None
    cycle_s: Positive[Seconds]
    communication: Literal["coefficients", "topology"] = "coefficients"
    place: str | None = None
    ffn_place: str | None = None
    attention_gpus: Annotated[int, Range(f"[1, {COPIES}]")] = 1
    ffn_gpus: Annotated[int, Range(f"[1, {COPIES}]")] = 1
    gpu: str | GpuSpec | None = None
    ffn_gpu: str | GpuSpec | None = None
    gpu_price: NotNegative[DollarsPerHour] | None = None
    ffn_gpu_price: NotNegative[DollarsPerHour] | None = None
    static_graph: bool = True
    layers: int | None = None
    joint_steps: bool = False
    placement: Literal["random", "least_load"] = "random"
    max_model_len: Annotated[int, Range("[2, inf)")] | None = None
    kv_memory: Bytes | None = None
    kv_cache_dtype: str = "auto"

    def __post_init__(self) -> None:
        check_fields(self)
        base = named_coefficients(self.coefficients) if self.coefficients else None
        given = {name: getattr(self, name) for name in _COEFFICIENTS}
        self._check_gpus()
        if self.communication == "topology":
            given |= {"alpha_c": 0.0, "beta_c": self.beta_c or 0.0}  # the links' share comes later
        self.config = BundleConfig(
            coefficients=chosen_coefficients(base, given).times(self.cycle_s),
            attention_workers=self.attention_workers,
            ffn_workers=self.ffn_workers,
            slots=self.slots,
            batches=self.batches,
            static_graph=self.static_graph,
            layers=self.layers,
            joint_steps=self.joint_steps,
        )
        published = base is not None and not any(value is not None for value in given.values())
        model = load_generating(self.model).with_dtypes(kv_cache=self.kv_cache_dtype)
        self.kv_bytes_per_token = model.kv_bytes_per_token
        self._model, self._as_given = model, self.config
        super().__init__(self.name, self._describe("fitted" if published else "given"))
        self._check_memory()

    def _describe(self, estimate: str) -> ClientTraits:
        """Return the bundle's traits. estimate: fitted (all published coefficients) or given.

        Its times were never compared with measurements.
        """
        x, y, longest = self.attention_workers, self.ffn_workers, self.max_model_len
        limit = (inf, "nothing limits it")
        return ClientTraits(
            serves=(Decode.kind,),
            model=self.model,
            role="decode",
            entries=KvForm(dtype=self._model.kv_cache_dtype, block_bytes=self.kv_bytes_per_token),
            takes_entries=True,
            longest_prompt=(longest - 1, f"by max_model_len={longest}") if longest else limit,
            engines=(
                EngineGroup(x, 1, self.attention_gpus),
                EngineGroup(y, 1, self.ffn_gpus, self.ffn_place, False, "FFN workers"),
            ),
            machine=self._machine(),
            times=TimesOrigin(estimate=estimate, settings={"tpot": None}),
        )

    def _machine(self) -> BundleMachine | None:
        """Return the GPUs of all workers; None if they are unknown.

        Raises ValueError for options that need an unset GPU, and if
        weights and `kv_memory` do not fit.
        """
        for name, basis in (
            ("ffn_gpu", "gpu"),
            ("gpu_price", "gpu"),
            ("ffn_gpu_price", "ffn_gpu"),
        ):
            if getattr(self, name) is not None and getattr(self, basis) is None:
                raise ValueError(f"{basis} is required with {name}")
        if self.gpu is None:
            return None
        gpu, model = load_gpu(self.gpu), self._model
        ffn_gpu = gpu if self.ffn_gpu is None else load_gpu(self.ffn_gpu)
        self._check_split()
        shape = BundleShape(
            coefficients=self.config.coefficients,
            attention_workers=self.attention_workers,
            ffn_workers=self.ffn_workers,
            slots=self.config.slots_per_batch,
            static_graph=self.static_graph,
        )
        attention = AttentionGpus(
            model=model,
            cluster=Cluster(gpu, self.attention_gpus),
            number=self.attention_workers,
            shape=shape,
            price=self.gpu_price,
        )
        spreads = model.moe is not None and self.ffn_gpus > 1
        ffn = FfnGpus(
            model=model,
            cluster=Cluster(ffn_gpu, self.ffn_gpus, enable_expert_parallel=spreads),
            number=self.ffn_workers,
            shape=shape,
            price=self.gpu_price if self.ffn_gpu is None else self.ffn_gpu_price,
        )
        kv_memory = self.kv_memory or 0.0
        beside = f" and {kv_memory / _GIB:.1f} GiB of kv_memory" if kv_memory else ""
        for name, workers, more in (("attention", attention, kv_memory), ("ffn", ffn, 0.0)):
            needed, gpu = workers.weight_bytes + more, workers.gpu
            if needed > workers.gpus_an_engine * gpu.memory:
                raise ValueError(
                    f"{name}_gpus must be >= {ceil(needed / gpu.memory)}: weights of "
                    f"{workers.weight_bytes / _GIB:.1f} GiB{beside if more else ''} are on each "
                    f"worker, and {gpu.name} has {gpu.memory / _GIB:.1f} GiB; "
                    f"got {workers.gpus_an_engine}"
                )
        return BundleMachine(attention, ffn)

    def _check_split(self) -> None:
        """Raise ValueError for a model that cannot be divided among the GPUs of a worker."""
        model, attention, ffn = self._model, self.attention_gpus, self.ffn_gpus
        if model.layers:
            raise ValueError(f"model must have layers that are alike; those of {model.name} differ")
        if model.num_attention_heads % attention:
            raise ValueError(
                f"attention_gpus must divide the {model.num_attention_heads} attention heads of "
                f"{model.name}, got {attention}"
            )
        if model.moe is not None and model.moe.num_experts < ffn:
            raise ValueError(
                f"ffn_gpus must be <= {model.moe.num_experts}, the experts of {model.name}, "
                f"got {ffn}"
            )
        if model.moe is None and model.intermediate_size % ffn:
            raise ValueError(
                f"ffn_gpus must divide the MLP size {model.intermediate_size} of {model.name}, "
                f"got {ffn}"
            )

    def _check_gpus(self) -> None:
        if self.communication == "topology" and self.alpha_c is not None:
            raise ValueError(
                "alpha_c must not be set with communication: topology, which derives it, "
                f"got {self.alpha_c}"
            )

    def _check_memory(self) -> None:
        longest = self.max_model_len
        if self.kv_memory is None:
            return
        if longest is None:
            raise ValueError("max_model_len is required with kv_memory, which holds so many tokens")
        of_a_slot = longest * self.kv_bytes_per_token * self.batches
        most = int(self.kv_memory // of_a_slot)
        if most < 1:
            raise ValueError(
                f"kv_memory must be >= {of_a_slot / 2**30:.2f} GiB, a context of {longest} tokens "
                f"in each of {self.batches} batches, got {self.kv_memory / 2**30:.2f} GiB"
            )
        if self.slots > most:
            raise ValueError(
                f"slots must be <= {most}: kv_memory of {self.kv_memory / 2**30:.1f} GiB holds so "
                f"many contexts of {longest} tokens in each of {self.batches} batches, "
                f"got {self.slots}"
            )

    def start(self, env: Environment, client_id: int, recorder: Recorder) -> None:
        """Join a simulation: all slots are free."""
        super().start(env, client_id, recorder)
        self.config = self.on_links(self.network)
        self.bundle = Bundle(self.config)
        self.tracks = [BatchTrack(recorder, client_id) for _ in range(self.batches)]
        rng = self.streams.generator(f"{self.name}: placement")
        self._engine = engine = BundleEngine(
            env,
            client_id,
            self.bundle,
            Seats(self.bundle, PLACEMENTS[self.placement](rng)),
            self.tracks,
            fetch=self._fetch,
            leave=self._leave,
            num_waiting=lambda: self.view.num_waiting,
        )
        workers = range(self.attention_workers)
        self._movers = [self._mover_to(worker, engine, self.tracks) for worker in workers]

    def on_links(self, network: Network | None) -> BundleConfig:
        """Return the configuration, with communication over a network's links if they determine it.

        network: has admitted the bundle. Raises ScenarioError for one without a topology.
        """
        if self.communication != "topology":
            return self._as_given
        ways = network.ways if network is not None else None
        if ways is None:
            raise ScenarioError(
                f"{self.name}: communication must be coefficients where the network has no "
                f"topology, got {self.communication}"
            )
        attention, ffn = self.tenants()
        c = linked(self._as_given.coefficients, ways, attention, ffn, self._model)
        return replace(self._as_given, coefficients=c)

    def halt(self) -> None:
        """Lose the steps in flight; steps that have ended count."""
        self._engine.halt()

    def restart(self) -> None:
        """Come back, empty; workers that were away did not work."""
        before = self.bundle
        super().restart()
        self.bundle.attention_work, self.bundle.ffn_work = before.attention_work, before.ffn_work
        self.bundle.last_end = before.last_end

    def new_stay(self, visit: Visit) -> AfdStay:
        """Return the record of a visit, with the tokens of the answer done and left."""
        kv = visit.kv
        num_prompt = kv.num_prompt_tokens if kv else 0
        num_before = kv.num_output_tokens if kv else 0
        num_steps = sum(stage.num_tokens for stage in visit.stages if isinstance(stage, Decode))
        if self.max_model_len is not None:
            num_steps = min(num_steps, self.max_model_len - num_prompt - num_before)
        stay = AfdStay(visit, num_prompt, num_before + num_steps)
        stay.num_steps = num_steps
        if kv is not None:
            stay.num_held = kv.num_tokens
            stay.continue_from(kv)
        return stay

    def accept(self, visit: Visit) -> None:
        """Queue an answer for a slot; one that has no steps left ends at once."""
        stay = self._stay(visit)
        if stay.num_steps > 0:
            self._engine.add_request(stay)
            return
        visit.is_cut = True
        self.begin(visit)
        self.finish(visit)

    def abort(self, visit: Visit) -> None:
        """One that waits goes at once, one in a step at its end."""
        self._engine.abort(self._stay(visit))

    def _stay(self, visit: Visit) -> AfdStay:
        return self._as_afd(self.stays[visit])

    def _as_afd(self, stay: Stay) -> AfdStay:
        if not isinstance(stay, AfdStay):
            raise TypeError(f"{self.name}: new_stay must return an AfdStay, got {stay!r}")
        return stay

    def _mover_to(self, worker: int, engine: BundleEngine, tracks: list[BatchTrack]) -> Mover:
        """Return the mover that brings requests' KV entries to an attention worker.

        Entries come in one piece per layer, and count as blocks of one token. If the bundle fails
        meanwhile, they arrive at the engine it had before.
        """

        def record(move: KvMove, num_bytes: float, start: float, end: float) -> None:
            seat = self._as_afd(move.sequence).seat
            if seat is not None:
                tracks[seat.batch].move(move, num_bytes, start, end)

        def end_move(move: KvMove) -> None:
            engine.arrive(self._as_afd(move.sequence))

        form = KvForm(block_bytes=self.kv_bytes_per_token, num_layers=self._model.num_layers)
        seat = Seat(self.name, worker)
        others = OtherClients(self.env, self.network, seat, form, in_blocks=False)
        return Mover(self.env, Stores(others), record, end_move)

    def _fetch(self, stay: AfdStay) -> None:
        """Begin to bring the KV entries of a request to its attention worker."""
        kv, seat = stay.incoming, stay.seat
        if kv is None or seat is None:
            raise ScenarioError(f"{self.name}: {stay.visit.request} must come with KV entries")
        self.begin(stay.visit)
        num_tokens = kv.num_tokens
        move = KvMove("hand_over", stay, kv.source, GPU, num_tokens, num_tokens)
        self._movers[seat.worker].begin(move)

    def _leave(self, stay: AfdStay, num_tokens: int) -> None:
        """Hand back a visit with so many tokens."""
        visit = stay.visit
        visit.num_output_tokens = num_tokens
        if num_tokens:
            visit.last_token_at = stay.last_token_at
        self.finish(visit)

    @property
    def idle_shares(self) -> tuple[float, float]:
        """Shares of the time until the last step's end in which attention and FFN workers waited.

        A time in which the bundle was away counts as waiting. NaN before the first step.
        """
        end = self.bundle.last_end
        if not end:
            return nan, nan
        attention = self.bundle.attention_work / self.attention_workers
        return 1 - attention / end, 1 - self.bundle.ffn_work / self.ffn_workers / end
