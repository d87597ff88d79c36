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
        "a page behind a window comes back a token early",
        "clients/kv_cache/pages.py",
        "num_tokens - self._window + 1",
        "num_tokens - self._window + 2",
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
        "one more than the limit may wait",
        "clients/overload.py",
        "if num_waiting >= self._max_num_waiting:",
        "if num_waiting > self._max_num_waiting:",
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
        "blocks that were handed over stay held",
        f"{STORES}.py",
        "            kv.release()",
        "            pass",
    ),
    Mutant(
        "the gap between two clients is lost",
        "clients/sequence_state.py",
        "self.last_token_at = kv.last_token_at",
        "pass",
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
        "with windows, answers go on as if every block had one page",
        "clients/kv_cache/pages.py",
        "        in_window = after - before\n",
        "        in_window = 0\n",
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
