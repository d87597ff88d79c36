"""Views of clients for policies, the counters behind them, and the states of clients."""

from __future__ import annotations

from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, NoReturn, Protocol, get_args

from mist_sim.errors import brief, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable

    from mist_sim.core.request import KeptEntries, Request
    from mist_sim.core.visit import Visit

State = Literal["off", "starting", "up", "draining", "failed"]
"""States of a client.

off: it is not reserved, and draws nothing. starting: it loads weights and starts its engines.
up: it takes visits. draining: it finishes those it has and takes no others. failed: it is reserved
and draws nothing, until it is repaired.
"""

STATES: tuple[State, ...] = get_args(State)

OUT: Final = 0
WAITING: Final = 1
RUNNING: Final = 2

Count = Literal[
    "num_outstanding", "num_waiting", "num_running", "num_waiting_tokens", "num_prompt_tokens"
]
"""The counts of a view that are exact at any time."""

COUNTS: Final[tuple[Count, ...]] = get_args(Count)

Number = (
    Count
    | Literal[
        "num_gpu_blocks",
        "block_size",
        "num_kv_blocks",
        "num_kv_tokens",
        "num_remaining_tokens",
        "num_prefill_tokens",
    ]
)
"""All numbers of a view that need no request."""

NUMBERS: Final[tuple[str, ...]] = (*COUNTS, *get_args(get_args(Number)[1]))


def reader_of(number: Number) -> Callable[[ClientView], float]:
    """Return what reads a number of a view; raise ValueError for an unknown name."""
    if number not in NUMBERS:
        raise ValueError(
            f"{brief(number)} is no number of a view{did_you_mean(number, NUMBERS)} "
            f"Known: {', '.join(NUMBERS)}"
        )
    return attrgetter(number)


def attribute_of(count: Count) -> str:
    """Return the attribute of a `ClientState` behind a count, which is quicker to read."""
    if count == "num_outstanding":
        return "outstanding"
    return count if count == "num_prompt_tokens" else f"phases.{count}"


class ClientView(Protocol):
    """A live, read-only window on one client.

    Counts of requests and prompt tokens are exact at any time. Figures of KV memory, remaining
    tokens and prompts still to be computed are as of the last step that ended.
    """

    @property
    def client_id(self) -> int:
        """Unique number of the client, never used again for another client."""

    @property
    def name(self) -> str:
        """The client's name, unique in the simulation."""

    @property
    def role(self) -> str | None:
        """Its part in disaggregation ("prefill", "decode"); None: it serves whole requests."""

    @property
    def pool(self) -> str | None:
        """Pool of the clients that it hands over to (`pools: local`); None: all clients."""

    @property
    def num_waiting(self) -> int:
        """Requests queued at the client, preempted ones included."""

    @property
    def num_running(self) -> int:
        """Requests that the client works on."""

    @property
    def num_outstanding(self) -> int:
        """Requests sent to the client and not finished there."""

    @property
    def num_waiting_tokens(self) -> int:
        """Tokens to compute before the waiting requests emit their next token.

        These are their prompts, and the answers so far of preempted ones. Cached prefixes are not
        subtracted. Prompts that have started to run do not count.
        """

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens of all outstanding requests, each until its visit ends."""

    @property
    def num_gpu_blocks(self) -> int:
        """KV blocks of all its engines; 0 without a KV cache."""

    @property
    def block_size(self) -> int:
        """Tokens per KV block; 0 without a KV cache."""

    @property
    def num_kv_blocks(self) -> int:
        """KV blocks that requests hold on all its engines; 0 without a KV cache.

        Blocks that only the prefix cache keeps do not count. With the chunked scheduler a step
        takes its blocks when it starts, so blocks of the step in flight count.
        """

    @property
    def num_kv_tokens(self) -> int:
        """Tokens of the running requests that have KV entries; 0 without a KV cache.

        A shared prefix counts once for each request.
        """

    @property
    def num_remaining_tokens(self) -> float:
        """Estimate of the tokens that its outstanding requests will still emit.

        For each request it is `num_answer_tokens` minus the tokens emitted so far, at least 1.
        Emitted tokens are known only for engines.
        """

    def num_answer_tokens(self, request: Request, /) -> float:
        """Return an estimate of how many tokens of the answer the client will emit.

        It is the mean of visits that ended there or at clients of the same role and model. Visits
        with prompts of about as many tokens (equal powers of two) are used if there are any. 0
        before any visit has ended.
        """

    def transfer_time_from(self, source: ClientView, num_tokens: int, /) -> float:
        """Return the seconds in which KV entries come to it from another client.

        The network is taken to be free. 0 without a network.
        """

    def transfer_time(self, request: Request, /) -> float:
        """Return the seconds in which a request's KV entries (`Request.kv`) come to it.

        The network is taken to be free. 0 if the request brings none.
        """

    @property
    def num_prefill_tokens(self) -> int:
        """Prompt tokens still to be computed, of waiting and running requests."""

    def prefill_time(self, request: Request, /) -> float:
        """Return an estimate of the seconds until a prompt that came now would be computed.

        It counts the prompts before it, and the prompt itself, at the chunks of the engine and
        beside its decodes. 0 for a client without an engine.
        """

    def prefix_tokens(self, request: Request, /) -> int:
        """Return how many tokens of the request's prompt need no computation if it came now.

        Their blocks are in the prefix cache, or in a tier below. 0 without prefix caching. With
        several engines, it is the least loaded one that is asked, since it would take the request.
        """


class AnswerLengths:
    """Running means of the tokens of answers.

    by_bits: the mean for prompts of so many binary digits, so of about as many tokens.
    overall: the mean of all; 0 before any.
    """

    def __init__(self) -> None:
        self.by_bits: dict[int, float] = {}
        self.overall = 0.0
        self._counts: defaultdict[int | None, int] = defaultdict(int)
        self._sums: defaultdict[int | None, int] = defaultdict(int)

    def add(self, num_prompt_tokens: int, num_tokens: int) -> None:
        """Learn from one more answer to a prompt."""
        bits = num_prompt_tokens.bit_length()
        for key in (bits, None):
            self._counts[key] += 1
            self._sums[key] += num_tokens
        self.by_bits[bits] = self._sums[bits] / self._counts[bits]
        self.overall = self._sums[None] / self._counts[None]

    def expected(self, num_prompt_tokens: int) -> float:
        """Return the expected tokens of the answer to a prompt; 0 before any has ended."""
        return self.by_bits.get(num_prompt_tokens.bit_length(), self.overall)


class PrefillView(Protocol):
    """View of the prompts that a client with engines has to compute (see `ClientView`)."""

    def num_tokens(self) -> int:
        """Return the prompt tokens still to be computed, of waiting and running requests."""

    def seconds(self, num_tokens: int, /) -> float:
        """Return in how many seconds a prompt with `num_tokens` tokens to compute would be done."""


class _Entries(NamedTuple):
    """KV entries as an offer that a client would keep them."""

    source: str
    num_tokens: int
    num_bytes: float
    engine: int = 0


class KvView(Protocol):
    """View of a client's KV memory, computed on demand (see `ClientView`)."""

    @property
    def block_size(self) -> int:
        """Tokens per block."""

    def num_blocks(self) -> int:
        """Return the blocks that requests hold."""

    def num_tokens(self) -> int:
        """Return the tokens of running requests that have KV entries."""

    def num_remaining(self, answers: AnswerLengths, /) -> float:
        """Return the tokens that outstanding requests may still emit."""

    def prefix_tokens(self, request: Request, /) -> int:
        """Return how many tokens of the request's prompt are cached."""

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


def _read_only(name: str, of: str) -> Any:
    """Return a read-only property of a view: a policy that sets it fails there.

    name: of the figure. of: the attribute behind it.
    """

    def refuse(view: ClientState, value: object) -> NoReturn:
        raise AttributeError(
            f"{name} of the view of {view.name!r} must not be set: policies read views, and return "
            "their decision"
        )

    return property(attrgetter(of), refuse)


class Phases:
    """How many requests of a client wait and run, and the tokens of those that wait."""

    __slots__ = ("num_running", "num_waiting", "num_waiting_tokens")

    def __init__(self) -> None:
        self.num_waiting = self.num_running = self.num_waiting_tokens = 0


class ClientState:
    """The object behind a `ClientView`, whose figures are read-only.

    number, outstanding, phases: behind the figures of these names, for parts that keep counts; only
    stays at the client change them (`Stay.become`), and the engine's core, which has `Phases`
    of its own.
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
        "_blocks",
        "_name",
        "_num_prompt_tokens",
        "_pool",
        "_role",
        "answers",
        "end_watchers",
        "has_watchers",
        "is_watched",
        "kv",
        "model",
        "number",
        "outstanding",
        "phase_watchers",
        "phases",
        "prefill",
        "time_from",
        "token_bytes",
        "visits",
        "watchers",
    )

    client_id = _read_only("client_id", "number")
    name = _read_only("name", "_name")
    role = _read_only("role", "_role")
    pool = _read_only("pool", "_pool")
    num_gpu_blocks = _read_only("num_gpu_blocks", "_blocks")
    num_outstanding = _read_only("num_outstanding", "outstanding")
    num_waiting = _read_only("num_waiting", "phases.num_waiting")
    num_running = _read_only("num_running", "phases.num_running")
    num_waiting_tokens = _read_only("num_waiting_tokens", "phases.num_waiting_tokens")

    def __init__(
        self, client_id: int, name: str, role: str | None = None, phases: Any = None
    ) -> None:
        self.number = client_id
        self.phases: Any = phases or Phases()  # or what counts them in the engine's core
        self._name = name
        self._role = role
        self._pool: str | None = None
        self.model: str | None = None
        self.outstanding = 0
        self._num_prompt_tokens = 0  # kept while watched
        self._blocks = 0
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

    def take_role(self, role: str | None) -> None:
        """Have another part in disaggregation."""
        self._role = role

    def join_pool(self, pool: str | None) -> None:
        """Be one of the clients of a pool."""
        self._pool = pool

    def take_memory(self, num_gpu_blocks: int) -> None:
        """Have so many KV blocks."""
        self._blocks = num_gpu_blocks

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
        """Prompt tokens of all visits there now."""
        if self.has_watchers:
            return self._num_prompt_tokens
        return sum([visit.request.num_prompt_tokens for visit in self.visits])

    @property
    def block_size(self) -> int:
        """Tokens per KV block; 0 without a KV cache."""
        return self.kv.block_size if self.kv else 0

    @property
    def num_kv_blocks(self) -> int:
        """KV blocks that requests hold; 0 without a KV cache."""
        return self.kv.num_blocks() if self.kv else 0

    @property
    def num_kv_tokens(self) -> int:
        """Tokens of running requests that have KV entries; 0 without a KV cache."""
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
        """Return the expected tokens of the answer there; 0 before any visit has ended."""
        return self.answers().expected(request.num_prompt_tokens) if self.answers else 0

    def transfer_time(self, request: Request) -> float:
        """Return the seconds in which the entries of `Request.kv` come to it; 0 without any."""
        return self.time_from(request.kv) if request.kv and self.time_from else 0.0

    def transfer_time_from(self, source: ClientView, num_tokens: int) -> float:
        """Return the seconds in which entries come to it from a client; 0 without a network."""
        if self.time_from is None:
            return 0.0
        entries = _Entries(source.name, num_tokens, num_tokens * self.token_bytes)
        return self.time_from(entries)

    @property
    def num_prefill_tokens(self) -> int:
        """Prompt tokens still to be computed; without an engine, those of waiting requests."""
        return self.prefill.num_tokens() if self.prefill else self.num_waiting_tokens

    def prefill_time(self, request: Request) -> float:
        """Return the seconds until a new prompt would be computed; 0 without an engine."""
        if self.prefill is None:
            return 0.0
        return self.prefill.seconds(request.num_prompt_tokens - self.prefix_tokens(request))

    def prefix_tokens(self, request: Request) -> int:
        """Return how many tokens of the request's prompt are cached; 0 without a KV cache."""
        return self.kv.prefix_tokens(request) if self.kv else 0
