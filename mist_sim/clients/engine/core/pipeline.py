"""A pipeline: a lane with a queue of batches, which follow one another through its ranks.

Whenever the oldest batch has returned, or work comes while there is none, the next one is planned,
and more as long as the queue has room (vLLM's `EngineCore.step_with_batch_queue`). Plans that
compute nothing take a place in the queue, too. Tokens count as computed when their batch is
planned, and come when it returns. On the ranks batches never overtake one another:

    start[r] = max(end[r - 1] + delay between ranks, end of the batch before on r)
    end[r] = start[r] + time of the batch on rank r

Decodes are in groups, each of which is in the same batches. `stagger` is the number of plans from
one plan of a decode to its next one, which is made before its token comes; with 0 it is made
afterwards. No more is planned of an answer of which one token is to come, or which reaches the
longest context; tokens behind its last are computed in vain.

A preempted request still gets its tokens in flight. Where steps are planned ahead and `drains`
is false it may come back before them: its first piece ends with the tokens that have come, and
later pieces go on with the others, unless those end the answer. Otherwise it waits for them, and
all behind it; with `drains` others pass it, and it waits for all batches that compute it. One whose
last token is on its way just gives its seat and blocks back then.

Source: vLLM, `step_with_batch_queue` in `vllm/v1/engine/core.py`, `AsyncScheduler` in
`vllm/v1/core/sched/async_scheduler.py`, and `num_output_placeholders` in `Scheduler.schedule`.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from mist_sim.clients.engine.core.lane import FREE, GONE, Lane, longer
from mist_sim.errors import InvariantError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mist_sim.clients.engine.core.rows import Rows
    from mist_sim.clients.engine.core.times import Times
    from mist_sim.clients.engine.lanes import QueueForm
    from mist_sim.clients.prefixes.prefix_cache import Found
    from mist_sim.clients.prefixes.shared_prefixes import SharedPrefixes

inf, nan = float("inf"), float("nan")
_FREE, _WAITING, _PREFILL, _DECODE, _LEAVING = FREE, 1, 2, 3, 4
_GONE = GONE
_FINISHED, _OUTGROWN, _GIVEN_UP, _GIVEN_UP_WAITING, _STOPPED = 0, 1, 2, 3, 4
_NO_STEP, _NEVER = -1, 1 << 62


class Group:
    """Decodes that are in the same batches, and what their track of records knows.

    members: in order of admission; version grows with every change of them. num_ending: those whose
        last token is on its way. newcomers: those that were in another group, and in no batch of
        this one so far.
    num_steps, ended: batches that have returned, and when the latest with decodes did. joined: who
        decodes since then; some came from another group if `has_moved`.
    """

    def __init__(self, number: int, rows: Rows, prefixes: SharedPrefixes | None) -> None:
        self.number, self.rows, self.prefixes = number, rows, prefixes
        self.members: list[int] = []
        self.num_in_flight = self.num_ending = self.context_sum = self.num_read_again = 0
        self.newcomers: list[int] = []
        self.num_steps = self.version = 0
        self.ended = 0.0
        self.joined: list[int] = []
        self.has_moved = False
        # of quiet batches: those planned and returned, whether the latest was planned, and when;
        # how many more may be, the members, those by the blocks that they take, and the delay
        self.num_planned = self.num_back = self.last_plan = self.num_left = 0
        self.is_planned_last = False
        self.now: list[int] = []
        self.takers: list[int] = []
        self.delay = 0.0


class Batch:
    """A batch on its way.

    decodes, prompts: that get a token with it. vain, vain_prompts: those that get one behind their
        last. pieces: of prompts, each in its place of `sizes`, the (new, computed) tokens.
    moved: decodes that were in another group before. left: those that gave way, and get no token
        after it.
    ready: when the first rank may begin it; end: when it returns. goes_on: whether any of its
        answers needs more tokens. version: of its group, if it gives its members a token, and
        nothing else; else -1.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.decodes: list[int] = []
        self.vain: list[int] = []
        self.prompts: list[int] = []
        self.vain_prompts: list[int] = []
        self.pieces: list[int] = []
        self.sizes: tuple[tuple[int, int], ...] = ()
        self.moved: list[int] = []
        self.left: list[int] = []
        self.ready = self.end = self.busy = 0.0
        self.num_used = self.num_decodes = self.context_sum = self.num_read_again = 0
        self.num_new = 0
        self.longest = self.version = self.num_in_windows = -1
        self.goes_on = False


class Pipeline(Lane):
    """size, stagger, fills, drains: of the `QueueForm`. longest: most tokens of a request.

    ranks: what times a batch on each; delay: gives the seconds between two, for so many tokens.

    batches: in the queue, oldest first; None: nothing was to compute. num_flying: the others.
    number: of the next plan. group: of the latest plan. recent: the batch of the plan of each
        number, modulo `stagger`.
    context: tokens of a request that are computed, or will be by batches in flight; num_tokens:
        those that have come. num_due, num_vain: tokens on their way, and behind the last one.
    flights: batches in flight that compute it. num_flown: tokens that they compute.
    entered: its tokens that others may find.
    eligible: number of the plan that may compute it again. grouped: 1 + the number of the group in
        which it decodes; 0: in none. home: number of that in whose track its latest tokens are.
    """

    def __init__(self, *arguments: Any) -> None:
        self.context = self.num_due = self.num_vain = self.flights = array("q")
        self.entered = self.eligible = self.home = self.grouped = self.num_flown = array("q")
        super().__init__(*arguments)
        self.batches: list[Batch | None] = []
        self.num_flying = self.plan_number = 0
        self.some_left = False  # since the latest plan
        self.size, self.stagger, self.fills, self.drains = 2, 0, False, False
        self.longest, self.needs_longest = 0, False
        self.is_pipeline = True

    def lie(
        self,
        form: QueueForm,
        longest: int | None,
        ranks: list[Times],
        delay: Callable[[int], float],
        groups: list[Group],
    ) -> None:
        """Have ranks, and a queue of batches."""
        self.size, self.stagger, self.readmits = form.size, form.stagger, form.readmits
        self.fills, self.drains = form.fills, form.drains
        self.longest, self.ranks, self.delay = longest or _NEVER, ranks, delay
        for rank in ranks:
            self.needs_longest = self.needs_longest or rank.needs_longest
        self.rank_ends = array("d", bytes(8 * len(ranks)))
        self.groups, self.group = groups, groups[0]
        self.recent: list[Batch | None] = [None] * form.stagger

    def carry(self, slot: int, num_computed: int, decodes: bool) -> bool:
        """Let a request just queued go on that ran elsewhere; return whether it has room."""
        if not self.take_over(slot, num_computed, 0):
            return False
        self.num_tickets += 1
        self.ticket[slot], self.context[slot] = self.num_tickets, num_computed
        self.enter_known(slot, num_computed)
        self.running.append(slot)
        if decodes:
            self.state[slot] = _DECODE
            self.join_group(slot, self.group)
            self.go_on_in(slot, self.group)
        else:
            self.carry_prompt(slot, num_computed)
        return True

    # --- the queue of batches -----------------------------------------------------------------

    def plan(self) -> None:
        """Plan until the queue is full or nothing is left to compute; wait for the oldest batch."""
        self.is_planning = False
        batches, before = self.batches, None
        while True:
            if self.running or self.queue or (batches and self.some_left):
                batch = self.next_batch()
                batches.append(batch)
                if len(batches) < self.size:
                    if self.fills and (self.running or self.queue):
                        continue
                    if batch is not None and (self.fills or batches[0] is not None):
                        continue
            elif not batches:
                self.rest()
                return
            if batches[0] is not None:
                break
            del batches[0]
            if not self.num_flying:
                members = list(self.queue), list(self.running)
                if members == before and not self.has_decodes():  # nothing changes any more
                    batches.clear()
                    self.rest()
                    return
                before = members
        self.await_oldest()

    def await_oldest(self) -> None:
        """Wait for the oldest batch, which is on its way."""
        batch = self.batches[0]
        if batch is None:
            raise InvariantError("a pipeline waits for a batch of nothing")
        self.time, self.phase = batch.end, self.end_phase
        self.num_quiet = -1  # the next batches may be
        group = self.group
        self.num_decodes, self.context_sum = len(group.members), group.context_sum

    def has_decodes(self) -> bool:
        """Tell whether any group has decodes."""
        number = 0
        for group in self.groups:
            number += len(group.members)
        return number > 0

    def rest(self) -> None:
        """Do nothing until a request comes."""
        self.time = inf
        self.write()
        if self.follows and (self.queue or self.running):
            self.notes.wait_for_ever(len(self.queue) + len(self.running))
        if self.queue:
            raise InvariantError(f"an engine sleeps with {len(self.queue)} requests waiting")

    def next_batch(self) -> Batch | None:
        """Plan the next batch and send it through the ranks; None if there is nothing to do."""
        number, self.some_left = self.plan_number, False
        self.group = group = self.next_group()
        if self.paused:
            self.end_pause()
        if not self.stagger:
            for other in self.groups:
                if other is not group and not other.num_in_flight and other.members:
                    self.move(other, group)
        if group.num_ending:
            for slot in list(group.members):
                if self.is_over(slot):
                    self.leave_group(slot, group)
            group.num_ending = sum([self.is_ending(slot) for slot in group.members])
        self.schedule()
        batch = None
        if group.members or self.num_new:
            batch = self.compose(group)
            self.send(batch, self.delay(batch.num_new + batch.num_decodes))
            self.num_flying += 1
            group.num_in_flight += 1
        if self.stagger:
            self.recent[number % self.stagger] = batch
        self.plan_number += 1
        return batch

    def next_group(self) -> Group:
        """Return the group to plan next: one that has decodes and no batch in flight."""
        if self.stagger:
            return self.groups[self.plan_number % self.stagger]
        first = None
        for group in self.groups:
            if not group.num_in_flight:
                if group.members:
                    return group
                first = first or group
        return first or self.groups[0]

    def move(self, other: Group, group: Group) -> None:
        """Let the decodes of a group, which has no batch in flight, go to another."""
        for slot in list(other.members):
            self.close_stay(slot)
            self.leave_group(slot, other)
            self.join_group(slot, group)
            group.newcomers.append(slot)

    def join_group(self, slot: int, group: Group) -> None:
        """Let a request decode in a group."""
        members, place = group.members, len(group.members)
        while place and self.ticket[members[place - 1]] > self.ticket[slot]:
            place -= 1
        members.insert(place, slot)
        group.version += 1
        self.grouped[slot] = group.number + 1
        group.context_sum += self.context[slot]
        group.num_ending += self.is_ending(slot)
        chain, prefixes = self.chains[slot], group.prefixes
        if prefixes is not None and (chain is not None or prefixes.tokens):
            number = len(members)
            group.num_read_again = prefixes.join(
                slot + 1, chain, number, group.context_sum + number
            )

    def leave_group(self, slot: int, group: Group) -> None:
        """Let a request decode no more."""
        group.members.remove(slot)
        group.version += 1
        self.grouped[slot] = 0
        group.context_sum -= self.context[slot]
        group.num_ending -= self.is_ending(slot)
        prefixes = group.prefixes
        if prefixes is not None and (self.chains[slot] is not None or prefixes.tokens):
            number = len(group.members)
            group.num_read_again = prefixes.leave(slot + 1, number, group.context_sum + number)

    def compose(self, group: Group) -> Batch:
        """Return the batch of a plan, and count what it computes as computed."""
        batch = Batch(group)
        batch.num_used = self.blocks.num_blocks - self.blocks.num_free
        members = group.members
        number = batch.num_decodes = len(members)
        batch.context_sum, batch.num_read_again = group.context_sum, group.num_read_again
        batch.goes_on = number > 0
        if group.newcomers:
            batch.moved = [slot for slot in group.newcomers if slot in members]
            group.newcomers = []
        if self.needs_longest:
            for slot in members:
                batch.longest = max(batch.longest, self.context[slot])
        batch.num_in_windows = self.num_in_windows(members) if self.is_paged else -1
        group.context_sum += number
        eligible = self.plan_number + self.stagger
        ended = []
        for slot in members:
            self.context[slot] += 1
            self.flights[slot] += 1
            self.num_flown[slot] += 1
            self.eligible[slot] = eligible
            if self.is_ending(slot):
                batch.vain.append(slot)
                self.num_vain[slot] += 1
                ended.append(slot)
            else:
                batch.decodes.append(slot)
                self.num_due[slot] += 1
                if self.is_ending(slot):
                    group.num_ending += 1
                    ended.append(slot)
        for slot in ended:
            if self.is_over(slot):
                self.leave_group(slot, group)
        if self.num_new:
            self.compose_pieces(batch)
        elif not ended and not batch.moved:
            batch.version = group.version
        return batch

    def num_in_windows(self, members: list[int]) -> int:
        """Return the keys that decodes see through their windows."""
        number = 0
        for slot in members:
            number += min(self.context[slot], self.paged.reach)
        return number

    def compose_pieces(self, batch: Batch) -> None:
        """Add the pieces of prompts to a batch."""
        sizes = []
        for slot in list(self.prefilling):
            new = self.num_piece[slot]
            if not new:
                continue
            sizes.append((new, self.num_computed[slot]))
            batch.num_new += new
            batch.pieces.append(slot)
            self.num_piece[slot] = 0
            self.num_computed[slot] += new
            self.context[slot] = self.num_computed[slot]
            self.flights[slot] += 1
            self.num_flown[slot] += new
            num_known = self.num_tokens[slot] + self.num_due[slot] + self.num_vain[slot]
            if self.num_computed[slot] == num_known:
                self.complete(slot, batch)
        batch.sizes = tuple(sizes)

    def complete(self, slot: int, batch: Batch) -> None:
        """Note that the token behind a prompt is on its way."""
        self.prefilling.remove(slot)
        self.state[slot] = _DECODE
        self.eligible[slot] = self.plan_number + self.stagger
        if self.is_ending(slot):
            batch.vain_prompts.append(slot)
            self.num_vain[slot] += 1
        else:
            batch.prompts.append(slot)
            self.num_due[slot] += 1
        if self.num_final[slot] > self.num_prompt[slot] + 1:
            batch.goes_on = True
        if self.stagger and not self.is_over(slot):
            self.join_group(slot, batch.group)

    def send(self, batch: Batch, delay: float) -> None:
        """Send a batch through all ranks, with so many seconds between two."""
        batch.ready = time = self.ready()
        ends, busy, seconds = self.rank_ends, 0.0, 0.0
        before = None
        for rank, times in enumerate(self.ranks):
            if times is not before:
                seconds = self.seconds_on(times, batch, False)
                before = times
            more = seconds
            if not rank and self.stagger and not self.num_flying:  # nothing overlaps with it
                more = self.seconds_on(times, batch, True)
            if rank:
                time += delay
            free = ends[rank]
            time = (time if time > free else free) + more  # max() would be a call  # noqa: FURB136
            ends[rank] = time
            busy += more
        batch.end, batch.busy = time, busy

    def seconds_on(self, times: Times, batch: Batch, on_the_spot: bool) -> float:
        """Return how long a batch takes on a rank."""
        number = batch.num_decodes
        if not (batch.num_new or on_the_spot or self.needs_longest) and times.has_line(number):
            return times.of_decodes(number, batch.context_sum + number - batch.num_read_again)
        return times.ask(
            batch.sizes,
            number,
            batch.context_sum,
            batch.num_read_again,
            batch.longest,
            on_the_spot,
            batch.num_in_windows,
        )

    def ready(self) -> float:
        """Return when the next batch's decodes have their tokens, so that rank 0 may begin."""
        if self.stagger == 1:
            return max(self.time, self.rank_ends[-1])
        if self.stagger:
            before = self.recent[self.plan_number % self.stagger]
            if before is not None and before.end > self.time and before.goes_on:
                return before.end
        return self.time

    # --- what is on its way -------------------------------------------------------------------

    def is_ending(self, slot: int) -> bool:
        """Tell whether the last token of an answer is on its way."""
        num_due = self.num_due[slot]
        return num_due > 0 and self.num_tokens[slot] + num_due >= self.num_final[slot]

    def is_over(self, slot: int) -> bool:
        """Tell whether no more of an answer is planned."""
        is_last = self.num_due[slot] == 1 or self.context[slot] + 1 >= self.longest
        return is_last and self.is_ending(slot)

    def is_stale(self, slot: int) -> bool:
        """Tell whether one that waits has to wait for what is in flight."""
        if self.readmits:
            return False
        return self.flights[slot] > 0 if self.drains else self.num_due[slot] > 0

    def fresh(self) -> int:
        """Return the next request to admit; -1: none before a batch has returned."""
        if self.ranked is not None:
            slot = self.ranked.head(inf)
            if slot >= 0 and self.is_stale(slot):
                stale = [each for each in self.queue if self.is_stale(each)]
                return self.ranked.head_without(stale) if self.drains else -1
            return slot
        for slot in self.queue:
            if not self.is_stale(slot):
                return slot
            if not self.drains:
                break
        return -1

    def last_to_give(self, slot: int) -> Batch | None:
        """Return the latest batch on its way with a token for a request."""
        for batch in reversed(self.batches):
            if batch is not None and (slot in batch.decodes or slot in batch.prompts):
                return batch
        return None

    # --- a plan -------------------------------------------------------------------------------

    def schedule(self) -> bool:
        """Give running requests the blocks of the next batch, and admit others.

        A plan that preempts admits none.
        """
        members, size = self.group.members, self.blocks.size
        need = 0
        for slot in members:
            if self.context[slot] % size == 0:
                need += 1
        self.decode_need, self.num_decodes = need * self.per_block, len(members)
        if self.follows:
            return self.follow()
        has_sent_back = self.own is not None and self.ask_own()
        num_before = len(self.running)
        if self.spares_one or self.is_paged:
            self.find_limits()
        is_short = self.is_short()
        if is_short:
            self.preempt()
        if self.is_paged:
            self.serve(is_short)
        else:
            self.take_for_decodes()
        self.decode_need = 0
        if self.num_new:
            self.give_pieces_blocks()
        if len(self.running) < num_before:
            return True
        if self.queue:
            self.admit(self.max_tokens - len(members) - self.num_new)
        return has_sent_back or len(self.running) > num_before

    def first_waiting(self) -> int:
        """Return the next request to admit; -1: none before a batch has returned."""
        return self.fresh() if self.queue else -1

    def take_for_decodes(self) -> None:
        """Give the decodes the blocks of their next step, and let others find those filled."""
        members, size = self.group.members, self.blocks.size
        if self.decode_need:
            self.blocks.grow(self.decode_need)
            for slot in members:
                if self.context[slot] % size == 0:
                    self.num_blocks[slot] += 1
        for slot in members:
            self.enter_known(slot, self.num_tokens[slot])

    def enter_known(self, slot: int, num_tokens: int) -> None:
        """Let others find the blocks of so many tokens, all of which are known."""
        if num_tokens > self.entered[slot]:
            self.entered[slot] = num_tokens
            chain = self.chains[slot]
            if self.is_paged:
                self.paged.name(chain, num_tokens)
            elif chain is not None:
                self.blocks.enter(chain, num_tokens)

    def is_busy(self, slot: int) -> bool:
        """Tell whether a running request decodes, but not in the group that is planned."""
        return self.state[slot] == _DECODE and self.grouped[slot] != self.group.number + 1

    def context_of(self, slot: int) -> int:
        """Return the tokens of a decode that are computed, or will be by batches in flight."""
        return self.context[slot]

    def num_seen(self, slot: int, num_computed: int) -> int:
        """Return the computed tokens behind which windows no longer see, as the plan knows."""
        return num_computed - self.num_flown[slot] if self.paged.lags else num_computed

    def have_turn(self, slot: int, new: int) -> None:
        """Give one its turn, with so many tokens of a prompt; 0: it decodes."""
        paged, chain = self.paged, self.chains[slot]
        begin = self.num_computed[slot] if new else self.context[slot]
        end = begin + max(new, 1)
        paged.give_behind(chain, self.num_seen(slot, begin))
        paged.take(chain, begin, end, end)
        self.num_blocks[slot] = max(self.num_blocks[slot], paged.count(end))
        self.enter_known(slot, min(end, self.num_tokens[slot]))

    def aligned(self, slot: int, found: Any, begin: int, new: int) -> int:
        """Return the tokens of a piece that may have to end where a state is saved."""
        on_their_way = 0 if found is not None else self.num_due[slot] + self.num_vain[slot]
        ends = self.num_tokens[slot] + on_their_way, self.num_prompt[slot]
        return self.paged.piece(self.chains[slot], found, begin, new, ends)

    def renew_tickets(self, slots: list[int]) -> None:
        """Do nothing: decodes are in the order of admission."""

    def pause(self, slots: list[int]) -> None:
        """Let decodes miss the plan; they are in the next one, whatever group that is of."""
        for slot in slots:
            self.take_out(slot)
            self.paused.append(slot)

    def who_decode(self) -> list[int]:
        """Return the decodes of the group that is planned."""
        return list(self.group.members)

    def take_for(self, slot: int) -> None:
        """Give a decode the block of its next step."""
        number = self.takes_blocks(slot)
        if number:
            self.blocks.grow(number)
            self.num_blocks[slot] += number

    def name_for(self, slot: int) -> None:
        """Let others find the blocks that a decode has filled."""
        self.enter_known(slot, self.num_tokens[slot])

    def end_pause(self) -> None:
        """Let those decode again who missed a plan, unless all their tokens are on their way."""
        paused, self.paused = self.paused, []
        for slot in paused:
            if self.is_over(slot):
                continue
            batch = self.last_to_give(slot)
            if batch is None:
                self.close_stay(slot)
            else:
                batch.left.append(slot)
            self.join_group(slot, self.group)
            if slot not in self.group.newcomers:
                self.group.newcomers.append(slot)

    def num_to_go(self, slot: int) -> int:
        """Return the tokens of a prompt that its next piece may compute, also on their way."""
        num_left = self.num_tokens[slot] - self.num_computed[slot]
        on_their_way = self.num_due[slot] + self.num_vain[slot]
        if not on_their_way:
            return num_left
        is_over = self.num_computed[slot] + 2 - on_their_way >= self.num_final[slot]
        if is_over or self.plan_number < self.eligible[slot]:
            return 0
        return num_left + on_their_way

    def num_left(self, slot: int) -> int:
        """Return the tokens by which a piece is the last: of one just admitted, those come."""
        if self.context[slot]:
            return self.num_to_go(slot)
        return self.num_tokens[slot] - self.num_computed[slot]

    def enter_piece(self, slot: int, end: int) -> None:
        """Let others find its blocks, of tokens that are known."""
        self.enter_known(slot, min(end, self.num_tokens[slot]))

    def admit(self, budget: int) -> None:
        """Admit requests in their order while seats, memory and tokens last."""
        while budget > 0 and len(self.running) < self.max_num_seqs:
            slot = self.fresh()
            if slot < 0:
                return
            budget = self.admit_next(slot, budget)

    def admit_next(self, slot: int, budget: int) -> int:
        """Admit one of the queue; return what is left of the budget, -1 if it waits."""
        blocks = self.blocks
        found: Found | None
        num_tokens, num_computed = self.num_tokens[slot], 0
        chain, found = self.chains[slot], None
        if self.is_stale(slot):
            return -1
        if chain is not None:
            found = blocks.find(chain, num_tokens)
            num_computed = found.num_found * blocks.size
        new = self.cut(slot, num_tokens - num_computed, budget)
        if self.in_order:
            new = self.aligned(slot, found, num_computed, new)
        end, room = num_computed + new, self.room()
        if self.need_to_admit(slot, found, end, self.whole_must_fit) > room:
            return -1
        lacks = self.is_paged and blocks.need(found, 0, end, False) > room
        if lacks or not new or self.holds_back(slot, num_tokens - num_computed, new, False):
            return -1
        self.leave_queue(slot)
        self.num_blocks[slot] = blocks.begin(chain, found, end, end)
        self.num_tickets += 1
        self.ticket[slot] = self.num_tickets
        self.begin_prompt(slot, num_computed, new)
        return budget - new

    def begin_prompt(self, slot: int, num_computed: int, new: int) -> None:
        """Let a prompt run that has blocks for its first piece, of so many tokens."""
        Lane.begin_prompt(self, slot, num_computed, new)
        if self.is_paged:
            self.entered[slot] = num_computed + new

    def give_way(
        self, slot: int, gone: list[int], outgrown: list[int], was_served: bool = False
    ) -> None:
        """Take the blocks of a request, which waits before others, or in its place.

        One whose last token is on its way may just give them back.
        """
        self.running.remove(slot)
        is_ending, num_known = self.is_ending(slot), self.num_tokens[slot] + self.num_due[slot]
        num_entered = self.entered[slot]
        if was_served:
            num_entered = max(num_entered, min(self.context[slot], self.num_tokens[slot]))
        self.take_out(slot)
        if is_ending and not self.readmits:
            self.give_back(slot, num_entered)
            self.state[slot] = _LEAVING
            return
        number = self.num_blocks[slot]
        self.chains[slot] = self.blocks.preempt(self.chains[slot], number, num_entered)
        self.give_nothing(slot)
        self.num_computed[slot] = 0
        if not is_ending and self.blocks.alone(num_known) > self.blocks.num_blocks:
            self.close_stay(slot)
            self.note_left(slot, _OUTGROWN)
            self.let_slot_go(slot)
            return
        if not is_ending:
            gone.append(slot)
            batch = self.last_to_give(slot)
            if batch is None:
                self.close_stay(slot)
            else:
                batch.left.append(slot)
        self.num_preempted[slot] += 1
        self.num_queued[slot] = self.num_tokens[slot] if is_ending else num_known
        self.wait_first(slot)
        self.counts.go_back(self.num_queued[slot])

    def take_out(self, slot: int) -> None:
        """Take a request that runs out of the prompts or the decodes."""
        if self.state[slot] == _PREFILL:
            self.prefilling.remove(slot)
            self.num_piece[slot] = 0
            return
        if self.grouped[slot]:
            group = self.groups[self.grouped[slot] - 1]
            self.leave_group(slot, group)
            if group is self.group:
                self.num_decodes = len(group.members)
                self.decode_need -= self.takes_blocks(slot) * self.per_block
        elif slot in self.paused:
            self.paused.remove(slot)

    def give_back(self, slot: int, num_tokens: int) -> None:
        """Give back the blocks of a request, of which others may find so many tokens."""
        self.blocks.free(self.chains[slot], self.num_blocks[slot], num_tokens)
        self.give_nothing(slot)

    def give_nothing(self, slot: int) -> None:
        """Note that a request has no blocks any more."""
        self.num_blocks[slot] = self.context[slot] = self.entered[slot] = 0

    # --- a batch returns ----------------------------------------------------------------------

    def end(self) -> None:
        """Hand out the tokens of the oldest batch."""
        batch, end = self.batches[0], self.time
        del self.batches[0]
        if batch is None:
            raise InvariantError("a batch of nothing returns")
        group = batch.group
        self.num_flying -= 1
        group.num_in_flight -= 1
        for slot in batch.moved:
            if self.state[slot] != _GONE:
                self.go_on_in(slot, group)
        self.write_row(batch)
        self.ended = end
        finished = self.hand_out(batch)
        for slot in finished:
            self.finish(slot)
        if self.given_up:
            self.end_given_up()
        self.land(batch)
        if self.stops:
            self.go_on_stopping()
        else:
            self.is_planning, self.phase = True, self.plan_phase
        group = self.group
        self.num_decodes, self.context_sum = len(group.members), group.context_sum

    def go_on_in(self, slot: int, group: Group) -> None:
        """Note that a decode that had a token before gets the next ones in a group."""
        self.home[slot] = group.number
        self.first_step[slot] = group.num_steps
        self.resumed[slot] = 1
        group.joined.append(slot)
        group.has_moved = True

    def hand_out(self, batch: Batch) -> list[int]:
        """Give requests the tokens of a batch that has returned; return those that have all."""
        finished: list[int] = []
        for slot in batch.decodes:
            if self.state[slot] != _GONE:
                self.last_token_at[slot] = self.ended
                self.get_token(slot, finished)
        for slot in batch.prompts:
            if self.state[slot] != _GONE:
                self.get_token(slot, finished)
                self.emit_in(slot, batch.group)
                goes_on = self.state[slot] == _DECODE and not self.stagger
                if goes_on and self.num_tokens[slot] < self.num_final[slot]:
                    self.join_group(slot, batch.group)
        for slot in batch.vain:
            self.num_vain[slot] -= 1
        for slot in batch.vain_prompts:
            self.num_vain[slot] -= 1
        for slot in batch.left:
            if self.state[slot] != _GONE:
                self.close_stay(slot)
        if self.stagger and self.blocks.caches:
            self.enter_come(batch)
        return finished

    def get_token(self, slot: int, finished: list[int]) -> None:
        """Give a request a token."""
        self.num_due[slot] -= 1
        self.num_tokens[slot] += 1
        if self.state[slot] == _WAITING:
            chain = self.chains[slot]
            if chain is not None and not self.is_paged:
                chain.found = None  # it has more to look for
        if self.num_tokens[slot] == self.num_final[slot]:
            finished.append(slot)

    def enter_come(self, batch: Batch) -> None:
        """Let others find blocks whose tokens have come with a batch."""
        several = [*batch.decodes, *batch.prompts]
        if batch.prompts:
            several.sort(key=self.ticket.__getitem__)
        for slot in several:
            if self.state[slot] in (_PREFILL, _DECODE):
                on_their_way = self.num_due[slot] + self.num_vain[slot]
                self.enter_known(slot, self.context[slot] - on_their_way)

    def land(self, batch: Batch) -> None:
        """Let those go that have left, and that no batch computes any more."""
        for several in (batch.decodes, batch.vain, batch.pieces):
            for place, slot in enumerate(several):
                self.flights[slot] -= 1
                self.num_flown[slot] -= batch.sizes[place][0] if several is batch.pieces else 1
                if not self.flights[slot] and self.state[slot] == _GONE:
                    self.release(slot)

    def write_row(self, batch: Batch) -> None:
        """Write a batch that returns now, and the gaps of decodes that had stood still."""
        group, rows, end = batch.group, batch.group.rows, self.time
        num_gone = len(batch.vain)
        for slot in batch.decodes:
            if self.state[slot] == _GONE:
                num_gone += 1
        self.num_beside = num_gaps = batch.num_decodes - num_gone
        if num_gaps:
            self.num_given += num_gaps
            if group.ended != batch.ready or group.has_moved:
                num_gaps = self.write_gaps(group, num_gaps, batch.ready)
            group.ended = end
            if group.joined or group.has_moved:
                group.joined, group.has_moved = [], False
        group.num_steps += 1
        number, is_alone = batch.num_decodes, not (batch.sizes or rows.chunks)
        steady = is_alone and rows.num_decodes == number and num_gaps == number
        goes_on = steady and rows.num_steps > 0 and rows.end == batch.ready
        if not goes_on or rows.context_sum + rows.num_steps * number != batch.context_sum:
            rows.begin(batch.ready, batch.sizes, number, batch.context_sum, num_gaps)
            rows.busy = 0.0
        rows.busy += batch.busy
        rows.note_end(end, self.counts.num_waiting, batch.num_used)

    def write_gaps(self, group: Group, number: int, start: float) -> int:
        """Write the gaps of decodes that had no token when their step began.

        number: of decodes. Returns how many had one.
        """
        end, num_fresh = self.time, 0
        for slot in group.joined:
            last = self.last_token_at[slot]
            if last == start:
                num_fresh += 1
            elif last == last:
                self.notes.gap(end, end - last, 1, group.number)
        number -= len(group.joined)
        if group.ended == start:
            num_fresh += number
        elif number:
            self.notes.gap(end, end - group.ended, number, group.number)
        return num_fresh

    def emit_in(self, slot: int, group: Group) -> None:
        """Give the token that a whole prompt, or a preempted answer, emits."""
        if self.tells_prompts:
            self.notes.emit(slot)
        if self.first_token_at[slot] != self.first_token_at[slot]:
            self.first_token_at[slot], self.num_ahead_of[slot] = self.ended, self.num_beside
        self.num_given += 1
        self.num_beside += 1
        if self.last_token_at[slot] == self.last_token_at[slot]:
            self.notes.gap(self.ended, self.ended - self.last_token_at[slot], 1, group.number)
        self.last_token_at[slot] = self.ended
        self.first_step[slot], self.home[slot] = group.num_steps, group.number
        if self.num_tokens[slot] < self.num_final[slot]:
            group.joined.append(slot)

    def close_stay(self, slot: int) -> None:
        """Record the steps that gave a request its tokens since its prompt was computed."""
        group = self.groups[self.home[slot]]
        if slot in group.joined:
            group.joined.remove(slot)
        self.end_stay(slot)

    def end_stay(self, slot: int) -> None:
        """Record these steps of an answer that ends."""
        first = self.first_step[slot]
        if first != _NO_STEP:
            group = self.groups[self.home[slot]]
            self.notes.stay(slot, first, group.num_steps, self.resumed[slot] > 0, group.number)
            self.first_step[slot], self.resumed[slot] = _NO_STEP, 0

    def finish(self, slot: int) -> None:
        """Let a request go that has all its tokens."""
        state = self.state[slot]
        if state == _WAITING:  # it does not come back
            self.leave_queue(slot)
            self.num_preempted[slot] -= 1
            self.counts.begin(self.num_queued[slot])
        elif state != _LEAVING:
            number = max(self.entered[slot], self.context[slot] - self.num_vain[slot])
            self.leave_running(slot, number)
        self.some_left = True
        self.end_stay(slot)
        self.note_left(slot, _FINISHED)
        self.let_slot_go(slot)

    def leave_running(self, slot: int, num_tokens: int) -> None:
        """Take seat and blocks of a request back, of which others may find so many tokens."""
        self.take_out(slot)
        self.running.remove(slot)
        self.give_back(slot, num_tokens)

    def let_slot_go(self, slot: int) -> None:
        """Let another have a slot, as soon as no batch computes the request that had it."""
        if self.flights[slot]:
            self.state[slot] = _GONE
        else:
            self.release(slot)

    def release(self, slot: int) -> None:
        """Let another request have a slot."""
        self.num_due[slot] = self.num_vain[slot] = self.flights[slot] = self.num_flown[slot] = 0
        self.context[slot] = self.entered[slot] = self.eligible[slot] = 0
        Lane.release(self, slot)

    # --- batches in which nothing happens but the next token of each decode ---------------------

    def skip(self, until: float) -> bool:
        """Take the batches that return before a time while each plan is like the one before it.

        Returns whether there was any.
        """
        self.num_quiet = 0
        waits = bool(self.prefilling or self.paused or self.given_up)
        waits = waits or self.needs_longest or self.stops or self.is_paged or self.asks_always
        if waits or len(self.batches) != self.size or self.time >= until or self.may_admit():
            return False
        for batch in self.batches:
            if batch is None or batch.version != batch.group.version:
                return False
        for group in self.groups:
            if not self.make_ready(group):
                return False
        number = 0
        while self.time < until and self.turn_batch():
            number += 1
        if number:
            self.some_left = False
            for group in self.groups:
                if group.num_planned or group.num_back:
                    self.settle_group(group)
        self.await_oldest()
        self.num_quiet = 0 if self.time < until else -1
        return number > 0

    def may_admit(self) -> bool:
        """Tell whether a plan of decodes alone may admit anybody."""
        if not self.queue or len(self.running) == self.max_num_seqs:
            return False
        slot = self.fresh()
        if slot < 0:
            return False
        if self.own is not None:
            return True
        chain, blocks, found = self.chains[slot], self.blocks, None
        if not self.whole_must_fit:
            return chain is not None or blocks.count(1) <= self.room()
        if chain is not None:
            found = blocks.find(chain, self.num_tokens[slot])
        need = blocks.need(found, self.num_tokens[slot], 0, True)
        return need <= self.room() or (found is not None and blocks.may_gain(found, True))

    def make_ready(self, group: Group) -> bool:
        """Find out what quiet batches of a group have in common; return whether any may be."""
        members, size = group.members, self.blocks.size
        number = len(members)
        group.num_planned = group.num_back = 0
        if not number:
            return not group.num_in_flight
        if group.num_ending or group.joined or group.has_moved or group.newcomers:
            return False
        group.delay = self.delay(number)
        group.takers = [0] * size
        group.num_left = self.longest
        for slot in members:
            chain = self.chains[slot]
            if chain is not None and chain.num_held < chain.num_shared:
                return False
            group.takers[self.context[slot] % size] += 1
            left = self.num_final[slot] - self.num_tokens[slot] - self.num_due[slot]
            group.num_left = min(group.num_left, left)
        group.now = list(members)
        return True

    def turn_batch(self) -> bool:
        """Let the oldest batch return, and plan the next one; return False if that is not quiet."""
        batch = self.batches[0]
        if batch is None:
            return False
        before, rows, size = batch.group, batch.group.rows, self.blocks.size
        group = self.groups[self.plan_number % self.stagger] if self.stagger else before
        number = len(group.members)
        if batch.ready != before.ended or not number or group.num_left < 2 or self.num_flying < 2:
            return False
        if not self.stagger and before.num_in_flight > 1:
            return False
        need = group.takers[(size - group.num_planned % size) % size]
        if need > self.blocks.num_free:
            return False
        if rows.chunks or not rows.num_steps or rows.end != batch.ready:
            return False
        if rows.context_sum + rows.num_steps * batch.num_decodes != batch.context_sum:
            return False
        if rows.num_decodes != batch.num_decodes:
            return False
        # it returns
        del self.batches[0]
        end = self.time
        before.ended = end
        before.num_back += 1
        before.is_planned_last = False
        before.num_steps += 1
        before.num_in_flight -= 1
        self.num_flying -= 1
        self.num_given += batch.num_decodes
        rows.busy += batch.busy
        rows.note_end(end, self.counts.num_waiting, batch.num_used)
        # and the next one is planned, in its place
        if need:
            self.blocks.grow(need)
        batch.group, batch.decodes, batch.version = group, group.now, group.version
        batch.num_used = self.blocks.num_blocks - self.blocks.num_free
        batch.num_decodes, batch.context_sum = number, group.context_sum
        batch.num_read_again = group.num_read_again
        batch.goes_on = True
        self.send(batch, group.delay)
        if self.stagger:
            self.recent[self.plan_number % self.stagger] = batch
        self.plan_number += 1
        self.num_flying += 1
        group.num_in_flight += 1
        group.num_planned += 1
        group.num_left -= 1
        group.context_sum += number
        group.last_plan, group.is_planned_last = self.plan_number - 1, True
        self.batches.append(batch)
        self.await_oldest()
        return True

    def settle_group(self, group: Group) -> None:
        """Enter the tokens of quiet batches."""
        num_back, num_planned = group.num_back, group.num_planned
        for slot in group.members:
            self.num_tokens[slot] += num_back
            self.num_due[slot] += num_planned - num_back
            self.flights[slot] += num_planned - num_back
            self.context[slot] += num_planned
            self.num_blocks[slot] = self.blocks.count(self.context[slot])
            if num_back:
                self.last_token_at[slot] = group.ended
            if num_planned:
                self.eligible[slot] = group.last_plan + self.stagger
            num_known = self.num_tokens[slot] - (0 if group.is_planned_last else 1)
            self.enter_known(slot, num_known)

    # --- requests give up, and the lane stops -------------------------------------------------

    def give_up(self, now: float, slot: int) -> bool:
        """Let a request go whose sender gives up now; return whether it leaves at once.

        One that runs leaves when the next batch has returned.
        """
        if self.num_flying and self.state[slot] in (_PREFILL, _DECODE):
            self.given_up.append((now, slot))
            return False
        self.let_go(slot)
        self.wake(now)
        return True

    def end_given_up(self) -> None:
        """Let those go that gave up since the batch before, unless they are done."""
        given_up, self.given_up = self.given_up, []
        for _, slot in given_up:
            state = self.state[slot]
            if state not in (_GONE, _FREE):
                self.note_left(slot, _GIVEN_UP_WAITING if state == _WAITING else _GIVEN_UP)
                self.let_go(slot)

    def let_go(self, slot: int) -> None:
        """Take a request out that is given up; batches in flight compute it in vain."""
        state = self.state[slot]
        if state == _WAITING:
            self.leave_queue(slot)
        elif state != _LEAVING:
            self.leave_running(slot, self.entered[slot])
        self.some_left = True
        self.close_stay(slot)
        self.let_slot_go(slot)

    def halt(self) -> None:
        """Lose the batches in flight, and rest: those that gave up are let go."""
        self.write()
        batches, self.batches = self.batches, []
        self.time, self.is_planning, self.is_halted = inf, True, True
        self.num_flying = 0
        for batch in batches:
            if batch is not None:
                batch.group.num_in_flight = 0
                for slot in batch.decodes + batch.prompts:
                    self.num_due[slot] = 0
                for slot in batch.vain + batch.vain_prompts:
                    self.num_vain[slot] = 0
                self.land(batch)
        self.end_given_up()

    def stop_at_end(self) -> bool:
        """Plan no more; return whether no batch is in flight. Else it rests behind the last."""
        self.stops = True
        self.batches = [batch for batch in self.batches if batch is not None]
        self.is_planning = False
        if not self.num_flying:
            self.halt()
            return True
        self.await_oldest()
        return False

    def go_on_stopping(self) -> None:
        """Wait for the next batch in flight, or rest."""
        if self.num_flying:
            self.await_oldest()
        else:
            self.halt()
            self.note_left(-1, _STOPPED)

    def take_off(self, slot: int) -> int:
        """Take a request that runs out of a lane that has stopped; return its computed tokens."""
        num_computed = self.context[slot]
        self.take_out(slot)
        self.close_stay(slot)
        self.state[slot] = _PREFILL
        return num_computed

    def write(self) -> None:
        """Write the batches that have returned."""
        for group in self.groups:
            group.rows.flush()
            group.rows.hand_over_ends()

    # --- what others read ---------------------------------------------------------------------

    def is_seen(self) -> bool:
        """Tell whether others see what it does next, or its order among lanes."""
        return True

    def tokens(self, slot: int) -> int:
        """Return the tokens of a request that have come."""
        return self.num_tokens[slot]

    def num_asked(self, slot: int) -> int:
        """Return the tokens of a request with those on their way."""
        return self.num_tokens[slot] + self.num_due[slot]

    def num_entries(self) -> int:
        """Return the tokens of running requests that have KV entries."""
        number = 0
        for slot in self.running:
            number += self.context[slot]
        return number

    def score(self) -> int:
        """Return how busy it is, see `least_loaded`."""
        return 4 * len(self.queue) + len(self.running)

    def make_room(self) -> None:
        """Double the slots."""
        Lane.make_room(self)
        self.context = longer(self.context, "q", self.num_slots)
        self.num_due = longer(self.num_due, "q", self.num_slots)
        self.num_vain = longer(self.num_vain, "q", self.num_slots)
        self.flights = longer(self.flights, "q", self.num_slots)
        self.num_flown = longer(self.num_flown, "q", self.num_slots)
        self.entered = longer(self.entered, "q", self.num_slots)
        self.eligible = longer(self.eligible, "q", self.num_slots)
        self.home = longer(self.home, "q", self.num_slots)
        self.grouped = longer(self.grouped, "q", self.num_slots)
