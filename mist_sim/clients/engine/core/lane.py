"""A lane: one scheduler with its memory, in steps. Each is planned, timed, and ends.

Chunked prefill as in vLLM v1: decodes first, pieces of prompts fill the token budget, first come,
first served; a request that finds no block takes those of the one admitted last, which is computed
again. In another order (`ranked`), the queue says which request is next, and by priority also which
one gives way. Pieces may be limited (`obey`).

A lane that plans ahead makes the plan of a step when the step before it begins, as vLLM's
`step_with_batch_queue` does with two batches. Here that plan is made when its step begins, from
what was known then (`known_until`): it does not know requests that came since, and counts the seat
and blocks of a request that ended with the step before, which come back after the plan. A plan that
computes nothing leaves no step in flight: the next one is made on the spot, and knows everything.

A lane that swaps (vLLM v0) copies the blocks of preempted requests to the host, where they fit, and
back before any request is admitted. The next step waits for its copies. Prompts have all their
blocks from their admission on, and decodes take theirs as a step ends.

Where the copies overlap with steps (`overlaps`), blocks are free once they are copied, and decodes
that find none until then miss steps. A request that is copied back has blocks and no seat
meanwhile, and then goes on like those whose entries come from elsewhere.

Where prompts are computed whole (`obey`), they have all their blocks as well. They come
beside the decodes, or in steps of their own, which the decodes miss: `num_steps` counts the steps
of decodes, and stands still in the others, which `num_apart` counts.

A lane above tiers (`tiered.py`) lets the blocks of a prompt come that it finds there, in its turn:
the prompt waits for them with its blocks, and goes on before the queue; or else the step that
admits it waits. vLLM's rules for these are in `EngineRules`.

A lane whose client has stages (`be_staged`) computes prompts in one of them and answers in the
other. The client says in which (`Notes.plan_stage`); it hears of each step that ends, and when
nothing is left to compute.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Protocol

from mist_sim.clients.kv_cache.moves import Room

if TYPE_CHECKING:
    from mist_sim.clients.engine.core.blocks import Blocks
    from mist_sim.clients.engine.core.paged import PagedBlocks
    from mist_sim.clients.engine.core.rows import Counts, Rows
    from mist_sim.clients.engine.core.tiered import TieredBlocks
    from mist_sim.clients.engine.core.times import Times
    from mist_sim.clients.engine.lane_setup import LaneSetup
    from mist_sim.clients.engine.own_rules import OwnRules
    from mist_sim.clients.engine.ranked_queue import RankedQueue
    from mist_sim.clients.prefixes.prefix_cache import Chain, Found
    from mist_sim.clients.prefixes.shared_prefixes import SharedPrefixes
    from mist_sim.clients.scheduling.cadence import Cadence

    Chunks = tuple[tuple[int, int], ...]
    Story = tuple[float, float, float, int, int, int, int, int]

inf, nan = float("inf"), float("nan")

# states of a slot: LEAVING has all its tokens, which the next plan does not know; COMING has
# blocks and no seat, and its entries are on their way; CAME: they are there; ABANDONED gave up
# meanwhile; HELD has ended, and its blocks stay until others have copied them; COPIED: they have,
# and the next plan does not know it; SWAPPED waits with its entries on the host; GONE has left,
# while batches in flight compute it (`pipeline.py`); PAUSED decodes, but not in the step in flight
STATES = FREE, WAITING, PREFILL, DECODE, LEAVING = 0, 1, 2, 3, 4
COMING, CAME, ABANDONED, HELD, COPIED, SWAPPED, GONE, PAUSED = 5, 6, 7, 8, 9, 10, 11, 12
# what the client is told of a request: OUTGROWN has more tokens than the whole memory holds;
# STOPPED: the lane itself has ended its last step; COMES: its entries may come, there are blocks;
# HAS_ALL: none need to come, the cache has as many; LOST: its entries did not come, and it waits;
# MOVES: another client goes on with its answer; GOES: its blocks are copied to the host while steps
# go on; RETURNS: they are copied back; LOOKS: where prompts and answers have stages, the lane has
# ended a step, or rests
WAYS = FINISHED, OUTGROWN, GIVEN_UP, GIVEN_UP_WAITING, STOPPED = 0, 1, 2, 3, 4
COMES, HAS_ALL, LOST, MOVES, GOES, RETURNS, LOOKS = 5, 6, 7, 8, 9, 10, 11
# what a request brings: the entries of an answer so far, or of the first tokens of a prompt, from
# others or from tiers
BRINGS = NOTHING, AN_ANSWER, A_PREFIX, FROM_TIERS = 0, 1, 2, 3
# when whole prompts come in: with the decodes, in a step of their own, or in one when none runs
PROMPTS = BESIDE, APART, WHEN_IDLE = 0, 1, 2
# what it leaves to others as it ends: its entries, and its token, too, which is not given here
LEAVES = NONE, ENTRIES, ENTRIES_SILENTLY = 0, 1, 2

# a compiled module reads its own numbers fast
_FREE, _WAITING, _PREFILL, _DECODE, _LEAVING = STATES
_COMING, _CAME, _ABANDONED, _HELD, _COPIED = COMING, CAME, ABANDONED, HELD, COPIED
_SWAPPED, _PAUSED = SWAPPED, PAUSED
_FINISHED, _OUTGROWN, _GIVEN_UP, _GIVEN_UP_WAITING, _STOPPED = WAYS
_COMES, _HAS_ALL, _LOST, _MOVES, _GOES, _RETURNS = COMES, HAS_ALL, LOST, MOVES, GOES, RETURNS
_LOOKS = LOOKS
_NOTHING, _AN_ANSWER, _A_PREFIX, _FROM_TIERS = BRINGS
_NONE, _ENTRIES, _ENTRIES_SILENTLY = LEAVES
_BESIDE, _APART, _WHEN_IDLE = PROMPTS

_NO_STEP = -1
_NO_ROOM = -2  # for what is written behind a prompt's first piece
_NEVER = 1 << 62


class Notes(Protocol):
    """Hears what the records need of a lane."""

    def gap(self, time: float, gap: float, number: int = 1, track: int = 0, /) -> None:
        """So many answers go on, `gap` seconds after the token before."""

    def stay(self, slot: int, first: int, last: int, resumed: bool, track: int = 0, /) -> None:
        """A request that ends or gives way has decoded in the steps from `first` up to `last`.

        resumed: whether it had entries of another client, or was in another group of decodes, and
        no prompt computed before. track: of the steps, one for each group.
        """

    def emit(self, slot: int, /) -> None:
        """A prompt, or a preempted answer, is computed."""

    def copy(self, slot: int, out: bool, num_blocks: int, num_tokens: int, time: float, /) -> None:
        """Blocks with the entries of so many tokens go to the host, or come back."""

    def load(self, slot: int, numbers: list[int], time: float, /) -> float:
        """So many blocks of a request come from each tier; return the seconds a step waits."""

    def wait(self, seconds: float, /) -> float:
        """A step waits so long for copies; return how long with what else it waits for."""

    def may_move(self) -> bool:
        """Tell whether another client is up that would go on with answers."""

    def plan_stage(self) -> bool:
        """Plan the prompts of a step, if this is their stage; return whether answers go on."""

    def stand_still(self, preempted: list[int], /) -> None:
        """A plan makes some give way and lets no decode take a step; raise if that has no end."""

    def wait_for_ever(self, num_waiting: int, /) -> None:
        """Raise: nothing will ever admit the requests that wait."""

    def draw(self, slot: int, num_tokens: int, /) -> bytes:
        """Return how many drafts each step of an answer accepts, which lacks so many tokens.

        Two bytes each, the lower one first.
        """


class Flow(Protocol):
    """Says which answers go on at other clients (see `flow.py`)."""

    def leaving(self, lane: Lane, /) -> list[int]:
        """Return the slots that leave now, in this order."""

    def num_quiet(self, lane: Lane, number: int, /) -> int:
        """Return how many of so many quiet steps end with no answer too long."""

    def quiet_until(self, lane: Lane, /) -> float:
        """Return a time before which no step ends that makes an answer too slow, in seconds."""


class Lane:
    """A request has a slot from its arrival until it leaves; what the loop reads are its columns.

    number, end_phase, plan_phase: its place among lanes whose steps end, or are planned, at the
        same time. times, blocks, rows, notes: of its steps. counts: of its client, which
        routers see. prefixes: those that decodes share, where step times depend on them.
    plans_ahead: whether each step is planned when the one before begins.

    time, phase: of what it does next, ending a step or planning one; inf while it rests.
    notices: (slot, how) of whom others have to hear, by the latest plan or end of a step (`WAYS`);
        their columns can be read until another request comes. is_watched: whether others hear when
        one begins to run or gives way. tells_prompts: whether they hear of each prompt that is
        computed. waits_for_more: whether steps may wait for more than copies (`Notes.wait`).
    begins_at: time before which it plans nothing. stops: whether the step in flight is its last.
        is_halted: whether it rests until another request
        comes, also if some wait.
    """

    def __init__(
        self,
        number: int,
        end_phase: int,
        plan_phase: int,
        max_num_seqs: int,
        plans_ahead: bool,
        times: Times,
        blocks: Blocks,
        rows: Rows,
        counts: Counts,
        notes: Notes,
        prefixes: SharedPrefixes | None,
    ) -> None:
        self.number, self.end_phase, self.plan_phase = number, end_phase, plan_phase
        self.max_num_seqs, self.plans_ahead = max_num_seqs, plans_ahead
        # tokens of a step; whether a prompt is admitted only if all of it fits into memory
        self.max_tokens, self.whole_must_fit = _NEVER, False
        self.times, self.blocks, self.rows, self.counts = times, blocks, rows, counts
        self.notes, self.prefixes = notes, prefixes
        # what comes next
        self.time, self.phase, self.place = inf, 0, -1
        self.due, self.due_phase = inf, 0  # by which it stands among the others, see `Core`
        self.is_planning = False
        self.notices: list[tuple[int, int]] = []
        self.is_watched = self.tells_prompts = self.stops = self.is_halted = False
        self.waits_for_more = False
        self.begins_at = self.wait = 0.0  # wait: of the latest step, for copies and the like
        self.seen_at = _NEVER  # number of the next step whose end others see
        # the step in flight, or the latest one
        self.start = self.ended = 0.0  # when it began, and when the latest one ended
        self.num_steps = self.num_given = 0  # that have ended; tokens that they gave
        self.num_beside = 0  # tokens that the latest step gave so far
        self.is_whole, self.prompts_come = False, _BESIDE  # prompts whole, and when (`PROMPTS`)
        self.is_apart, self.num_apart = False, 0  # the latest step is of prompts alone; such before
        # when the latest step of decodes ended, if they have missed some since, else -1; decodes of
        # the step in flight that have
        self.waits_since, self.num_late = -1.0, 0
        # the next plan knows what happened up to this time; inf: all. Finite: it is made ahead
        self.known_until = inf
        # whether the plan of the latest step was made ahead, and was of prompts alone
        self.was_ahead = self.was_apart = False
        self.num_new = 0  # tokens of prompts in it
        self.has_changed = True  # whether its members are others than of the step before
        self.is_alone = False  # whether it has a row of its own in the records
        # running requests, in order of admission
        self.running: list[int] = []
        self.prefilling: list[int] = []  # those of them that compute prompts
        self.leaving: list[int] = []  # those of them that have all their tokens
        self.num_decodes = 0
        self.context_sum = 0  # of the decodes
        self.next_last = _NEVER  # no decode has its last token in a step before
        # decodes that take a block in a step, by its number modulo the size of a block
        self.takers = array("q", bytes(8 * blocks.size))
        self.decode_need = 0  # blocks that they take in the next step
        self.num_writers = 0  # decodes whose blocks others may find
        self.num_read_again = 0  # keys of the decodes, see `StepBatch`
        # with windows or states, a step gives pages back and takes others
        self.is_paged, self.per_block = blocks.is_paged, blocks.per_block
        self.paged: PagedBlocks = blocks if blocks.is_paged else None  # type: ignore[assignment]
        self.num_used_before = 0  # blocks, as the latest step ended
        # whether states are kept for others; whether pieces of prompts end where one is saved, and
        # whether then each has tokens of a step before those admitted after it; decodes for which
        # none are left in the step that is planned
        self.keeps_states = blocks.is_paged and self.paged.keeps_states
        self.aligns = self.in_order = self.keeps_states
        self.left_out: list[int] = []
        # by slot, with pages: the latest step of its prompt, and its computed tokens before
        self.piece_step = self.before_piece = array("q")
        # waiting requests, in order, and those that gave up: (when, slot) of each that leaves with
        # a step or plan
        self.queue: OrderedDict[int, None] = OrderedDict()
        self.given_up: list[tuple[float, int]] = []
        self.ranked: RankedQueue | None = None  # if the next one is not the first to arrive
        self.own: OwnRules | None = None  # of a scheduler; whether each plan asks it
        self.asks_always = False
        self.follows = False  # whether it makes whole plans (`follow`); in such a plan:
        self.taking: dict[int, int] = {}  # who takes part, and blocks still to take
        self.is_given = False  # whether they have their blocks
        self.gone: list[int] = []  # preempted
        self.num_tokens_left, self.most_of_one = 0, _NEVER  # of the step; the most of a prompt
        # decodes that miss the step in flight; whether some missed the latest plan, and all did
        self.paused: list[int] = []
        self.some_missed = self.all_missed = False
        # whether none that waits fits before one leaves, so that quiet steps may pass them: each
        # plan finds it out anew, and no admission reads it
        self.is_blocked = False
        # limits of pieces (see `obey`); in the latest plan, the most tokens of one, and
        # whether the step is for decodes
        self.threshold = self.most_partial = self.max_piece = _NEVER
        self.spares_one = self.held_spares_hits = self.is_held = False
        self.cadence: Cadence | None = None
        # entries of others: those that have come wait for a seat and blocks of their next step,
        # answers before prompts, and all of them before the queue
        self.moved: list[int] = []
        self.loaded: list[int] = []
        self.came: list[tuple[float, int, bool]] = []  # when; the next plan may not know it
        self.num_coming = self.num_abandoned = self.num_held = 0  # slots that are so
        self.num_promised = 0  # blocks that these need beside those they have
        self.joined: list[int] = []  # decodes that take their first step here
        # whose blocks come back at the end of the step in flight: they gave up, or were copied
        self.forgotten: list[tuple[Chain | None, int]] = []
        self.flow: Flow | None = None  # the rule by which other clients go on with answers
        self.due_slots: list[tuple[int, int]] = []  # (ticket, slot) that leave after this plan
        self.first: OrderedDict[int, None] = OrderedDict()  # such answers, and preempted ones
        self.num_tickets = 0  # drawn so far, one by each that joins the decodes
        self.num_done_blocks = 0  # that ended requests still hold
        self.copied: list[int] = []
        self.swaps = False  # whether prompts have all their blocks from their admission on
        self.has_host = False  # whether preempted ones are swapped
        self.swapped: dict[int, None] = {}  # on the host, in order of going
        self.host: Room = None  # type: ignore[assignment]
        self.copy_time, self.num_copied = 0.0, 0  # seconds a block; blocks before the next step
        self.overlaps = False  # whether steps go on while blocks are copied
        self.going: dict[int, None] = {}  # to the host; their blocks are taken until then
        self.num_going = 0  # these blocks
        self.returning: dict[int, None] = {}  # from the host, where they have room till then
        self.is_staged = False  # whether its client has stages
        self.has_tiers = blocks.has_tiers
        self.tiered: TieredBlocks = blocks if self.has_tiers else None  # type: ignore[assignment]
        # defers: blocks that the step in flight may write come back behind the plan made ahead;
        # spares, reserves_rest, preempted_first: of `EngineRules`
        self.defers = self.spares = self.reserves_rest = self.preempted_first = False
        self.idle: set[int] = set()  # without tokens in the latest plan; never spared
        self.deferred: list[tuple[int, Any, int, int]] = []  # slot, chain, blocks, known tokens
        self.gave_back: dict[int, int] = {}  # that let loaded blocks go, after how many preemptions
        self.load_time = 0.0  # seconds that the step that is planned waits for loads
        # steps that `quiet` took at once: how many more it may take, -1 if it has not looked;
        # how many have not taken their blocks yet
        self.num_quiet, self.lag = 0, 0
        self.is_pipeline = False  # which takes its own
        # tokens that each decode brings into a step, and that a piece of a prompt and the first one
        # have memory for beyond their own
        self.num_queries, self.num_behind, self.num_first = 1, 0, 0
        # the most tokens with memory; of the step in flight, decodes that have ended
        self.max_context, self.num_gone = _NEVER, 0
        # seconds of steps that were asked for and not taken yet
        self.ahead, self.num_ahead, self.next_ahead = array("d"), 0, 0
        # columns by slot; of a decode, `num_tokens` and `num_blocks` are those when it joined in
        # `first_step`, with `num_apart` as in `first_apart`, and `last_step` is the number of the
        # step that ends its answer
        self.num_slots = 0
        self.unused: list[int] = []
        self.chains: list[Any] = []  # `Chain` or `PagedChain`, or None
        self.queued_at = self.started_at = self.first_token_at = self.last_token_at = array("d")
        self.num_prompt = self.num_tokens = self.num_final = self.num_computed = array("q")
        self.num_piece = self.num_blocks = self.num_cached = self.num_queued = array("q")
        self.num_preempted = self.num_ahead_of = array("q")
        self.first_step = self.first_apart = array("q")
        self.last_step = self.state = array("q")
        self.num_brought = self.brings = self.leaves = self.resumed = array("q")
        self.ticket = self.paced_from = self.num_backflows = array("q")
        self.paced_at = array("d")
        self.make_room()

    def obey(self, setup: LaneSetup, cadence: Cadence | None, asks_always: bool) -> None:
        """Plan by the options of a scheduler, and by the rules of its engine's version.

        cadence: when steps may carry prompts. asks_always: whether every plan asks the queue; a
        scheduler of one's own (`own`) says so itself.
        """
        scheduler, rules, memory = setup.scheduler, setup.rules, setup.memory
        self.max_tokens = scheduler.max_num_batched_tokens or _NEVER
        self.asks_always = asks_always
        if setup.prompts_come is not None:
            self.swaps = self.whole_must_fit = self.is_whole = True
            self.aligns = self.in_order = False
            self.prompts_come = setup.prompts_come
        else:
            self.whole_must_fit = scheduler.scheduler_reserve_full_isl
            threshold = scheduler.long_prefill_token_threshold
            self.threshold = self.max_piece = threshold or _NEVER
            self.most_partial = scheduler.max_num_partial_prefills or _NEVER
            self.cadence, self.held_spares_hits = cadence, rules.held_spares_hits
            self.spares_one = rules.threshold_spares_one and threshold is not None
        if self.own is not None:
            self.asks_always, self.follows = self.own.asks_always, self.own.plans
        if self.has_tiers:
            self.reserves_rest = rules.reserves_prefills and not self.is_whole
            self.defers = rules.defers_frees and self.plans_ahead and not self.is_whole
            drafts = setup.config.speculative_config is not None
            self.spares = rules.spares_in_flight and self.defers and not drafts
        if memory.swap_space is not None:
            self.swaps = self.has_host = self.whole_must_fit = True
            self.overlaps, self.in_order = scheduler.swaps_overlap, False
            self.host = Room(memory.swap_space.num_blocks)
            self.copy_time = memory.swap_space.seconds_per_block

    def be_staged(self, host: Room | None, asks_always: bool) -> None:
        """Compute whole prompts in one stage and answers in another, as the client says.

        host: has room for answers of all its lanes; None: they stay here. asks_always: whether the
            stage may change after any step; else not while answers just go on.
        """
        self.is_staged, self.asks_always = True, asks_always
        if host is not None:
            self.host = host

    # --- requests come and go -----------------------------------------------------------------

    def add(
        self,
        now: float,
        num_prompt: int,
        num_tokens: int,
        num_final: int,
        last_token_at: float,
        chain: Chain | None,
        brings: int = NOTHING,
        num_brought: int = 0,
        leaves: int = NONE,
    ) -> int:
        """Queue a request that comes now; return its slot. All steps before now are taken.

        num_tokens: known ones, num_final: with the whole answer. last_token_at: of an answer that
        another client began, NaN without one. chain: of its blocks, or None. brings: entries from
        elsewhere, of `num_brought` tokens. leaves: what it leaves to others.
        """
        if not self.unused:
            self.make_room()
        slot = self.unused.pop()
        self.queued_at[slot] = now
        self.started_at[slot] = self.first_token_at[slot] = nan
        self.last_token_at[slot] = last_token_at
        self.num_prompt[slot], self.num_tokens[slot] = num_prompt, num_tokens
        self.num_final[slot], self.num_queued[slot] = num_final, num_tokens
        self.brings[slot], self.num_brought[slot] = brings, num_brought
        if brings:
            self.num_queued[slot] = 0 if brings == _AN_ANSWER else num_tokens - num_brought
        self.leaves[slot], self.resumed[slot] = leaves, 0
        self.num_computed[slot] = self.num_piece[slot] = self.num_blocks[slot] = 0
        self.num_preempted[slot] = self.num_ahead_of[slot] = 0
        self.num_cached[slot] = -1
        self.first_step[slot], self.last_step[slot] = _NO_STEP, _NEVER
        self.state[slot] = _WAITING
        self.chains[slot] = chain
        self.ticket[slot] = self.num_backflows[slot] = 0
        self.paced_at[slot], self.paced_from[slot] = nan, 1
        self.queue[slot] = None
        if self.flow is not None and brings == _AN_ANSWER:
            self.first[slot] = None
            self.num_quiet = 0
        if self.ranked is not None or self.cadence is not None or self.is_staged:
            self.is_blocked = False
        if not self.is_blocked:
            self.num_quiet = 0
        self.is_halted = False
        self.wake(now)
        return slot

    def wake(self, now: float) -> None:
        """Plan now, if it rests and requests wait."""
        may = not (self.stops or self.is_halted)
        if self.time == inf and may and (self.waits() or (self.follows and self.running)):
            self.is_planning = True
            self.time, self.phase = max(now, self.begins_at), self.plan_phase

    def waits(self) -> bool:
        """Tell whether requests wait while the lane rests, also on the host or for copies."""
        if self.swapped or (self.overlaps and self.running):
            return True
        return bool(self.queue or self.moved or self.loaded)

    def give_up(self, now: float, slot: int) -> bool:
        """Let a request go whose sender gives up now; return whether it leaves at once.

        One that runs leaves at the end of the step in flight. Where steps are planned ahead, it
        leaves when a plan knows of it, also if it waits.
        """
        state = self.state[slot]
        waits = state in (_WAITING, _CAME, _SWAPPED)
        if state != _COMING and now >= self.begins_at:
            if self.plans_ahead:
                is_known = self.queued_at[slot] <= self.known_until < inf
                if self.time < inf and (state != _WAITING or is_known):
                    self.given_up.append((now, slot))
                    self.num_quiet = 0
                    return False
            elif not (waits or self.is_planning or self.time == inf):
                self.given_up.append((now, slot))
                self.seen_at = self.num_steps + 1
                self.num_quiet = 0
                return False
        self.settle()
        self.let_go(slot)
        self.wake(now)
        return True

    def halt(self) -> None:
        """Lose the step in flight, and rest: those that are done or gave up are let go."""
        self.write()
        if self.time < inf and not self.is_planning:
            self.lose_blocks()
        self.time, self.known_until = inf, inf
        self.is_planning = self.has_changed = self.is_halted = True
        self.num_quiet = 0
        if self.paused:
            self.end_pause()
        self.joined = []
        self.free_forgotten()
        if not self.plans_ahead and self.given_up:
            self.end_given_up()
        self.free_copied()
        self.free_leaving()
        if self.plans_ahead:
            self.learn()

    def lose_blocks(self) -> None:
        """Give back the blocks that decodes took for a step that is lost."""
        self.decode_need = self.next_need()
        if self.is_paged:
            self.lose_pages()
        elif not self.swaps:
            self.blocks.free(None, self.decode_need, 0)

    def write(self) -> None:
        """Write the steps that have ended."""
        if self.lag:
            self.settle()
            self.rows.end, self.rows.num_waiting = self.ended, self.counts.num_waiting
            if self.is_paged:
                self.rows.num_used = self.num_used_before
            else:
                taken = 0  # for the step in flight
                if not self.swaps:
                    taken = self.takers[self.num_steps % self.blocks.size]
                self.rows.num_used = self.blocks.num_blocks - self.blocks.num_free - taken
        self.rows.flush()

    def stop_at_end(self) -> bool:
        """Plan no more; return whether no step is in flight. Else it rests behind it, STOPPED."""
        self.stops = True
        if self.time == inf or self.is_planning:
            self.halt()
            return True
        self.seen_at, self.num_quiet = self.num_steps + 1, 0
        return False

    def take_off(self, slot: int) -> int:
        """Take a request that runs out of a lane that has stopped; return its computed tokens."""
        num_computed = self.stop(slot)
        if self.state[slot] == _DECODE:
            num_computed = self.num_tokens[slot] - 1  # also those that are not named yet
        self.end_stay(slot)
        self.state[slot] = _PREFILL
        return num_computed

    def let_go(self, slot: int) -> None:
        """Take a request out that is given up, and free its blocks.

        While entries come into them, they stay taken.
        """
        self.is_blocked = False
        self.num_quiet = 0
        state = self.state[slot]
        if state == _WAITING:
            self.leave_queue(slot)
            self.release(slot)
        elif state == _SWAPPED:
            del self.swapped[slot]
            if slot in self.going:
                self.num_abandoned += 1
                self.state[slot] = _ABANDONED
                return
            self.host.release(self.blocks.held(self.num_kept(slot)))
            self.release(slot)
        elif state in (_COMING, _CAME):
            self.num_promised -= self.need_to_join(slot)
            if state == _COMING:
                self.num_coming -= 1
                self.num_abandoned += 1
                self.state[slot] = _ABANDONED
                return
            (self.moved if self.brings[slot] == _AN_ANSWER else self.loaded).remove(slot)
            self.forget(slot)
            self.release(slot)
        else:
            num_known = self.stop(slot)
            if state != _LEAVING:
                self.end_stay(slot)
            self.running.remove(slot)
            if state != _LEAVING:
                self.num_done_blocks += self.num_blocks[slot]
            self.let_seat_go(slot, num_known, self.may_be_written(slot))

    def may_be_written(self, slot: int) -> bool:
        """Tell whether blocks come back only when the step in flight is over."""
        return self.defers and self.known_until < inf and slot not in self.idle

    def free_deferred(self) -> None:
        """Take back the blocks that the step in flight might have written."""
        deferred, self.deferred = self.deferred, []
        if deferred:
            self.is_blocked = False
        for slot, chain, number, num_known in deferred:
            if slot < 0:
                self.blocks.free(chain, number, num_known)
                continue
            own = self.blocks.preempt(chain, number, num_known)
            if self.state[slot] == _WAITING:  # and has not left
                self.chains[slot] = own

    def stop(self, slot: int) -> int:
        """Take a request that runs out of the batch; return its computed tokens that are known.

        A plan made ahead does not know the token that the step before gave to a decode.
        """
        self.has_changed = True
        num_known, state = self.num_computed[slot], self.state[slot]
        if state == _PREFILL:
            self.prefilling.remove(slot)
            self.num_piece[slot] = 0
        else:
            if state == _DECODE:
                self.leave_decodes(slot)
                if self.first_step[slot] < self.num_steps:
                    self.last_token_at[slot] = self.decoded_at()
                elif slot in self.joined:
                    self.joined.remove(slot)
            num_known = self.num_cacheable(slot) - self.num_unknown(slot)
        return num_known

    def num_cacheable(self, slot: int) -> int:
        """Return the computed tokens of an answer that others may find as it leaves."""
        return self.num_tokens[slot] - 1

    def num_unknown(self, slot: int) -> int:
        """Return how many of these the next plan does not know."""
        is_behind = self.known_until < inf and self.was_ahead
        return 1 if is_behind and self.first_step[slot] < self.num_steps else 0

    def decoded_at(self) -> float:
        """Return when the latest step of decodes ended, in seconds."""
        return self.ended if self.waits_since < 0 else self.waits_since

    def end_stay(self, slot: int) -> None:
        """Record the steps that gave a request its tokens since its prompt was computed."""
        if self.first_step[slot] != _NO_STEP:
            first = self.first_step[slot] + self.first_apart[slot]
            last = self.num_steps + self.num_apart
            self.notes.stay(slot, first, last, self.resumed[slot] > 0)
            self.resumed[slot] = 0

    def join_decodes(self, slot: int) -> None:
        """Let a request decode that has its first token."""
        self.state[slot] = _DECODE
        self.num_tickets += 1
        self.ticket[slot] = self.num_tickets
        self.num_decodes += 1
        self.context_sum += self.num_tokens[slot] - 1
        self.takers[self.takes_at(slot)] += self.per_block
        last = self.first_step[slot] + self.num_final[slot] - self.num_tokens[slot]
        self.last_step[slot] = last
        self.next_last = min(self.next_last, last)
        chain = self.chains[slot]
        if chain is not None and chain.num_held < chain.num_shared:
            self.num_writers += 1
        if self.prefixes is not None and (chain is not None or self.prefixes.tokens):
            self.num_read_again = self.prefixes.join(
                slot + 1, chain, self.num_decodes, self.context_sum + self.num_decodes
            )

    def leave_decodes(self, slot: int) -> None:
        """Let a request decode no more, between the end of a step and the next plan."""
        self.takers[self.takes_at(slot)] -= self.per_block
        context = self.tokens(slot) - 1
        self.num_tokens[slot], self.num_blocks[slot] = context + 1, self.blocks.count(context)
        self.last_step[slot] = _NEVER
        self.num_decodes -= 1
        self.context_sum -= context
        if context % self.blocks.size == 0:
            self.decode_need -= self.per_block
        chain = self.chains[slot]
        if chain is not None and chain.num_held < chain.num_shared:
            self.num_writers -= 1
        if self.prefixes is not None and (chain is not None or self.prefixes.tokens):
            self.num_read_again = self.prefixes.leave(
                slot + 1, self.num_decodes, self.context_sum + self.num_decodes
            )

    def takes_at(self, slot: int) -> int:
        """Return the number of steps, modulo the size of a block, after which it takes one."""
        size = self.blocks.size
        return (self.first_step[slot] + 1 + size - self.num_tokens[slot] % size) % size

    def tokens(self, slot: int) -> int:
        """Return the tokens of a request that are known now."""
        if self.state[slot] == _DECODE:
            return self.num_tokens[slot] + self.num_steps - self.first_step[slot]
        return self.num_tokens[slot]

    def free(self, slot: int, num_computed: int) -> None:
        """Take back the blocks of a request of which so many tokens are computed."""
        self.blocks.free(self.chains[slot], self.num_blocks[slot], num_computed)
        self.num_blocks[slot] = 0

    def release(self, slot: int) -> None:
        """Let another request have a slot."""
        self.state[slot] = _FREE
        self.chains[slot] = None
        self.unused.append(slot)
        if self.gave_back:
            self.gave_back.pop(slot, None)
        if self.given_up:
            self.given_up = [each for each in self.given_up if each[1] != slot]

    def free_leaving(self) -> None:
        """Take back seats and blocks of those that have ended: the next plan knows it."""
        if self.leaving:
            for slot in self.leaving:
                if slot in self.going:
                    self.free_gone(slot)
                    continue
                if self.state[slot] == _LEAVING:
                    self.running.remove(slot)
                self.let_seat_go(slot, self.num_cacheable(slot), False)
            self.leaving = []
            self.is_blocked = False

    def free_gone(self, slot: int) -> None:
        """Take back blocks that have been copied to the host, and the room there if it gave up."""
        num_kept = self.num_kept(slot)
        del self.going[slot]
        self.num_going -= self.num_blocks[slot]
        self.blocks.swap_out(self.chains[slot], self.num_blocks[slot], num_kept)
        self.num_blocks[slot] = 0
        if self.state[slot] == _ABANDONED:
            self.num_abandoned -= 1
            self.host.release(self.blocks.held(num_kept))
            self.release(slot)

    def let_seat_go(self, slot: int, num_computed: int, later: bool) -> None:
        """Take back the blocks of one that has ended, unless others are still to copy them.

        later: whether they come back behind the plan (`free_deferred`).
        """
        if self.leaves[slot] and self.state[slot] == _LEAVING:
            self.state[slot] = _HELD
            self.num_held += 1
            return
        self.num_done_blocks -= self.num_blocks[slot]
        if later:
            self.deferred.append((-1, self.chains[slot], self.num_blocks[slot], num_computed))
        else:
            self.free(slot, num_computed)
        self.release(slot)

    # --- entries that others have, or ask for ---------------------------------------------------

    def need_to_join(self, slot: int) -> int:
        """Return the blocks that a request lacks beside its entries: for its step, or its prompt.

        For entries that come from tiers: 0, since none are kept.
        """
        if self.brings[slot] == _FROM_TIERS:
            return 0
        return self.blocks.more(
            self.num_brought[slot], self.num_needed(slot), self.brings[slot] == _A_PREFIX
        )

    def num_needed(self, slot: int) -> int:
        """Return the tokens that a waiting request needs memory for in its next decode step."""
        return self.num_tokens[slot]

    def outgrows(self, slot: int) -> bool:
        """Tell whether a request needs more blocks than there are."""
        return self.blocks.alone(self.num_tokens[slot]) > self.blocks.num_blocks

    def to_come(self, slot: int) -> tuple[int, int]:
        """Return the blocks and tokens whose entries have to come; the cache had the others."""
        chain, num_tokens = self.chains[slot], self.num_brought[slot]
        num_held = 0 if chain is None else chain.num_held
        return self.blocks.held(num_tokens) - num_held, num_tokens - num_held * self.blocks.size

    def bring(self, slot: int, found: Found | None) -> None:
        """Take blocks for entries that come from elsewhere, but for those that the cache has."""
        self.blocks.bring(self.chains[slot], found, self.num_brought[slot])
        self.num_blocks[slot] = self.blocks.count(self.num_brought[slot])
        self.num_promised += self.need_to_join(slot)
        self.state[slot] = _COMING
        self.num_coming += 1
        if self.brings[slot] == _AN_ANSWER:  # a prompt begins when it is admitted
            self.started_at[slot] = self.time
        self.note_left(slot, _COMES)

    def entries_come(self, now: float, slot: int, last_token_at: float, is_lost: bool) -> None:
        """Note that the entries of a request are there, or will never come.

        last_token_at: when the latest token of its answer was given. is_lost: whether a prompt has
        to be computed from its start.
        """
        self.settle()
        self.last_token_at[slot] = last_token_at
        self.num_quiet = 0
        if self.plans_ahead and self.time < inf:
            self.came.append((now, slot, is_lost))
        else:
            self.take_in(slot, is_lost)
            self.wake(now)

    def take_in(self, slot: int, is_lost: bool) -> None:
        """Let one go on whose entries have come, as soon as there is room."""
        if slot in self.returning:
            del self.returning[slot]
            self.host.release(self.blocks.held(self.num_brought[slot]))
        if self.state[slot] == _ABANDONED:
            self.num_abandoned -= 1
            self.forget(slot)
            self.release(slot)
            return
        self.num_coming -= 1
        if is_lost:
            self.num_promised -= self.need_to_join(slot)
            self.note_left(slot, _LOST)
            self.forget(slot)
            self.forget_brought(slot)
            self.wait_first(slot)
            return
        self.state[slot] = _CAME
        if self.is_before_loaded(slot):
            self.loaded.insert(0, slot)
        else:
            (self.moved if self.brings[slot] == _AN_ANSWER else self.loaded).append(slot)

    def forget(self, slot: int) -> None:
        """Take back blocks that were not used, behind the step in flight."""
        self.forgotten.append((self.chains[slot], self.num_blocks[slot]))
        self.num_blocks[slot] = 0
        if self.time == inf or self.is_planning or self.plans_ahead or self.is_paged:
            self.free_forgotten()

    def free_forgotten(self) -> None:
        """Take back blocks that were not used."""
        forgotten, self.forgotten = self.forgotten, []
        for chain, number in forgotten:
            self.blocks.forget(chain, number)
            if chain is not None:
                chain.start_over()
            self.is_blocked = False

    def release_held(self, now: float, slot: int) -> None:
        """Note that others have copied the blocks of one that has ended, or never will.

        Or that the host has copied those of one that gave way.
        """
        self.num_quiet = 0
        self.copied.append(slot)
        if self.time == inf or self.is_planning:
            self.settle()
            self.free_copied()
            if self.time == inf or not self.has_work():
                self.free_leaving()
            self.wake(now)

    def free_copied(self) -> None:
        """Take back blocks that others have copied: at once, or behind the next plan."""
        for slot in self.copied:
            if slot in self.going:
                self.leaving.append(slot)
                continue
            self.leaves[slot] = _NONE
            if self.state[slot] == _HELD:
                self.num_held -= 1
                self.state[slot] = _COPIED
                self.leaving.append(slot)
        if self.copied:
            self.copied = []
            if not self.plans_ahead:
                self.free_leaving()

    def join(self) -> None:
        """Let requests decode whose entries have come, in order, while seats and blocks last.

        Requests on the host come back first; but if none runs, they wait for these. Where swaps
        overlap with steps, requests that return from the host are among these.
        """
        need = self.decode_need + self.cut_pieces()
        while self.moved and len(self.running) < self.max_num_seqs:
            if self.swapped and self.running and not self.overlaps:
                break
            slot = self.moved[0]
            room = self.blocks.num_free
            if self.running:
                room -= self.blocks.num_reserved
            more = self.need_to_join(slot)
            if need + more > room:
                break
            need += more
            self.join_now(slot, more)
            self.decode_need = self.next_need()
        self.cut_pieces()

    def join_now(self, slot: int, more: int) -> None:
        """Let one decode whose entries have come, for whom so many blocks were kept."""
        self.moved.remove(slot)
        self.num_promised -= more
        self.have_brought(slot)
        chain = self.chains[slot]
        if chain is not None:
            self.blocks.enter(chain, self.num_tokens[slot] - 1)
        self.running.append(slot)
        self.resume_decode(slot)
        self.has_changed = True
        self.counts.begin(self.num_queued[slot])

    def num_stalled(self) -> int:
        """Return how many of those that joined had their latest token before this step."""
        number = 0
        for slot in self.joined:
            number += self.last_token_at[slot] != self.time
        return number

    def end_first(self) -> None:
        """Give those that joined their first token here."""
        for slot in self.joined:
            if self.first_token_at[slot] != self.first_token_at[slot]:
                self.first_token_at[slot] = self.ended
                self.num_ahead_of[slot] = self.num_decodes - 1
            last = self.last_token_at[slot]
            if last == last and last != self.start:
                self.notes.gap(self.ended, self.ended - last)
        self.joined = []

    # --- entries that another lane of its client had, which has stopped -------------------------

    def resume(
        self,
        slot: int,
        started_at: float,
        first_token_at: float,
        num_preempted: int,
        num_beside: int,
    ) -> None:
        """Note what became of a request in another lane (see `story`)."""
        self.started_at[slot], self.first_token_at[slot] = started_at, first_token_at
        self.num_preempted[slot], self.num_ahead_of[slot] = num_preempted, num_beside

    def take_over(self, slot: int, num_tokens: int, num_more: int) -> bool:
        """Take blocks for the entries of a request just queued, if these and more are free.

        It leaves the queue, and the lane, too, where they are not.
        """
        del self.queue[slot]
        number, num_found, chain = self.blocks.count(num_tokens), 0, self.chains[slot]
        if chain is not None:
            found = self.blocks.find(chain, self.num_tokens[slot])
            num_found = min(found.num_found, num_tokens // self.blocks.size)
        if number - num_found + num_more > self.blocks.num_free:
            self.release(slot)
            return False
        if chain is not None:
            self.blocks.hold(chain, num_found)
        self.blocks.grow(number - num_found)
        self.num_blocks[slot] = number
        return True

    def carry(self, slot: int, num_computed: int, decodes: bool) -> bool:
        """Let a request just queued go on that ran elsewhere; return whether it has room."""
        if not self.take_over(slot, num_computed, 0):
            return False
        chain = self.chains[slot]
        if chain is not None:
            self.blocks.enter(chain, num_computed)
        self.running.append(slot)
        if decodes:
            self.resume_decode(slot)
            self.decode_need = self.next_need()
        else:
            self.carry_prompt(slot, num_computed)
        return True

    def carry_prompt(self, slot: int, num_computed: int) -> None:
        """Let a prompt go on of which so many tokens are computed."""
        self.state[slot], self.num_computed[slot] = _PREFILL, num_computed
        self.prefilling.append(slot)

    def carry_brought(self, slot: int) -> bool:
        """Let one wait to go on whose entries have come elsewhere; return whether it has room."""
        number = self.need_to_join(slot)
        if not self.take_over(
            slot, self.num_brought[slot], number + self.decode_need + self.num_promised
        ):
            return False
        self.num_promised += number
        self.state[slot] = _CAME
        if self.brings[slot] == _AN_ANSWER:
            self.first_step[slot] = self.num_steps
            self.moved.append(slot)
        else:
            self.loaded.append(slot)
        return True

    def carry_swapped(self, slot: int) -> None:
        """Let an answer just queued wait on the host, which has its entries."""
        del self.queue[slot]
        self.state[slot], self.first_step[slot] = _SWAPPED, self.num_steps
        self.num_queued[slot] = 0
        self.swapped[slot] = None

    def carry_held(self, slot: int) -> None:
        """Keep the entries of one that has ended for other clients; there are blocks."""
        del self.queue[slot]
        num_tokens = self.num_tokens[slot] - 1
        number = self.num_blocks[slot] = self.blocks.count(num_tokens)
        self.blocks.swap_in(self.chains[slot], number, num_tokens)
        self.state[slot] = _HELD
        self.num_held += 1
        self.num_done_blocks += number

    def begin_at(self, time: float) -> None:
        """Plan nothing before a time, and at that time if there are requests."""
        self.begins_at = time
        some = self.running or self.queue or self.moved or self.loaded or self.swapped
        self.is_planning, self.phase = True, self.plan_phase
        self.time = time if some else inf

    # --- a plan -------------------------------------------------------------------------------

    def plan(self) -> None:
        """Plan the next step and begin it; rest if there is nothing to compute."""
        self.is_planning = False
        self.num_copied, self.load_time = 0, 0.0
        if self.leaving and self.known_until == inf:
            self.free_leaving()
        if self.given_up or self.came:
            self.learn()
        while True:
            has_changed = self.schedule()
            if (self.num_decodes and not self.all_missed) or self.num_new:
                self.begin()
                if self.deferred:
                    self.free_deferred()
                if self.leaving:
                    self.free_leaving()
                return
            if self.known_until < inf:  # no step is in flight any more
                self.known_until = inf
                self.free_deferred()
                self.free_leaving()
                self.learn()
            elif not has_changed:
                self.rest()
                return

    def learn(self) -> None:
        """Take in what happened before the plan was made: entries came, and some gave up."""
        while self.came and self.came[0][0] <= self.known_until:
            _, slot, is_lost = self.came.pop(0)
            self.take_in(slot, is_lost)
        while self.given_up and self.given_up[0][0] <= self.known_until:
            slot = self.given_up.pop(0)[1]
            state = self.state[slot]
            if state == _LEAVING:
                self.leaving.remove(slot)
            elif state in (_WAITING, _COMING, _CAME, _SWAPPED):
                self.note_left(slot, _GIVEN_UP_WAITING)
            else:
                self.note_left(slot, _GIVEN_UP)
            self.let_go(slot)

    def rest(self) -> None:
        """Do nothing until a request comes."""
        self.rows.flush()
        if self.overlaps:
            self.note_missing(True)
        self.time, self.known_until, self.has_changed = inf, inf, True
        if self.is_staged:
            self.note_left(-1, _LOOKS)
            return
        num_waiting = len(self.queue) + len(self.moved) + len(self.loaded) + len(self.swapped)
        if self.follows:
            num_waiting += len(self.running)
        on_their_way = self.num_coming or self.num_abandoned or self.num_held or self.num_going
        if num_waiting and not on_their_way:
            self.notes.wait_for_ever(num_waiting)

    def has_work(self) -> bool:
        """Tell whether requests run and go on, or wait."""
        return bool(
            self.num_decodes
            or self.prefilling
            or self.queue
            or self.swapped
            or self.moved
            or self.loaded
            or self.num_coming
        )

    def schedule(self) -> bool:
        """Give running requests the blocks of the next step, and admit others.

        A step that preempts for blocks admits no request; one whose scheduler preempts in `begin`
        may. While some are on the host, only prompts whose
        entries have come are admitted. Returns whether a request came in or had to go.
        """
        if self.follows:
            return self.follow()
        has_sent_back = self.own is not None and self.ask_own()
        num_before, num_returning = len(self.running), len(self.returning)
        self.is_blocked = self.some_missed = self.all_missed = False
        if self.is_staged:
            number, self.num_new, self.is_apart = len(self.notices), 0, False
            if not self.notes.plan_stage():  # it is the turn of prompts, which are planned now
                self.is_apart, self.all_missed = self.num_new > 0, True
                return len(self.notices) > number
        elif self.prompts_come and self.admit_apart():
            return True
        self.prepare()
        is_short = self.is_short()
        if is_short:
            self.preempt()
            if self.all_missed:
                if self.spares and len(self.running) == num_before:
                    self.admit_without_decodes()
                return has_sent_back or not self.overlaps or len(self.running) < num_before
        has_preempted = len(self.running) < num_before
        if not (has_preempted or is_short):
            self.welcome_back()
        self.give_blocks(is_short)
        if has_preempted:
            return True
        if not (self.prompts_come or (is_short and self.overlaps)):
            self.let_in()
        # the host may be empty now, so that others may come in
        returns = len(self.returning) > num_returning
        return has_sent_back or returns or len(self.running) > num_before

    def prepare(self) -> None:
        """Find what running requests may take; name the blocks of those that missed a step."""
        if self.cadence is not None or self.spares_one or self.is_paged:
            self.find_limits()
        if self.spares and self.num_writers and self.known_until < inf:
            self.enter_resumed()

    def welcome_back(self) -> None:
        """Bring requests back from the host, and let those join whose entries have come."""
        if self.swapped:
            self.swap_in()
        if self.moved:
            self.join()

    def give_blocks(self, is_short: bool) -> None:
        """Give running requests the blocks of the next step.

        is_short: whether some had to give way first, so that whole prompts wait. Where answers have
        a stage of their own, the next admission then has to wait until a request leaves.
        """
        if self.is_staged:
            self.is_blocked = True
        if self.is_paged:
            self.serve(is_short and not self.swaps)
        elif not self.swaps:
            if self.decode_need:
                self.take_for_decodes()
            if self.num_writers:
                self.enter_answers()
        if is_short and self.is_whole:
            self.is_blocked = False
            self.forget_pieces()
        if self.num_new:
            self.give_pieces_blocks()

    def admit_apart(self) -> bool:
        """Admit prompts, if they may come now; return whether the step is theirs alone.

        Those of a step that was lost are computed again.
        """
        self.num_new = 0
        self.is_apart = False
        if self.prompts_come == _WHEN_IDLE and self.running and not self.prefilling:
            may_gain = self.is_paged and (self.moved or self.swapped)
            self.is_blocked = not may_gain
            return False
        if self.is_paged:
            self.paged.table.fresh.clear()
        if self.prefilling:
            self.cut_pieces()
            self.give_pieces_blocks()
        self.let_in()
        self.is_apart = self.num_new > 0
        return self.is_apart

    def admit_without_decodes(self) -> None:
        """Admit requests though all decodes miss the step: none was preempted for them."""
        decodes, need = self.who_decode(), self.decode_need
        self.num_decodes = self.decode_need = 0
        self.let_in()
        self.num_decodes, self.decode_need = len(decodes), need
        if self.num_new:
            self.all_missed = False
            self.put_out(decodes)

    def ask_own(self) -> bool:
        """Let a scheduler of one's own begin a plan; return whether some gave way."""
        number = len(self.running)
        if self.own is not None:
            self.max_tokens = self.own.begin()
        return len(self.running) < number

    def send_back(self, slot: int) -> None:
        """Preempt a running request before a plan, as the scheduler says."""
        outgrown: list[int] = []
        self.give_way(slot, [], outgrown)
        self.let_outgrown_go(outgrown)

    def let_outgrown_go(self, slots: list[int]) -> None:
        """Let those go that gave way and can never come back."""
        for slot in slots:
            self.end_stay(slot)
            self.note_left(slot, _OUTGROWN)
            self.release(slot)

    def first_waiting(self) -> int:
        """Return the next request to admit, as far as the plan knows; -1: there is none."""
        slot = self.next_loaded()
        if slot < 0 and self.queue:
            slot = self.head()
            if slot >= 0 and self.queued_at[slot] > self.known_until:
                return -1
        return slot

    def known_waiting(self) -> list[int]:
        """Return those in the queue that the plan knows."""
        return [slot for slot in self.queue if self.queued_at[slot] <= self.known_until]

    def take_for_decodes(self) -> None:
        """Give the decodes the blocks of their next step."""
        self.blocks.grow(self.decode_need)
        self.decode_need = 0

    def next_need(self) -> int:
        """Return the blocks that the decodes need in their next step, before they take them."""
        return self.takers[self.num_steps % self.blocks.size]

    def let_in(self) -> None:
        """Admit waiting requests, as far as seats, tokens and blocks go."""
        if self.moved and not (self.overlaps and self.loaded):
            self.is_blocked = not self.is_paged
        elif self.queue or self.loaded:
            self.admit(self.budget() - self.num_new)
        if self.cadence is not None:
            if not self.is_held:
                some = self.queue and self.queued_at[next(iter(self.queue))] <= self.known_until
                self.cadence.is_bound = bool(some)
            if self.queue and not self.cadence.is_bound:
                self.is_blocked = False  # the next plan may be bound

    def budget(self) -> int:
        """Return the tokens that the decodes leave for prompts.

        Whole prompts are told apart when they come (`holds_back`).
        """
        if self.is_whole:
            return _NEVER
        return self.max_tokens - self.num_decodes * self.num_queries

    def find_limits(self) -> None:
        """Find out what the step that is planned may compute of prompts; begin its turns."""
        if self.is_paged:
            self.begin_pages()
        self.max_piece = self.threshold
        if self.spares_one and self.is_lone():
            self.max_piece = _NEVER
        if self.cadence is not None:
            self.cadence.begin()
            has_decodes = len(self.running) > len(self.prefilling)
            self.is_held = has_decodes and self.cadence.num_held > 0

    def is_lone(self) -> bool:
        """Tell whether one request is here, running or waiting, as far as the plan knows."""
        number = len(self.running) + len(self.moved) + len(self.loaded) + len(self.swapped)
        number += self.num_coming
        for slot in self.queue:
            if number > 1 or self.queued_at[slot] > self.known_until:
                break
            number += 1
        return number == 1

    def preempt(self) -> None:
        """Let some give way until the others have the blocks of the next step."""
        outgrown: list[int] = []
        gone: list[int] = []
        num_before = len(self.running)
        goes_round = (self.num_queries == 1 or self.is_paged) and not self.swaps
        from_anywhere = self.ranked is not None and self.ranked.takes_from_anywhere
        is_sparing = self.spares and self.known_until < inf
        if self.own is not None and self.own.names_victims:
            from_anywhere = True
        if goes_round and (from_anywhere or self.is_paged or is_sparing):
            if self.left_out:
                self.renew_tickets(self.sit_out(self.left_out))
            self.take_turns(gone, outgrown)
        else:
            while self.decode_need + self.cut_pieces() > self.blocks.num_free + self.num_going:
                self.give_way(self.victim(), gone, outgrown)
            if self.going:
                self.await_copies()
        has_preempted = len(self.running) < num_before
        if has_preempted and not self.swaps and (self.all_missed or not self.num_decodes):
            self.notes.stand_still(gone)
        self.let_outgrown_go(outgrown)

    def victim(self) -> int:
        """Return the slot that gives way: the last admitted, or whom scheduler or queue name."""
        if self.own is not None and self.own.names_victims:
            return self.own.victim(self.running)
        return self.running[-1] if self.ranked is None else self.ranked.victim(self.running)

    def take_turns(self, gone: list[int], outgrown: list[int]) -> None:
        """Give running requests their turns for blocks, where any of them may have to give way.

        A request that finds too few makes others give way, until it has enough or gives way itself.
        Then all behind it miss the step (unless `pass_goes_on`). If a request that has ended gives
        way and stood before the present one, the next one misses the step, too: vLLM does not move
        its index into the list back. If requests of the step in flight never give way (`spares`), a
        request that finds too few misses the step instead, and all behind it.
        """
        turns: list[int] = list(self.running)
        is_sparing = self.spares and self.known_until < inf
        lacking: dict[int, int] = {}  # blocks, by who had its turn
        goes_on = self.ranked is not None and self.ranked.pass_goes_on
        missed: list[int] = []
        self.forget_pieces()
        num_taken = 0
        while turns:
            slot = turns.pop(0)
            if self.has_no_turn(slot):
                continue
            left = self.max_tokens - self.num_new
            left -= self.num_decodes_before(lacking) * self.num_queries
            if left <= 0 and self.in_order:
                missed += [slot, *turns]
                break
            new, number = self.turn_for(slot, left)
            num_skipped = 0
            while num_taken + number > self.blocks.num_free:
                victim = self.victim()
                if is_sparing and victim not in self.idle:
                    missed += [slot, *turns]
                    turns = []
                    break
                if self.is_busy(victim) and victim not in turns and not goes_on:
                    num_skipped += 1
                was_served = victim in lacking
                if was_served:
                    num_taken -= lacking.pop(victim)
                    self.num_new -= self.num_piece[victim]
                self.give_way(victim, gone, outgrown, was_served)
                if victim == slot:
                    break
                if victim in turns:
                    turns.remove(victim)
            else:
                self.num_piece[slot] = new
                lacking[slot] = number = self.lacks_after_turn(slot, new, number)
                num_taken += number
                self.num_new += new
                if new and self.cadence is not None:
                    self.cadence.carry()  # even if it gives way later
                missed += turns[:num_skipped]
                del turns[:num_skipped]
                continue
            if not goes_on:
                missed += turns
                break
        self.some_missed = bool(missed)
        self.pause(self.sit_out(missed))

    def await_copies(self) -> None:
        """Let decodes miss the step for which there are no blocks before some are copied.

        Those admitted first go on. Where nothing is left to compute, no step begins.
        """
        late, num_free = [], self.blocks.num_free
        for slot in self.running:
            if self.state[slot] == _DECODE and self.takes_blocks(slot):
                if num_free:
                    num_free -= 1
                else:
                    late.append(slot)
        if not late:
            return
        late = self.in_order_of_joining(late)
        if self.is_whole:
            self.forget_pieces()
        elif len(late) == self.num_decodes:
            self.num_decodes = 0
            self.cut_pieces()  # what they leave is for prompts
            self.num_decodes = len(late)
        self.some_missed = True
        self.pause(late)
        if not (self.is_whole or self.all_missed):
            self.cut_pieces()

    def sit_out(self, slots: list[int]) -> list[int]:
        """Return the decodes among those that miss the step that is planned."""
        slots = [slot for slot in slots if self.state[slot] == _DECODE]
        return [slot for slot in slots if not self.is_busy(slot)]

    def forget_pieces(self) -> None:
        """Let the step that is planned compute nothing of prompts."""
        self.num_new = 0
        for slot in self.prefilling:
            self.num_piece[slot] = 0

    def is_busy(self, slot: int) -> bool:
        """Tell whether a running request has nothing left to compute that a plan could give it."""
        return self.state[slot] == _LEAVING

    def has_no_turn(self, slot: int) -> bool:
        """Tell whether a running request takes no part in the step that is planned."""
        return self.is_busy(slot)

    def takes_blocks(self, slot: int) -> int:
        """Return the blocks of tokens that a decode takes for its next step."""
        return int(self.context_of(slot) % self.blocks.size == 0)

    def context_of(self, slot: int) -> int:
        """Return the computed tokens of a decode."""
        return self.tokens(slot) - 1

    def num_decodes_before(self, served: dict[int, int]) -> int:
        """Return the decodes that take their tokens before the next turn: all, or those served."""
        if not self.in_order:
            return self.num_decodes
        return sum([self.state[slot] != _PREFILL for slot in served])

    def lacks_after_turn(self, slot: int, new: int, number: int) -> int:
        """Return the blocks that one takes behind all turns: none where they are for that."""
        if not self.is_paged:
            return number
        if new or self.state[slot] != _PREFILL:
            self.have_turn(slot, new)
        return 0

    def turn_for(self, slot: int, budget: int) -> tuple[int, int]:
        """Return the prompt tokens that a running request gets, and the blocks that it lacks."""
        if self.state[slot] != _PREFILL:
            if self.is_paged:
                return 0, self.pages_lacking(slot, self.context_of(slot), self.num_queries)
            return 0, self.takes_blocks(slot)
        num_computed = self.num_computed[slot]
        new = self.piece(slot, budget)
        if self.is_paged:
            return new, self.pages_lacking(slot, num_computed, new)
        return new, max(0, self.blocks.count(num_computed + new) - self.num_blocks[slot])

    def pause(self, slots: list[int]) -> None:
        """Let decodes miss the step that is planned, unless nothing is left to compute in it."""
        if not self.num_new and len(slots) == self.num_decodes:
            self.all_missed = True
            self.renew_tickets(slots)
            return
        self.put_out(slots)

    def put_out(self, slots: list[int]) -> None:
        """Let decodes miss the step that is planned."""
        for slot in slots:
            self.stop(slot)
            self.end_stay(slot)
            self.state[slot] = _PAUSED
            self.paused.append(slot)

    def renew_tickets(self, slots: list[int]) -> None:
        """Let decodes join again behind a plan that computes nothing, which they missed."""
        prefixes, num_keys = self.prefixes, self.context_sum + self.num_decodes
        for slot in slots:
            self.num_tickets += 1
            self.ticket[slot] = self.num_tickets
            if prefixes is not None:
                prefixes.leave(slot + 1, self.num_decodes, num_keys)
        if prefixes is not None:
            for slot in slots:
                self.num_read_again = prefixes.join(
                    slot + 1, self.chains[slot], self.num_decodes, num_keys
                )

    def resume_decode(self, slot: int) -> None:
        """Let a request decode from the next step on that had a token before."""
        self.resumed[slot] = 1
        if self.is_paged:
            self.piece_step[slot] = _NO_STEP
        self.joined.append(slot)
        self.first_step[slot], self.first_apart[slot] = self.num_steps, self.num_apart
        self.join_decodes(slot)

    def end_pause(self) -> None:
        """Let requests decode again that missed a step."""
        for slot in self.paused:
            self.resume_decode(slot)
        self.paused = []
        self.decode_need = self.next_need()

    def is_short(self) -> bool:
        """Cut the pieces of the next plan, and tell whether it will preempt."""
        return self.decode_need + self.cut_pieces() > self.blocks.num_free

    def cut_pieces(self) -> int:
        """Cut the next pieces of prompts that run; return the blocks that they take."""
        self.num_new = 0
        if self.left_out:
            self.left_out = []
        if not self.prefilling:
            return 0
        if self.in_order:
            return self.cut_in_order()
        need, budget = 0, self.budget()
        for slot in self.prefilling:
            new = self.piece(slot, budget)
            self.num_piece[slot] = new
            if new:
                budget -= new
                self.num_new += new
                lacking = self.count_behind(self.num_computed[slot] + new) - self.num_blocks[slot]
                if lacking > 0:
                    need += lacking
        return need * self.per_block

    def count_behind(self, end: int) -> int:
        """Return the blocks of a prompt whose piece ends there, and of what is behind it."""
        return self.blocks.count(min(end + self.num_behind, self.max_context))

    def piece(self, slot: int, budget: int) -> int:
        """Return the tokens that a prompt that runs gets out of a budget."""
        if self.is_held:
            return 0
        new = self.cut(slot, self.num_to_go(slot), budget)
        return self.aligned(slot, None, self.num_computed[slot], new) if self.aligns else new

    def num_to_go(self, slot: int) -> int:
        """Return the tokens of a prompt that runs which are to be computed."""
        return self.num_tokens[slot] - self.num_computed[slot]

    def num_left(self, slot: int) -> int:
        """Return the tokens by which a piece of the plan is known to be the last one."""
        return self.num_to_go(slot)

    def aligned(self, slot: int, found: Any, begin: int, new: int) -> int:
        """Return the tokens of a piece that may have to end where a state is saved."""
        ends = self.num_tokens[slot], self.num_prompt[slot]
        return self.paged.piece(self.chains[slot], found, begin, new, ends)

    def cut_in_order(self) -> int:
        """Cut pieces where each request has its tokens before those admitted after it.

        Returns the blocks that they take, less those of decodes for which no tokens are left.
        """
        need, budget = 0, self.max_tokens
        for slot in self.running:
            if self.state[slot] == _PREFILL:
                new = self.piece(slot, budget)
                self.num_piece[slot] = new
                budget -= new
                self.num_new += new
                lacking = self.count_behind(self.num_computed[slot] + new) - self.num_blocks[slot]
                if new and lacking > 0:
                    need += lacking
            elif self.state[slot] in (_DECODE, _LEAVING) and not self.has_no_turn(slot):
                if budget > 0:
                    budget -= self.num_queries
                else:
                    self.left_out.append(slot)
                    need -= self.takes_blocks(slot)
        return need * self.per_block

    def cut(self, slot: int, num_tokens: int, budget: int) -> int:
        """Return how many of a prompt's tokens a step computes out of a budget."""
        new = min(num_tokens, budget)
        new = min(new, self.max_piece)
        if self.own is not None:  # its budget may be less than the decodes take
            new = self.own.piece(slot, num_tokens, new) if new > 0 else 0
        return new

    def holds_back(self, slot: int, num_tokens: int, new: int, is_loaded: bool) -> bool:
        """Tell whether a prompt waits for another step, with so many tokens to compute.

        Since this one is for decodes, or, if its piece is shorter, too many prompts are in pieces;
        or since a scheduler of one's own says so. A whole prompt waits that is not the first of
        its step, and longer than what is left of that.
        """
        if self.is_whole:
            return self.num_new > 0 and num_tokens > self.max_tokens - self.num_new
        if self.own is not None and not self.own.admits(slot, new):
            return True
        if self.is_held and (num_tokens > 1 if self.held_spares_hits else not is_loaded):
            return True
        if new == num_tokens or self.most_partial == _NEVER:
            return False
        number = 0
        for other in self.prefilling:
            piece = self.num_piece[other]
            if piece and piece < self.num_left(other):
                number += 1
        return number >= self.most_partial

    def give_way(
        self, slot: int, gone: list[int], outgrown: list[int], was_served: bool = False
    ) -> None:
        """Take the blocks of a running request, which then waits before others, or by its rank.

        It is computed again, and of several the one admitted first comes back first (`admit`); or
        it is on the host meanwhile, and the one that went first comes back first (`swap_in`). It is
        added to `gone`, or if it has outgrown the memory, and can never come back, to `outgrown`.
        was_served: whether it had its turn in the plan, which caches all its tokens.
        """
        num_served = self.num_served(slot) if was_served else 0
        num_known = self.stop(slot)
        self.running.remove(slot)
        if self.state[slot] == _LEAVING:
            self.leaving.remove(slot)
            self.let_seat_go(slot, num_known, self.may_be_written(slot))
            return
        if was_served and self.state[slot] == _DECODE:
            num_known = num_served
        is_outgrown = self.outgrows(slot)
        if self.swaps and not is_outgrown and self.swap_out(slot):
            return
        chain, number = self.chains[slot], self.num_blocks[slot]
        if self.may_be_written(slot):
            self.deferred.append((slot, chain, number, num_known))
        else:
            self.chains[slot] = self.blocks.preempt(chain, number, num_known)
        self.num_blocks[slot] = self.num_computed[slot] = 0
        if is_outgrown:
            outgrown.append(slot)
            return
        gone.append(slot)
        self.end_stay(slot)
        self.first_step[slot] = _NO_STEP
        self.num_preempted[slot] += 1
        self.num_queued[slot] = self.num_tokens[slot]
        self.wait_first(slot)
        self.counts.go_back(self.num_tokens[slot])

    def num_served(self, slot: int) -> int:
        """Return the computed tokens of a decode that are known behind its turn."""
        return self.tokens(slot) - 1

    def wait_first(self, slot: int) -> None:
        """Queue a request before all others, or in its place."""
        self.state[slot] = _WAITING
        self.queue[slot] = None
        self.queue.move_to_end(slot, last=False)
        if self.ranked is not None:
            self.ranked.give_back(slot, self.num_queued[slot])
        if self.flow is not None:
            self.first[slot] = None
            self.first.move_to_end(slot, last=False)

    def leave_queue(self, slot: int) -> None:
        """Take a request out of the queue."""
        del self.queue[slot]
        self.first.pop(slot, None)
        if self.ranked is not None:
            self.ranked.remove(slot)

    def head(self) -> int:
        """Return the slot to admit next: the first to arrive, but answers of other clients first.

        In another order -1 if no plan knows of any that may come.
        """
        if self.ranked is not None:
            return self.ranked.head(self.known_until)
        for slot in self.first:
            if self.queued_at[slot] <= self.known_until:
                return slot
            break
        return next(iter(self.queue))

    def swap_out(self, slot: int) -> bool:
        """Copy the blocks of a request that gives way to the host; return whether they fit."""
        num_kept = self.num_kept(slot)
        number = self.blocks.held(num_kept)
        if not self.has_host or not self.host.has(number):
            return False
        if self.overlaps:
            self.begin_to_go(slot, number)
        else:
            self.host.reserve(number)
            self.copy(slot, True, number, num_kept)
            self.blocks.swap_out(self.chains[slot], self.num_blocks[slot], num_kept)
            self.num_blocks[slot] = 0
            self.state[slot], self.swapped[slot] = _SWAPPED, None
        self.end_stay(slot)
        self.num_preempted[slot] += 1
        self.num_queued[slot] = 0
        if self.first_step[slot] == _NO_STEP:
            self.num_queued[slot] = self.num_tokens[slot] - num_kept
        self.counts.go_back(self.num_queued[slot])
        return True

    def begin_to_go(self, slot: int, number: int) -> None:
        """Copy blocks to the host, which has room, while steps go on; they are free then."""
        self.host.reserve(number)
        self.going[slot] = None
        self.num_going += self.num_blocks[slot]
        self.note_left(slot, _GOES)
        self.state[slot], self.swapped[slot] = _SWAPPED, None

    def to_swap(self, slot: int) -> tuple[int, int]:
        """Return how many blocks of a preempted request are copied, and its tokens in them."""
        num_kept = self.num_kept(slot)
        return self.blocks.held(num_kept), num_kept

    def swap_in(self) -> None:
        """Bring requests back from the host while they fit, in the order in which they went."""
        while self.swapped and self.fits_back(next(iter(self.swapped))):
            self.bring_back(next(iter(self.swapped)))
            self.decode_need = self.next_need()
        self.is_blocked = bool(self.swapped) and not (self.is_paged or self.loaded)
        self.cut_pieces()

    def bring_back(self, slot: int) -> None:
        """Bring a request back from the host; there is room."""
        del self.swapped[slot]
        num_kept = self.num_kept(slot)
        number = self.blocks.held(num_kept)
        is_prompt = self.first_step[slot] == _NO_STEP
        if self.overlaps:
            self.begin_return(slot, number, num_kept, is_prompt)
            return
        self.host.release(number)
        self.copy(slot, False, number, num_kept)
        self.num_blocks[slot] = self.blocks.count(self.num_tokens[slot] if is_prompt else num_kept)
        self.blocks.swap_in(self.chains[slot], self.num_blocks[slot], num_kept)
        self.running.append(slot)
        self.has_changed = True
        self.counts.begin(self.num_queued[slot])
        if is_prompt:
            self.state[slot] = _PREFILL
            self.prefilling.append(slot)
        else:
            self.resume_decode(slot)

    def begin_return(self, slot: int, number: int, num_kept: int, is_prompt: bool) -> None:
        """Take blocks for one on the host, and let its entries come while steps go on."""
        self.blocks.grow(number)
        self.num_blocks[slot] = number
        self.brings[slot], self.num_brought[slot] = _A_PREFIX if is_prompt else _AN_ANSWER, num_kept
        self.num_promised += self.need_to_join(slot)
        self.returning[slot] = None
        self.state[slot] = _COMING
        self.num_coming += 1
        self.note_left(slot, _RETURNS)

    def fits_back(self, slot: int) -> bool:
        """Tell whether one on the host has a seat and the blocks of its next step."""
        if slot in self.going:
            return False
        room = self.blocks.num_free - self.decode_need
        if self.overlaps:
            room -= self.num_promised
        if self.running:
            room -= self.blocks.num_reserved
        return len(self.running) < self.max_num_seqs and self.need_to_return(slot) <= room

    def need_to_return(self, slot: int) -> int:
        """Return the blocks that one on the host needs to go on."""
        num_kept = self.num_kept(slot)
        is_prompt = self.first_step[slot] == _NO_STEP
        number = self.num_tokens[slot] if is_prompt else self.num_needed(slot)
        return self.blocks.held(num_kept) + self.blocks.more(num_kept, number, False)

    def num_kept(self, slot: int) -> int:
        """Return the tokens whose entries a request that is swapped has: all computed ones."""
        if self.first_step[slot] == _NO_STEP:
            return self.num_computed[slot]
        return self.num_tokens[slot] - 1

    def copy(self, slot: int, out: bool, number: int, num_tokens: int) -> None:
        """Note that so many blocks are copied before the next step, to the host or back."""
        self.num_copied += number
        self.notes.copy(slot, out, number, num_tokens, self.time)

    def enter_answers(self) -> None:
        """Let others find the blocks that decodes fill in the step that is planned.

        As far as its plan knows the tokens; blocks of one token are entered as the step ends.
        """
        num_unknown = 1 if self.known_until < inf else 0
        if self.blocks.size == 1:
            return
        for slot in self.in_order_of_joining(self.running):
            chain = self.chains[slot]
            if self.state[slot] == _DECODE and chain is not None:
                self.enter_answer(chain, self.tokens(slot) - num_unknown)

    def enter_resumed(self) -> None:
        """Let others find the blocks of decodes that missed the latest step, all known now."""
        if self.blocks.size == 1:
            return
        for slot in self.in_order_of_joining(self.running):
            chain, is_back = self.chains[slot], self.first_step[slot] == self.num_steps
            if self.state[slot] == _DECODE and chain is not None and is_back:
                self.enter_answer(chain, self.tokens(slot) - 1)

    def enter_answer(self, chain: Chain, num_tokens: int) -> None:
        """Let others find the blocks that the first tokens of a decode fill."""
        if chain.num_held < chain.num_shared:
            self.blocks.enter_answer(chain, num_tokens)
            if chain.num_held >= chain.num_shared:
                self.num_writers -= 1

    def give_pieces_blocks(self) -> None:
        """Give the pieces of prompts their blocks."""
        if self.cadence is not None:
            self.cadence.carry()
        if self.is_paged:
            return
        for slot in self.prefilling:
            if self.num_piece[slot]:
                end = self.num_computed[slot] + self.num_piece[slot]
                number = self.count_behind(end) - self.num_blocks[slot]
                if number > 0:
                    self.blocks.grow(number)
                    self.num_blocks[slot] += number
                self.enter_piece(slot, end)

    def enter_piece(self, slot: int, end: int) -> None:
        """Let others find the blocks of a prompt up to the end of its next piece."""
        chain = self.chains[slot]
        if self.is_paged:
            self.paged.name(chain, end)
        elif chain is not None:
            self.blocks.enter(chain, end)

    # --- stages of prompts and of answers (`clients/resharding`) ----------------------------------

    def fits(self, slot: int) -> bool:
        """Tell whether there are a seat and blocks for a waiting prompt."""
        need = 0 if self.state[slot] == _CAME else self.blocks.count(self.num_tokens[slot])
        return len(self.running) < self.max_num_seqs and need <= self.room()

    def let_prompt_in(self, slot: int) -> bool:
        """Admit a prompt to the step that is planned, or let its entries come, if it may.

        A longer one than is left of the step waits, unless it is the first.
        """
        if not self.fits(slot):
            return False
        if self.state[slot] == _CAME:
            return self.admit_behind(slot, _NEVER) >= 0
        return self.admit_next(slot, _NEVER) >= 0

    def set_aside(self, slot: int) -> bool:
        """Copy an answer to the host, where it waits for its stage; return whether it has room."""
        if not self.host.has(self.blocks.held(self.context_of(slot))):
            self.renew_tickets([slot])
            return False
        self.stop(slot)
        self.running.remove(slot)
        self.num_preempted[slot] -= 1  # it does not give way
        return self.swap_out(slot)

    def set_brought_aside(self, slot: int) -> bool:
        """Do the same with one that has come back and waits to go on."""
        number = self.blocks.held(self.num_brought[slot])
        if not self.host.has(number):
            return False
        self.moved.remove(slot)
        self.num_promised -= self.need_to_join(slot)
        self.have_brought(slot)
        self.begin_to_go(slot, number)
        return True

    # --- a whole plan of a scheduler of one's own -----------------------------------------------

    def follow(self) -> bool:
        """Plan as a scheduler says that names all requests of the step; other decodes pause.

        Running requests get their blocks with the first admission behind them, or at the end:
        decodes before prompts, as by the built-in rules. Returns whether any came in or had to go.
        """
        num_before = len(self.running)
        self.is_blocked = self.some_missed = self.all_missed = self.is_given = False
        if self.spares_one or self.is_paged:
            self.find_limits()
        self.left_out = []
        self.most_of_one = self.max_piece
        self.forget_pieces()
        self.decode_need, self.num_tokens_left = 0, self.max_tokens
        self.taking, self.gone = {}, []
        some = self.running or self.queue or self.moved or self.loaded or self.swapped
        if self.own is not None and some:
            self.own.plan()
        if not self.is_given:
            self.give_all()
        self.leave_out()
        if self.gone and not self.swaps and (self.all_missed or not self.num_decodes):
            self.notes.stand_still(self.gone)
        return bool(self.gone) or len(self.running) != num_before

    def may_run(self, slot: int) -> bool:
        """Tell whether a running request may take part in the step that is planned."""
        if self.state[slot] == _DECODE:
            return not self.is_busy(slot)
        return self.state[slot] == _PREFILL

    def may_be_admitted(self, slot: int) -> bool:
        """Tell whether a request waits and may be admitted, as far as the plan knows."""
        if self.state[slot] == _WAITING:
            return self.queued_at[slot] <= self.known_until
        return self.state[slot] in (_CAME, _SWAPPED)

    def may_come(self) -> list[int]:
        """Return the slots that wait and may be admitted, those with entries on the host first."""
        several = [*self.swapped, *self.moved] if self.running else [*self.moved, *self.swapped]
        return several + self.loaded + self.known_waiting()

    def lacks(self, slot: int, most: int) -> int:
        """Return the blocks that a running request lacks for a step of at most so many tokens."""
        new = self.own_piece(slot, most)
        if not new and self.state[slot] == _PREFILL:
            return 0
        return max(0, self.need_for(slot, new) - self.blocks.num_free + self.decode_need)

    def give_step(self, slot: int, most: int) -> int:
        """Let a running request take part; return its tokens in the step, 0 if it has no room.

        most: tokens of a prompt.
        """
        new = self.own_piece(slot, most)
        number = new if self.state[slot] == _PREFILL else self.num_queries
        if not number or number > self.num_tokens_left:
            return 0
        need = self.need_for(slot, new)
        if need > self.blocks.num_free - self.decode_need:
            return 0
        self.num_piece[slot] = new
        self.num_new += new
        self.num_tokens_left -= number
        self.take_part(slot, new, need)
        return number

    def own_piece(self, slot: int, most: int) -> int:
        """Return the tokens of a prompt that runs which the step may compute; 0 for a decode."""
        if self.state[slot] != _PREFILL:
            return 0
        self.max_piece = min(self.most_of_one, most)
        new = self.piece(slot, self.num_tokens_left)
        self.max_piece = self.most_of_one
        return new

    def need_for(self, slot: int, new: int) -> int:
        """Return the blocks that one takes for so many tokens of a prompt; 0: it decodes."""
        if self.is_paged:
            if new:
                return self.pages_lacking(slot, self.num_computed[slot], new)
            return self.pages_lacking(slot, self.context_of(slot), self.num_queries)
        if new:
            end = self.num_computed[slot] + new
            return max(0, self.count_behind(end) - self.num_blocks[slot])
        return self.takes_blocks(slot)

    def take_part(self, slot: int, new: int, need: int) -> None:
        """Let one take part that takes so many blocks, now or with the others (`give_all`)."""
        if self.is_paged:
            self.have_turn(slot, new)
            need = 0
        elif self.is_given and new:
            self.blocks.grow(need)
            self.num_blocks[slot] += need
            self.enter_piece(slot, self.num_computed[slot] + new)
            need = 0
        elif self.is_given and not self.swaps:
            self.take_for(slot)
            self.name_for(slot)
            need = 0
        self.taking[slot] = need
        self.decode_need += need

    def give_all(self) -> None:
        """Give the requests that take part the blocks of the step."""
        self.is_given = True
        if self.is_paged:
            return
        if not self.swaps:
            decodes = [slot for slot in self.who_decode() if slot in self.taking]
            for slot in decodes:
                self.take_for(slot)
            for slot in decodes:
                self.name_for(slot)
            self.decode_need = 0
        if self.num_new:
            self.give_pieces_blocks()

    def who_decode(self) -> list[int]:
        """Return the decodes as they began to decode."""
        decodes = [slot for slot in self.running if self.state[slot] == _DECODE]
        return self.in_order_of_joining(decodes)

    def take_for(self, slot: int) -> None:
        """Give a decode the blocks of its next step."""
        self.blocks.grow(self.takes_blocks(slot))

    def name_for(self, slot: int) -> None:
        """Let others find the blocks that a decode fills (`enter_answers`)."""
        chain = self.chains[slot]
        if chain is not None and self.blocks.size > 1:
            self.enter_answer(chain, self.tokens(slot) - (1 if self.known_until < inf else 0))

    def leave_out(self) -> None:
        """Let decodes miss the step that take no part."""
        missed = [slot for slot in self.who_decode() if slot not in self.taking]
        self.decode_need = self.next_need()
        if missed:
            self.some_missed = True
            self.pause(self.sit_out(missed))
        if not (self.all_missed or (self.swaps and not self.is_paged)):
            self.decode_need = 0

    def put_off(self, slot: int) -> None:
        """Preempt a running request, also if it takes part, before the blocks are given."""
        was_served = slot in self.taking
        left = self.decode_need - self.taking.pop(slot, 0)
        if was_served:
            is_prompt = self.state[slot] == _PREFILL
            self.num_tokens_left += self.num_piece[slot] if is_prompt else self.num_queries
            self.num_new -= self.num_piece[slot]
        outgrown: list[int] = []
        self.give_way(slot, self.gone, outgrown, was_served)
        self.decode_need = left
        self.let_outgrown_go(outgrown)

    def let_come(self, slot: int, most: int) -> int:
        """Admit a waiting request; return its tokens in the step, 0: it waits, perhaps for entries.

        most: tokens of a prompt.
        """
        if self.taking and not self.is_given:
            self.give_all()
        is_answer = self.brings[slot] == _AN_ANSWER
        if len(self.running) >= self.max_num_seqs or not (self.num_tokens_left or is_answer):
            return 0
        if self.state[slot] == _SWAPPED:
            return self.let_back(slot, most)
        if self.state[slot] == _CAME and is_answer:
            return self.let_join(slot)
        number, left = self.num_new, self.num_tokens_left
        self.max_piece = min(self.most_of_one, most)
        while left >= 0 and self.num_new == number and self.state[slot] in (_WAITING, _CAME):
            if self.state[slot] == _CAME:
                left = self.admit_behind(slot, left)
            else:
                left = self.admit_next(slot, left)
        self.max_piece = self.most_of_one
        if left >= 0:
            self.num_tokens_left = left
        number = self.num_new - number
        if number:
            self.is_given = True
            self.taking[slot] = 0
        return number

    def let_back(self, slot: int, most: int) -> int:
        """Bring a request back from the host; return its tokens in the step, 0: it stays there."""
        is_prompt = self.first_step[slot] == _NO_STEP
        if self.num_tokens_left < (1 if is_prompt else self.num_queries):
            return 0
        if not self.fits_back(slot):
            return 0
        self.is_given = True
        self.bring_back(slot)
        return self.give_step(slot, most)

    def let_join(self, slot: int) -> int:
        """Let one decode whose entries have come; return its tokens in the step."""
        room = self.blocks.num_free - self.decode_need
        if self.running:
            room -= self.blocks.num_reserved
        more = self.need_to_join(slot)
        if more > room or self.num_queries > self.num_tokens_left:
            return 0
        self.is_given = True
        self.join_now(slot, more)
        return self.give_step(slot, 0)

    # --- turns, in which requests give pages back and take others (`PagedBlocks`) ---------------

    def begin_pages(self) -> None:
        """Begin a plan: where prompts have all their pages, those of decodes come back first."""
        self.paged.table.fresh.clear()
        if self.swaps:
            for slot in self.running:
                if self.state[slot] == _DECODE:
                    num_seen = self.num_seen(slot, self.tokens(slot) - 1)
                    self.paged.give_behind(self.chains[slot], num_seen)

    def serve(self, had_turns: bool) -> None:
        """Give running requests their turn, in order of admission, unless they had it."""
        if self.left_out and not had_turns:
            self.some_missed = True
            self.pause(self.sit_out(self.left_out))
        self.decode_need = 0
        if had_turns:
            return
        for slot in self.running:
            if self.state[slot] == _PREFILL:
                if not self.swaps and self.num_piece[slot]:
                    self.have_turn(slot, self.num_piece[slot])
            elif self.state[slot] in (_DECODE, _LEAVING) and not self.has_no_turn(slot):
                self.have_turn(slot, 0)
        if self.swaps:
            for slot in self.prefilling:
                if self.num_piece[slot]:
                    self.have_turn(slot, self.num_piece[slot])

    def have_turn(self, slot: int, new: int) -> None:
        """Give one its turn, with so many tokens of a prompt; 0: it decodes."""
        if not new:
            self.decode_turn(slot, self.tokens(slot) - 1, self.known_until < inf)
            return
        paged, chain, num_computed = self.paged, self.chains[slot], self.num_computed[slot]
        end = num_computed + new
        num_slots = self.slots_in_turn(slot, end)
        paged.give_behind(chain, self.num_seen(slot, num_computed))
        paged.take(chain, num_computed, end, num_slots)
        self.enter_piece(slot, end)
        self.num_blocks[slot] = max(self.num_blocks[slot], paged.count(num_slots))
        self.note_piece(slot)

    def slots_in_turn(self, slot: int, end: int) -> int:
        """Return the tokens that one has memory for in a step that ends behind so many."""
        return end

    def note_piece(self, slot: int) -> None:
        """Note that the step that is planned computes a piece of a prompt."""
        self.piece_step[slot] = self.num_steps + self.num_apart
        self.before_piece[slot] = self.num_computed[slot]

    def decode_turn(self, slot: int, context: int, is_ahead: bool) -> None:
        """Give a decode its turn, which has so many tokens computed.

        Where the plan is made ahead, its newest token is not known.
        """
        paged, chain, num_seen = self.paged, self.chains[slot], context
        if paged.lags and is_ahead:
            num_seen = self.num_seen(slot, context)
        if num_seen >= chain.gives_at:
            paged.give_behind(chain, num_seen)
        if context >= chain.num_slots:
            paged.take(chain, context, context + 1, context + 1)
        if context + (not is_ahead) >= chain.names_at:
            paged.name(chain, context + (not is_ahead))

    def serve_decodes(self, first: int, last: int) -> None:
        """Give decodes their turns of quiet steps, by number, which were planned with the others.

        In the first of these, none of them decodes for the first time.
        """
        paged, is_ahead = self.paged, self.plans_ahead
        while first <= last:
            wait = last + 1 - first
            for slot in self.running:
                if self.state[slot] == _DECODE:
                    context = self.num_tokens[slot] - 1 + first - self.first_step[slot]
                    chain = self.chains[slot]
                    num_seen = context - (paged.lags and is_ahead)
                    num_known = context + (not is_ahead)
                    if num_seen >= chain.gives_at:
                        paged.give_behind(chain, num_seen)
                    if context >= chain.num_slots:
                        paged.take(chain, context, context + 1, context + 1)
                    if num_known >= chain.names_at:
                        paged.name(chain, num_known)
                    wait = min(wait, chain.gives_at - num_seen, chain.num_slots - context)
                    wait = min(wait, chain.names_at - num_known)
            first += wait

    def num_seen(self, slot: int, num_computed: int) -> int:
        """Return the computed tokens from whose end windows look back, as the plan knows.

        If pages are freed late, tokens of the step in flight are left out.
        """
        if not (self.paged.lags and self.known_until < inf):
            return num_computed
        if self.state[slot] == _DECODE and self.first_step[slot] < self.num_steps:
            return num_computed - (self.waits_since < 0)
        is_latest = self.piece_step[slot] == self.num_steps + self.num_apart - 1
        return self.before_piece[slot] if is_latest else num_computed

    def pages_lacking(self, slot: int, num_computed: int, new: int) -> int:
        """Return the pages that one lacks for a step, once its windows have given theirs back."""
        if not new:
            return 0
        chain, end = self.chains[slot], num_computed + new
        self.paged.give_behind(chain, self.num_seen(slot, num_computed))
        return self.paged.lacking(chain, num_computed, end, self.slots_in_turn(slot, end))

    def lose_pages(self) -> None:
        """Take back the pages of a lost step."""
        for slot in self.running:
            num_tokens = self.num_computed[slot]
            if self.state[slot] != _PREFILL:
                num_tokens = self.tokens(slot) - 1
            elif self.swaps:
                num_tokens = self.num_tokens[slot]
            self.paged.cut(self.chains[slot], num_tokens)

    # --- admissions -----------------------------------------------------------------------------

    def admit(self, budget: int) -> None:
        """Admit requests in order of arrival while seats, memory and tokens last.

        Prompts whose entries have come go first. A request whose entries are elsewhere gets blocks,
        and its seat once they are here.
        """
        while budget >= 0:
            if self.loaded:
                budget = self.admit_loaded(budget)
                if self.next_loaded() >= 0:
                    return
            slot = self.next_waiting(budget)
            if slot < 0:
                return
            budget = self.admit_next(slot, budget)

    def admit_next(self, slot: int, budget: int) -> int:
        """Admit one of the queue; return what is left of the budget, -1 to admit none after it.

        All of the budget comes back where it was not admitted and another may be.
        """
        blocks, room = self.blocks, self.room()
        found: Found | None
        num_tokens, num_computed = self.num_tokens[slot], 0
        chain, found = self.chains[slot], None
        if chain is not None:
            found = blocks.find(chain, num_tokens)
            num_computed = found.num_found * blocks.size
        new = self.cut(slot, num_tokens - num_computed, budget)
        if self.aligns:
            new = self.aligned(slot, found, num_computed, new)
        # all of it has to fit, though a first piece might do
        whole = self.whole_must_fit or self.brings[slot] != _NOTHING or self.comes_back_whole(slot)
        if self.has_tiers and found is not None and not self.brings[slot]:
            numbers = self.tiered.missing(chain, found, num_tokens)
            if numbers:
                return budget if self.load(slot, found, numbers, budget, whole) else -1
        num_first = num_computed + new
        if self.num_first:
            num_first = min(num_first + self.num_first, self.max_context)
        need = (
            self.need_to_admit(slot, found, num_first, whole)
            if self.brings[slot] or self.keeps_states
            else blocks.need(found, num_tokens, num_first, whole)
        )
        if need > room:
            return budget if self.loses_load(slot) else self.be_blocked(found, whole)
        if self.brings[slot] and (self.brings_in(slot, num_computed, found) or self.has_tiers):
            return budget  # tiers may have more of it than the cache
        lacks = self.is_paged and blocks.need(found, 0, num_first, False) > room
        if lacks or not new or self.holds_back(slot, num_tokens - num_computed, new, False):
            return -1
        num_left, end = num_tokens - num_computed, num_computed + new
        more = self.pad(slot, num_left, end, found, budget) if self.num_queries > 1 else 0
        if more < 0:
            return budget if more == _NO_ROOM and self.loses_load(slot) else -1
        self.leave_queue(slot)
        num_first = num_tokens if self.swaps else min(num_first + more, self.max_context)
        last = num_first if self.swaps and self.is_paged else end
        self.num_blocks[slot] = blocks.begin(chain, found, num_first, last)
        self.begin_prompt(slot, num_computed, new)
        return budget - new - more

    def be_blocked(self, found: Found | None, whole: bool) -> int:
        """Note that the next one finds no room, which others may change only by leaving; -1."""
        has_more = self.ranked is not None and self.ranked.has_arrived()  # may go before
        has_more |= self.has_tiers and not whole  # tiers may get some of it
        may_gain = found is not None and self.blocks.may_gain(found, whole)
        self.is_blocked = not (has_more or may_gain or self.own is not None)
        return -1

    def load(self, slot: int, found: Found, numbers: list[int], budget: int, whole: bool) -> bool:
        """Let blocks of a prompt come from tiers, so many from each, if there is room for them.

        Or let another one go that was loaded. Returns whether either happened.
        """
        blocks, number = self.tiered, sum(numbers)
        chain, num_tokens = self.chains[slot], self.num_tokens[slot]
        num_here = blocks.held_with(found, number) * blocks.size
        num_first = num_here
        if blocks.loads_in_step:
            num_first += self.cut(slot, num_tokens - num_here, budget)
        if self.num_first:
            end = found.num_found * blocks.size
            end += self.cut(slot, num_tokens - end, budget) + self.num_first
            num_first = max(num_first, min(end, self.max_context))
        if blocks.need(found, num_tokens, num_first, whole) > self.room():
            if self.loses_load(slot):
                return True
            self.be_blocked(found, whole)
            return False
        reserves = self.reserves_rest and not blocks.loads_in_step
        if reserves and blocks.need(found, 0, num_here, False) > self.room() - self.num_rest():
            return False
        self.leave_queue(slot)
        all_of = num_tokens if self.is_whole else num_here
        self.num_blocks[slot] = blocks.load(chain, found, number, all_of)
        self.brings[slot], self.num_brought[slot] = _FROM_TIERS, num_here
        self.load_time += self.notes.load(slot, numbers, self.time)
        if blocks.loads_in_step:
            self.state[slot] = _CAME
            self.loaded.append(slot)
        else:
            self.state[slot] = _COMING
            self.num_coming += 1
            self.note_left(slot, _COMES)
        return True

    def num_rest(self) -> int:
        """Return the blocks that prompts lack which have begun, or whose entries come or came."""
        number = 0
        for slot in range(self.num_slots):
            state = self.state[slot]
            is_loaded = state == _CAME and self.brings[slot] != _AN_ANSWER
            if is_loaded or state in (_PREFILL, _COMING):
                lacking = self.blocks.count(self.num_tokens[slot]) - self.num_blocks[slot]
                number += max(0, lacking)
        return number

    def is_before_loaded(self, slot: int) -> bool:
        """Tell whether it goes before loaded ones: preempted, and has given no load back since."""
        if not self.preempted_first:
            return False
        return self.num_preempted[slot] > self.gave_back.get(slot, 0)

    def loses_load(self, slot: int) -> bool:
        """Let the prompt loaded last begin anew, if loaded ones hold blocks that `slot` waits for.

        No other request could give any back; vLLM hangs then (`EngineRules.reserves_prefills`). The
        prompt goes behind a preempted request that waits for the blocks, or would take them again.
        """
        if not self.has_tiers or self.running or self.num_coming or self.num_abandoned:
            return False
        if len(self.loaded) <= (self.tiered.loads_in_step or slot in self.loaded):
            return False
        last = self.loaded.pop()
        self.gave_back[last] = self.num_preempted[last]
        self.num_promised -= self.need_to_join(last)
        self.blocks.forget(self.chains[last], self.num_blocks[last])
        if self.chains[last] is not None:
            self.chains[last].start_over()
        self.num_blocks[last] = 0
        if self.brings[last] == _FROM_TIERS:
            self.have_brought(last)
        first = next(iter(self.queue), -1)
        self.wait_first(last)
        if first >= 0 and self.is_before_loaded(first):
            self.queue.move_to_end(first, last=False)
        return True

    def brings_in(self, slot: int, num_computed: int, found: Found | None) -> bool:
        """Let entries of elsewhere come; return False if the cache has as many."""
        if self.brings[slot] == _AN_ANSWER or num_computed < self.num_brought[slot]:
            self.leave_queue(slot)
            self.bring(slot, found)
            return True
        self.have_brought(slot)
        self.note_left(slot, _HAS_ALL)
        return False

    def comes_back_whole(self, slot: int) -> bool:
        """Tell whether one waits for room for all of it that gave way: so it is where they flow."""
        return self.flow is not None and self.num_preempted[slot] > 0

    def pad(self, slot: int, num_left: int, end: int, found: Found | None, budget: int) -> int:
        """Return the drafts with which a prompt is admitted; < 0: it waits for tokens, or blocks.

        num_left: tokens that are to be computed. end: of its first piece.
        """
        return 0

    def need_to_admit(self, slot: int, found: Any, num_first: int, whole: bool) -> int:
        """Return the blocks that must be free for one that waits.

        num_first: its tokens up to the end of its first piece. whole: whether all of it must fit.
        """
        if self.brings[slot]:
            in_pieces, number = self.brings[slot] == _A_PREFIX, self.num_needed(slot)
            return self.blocks.need_to_bring(found, self.num_brought[slot], number, in_pieces)
        if self.keeps_states and self.paged.waits_for_state(found):
            return _NEVER
        return self.blocks.need(found, self.num_tokens[slot], num_first, whole)

    def next_waiting(self, budget: int) -> int:
        """Return the slot of the queue that is next, if there is a seat; -1: none."""
        flows = self.flow is not None
        is_held = (self.swapped or self.moved) and not self.loaded
        if not ((budget or flows) and self.queue) or is_held:
            return -1
        if len(self.running) == self.max_num_seqs:
            self.is_blocked = True
            return -1
        slot = self.head() if flows or self.ranked is not None else next(iter(self.queue))
        if slot < 0:
            self.is_blocked = self.ranked is not None and not self.ranked.has_arrived()
            return -1
        if self.queued_at[slot] > self.known_until:
            return -1
        return slot if budget or self.brings[slot] == _AN_ANSWER else -1

    def room(self) -> int:
        """Return the blocks that admissions may take, less than 0 if too many are promised."""
        room = self.blocks.num_free - self.decode_need - self.num_promised
        if self.running:
            room -= self.blocks.num_reserved
        return room

    def admit_loaded(self, budget: int) -> int:
        """Admit prompts whose entries have come; return the tokens of the budget that are left."""
        while budget and self.loaded and (slot := self.next_loaded()) >= 0:
            left = self.admit_behind(slot, budget)
            if left < 0:
                break
            budget = left
        return budget

    def admit_behind(self, slot: int, budget: int) -> int:
        """Admit a request whose entries have come; return the budget left, -1: it waits."""
        has_seat = len(self.running) < self.max_num_seqs
        need = 0
        if has_seat and self.brings[slot] == _FROM_TIERS:
            need = self.need_behind(slot, budget)
        if not has_seat or self.room() < need:
            if self.loses_load(slot):
                return budget
            self.is_blocked = not (has_seat and self.is_paged)
            return -1
        num_tokens = self.num_tokens[slot] - self.num_brought[slot]
        new = self.cut(slot, num_tokens, budget)
        if self.aligns:
            new = self.aligned(slot, None, self.num_brought[slot], new)
        if not new or self.holds_back(slot, num_tokens, new, True):
            return -1
        more = self.pad_loaded(slot, new, budget) if self.num_queries > 1 else 0
        if more == _NO_ROOM and self.loses_load(slot):
            return budget
        if more < 0:
            return -1
        self.loaded.remove(slot)
        self.go_on(slot, new, more)
        return budget - new - more

    def need_behind(self, slot: int, budget: int) -> int:
        """Return the blocks that one lacks behind those from tiers, which others find from now."""
        num_here, num_tokens = self.num_brought[slot], self.num_tokens[slot]
        self.blocks.enter(self.chains[slot], num_here)
        if not self.whole_must_fit and not self.comes_back_whole(slot):
            num_tokens = num_here + self.cut(slot, num_tokens - num_here, budget)
            if self.num_first:
                num_tokens = min(num_tokens + self.num_first, self.max_context)
        return self.blocks.count(num_tokens) - self.num_blocks[slot]

    def pad_loaded(self, slot: int, new: int, budget: int) -> int:
        """Return the same of a prompt with entries (`pad`)."""
        return 0

    def next_loaded(self) -> int:
        """Return the prompt with entries that goes before the queue; -1: none."""
        if not self.loaded:
            return -1
        first: int = self.loaded[0]
        if self.preempted_first and self.queue and self.is_before_loaded(next(iter(self.queue))):
            return -1
        return first if self.ranked is None else self.ranked.loaded(self.loaded, self.known_until)

    def go_on(self, slot: int, new: int, more: int) -> None:
        """Admit a prompt behind entries that have come, with so many tokens, and drafts."""
        num_here, blocks, chain = self.num_brought[slot], self.blocks, self.chains[slot]
        is_loaded = self.brings[slot] == _FROM_TIERS
        self.num_promised -= self.need_to_join(slot)
        self.have_brought(slot)
        if chain is not None:
            blocks.enter(chain, num_here)
        num_first = self.num_tokens[slot] if self.swaps else num_here + new
        if is_loaded and self.num_queries > 1:
            num_first = min(num_first + self.num_first + more, self.max_context)
        number = blocks.count(num_first)
        if self.is_paged:
            self.paged.take(chain, num_here, num_first, num_first)
        else:
            blocks.grow(number - self.num_blocks[slot])
            if is_loaded:
                self.tiered.tiers.touch(chain)
        self.num_blocks[slot] = number
        self.begin_prompt(slot, num_here, new)

    def begin_prompt(self, slot: int, num_computed: int, new: int) -> None:
        """Let a prompt run that has blocks for its first piece, of so many tokens."""
        self.enter_piece(slot, num_computed + new)
        self.running.append(slot)
        self.prefilling.append(slot)
        self.state[slot] = _PREFILL
        self.num_computed[slot], self.num_piece[slot] = num_computed, new
        if self.is_paged:
            self.note_piece(slot)
        self.num_new += new
        self.has_changed = True
        self.counts.begin(self.num_queued[slot])
        if not self.num_preempted[slot]:
            self.started_at[slot], self.num_cached[slot] = self.time, num_computed
        if self.cadence is not None and self.num_tokens[slot] - num_computed > 1:
            self.cadence.carry()

    # --- a step -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the step that was planned: time it, and find out when others see one end."""
        if self.defers:
            self.idle = {slot for slot in self.prefilling if not self.num_piece[slot]}
            self.idle.update(self.paused)
        start, is_ahead = self.time, self.known_until < inf
        on_the_spot = self.plans_ahead and not is_ahead
        chunks = self.chunks() if self.num_new else ()
        wait = self.num_copied * self.copy_time + self.load_time
        if self.waits_for_more:
            wait = self.notes.wait(wait)
        self.wait = wait
        seconds = self.seconds(chunks, on_the_spot) + wait
        if self.prompts_come or self.waits_since >= 0:
            self.note_missing(self.is_apart)
        if self.is_apart:
            self.rows.begin(start, chunks, 0, 0, 0)
        elif self.has_changed or on_the_spot or self.is_alone or not self.rows.go_on(chunks):
            num_gaps = self.num_decodes - self.num_gone - self.num_late
            if self.joined:
                num_gaps -= self.num_stalled()
            self.rows.begin(start, chunks, self.num_decodes, self.context_sum, num_gaps)
        self.seen_at = self.next_last
        if self.num_new:
            self.find_seen()
        if self.swaps and self.joined:
            self.seen_at = self.num_steps + 1
        self.has_changed = False
        self.is_alone = on_the_spot or wait > 0 or self.num_copied > 0 or self.some_missed
        self.start, self.time, self.phase = start, start + seconds, self.end_phase
        self.was_apart = self.is_apart
        self.was_ahead = is_ahead and not self.is_apart  # a step of prompts leaves nothing unknown
        self.known_until = start if self.plans_ahead else inf
        self.num_quiet = -1
        self.num_ahead = 0

    def note_missing(self, all_miss: bool) -> None:
        """Note which decodes miss the step that begins, or have missed those before it.

        all_miss: whether all do, or the lane rests until blocks for them are copied.
        """
        self.num_late = 0
        if not all_miss and self.waits_since == self.time:
            self.waits_since = -1.0  # it rested for no time
        for slot in self.running:
            if self.state[slot] != _DECODE:
                continue
            is_new = self.first_step[slot] == self.num_steps
            if not all_miss:
                self.num_late += self.waits_since >= 0 and not is_new
            elif not is_new:
                if self.waits_since < 0:
                    self.waits_since = self.ended
            elif slot not in self.joined:
                self.joined.append(slot)

    def end_missing(self) -> None:
        """Give the requests their token that missed steps before this one."""
        if self.num_late:
            self.notes.gap(self.ended, self.ended - self.waits_since, self.num_late)
        self.num_late, self.waits_since = 0, -1.0

    def chunks(self) -> Chunks:
        """Return the (new, computed) tokens of each prompt in the step."""
        found = [
            (self.num_piece[slot], self.num_computed[slot])
            for slot in self.prefilling
            if self.num_piece[slot]
        ]
        return tuple(found)

    def seconds(self, chunks: Chunks, on_the_spot: bool) -> float:
        """Return how long a step of the decodes and of some chunks takes."""
        times = self.times
        if self.is_apart:
            return times.ask(chunks, 0, 0, 0, -1, on_the_spot, -1)
        if not (chunks or on_the_spot or times.needs_longest) and times.has_line(self.num_decodes):
            num_keys = self.context_sum + self.num_decodes - self.num_read_again
            return times.of_decodes(self.num_decodes, num_keys)
        return times.ask(
            chunks,
            self.num_decodes,
            self.context_sum,
            self.num_read_again,
            self.longest_context() if times.needs_longest else -1,
            on_the_spot,
            self.in_windows(0)[0] if self.is_paged else -1,
        )

    def longest_context(self) -> int:
        """Return the longest context of a decode, in tokens."""
        longest = 0
        for slot in self.running:
            if self.state[slot] == _DECODE:
                longest = max(longest, self.tokens(slot) - 1)
        return longest

    def in_windows(self, num_ahead: int) -> tuple[int, int, int]:
        """Return the keys that decodes see through their windows, so many steps from now.

        And by how much these grow in a step, and for how many steps.
        """
        number = num_growing = 0
        least, reach = _NEVER, self.paged.reach
        for slot in self.running:
            if self.state[slot] == _DECODE:
                context = self.tokens(slot) - 1 + num_ahead
                if context < reach:
                    num_growing += 1
                    least = min(least, reach - context)
                    number += context
                else:
                    number += reach
        return number, num_growing, least

    def find_seen(self) -> None:
        """Find out whether the prompts of this step end an answer, or a gap in one."""
        for slot in self.prefilling:
            num_tokens = self.num_tokens[slot]
            if num_tokens - self.num_computed[slot] == self.num_piece[slot] and (
                self.tells_prompts
                or self.num_final[slot] == num_tokens + 1
                or self.last_token_at[slot] == self.last_token_at[slot]
            ):
                self.seen_at = self.num_steps + 1

    def settle(self) -> None:
        """Take the blocks of steps that were taken at once."""
        if not self.lag:
            return
        lag, size, step = self.lag, self.blocks.size, self.num_steps - self.lag
        self.lag = 0
        if self.is_paged:
            self.serve_decodes(step + 1, self.num_steps - 1)
            self.num_used_before = self.blocks.num_blocks - self.blocks.num_free
            self.serve_decodes(self.num_steps, self.num_steps)
            return
        number = lag // size * self.num_decodes  # each takes one in `size` steps
        if not self.swaps:
            step += 1  # the first has taken its blocks
        for more in range(lag % size):
            number += self.takers[(step + more) % size]
        self.blocks.grow(number)
        if self.swaps:
            self.decode_need = self.takers[self.num_steps % size]

    def end(self) -> None:
        """End the step in flight: give its tokens, and let those go that are done."""
        if self.lag:
            self.settle()
        if self.forgotten:
            self.free_forgotten()
        end = self.time
        if self.decode_need and not self.is_apart:
            self.take_for_decodes()
        self.rows.note_end(
            end, self.counts.num_waiting, self.blocks.num_blocks - self.blocks.num_free
        )
        self.ended = end
        if self.cadence is not None:
            self.cadence.advance(1)
        if self.is_apart:
            self.num_apart += 1
            self.num_beside = 0
        else:
            self.num_steps += 1
            self.num_beside = self.num_decodes
            if self.waits_since >= 0:
                if self.joined and self.num_queries == 1:
                    self.end_first()
                self.end_missing()
            self.end_decodes()
        if self.paused:
            self.end_pause()
        if self.num_new:
            self.end_pieces()
        self.decode_need = self.next_need()
        self.is_planning, self.phase = True, self.plan_phase
        self.take_back()
        if self.is_staged:
            self.note_left(-1, _LOOKS)
        if self.stops:
            self.halt()
            self.note_left(-1, _STOPPED)

    def end_decodes(self) -> None:
        """Give the decodes their tokens, and let those go that have all."""
        self.num_given += self.num_decodes
        self.context_sum += self.num_decodes
        if self.joined:
            self.end_first()
        if self.num_writers and (self.swaps or self.blocks.size == 1):
            for slot in self.in_order_of_joining(self.running):
                chain = self.chains[slot]
                if self.state[slot] == _DECODE and chain is not None:
                    self.enter_answer(chain, self.tokens(slot) - 1)
        if self.num_steps >= self.next_last:
            self.finish_decodes()

    def end_pieces(self) -> None:
        """Count the tokens of prompts that the step has computed."""
        has_emitted = False
        for slot in self.prefilling:
            self.num_computed[slot] += self.num_piece[slot]
            self.num_piece[slot] = 0
            if self.num_computed[slot] == self.num_tokens[slot]:
                self.emit(slot)
                has_emitted = True
        if has_emitted:
            self.prefilling = [each for each in self.prefilling if self.state[each] == _PREFILL]

    def take_back(self) -> None:
        """Take back seats and blocks as a step ends, of those that the next plan knows."""
        if not self.plans_ahead:
            self.free_leaving()
            if self.given_up:
                self.end_given_up()
        if self.copied:
            self.free_copied()
        flow = self.flow
        if flow is not None:
            self.let_flow(flow)
        if self.leaving and not self.has_work():
            self.free_leaving()  # nothing is left to plan

    # --- answers that others go on with -------------------------------------------------------

    def let_flow(self, flow: Flow) -> None:
        """Let answers go to other clients, behind the step that is planned already if it is."""
        due, self.due_slots = self.due_slots, []
        if due and not self.notes.may_move():
            return
        for ticket, slot in due:
            self.move_out(ticket, slot)
        found = [(self.ticket[slot], slot) for slot in flow.leaving(self)]
        if not found or not (due or self.notes.may_move()):
            return
        if self.plans_ahead:
            self.due_slots = found
            return
        for ticket, slot in found:
            self.move_out(ticket, slot)
        self.free_leaving()

    def move_out(self, ticket: int, slot: int) -> None:
        """Let an answer go to another client, unless it is done, away, or given up meanwhile."""
        if self.state[slot] != _DECODE or self.ticket[slot] != ticket or self.gives_up(slot):
            return
        self.stop(slot)
        self.end_stay(slot)
        self.leaves[slot], self.state[slot] = _ENTRIES, _LEAVING
        self.num_done_blocks += self.num_blocks[slot]
        self.leaving.append(slot)
        self.note_left(slot, _MOVES)

    def pace(self, slot: int, time: float, num_tokens: int, num_backflows: int) -> None:
        """Say from which token on the time per token of an answer counts."""
        self.paced_at[slot], self.paced_from[slot] = time, num_tokens
        self.num_backflows[slot] = num_backflows

    def set_sliders(self, max_num_batched_tokens: int, flow: Flow | None) -> None:
        """Plan with other chunks, and let answers leave by another rule, unless that is None."""
        self.max_tokens = max_num_batched_tokens
        self.num_quiet = 0
        if flow is not None:
            self.flow, self.due_slots = flow, []

    def finish_decodes(self) -> None:
        """Let those go whose answer ends with this step, and find the next such step."""
        first, last_step = _NEVER, self.last_step
        finished = []
        for slot in self.running:
            last = last_step[slot]
            if last == self.num_steps:
                finished.append(slot)
            elif last < first:
                first = last
        self.next_last = first
        for slot in self.in_order_of_joining(finished):
            self.leave_decodes(slot)
            self.finish(slot)

    def in_order_of_joining(self, slots: list[int]) -> list[int]:
        """Return slots of decodes as they began to decode, which mostly is the order given."""
        last = 0
        for slot in slots:
            if self.state[slot] == _DECODE:
                if self.ticket[slot] < last:
                    found = [each for each in slots if self.state[each] == _DECODE]
                    return [each for _, each in sorted([(self.ticket[one], one) for one in found])]
                last = self.ticket[slot]
        return slots

    def emit(self, slot: int) -> None:
        """Give the token that a whole prompt, or a preempted answer, emits."""
        self.has_changed = True
        if self.has_tiers and self.tiered.publishes and self.chains[slot] is not None:
            self.tiered.tiers.publish(self.chains[slot])
        self.num_tokens[slot] += 1
        if self.tells_prompts:
            self.notes.emit(slot)
        if self.leaves[slot] != _ENTRIES_SILENTLY:
            if self.first_token_at[slot] != self.first_token_at[slot]:
                self.first_token_at[slot], self.num_ahead_of[slot] = self.ended, self.num_beside
            if self.last_token_at[slot] == self.last_token_at[slot]:
                self.notes.gap(self.ended, self.ended - self.last_token_at[slot])
            self.num_given += 1
            self.num_beside += 1
            self.last_token_at[slot] = self.ended
            self.first_step[slot], self.first_apart[slot] = self.num_steps, self.num_apart
        if self.num_tokens[slot] == self.num_final[slot]:
            self.finish(slot)
            return
        self.join_decodes(slot)

    def finish(self, slot: int) -> None:
        """Note that a request has all its tokens."""
        self.has_changed = True
        self.state[slot] = _LEAVING
        self.leaving.append(slot)
        self.last_token_at[slot] = self.ended
        self.end_stay(slot)
        if self.leaves[slot] and self.gives_up(slot):
            self.leaves[slot] = _NONE
        self.num_done_blocks += self.num_blocks[slot]
        self.note_left(slot, _FINISHED)

    def gives_up(self, slot: int) -> bool:
        """Tell whether a request gives up that still runs."""
        return slot in [each for _, each in self.given_up]

    def end_given_up(self) -> None:
        """Let those go that gave up during the step, unless they are done."""
        given_up, self.given_up = self.given_up, []
        for _, slot in given_up:
            self.note_left(slot, _GIVEN_UP)
            self.let_go(slot)

    def note_left(self, slot: int, how: int) -> None:
        """Note what others have to hear of a request, mostly that it leaves (`WAYS`)."""
        self.notices.append((slot, how))

    # --- what others read ---------------------------------------------------------------------

    def is_before(self, time: float, phase: int) -> bool:
        """Tell whether its next plan or end of a step comes before a time and phase."""
        return self.time < time or (self.time == time and self.phase < phase)

    def is_due_before(self, time: float, phase: int) -> bool:
        """Tell whether it may have something else than quiet steps before a time and phase."""
        return self.due < time or (self.due == time and self.due_phase < phase)

    def lags(self) -> bool:
        """Tell whether it may have quiet steps to take that lie behind the others."""
        return self.num_quiet > 0 and not self.is_planning

    def is_seen(self) -> bool:
        """Tell whether others see what it does next, or its order among lanes."""
        if self.has_tiers and (self.queue or self.loaded or self.tiered.publishes):
            return True
        if self.is_staged:
            return True  # others hear of each step
        if not self.is_planning:
            return self.num_steps + 1 >= self.seen_at
        if self.given_up and self.given_up[0][0] <= self.known_until:
            return True
        if self.cadence is not None or self.spares_one or self.own is not None:
            return True  # the plan says what it computes of prompts, and so which give way
        if self.overlaps and (self.swapped or self.going):
            return True
        if self.swapped and (self.is_paged or self.fits_back(next(iter(self.swapped)))):
            return True
        return self.is_short() or bool(self.left_out)

    def story(self, slot: int) -> Story:
        """Return what becomes of a visit.

        When it began, and when it had its first and its latest token; its tokens, computed ones,
        those that were cached, how often it gave way, and the tokens that its engine gave before
        its first one in the same step.
        """
        return (
            self.started_at[slot],
            self.first_token_at[slot],
            self.last_token_at[slot],
            self.tokens(slot),
            self.num_computed[slot],
            self.num_cached[slot],
            self.num_preempted[slot],
            self.num_ahead_of[slot],
        )

    def members(self) -> list[tuple[int, int, int]]:
        """Return (slot, tokens, tokens before them) of those in the step, in order of admission."""
        found = []
        for slot in self.running:
            if self.state[slot] == _DECODE:
                if not self.is_apart:
                    found.append((slot, 1, self.tokens(slot) - 1))
            elif self.state[slot] == _PREFILL and self.num_piece[slot]:
                found.append((slot, self.num_piece[slot], self.num_computed[slot]))
        return found

    def is_leaving(self, slot: int) -> bool:
        """Tell whether a request that runs has all its tokens."""
        return self.state[slot] == _LEAVING

    def is_decoding(self, slot: int) -> bool:
        """Tell whether a request that runs has its prompt computed."""
        return self.state[slot] == _DECODE

    def is_waiting(self, slot: int) -> bool:
        """Tell whether a request waits, in the queue or for entries."""
        state = self.state[slot]
        return state in (_WAITING, _COMING, _CAME, _ABANDONED, _SWAPPED)

    def queued_tokens(self, slot: int) -> int:
        """Return the tokens that a request is counted with while it waits."""
        return self.num_queued[slot]

    def forget_brought(self, slot: int) -> None:
        """Let a prompt in the queue be computed from its start, as its entries are lost."""
        self.have_brought(slot)
        self.num_queued[slot] = self.num_tokens[slot]

    def have_brought(self, slot: int) -> None:
        """Note that no entries of a request are elsewhere any more."""
        self.brings[slot], self.num_brought[slot] = _NOTHING, 0

    def num_asked(self, slot: int) -> int:
        """Return the tokens of a request with those that were planned before it left."""
        return self.tokens(slot)

    def num_entries(self) -> int:
        """Return the tokens of running requests that have KV entries."""
        number = self.context_sum
        for slot in self.prefilling:
            number += self.num_computed[slot]
        for slot in self.paused:
            number += self.num_tokens[slot] - 1
        return number

    def num_in_use(self) -> int:
        """Return the blocks that requests hold."""
        self.settle()
        return self.blocks.num_blocks - self.blocks.num_free

    def prompts(self) -> list[tuple[int, int]]:
        """Return (tokens to compute, tokens before them) of each prompt that waits or runs."""
        found = [
            (self.num_tokens[slot] - self.num_brought[slot], self.num_brought[slot])
            for slot in self.queue
            if self.brings[slot] != _AN_ANSWER
        ]
        for slot in self.prefilling:
            num_computed = self.num_computed[slot]
            found.append((self.num_tokens[slot] - num_computed, num_computed))
        return found

    def score(self) -> int:
        """Return how busy it is, see `least_loaded`."""
        return 4 * self.num_waiting() + self.num_running()

    def num_waiting(self) -> int:
        """Return how many wait, or have entries on their way."""
        number = len(self.queue) + len(self.moved) + len(self.loaded) + self.num_coming
        return number + len(self.swapped)

    def num_running(self) -> int:
        """Return how many run and go on."""
        return self.num_decodes + len(self.prefilling) + len(self.paused)

    def num_inside(self) -> int:
        """Return how many wait, or run and go on."""
        return self.num_waiting() + self.num_running()

    def skip(self, until: float) -> bool:
        """Take quiet batches that return before a time; return whether any did (`Pipeline`)."""
        return False

    def make_room(self) -> None:
        """Double the slots."""
        before = self.num_slots
        self.num_slots = 2 * before or 64
        self.queued_at = longer(self.queued_at, "d", self.num_slots)
        self.started_at = longer(self.started_at, "d", self.num_slots)
        self.first_token_at = longer(self.first_token_at, "d", self.num_slots)
        self.last_token_at = longer(self.last_token_at, "d", self.num_slots)
        self.num_prompt = longer(self.num_prompt, "q", self.num_slots)
        self.num_tokens = longer(self.num_tokens, "q", self.num_slots)
        self.num_final = longer(self.num_final, "q", self.num_slots)
        self.num_computed = longer(self.num_computed, "q", self.num_slots)
        self.num_piece = longer(self.num_piece, "q", self.num_slots)
        self.num_blocks = longer(self.num_blocks, "q", self.num_slots)
        self.num_cached = longer(self.num_cached, "q", self.num_slots)
        self.num_queued = longer(self.num_queued, "q", self.num_slots)
        self.num_preempted = longer(self.num_preempted, "q", self.num_slots)
        self.num_ahead_of = longer(self.num_ahead_of, "q", self.num_slots)
        self.first_step = longer(self.first_step, "q", self.num_slots)
        self.first_apart = longer(self.first_apart, "q", self.num_slots)
        self.last_step = longer(self.last_step, "q", self.num_slots)
        self.state = longer(self.state, "q", self.num_slots)
        self.num_brought = longer(self.num_brought, "q", self.num_slots)
        self.brings = longer(self.brings, "q", self.num_slots)
        self.leaves = longer(self.leaves, "q", self.num_slots)
        self.resumed = longer(self.resumed, "q", self.num_slots)
        self.ticket = longer(self.ticket, "q", self.num_slots)
        self.paced_from = longer(self.paced_from, "q", self.num_slots)
        self.num_backflows = longer(self.num_backflows, "q", self.num_slots)
        self.paced_at = longer(self.paced_at, "d", self.num_slots)
        if self.is_paged:
            self.piece_step = longer(self.piece_step, "q", self.num_slots)
            self.before_piece = longer(self.before_piece, "q", self.num_slots)
        self.chains.extend([None] * (self.num_slots - before))
        self.unused.extend(range(self.num_slots - 1, before - 1, -1))


def longer(column: array[Any], code: str, size: int) -> array[Any]:
    """Return a longer copy of a column; one that is read elsewhere cannot grow."""
    more = bytes(8 * (size - len(column)))
    return array(code, bytes(memoryview(column)) + more)
