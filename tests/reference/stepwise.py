"""A plain LLM engine: one loop iteration a step, and within it one a running request.

It is what the decode clock of `mist_sim.clients` is held against (DESIGN §5): no clock, no closed
form, no run of steps, no SimPy. It is slow and meant to be read. Rules:

- At equal times steps end, then requests move (who finished leaves, who arrives is queued, whose
  blocks were loaded goes before the queue), then those whose time is up give up, then the engine
  plans. Who gives up leaves at once while it waits, and at the end of the step in flight while it
  runs. Memory that blocks are still loaded into is free when they are there, or at the end of the
  step in flight.
- An engine that plans ahead made the plan of a step when the step before it began. So it knows who
  came and whose blocks were there by then, and who ends with the step before still has its seat and
  its blocks, for decodes, prompts and admissions alike. Who gives up during that step takes part in
  the next one, as if nothing were, and is gone for the plan of the one after it. When
  others run short they may be preempted as anybody; but they do not come back. A preempted decode
  does not cache the block that the step before filled, unless it had its turn in the plan already,
  or that step was not planned ahead.
  A plan that computes nothing leaves nothing ahead: the next one is made when it is needed, and
  knows everything. Where nobody runs or waits as a step ends, there is nothing to plan: seats and
  blocks are free at once.
- Under priorities, if who is preempted has ended with that step and had its turn before, the next
  one misses its turn: vLLM's place in the list does not move up. As an option, it does.
- A step in flight is never preempted; it ends at start + step time. Its time is the GPU's and the
  host's, or the longer of them when it was planned ahead.
- A prefill computes all known tokens (the prompt, and outputs from before a preemption) and emits
  one token at its end. A decode step gives every running decode one token.
- As an option, the step that admits who has blocks in tiers waits for these, one load after the
  other, and they are there at once for all that plans need to know.
- Memory is counted in blocks (`memory.py`). Admission takes those of all known tokens at once; a
  decode takes one block whenever the tokens it holds fill its blocks. Tokens whose blocks are
  cached are not computed, except the last one; full blocks of prompts are cached when they are
  planned, those of answers at the end of the step that fills them.
- Where prompts are cut, without swap space, and with windows without drafts (then as
  `page_memory.py` says, which gives pages back in the same turn), those who run take blocks in turn
  when a step is planned, before any waiting one looks at the cache: each in the order of admission
  for what it computes in the step, prompts for their piece alone. What decodes fill in a step is
  cached then, too, but not where it is planned ahead or blocks have one token. Who gets none
  preempts who gives way; when it has preempted itself, those behind it get nothing in that step,
  not even decodes (but with drafts, or as an option, they do). Who waits is admitted when all its
  known tokens would fit, or, as an option, its first piece.
- Of a prompt, a step computes no more than a threshold says; as an option, of one that is alone
  when the step is planned, as much as fits. Alone is who runs or waits with nobody else; those who
  have ended and keep their seats until then are counted, those who came later are not.
- As an option, prompts have a step in every so many, counted from the last step that carried one,
  or in engines in lockstep from the first step after all were idle. In those between, while any
  who runs decodes or has ended, running prompts stand still, and who waits is admitted only with
  its last token to compute, or, as an option, only when its blocks were loaded. But if the last
  plan that could admit, and preempted nobody, left any in the queue, every step is free. A prompt
  that gave way in its step counts as carried, one admitted for its last token does not.
- With a swap space, the blocks of a preempted request's computed tokens are copied there, if they
  fit, and to new blocks when it goes on, as it was. Those swapped go on first come, first served,
  in a step that preempts nobody, when there is a seat and room for all their next step needs;
  until then nobody is admitted. A step is longer by its copies, either way; those made when there
  is nothing to compute, since all wait for blocks of other clients, delay nothing.
- As an option, steps go on while such blocks are copied: out, and back, one request after the other
  each way. Blocks are free when they are copied, or at the end of the step in flight. Where they
  would do for the decodes, nobody else is preempted, and decodes for which there is none yet sit
  the step out, the last admitted first; they are behind others then. Nobody is admitted or comes
  back in such a step. Who comes back takes blocks for its computed tokens, when there is room for
  all its next step needs beside what others need who come, and goes on as those who were moved, or
  were loaded, when they are there. It waits for nobody who is still swapped.
- With drafts, a decode step gives each decode as many tokens as its job says, never more than it
  still has to get; they come together at the end of the step. In the step it holds blocks for its
  context, the newest token, the drafts and a lookahead, and keeps what the next step does not take
  anew. Who has tokens and would need more than the whole pool in its next step has outgrown it.
  An engine that plans ahead does not know what the step before will give. From its second step on
  a decode holds blocks as if all drafts of the step before were accepted. Who was one token from
  its end when the step before was planned is known to end with it. Who was farther takes part in
  the next step even if it has ended: with its blocks and seat in the plan, and with what it would
  have computed in the step, of which nobody gets anything. What a step gave is cached as the next
  one ends, but for the newest token that the plan of the step after knows.
- Decodes have tokens of a step before prompts. Only where states are kept, and pieces end at
  blocks, each has them before those admitted after it; decodes for which none are left sit it out.
- A piece of a prompt has blocks for the lookahead behind it, too, where prompts take blocks in
  turn; the first piece only as an option.
- As an option, who is admitted there with only its last token to compute has drafts, too, unless
  pieces of running prompts are in the step, or it has one token and nobody decodes. They take
  budget and blocks, and are refused; a plan ahead does not know that. Where the budget lacks for
  them, nobody is admitted.
- With early rejection, a job is turned away whose first token is not expected in time: the prompts
  that have none yet take their times, one after the other, and then its own. Blocks that a job
  taken before it has in the same place count as cached, in memory that caches, whatever became
  of them.
- A request may do its prefill here and its decode at another client. Its visit here ends with the
  first token, which may be silent, as if it had none; its blocks stay taken, held, until they are
  moved or nobody asks for them any more. They are free then, or at the end of the step in flight.
- A visit that begins with the decode is queued as any other, with prompt and first token known. At
  the head of the queue it needs a seat and blocks for its first step, beside those that others
  whose blocks come need for theirs. Then it takes blocks for the prompt, of which it holds those
  that are cached here, as `memory.py` says, and the others move; it needs no seat meanwhile. When
  they are there, it waits, first come first served, behind swapped ones and before those loaded,
  and goes on decoding in a step that preempts nobody, when there is a seat and room for its next
  step. Its full blocks are cached then. Nobody is admitted before. If nobody runs, it does not wait
  for swapped ones. Who gives up while blocks move leaves at once, and its memory is free when
  they are there.
- The first tokens of a prompt may have entries elsewhere, unless the cache has as many. At the head
  of the queue such a prompt needs a seat and blocks for all of it, takes those of these entries, of
  which it holds what is cached, and the others come, one request after the other. Until it goes on,
  blocks for the rest of the prompt are kept from those who come in. It is admitted before the
  queue, in the order in which entries came, and waits for nobody who is swapped. It computes the
  rest, as any prompt. If it gives way, it computes everything.
- Where answers flow, some leave at the end of a step, as `flowing.py` says. Where the next step is
  planned ahead, they are part of it, and leave at its end unless they are done, preempted or given
  up by then. Its end is also when the rule looks again, at those who stay.
- With sliding windows or states, blocks are pages, as `page_memory.py` says. Decodes take theirs as
  their step is planned; where all blocks of a prompt are taken at once, decodes first give theirs
  back, then those give way for whom there are none, and then the others take pages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, nan
from typing import Any, Protocol

from mist_sim.core.batch import AdapterWork, StepBatch
from mist_sim.hardware.predictors import traits_of
from tests.reference.adapters import Adapters
from tests.reference.flowing import Flow
from tests.reference.host import Host
from tests.reference.kept_elsewhere import Elsewhere
from tests.reference.memory import Block, Link, Memory, SwapSpace, Tier
from tests.reference.page_memory import PageMemory, Windows
from tests.reference.state_memory import StateMemory


class TimesSteps(Protocol):
    def step_time(self, batch: StepBatch) -> float: ...


class Kept(Protocol):
    """What a client keeps of a request for the next one."""

    def drop(self) -> None:
        """Nobody will ask for it any more."""


@dataclass(frozen=True)
class Job:
    """One request: when it arrives (s), its prompt, and the output tokens it will get (>= 1).

    content: what its first tokens are, as spans of (id, number of tokens).
    path: tokens that each of its decode steps would give, in an engine with drafts.
    timeout, ttft_timeout, ttft_deadline: seconds after its arrival, without end by default.
    num_elsewhere: first tokens whose entries lie elsewhere when it comes.
    adapter: name of its LoRA adapter. whole_answer: output tokens of the whole request, which are
    predicted, where this is a part of one; None: this is all of it.
    """

    arrival_time: float
    num_prompt_tokens: int
    num_output_tokens: int
    priority: int = 0
    content: tuple[tuple[int, int], ...] = ()
    path: tuple[int, ...] = ()
    timeout: float = inf
    ttft_timeout: float = inf
    ttft_deadline: float = inf
    num_elsewhere: int = 0
    adapter: str | None = None
    whole_answer: int | None = None

    @property
    def predicted(self) -> int:
        """Output tokens that are predicted of the request."""
        return self.whole_answer or self.num_output_tokens


@dataclass(eq=False)
class Outcome:
    """What became of a job.

    num_cached_tokens: those of the prompt that were not computed at the first admission.
    finished_at: when it ended for its user: served, rejected, or its time was up.
    left_at: when the engine let it go, which may be a step later.
    """

    status: str = "unfinished"
    started_at: float = nan
    first_token_at: float = nan
    finished_at: float = nan
    left_at: float = nan
    token_times: list[float] = field(default_factory=list)
    chunk_times: list[float] = field(default_factory=list)  # of tokens that came together
    num_decode_steps: int = 0
    num_decode_tokens: int = 0
    num_accepted: int = 0  # drafts, those included for which there was no room
    preempted_at: list[float] = field(default_factory=list)
    gave_way: bool = False  # was preempted by a plan that did not know that it had ended
    num_cached_tokens: int = 0
    num_loaded_blocks: int = 0
    num_fetched_tokens: int = 0
    num_fetched_in_vain: int = 0  # that a change of layout lost again
    came_at: float = nan  # when the last of those that were loaded or fetched were there
    swapped_tokens: list[int] = field(default_factory=list)  # of each copy, negative on the way out
    num_sat_out: int = 0  # steps
    swapped_at: list[float] = field(default_factory=list)  # when each was over


@dataclass(frozen=True, eq=False)
class Step:
    """An executed step.

    num_used_blocks, num_peak_blocks: held before and after its decodes took theirs.
    planned: when it was planned, at or after its start. busy: seconds of work, on all ranks.
    """

    start: float
    end: float
    batch: StepBatch
    num_used_blocks: int
    num_peak_blocks: int
    planned: float
    busy: float


@dataclass(eq=False)
class Live:
    """A job inside the engine. `num_cached`: tokens in the KV cache. `blocks`: those it holds.

    num_entered: how many of its blocks, from the first, are where others find them.
    shared: of `StateMemory`.
    num_loaded: how many are there after its load from tiers. num_coming: how many of them it loads.
    num_elsewhere: tokens whose entries lie elsewhere, come, or have come; 0 once it goes on.
    pages, states: of `PageMemory`.
    limits: (time, name) of what is still to come, the earliest first. num_spared: tokens of its
    prompt that others had before it came, for early rejection. is_followed: another client goes on
    with it. is_silent: and emits its first token again. incoming: what the client before keeps,
    until the request goes on from a copy of it. was_held: whether it came so. elsewhere: the visit
    of its prompt, where that began later. counts_from: (when, which) token of the answer, from
    which on its length and its time per token count. num_backflows: how often its answer left
    where it was too slow. entered_at: when it came here.
    """

    job: Job
    outcome: Outcome
    num_emitted: int = 0
    num_cached: int = 0
    blocks: list[Block] = field(default_factory=list)
    pages: list[Any] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)
    num_entered: int = 0
    shared: int = 0
    num_loaded: int = 0
    num_coming: int = 0
    num_elsewhere: int = 0
    num_spared: int = 0
    decoding: bool = False
    resumes: bool = False  # decodes again when it comes back from the swap space
    returns: bool = False  # is on its way back, or is back and does not decode yet
    limits: list[tuple[float, str]] = field(default_factory=list)
    is_followed: bool = False
    is_silent: bool = False
    incoming: Kept | None = None
    was_held: bool = False
    elsewhere: Outcome | None = None
    counts_from: tuple[float, int] = nan, 1
    num_backflows: int = 0
    entered_at: float = nan
    is_padded: bool = False  # was admitted with drafts beside its last token
    num_preempted: int = 0  # times, when it last gave a load up
    num_planned: int = 0  # tokens known when its latest decode step was planned
    num_last: int = 0  # tokens that its latest decode step gave it, since it began to decode
    num_beyond: int = 0  # and those for which it had no more room

    def watch(self, names: list[str]) -> None:
        """Set limits, of those at the same time the first name first."""
        times = [(self.job.arrival_time + getattr(self.job, name), name) for name in names]
        self.limits = sorted(times, key=lambda limit: limit[0])

    @property
    def has_given_up(self) -> bool:
        return self.outcome.finished_at == self.outcome.finished_at

    @property
    def has_left(self) -> bool:
        return self.outcome.left_at == self.outcome.left_at

    @property
    def has_token(self) -> bool:
        """Tell whether its first token is there, or was before it came."""
        if self.elsewhere is not None and not self.outcome.token_times:
            return bool(self.elsewhere.token_times)
        return self.num_emitted > 0

    @property
    def is_ahead(self) -> bool:
        """Tell whether it has a prompt whose first token others wait for."""
        return not (self.num_emitted or self.was_held)

    @property
    def num_known(self) -> int:
        """Tokens that exist: the prompt and the outputs emitted so far."""
        return self.job.num_prompt_tokens + self.num_emitted

    def is_complete(self, longest: float) -> bool:
        """Tell whether all tokens are there, or as many as the longest context allows."""
        return self.num_emitted == self.job.num_output_tokens or self.num_known >= longest

    def decode(self, time: float, longest: float) -> None:
        """Take a decode step."""
        outcome = self.outcome
        num_tokens = self.job.path[outcome.num_decode_steps] if self.job.path else 1
        outcome.num_decode_steps += 1
        outcome.num_accepted += num_tokens - 1
        outcome.chunk_times.append(time)
        self.num_last = 0
        for _ in range(num_tokens):
            if not self.is_complete(longest):
                outcome.num_decode_tokens += 1
                self.num_cached += 1
                self.num_last += 1
                self.emit(time)
        self.num_beyond = num_tokens - self.num_last

    def emit(self, time: float) -> None:
        self.num_emitted += 1
        if self.is_silent:
            return
        if self.num_emitted == 1:
            self.counts_from = time, 1
        self.outcome.token_times.append(time)
        if len(self.outcome.token_times) == 1:
            self.outcome.first_token_at = time


Plan = tuple[list[tuple[Live, int]], list[Live]]
"""(prompt, new tokens) of every prompt in the step; the decodes in the step."""


class EndlessError(Exception):
    """Sequences preempt one another for ever, without a token, or wait for ever."""


_MOST_ROUNDS = 1_000
"""Plans that preempt and give no token before this is so, if they come again."""

_BLOCKS_CHECKED = 50
"""Memory as large is checked in every step, and larger memory in fewer, which takes as long."""

Fetch = Callable[["StepwiseEngine", Live, int], None]
"""Begins to move so many blocks of a request from another client to a lane."""


@dataclass(kw_only=True)
class StepwiseEngine(ABC):
    """An engine with one scheduling policy, which is `plan`; `run` fills the fields after it.

    outcomes: one for each job, in their order. steps: in order of time.
    gone: those that have left for good, in this order.
    """

    predictor: TimesSteps
    num_blocks: int
    block_size: int
    max_num_seqs: int
    order: str = "fcfs"
    num_reserved: int = 0
    caching: bool = False
    tiers: tuple[Tier, ...] = ()
    swap_space: SwapSpace | None = None
    elsewhere: Elsewhere | None = None
    max_model_len: int | None = None
    windows: Windows | None = None
    num_drafts: int = 0
    num_lookahead: int = 0
    num_recomputed: int = 0  # last blocks of what is found, where a layer drafts
    uncached_first: bool = False
    caches_verified: bool = False
    covers_next: bool = False  # a block's name says what the token behind it is
    admits_lookahead: bool = False
    pads_prompts: bool = False
    reserves_prefills: bool = False
    loaded_first: bool = True
    preempted_first: bool = False
    defers_frees: bool = False
    spares_in_flight: bool = False
    caps_windows: bool = False
    returns_unseen: bool = False
    hybrid_drops: int | None = 1
    plans_ahead: bool = False
    host: Host = field(default_factory=Host)
    max_num_waiting: float = inf
    drop_expired: bool = False
    early_rejection: bool = False
    fetch: Fetch | None = None
    flow: Flow | None = None
    adapters: Adapters | None = None
    outcomes: list[Outcome] = field(default_factory=list, init=False)
    steps: list[Step] = field(default_factory=list, init=False)

    def run(self, jobs: Iterable[Job]) -> None:
        """Serve all jobs, given in order of arrival."""
        self.reset()
        self.arriving = deque(Live(job, Outcome(), num_elsewhere=job.num_elsewhere) for job in jobs)
        self.outcomes = [live.outcome for live in self.arriving]
        while self.arriving or self.num_inside or self.late:
            while (event := self.next_event()) and event[0] <= self.now:
                self.happen(*event, in_step=False)
            chunks, decodes = self.next_plan()
            if chunks or decodes:
                self.execute(chunks, decodes)
            elif self.waits_for_ever:
                raise EndlessError
            elif event := self.next_event():
                self.now = event[0]
            else:
                assert not self.num_inside, "the engine is stuck"

    @property
    def waits_for_ever(self) -> bool:
        """Tell whether those who wait are let in by nothing that is on its way, after a plan."""
        on_their_way = self.coming or self.held or self.going or self.arrived
        return bool(self.waiting and not on_their_way)

    def next_plan(self) -> Plan:
        """Plan until there is something to compute, or nothing changes any more."""
        before = None
        while self.members != before:
            self.learn()
            before = self.members
            chunks, decodes = self.plan()
            if chunks or decodes:
                self.free_late()
                return chunks, decodes
            if self.is_ahead:
                self.known_until = inf
                self.free_late()
                before = None
        self.num_copied = 0
        return [], []

    @property
    def is_ahead(self) -> bool:
        """Tell whether the next plan was made before now."""
        return self.known_until < inf

    @property
    def members(self) -> list[Live | None]:
        return [*self.queue, None, *self.running, None, *self.swapped]

    @property
    def waiting(self) -> list[Live]:
        arrived = [live for _, live in self.arrived]
        coming = [live for live in self.coming if not live.has_left]
        return [*self.queue, *arrived, *coming, *self.loaded, *self.moved, *self.swapped]

    @property
    def coming(self) -> list[Live]:
        """Those that wait until their blocks are there and a plan knows it, or have given up."""
        return [*(live for _, live in self.loading + self.come), *self.moving]

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    @property
    def num_inside(self) -> int:
        return self.num_waiting + len(self.active)

    @property
    def apart(self) -> list[Live]:
        """Those that neither wait nor run, but have tokens on their way."""
        return []

    @property
    def tracks(self) -> list[StepwiseEngine]:
        """Itself; a group of engines has several."""
        return [self]

    def reset(self) -> None:
        """Begin empty."""
        self.now = 0.0
        self.memory = self.empty_memory()
        self.known_until = inf  # a step planned ahead knows what was before the last one began
        self.overlaps = False  # the step under way was planned ahead
        self.deferred: list[tuple[Live, int, bool]] = []  # preempted in flight, with blocks
        self.rounds_seen: list[object] = []  # plans in a row that preempted and gave no token
        self.progress = 0, 0  # tokens, and sequences that had left, before them
        self.idle: list[Live] = []  # run, and the latest planned step does not compute them
        self.disturbed = False  # the plan that is made has preempted somebody
        self.num_padded = 0  # drafts beside the last token of who is admitted
        self.pads: dict[Live, int] = {}  # of those that the latest plan admitted
        self.num_ever_padded = 0  # prompts
        self.arrived: list[tuple[float, Live]] = []  # when; plans do not know of them yet
        self.loading: list[tuple[float, Live]] = []  # when their blocks are there
        self.given_up: list[tuple[float, Live]] = []  # when; plans do not know it yet
        self.come: list[tuple[float, Live]] = []  # these have them; plans do not know it yet
        self.loaded: list[Live] = []  # plans know it; they go before the queue
        self.moving: list[Live] = []  # have memory, and their blocks come from another client
        self.moved: list[Live] = []  # plans know that they came; they go before the loaded ones
        self.held: list[Live] = []  # done here, with blocks that another client asks for
        self.releasing: list[Live] = []  # of these, whose blocks were moved during the step
        self.swapped: list[Live] = []  # in the order in which they went
        self.num_copied = 0  # blocks to or from the swap space before the next step
        self.load_time = 0.0  # seconds that the next step waits for tiers
        self.going: list[Live] = []  # copied to the swap space while steps go on
        self.copies: list[tuple[float, Live]] = []  # when those are there
        self.on_host: dict[Live, int] = {}  # blocks there, or reserved there
        self.swap_links = Link(), Link()  # out and back
        self.sitting: list[Live] = []  # decodes for which there is no block yet
        self.queue: list[Live] = []  # preempted ones first, then by arrival
        self.running: list[Live] = []  # in the order of admission
        self.decodes: list[Live] = []  # in the order in which they joined
        self.late: list[Live] = []  # are done, or were moved; the next plan does not know it
        self.due: list[Live] = []  # go on elsewhere after the step that was planned before
        self.decoded: list[Live] = []  # took part in the latest step as decodes
        self.taken: list[Live] = []  # on arrival
        self.given_back: Counter[float] = Counter()  # blocks of who gave up before they had them
        self.in_flight = False  # whether a step computes something
        self.to_give_back: list[Live] = []  # at the end of the step in flight
        self.leaving: list[Live] = []  # gave up during the step, in this order
        self.gone: list[Live] = []  # has left for good, in this order

    @abstractmethod
    def plan(self) -> Plan:
        """Admit, preempt, and say what the next step computes; nothing when idle."""

    def name_verified(self) -> None:
        """Name blocks of tokens that the last step verified, of drafts, where states are kept."""
        if isinstance(self.memory, StateMemory) and self.num_drafts and self.caches_verified:
            for live in self.active:
                self.memory.verify(live, self.num_processed(live))

    # --- arrivals, and those who give up ------------------------------------------------------

    def next_event(self) -> tuple[float, Live] | None:
        """Return who arrives, has its blocks or gives up next, and when; in this order."""
        events = [(live.job.arrival_time, live) for live in list(self.arriving)[:1]]
        events += self.loading + self.copies
        events += sorted(
            ((live.limits[0][0], live) for live in self.waiting + self.active if live.limits),
            key=lambda event: self.arrival(event[1]),
        )
        return min(events, key=lambda event: event[0]) if events else None

    def happen(self, time: float, live: Live, *, in_step: bool) -> None:
        if self.arriving and live is self.arriving[0]:
            self.arriving.popleft()
            self.arrive(live)
        elif (time, live) in self.loading:
            self.end_load(time, live)
        elif (time, live) in self.copies:
            self.end_copy(time, live, in_step=in_step)
        else:
            self.limit_reached(live, time, in_step=in_step)

    def limit_reached(self, live: Live, time: float, *, in_step: bool) -> None:
        """The next limit of a job is reached; `in_step`: while a step computes who runs."""
        name = live.limits.pop(0)[1]
        if live.has_given_up or (name != "timeout" and live.has_token):
            return
        if name == "ttft_deadline" and live in self.running:
            return
        live.outcome.status = "rejected" if name == "ttft_deadline" else "timed_out"
        live.outcome.finished_at = time
        self.give_up(live, time, in_step=in_step)

    def give_up(self, live: Live, time: float, *, in_step: bool) -> None:
        """Let go of a job whose outcome says how it ended, perhaps after the step."""
        is_new = any(live is each and when > self.known_until for when, each in self.arrived)
        is_coming = is_new or live in self.coming
        if self.is_ahead and not is_coming:
            self.given_up.append((time, live))
        else:
            self.give_up_now(live, time, in_step=in_step)

    def give_up_now(self, live: Live, time: float, *, in_step: bool) -> None:
        if live not in self.running:
            if live in self.queue:
                self.queue.remove(live)
            elif live in (unknown := [each for _, each in self.arrived]):
                del self.arrived[unknown.index(live)]
            elif live in self.swapped:
                self.swapped.remove(live)
                if live not in self.going:
                    del self.on_host[live]
            elif live in self.loaded:
                self.loaded.remove(live)
                self.give_back(live, time)
            elif live in self.moved:
                self.moved.remove(live)
                self.give_back(live, time)
            self.let_go(live, time)
        elif in_step:
            self.leaving.append(live)
        else:
            self.now = time
            self.leave(live)

    def arrive(self, live: Live) -> None:
        busy = self.num_waiting >= self.max_num_waiting or self.comes_too_late(live)
        if self.is_hopeless(live) or busy:
            self.reject(live, live.job.arrival_time)
        else:
            self.taken.append(live)
            self.enter(live, live.job.arrival_time)

    def enter(self, live: Live, time: float) -> None:
        live.entered_at = time
        self.arrived.append((time, live))
        if not self.is_ahead:
            self.learn()
        names = ["timeout", "ttft_timeout", "ttft_deadline"]
        if live.incoming and live.has_token:
            names = names[:1]
        live.watch(names if self.drop_expired else names[:2])

    def learn(self) -> None:
        """Let the next plan know who came, and whose blocks did, before it was made.

        Blocks of who has given up are free then.
        """
        while self.arrived and self.arrived[0][0] <= self.known_until:
            self.queue.append(self.arrived.pop(0)[1])
        self.learn_what_came()
        while self.given_up and self.given_up[0][0] <= self.known_until:
            self.leave_late(self.given_up.pop(0)[1])

    def know_all(self) -> None:
        """Let the next plan know everything up to now, since no step is in flight."""
        self.known_until = inf
        self.free_late()
        self.learn()

    def leave_late(self, live: Live) -> None:
        """Let go of one that gave up before the latest step, which computed it all the same."""
        if live in self.gone and live not in self.late:
            return  # it has ended meanwhile
        if live not in self.running:
            self.give_up_now(live, self.now, in_step=False)
            return
        unknown = self.num_unknown(live)
        self.stop(live)
        self.running.remove(live)
        self.free_in_flight(live, live.num_cached - unknown, preempted=False)
        if live in self.late:
            self.late.remove(live)
        else:
            self.let_go(live, self.now)

    def free_in_flight(self, live: Live, known: int, *, preempted: bool) -> None:
        """Give blocks back, as an option when the step in flight is over that may write them."""
        defers = self.defers_frees and self.tiers and getattr(self, "in_turn", False)
        if defers and self.is_ahead and live not in self.idle:
            self.deferred.append((live, known, preempted))
        else:
            self.memory.leave(live, known, preempted=preempted)

    def num_unknown(self, live: Live, *, was_served: bool = False) -> int:
        """Tokens that the latest step gave and the plan of the next one does not know.

        But for the one that the plan of the latest step knew, or the next one if it had its turn.
        """
        if self.covers_next and self.is_ahead and (live.decoding or live in self.late):
            return max(live.num_last, 1) if live in self.decoded else 1
        if not self.is_ahead or live not in self.decoded or self.covers_next:
            return 0
        return max(live.num_last, 1) - (was_served or not self.overlaps)

    def learn_what_came(self) -> None:
        while self.come and self.come[0][0] <= self.known_until:
            time, live = self.come.pop(0)
            if live.returns:
                del self.on_host[live]
            if live.has_given_up:
                self.give_back(live, time)
            else:
                decodes = live.incoming or (live.returns and live.resumes)
                came = self.moved if decodes else self.loaded
                goes_first = self.is_before_loaded(live) and not decodes
                came.insert(0 if goes_first else len(came), live)

    def give_back(self, live: Live, time: float) -> None:
        """Free the memory of who gave up before it was used."""
        self.given_back[time] += len(live.blocks)
        self.to_give_back.append(live)
        if not self.in_flight or self.windows:
            self.give_all_back()

    def give_all_back(self) -> None:
        for live in self.to_give_back:
            self.memory.give_back(live)
        self.to_give_back.clear()

    def is_hopeless(self, live: Live) -> bool:
        return self.can_never_start(live) or live.job.num_prompt_tokens >= self.longest

    def comes_too_late(self, live: Live) -> bool:
        """Tell whether prompts without a first token leave too little time for another one."""
        if not self.early_rejection:
            return False
        self.spare(live, self.taken)
        ahead = [other for other in self.waiting + self.active if other.is_ahead]
        ahead.sort(key=self.arrival)
        seconds = sum(self.prompt_time(other) for other in ahead) + self.prompt_time(live)
        return seconds > time_left(live.job, live.job.arrival_time)

    def spare(self, live: Live, taken: list[Live]) -> None:
        """Note what a job need not compute, because those taken before it had it."""
        known = {name for other in taken for name in self.memory.shared_names(other)}
        num_blocks = 0
        for name in self.memory.shared_names(live)[
            : (live.job.num_prompt_tokens - 1) // self.block_size
        ]:
            if name not in known:
                break
            num_blocks += 1
        num_spared = max(0, num_blocks - self.num_recomputed) * self.block_size
        live.num_spared = max(num_spared, live.num_elsewhere)

    def prompt_time(self, live: Live) -> float:
        batch = prompt(live)
        gpu = self.predictor.step_time(batch)
        return self.host.around(gpu, batch, overlaps=self.plans_ahead)

    # --- memory -------------------------------------------------------------------------------

    @property
    def longest(self) -> float:
        return inf if self.max_model_len is None else self.max_model_len

    def can_never_start(self, live: Live) -> bool:
        return self.outgrows_pool(live)

    def outgrows_pool(self, live: Live) -> bool:
        if live.num_emitted:
            num_slots = self.first_slots(live)
        elif getattr(self, "in_turn", False):
            num_slots = self.behind(live.num_known)
        else:
            num_slots = live.num_known
        return self.blocks_alone(num_slots) > self.num_blocks

    def blocks_alone(self, num_tokens: int) -> float:
        """Blocks that must be free for one who is alone."""
        if self.windows is None:
            return self.blocks_for(num_tokens)
        number = -(-num_tokens // self.block_size)
        in_window = self.windows.num_window_groups * min(number, self.most_counted)
        num_pages = self.windows.num_full_groups * number + in_window + self.num_states
        if (kept := self.windows.kept) is None:
            return num_pages
        states = number if kept.dense else min(number, 2 + kept.inside)
        return num_pages + (states + self.num_drafts) * self.windows.num_state_groups

    @property
    def most_counted(self) -> float:
        """Blocks that count of a prompt in groups with windows."""
        return inf

    @property
    def num_states(self) -> int:
        """Pages of the states of a request."""
        if self.windows is None or self.windows.kept is not None:
            return 0
        return self.windows.num_state_groups * (1 + self.num_drafts)

    def first_slots(self, live: Live) -> int:
        """Tokens that a decode needs blocks for in the first step after it was away."""
        return min(live.num_known + self.num_drafts + self.num_lookahead, self.longest)

    def next_slots(self, live: Live) -> int:
        """Tokens that a decode needs blocks for in its next step."""
        if not (self.guesses and (live.num_last or live.is_padded)):
            return self.first_slots(live)
        if not live.num_last:
            num_slots = live.num_known + 2 * self.num_drafts + self.num_lookahead
            return min(num_slots, self.longest)
        num_known = live.num_known - live.num_last + 1 + self.num_drafts
        return min(num_known + self.num_drafts + self.num_lookahead, self.longest)

    @property
    def guesses(self) -> bool:
        """Tell whether plans do not know how many tokens the step before gives."""
        return self.plans_ahead and self.num_drafts > 0

    @property
    def num_free(self) -> int:
        return len(self.memory.free)

    def to_compute(self, live: Live) -> int:
        """Tokens that a prompt has to go, whether it is admitted or waits."""
        if live in self.loaded:
            return live.num_known - (live.num_elsewhere or live.num_loaded * self.block_size)
        cached = live.num_cached if live in self.running else self.memory.cached_tokens(live)
        return live.num_known - cached

    def chunk(self, live: Live, num_new: int) -> tuple[Live, int]:
        """Plan tokens of a prompt; the blocks that they fill can be found at once."""
        self.memory.enter(live, self.num_named(live, num_new))
        return live, num_new

    def num_named(self, live: Live, num_new: int) -> int:
        """Tokens of a prompt whose blocks have names once a piece is planned."""
        return min(live.num_cached + num_new, live.num_known - self.covers_next)

    def blocks_for(self, num_tokens: int) -> int:
        full, rest = divmod(num_tokens, self.block_size)
        num_blocks = full + 1 if rest else full
        if self.windows is None:
            return num_blocks
        return num_blocks * self.windows.num_groups + self.num_states

    def blocks_of(self, num_tokens: int) -> int:
        """Blocks that a request holds of which so many tokens are computed, no more."""
        number = self.blocks_for(num_tokens)
        if isinstance(self.memory, PageMemory) and self.windows:
            number -= self.windows.num_window_groups * self.memory.behind(num_tokens)
            if self.windows.kept:
                number += self.windows.num_state_groups * (1 + self.num_drafts)
        return number

    def more_for(self, num_here: int, num_tokens: int, *, in_pieces: bool = False) -> int:
        """Blocks that it takes beside these for more tokens."""
        more = self.blocks_for(num_tokens) - self.blocks_for(num_here)
        if isinstance(self.memory, PageMemory) and self.windows and in_pieces:
            first = self.memory.behind(num_here)
            after = -(-num_tokens // self.block_size) - first
            beyond = after - min(after, self.most_counted)
            before = -(-num_here // self.block_size) - first
            more -= self.windows.num_window_groups * int(min(beyond, after - before))
        if self.windows and (kept := self.windows.kept):
            new = -(-num_tokens // self.block_size) - -(-num_here // self.block_size)
            more += self.windows.num_state_groups * (new if kept.dense else min(new, 1))
        return more

    def empty_memory(self) -> Memory:
        memory = self.any_memory()
        memory.covers_next = self.covers_next
        return memory

    def any_memory(self) -> Memory:
        if self.windows:
            kind, more = PageMemory, {}
            if self.windows.kept is not None:
                most = getattr(self, "threshold", None) or inf
                most = min(most, self.max_num_batched_tokens or inf)
                more = {"kept": self.windows.kept, "most": most}
                more["num_state_groups"] = self.windows.num_state_groups
                more["num_drafts"] = self.num_drafts
                more["num_ahead_first"] = self.num_lookahead if self.admits_lookahead else 0
                more["num_unsure"] = 0 if self.returns_unseen else self.num_drafts
                kind = StateMemory
            return kind(
                self.num_blocks,
                self.block_size,
                **more,
                windows=self.windows,
                num_states=self.num_states,
                most_counted=self.most_counted,
                caching=self.caching,
                uncached_first=self.uncached_first or not self.caching,
                num_again=self.num_recomputed,
                again_full=self.hybrid_drops,
            )
        return Memory(
            self.num_blocks,
            self.block_size,
            self.caching,
            self.tiers,
            self.num_recomputed,
            self.uncached_first,
        )

    def next_blocks(self, live: Live) -> int:
        """Blocks that a running decode takes in its next step."""
        if isinstance(self.memory, PageMemory):
            return self.missing_pages(self.memory, live, 1)
        return self.blocks_for(self.next_slots(live)) - len(live.blocks)

    def first_blocks(self, live: Live) -> int:
        """Blocks that one whose blocks come or have come takes in its first step as a decode."""
        if isinstance(self.memory, PageMemory):
            return self.more_for(live.num_known - 1, self.next_slots(live))
        return self.next_blocks(live)

    def missing_pages(self, memory: PageMemory, live: Live, num_new: int) -> int:
        """Pages that one who runs lacks for a step."""
        slots = self.behind(live.num_cached + num_new)
        if live.decoding:
            slots = self.next_slots(live)
        if isinstance(memory, StateMemory):
            return memory.missing(live, slots, self.end_of_step(live, num_new))
        return memory.missing(live, slots)

    def end_of_step(self, live: Live, num_new: int) -> int:
        """The last token of one who runs in the step, without what is written ahead."""
        if not live.decoding:
            return live.num_cached + num_new
        end, slots = live.num_cached + 1 + self.num_drafts, self.next_slots(live)
        return max(min(end, slots), slots - self.num_lookahead)

    def decode_need(self) -> int:
        """Blocks that the running decodes take in their next step."""
        return sum(self.next_blocks(live) for live in self.stepping)

    def reject(self, live: Live, time: float) -> None:
        live.outcome.status = "rejected"
        live.outcome.finished_at = time
        self.let_go(live, time)

    def let_go(self, live: Live, time: float) -> None:
        live.outcome.left_at = time
        if live.incoming:
            live.incoming.drop()
        self.gone.append(live)

    def begin_loads(self, first_piece: int | None = None) -> bool:
        """Start loads for the heads of the queue that have blocks in tiers; does anyone else fit?

        What is loaded can be found from the turn of its request on. Where memory for the rest of
        those loaded is short, and nobody is left who could give some back, the one loaded last
        begins anew.
        """
        by_piece = bool(getattr(self, "in_turn", False))
        while self.queue or self.loaded:
            if self.can_be_next() and self.head() in self.loaded:
                self.have_loaded(self.head())
            if not self.head_fits(first_piece, loads=True):
                if self.loses_load():
                    continue
                return False
            live = self.head()
            if live in self.loaded:
                break
            if live.incoming:
                self.begin_move(live)
                continue
            if live.num_elsewhere > self.memory.cached_tokens(live):
                self.begin_fetch(live)
                continue
            live.num_elsewhere = 0
            numbers = self.memory.loads(live)
            if not any(numbers):
                break
            num_there = len(self.memory.found(live)) + sum(numbers)
            in_step = self.tiers[0].in_step
            reserves = by_piece and self.reserves_prefills and not in_step
            if reserves and not self.leaves_rest(live, num_there):
                return False
            self.queue.remove(live)
            live.num_loaded = num_there
            num_blocks = num_there if by_piece else self.blocks_for(live.num_known)
            self.memory.admit(live, num_blocks, loads=True)
            self.memory.touch_again(live, live.num_loaded)
            if in_step:
                self.load_in_step(live, numbers)
                continue
            ends = [
                shelf.load(number, self.now)
                for shelf, number in zip(self.memory.tiers, numbers, strict=True)
                if number
            ]
            self.loading.append((max(ends), live))
            live.num_coming = sum(numbers)
        return bool(self.queue or self.loaded)

    def load_in_step(self, live: Live, numbers: list[int]) -> None:
        """Let the next step wait until blocks are there, and not their request."""
        self.load_time += sum(
            tier.latency + number * tier.seconds_per_block
            for tier, number in zip(self.tiers, numbers, strict=True)
            if number
        )
        live.outcome.num_loaded_blocks += sum(numbers)
        live.outcome.came_at = self.now
        self.loaded.append(live)

    def can_be_next(self) -> bool:
        waits = (self.swapped or self.moved) and not self.swaps_overlap
        return not waits and len(self.running) < self.max_num_seqs

    def have_loaded(self, live: Live) -> None:
        """Name the blocks that were loaded."""
        if live.num_loaded:
            self.memory.enter(live, live.num_loaded * self.block_size)

    def loses_load(self) -> bool:
        """Let the one loaded last begin anew, if no other could give memory back."""
        if not self.tiers or self.running or self.coming or self.disturbed:
            return False
        if any(tier.in_step for tier in self.tiers):  # one loaded in this step would load again
            holds = len(self.loaded) > 1
        else:
            holds = any(live is not self.head() for live in self.loaded)
        if not holds:
            return False
        self.lose_load(self.loaded.pop())
        return True

    def lose_load(self, live: Live) -> None:
        self.memory.give_back(live)
        live.num_preempted = len(live.outcome.preempted_at)
        live.outcome.num_fetched_in_vain += live.outcome.num_fetched_tokens
        live.outcome.num_fetched_tokens = 0
        live.num_loaded = live.num_entered = 0
        is_second = bool(self.queue) and self.is_before_loaded(self.queue[0])
        self.queue.insert(int(is_second), live)

    def leaves_rest(self, live: Live, num_there: int) -> bool:
        """Tell whether a load leaves blocks for the rest of all prompts that have begun."""
        begun = [each for each in self.active if not each.decoding]
        begun += [each for each in [*self.coming, *self.loaded] if not each.has_given_up]
        rest = sum(max(0, self.blocks_for(each.num_known) - len(each.blocks)) for each in begun)
        reserve = self.num_reserved if self.running else 0
        room = self.num_free - self.decode_need() - reserve - self.promised() - rest
        return num_there - self.memory.num_held(live) <= room

    def begin_fetch(self, live: Live) -> None:
        """Take memory for entries that lie elsewhere, and let those come that are not here."""
        assert self.elsewhere
        self.queue.remove(live)
        num_blocks = self.blocks_of(live.num_elsewhere)
        number = self.memory.reserve(live, num_blocks)
        end = self.elsewhere.load(number, self.now)
        live.num_coming = live.num_elsewhere - (num_blocks - number) * self.block_size
        self.loading.append((end, live))

    def end_load(self, time: float, live: Live) -> None:
        """Note that blocks are there."""
        self.loading.remove((time, live))
        if live.returns:
            self.note_copy(live, 1, time)
        else:
            live.outcome.came_at = time
            if live.num_elsewhere:
                live.outcome.num_fetched_tokens = live.num_coming
            else:
                live.outcome.num_loaded_blocks += live.num_coming
        self.have_come(time, live)

    def have_come(self, time: float, live: Live) -> None:
        self.come.append((time, live))
        if not self.is_ahead:
            self.learn()

    # --- what comes from other clients, and goes to them --------------------------------------

    def begin_move(self, live: Live) -> None:
        """Take memory for the tokens that have entries, and let those come that are not here."""
        self.queue.remove(live)
        number = self.memory.reserve(live, self.blocks_of(live.num_known - 1))
        live.outcome.started_at = self.now
        self.moving.append(live)
        assert self.fetch
        self.fetch(self, live, number)

    def begin_moves(self) -> None:
        """Let all come at the head of the queue whose entries are elsewhere, if they fit."""
        while self.head_fits() and (live := self.head()).incoming:
            self.begin_move(live)

    def end_move(self, time: float, live: Live) -> None:
        self.moving.remove(live)
        self.have_come(time, live)

    def join(self, num_needed: int = 0) -> None:
        """Let those decode whose blocks have come, as long as the first of them fits.

        num_needed: blocks that pieces of prompts will take.

        Swapped ones go first, unless they wait for memory that those have who came.
        """
        while self.moved and len(self.running) < self.max_num_seqs:
            live = self.moved[0]
            reserve = self.num_reserved if self.running else 0
            room = self.num_free - self.decode_need() - reserve
            room -= num_needed
            waits = self.swapped and self.running and not self.swaps_overlap
            if waits or self.first_blocks(live) > room:
                return
            self.moved.remove(live)
            live.returns = False
            self.memory.arrive(live, live.num_known - 1)
            live.num_cached = live.num_known - 1
            live.incoming = None
            self.running.append(live)
            live.decoding = True
            self.decodes.append(live)

    def promised(self) -> int:
        """Blocks for the first step of those whose blocks come or have come."""
        coming = [live for live in self.coming if not live.has_given_up]
        incoming = [live for live in coming if live.incoming or (live.returns and live.resumes)]
        fetched = [live for live in coming + self.loaded if live.num_elsewhere]
        return sum(self.first_blocks(live) for live in incoming + self.moved) + sum(
            self.more_for(live.num_elsewhere, live.num_known, in_pieces=True) for live in fetched
        )

    def free_held(self, live: Live) -> None:
        """Give blocks back that were held for another client, or copied to the swap space."""
        if live in self.held:
            self.held.remove(live)
        if self.is_ahead:
            if live not in self.late:
                self.late.append(live)
        else:
            self.memory.leave(live, live.num_cached, preempted=False)
            self.have_gone(live)

    def have_gone(self, live: Live) -> None:
        """Note that the blocks are free of one that was copied to the swap space, if it was."""
        if live in self.going:
            self.going.remove(live)
            if live not in self.swapped:
                del self.on_host[live]

    def free_late(self) -> None:
        """Take back seats and blocks of who was done before the plan that is now made."""
        for live, known, preempted in self.deferred:
            self.memory.leave(live, known, preempted=preempted)
        self.deferred.clear()
        for live in self.late:
            self.stop(live)
            if live in self.running:
                self.running.remove(live)
            if live not in self.held:
                self.memory.leave(live, self.num_cacheable(live), preempted=False)
            self.have_gone(live)
        self.late.clear()

    def head(self) -> Live:
        """Return who is next: of equals, the first to arrive."""
        if self.loaded:
            return self.first_with_loaded()
        if self.flow:
            first = [live for live in self.queue if live.incoming or live.outcome.preempted_at]
            return (first or self.queue)[0]
        if self.adapters is not None:
            return self.adapters.first(self.queue, self.active)
        if self.order == "fcfs":
            return self.queue[0]
        return min(self.queue, key=lambda live: (self.rank(live), self.arrival(live)))

    def is_before_loaded(self, live: Live) -> bool:
        """Tell whether it was preempted and goes first, unless it has given up a load since."""
        waits = bool(self.tiers) and not any(tier.in_step for tier in self.tiers)
        one_queue = self.preempted_first and self.order == "fcfs" and waits
        return one_queue and len(live.outcome.preempted_at) > live.num_preempted

    def first_with_loaded(self) -> Live:
        if self.order != "priority":
            if self.queue and self.is_before_loaded(self.queue[0]):
                return self.queue[0]
            return self.loaded[0]
        several = self.loaded if self.loaded_first else [*self.loaded, *self.queue]
        return min(several, key=lambda live: (self.rank(live), self.arrival(live)))

    def rank(self, live: Live) -> float:
        return {
            "shortest_prompt_first": live.job.num_prompt_tokens,
            "shortest_predicted_first": live.job.predicted,
            "least_work_left": live.num_known,
            "priority": live.job.priority,
            "earliest_deadline_first": live.job.arrival_time + live.job.ttft_deadline,
        }[self.order]

    def arrival(self, live: Live) -> int:
        return self.outcomes.index(live.outcome)

    def waits_for_others(self) -> bool:
        """Tell whether swapped ones, or decodes that come, go before who is next."""
        if self.loaded and self.swaps_overlap:
            return False
        if self.loaded and self.loaded[0].num_elsewhere:
            return bool(self.moved)
        return bool(self.swapped or self.moved)

    def head_fits(self, first_piece: int | None = None, *, loads: bool = False) -> bool:
        """Tell whether who is next may come in. loads: with what lies in tiers as a first piece."""
        if self.waits_for_others() or not (self.queue or self.loaded):
            return False
        if len(self.running) >= self.max_num_seqs:
            return False
        if self.adapters is not None and self.adapters.stops(self.queue, self.active):
            return False
        reserve = self.num_reserved if self.running else 0
        room = self.num_free - self.decode_need() - reserve
        room -= self.promised()
        head = self.head()
        if head in self.loaded and head.num_elsewhere:
            return room >= 0
        if head in self.loaded:
            return self.blocks_behind_loaded(head, first_piece) <= room
        if isinstance(self.memory, PageMemory):
            return self.page_need(self.memory, head, first_piece) <= room
        num_slots, num_held = head.num_known, self.memory.num_held(head)
        if head.incoming:
            num_slots = self.next_slots(head)
        elif head.num_elsewhere:
            num_slots = head.num_known
        elif first_piece is not None and not (self.flow and head.outcome.preempted_at):
            num_slots = min(self.memory.cached_tokens(head) + first_piece, head.num_known)
            num_slots = self.behind_first(num_slots)
            if loads and any(numbers := self.memory.loads(head)):
                num_slots = (len(self.memory.found(head)) + sum(numbers)) * self.block_size
                if self.tiers[0].in_step:
                    num_slots = min(num_slots + first_piece, head.num_known)
            return self.blocks_for(num_slots) - num_held <= room
        return self.blocks_for(num_slots) - num_held <= room

    def page_need(self, memory: PageMemory, head: Live, first_piece: int | None) -> int:
        """Pages that must be free for who is next."""
        here = head.num_known - 1 if head.incoming else head.num_elsewhere
        if here:
            num_slots = self.next_slots(head) if head.incoming else head.num_known
            in_pieces = not head.incoming
            return self.blocks_of(here) + self.more_for(here, num_slots, in_pieces=in_pieces)
        if first_piece is None:
            return memory.need(head, None)
        num_slots = min(memory.cached_tokens(head) + first_piece, head.num_known)
        return memory.need(head, self.behind_first(num_slots))

    def blocks_behind_loaded(self, live: Live, first_piece: int | None) -> int:
        """Blocks that one whose blocks were loaded lacks for all its tokens, or a first piece."""
        num_slots = live.num_known
        if first_piece is not None:
            num_slots = min(live.num_loaded * self.block_size + first_piece, num_slots)
            num_slots = self.behind_first(num_slots)
        return self.blocks_for(num_slots) - len(live.blocks)

    def admit_head(self, num_new: int | None = None) -> Live:
        """Admit the head of the queue, with blocks for so many new tokens, or all."""
        live = self.head()
        if live in self.loaded and live.num_elsewhere:
            self.loaded.remove(live)
            self.begin_behind_fetched(live, num_new)
        elif live in self.loaded:
            self.loaded.remove(live)
            live.num_cached = live.num_loaded * self.block_size
            live.num_loaded = 0
            if num_new is not None:
                num_slots = self.behind_first(live.num_cached + num_new)
                self.memory.extend_to(live, self.blocks_for(num_slots))
            self.memory.touch(live)
            self.memory.touch_again(live, live.num_entered)
        else:
            self.queue.remove(live)
            live.num_cached = self.memory.cached_tokens(live)
            num_slots = live.num_known if num_new is None else live.num_cached + num_new
            if num_new is not None:
                num_slots = self.behind_first(num_slots)
            self.memory.admit(live, self.blocks_for(num_slots))
            if isinstance(self.memory, PageMemory):
                self.memory.extend(live, num_slots)
            if isinstance(self.memory, StateMemory):
                ahead = self.memory.num_ahead_first if num_new is not None else 0
                self.memory.extend_states(live, live.num_cached, num_slots - ahead)
        self.running.append(live)
        live.is_padded = self.num_padded > 0
        if live.outcome.started_at != live.outcome.started_at:  # NaN: not admitted before
            live.outcome.started_at = self.now
            live.outcome.num_cached_tokens = live.num_cached - live.outcome.num_fetched_tokens
        return live

    def behind(self, num_tokens: int) -> int:
        """Tokens that a piece has blocks for that ends there, with what is written ahead."""
        return min(num_tokens + self.num_lookahead, self.longest)

    def behind_first(self, num_tokens: int) -> int:
        """The same for the piece that a prompt is admitted with, and drafts that pad it."""
        ahead = self.num_padded + (self.num_lookahead if self.admits_lookahead else 0)
        return min(num_tokens + ahead, self.longest) if ahead else num_tokens

    def begin_behind_fetched(self, live: Live, num_new: int | None) -> None:
        """Take blocks for tokens behind those whose entries have come."""
        live.num_cached, live.num_elsewhere, live.returns = live.num_elsewhere, 0, False
        self.memory.arrive(live, live.num_cached)
        num_slots = live.num_known if num_new is None else live.num_cached + num_new
        number = self.more_for(live.num_cached, num_slots)
        self.memory.go_on(live, num_slots, number)

    def leave(self, live: Live) -> None:
        """Stop running and give all blocks back, once the next plan is made if it is ahead."""
        if not self.has_overrun(live):
            self.stop(live)
        self.late.append(live)
        if not self.is_ahead:
            self.free_late()
        if live.has_given_up:
            self.let_go(live, self.now)

    def has_overrun(self, live: Live) -> bool:
        """Tell whether one that has ended takes part in the next step, too."""
        return self.guesses and live.is_complete(self.longest) and live.num_last > 1

    def stop(self, live: Live) -> None:
        if live.decoding:
            self.decodes.remove(live)
        live.decoding = False
        live.num_last = 0

    @property
    def active(self) -> list[Live]:
        """Those that run and go on."""
        return [live for live in self.running if live not in self.late]

    def make_room(self) -> bool:
        """Preempt until the decodes' next step fits; return whether anyone had to go."""
        self.sitting = []
        if isinstance(self.memory, PageMemory):
            for live in self.running:
                if live in self.decodes and live not in self.late:
                    self.memory.give_behind(live, self.num_processed(live))
        disturbed = self.decode_need() > self.num_free
        while self.decode_need() > self.num_free + sum(len(live.blocks) for live in self.going):
            self.preempt(self.victim())
        if disturbed and self.going:
            self.sit_out()
        if not disturbed:
            self.swap_in()
            self.join()
        if isinstance(self.memory, PageMemory):
            for live in self.running:
                if live in self.stepping:
                    self.give_turn(self.memory, live, 1)
        return disturbed

    def num_processed(self, live: Live) -> int:
        """Computed tokens before which a plan gives pages back, as far as it knows.

        What a step in flight computes counts, with all drafts; or, as an option, not at all.
        """
        chunks, decodes, *_ = self.step if self.is_ahead else ([], [])
        if live in decodes and live.num_last:
            before, new = live.num_cached - live.num_last, 1 + self.num_drafts
        else:
            new = sum(num_new for other, num_new in chunks if other is live)
            before = live.num_cached - new
        return before + (0 if self.returns_unseen else new)

    def give_turn(self, memory: PageMemory, live: Live, num_new: int) -> None:
        memory.give_behind(live, self.num_processed(live))
        if not live.decoding:
            memory.extend(live, self.behind(live.num_cached + num_new))
            if isinstance(memory, StateMemory):
                memory.extend_states(live, live.num_cached, self.end_of_step(live, num_new))
            memory.enter(live, self.num_named(live, num_new))
            return
        memory.extend(live, self.next_slots(live))
        if isinstance(memory, StateMemory):
            memory.extend_states(live, live.num_cached, self.end_of_step(live, 1))
        newest = 1
        if self.is_ahead:
            newest = 1 - live.num_last if live.num_last else 0
        live.num_planned = live.num_cached + 1
        memory.enter(live, live.num_cached + newest - self.covers_next)

    def sit_out(self) -> None:
        """Let decodes sit out for which there is no block, those admitted first go first."""
        num_free = self.num_free
        for live in self.running:
            if live.decoding and (number := self.next_blocks(live)):
                if number > num_free:
                    self.sitting.append(live)
                else:
                    num_free -= number

    def end_sitting(self) -> None:
        """Let those go on, behind others, who sat a step out."""
        self.decodes = [*self.stepping, *(live for live in self.decodes if live in self.sitting)]
        for live in self.sitting:
            live.outcome.num_sat_out += 1
        self.sitting = []

    @property
    def stepping(self) -> list[Live]:
        """The decodes that take part in the next step."""
        return [live for live in self.decodes if live not in self.sitting]

    @property
    def swaps_overlap(self) -> bool:
        return self.swap_space is not None and self.swap_space.overlaps

    def victim(self) -> Live:
        if self.order == "priority":
            return max(self.running, key=lambda live: (live.job.priority, live.entered_at))
        return self.running[-1]

    def preempt(self, victim: Live, *, was_served: bool = False) -> None:
        num_cached, victim.resumes = victim.num_cached, victim.decoding
        unknown = self.num_unknown(victim, was_served=was_served)
        swaps = not self.outgrows_pool(victim) and self.has_swap_space(victim)
        self.stop(victim)
        self.due = [live for live in self.due if live is not victim]
        self.running.remove(victim)
        is_late = victim in self.late
        goes = swaps and self.swaps_overlap and not is_late
        if victim not in self.held and not goes:
            known = self.num_cacheable(victim) - (0 if swaps else unknown)
            self.free_in_flight(victim, known, preempted=not (swaps or is_late))
            victim.num_planned = 0
        if is_late:
            self.late.remove(victim)
            victim.outcome.gave_way = True
            return
        victim.num_cached = 0
        if self.outgrows_pool(victim):
            self.reject(victim, self.now)
            return
        victim.outcome.preempted_at.append(self.now)
        if swaps:
            victim.num_cached = num_cached
            self.swapped.append(victim)
            self.on_host[victim] = self.blocks_of(num_cached)
            if self.swaps_overlap:
                self.going.append(victim)
                self.copies.append((self.send_copy(victim, 0), victim))
            else:
                self.copy(victim, -1)
        else:
            self.queue.insert(0, victim)

    def has_swap_space(self, live: Live) -> bool:
        if self.swap_space is None:
            return False
        blocks = sum(self.on_host.values()) + self.blocks_of(live.num_cached)
        return blocks <= self.swap_space.num_blocks

    def copy(self, live: Live, sign: int) -> None:
        self.num_copied += self.blocks_of(live.num_cached)
        self.note_copy(live, sign, self.now)

    def note_copy(self, live: Live, sign: int, time: float) -> None:
        live.outcome.swapped_tokens.append(sign * live.num_cached)
        live.outcome.swapped_at.append(time)

    def send_copy(self, live: Live, way: int) -> float:
        """Return when the blocks of one are copied, behind those on their way."""
        assert self.swap_space
        link, seconds = self.swap_links[way], self.swap_space.seconds_per_block
        link.free_at = max(link.free_at, self.now) + self.blocks_for(live.num_cached) * seconds
        return link.free_at

    def end_copy(self, time: float, live: Live, *, in_step: bool) -> None:
        """Note that blocks are in the swap space; here they are free, or after the step."""
        self.copies.remove((time, live))
        self.note_copy(live, -1, time)
        if in_step:
            self.releasing.append(live)
        else:
            self.free_held(live)

    def begin_swap_in(self) -> None:
        """Let the first of those swapped come back whose blocks are free and fit."""
        while self.swapped and len(self.running) < self.max_num_seqs:
            live = self.swapped[0]
            reserve = self.num_reserved if self.running else 0
            room = self.num_free - self.decode_need() - reserve - self.promised()
            needed = self.next_slots(live) if live.resumes else live.num_known
            if live in self.going or self.blocks_for(needed) > room:
                return
            self.swapped.remove(live)
            live.returns = True
            if not live.resumes:
                live.num_elsewhere = live.num_cached
            self.memory.take_back(live, self.blocks_for(live.num_cached))
            self.loading.append((self.send_copy(live, 1), live))

    def swap_in(self) -> None:
        """Let swapped ones go on as they were, as long as the first of them fits."""
        if self.swaps_overlap:
            self.begin_swap_in()
            return
        while self.swapped and len(self.running) < self.max_num_seqs:
            live = self.swapped[0]
            reserve = self.num_reserved if self.running else 0
            room = self.num_free - self.decode_need() - reserve
            needed = self.next_slots(live) if live.resumes else live.num_known
            here = live.num_cached
            if self.blocks_of(here) + self.more_for(here, needed) > room:
                return
            held = here if live.resumes else live.num_known
            self.swapped.remove(live)
            del self.on_host[live]
            num_blocks = self.blocks_of(here) + self.more_for(here, held)
            self.memory.swap_in(live, num_blocks, held, here)
            self.copy(live, 1)
            self.running.append(live)
            if live.resumes:
                live.decoding = True
                self.decodes.append(live)

    # --- a step -------------------------------------------------------------------------------

    def execute(self, chunks: list[tuple[Live, int]], decodes: list[Live]) -> None:
        start = self.now
        batch = self.begin(chunks, decodes)
        seconds = self.seconds(batch) + self.copy_time
        while (event := self.next_event()) and event[0] < start + seconds:
            self.happen(*event, in_step=True)
        self.now = start + seconds
        self.complete(start, seconds)

    @cached_property
    def needs_longest_context(self) -> bool:
        return traits_of(self.predictor).needs_longest_context

    def seconds(self, batch: StepBatch) -> float:
        gpu = self.predictor.step_time(batch)
        return self.host.around(gpu, batch, overlaps=self.overlaps)

    def begin(self, chunks: list[tuple[Live, int]], decodes: list[Live]) -> StepBatch:
        """Take the memory of a step and return what it computes."""
        self.in_flight = True
        batch = StepBatch(
            tuple((num_new + self.pads.get(live, 0), live.num_cached) for live, num_new in chunks),
            len(decodes),
            sum(self.context(live) for live in decodes),
            num_drafts=self.num_drafts if decodes else 0,
        )
        if self.windows and decodes:
            seen = self.windows.size - 1
            batch.window_sum = sum(min(self.context(live), seen) for live in decodes)
        if self.needs_longest_context and decodes:
            batch.longest_context = max(self.context(live) for live in decodes)
        num_used_blocks = self.num_blocks - self.num_free
        decodes = [live for live in decodes if live not in self.gone]
        self.memory.grow(
            [(live, self.next_slots(live), self.next_blocks(live)) for live in decodes]
        )
        if len(self.steps) % (1 + self.num_blocks // _BLOCKS_CHECKED) == 0:
            others = [*self.loaded, *self.coming, *self.moved, *self.held, *self.going]
            others += [live for live, *_ in self.deferred]
            self.memory.check(live.blocks for live in [*self.running, *others])
        self.step = chunks, decodes, batch, num_used_blocks, self.now
        self.overlaps = self.is_ahead
        self.known_until = self.now if self.plans_ahead else inf
        self.copy_time, self.load_time = self.load_time, 0.0
        if self.swap_space and not self.swaps_overlap:
            self.copy_time = self.num_copied * self.swap_space.seconds_per_block
            self.num_copied = 0
        if self.adapters is not None:
            number = {live.job.adapter: 0 for live in self.running}
            for live in self.running:
                new = [num_new for other, num_new in chunks if other is live]
                number[live.job.adapter] += sum(new) + (live in decodes)
            self.copy_time = self.adapters.bring([name for name in number if number[name]])
            number.pop(None, None)
            batch.adapters = AdapterWork(
                sum(tokens > 0 for tokens in number.values()), sum(number.values())
            )
        return batch

    def forget_after(self, time: float) -> None:
        """Forget steps that end after a time: nobody waits for them."""
        self.steps = [step for step in self.steps if step.end <= time]

    def context(self, live: Live) -> int:
        """Tokens that the cache holds for a decode, also behind the end of one that has ended."""
        return live.num_cached + (live.num_beyond if live in self.gone else 0)

    def complete(self, start: float, busy: float) -> None:
        """Give the members of the step what it computed; it began at `start` and ends now."""
        chunks, decodes, batch, num_used_blocks, planned = self.step
        self.in_flight = False
        self.give_all_back()
        num_peak_blocks = self.num_blocks - self.num_free
        self.steps.append(
            Step(start, self.now, batch, num_used_blocks, num_peak_blocks, planned, busy)
        )
        complete = []
        self.end_sitting()
        self.decoded = decodes
        for live in decodes:
            self.decode(live)
            if live.is_complete(self.longest):
                complete.append(live)
        for live, num_new in chunks:
            live.num_cached += num_new
            if live.num_cached == live.num_known:
                live.emit(self.now)
                live.outcome.chunk_times += live.outcome.token_times[-1:]
                if live.is_complete(self.longest):
                    complete.append(live)
                else:
                    live.decoding = True
                    self.decodes.append(live)
        for live in complete:
            self.finish(live)
        for live in self.leaving:
            if live not in complete:
                self.leave(live)
        self.leaving.clear()
        for live in self.releasing:
            self.free_held(live)
        self.releasing.clear()
        if self.flow:
            self.let_flow(self.flow)
        self.free_if_empty()

    def decode(self, live: Live) -> None:
        """Give a decode what a step computed, and enter what is then known of it."""
        late = self.plans_ahead and getattr(self, "in_turn", False) and self.block_size > 1
        late = self.plans_ahead if self.covers_next else late
        if late and self.guesses:
            self.memory.enter_answer(live, live.num_cached)
        live.decode(self.now, self.longest)
        if self.memory.enters_answers and not (late or self.verifies_late):
            self.memory.enter_answer(live, live.num_cached)

    def let_flow(self, flow: Flow) -> None:
        """Let those leave who are to, after one more step if that is planned already."""
        self.move_on(self.due)
        self.due = flow.leaving(self)
        if not self.plans_ahead:
            self.move_on(self.due)
            self.due = []

    def move_on(self, found: list[Live]) -> None:
        for live in found:
            if live in self.decodes and not live.has_given_up:
                self.end_visit(live, "moved")

    def free_if_empty(self) -> None:
        """Give back what those hold who are done, where there is nothing to plan."""
        if not (self.active or self.waiting or self.decodes):
            self.known_until = inf
            self.free_late()

    @property
    def verifies_late(self) -> bool:
        """Tell whether what a step verified of drafts is cached when the next one is planned."""
        in_turn = getattr(self, "in_turn", False) and self.block_size > 1
        in_time = self.num_drafts > 0 and not self.plans_ahead
        return in_time and in_turn and not self.caches_verified

    def num_cacheable(self, live: Live) -> int:
        """Computed tokens of one who leaves that are cached."""
        if self.verifies_late and live.num_planned:
            return min(live.num_cached, live.num_planned)
        return live.num_cached

    def finish(self, live: Live) -> None:
        """Let a request go that has all its tokens, perhaps after it gave up."""
        if live.has_given_up:
            self.leave(live)
            return
        self.end_visit(live, "finished")

    def end_visit(self, live: Live, status: str) -> None:
        """Let a request go that is done here; its blocks are held where another client goes on."""
        if live.is_followed or status == "moved":
            self.held.append(live)
        self.leave(live)
        live.outcome.status = status
        live.outcome.finished_at = self.now
        self.let_go(live, self.now)


def prompt(live: Live) -> StepBatch:
    """Return a step that computes what a job need of its prompt, and nothing else."""
    return StepBatch(((live.job.num_prompt_tokens - live.num_spared, live.num_spared),))


def time_left(job: Job, now: float) -> float:
    """Return how long its first token may take from now on."""
    return (job.arrival_time + job.ttft_deadline) - now


@dataclass
class Rounds:
    """Steps of engines in lockstep since all were idle."""

    number: int = 0


@dataclass(kw_only=True)
class StepwiseChunked(StepwiseEngine):
    """Decodes first; the rest of the token budget goes to prompts, cut where it ends."""

    max_num_batched_tokens: int
    threshold: int | None = None
    threshold_spares_one: bool = False
    pass_goes_on: bool = False
    max_partial: int = 1
    whole_must_fit: bool = True
    interval: int = 1
    held_spares_hits: bool = False
    rounds: Rounds | None = None
    is_alone: bool = field(default=False, init=False)  # who is there, when a plan begins
    is_held: bool = field(default=False, init=False)  # for prompts, in the latest plan
    is_bound: bool = field(default=False, init=False)  # some could not be admitted
    carries: bool = field(default=False, init=False)  # some of a prompt, in the latest plan
    last_carrying: int | None = field(default=None, init=False)  # number of the step, from 1

    def begin_plan(self) -> None:
        self.memory.begin_plan()
        if self.covers_next and not self.is_ahead:
            for live in self.decodes:
                self.memory.enter_answer(live, live.num_cached)
        elif self.spares and self.block_size > 1:  # one that sat out caches its tokens
            for live in self.decodes:
                if live not in self.decoded:
                    self.memory.enter_answer(live, live.num_cached)

    def plan(self) -> Plan:
        self.is_held = self.is_for_decodes()
        self.carries = False
        self.sitting = [] if self.in_turn else self.sitting
        self.name_verified()
        self.begin_plan()
        self.is_alone = len(self.known) + len(self.running) == 1
        if isinstance(self.memory, PageMemory) and self.in_turn:
            disturbed, chunks, decodes = self.have_turns(self.memory)
        elif self.in_turn:
            disturbed, chunks, decodes = self.run_in_turn()
        else:
            disturbed = self.make_room()
            decodes = self.stepping
            chunks = self.pieces()
        budget = self.budget - sum(num_new for _, num_new in chunks)
        self.disturbed = disturbed
        served = [*decodes, *(live for live, num_new in chunks if num_new)]
        self.idle = [live for live in self.active if live not in served]
        self.pads = {}
        if self.in_turn:
            budget += self.let_miss(decodes)
        if not disturbed:
            self.admit_pieces(chunks, decodes, budget)
        self.num_padded = 0
        if not self.is_held and not disturbed:
            self.is_bound = bool(self.queue)
        if self.flow and not disturbed:
            self.begin_moves()
        if self.carries:
            self.last_carrying = len(self.steps) + bool(chunks or decodes)
        if self.in_turn and not (chunks or decodes):
            self.sitting = []
        return chunks, decodes

    def let_miss(self, decodes: list[Live]) -> int:
        """Let the others be behind these decodes, who had their turn; return what they leave."""
        here = [live for live in self.running if live.decoding and not self.is_in_flight(live)]
        missed = [live for live in here if live not in self.late and live not in decodes]
        self.decodes = [live for live in self.decodes if live not in missed] + missed
        self.sitting = missed
        return len(missed) * (1 + self.num_drafts)

    def admit_pieces(
        self, chunks: list[tuple[Live, int]], decodes: list[Live], budget: int
    ) -> None:
        """Admit waiting sequences within a budget, and add the first pieces to the others."""
        may_pad = not chunks
        while budget > 0:
            by_whole = self.whole_must_fit or not self.in_turn
            if not self.begin_loads(None if by_whole else self.load_piece(budget)):
                break
            first = None if by_whole else self.first_piece(budget)
            if not self.head_fits(first):
                break
            if self.is_held and not self.may_pass():
                break
            self.num_padded = self.drafts_beside_last(decodes, may_pad)
            num_new = self.piece(self.head(), budget)
            in_pieces = [live for live, new in chunks if live.num_cached + new < live.num_known]
            if num_new < self.to_compute(self.head()) and len(in_pieces) >= self.max_partial:
                break
            if not num_new or self.num_padded >= budget:
                break
            if not self.fits_behind(num_new):
                if self.loses_load():
                    continue
                break
            self.carries |= self.to_compute(self.head()) > 1
            live = self.admit_head(num_new if self.in_turn else None)
            chunks.append(self.chunk(live, num_new))
            budget -= num_new + self.num_padded
            self.note_drafts(live)

    @property
    def known(self) -> list[Live]:
        """Those that wait and have not given up."""
        waiting = [*self.queue, *self.coming, *self.loaded, *self.moved, *self.swapped]
        return [live for live in waiting if not (live.has_given_up and live in self.coming)]

    def note_drafts(self, live: Live) -> None:
        """Note the drafts beside the last token of one who was admitted."""
        self.pads[live] = self.num_padded
        self.num_ever_padded += self.num_padded > 0
        self.num_padded = 0

    def drafts_beside_last(self, decodes: list[Live], may_pad: bool) -> int:
        """Drafts that the head is admitted with, which has only its last token to compute."""
        head = self.head()
        if not (may_pad and self.pads_prompts and self.num_drafts and self.in_turn):
            return 0
        is_lone = head.num_known == 1 and not decodes
        has_room = head.num_known + self.num_drafts + 1 <= self.longest
        if self.to_compute(head) != 1 or is_lone or not has_room or head.num_elsewhere:
            return 0
        return self.num_drafts

    def fits_behind(self, num_new: int) -> bool:
        """Tell whether the head has blocks for what is written behind its first piece, too."""
        if isinstance(self.memory, PageMemory):
            return not self.in_turn or self.head() in self.loaded or self.head_fits(num_new)
        writes_ahead = (self.admits_lookahead and self.num_lookahead) or self.num_padded
        if not (self.in_turn and writes_ahead):
            return True
        head = self.head()
        reserve = self.num_reserved if self.running else 0
        room = self.num_free - self.decode_need() - reserve - self.promised()
        if head in self.loaded and not head.num_elsewhere:  # it holds its blocks, not another's
            return self.blocks_behind_loaded(head, num_new) <= room
        num_slots = self.behind_first(self.memory.cached_tokens(head) + num_new)
        return self.blocks_for(num_slots) - self.memory.num_held(head) <= room

    def is_for_decodes(self) -> bool:
        """Tell whether prompts wait for another step."""
        if self.interval == 1 or self.is_bound:
            return False
        if not any(live.decoding or live in self.late for live in self.running):
            return False
        if self.rounds is not None:
            return self.rounds.number % self.interval != 0
        if self.last_carrying is None:
            return False
        return len(self.steps) + 1 - self.last_carrying < self.interval

    def may_pass(self) -> bool:
        """Tell whether the head is admitted although the step is for decodes."""
        return (
            self.to_compute(self.head()) <= 1
            if self.held_spares_hits
            else self.head() in self.loaded
        )

    def running_piece(self, live: Live, budget: int) -> int:
        """Tokens of a prompt that runs."""
        return 0 if self.is_held else self.piece(live, budget)

    @property
    def in_turn(self) -> bool:
        """Tell whether prompts take blocks for each piece."""
        return not self.swap_space

    @property
    def num_batches(self) -> int:
        """Steps that may be planned and not over at once."""
        return 2 if self.plans_ahead else 1

    @property
    def most_counted(self) -> float:
        assert self.windows
        if not self.in_turn or (self.whole_must_fit and not self.caps_windows):
            return inf
        steps = self.num_batches if self.returns_unseen else 1
        most = self.windows.size - 1 + steps * self.max_num_batched_tokens
        return -(-most // self.block_size) + 1

    def have_turns(self, memory: PageMemory) -> tuple[bool, list[tuple[Live, int]], list[Live]]:
        """Let those who run give and take pages, one after the other."""
        disturbed = not self.fits_all()
        if not disturbed:
            self.join(sum(number for _, _, number in self.needs_of_pieces()))
            num_new_of = [(live, num_new) for live, num_new, _ in self.needs_of_pieces()]
            served = [(live, 1) for live in self.with_tokens] + num_new_of
            for live in self.running:
                for other, num_new in served:
                    if other is live and num_new:
                        self.give_turn(memory, live, num_new)
        else:
            before, found = len(self.running), self.one_by_one()
            served = [(live, num_new) for live, num_new, _ in found]
            disturbed = len(self.running) < before
            self.note_round(before - len(self.running), found)
        for live in [*self.decodes]:
            if live not in [each for each, _ in served]:
                self.sit_turn_out(live)
        decodes = [live for live in self.decodes if live in [each for each, _ in served]]
        chunks = [(live, num_new) for live, num_new in served if not live.decoding and num_new]
        chunks.sort(key=lambda chunk: self.active.index(chunk[0]))
        self.carries = self.carries or bool(chunks)
        return disturbed, [self.chunk(*chunk) for chunk in chunks], decodes

    def in_order(self) -> list[tuple[Live, int]]:
        """The tokens of a step for each sequence, where each has them before later ones."""
        left, found = self.max_num_batched_tokens, []
        for live in self.running:
            ended = live in self.late and live not in self.decodes
            if ended or self.is_in_flight(live):
                continue
            if left <= 0:
                break
            num_new = 1 if live.decoding else self.running_piece(live, left)
            left -= 1 + self.num_drafts if live.decoding else num_new
            found.append((live, num_new))
        return found

    @property
    def with_tokens(self) -> list[Live]:
        """The decodes that prompts admitted before them leave tokens of the step."""
        if not isinstance(self.memory, StateMemory):
            return self.decodes
        found = [live for live, _ in self.in_order()]
        return [live for live in self.decodes if live in found]

    def sit_turn_out(self, live: Live) -> None:
        if live in self.late:
            self.stop(live)
        live.num_last = 0
        live.is_padded = False

    @property
    def budget(self) -> int:
        """Tokens that the decodes leave for prompts."""
        return self.max_num_batched_tokens - len(self.stepping) * (1 + self.num_drafts)

    def pieces(self) -> list[tuple[Live, int]]:
        """Let the prompts that run go on, which have their blocks."""
        budget, chunks = self.budget, []
        for live in self.active:
            if not live.decoding and (num_new := self.running_piece(live, budget)):
                self.carries = True
                if isinstance(self.memory, PageMemory):
                    self.memory.give_behind(live, self.num_processed(live))
                chunks.append(self.chunk(live, num_new))
                budget -= num_new
        return chunks

    def piece_of(self, budget: int) -> int:
        """Tokens of a step that a long prompt would get."""
        if self.threshold is None or (self.threshold_spares_one and self.is_alone):
            return budget
        return min(budget, self.threshold)

    def load_piece(self, budget: int) -> int | None:
        """Tokens of a first piece that decide whether loads begin."""
        if isinstance(self.memory, StateMemory):
            return self.first_piece(budget)
        return self.piece_of(budget)

    def first_piece(self, budget: int) -> int | None:
        return self.piece(self.head(), budget) if self.queue or self.loaded else None

    def run_in_turn(self) -> tuple[bool, list[tuple[Live, int]], list[Live]]:
        """Let those who run take their blocks.

        Blocks are counted first, and taken when it is clear who gets them. Returns whether anyone
        was preempted, the pieces of prompts, and the decodes of the step.
        """
        if self.fits_all():
            self.join(sum(number for _, _, number in self.needs_of_pieces()))
            return False, *self.take(self.needs_of_all())
        before = list(self.running)
        if self.spares:
            served = self.one_by_one()
            self.note_round(len(before) - len(self.running), served)
            return len(self.running) < len(before), *self.take(served)
        if self.order == "priority" and not self.num_drafts:
            served = self.one_by_one()
        else:
            while not self.fits_all():
                self.preempt(self.victim())
            served = self.needs_of_all()
        self.note_round(len(before) - len(self.running), served)
        return True, *self.take(served)

    def note_round(self, num_preempted: int, served: list[tuple[Live, int, int]]) -> None:
        """Count plans that preempt and give no token, and end a run in which they come again."""
        if not num_preempted or any(live.decoding for live, *_ in served):
            return
        inside = [*self.waiting, *self.active]
        progress = sum(live.num_emitted for live in inside), len(self.gone)
        if progress != self.progress:
            self.progress, self.rounds_seen = progress, []
        state = [(live, live.num_cached) for live in self.running], list(self.queue)
        self.rounds_seen.append(state)
        if len(self.rounds_seen) >= _MOST_ROUNDS and state in self.rounds_seen[:-1]:
            raise EndlessError

    def one_by_one(self) -> list[tuple[Live, int, int]]:
        """Preempt for each who runs; return who gets how many tokens and blocks."""
        turns, served = list(self.running), []
        while turns:
            live = turns.pop(0)
            has_overrun = live in self.decodes and isinstance(self.memory, PageMemory)
            if (live in self.late and not has_overrun) or self.is_in_flight(live):
                continue
            new = sum(num_new for other, num_new, _ in served if not other.decoding)
            left = self.budget - new
            if isinstance(self.memory, StateMemory):
                num_decodes = len([other for other, *_ in served if other.decoding])
                left = self.max_num_batched_tokens - new - num_decodes * (1 + self.num_drafts)
                if left <= 0:
                    break
            num_new = 1 if live.decoding else self.running_piece(live, left)
            if isinstance(self.memory, PageMemory) and num_new:
                self.memory.give_behind(live, self.num_processed(live))
            need, missed = self.blocks_in_turn(live, num_new), 0
            while sum(number for *_, number in served) + need > self.num_free:
                victim = self.victim()
                if self.spares and victim not in self.idle:
                    return served
                is_over = victim in self.late or self.is_in_flight(victim)
                missed += is_over and victim not in turns
                missed *= not self.pass_goes_on
                had_its_turn = victim in [other for other, *_ in served]
                self.preempt(victim, was_served=had_its_turn)
                served = [entry for entry in served if entry[0] is not victim]
                turns = [each for each in turns if each is not victim]
                if victim is live:
                    break
            else:
                if isinstance(self.memory, PageMemory) and num_new:
                    self.give_turn(self.memory, live, num_new)
                    need = 0
                served.append((live, num_new, need))
                self.carries |= num_new > 0 and not live.decoding
                del turns[:missed]
                continue
            if not self.pass_goes_on:
                break
        return served

    @property
    def spares(self) -> bool:
        """Tell whether nobody gives way whom the step in flight computes."""
        defers = self.spares_in_flight and self.defers_frees and self.tiers
        return bool(defers and self.is_ahead and self.in_turn and not self.num_drafts)

    def is_in_flight(self, live: Live) -> bool:
        """Tell whether a step is planned already that computes all that is known of it."""
        return False

    def needs_of_all(self) -> list[tuple[Live, int, int]]:
        decodes = [(live, 1, self.next_blocks(live)) for live in self.decodes]
        return decodes + self.needs_of_pieces()

    def fits_all(self) -> bool:
        need = sum(number for _, _, number in self.needs_of_pieces())
        return sum(map(self.next_blocks, self.with_tokens)) + need <= self.num_free

    def needs_of_pieces(self) -> list[tuple[Live, int, int]]:
        budget, needs = self.budget, []
        if isinstance(self.memory, StateMemory):
            prompts = [(live, new) for live, new in self.in_order() if not live.decoding]
            return [(live, new, self.blocks_in_turn(live, new)) for live, new in prompts]
        for live in self.active:
            if not live.decoding:
                num_new = self.running_piece(live, budget)
                needs.append((live, num_new, self.blocks_in_turn(live, num_new)))
                budget -= num_new
        return needs

    def blocks_in_turn(self, live: Live, num_new: int) -> int:
        """Blocks that a running request takes in the step."""
        if isinstance(self.memory, PageMemory):
            return self.missing_pages(self.memory, live, num_new) if num_new else 0
        if live.decoding:
            return self.next_blocks(live)
        num_slots = live.num_cached + num_new
        if num_new:
            num_slots = self.behind(num_slots)
        return max(0, self.blocks_for(num_slots) - len(live.blocks))

    def take(
        self, served: list[tuple[Live, int, int]]
    ) -> tuple[list[tuple[Live, int]], list[Live]]:
        """Let decodes take their blocks, then prompts, each with the names of what it fills."""
        decodes = [live for live in self.decodes if live in [each for each, _, _ in served]]
        for live in decodes:
            self.memory.grow([(live, self.next_slots(live), self.next_blocks(live))])
        for live in decodes:
            live.num_planned = live.num_cached + 1
            if self.block_size > 1 and not self.covers_next:
                newest = not self.is_ahead
                if self.is_ahead and self.guesses and live.num_last:
                    newest = 1 - live.num_last
                self.memory.enter_answer(live, live.num_cached + newest)
        chunks = []
        for live, num_new, need in served:
            if not live.decoding and num_new:
                self.carries = True
                self.memory.grow([(live, self.behind(live.num_cached + num_new), need)])
                chunks.append(self.chunk(live, num_new))
        return chunks, decodes

    def piece(self, live: Live, budget: int) -> int:
        num_new = min(self.to_compute(live), budget)
        if self.threshold is not None and not (self.threshold_spares_one and self.is_alone):
            num_new = min(num_new, self.threshold)
        if isinstance(self.memory, StateMemory) and num_new:
            num_known = live.num_known + self.num_on_their_way(live)
            begin = num_known - self.to_compute(live)
            is_first = live not in self.running
            num_new = self.memory.end_of_piece(live, num_known, begin, num_new, is_first) - begin
        return num_new

    def num_on_their_way(self, live: Live) -> int:
        """Tokens of who runs that later pieces compute though they have not come."""
        return 0


@dataclass(kw_only=True)
class StepwiseWholePrompts(StepwiseEngine):
    """Prompts are never cut; `limit` is for the prompts of a step."""

    max_num_batched_tokens: int | None

    @property
    def limit(self) -> float:
        return inf if self.max_num_batched_tokens is None else self.max_num_batched_tokens

    def can_never_start(self, live: Live) -> bool:
        too_long = live.num_known - live.num_elsewhere > self.limit and not live.incoming
        return too_long or super().can_never_start(live)

    def begin_plan(self) -> None:
        self.name_verified()
        self.memory.begin_plan()

    def admit_prompts(self) -> list[tuple[Live, int]]:
        chunks: list[tuple[Live, int]] = []
        total = 0
        while self.begin_loads() and self.head_fits():
            num_new = self.to_compute(self.head())
            if chunks and total + num_new > self.limit:
                break
            chunks.append(self.chunk(self.admit_head(), num_new))
            total += num_new
        return chunks


class StepwiseContinuous(StepwiseWholePrompts):
    """Prompts first and alone; decodes run when no prompt can be admitted."""

    def plan(self) -> Plan:
        self.begin_plan()
        chunks = self.admit_prompts()
        if chunks:
            return chunks, []
        self.make_room()
        return [], self.stepping


class StepwiseMixed(StepwiseWholePrompts):
    """Prompts and all decodes in one step; no prompt is admitted when one was preempted."""

    def plan(self) -> Plan:
        self.begin_plan()
        if self.make_room():
            return [], self.stepping
        return self.admit_prompts(), self.stepping


class StepwiseStatic(StepwiseWholePrompts):
    """A batch forms when the engine is empty, and runs until it is empty again."""

    def plan(self) -> Plan:
        self.begin_plan()
        chunks = [] if self.running else self.admit_prompts()
        if chunks:
            return chunks, []
        self.make_room()
        return [], self.stepping
