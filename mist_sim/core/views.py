"""What a policy may see of the clients, and where they count it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, Protocol, get_args

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from mist_sim.core.request import Request

OUT: Final = 0
WAITING: Final = 1
RUNNING: Final = 2

Count = Literal["num_outstanding", "num_waiting", "num_running", "num_waiting_tokens"]
"""The counts of a view that are exact at any time."""

COUNTS: Final[tuple[Count, ...]] = get_args(Count)


class ClientView(Protocol):
    """A live, read-only window on one client.

    Exact at any time:

    client_id: a number of its own in the simulation, never used again for another client.
    name: its name, unique in the simulation.
    role: the part it plays for others ("prefill", "decode"); None: it serves all alone.
    num_waiting: requests queued at the client, preempted ones included.
    num_running: requests that the client works on.
    num_outstanding: requests sent to the client and not finished there.
    num_waiting_tokens: tokens that the waiting requests need computed before their next token:
        their prompts, and of preempted ones the answer so far; what a prefix cache may spare is
        not taken off. Prompts that run are not in it, whole or in part.

    As of the last step that ended, 0 at a client without a KV cache:

    num_kv_blocks: KV blocks that requests hold, on all its engines; blocks that only the prefix
        cache keeps are not in it. With the chunked scheduler a step takes its blocks when it
        starts, so those of the step in flight are in it.
    num_kv_tokens: tokens of the running requests that have KV entries; a prefix that several
        share counts for each.
    prefix_tokens(request): tokens of the request's prompt that would not be computed if it came
        now, since its prefix cache, or a tier below, has their blocks; 0 without prefix caching.
        With several engines it is what the one has that would take the request, the least loaded.
    """

    @property
    def client_id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def role(self) -> str | None: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def num_running(self) -> int: ...
    @property
    def num_outstanding(self) -> int: ...
    @property
    def num_waiting_tokens(self) -> int: ...
    @property
    def num_kv_blocks(self) -> int: ...
    @property
    def num_kv_tokens(self) -> int: ...
    def prefix_tokens(self, request: Request, /) -> int: ...


class KvView(Protocol):
    """What a client with KV memory tells of it, computed when it is asked (see `ClientView`).

    block_size: tokens in a block.
    """

    @property
    def block_size(self) -> int: ...
    def num_blocks(self) -> int: ...
    def num_tokens(self) -> int: ...
    def prefix_tokens(self, request: Request, /) -> int: ...
    def finish(self, request: Request, /) -> None:
        """A request with content has left the client."""

    def watch(self, watcher: ContentWatcher, /) -> bool:
        """Tell a watcher which content ids have cached blocks, now and from now on.

        Returns False, and tells nothing, when prefixes may also be found in another way.
        """


class ContentWatcher(Protocol):
    """Hears which content ids have blocks in a cache."""

    def enter(self, content_id: Hashable, /) -> None:
        """The first block of an id is in a cache."""

    def leave(self, content_id: Hashable, /) -> None:
        """The last block of an id has left a cache."""


class ClientState:
    """The object behind a `ClientView`; only the stays at the client write to it (`Stay.become`).

    watchers: hear when a request has come or gone; phase_watchers: when one waits or runs now.
    kv: tells about its KV memory; None where it has none. is_watched: whether it tells what its
        caches have.
    """

    __slots__ = (
        "client_id",
        "is_watched",
        "kv",
        "name",
        "num_outstanding",
        "num_running",
        "num_waiting",
        "num_waiting_tokens",
        "phase_watchers",
        "role",
        "watchers",
    )

    def __init__(self, client_id: int, name: str, role: str | None = None) -> None:
        self.client_id = client_id
        self.name = name
        self.role = role
        self.num_outstanding = self.num_waiting = self.num_running = 0
        self.num_waiting_tokens = 0
        self.watchers: tuple[Callable[[ClientState], None], ...] = ()
        self.phase_watchers: tuple[Callable[[ClientState], None], ...] = ()
        self.kv: KvView | None = None
        self.is_watched = False

    def tell(self, before: int, phase: int) -> None:
        """Tell the watchers that a request has changed its phase."""
        comes_or_goes = OUT in (before, phase)
        for watcher in self.watchers if comes_or_goes else self.phase_watchers:
            watcher(self)

    @property
    def num_kv_blocks(self) -> int:
        return self.kv.num_blocks() if self.kv else 0

    @property
    def num_kv_tokens(self) -> int:
        return self.kv.num_tokens() if self.kv else 0

    def prefix_tokens(self, request: Request) -> int:
        return self.kv.prefix_tokens(request) if self.kv else 0
