"""A plain client that re-shards, one step after the other: a lane in either layout, and a buffer.

It shares no code with the engine. Cases in which answers outgrow the GPUs are not for it
(`OutgrownError`).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.reference.resharding_policies import Policy


class OutgrownError(Exception):
    """Answers need more blocks than there are, so that one would have to give way."""


@dataclass(eq=False)
class Answer:
    """A request: its lengths, when it arrives, tokens so far, and when each was emitted."""

    number: int
    prompt: int
    output: int
    arrival: float = 0.0
    times: list[float] = field(default_factory=list)

    @property
    def known(self) -> int:
        return self.prompt + len(self.times)

    @property
    def is_done(self) -> bool:
        return len(self.times) == self.output


@dataclass
class ReferenceResharding:
    """Simulates re-sharding by a policy, in the order of arrival.

    prefill_time: of (new tokens of each prompt); decode_time: of (answers, their contexts in all).
    blocks, size: of the GPUs, and tokens in each. prefill_blocks: while prompts are computed.
    host_blocks: of the buffer; None: there is none. seats, budget: of a step. per_block: seconds of
    a block on the link, each way. per_copy: of a block from pinned to shared memory of the host.
    reload: seconds of the weights of prompts, and of answers. policy: when stages change.
    sets_aside: whether answers that run go to the buffer in a transition. prefetches: whether some
    come back while prompts are computed.
    """

    prefill_time: Callable[[list[int]], float]
    decode_time: Callable[[int, int], float]
    blocks: int
    prefill_blocks: int
    host_blocks: int | None
    size: int
    seats: int
    budget: int
    per_block: float
    per_copy: float
    reload: tuple[float, float]
    policy: Policy
    sets_aside: bool = True
    prefetches: bool = True

    def __post_init__(self) -> None:
        self.now = 0.0
        self.stage = "decode"
        self.free = self.blocks
        self.host_used = 0
        self.out_free = self.back_free = 0.0  # when each direction of the link is
        self.copy_free = 0.0
        self.readable: dict[Answer, float] = {}
        self.to_come: deque[Answer] = deque()
        self.waiting: deque[Answer] = deque()
        self.going: deque[tuple[float, Answer, int]] = deque()  # to the host: end, blocks
        self.on_host: deque[Answer] = deque()
        self.coming: deque[tuple[float, Answer]] = deque()
        self.here: deque[Answer] = deque()  # came back, and wait to go on
        self.decoding: list[Answer] = []
        self.staying: set[Answer] = set()  # of those, while prompts are computed
        self.num_promised_places = 0  # blocks of the other layout for those who came back
        self.num_transitions = 0
        self.num_prefetched = self.blocks_out = self.blocks_back = 0
        self.was_short = self.has_finished = self.has_stepped = False

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.size)

    def held(self, answer: Answer) -> int:
        """Blocks of an answer between two steps: those of its entries."""
        return self.blocks_for(answer.known - 1)

    def run(self, jobs: list[tuple[int, int]], arrivals: list[float]) -> list[Answer]:
        answers = [Answer(n, *each, arrivals[n]) for n, each in enumerate(jobs)]
        self.to_come = deque(answers)
        looks = True  # before it plans: after steps, and when something has come back
        while not all(each.is_done for each in answers):
            looks = self.note() or looks
            turn = self.decode_turn if self.stage == "decode" else self.prefill_turn
            looks = turn(looks)
        return answers

    def note(self) -> bool:
        """Let happen what is due; return whether something has come back."""
        while self.to_come and self.to_come[0].arrival <= self.now:
            self.waiting.append(self.to_come.popleft())
        while self.going and self.going[0][0] <= self.now:
            self.free += self.going.popleft()[2]
        has_come = False
        while self.coming and self.coming[0][0] <= self.now:
            _, answer = self.coming.popleft()
            self.host_used -= self.held(answer)
            self.here.append(answer)
            has_come = True
        return has_come

    def idle(self) -> bool:
        """Wait for whatever is next."""
        ends = [each[0][0] for each in (self.going, self.coming) if each]
        ends += [self.to_come[0].arrival] if self.to_come else []
        if not ends:
            raise OutgrownError
        self.now = min(ends)
        return False

    def change(self, stage: str) -> bool:
        """Go to the other layout: copies end, weights are loaded, what stays is loaded anew."""
        while True:
            if self.sets_aside:
                self.set_aside()
                if self.stage == "decode":
                    self.set_brought_aside()
            if not (self.going or self.coming):
                break
            self.now = max(self.now, *(each[0][0] for each in (self.going, self.coming) if each))
            self.note()
        stays = self.all_blocks - self.free
        new_blocks = self.prefill_blocks if stage == "prefill" else self.blocks
        self.free += new_blocks - self.all_blocks
        if self.free < self.needed() + self.promised():
            raise OutgrownError
        if stage == "decode":
            stays -= sum(map(self.held, self.here))
        self.now += self.reload[stage == "decode"] + 2 * stays * self.per_block
        self.stage = stage
        self.num_transitions += 1
        self.has_finished = self.has_stepped = False
        self.on_host = deque(sorted(self.on_host, key=lambda each: each.number))
        self.here = deque(sorted(self.here, key=lambda each: each.number))
        self.decoding.sort(key=lambda each: each.number)
        if stage == "prefill":
            self.staying = set(self.decoding)
            self.num_promised_places = sum(self.blocks_for(e.known) for e in self.decoding)
        return True

    @property
    def all_blocks(self) -> int:
        """Blocks of the present layout, taken or not."""
        return self.blocks if self.stage == "decode" else self.prefill_blocks

    def set_aside(self) -> None:
        """Let answers go to the buffer, but those that stay or find no room."""
        for answer in [each for each in self.decoding if each not in self.staying]:
            filled = self.held(answer)
            if self.host_used + filled > self.host_blocks:
                self.staying.add(answer)
                continue
            self.decoding.remove(answer)
            self.send_out(answer, filled)

    def set_brought_aside(self) -> None:
        for answer in list(self.here):
            if self.host_used + self.held(answer) <= self.host_blocks:
                self.here.remove(answer)
                self.send_out(answer, self.held(answer))

    def send_out(self, answer: Answer, filled: int) -> None:
        self.out_free = max(self.now, self.out_free) + filled * self.per_block
        self.copy_free = max(self.out_free, self.copy_free) + filled * self.per_copy
        self.readable[answer] = self.copy_free if self.per_copy else 0.0
        self.blocks_out += filled
        self.going.append((self.out_free, answer, filled))
        self.on_host.append(answer)
        self.host_used += filled

    # --- prompts ----------------------------------------------------------------------------

    def prefill_turn(self, looks: bool) -> bool:
        has_fresh = self.host_blocks is not None and not self.staying.issuperset(self.decoding)
        if looks and not has_fresh and self.has_no_more_prompts():
            return self.end_of_prompts()
        if self.host_blocks is not None:
            self.set_aside()
        batch = [] if self.policy.rests(self) else self.admitted()
        if self.prefetches:
            self.prefetch()
        if batch:
            self.compute(batch)
            return True
        if self.has_no_more_prompts():
            return self.end_of_prompts()
        return self.idle()

    def end_of_prompts(self) -> bool:
        self.was_short = bool(self.waiting)
        return self.change("decode")

    def compute(self, batch: list[Answer]) -> None:
        self.now += self.prefill_time([each.prompt for each in batch])
        for each in batch:
            each.times.append(self.now)
            if each.is_done:
                self.free += self.blocks_for(each.prompt)
            else:
                self.decoding.append(each)

    def has_no_more_prompts(self) -> bool:
        if self.waiting and not self.policy.rests(self):
            may_have_room = self.has_room(self.waiting[0], 0) or self.coming
            if may_have_room and (self.going or self.fits(self.waiting[0])):
                return False
        return self.has_answers or bool(self.on_host)

    @property
    def has_answers(self) -> bool:
        return bool(self.decoding or self.coming or self.here)

    def has_room(self, answer: Answer, coming: int) -> bool:
        if self.host_blocks is None:
            return True
        return self.host_used + coming + self.blocks_for(answer.prompt) <= self.host_blocks

    def fits(self, answer: Answer, num_admitted: int = 0) -> bool:
        if len(self.decoding) + num_admitted >= self.seats:
            return False
        need = self.blocks_for(answer.prompt) + self.needed() + self.promised()
        return need <= self.free

    def admitted(self) -> list[Answer]:
        batch: list[Answer] = []
        budget, coming = self.budget, 0
        while self.waiting:
            first = self.waiting[0]
            if batch and first.prompt > budget:
                break
            if not (self.has_room(first, coming) and self.fits(first, len(batch))):
                break
            self.waiting.popleft()
            batch.append(first)
            need = self.blocks_for(first.prompt)
            self.free -= need
            coming += need
            budget -= first.prompt
        return batch

    def prefetch(self) -> None:
        """Let those come back for whom the prompts of the next step leave blocks."""
        kept, budget = 0, self.budget
        for each in list(self.waiting)[: self.seats]:
            if budget <= 0:
                break
            kept += self.blocks_for(each.prompt)
            budget -= each.prompt
        while self.on_host:
            first = self.on_host[0]
            need = self.blocks_for(first.known)
            if any(answer is first for _, answer, _ in self.going):
                return
            if self.num_promised_places + need > self.blocks:
                return
            if need + kept + self.needed() + self.promised() > self.free:
                return
            self.num_promised_places += need
            self.num_prefetched += 1
            self.fetch()

    # --- answers ----------------------------------------------------------------------------

    def decode_turn(self, looks: bool) -> bool:
        if self.waiting and self.policy.wants_prompts(self):
            return self.change("prefill")
        self.bring()
        if not self.decoding:
            return self.idle()
        self.step()
        return True

    def needed(self) -> int:
        """Blocks that the answers take in their next step."""
        return sum((each.known - 1) % self.size == 0 for each in self.decoding)

    def promised(self) -> int:
        """Blocks of the first steps of those who come back."""
        both = [*self.here, *(answer for _, answer in self.coming)]
        return sum(map(self.first_step, both))

    def first_step(self, answer: Answer) -> int:
        return self.blocks_for(answer.known) - self.blocks_for(answer.known - 1)

    def fetch(self) -> None:
        """Let the first on the host come back."""
        answer = self.on_host.popleft()
        filled = self.held(answer)
        self.free -= filled
        self.blocks_back += filled
        begin = max(self.now, self.readable[answer])
        self.back_free = max(begin, self.back_free) + filled * self.per_block
        self.coming.append((self.back_free, answer))

    def bring(self) -> None:
        if self.needed() > self.free:
            raise OutgrownError
        while self.on_host and len(self.decoding) < self.seats:
            need = self.blocks_for(self.on_host[0].known)
            if need > self.free - self.needed() - self.promised():
                break
            self.fetch()
        while self.here and len(self.decoding) < self.seats:
            if self.first_step(self.here[0]) > self.free - self.needed():
                break
            self.decoding.append(self.here.popleft())

    def step(self) -> None:
        need = self.needed()
        if need > self.free:
            raise OutgrownError
        contexts = sum(each.known - 1 for each in self.decoding)
        self.now += self.decode_time(len(self.decoding), contexts)
        self.has_stepped = True
        self.free -= need
        for each in self.decoding:
            each.times.append(self.now)
        for each in [each for each in self.decoding if each.is_done]:
            self.free += self.blocks_for(each.known - 1)
            self.decoding.remove(each)
            self.has_finished = True
