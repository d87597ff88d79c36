"""A buffer in host memory for prompts that are done, written as a contributor would.

A prompt's blocks go there when it has its token, and come from there to the client that decodes.
So the GPU that computes prompts has room for the next ones. As in `test_hand_over.py`: a step takes
1/8 s with a prompt and 1/32 s without. Blocks are copied in 1/64 s, one after the other each way.
"""

from mist_sim.clients import LlmClient
from mist_sim.clients.kv_cache import SerialLink
from mist_sim.clients.kv_cache.moves import Room
from mist_sim.clients.stores import KvStore, StoredKv, Transit
from mist_sim.core.visit import HeldKv
from mist_sim.environment import MOVE
from tests.reference.apart import engine
from tests.unit.clients.test_hand_over import row, served

SECONDS = 1 / 64


class HostBuffer(KvStore):
    """Blocks of requests between two clients, as long as there is room."""

    name = "buffer"

    def __init__(self, client: LlmClient, num_blocks: int) -> None:
        self._client = client
        self._room = Room(num_blocks)
        self._out, self._back = SerialLink(), SerialLink()
        self._coming: dict[HeldKv, object] = {}  # the ends of copies to the buffer

    def take(self, held: HeldKv) -> HeldKv:
        """Begin to copy what a client holds; without room it stays there."""
        env, num_blocks = self._client.env, self._client.memory.pool().blocks_for(held.num_tokens)
        if not self._room.has(num_blocks):
            return held
        self._room.reserve(num_blocks)
        kv = StoredKv(
            self,
            lambda: self._room.release(num_blocks),
            num_tokens=held.num_tokens,
            num_prompt_tokens=held.num_prompt_tokens,
            num_output_tokens=held.num_output_tokens,
            last_token_at=held.last_token_at,
        )
        kv.source = held.source  # routers ask for the client that computed them
        end = self._coming[kv] = env.at(self._out.send(num_blocks * SECONDS, env.now), MOVE)
        end.callbacks += [lambda _: held.release(), lambda _: self._coming.pop(kv)]
        return kv

    def has(self, move):
        return move.sequence.incoming not in self._coming

    def ready(self, move):
        return self._coming[move.sequence.incoming]

    def fetch(self, move):
        end = self._back.send(move.num_blocks * SECONDS, self._client.env.now)
        return Transit(move.num_blocks * 1000.0, self._client.env.at(end, MOVE))


class Buffered(LlmClient):
    """Computes prompts, and leaves their entries in a buffer of `num_buffered` blocks."""

    num_buffered = 100

    def start(self, *run):
        super().start(*run)
        self._buffer = HostBuffer(self, self.num_buffered)

    def finish(self, visit):
        if visit.held_kv is not None:
            visit.held_kv = self._buffer.take(visit.held_kv)
        super().finish(visit)


def pair(kind: type[LlmClient]) -> list[LlmClient]:
    """A client with two blocks that computes prompts, and one with three that decodes."""
    options = {"kind": kind, "num_gpu_blocks": 2}
    return [engine("prefill", **options), engine("decode", num_gpu_blocks=3)]


ROWS = [row(0.0, 8, 4), row(0.0, 8, 4)]


def test_prompts_go_on_while_the_others_entries_wait():
    """The second prompt begins when the first one's blocks are copied, at 5/32 s, and not later.

    They are back at 3/16 s; so the first answer ends at 9/32 s. Then the second one's come back.
    """
    result = served(ROWS, *pair(Buffered))
    assert result.token_times(0).tolist() == [1 / 8, 7 / 32, 8 / 32, 9 / 32]
    assert result.token_times(1).tolist()[0] == 5 / 32 + 1 / 8
    assert result.transfers["end"].tolist() == [3 / 16, 5 / 32 + 1 / 8 + 4 / 64]


def test_without_a_buffer_it_waits_for_the_link():
    result = served(ROWS, *pair(LlmClient))
    assert result.token_times(1).tolist()[0] == 1 / 8 + 5 / 128 + 1 / 8
