"""A lane that drafts: a step gives each decode one token, and the drafts that it accepts.

How many a step accepts is drawn before the answer begins. In a step a decode has memory for its
context, the newest token, all drafts, and what a drafting model writes behind them; it keeps what
it does not fill for its next step.

A plan made ahead does not know what the step before gives, so it counts as if all drafts of that
were accepted. An answer that needed more than one token then takes part in the next step even if
it has ended: seat and blocks are free behind that plan, and what the step computes of it is lost.

Source: vLLM v1, `Scheduler.schedule` in `vllm/v1/core/sched/scheduler.py`, which leaves out
requests that are sure to reach `max_tokens`, and `allocate_slots` in
`vllm/v1/core/kv_cache_manager.py`.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from mist_sim.clients.engine.core.lane import Lane, longer
from mist_sim.clients.engine.core.lockstep import Replica
from mist_sim.errors import InvariantError

if TYPE_CHECKING:
    from mist_sim.clients.engine.core.lane import Chunks
    from mist_sim.clients.engine.lane_setup import LaneSetup
    from mist_sim.clients.prefixes.prefix_cache import Found
    from mist_sim.clients.scheduling.cadence import Cadence

inf = float("inf")
_PREFILL, _DECODE, _LEAVING, _FROM_TIERS, _NO_ROOM = 2, 3, 4, 3, -2
_NEVER = 1 << 62
_FEW_ASKED, _MOST_ASKED = 4, 64  # steps whose seconds a predictor is asked for at once
_LEAST_LATE = 2  # tokens of a step whose plan did not know that it might end an answer


class Drafting(Replica):
    """A lane whose decodes verify drafts.

    decodes: in order of joining, with those that have ended and are in the next step (`num_over`).
    paths: drafts that each step of an answer accepts, two bytes each; num_taken: its steps so far.
    num_last, num_beyond: tokens that its latest step gave it, and those behind its last. num_took:
        blocks for the step in flight. from_tokens: that it had when it joined. padded: whether it
        was admitted with drafts. turn_end: where its latest step with pages was to end.
    told: seconds of `num_told` steps, the next of them at `next_told`.
    """

    def __init__(self, *arguments: Any) -> None:
        self.paths: list[bytes | None] = []
        self.num_taken = self.num_last = self.num_beyond = self.num_took = array("q")
        self.from_tokens = self.padded = self.turn_end = array("q")
        super().__init__(*arguments)
        self.decodes: list[int] = []
        self.num_over = 0
        self.num_drafts = self.num_more = 0
        self.pads_prompts = self.may_pad = self.covers_next = self.verifies_late = False
        self.told, self.num_told, self.next_told, self.num_to_ask = array("d"), 0, 0, 1

    def obey(self, setup: LaneSetup, cadence: Cadence | None, asks_always: bool) -> None:
        """Plan by the options of a scheduler; verify drafts of each decode in a step."""
        drafting, rules = setup.config.speculative_config, setup.rules
        if drafting is None:
            raise InvariantError("drafts without speculative_config")
        num_lookahead = drafting.num_lookahead_tokens
        self.num_drafts = drafting.num_speculative_tokens
        self.num_queries, self.num_more = 1 + self.num_drafts, self.num_drafts + num_lookahead
        self.max_context = setup.config.max_model_len or _NEVER
        self.covers_next = setup.memory.hashes_ahead
        Lane.obey(self, setup, cadence, asks_always)
        if not self.swaps:
            self.num_behind, self.pads_prompts = num_lookahead, rules.pads_prompts
            self.num_first = num_lookahead if rules.admits_lookahead else 0
            late = not (self.plans_ahead or rules.caches_verified)
            self.verifies_late = late and self.blocks.size > 1

    # --- decodes ------------------------------------------------------------------------------

    def join_decodes(self, slot: int) -> None:
        """Let a request decode that has its first token."""
        self.state[slot] = _DECODE
        self.num_tickets += 1
        self.ticket[slot] = self.num_tickets
        if self.paths[slot] is None:
            self.paths[slot] = self.notes.draw(slot, self.num_final[slot] - self.num_tokens[slot])
        self.num_last[slot] = self.num_took[slot] = 0
        self.from_tokens[slot] = self.num_tokens[slot]
        self.count_in(slot, self.num_tokens[slot] - 1)
        chain, prefixes = self.chains[slot], self.prefixes
        if prefixes is not None and (chain is not None or prefixes.tokens):
            self.num_read_again = prefixes.join(slot + 1, chain, self.num_decodes, self.num_keys())

    def leave_decodes(self, slot: int) -> None:
        """Let a request decode no more, between the end of a step and the next plan."""
        self.count_out(slot, self.num_tokens[slot] - 1)
        prefixes = self.prefixes
        if prefixes is not None and (self.chains[slot] is not None or prefixes.tokens):
            self.num_read_again = prefixes.leave(slot + 1, self.num_decodes, self.num_keys())

    def num_keys(self) -> int:
        """Return the keys that the queries of the decodes see, as far as they have entries."""
        return self.context_sum + self.num_decodes * self.num_queries

    def count_in(self, slot: int, context: int) -> None:
        """Count one that takes part in the next step."""
        decodes = self.decodes
        place = len(decodes)
        while place and self.ticket[decodes[place - 1]] > self.ticket[slot]:
            place -= 1
        decodes.insert(place, slot)
        self.num_decodes += 1
        self.context_sum += context
        self.num_writers += self.is_writing(slot)

    def count_out(self, slot: int, context: int) -> None:
        """Count one no more."""
        self.decode_need -= self.need_of(slot)
        self.decodes.remove(slot)
        self.num_decodes -= 1
        self.context_sum -= context
        self.num_writers -= self.is_writing(slot)

    def is_writing(self, slot: int) -> bool:
        """Tell whether an answer fills blocks that others may find."""
        chain = self.chains[slot]
        return chain is not None and chain.num_held < chain.num_shared

    def begin_over(self, slot: int) -> None:
        """Let an answer that has ended take part in the next step, whose plan does not know it."""
        self.num_over += 1
        self.count_in(slot, self.num_tokens[slot] - 1 + self.num_beyond[slot])

    def end_over(self, slot: int) -> None:
        """Let it take part no more."""
        self.num_over -= 1
        self.has_changed = True
        self.count_out(slot, self.num_tokens[slot] - 1 + self.num_beyond[slot])

    def free_leaving(self) -> None:
        """Take back seats and blocks of those that have ended: the next plan knows it."""
        if self.num_over:
            for slot in list(self.decodes):
                if self.state[slot] == _LEAVING:
                    self.end_over(slot)
        Lane.free_leaving(self)

    def stop(self, slot: int) -> int:
        """Take a request that runs out of the batch; return its computed tokens that are known."""
        if self.state[slot] == _LEAVING and slot in self.decodes:
            self.end_over(slot)
        num_known = Lane.stop(self, slot)
        self.begin_anew(slot)
        return num_known

    def begin_anew(self, slot: int) -> None:
        """Forget the steps that a decode has taken, and what drafts had memory behind it."""
        self.num_last[slot] = self.padded[slot] = self.num_took[slot] = 0
        if self.is_paged and self.state[slot] == _DECODE:
            self.num_blocks[slot] = self.blocks.count(self.num_tokens[slot] - 1)

    def renew_tickets(self, slots: list[int]) -> None:
        """Let decodes join again behind a plan that computes nothing, which they missed."""
        Lane.renew_tickets(self, slots)
        for slot in slots:
            self.decodes.remove(slot)
            self.decodes.append(slot)
            self.begin_anew(slot)
        self.decode_need = self.next_need()

    def has_no_turn(self, slot: int) -> bool:
        """Tell whether a running request takes no part in the step that is planned."""
        return self.state[slot] == _LEAVING and slot not in self.decodes

    def sit_out(self, slots: list[int]) -> list[int]:
        """Return the decodes among those that miss the step; ended ones have no part in it."""
        for slot in slots:
            if self.state[slot] == _LEAVING and slot in self.decodes:
                self.end_over(slot)
        return Lane.sit_out(self, slots)

    def num_served(self, slot: int) -> int:
        """Return the computed tokens of a decode that are known behind its turn."""
        number = self.num_tokens[slot] - 1
        if self.known_until == inf:
            return number
        num_last = 0 if self.was_apart else self.num_last[slot]
        if self.covers_next:
            return number - max(num_last, 1)
        return number - max(num_last - 1, 0)

    def num_cacheable(self, slot: int) -> int:
        """Return the computed tokens of an answer that others may find as it leaves.

        Where verified tokens are named with the next plan, none of the latest step.
        """
        if self.verifies_late:
            return self.num_tokens[slot] - max(self.num_last[slot], 1)
        return self.num_tokens[slot] - 1

    def num_unknown(self, slot: int) -> int:
        """Return how many of these the next plan does not know.

        It knows one of the latest step if that step was not planned ahead.
        """
        if self.known_until == inf:
            return 0
        num_last = 0 if self.was_apart else self.num_last[slot]
        if self.covers_next:
            return max(num_last, 1)
        if not num_last:
            return 0
        return num_last - (0 if self.was_ahead else 1)

    def release(self, slot: int) -> None:
        """Let another request have a slot."""
        self.paths[slot] = None
        self.num_taken[slot] = self.num_last[slot] = self.padded[slot] = 0
        Lane.release(self, slot)

    # --- memory -------------------------------------------------------------------------------

    def next_slots(self, slot: int) -> int:
        """Return the tokens that a decode has memory for in its next step."""
        number = self.num_tokens[slot] + self.num_more
        if self.plans_ahead:
            if self.num_last[slot]:
                number += 1 + self.num_drafts - self.num_last[slot]
            elif self.padded[slot]:
                number += self.num_drafts
        return min(number, self.max_context)

    def takes_blocks(self, slot: int) -> int:
        """Return the blocks of tokens that a decode takes for its next step."""
        return self.blocks.count(self.next_slots(slot)) - self.num_blocks[slot]

    def need_of(self, slot: int) -> int:
        """Return the blocks of memory that a decode takes for its next step.

        Where prompts have all of theirs, states are counted to the page: they take none yet for
        what a drafting model writes ahead, and more in a later step.
        """
        if self.keeps_states and not self.in_order:
            context = self.num_tokens[slot] - 1
            if self.state[slot] == _LEAVING:
                context += self.num_beyond[slot]
            end, num_slots = context + self.num_queries, self.next_slots(slot)
            return self.paged.lacking(self.chains[slot], context, end, num_slots)
        return self.takes_blocks(slot) * self.per_block

    def next_need(self) -> int:
        """Return the blocks that the decodes need in their next step, before they take them."""
        number = 0
        for slot in self.decodes:
            number += self.need_of(slot)
        return number

    def take_for_decodes(self) -> None:
        """Give the decodes the blocks of their next step."""
        for slot in self.decodes:
            number = self.need_of(slot)
            self.num_took[slot] = number
            self.num_blocks[slot] += number
        Lane.take_for_decodes(self)

    def is_short(self) -> bool:
        """Cut the pieces of the next plan, and tell whether it may preempt.

        States take no pages yet for what a drafting model writes ahead, and more in a later step.
        """
        need = self.decode_need + self.cut_pieces()
        if self.in_order and self.paged.num_ahead:
            number = self.num_decodes - len(self.left_out)
            for slot in self.prefilling:
                number += self.num_piece[slot] > 0
            need += self.paged.pool.groups.num_kept_states * number
        return need > self.blocks.num_free

    def lose_blocks(self) -> None:
        """Give back the blocks that decodes took for a step that is lost."""
        if self.is_paged:
            Lane.lose_blocks(self)
            return
        number = 0
        for slot in self.decodes:
            number += self.num_took[slot]
            self.num_blocks[slot] -= self.num_took[slot]
            self.num_took[slot] = 0
        self.blocks.free(None, number, 0)
        self.decode_need = self.next_need()

    def lose_pages(self) -> None:
        """Take back the pages of a lost step."""
        for slot in self.running:
            if self.state[slot] == _PREFILL:
                self.num_blocks[slot] = self.count_behind(self.num_computed[slot])
                if self.swaps:
                    self.num_blocks[slot] = self.blocks.count(self.num_tokens[slot])
            else:
                self.num_blocks[slot] -= self.num_took[slot]
                self.num_took[slot] = 0
            self.paged.cut(self.chains[slot], self.num_blocks[slot] * self.blocks.size)
        self.decode_need = self.next_need()

    # --- turns --------------------------------------------------------------------------------

    def slots_in_turn(self, slot: int, end: int) -> int:
        """Return the tokens that one has memory for in a step that ends behind so many."""
        if self.state[slot] != _PREFILL:
            return self.next_slots(slot)
        return min(end + self.num_behind, self.max_context)

    def decode_turn(self, slot: int, context: int, is_ahead: bool) -> None:
        """Give a decode its turn, which has so many tokens computed.

        Others find the tokens that its plan knows.
        """
        paged, chain, end = self.paged, self.chains[slot], context + self.num_queries
        num_slots = self.next_slots(slot)
        paged.give_behind(chain, self.num_seen(slot, context))
        paged.take(chain, context, end, num_slots)
        num_unknown = max(self.num_last[slot], 1) if is_ahead else 0
        paged.name(chain, context + 1 - num_unknown - self.covers_next)
        self.num_took[slot] = max(0, paged.count(num_slots) - self.num_blocks[slot])
        self.num_blocks[slot] += self.num_took[slot]
        self.piece_step[slot], self.before_piece[slot] = self.num_steps + self.num_apart, context
        self.turn_end[slot] = end

    def note_piece(self, slot: int) -> None:
        """Note that the step that is planned computes a piece of a prompt."""
        Lane.note_piece(self, slot)
        self.turn_end[slot] = self.num_computed[slot] + self.num_piece[slot]

    def num_seen(self, slot: int, num_computed: int) -> int:
        """Return the computed tokens from whose end windows look back, as the plan knows.

        All drafts of a step in flight count; or, if pages are freed late, nothing of it.
        """
        if self.known_until == inf or self.piece_step[slot] != self.num_steps + self.num_apart - 1:
            return num_computed
        return self.before_piece[slot] if self.paged.lags else self.turn_end[slot]

    def in_windows(self, num_ahead: int) -> tuple[int, int, int]:
        """Return the keys that decodes see through their windows in the next step."""
        number = 0
        for slot in self.decodes:
            context = self.num_tokens[slot] - 1
            if self.state[slot] == _LEAVING:
                context += self.num_beyond[slot]
            number += min(context, self.paged.reach)
        return number, 0, 1

    # --- requests that wait -------------------------------------------------------------------

    def num_needed(self, slot: int) -> int:
        """Return the tokens that a waiting request needs memory for in its next decode step."""
        number = self.num_tokens[slot]
        return min(number + self.num_more, self.max_context) if self.has_answer(slot) else number

    def has_answer(self, slot: int) -> bool:
        """Tell whether a request has tokens of its answer."""
        return self.num_tokens[slot] > self.num_prompt[slot]

    def outgrows(self, slot: int) -> bool:
        """Tell whether a request needs more blocks than there are."""
        number = self.num_needed(slot)
        if not self.has_answer(slot):
            number = min(number + self.num_behind, self.max_context)
        return self.blocks.alone(number) > self.blocks.num_blocks

    # --- prompts ------------------------------------------------------------------------------

    def schedule(self) -> bool:
        """Name what is known now of answers, if a block's name covers the token behind it."""
        if self.covers_next and self.known_until == inf:
            self.enter_computed()
        return Lane.schedule(self)

    def let_in(self) -> None:
        """Admit requests of the queue, with drafts if no prompt that runs is in the step."""
        self.may_pad = self.pads_prompts and not self.num_new
        Lane.let_in(self)

    # --- a whole plan of a scheduler of one's own ---------------------------------------------

    def may_run(self, slot: int) -> bool:
        """Tell whether one may take part: also an ended one, if the plan does not know it."""
        if self.state[slot] == _LEAVING:
            return slot in self.decodes
        return Lane.may_run(self, slot)

    def let_come(self, slot: int, most: int) -> int:
        """Admit one of the queue, with drafts if no prompt that runs is in the step."""
        if not self.is_given:
            self.may_pad = self.pads_prompts and not self.num_new
        return Lane.let_come(self, slot, most)

    def who_decode(self) -> list[int]:
        """Return the decodes, also those that have ended, if the plan does not know it."""
        return list(self.decodes)

    def take_for(self, slot: int) -> None:
        """Give a decode the blocks of its next step."""
        number = self.need_of(slot)
        self.num_took[slot] = number
        self.num_blocks[slot] += number
        self.blocks.grow(number)

    def name_for(self, slot: int) -> None:
        """Let others find the blocks of tokens that are known when the step is planned."""
        chain = self.chains[slot]
        if chain is not None and self.blocks.size > 1 and not self.covers_next:
            number = max(self.num_last[slot], 1) if self.known_until < inf else 0
            self.enter_answer(chain, self.num_tokens[slot] - number)

    def pad(self, slot: int, num_left: int, end: int, found: Found | None, budget: int) -> int:
        """Return the drafts with which a prompt is admitted; < 0: it waits for tokens, or blocks.

        One that lacks its last token alone has some, as if it decoded. They are refused.
        """
        num_tokens = self.num_tokens[slot]
        is_lone = num_tokens == 1 and not self.num_decodes
        room = min(num_tokens + 1 + self.num_more, self.max_context)
        has_room = room >= num_tokens + self.num_drafts + 1
        pads = self.may_pad and num_left == 1 and has_room and not is_lone
        self.padded[slot] = 1 if pads else 0
        more = self.num_drafts if pads else 0
        if more >= budget:
            return -1
        return more if self.has_room_behind(slot, end, more, found) else _NO_ROOM

    def has_room_behind(self, slot: int, end: int, more: int, found: Found | None) -> bool:
        """Tell whether there are blocks for what is written behind the first piece of a prompt."""
        number = min(end + self.num_first + more, self.max_context)
        if number <= self.num_tokens[slot]:
            return True
        num_loaded = self.num_blocks[slot] if self.brings[slot] == _FROM_TIERS else 0
        return self.blocks.need(found, 0, number, False) - num_loaded <= self.room()

    def pad_loaded(self, slot: int, new: int, budget: int) -> int:
        """Return the same of a prompt with entries; without drafts unless tiers had these."""
        num_here = self.num_brought[slot]
        if self.is_paged:
            return 0
        if self.brings[slot] == _FROM_TIERS:
            return self.pad(slot, self.num_tokens[slot] - num_here, num_here + new, None, budget)
        return 0 if self.may_go_on(slot, new) else _NO_ROOM

    def may_go_on(self, slot: int, new: int) -> bool:
        """Tell whether a prompt with entries of others has room behind its first piece."""
        if not self.num_first:
            return True
        chain, end, found = self.chains[slot], new, None
        if chain is not None:
            found = self.blocks.find(chain, self.num_tokens[slot])
            end += found.num_found * self.blocks.size
        return self.has_room_behind(slot, min(end, self.num_tokens[slot]), 0, found)

    def enter_piece(self, slot: int, end: int) -> None:
        """Let others find the blocks of a prompt up to the end of its next piece."""
        Lane.enter_piece(self, slot, min(end, self.num_tokens[slot] - self.covers_next))

    def chunks(self) -> Chunks:
        """Return the (new, computed) tokens of each prompt in the step, drafts among them."""
        found = [
            (self.num_piece[slot] + self.padded[slot] * self.num_drafts, self.num_computed[slot])
            for slot in self.prefilling
            if self.num_piece[slot]
        ]
        return tuple(found)

    # --- a step -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the step that was planned."""
        self.num_gone, self.next_last = self.num_over, self.num_steps + 2
        for slot in self.decodes:
            given = self.next_given(slot)
            if given and self.num_tokens[slot] + given >= self.num_final[slot]:
                self.next_last = self.num_steps + 1
        Replica.begin(self)
        self.num_quiet = 0

    def seconds(self, chunks: Chunks, on_the_spot: bool) -> float:
        """Return how long a step of the decodes and of some chunks takes.

        The predictor is asked for several steps at once while the decodes stay the same.
        """
        is_other = self.has_changed or self.num_gone or self.together is not None
        if chunks or on_the_spot or is_other:
            self.num_told = self.next_told = 0
            self.num_to_ask = _FEW_ASKED
            return Replica.seconds(self, chunks, on_the_spot)
        if self.next_told == self.num_told:
            self.ask_ahead()
        self.next_told += 1
        return self.told[self.next_told - 1]

    def ask_ahead(self) -> None:
        """Ask for the seconds of the next steps, at most until an answer ends."""
        number = self.num_to_ask
        self.num_to_ask = min(_MOST_ASKED, 4 * number)
        contexts = array("q", bytes(8 * number))  # tokens that are there before each step
        longest, seen = array("q", bytes(8 * number)), array("q", bytes(8 * number))
        reach = self.paged.reach if self.is_paged else 0
        for slot in self.decodes:
            path, place, step = self.paths[slot], 2 * self.num_taken[slot], 0
            context, last = self.num_tokens[slot] - 1, self.num_final[slot] - 1
            if path is None:
                raise InvariantError("a decode without drafts")
            while step < number:
                contexts[step] += context
                longest[step] = max(longest[step], context)
                seen[step] += min(context, reach)
                step += 1
                context += 1 + path[place] + 256 * path[place + 1]
                place += 2
                if context >= last:
                    number = step
        seconds = self.times.ask_run(
            self.num_decodes,
            contexts[0],
            self.num_read_again,
            longest[0] if self.times.needs_longest else -1,
            number,
            seen[0] if self.is_paged else -1,
            0,
            (contexts, longest, seen),
        )
        self.told = array("d", seconds.tobytes())
        self.num_told, self.next_told = number, 0

    def next_given(self, slot: int) -> int:
        """Return the tokens that the next step of a decode gives, if it needs as many."""
        path, place = self.paths[slot], 2 * self.num_taken[slot]
        if self.state[slot] != _DECODE or path is None:
            return 0
        return 1 + path[place] + 256 * path[place + 1]

    def longest_context(self) -> int:
        """Return the longest context of a decode, in tokens."""
        longest = 0
        for slot in self.decodes:
            context = self.num_tokens[slot] - 1
            if self.state[slot] == _LEAVING:
                context += self.num_beyond[slot]
            longest = max(longest, context)
        return longest

    def enter_answers(self) -> None:
        """Let others find the blocks of tokens that are known when the step is planned."""
        if self.blocks.size == 1 or self.covers_next:
            return
        is_ahead = self.known_until < inf
        for slot in self.decodes:
            chain = self.chains[slot]
            if chain is not None:
                number = max(self.num_last[slot], 1) if is_ahead else 0
                self.enter_answer(chain, self.num_tokens[slot] - number)

    def enter_computed(self) -> None:
        """Let others find all blocks that decodes have filled."""
        if self.num_writers:
            for slot in self.decodes:
                chain = self.chains[slot]
                if chain is not None:
                    self.enter_answer(chain, self.num_tokens[slot] - 1)

    def end_decodes(self) -> None:
        """Give the decodes their tokens, and let those go that have all.

        Where plans are made ahead, others find what the step before gave, as this one ends.
        """
        in_turn = not self.swaps and self.blocks.size > 1
        is_behind = self.plans_ahead and (in_turn or self.covers_next)
        if is_behind:
            self.enter_computed()
        number, finished = 0, []
        for slot in self.decodes:
            given = self.next_given(slot)
            left = self.num_final[slot] - self.num_tokens[slot]
            self.num_taken[slot] += 1
            self.num_beyond[slot] = max(given - left, 0)
            if given >= left:
                given = left
                finished.append(slot)
            self.num_last[slot] = given
            self.num_took[slot] = 0
            self.num_tokens[slot] += given
            number += given
        self.num_given += number
        self.context_sum += number
        if self.rows.num_decodes:
            self.rows.tokens.append(number)
        if self.joined:
            self.end_first()
        if not (is_behind or self.verifies_late):
            self.enter_computed()
        for slot in finished:
            self.leave_decodes(slot)
            self.finish(slot)
            if self.plans_ahead and self.num_last[slot] >= _LEAST_LATE:
                self.begin_over(slot)

    # --- what others read ---------------------------------------------------------------------

    def is_seen(self) -> bool:
        """Tell whether others see what it does next, or its order among lanes.

        Where only answers take part that have ended, the run may end before the step does.
        """
        if self.num_over == self.num_inside():
            return True
        return Replica.is_seen(self)

    def tokens(self, slot: int) -> int:
        """Return the tokens of a request that are known now."""
        return self.num_tokens[slot]

    def joined_with(self, slot: int) -> int:
        """Return the tokens that an answer had when it began to decode, most recently."""
        return self.from_tokens[slot]

    def num_decoded(self, slot: int) -> int:
        """Return in how many steps it has decoded since."""
        return self.num_steps - self.first_step[slot]

    def score(self) -> int:
        """Return how busy it is, see `least_loaded`."""
        return Lane.score(self) - self.num_over

    def make_room(self) -> None:
        """Double the slots."""
        Lane.make_room(self)
        self.paths.extend([None] * (self.num_slots - len(self.paths)))
        self.num_taken = longer(self.num_taken, "q", self.num_slots)
        self.num_last = longer(self.num_last, "q", self.num_slots)
        self.num_beyond = longer(self.num_beyond, "q", self.num_slots)
        self.num_took = longer(self.num_took, "q", self.num_slots)
        self.from_tokens = longer(self.from_tokens, "q", self.num_slots)
        self.padded = longer(self.padded, "q", self.num_slots)
        self.turn_end = longer(self.turn_end, "q", self.num_slots)
