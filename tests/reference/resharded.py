"""A plain client that re-shards, one step after the other: a lane in either layout, and a buffer.

All requests are there at time 0. It shares no code with the engine. Cases in which answers outgrow
the GPUs are not for it (`OutgrownError`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field


class OutgrownError(Exception):
    """Answers need more blocks than there are, so that one would have to give way."""


@dataclass(eq=False)
class Answer:
    """A request: its lengths, tokens so far, and when each was emitted."""

    number: int
    prompt: int
    output: int
    times: list[float] = field(default_factory=list)

    @property
    def known(self) -> int:
        return self.prompt + len(self.times)

    @property
    def is_done(self) -> bool:
        return len(self.times) == self.output


@dataclass
class ReferenceResharding:
    """Simulates transition-minimising re-sharding with `running` drain or out.

    prefill_time: of (new tokens of each prompt); decode_time: of (answers, their contexts in all).
    blocks, host_blocks, size: of the GPUs and the buffer, and tokens in each. seats, budget: of a
    step. per_block: seconds of a block on the link, each way. reload: seconds of a transition.
    """

    prefill_time: Callable[[list[int]], float]
    decode_time: Callable[[int, int], float]
    blocks: int
    host_blocks: int
    size: int
    seats: int
    budget: int
    per_block: float
    reload: float
    running: str = "out"

    def __post_init__(self) -> None:
        self.now = 0.0
        self.free = self.blocks
        self.host_used = 0
        self.out_free = self.back_free = 0.0  # when each direction of the link is
        self.going: deque[tuple[float, Answer, int]] = deque()  # to the host: end, blocks
        self.on_host: deque[Answer] = deque()
        self.coming: deque[tuple[float, Answer]] = deque()
        self.here: deque[Answer] = deque()  # came back, and wait to go on
        self.decoding: list[Answer] = []
        self.num_transitions = 0
        self.most_on_host = 0

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.size)

    def run(self, lengths: list[tuple[int, int]]) -> list[Answer]:
        answers = [Answer(n, *each) for n, each in enumerate(lengths)]
        self.waiting = deque(answers)
        while not all(each.is_done for each in answers):
            if self.waiting:
                self.change()
                self.prefill_stage()
            if not all(each.is_done for each in answers):
                self.change()
                self.decode_stage()
        return answers

    def change(self) -> None:
        """Wait for copies, and load the weights."""
        while self.going:
            self.now = max(self.now, self.going[0][0])
            self.end_copies()
        self.now += self.reload
        self.num_transitions += 1

    def end_copies(self) -> None:
        while self.going and self.going[0][0] <= self.now:
            _, _, num_blocks = self.going.popleft()
            self.free += num_blocks

    def set_aside(self) -> None:
        for answer in self.decoding:
            held, filled = self.held(answer), self.blocks_for(answer.known - 1)
            self.out_free = max(self.now, self.out_free) + filled * self.per_block
            self.going.append((self.out_free, answer, held))
            self.on_host.append(answer)
            self.host_used += filled
        self.decoding = []
        self.most_on_host = max(self.most_on_host, self.host_used)

    def held(self, answer: Answer) -> int:
        """Blocks of an answer between two steps: those of its entries."""
        return self.blocks_for(answer.known - 1)

    # --- prompts ----------------------------------------------------------------------------

    def prefill_stage(self) -> None:
        while True:
            self.end_copies()
            self.set_aside()
            batch = self.admitted()
            if batch:
                self.now += self.prefill_time([each.prompt for each in batch])
                for each in batch:
                    each.times.append(self.now)
                    if each.is_done:
                        self.free += self.blocks_for(each.prompt)
                    else:
                        self.decoding.append(each)
            elif self.waiting and self.has_room(self.waiting[0], 0) and self.going:
                self.now = max(self.now, self.going[0][0])
            elif self.waiting and not self.on_host:
                raise OutgrownError
            else:
                return

    def has_room(self, answer: Answer, coming: int) -> bool:
        return self.host_used + coming + self.blocks_for(answer.prompt) <= self.host_blocks

    def admitted(self) -> list[Answer]:
        batch: list[Answer] = []
        budget, coming = self.budget, 0
        while self.waiting:
            first = self.waiting[0]
            need = self.blocks_for(first.prompt)
            if (batch and first.prompt > budget) or len(batch) >= self.seats:
                break
            if not self.has_room(first, coming) or need > self.free:
                break
            self.waiting.popleft()
            batch.append(first)
            self.free -= need
            coming += need
            budget -= first.prompt
        return batch

    # --- answers ----------------------------------------------------------------------------

    def decode_stage(self) -> None:
        while True:
            self.end_copies_back()
            if self.is_over():
                if self.running == "out":
                    self.set_aside()
                return
            self.bring()
            if not self.decoding:
                if not self.coming:
                    raise OutgrownError
                self.now = max(self.now, self.coming[0][0])
                continue
            self.step()

    def is_over(self) -> bool:
        if self.on_host or self.coming or self.here:
            return False
        if not self.decoding:
            return True
        if self.running != "out" or not self.waiting:
            return False
        used = sum(map(self.held, self.decoding))
        return 2 * used <= self.host_blocks and self.has_room(self.waiting[0], used)

    def end_copies_back(self) -> None:
        while self.coming and self.coming[0][0] <= self.now:
            _, answer = self.coming.popleft()
            self.host_used -= self.blocks_for(answer.known - 1)
            self.here.append(answer)

    def needed(self) -> int:
        """Blocks that the answers take in their next step."""
        return sum((each.known - 1) % self.size == 0 for each in self.decoding)

    def first_step(self, answer: Answer) -> int:
        return self.blocks_for(answer.known) - self.blocks_for(answer.known - 1)

    def bring(self) -> None:
        if self.needed() > self.free:
            raise OutgrownError
        while self.on_host and len(self.decoding) < self.seats:
            first = self.on_host[0]
            promised = sum(map(self.first_step, [*self.here, *(a for _, a in self.coming)]))
            need = self.blocks_for(first.known)
            if need > self.free - self.needed() - promised:
                break
            self.on_host.popleft()
            filled = self.blocks_for(first.known - 1)
            self.free -= filled
            self.back_free = max(self.now, self.back_free) + filled * self.per_block
            self.coming.append((self.back_free, first))
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
        self.free -= need
        for each in self.decoding:
            each.times.append(self.now)
        for each in [each for each in self.decoding if each.is_done]:
            self.free += self.blocks_for(each.known - 1)
            self.decoding.remove(each)
