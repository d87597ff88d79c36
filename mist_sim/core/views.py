"""Views of clients for policies, and the counters behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, get_args

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable

    from mist_sim.core.answers import AnswerLengths
    from mist_sim.core.request import KeptEntries, Request
    from mist_sim.core.visit import Visit

OUT: Final = 0
WAITING: Final = 1
RUNNING: Final = 2

Count = Literal[
    "num_outstanding", "num_waiting", "num_running", "num_waiting_tokens", "num_prompt_tokens"
]
"""The counts of a view that are exact at any time."""

COUNTS: Final[tuple[Count, ...]] = get_args(Count)


class ClientView(Protocol):
    """A live, read-only window on one client.

    Exact at any time:

    client_id: unique number of the client, never used again for another client.
    name: its name, unique in the simulation.
    role: its part in disaggregation ("prefill", "decode"); None: it serves whole requests.
    pool: pool of the clients that it hands over to (`pools: local`); None: all clients.
    num_waiting: requests queued at the client, preempted ones included.
    num_running: requests that the client works on.
    num_outstanding: requests sent to the client and not finished there.
    num_waiting_tokens: tokens to compute before the waiting requests emit their next token: their
        prompts, and the answers so far of preempted ones; cached prefixes are not subtracted.
        Prompts that have started to run do not count.
    num_prompt_tokens: prompt tokens of all outstanding requests, each until its visit ends.
    num_gpu_blocks, block_size: KV blocks of all its engines, and tokens per block; 0 without a KV
        cache. num_answer_tokens(request): how long the client's part of the answer may become, an
        estimate: the mean of visits that ended there or at clients of the same role and model,
        those with prompts of about as many tokens (equal powers of two) where there is one; 0
        before any. transfer_time_from(source, num_tokens): seconds in which the KV entries of so
        many tokens would come to it from another client, on a network that is free; 0 where there
        is none. transfer_time(request): seconds in which the KV entries that a request brings
        (`Request.kv`) come to it on a network that is free; 0 where it brings none.

    As of the last step that ended; 0 at a client without a KV cache:

    num_kv_blocks: KV blocks that requests hold, on all its engines; blocks that only the prefix
        cache keeps do not count. With the chunked scheduler a step takes its blocks when it starts,
        so blocks of the step in flight count.
    num_kv_tokens: tokens of the running requests that have KV entries; a shared prefix counts once
        for each request.
    num_remaining_tokens: estimate of tokens that its outstanding requests will still emit: for
        each, `num_answer_tokens` minus the tokens emitted so far, at least 1. Emitted tokens are
        known only for engines.
    num_prefill_tokens: prompt tokens still to be computed, of waiting and running requests.
        prefill_time(request): seconds until the request's prompt would be computed if it came now,
        an estimate: the prompts before it, and it, at the chunks of the engine and beside its
        decodes; 0 at a client without an engine. prefix_tokens(request): tokens of the request's
        prompt that would not be computed if it came now, since its prefix cache, or a tier below,
        has their blocks; 0 without prefix caching. With several engines it is what the one has that
        would take the request, the least loaded.
    """

    @property
    def client_id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def role(self) -> str | None: ...
    @property
    def pool(self) -> str | None: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def num_running(self) -> int: ...
    @property
    def num_outstanding(self) -> int: ...
    @property
    def num_waiting_tokens(self) -> int: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_gpu_blocks(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def num_kv_blocks(self) -> int: ...
    @property
    def num_kv_tokens(self) -> int: ...
    @property
    def num_remaining_tokens(self) -> float: ...
    def num_answer_tokens(self, request: Request, /) -> float: ...
    def transfer_time_from(self, source: ClientView, num_tokens: int, /) -> float: ...
    def transfer_time(self, request: Request, /) -> float: ...
    @property
    def num_prefill_tokens(self) -> int: ...
    def prefill_time(self, request: Request, /) -> float: ...
    def prefix_tokens(self, request: Request, /) -> int: ...


class PrefillView(Protocol):
    """View of the prompts that a client with engines has to compute (see `ClientView`)."""

    def num_tokens(self) -> int: ...
    def seconds(self, num_tokens: int, /) -> float:
        """Return in how many seconds a prompt with `num_tokens` tokens to compute would be done."""


class _Entries(NamedTuple):
    """KV entries as an offer that a client would keep them."""

    source: str
    num_tokens: int
    num_bytes: float
    engine: int = 0


class KvView(Protocol):
    """View of a client's KV memory, computed on demand (see `ClientView`).

    block_size: tokens per block.
    """

    @property
    def block_size(self) -> int: ...
    def num_blocks(self) -> int: ...
    def num_tokens(self) -> int: ...
    def num_remaining(self, answers: AnswerLengths, /) -> float:
        """Return the tokens that outstanding requests may still emit."""

    def prefix_tokens(self, request: Request, /) -> int: ...
    def finish(self, request: Request, /) -> None:
        """A request with content has left the client."""

    def watch(self, watcher: ContentWatcher, /) -> bool:
        """Notify a watcher of the content ids with cached blocks, now and on every change.

        Returns False, and notifies nothing, if prefixes may also be found in another way.
        """


class ContentWatcher(Protocol):
    """Hears which content ids have blocks in a cache."""

    def enter(self, content_id: Hashable, /) -> None:
        """The first block of an id is in a cache."""

    def leave(self, content_id: Hashable, /) -> None:
        """The last block of an id has left a cache."""


class ClientState:
    """The object behind a `ClientView`; only stays at the client change it (`Stay.become`).

    visits: visits at the client now.
    watchers: notified when a request comes or leaves; phase_watchers: when a request starts to wait
        or run; end_watchers: with each visit that ended. has_watchers: whether there are any.
    kv: the client's KV memory; None without one. is_watched: whether a watcher hears of its caches.
    answers: lengths of answers that ended there. time_from: computes how long KV entries take to
        arrive.
    prefill: estimates prefill times; None without an engine.
    token_bytes: bytes of KV entries per token; 0: unknown.
    """

    __slots__ = (
        "_num_prompt_tokens",
        "answers",
        "client_id",
        "end_watchers",
        "has_watchers",
        "is_watched",
        "kv",
        "model",
        "name",
        "num_gpu_blocks",
        "num_outstanding",
        "num_running",
        "num_waiting",
        "num_waiting_tokens",
        "phase_watchers",
        "pool",
        "prefill",
        "role",
        "time_from",
        "token_bytes",
        "visits",
        "watchers",
    )

    def __init__(self, client_id: int, name: str, role: str | None = None) -> None:
        self.client_id = client_id
        self.name = name
        self.role = role
        self.pool: str | None = None
        self.model: str | None = None
        self.num_outstanding = self.num_waiting = self.num_running = 0
        self.num_waiting_tokens = 0
        self._num_prompt_tokens = 0  # kept while somebody watches
        self.num_gpu_blocks = 0
        self.visits: Collection[Visit] = ()
        self.has_watchers = False
        self.watchers: tuple[Callable[[ClientState], None], ...] = ()
        self.phase_watchers: tuple[Callable[[ClientState], None], ...] = ()
        self.end_watchers: tuple[Callable[[ClientState, Visit], None], ...] = ()
        self.kv: KvView | None = None
        self.is_watched = False
        self.answers: Callable[[], AnswerLengths] | None = None
        self.time_from: Callable[[KeptEntries], float] | None = None
        self.prefill: PrefillView | None = None
        self.token_bytes = 0.0

    def watch(self, watcher: Callable[[ClientState], None], *, phases: bool) -> None:
        """Notify a watcher from now on when a request comes or leaves.

        phases: whether to notify it of changes of phase as well.
        """
        self._begin_to_tell()
        self.watchers += (watcher,)
        if phases:
            self.phase_watchers += (watcher,)

    def watch_ends(self, watcher: Callable[[ClientState, Visit], None]) -> None:
        """Tell a watcher from now on which visits end."""
        self._begin_to_tell()
        self.end_watchers += (watcher,)

    def unwatch(self, watchers: Collection[Callable[[ClientState], None]]) -> None:
        """Stop notifying these watchers."""
        self.watchers = tuple(each for each in self.watchers if each not in watchers)
        self.phase_watchers = tuple(each for each in self.phase_watchers if each not in watchers)
        self.has_watchers = bool(self.watchers or self.end_watchers)

    def _begin_to_tell(self) -> None:
        if not self.has_watchers:
            self._num_prompt_tokens = self.num_prompt_tokens
            self.has_watchers = True

    def tell(self, before: int, phase: int, visit: Visit) -> None:
        """Tell the watchers that a request has changed its phase."""
        watchers = self.phase_watchers
        if before == OUT:
            self._num_prompt_tokens += visit.request.num_prompt_tokens
            watchers = self.watchers
        elif phase == OUT:
            self._num_prompt_tokens -= visit.request.num_prompt_tokens
            watchers = self.watchers
            for hear in self.end_watchers:
                hear(self, visit)
        for watcher in watchers:
            watcher(self)

    @property
    def origin(self) -> ClientState:
        """The client's own state, of which this one may be a picture."""
        return self

    @property
    def num_prompt_tokens(self) -> int:
        if self.has_watchers:
            return self._num_prompt_tokens
        return sum([visit.request.num_prompt_tokens for visit in self.visits])

    @property
    def block_size(self) -> int:
        return self.kv.block_size if self.kv else 0

    @property
    def num_kv_blocks(self) -> int:
        return self.kv.num_blocks() if self.kv else 0

    @property
    def num_kv_tokens(self) -> int:
        return self.kv.num_tokens() if self.kv else 0

    @property
    def num_remaining_tokens(self) -> float:
        """Tokens that outstanding requests may still emit; without a KV cache, whole answers."""
        if self.answers is None:
            return 0
        answers = self.answers()
        if self.kv is not None:
            return self.kv.num_remaining(answers)
        prompts = [visit.request.num_prompt_tokens for visit in self.visits]
        return sum([max(answers.expected(prompt), 1) for prompt in prompts])

    def num_answer_tokens(self, request: Request) -> float:
        return self.answers().expected(request.num_prompt_tokens) if self.answers else 0

    def transfer_time(self, request: Request) -> float:
        return self.time_from(request.kv) if request.kv and self.time_from else 0.0

    def transfer_time_from(self, source: ClientView, num_tokens: int) -> float:
        if self.time_from is None:
            return 0.0
        entries = _Entries(source.name, num_tokens, num_tokens * self.token_bytes)
        return self.time_from(entries)

    @property
    def num_prefill_tokens(self) -> int:
        return self.prefill.num_tokens() if self.prefill else self.num_waiting_tokens

    def prefill_time(self, request: Request) -> float:
        if self.prefill is None:
            return 0.0
        return self.prefill.seconds(request.num_prompt_tokens - self.prefix_tokens(request))

    def prefix_tokens(self, request: Request) -> int:
        return self.kv.prefix_tokens(request) if self.kv else 0
