"""Mistakes that the exactness tests must notice: each is planted in a copy, which is tested.

    python -m tests.mutants [-j N] [NUMBER...]    all of them, or some by number

runs `pytest -m exact` on every copy, as `make exact` does, and says who survives. Where the text to
be replaced has changed, the list below is to be changed with it: that fails before anything runs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 300  # after which a copy that does not end counts as noticed


class Mutant(NamedTuple):
    """A mistake: `old` stands once in a file under mist_sim, and becomes `new`."""

    what: str
    path: str
    old: str
    new: str


AFD = "clients/afd"
ENGINE, SCHEDULING, CACHE = "clients/engine", "clients/scheduling", "clients/kv_cache"
STORES = "clients/stores"
RESHARDING, STAGING = "clients/resharding", "clients/staging"

MUTANTS = [
    Mutant(
        "decodes that a plan of one's own leaves out take blocks",
        f"{ENGINE}/core/lane.py",
        "decodes = [slot for slot in self.who_decode() if slot in self.taking]",
        "decodes = self.who_decode()",
    ),
    Mutant(
        "one that gives way in a plan of one's own gives no tokens back",
        f"{ENGINE}/core/lane.py",
        "self.num_tokens_left += self.num_piece[slot] if is_prompt else self.num_queries",
        "self.num_tokens_left += 0",
    ),
    Mutant(
        "one that gives way in a plan of one's own keeps what it was to take",
        f"{ENGINE}/core/lane.py",
        "left = self.decode_need - self.taking.pop(slot, 0)",
        "left = self.decode_need",
    ),
    Mutant(
        "a plan of one's own gives decodes blocks only behind its admissions",
        f"{ENGINE}/core/lane.py",
        "        if self.taking and not self.is_given:\n            self.give_all()\n",
        "",
    ),
    Mutant(
        "a plan of one's own pads prompts beside others",
        f"{ENGINE}/core/drafting.py",
        "            self.may_pad = self.pads_prompts and not self.num_new\n        return",
        "            self.may_pad = self.pads_prompts\n        return",
    ),
    Mutant(
        "a free copy is written back although a decode has filled another",
        f"{CACHE}/tiers.py",
        "            self.answers.catch_up((key,))\n",
        "            return\n",
    ),
    Mutant(
        "a sequence that has ended leaves no blocks of the step planned for it",
        f"{SCHEDULING}/preemption.py",
        "lane.overruns.enter_known(lane.kv_cache.answers)",
        "pass",
    ),
    Mutant(
        "the lookahead of a waiting sequence never makes another begin anew",
        f"{SCHEDULING}/chunked.py",
        "if lane.pages is None and gives_load_back(lane, plan, sequence):",
        "if False:",
    ),
    Mutant(
        "blocks that come with the end of a step are seen when another thing changes",
        f"{SCHEDULING}/chunked.py",
        "lane.in_flight.idle or lane.in_flight.deferred",
        "lane.in_flight.idle",
    ),
    Mutant(
        "blocks for what is written ahead do not count for the rest of a prompt",
        f"{SCHEDULING}/memory_needs.py",
        "num_slots = self.slots_ahead(sequence, sequence.num_computed_tokens + num_planned)",
        "num_slots = sequence.num_computed_tokens + num_planned",
    ),
    Mutant(
        "a loaded sequence goes before a preempted one, though they wait in one queue",
        f"{SCHEDULING}/lane_state.py",
        "if waiting and coming.is_before_loaded(waiting.head()):",
        "if False:",
    ),
    Mutant(
        "a cut comes a step late",
        f"{ENGINE}/run.py",
        "bisect_left(self.ends, now) + 1",
        "bisect_left(self.ends, now) + 2",
    ),
    Mutant(
        "an arrival at the end of a step waits for the next one",
        f"{ENGINE}/run.py",
        "bisect_left(self.ends, now) + 1",
        "bisect_right(self.ends, now) + 1",
    ),
    Mutant(
        "an arrival does not cut",
        f"{ENGINE}/loop.py",
        "return lane.would_admit(sequence, num_steps)",
        "return False",
    ),
    Mutant(
        "who is next is not looked at when somebody who waited gave up",
        f"{ENGINE}/loop.py",
        "            self._notice(lane, None)  # another",
        "            # another",
    ),
    Mutant(
        "an engine plans before who moves at the same time has moved",
        f"{ENGINE}/loop.py",
        "if not env.phase_is_last():",
        "if False:",
    ),
    Mutant(
        "steps of several clients end in the order of the heap",
        "environment.py",
        "return STEP_END + place, PLAN + place",
        "return STEP_END, PLAN",
    ),
    Mutant(
        "all give up at once who do so at the same time",
        "clients/deadlines.py",
        "while heap and heap[0][2].is_over:\n            heappop(heap)",
        "while heap and (heap[0][0] <= self._set_to or heap[0][2].is_over):\n"
        "            _, _, visit, limit = heappop(heap)\n"
        "            if not visit.is_over:\n"
        "                self._ring(visit, limit)",
    ),
    Mutant(
        "lockstep engines wait for the fastest",
        f"{ENGINE}/lockstep.py",
        "times = np.maximum.reduce(times_each)",
        "times = np.minimum.reduce(times_each)",
    ),
    Mutant(
        "a step planned ahead knows who comes later",
        f"{ENGINE}/plan_ahead.py",
        "while news and news[0][0] <= known_until:",
        "while news:",
    ),
    Mutant(
        "a pass starts on a rank before the pass ahead has left it",
        f"{ENGINE}/pipelined.py",
        "end = (arrives if arrives > free else free) + seconds",
        "end = arrives + seconds",
    ),
    Mutant(
        "a pass that is taken back leaves its rank ends",
        f"{ENGINE}/pipelined.py",
        "_, ready, lane, self._rank_ends = self._entered.pop()",
        "_, ready, lane, _ = self._entered.pop()",
    ),
    Mutant(
        "who finishes in the step in which it gives up leaves twice",
        f"{ENGINE}/lane.py",
        "            if sequence not in finished:\n                self.abort(sequence)",
        "            self.abort(sequence)",
    ),
    Mutant(
        "a decode stays a step too long",
        "clients/decode/clock.py",
        "heappush(self.heap, (self.steps + num_steps, sequence.ticket, sequence))",
        "heappush(self.heap, (self.steps + num_steps + 1, sequence.ticket, sequence))",
    ),
    Mutant(
        "the phase of a block is one off",
        "clients/decode/clock.py",
        "sequence.block_phase = (self.steps - context) % self.block_size",
        "sequence.block_phase = (self.steps - context + 1) % self.block_size",
    ),
    Mutant(
        "a run stops before the step that takes the last free block",
        "clients/decode/clock.py",
        "(need := phases[phase]) <= free",
        "(need := phases[phase]) < free",
    ),
    Mutant(
        "who left the clock still counts as the longest",
        "clients/decode/clock.py",
        "batch.longest_context = self.steps - _head(self._longest)[0]",
        "batch.longest_context = self.steps - self._longest[0][0]",
    ),
    Mutant(
        "a window is outgrown a step late",
        "clients/decode/window_clock.py",
        "step = self.steps + self._reach - context\n",
        "step = self.steps + self._reach - context + 1\n",
    ),
    Mutant(
        "a page behind a window comes back a token early",
        "clients/kv_cache/pages.py",
        "num_tokens - self._window + 1",
        "num_tokens - self._window + 2",
    ),
    Mutant(
        "a page comes back that a step in flight sees",
        "clients/kv_cache/pages.py",
        "(0 if self._lags else holding.num_new)",
        "holding.num_new",
    ),
    Mutant(
        "drafts that were not taken stay in the sum",
        "clients/decode/speculative_clock.py",
        "if done < len(stay) - 1:",
        "if done < len(stay) - 2:",
    ),
    Mutant(
        "drafts whose sequence was preempted still count as the longest",
        "clients/decode/speculative_clock.py",
        "self._find_longest(self._longest_by)",
        "pass",
    ),
    Mutant(
        "a page that the next in line needs is named, and the look-up stays",
        f"{CACHE}/pages.py",
        "if name in self.watched:",
        "if name is self.watched:",
    ),
    Mutant(
        "copies do not wait for one another",
        f"{CACHE}/moves.py",
        "max(now, self._free_at) + seconds",
        "now + seconds",
    ),
    Mutant(
        "blocks come back before they have gone",
        f"{SCHEDULING}/resuming.py",
        "        if sequence in lane.swaps.going:\n            return",
        "        if False:\n            return",
    ),
    Mutant(
        "who comes back keeps no memory for its next step",
        f"{SCHEDULING}/resuming.py",
        "lane.coming.num_promised += lane.needs.to_join(sequence)",
        "pass",
    ),
    Mutant(
        "the last who need a block get it, and the first sit out",
        f"{SCHEDULING}/preemption.py",
        "for sequence in lane.running:\n        if sequence.ticket",
        "for sequence in reversed(lane.running):\n        if sequence.ticket",
    ),
    Mutant(
        "room in host memory is free before blocks are back",
        f"{SCHEDULING}/resuming.py",
        "    plan.moves += (lane.swaps.begin_return(swap),)",
        "    lane.swaps.room.release(swap.num_blocks); plan.moves += (swap.back(),)",
    ),
    Mutant(
        "entries come that are cached",
        f"{SCHEDULING}/admission.py",
        "kv_cache.num_cached_tokens(sequence) >= sequence.num_brought",
        "kv_cache.num_cached_tokens(sequence) > sequence.num_brought",
    ),
    Mutant(
        "a prompt that begins from entries takes the blocks of its piece twice",
        "clients/kv_cache/manager.py",
        "self.grow(self.pool.blocks_for(num_tokens) - self.pool.blocks_for(num_here))",
        "self.grow(self.pool.blocks_for(num_tokens) - num_here // self.pool.block_size)",
    ),
    Mutant(
        "a decode is preempted too few",
        f"{SCHEDULING}/preemption.py",
        "while clock.blocks_needed_now() > pool.num_free + lane.swaps.num_going:",
        "while clock.blocks_needed_now() > pool.num_free + lane.swaps.num_going + 1:",
    ),
    Mutant(
        "who has no seat is admitted",
        f"{SCHEDULING}/lane_state.py",
        "return len(self.running) < self.max_num_seqs",
        "return len(self.running) <= self.max_num_seqs",
    ),
    Mutant(
        "a plan made ahead has what the step in flight frees",
        f"{SCHEDULING}/lane_state.py",
        "        if self.plans_ahead:\n            self.leaving",
        "        if not self.plans_ahead:\n            self.leaving",
    ),
    Mutant(
        "the reserve is kept from a request that is alone",
        f"{SCHEDULING}/lane_state.py",
        "num_reserved = self.pool.num_reserved if self.running else 0",
        "num_reserved = self.pool.num_reserved",
    ),
    Mutant(
        "who may join the second step after a preemption waits",
        f"{SCHEDULING}/admission.py",
        "seats_come or _may_join_second_step(lane) else limit",
        "seats_come else limit",
    ),
    Mutant(
        "the piece that completes a prompt is in the run before it",
        f"{SCHEDULING}/planned_steps.py",
        "spare = 1 if budget else 0",
        "spare = 0",
    ),
    Mutant(
        "a prompt that is cut is not counted",
        f"{SCHEDULING}/chunked.py",
        "num_partial += chunk < num_tokens",
        "num_partial += chunk <= 0",
    ),
    Mutant(
        "the last prompt token is found in the cache",
        f"{CACHE}/prefix_manager.py",
        "return (sequence.num_tokens - 1) // self.pool.block_size",
        "return sequence.num_tokens // self.pool.block_size",
    ),
    Mutant(
        "what a look-up found is trusted after a change",
        f"{CACHE}/prefix_manager.py",
        "            or found.changes != cache.changes\n",
        "",
    ),
    Mutant(
        "blocks that a prompt holds are not given back",
        f"{CACHE}/prefix_manager.py",
        "            num_freed += self.cache.release(chain)",
        "            self.cache.release(chain)",
    ),
    Mutant(
        "growing evicts nothing",
        f"{CACHE}/prefix_manager.py",
        "            self.cache.evict(num_blocks)",
        "            self.cache.evict(num_blocks - 1)",
    ),
    Mutant(
        "a gap after a stall is lost",
        f"{ENGINE}/step_records.py",
        "        elif num_stalled:\n",
        "        elif num_stalled > 1:\n",
    ),
    Mutant(
        "a decode that was preempted keeps its old last token",
        f"{ENGINE}/step_records.py",
        "sequence.last_token_at = max(self._last_decode_end, last)",
        "pass",
    ),
    Mutant(
        "a first token from decode counts when its run of steps has ended",
        f"{ENGINE}/lane.py",
        "plan.num_steps = 1  # a limit of",
        "pass  # a limit of",
    ),
    Mutant(
        "the entry of a prompt's last token moves where decode computes it again",
        f"{ENGINE}/held_entries.py",
        "num_tokens=num_tokens - is_silent,",
        "num_tokens=num_tokens,",
    ),
    Mutant(
        "who waits for a prompt elsewhere is timed out by a token that is out there",
        "clients/base.py",
        "has_token = visit.has_token or visit.request.has_token",
        "has_token = visit.has_token",
    ),
    Mutant(
        "post-processing takes no time",
        f"{STORES}.py",
        "self._env.at(self._env.now + transit.after, MOVE).callbacks.append(use)",
        "self._env.at(self._env.now, MOVE).callbacks.append(use)",
    ),
    Mutant(
        "a step planned ahead knows who comes a step too late",
        f"{ENGINE}/loop.py",
        "run.num_begun(now) + 1 if now > run.start",
        "run.num_begun(now) + 2 if now > run.start",
    ),
    Mutant(
        "passes are cut one too late",
        f"{ENGINE}/pipelined.py",
        "return max(1, count(lane.entries, self.env.now))",
        "return max(1, count(lane.entries, self.env.now) + 1)",
    ),
    Mutant(
        "one more than the limit may wait",
        "clients/overload.py",
        "if num_waiting >= self._max_num_waiting:",
        "if num_waiting > self._max_num_waiting:",
    ),
    Mutant(
        "who gives up while it runs keeps its memory",
        f"{SCHEDULING}/lane_state.py",
        "self.kv_cache.free(sequence, num_blocks, num_computed, num_unknown)",
        "pass",
    ),
    Mutant(
        "the swap space is never filled to the last block",
        f"{CACHE}/moves.py",
        "self.num_used + num_blocks <= self.num_blocks",
        "self.num_used + num_blocks < self.num_blocks",
    ),
    Mutant(
        "the copy that was entered last is found",
        "clients/prefixes/prefix_cache.py",
        "    for entry in entries:\n        stop",
        "    for entry in reversed(entries):\n        stop",
    ),
    Mutant(
        "a copy grows in front of an older one",
        "clients/prefixes/prefix_cache.py",
        "return not between",
        "return True",
    ),
    Mutant(
        "blocks of an answer are entered when it is over",
        f"{CACHE}/prefix_manager.py",
        "if is_last:",
        "if False:",
    ),
    Mutant(
        "a block that an answer fills lets nobody in",
        f"{SCHEDULING}/admission.py",
        "return min(limit, max(1, steps))",
        "return limit",
    ),
    Mutant(
        "a block of an answer can be found a step late",
        f"{CACHE}/reusable_decodes.py",
        "return context(sequence) + in_step",
        "return context(sequence)",
    ),
    Mutant(
        "blocks that were handed over stay held",
        f"{STORES}.py",
        "            kv.release()",
        "            pass",
    ),
    Mutant(
        "blocks that were handed over are free before the step in flight ends",
        f"{ENGINE}/loop.py",
        "if run is not None and run.has(lane):",
        "if False:",
    ),
    Mutant(
        "blocks to be handed over are free when the prompt is done",
        f"{SCHEDULING}/lane_state.py",
        "            self.held[sequence] = num_blocks, num_computed",
        "            self.kv_cache.free(sequence, num_blocks, num_computed, num_unknown)\n"
        "            self.held[sequence] = 0, 0",
    ),
    Mutant(
        "a step planned ahead knows whose blocks come later",
        f"{ENGINE}/loop.py",
        "ahead.hold_loaded(sequence)",
        "lane.state.coming.finish_load(sequence)",
    ),
    Mutant(
        "who was handed over waits until the run ends",
        f"{ENGINE}/lane.py",
        "if self.state.coming.moved or (sequence is None and self.state.swapped):",
        "if sequence is None and self.state.swapped:",
    ),
    Mutant(
        "the gap between two clients is lost",
        "clients/sequence_state.py",
        "self.last_token_at = kv.last_token_at",
        "pass",
    ),
    Mutant(
        "blocks for the first step of those who come are not kept",
        f"{SCHEDULING}/admission.py",
        "lane.num_admissible(num_needed + lane.coming.num_promised)\n\n\ndef _comes_whole",
        "lane.num_admissible(num_needed)\n\n\ndef _comes_whole",
    ),
    Mutant(
        "who stands behind one that preempted itself goes on",
        f"{SCHEDULING}/preemption.py",
        "                    missed += turns\n",
        "",
    ),
    Mutant(
        "where states are kept, a younger decode runs without a token that an older prompt took",
        f"{SCHEDULING}/preemption.py",
        "        elif budget <= 0:\n            missed",
        "        elif budget < 0:\n            missed",
    ),
    Mutant(
        "where states are kept, all decodes take tokens before an older prompt",
        f"{SCHEDULING}/preemption.py",
        "        num_decodes = len(served) - len(prompts)\n",
        "",
    ),
    Mutant(
        "the gate asks for the first piece alone",
        f"{SCHEDULING}/chunked.py",
        "piece = None if whole else cut(budget, budget)",
        "piece = cut(budget, budget)",
    ),
    Mutant(
        "later pieces of a run take no blocks",
        f"{SCHEDULING}/planned_steps.py",
        "num_blocks += lane.needs.of_piece(sequence, num_steps * num_new, num_new)",
        "pass",
    ),
    Mutant(
        "decodes evict after those who wait looked their prefix up",
        f"{SCHEDULING}/preemption.py",
        "    lane.num_taken = num_blocks\n    if num_blocks:",
        "    if lane.num_taken:",
    ),
    Mutant(
        "whose blocks came last goes on first",
        f"{SCHEDULING}/coming_entries.py",
        "(self.moved if decodes else self.loaded).append(sequence)",
        "(self.moved if decodes else self.loaded).appendleft(sequence)",
    ),
    Mutant(
        "free blocks that the prefix cache does not know wait their turn",
        f"{CACHE}/prefix_manager.py",
        "num_first = num_blocks - num_full if self.uncached_first else 0",
        "num_first = 0",
    ),
    Mutant(
        "a request that preempts itself always ends the pass",
        f"{SCHEDULING}/preemption.py",
        "turns, goes_on = list(lane.running), lane.rules.pass_goes_on",
        "turns, goes_on = list(lane.running), False",
    ),
    Mutant(
        "a prompt that is alone now gets large pieces for a whole run",
        f"{SCHEDULING}/chunked.py",
        "being alone when one arrives\n            limit = 1",
        "being alone when one arrives\n            limit += 0",
    ),
    Mutant(
        "a copy that is found when another is evicted does not end a run",
        f"{CACHE}/prefix_manager.py",
        "if found.unheld and self._may_be_held(found):",
        "if False:",
    ),
    Mutant(
        "who may pass in a step for decodes goes on in the next one",
        f"{SCHEDULING}/chunked.py",
        "if disturbed or (is_held and plan.prefills):",
        "if disturbed:",
    ),
    Mutant(
        "prompts that begin alike run on while one without content waits",
        f"{SCHEDULING}/planned_steps.py",
        "if head is not None and head.chain is not None:\n        return True",
        "if head is not None:\n        return head.chain is not None",
    ),
    Mutant(
        "who outgrows the pool caches what its plan does not know",
        f"{SCHEDULING}/preemption.py",
        "num_blocks, num_known, num_unknown)\n        plan.dropped",
        "num_blocks, num_computed)\n        plan.dropped",
    ),
    Mutant(
        "the time per token of who flows back counts from the first one on",
        f"{SCHEDULING}/flowing_answers.py",
        "return Pace(now, sequence.num_output_tokens, pace_of(sequence).num_backflows + 1)",
        "return pace_of(sequence)",
    ),
    Mutant(
        "answers flow back once more than they may",
        f"{SCHEDULING}/flowing_answers.py",
        "if start.num_backflows >= self._most_times:",
        "if start.num_backflows > self._most_times:",
    ),
    Mutant(
        "backflows before the latest one are forgotten",
        f"{SCHEDULING}/flowing_answers.py",
        "pace_of(sequence).num_backflows + 1)",
        "1)",
    ),
    Mutant(
        "answers leave a step after they are above the limit",
        f"{SCHEDULING}/flowing_answers.py",
        "return first + 1 if is_above[first] else limit",
        "return min(first + 2, limit) if is_above[first] else limit",
    ),
    Mutant(
        "the longest leave at the watermark, and not above it",
        f"{SCHEDULING}/flowing_answers.py",
        "if blocks_after_first(lane, plan, middle) > num_left:",
        "if blocks_after_first(lane, plan, middle) > num_left + 1:",
    ),
    Mutant(
        "the last admitted of those that are equally long leaves first",
        f"{SCHEDULING}/flowing_answers.py",
        "        stay.sort(key=lambda each: _length(lane, each), reverse=True)",
        "        stay.sort(key=lambda each: _length(lane, each))\n        stay.reverse()",
    ),
    Mutant(
        "blocks that are held until they are copied count as used",
        f"{SCHEDULING}/flowing_answers.py",
        "(pool.num_blocks - pool.num_free - num_held)",
        "(pool.num_blocks - pool.num_free)",
    ),
    Mutant(
        "who is told to move when its client has planned joins the step that began",
        f"{ENGINE}/loop.py",
        "return run.num_begun(env.now, is_planned=is_planned)",
        "return run.num_begun(env.now)",
    ),
    Mutant(
        "a pass that began at its client's turn is taken back for a prompt that was sent later",
        f"{ENGINE}/pipelined.py",
        "bisect_right if self._is_planned else bisect_left",
        "bisect_left",
    ),
    Mutant(
        "a pass that began at its client's turn is taken back for a lane that woke up later",
        f"{ENGINE}/pipelined.py",
        "has_begun = len(of.ends) == 1 or (entry == self.env.now and self._is_planned)",
        "has_begun = len(of.ends) == 1",
    ),
    Mutant(
        "nobody hears that a pipeline has planned",
        f"{ENGINE}/pipelined.py",
        "            self.env.note_plan(self._plan_phase)\n",
        "",
    ),
    Mutant(
        "who finds no place in another layout goes behind those that wait",
        "clients/layouts.py",
        "for sequence in [*again, *waiting]:",
        "for sequence in [*waiting, *again]:",
    ),
    Mutant(
        "lanes of another layout are filled one after the other",
        "clients/layouts.py",
        "decodes=decodes) for lane in fewest_first)",
        "decodes=decodes) for lane in lanes)",
    ),
    Mutant(
        "what is carried over needs a block more",
        f"{SCHEDULING}/carried.py",
        ") + num_more > pool.num_free",
        ") + num_more >= pool.num_free",
    ),
    Mutant(
        "blocks of the same content are carried over twice",
        f"{CACHE}/prefix_manager.py",
        "num_found = min(self._find(sequence, chain).num_found, num_full)",
        "num_found = 0",
    ),
    Mutant(
        "a pass of another layout is ready before the transition is over",
        f"{ENGINE}/pipelined.py",
        "lane.ready = max(self.env.now, self._begins_at)",
        "lane.ready = self.env.now",
    ),
    Mutant(
        "before another layout, an engine computes a step more",
        f"{ENGINE}/loop.py",
        "self._end_after(run, self._num_begun(run))\n        self._wake",
        "self._end_after(run, self._num_begun(run) + 1)\n        self._wake",
    ),
    Mutant(
        "before another layout, a pipeline lets all passes of a run through",
        f"{ENGINE}/pipelined.py",
        "            if lane.run:\n                self._cut",
        "            if not lane.run:\n                self._cut",
    ),
    Mutant(
        "who waits in another layout has lost its place by arrival",
        "clients/layouts.py",
        "        sequence.arrival = number\n",
        "        sequence.arrival = -number\n",
    ),
    Mutant(
        "a bundle's step that is lost gave its tokens",
        f"{AFD}.py",
        "            self.batches[batch].num_steps -= 1",
        "            pass",
    ),
    Mutant(
        "a bundle's step that ends with a failure is lost",
        f"{AFD}.py",
        "self._ends[-1] > now",
        "self._ends[-1] >= now",
    ),
    Mutant(
        "positions of the sliders come by their sum with the number of now",
        "reconfiguration.py",
        "abs(sliders.num_p - num_p)",
        "abs(sliders.num_p + num_p)",
    ),
    Mutant(
        "positions that change most roles come first",
        "reconfiguration.py",
        "key=lambda sliders: abs(sliders.num_p - num_p)",
        "key=lambda sliders: -abs(sliders.num_p - num_p)",
    ),
    Mutant(
        "D-heavy clients stay what they are last",
        "reconfiguration.py",
        'self._positions[n][0] != "p_heavy"',
        'self._positions[n][0] == "p_heavy"',
    ),
    Mutant(
        "who is to leave has no part in the step that is planned already",
        f"{ENGINE}/flowing_lane.py",
        "        if self.ahead is None:",
        "        if True:",
    ),
    Mutant(
        "who was preempted as he was to leave leaves all the same when he is back",
        f"{ENGINE}/flowing_lane.py",
        "for ticket, sequence in due if sequence.ticket == ticket]",
        "for _, sequence in due if sequence.ticket]",
    ),
    Mutant(
        "several steps are one run while somebody is to leave",
        f"{ENGINE}/flowing_lane.py",
        "super().plan(1 if self._due else limit, plan_on_the_spot)",
        "super().plan(limit, plan_on_the_spot)",
    ),
    Mutant(
        "what happens behind a step counts for who leaves at its end",
        f"{ENGINE}/flowing_lane.py",
        "if run.went_on or (",
        "if (",
    ),
    Mutant(
        "a run that is cut in its last step asks nobody whether answers leave",
        f"{ENGINE}/loop.py",
        "run.went_on = run.end == env.now and env.phase > self._step_end",
        "run.went_on = True",
    ),
    Mutant(
        "what was sent alone is there when it comes up, and not before requests move",
        "network/transfers.py",
        "arrival = env.at(end + latency, self._phase)",
        "arrival = env.at(end + latency)",
    ),
    Mutant(
        "what shared its links is there when it comes up, and not before requests move",
        "network/transfers.py",
        "self._env.trigger(transfer.end, transfer.arrival, transfer.phase)",
        "self._env.trigger(transfer.end, transfer.arrival, 1)",
    ),
    Mutant(
        "the last byte leaves after its link has failed at the same instant",
        "network/transfers.py",
        "        self._rates_alone.clear()\n        self._let_leave()\n",
        "        self._rates_alone.clear()\n",
    ),
    Mutant(
        "a plan ahead knows that the drafts beside a prompt's last token are refused",
        "clients/decode/speculative_clock.py",
        "self.plans_ahead and num_ahead > self.num_lookahead_tokens",
        "False",
    ),
    Mutant(
        "a prompt's last token is padded beside pieces of others",
        "clients/scheduling/chunked.py",
        "lane.speculation is not None and not plan.prefills",
        "lane.speculation is not None",
    ),
    Mutant(
        "a step that waits for loads asks for the memory of the first piece alone",
        "clients/kv_cache/tiers.py",
        "min(sequence.num_tokens, here + first_piece) if self.in_step else here",
        "here",
    ),
    Mutant(
        "a preempted sequence finds what it found before it ran",
        "clients/kv_cache/pages.py",
        " or len(latest[1]) != num_blocks:",
        ":",
    ),
    Mutant(
        "with windows, answers go on as if every block had one page",
        "clients/kv_cache/pages.py",
        "        in_window = after - before\n",
        "        in_window = 0\n",
    ),
    Mutant(
        "a plan ahead does not know what the one before, made on the spot, has cached",
        f"{ENGINE}/plan_ahead.py",
        "plan.decodes and not self.was_on_the_spot",
        "plan.decodes",
    ),
    Mutant(
        "a block is found before the token is known that its hash covers",
        f"{CACHE}/reusable_decodes.py",
        "self.is_early = is_early and not self.covers_next",
        "self.is_early = is_early",
    ),
    Mutant(
        "a block at a prompt's end is found before the token is known that its hash covers",
        f"{CACHE}/reusable_decodes.py",
        "return sequence.num_tokens - self.covers_next",
        "return sequence.num_tokens",
    ),
    Mutant(
        "others do not find what a plan made on the spot has cached",
        f"{CACHE}/reusable_decodes.py",
        "is_planned = in_step or has_joined or self.known == now - 1",
        "is_planned = in_step or has_joined",
    ),
    Mutant(
        "steps of decodes that are timed by a line do not wait for copies",
        "hardware/predictors/decode_line.py",
        "first = start + (self.step(keys) + wait)",
        "first = start + self.step(keys)",
    ),
    Mutant(
        "the core lets a plan made ahead know who came since",
        f"{ENGINE}/core/lane.py",
        "self.known_until = start if self.plans_ahead else inf",
        "self.known_until = self.time if self.plans_ahead else inf",
    ),
    Mutant(
        "the core gives seats and blocks back before the plan that may know of it",
        f"{ENGINE}/core/lane.py",
        "        if not self.plans_ahead:\n            self.free_leaving()\n",
        "        self.free_leaving()\n        if not self.plans_ahead:\n",
    ),
    Mutant(
        "a step of the core that preempted admits as well",
        f"{ENGINE}/core/lane.py",
        "        if has_preempted:\n            return True\n",
        "",
    ),
    Mutant(
        "decodes of the core take their blocks a step late",
        f"{ENGINE}/core/lane.py",
        "return (self.first_step[slot] + 1 + size -",
        "return (self.first_step[slot] + 2 + size -",
    ),
    Mutant(
        "the core swaps in who does not fit beside the decodes",
        f"{ENGINE}/core/lane.py",
        "room = self.blocks.num_free - self.decode_need\n        if self.overlaps:\n",
        "room = self.blocks.num_free\n        if self.overlaps:\n",
    ),
    Mutant(
        "a lane of the core forgets who waits on the host when its last answer ends",
        f"{ENGINE}/core/lane.py",
        "            or self.swapped\n",
        "",
    ),
    Mutant(
        "the core takes blocks of swapping decodes a step early in fast forward",
        f"{ENGINE}/core/lane.py",
        "        if not self.swaps:\n            step += 1",
        "        if self.swaps:\n            step += 1",
    ),
    Mutant(
        "the core passes over the next answer that ends",
        f"{ENGINE}/core/lane.py",
        "            elif last < first:\n                first = last\n",
        "",
    ),
    Mutant(
        "the core goes on fast where a block runs short",
        f"{ENGINE}/core/quiet.py",
        "            if num_left < 0:\n",
        "            if num_left < -1:\n",
    ),
    Mutant(
        "the core goes on fast beyond an arrival that could join",
        f"{ENGINE}/core/lane.py",
        "        if not self.is_blocked:\n            self.num_quiet = 0\n",
        "",
    ),
    Mutant(
        "lanes of the core that step together end in the order of the heap",
        f"{ENGINE}/core/lane.py",
        "return self.time < time or (self.time == time and self.phase < phase)",
        "return self.time < time",
    ),
    Mutant(
        "a run of decodes is faster than its host",
        "hardware/predictors/decode_line.py",
        "if keys * per_key + fixed + more < least:",
        "if False:",
    ),
    Mutant(
        "a step of decodes is faster than its host",
        "hardware/predictors/decode_line.py",
        "if seconds < self.least:",
        "if False:",
    ),
    Mutant(
        "who is rejected on a plain walk is written down as served",
        "load_generation.py",
        "self._ended(request, [visit], outcome)",
        "self._ended(request, [visit], None)",
    ),
    Mutant(
        "visits that failed on a plain walk are not written down",
        "load_generation.py",
        "            self._recorder.record_visit(client_id, visit)\n            self._end_now",
        "            self._end_now",
    ),
    Mutant(
        "answers that were cut on a plain walk are written down as whole",
        "metrics/records/recorder.py",
        "                num_output_tokens < request.num_output_tokens,\n",
        "                False,\n",
    ),
    Mutant(
        "requests of a plain walk are written down as never queued",
        "metrics/records/recorder.py",
        "                visit.started_at - queued_at,\n                queued_at - sent_at",
        "                0.0,\n                queued_at - sent_at",
    ),
    Mutant(
        "re-sharding: prompts go on while entries wait in the buffer",
        f"{STAGING}.py",
        "if any(map(_is_buffered, self.lanes)):",
        "if not self.lanes:",
    ),
    Mutant(
        "re-sharding: prompts that are computed have no room kept in the buffer",
        f"{STAGING}.py",
        "self.room.has(coming + core.blocks.in_all(core.tokens(slot)))",
        "self.room.has(core.blocks.in_all(core.tokens(slot)))",
    ),
    Mutant(
        "re-sharding: answers that stay go to the buffer all the same",
        f"{STAGING}.py",
        'if self.stage == "prefill":\n            lanes',
        'if self.stage == "decode":\n            lanes',
    ),
    Mutant(
        "re-sharding: prompts are tried again though nothing was gained",
        f"{STAGING}.py",
        "return not self.was_short or self.has_finished",
        "return True",
    ),
    Mutant(
        "re-sharding: answers count that ended in an earlier stage",
        f"{STAGING}.py",
        "self.stage, self.lanes, self.asked, self.has_finished = stage, lanes, None, False",
        "self.stage, self.lanes, self.asked = stage, lanes, None",
    ),
    Mutant(
        "re-sharding: answers may take all of the buffer",
        f"{STAGING}.py",
        "return self._has_room_beside_answers(share=0.5)",
        "return self._has_room_beside_answers()",
    ),
    Mutant(
        "re-sharding: nobody waits for the room of what comes back",
        f"{STAGING}.py",
        "if not (self.has_room(lane, head) or any(each.core.num_coming for each in self.lanes)):",
        "if not self.has_room(lane, head):",
    ),
    Mutant(
        "re-sharding: the threshold is of one lane's memory",
        f"{STAGING}.py",
        "sum(lane.core.blocks.num_blocks for lane in self.lanes)\n",
        "self.lanes[0].core.blocks.num_blocks / 2\n",
    ),
    Mutant(
        "re-sharding: prompts are due at once",
        f"{STAGING}.py",
        "now >= since + self._late",
        "now >= since + self._early",
    ),
    Mutant(
        "re-sharding: no answers go on before all prompts are computed",
        f"{STAGING}.py",
        "return self._due.none_of(self.lanes)",
        "return False",
    ),
    Mutant(
        "re-sharding: entries that came back stay when prompts are due",
        f"{STAGING}.py",
        "lane.core.set_brought_aside(slot)",
        "pass",
    ),
    Mutant(
        "re-sharding: prefetching takes the blocks of the next prompts",
        f"{STAGING}.py",
        "core, num_kept = lane.core, self._blocks_of_next_prompts(lane)",
        "core, num_kept = lane.core, 0",
    ),
    Mutant(
        "re-sharding: prefetching brings what is still on its way out",
        f"{STAGING}.py",
        "if slot in core.going or not self._has_place(num_blocks):",
        "if not self._has_place(num_blocks):",
    ),
    Mutant(
        "re-sharding: prefetching brings more than the other layout holds",
        f"{STAGING}.py",
        "return self._used + num_blocks < most",
        "return True",
    ),
    Mutant(
        "re-sharding: what was prefetched crosses the host once more",
        f"{RESHARDING}.py",
        "num_blocks -= sum(int(each.to_come(slot)[0]) for each in cores for slot in each.moved)",
        "num_blocks -= 0",
    ),
    Mutant(
        "re-sharding: entries that stay cross the host in one direction",
        f"{RESHARDING}.py",
        "return asked.seconds + 2 * num_blocks",
        "return asked.seconds + num_blocks",
    ),
    Mutant(
        "re-sharding: transitions load the weights of the layout before",
        f"{RESHARDING}.py",
        'weights = self.sizes.prefill_weights if stage == "prefill" else',
        'weights = self.sizes.prefill_weights if stage == "decode" else',
    ),
    Mutant(
        "re-sharding: entries come back before the host has copied them",
        f"{RESHARDING}.py",
        "begins = max(self._env.now, self._shared_at.pop(move.sequence, 0.0))",
        "begins = self._env.now",
    ),
    Mutant(
        "re-sharding: copies out and in share a direction of the link",
        f"{RESHARDING}.py",
        "end = self._back.send(move.num_blocks * self._seconds, begins)",
        "end = self._out.send(move.num_blocks * self._seconds, begins)",
    ),
    Mutant(
        "re-sharding: lanes sleep on when the buffer has room again",
        f"{ENGINE}/stepped.py",
        'move.kind == "swap_in" and self._stages.stage == "prefill":',
        'move.kind == "hand_over":',
    ),
    Mutant(
        "re-sharding: going to the buffer counts as a preemption",
        f"{ENGINE}/core/lane.py",
        "self.num_preempted[slot] -= 1  # it does not give way",
        "pass",
    ),
]


def main() -> int:
    """Return how many mutants survive."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-j", type=int, default=1, help="copies tested at the same time")
    parser.add_argument("numbers", type=int, nargs="*", help="mutants, from 1; all by default")
    options = parser.parse_args()
    stale = stale_mutants()
    for mutant in stale:
        print(f"{mutant.path}: not there once: {mutant.old!r}", file=sys.stderr)
    if stale:
        return len(stale)
    numbers = options.numbers or range(1, len(MUTANTS) + 1)
    with ThreadPoolExecutor(options.j) as pool:
        return sum(pool.map(_survives, numbers))


def stale_mutants() -> list[Mutant]:
    """Return those whose text does not stand once in its file."""
    return [mutant for mutant in MUTANTS if _source(mutant).count(mutant.old) != 1]


def _source(mutant: Mutant) -> str:
    return (ROOT / "mist_sim" / mutant.path).read_text(encoding="utf-8")


def _survives(number: int) -> bool:
    """Test a copy with a mutant, and print what came of it."""
    mutant = MUTANTS[number - 1]
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("mist_sim", "tests"):
            shutil.copytree(
                ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "unit")
            )
        shutil.copy(ROOT / "pyproject.toml", copy)
        mutated = _source(mutant).replace(mutant.old, mutant.new)
        (copy / "mist_sim" / mutant.path).write_text(mutated, encoding="utf-8")
        verdict = _test(copy)
    seconds = time.monotonic() - start
    print(f"{number:2} {seconds:4.0f} s  {verdict:40} {mutant.what}", flush=True)
    return verdict == "SURVIVES"


def _test(copy: Path) -> str:
    """Run the exactness tests in a folder; return which one failed.

    Raises RuntimeError when they could not be run: that says nothing of a mistake.
    """
    command = [sys.executable, "-m", "pytest", "-m", "exact", "-x", "-q", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(copy), "HYPOTHESIS_PROFILE": "quick"}
    try:
        run = subprocess.run(
            [*command, "tests/property"],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "does not end"
    if run.returncode == 0:
        return "SURVIVES"
    failed = [line for line in run.stdout.splitlines() if line.startswith("FAILED")]
    if run.returncode != 1 or not failed:
        raise RuntimeError(f"pytest ended with {run.returncode}:\n{run.stdout}{run.stderr}")
    return failed[0].split("::")[-1].split(" - ")[0]


if __name__ == "__main__":
    sys.exit(main())
