"""What a gateway sees that polls its clients at regular intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mist_sim.core.views import ClientState
from mist_sim.environment import POLL, Environment

if TYPE_CHECKING:
    from simpy.events import Event

    from mist_sim.core.request import Request

_COUNTS = (
    "num_outstanding",
    "num_waiting",
    "num_running",
    "num_waiting_tokens",
    "num_prompt_tokens",
)
_Counts = tuple[int, int, int, int, int]
Gauge = Literal["num_kv_blocks", "num_kv_tokens", "num_remaining_tokens"]
"""What a client computes when it is asked."""


class PolledState(ClientState):
    """A client as of the latest poll, perhaps plus the requests sent to it since.

    Constants, prefixes and distances are the client's own.
    """

    __slots__ = ("_known", "_of", "_polls", "_sent")

    def __init__(self, state: ClientState, polls: Polls) -> None:
        super().__init__(state.client_id, state.name, state.role)
        self._pool = state.pool
        self._of = state
        self._polls = polls
        self._known = counts_of(state)
        self._sent: list[Request] = []
        self.model = state.model
        self._blocks = state.num_gpu_blocks
        self.answers = state.answers
        self.time_from = state.time_from
        self.kv = state.kv
        self.prefill = state.prefill
        self.token_bytes = state.token_bytes
        self.take(self._known)

    @property
    def origin(self) -> ClientState:
        """The client's own, live state."""
        return self._of

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens as of the last poll, plus those sent since if it counts them."""
        return self._num_prompt_tokens

    @property
    def num_kv_blocks(self) -> int:
        """KV blocks as of the last poll."""
        return int(self._polls.gauge("num_kv_blocks", self._of))

    @property
    def num_kv_tokens(self) -> int:
        """Tokens with KV entries as of the last poll."""
        return int(self._polls.gauge("num_kv_tokens", self._of))

    @property
    def num_remaining_tokens(self) -> float:
        """Tokens as of the latest poll, and those of the requests sent since."""
        known = self._polls.gauge("num_remaining_tokens", self._of)
        return known + sum([max(self.num_answer_tokens(request), 1) for request in self._sent])

    def take(self, counts: _Counts) -> None:
        """Apply the result of a poll."""
        self._known = counts
        self._sent.clear()
        (
            self.outstanding,
            self.waiting,
            self.running,
            self.waiting_tokens,
            self._num_prompt_tokens,
        ) = counts
        self._tell_all()

    def forget_sent(self) -> None:
        """Return to the values of the last poll."""
        self.take(self._known)

    def note_sent(self, request: Request) -> None:
        """Add a request that goes to it now, until the next poll."""
        if not self._polls.counts_sent:
            return
        self._sent.append(request)
        self._polls.note_sent(self)
        self.outstanding += 1
        self.waiting += 1
        if request.kv is None:
            self.waiting_tokens += request.num_prompt_tokens
        self._num_prompt_tokens += request.num_prompt_tokens
        self._tell_all()

    def _tell_all(self) -> None:
        for watcher in self.watchers:
            watcher(self)


class Polls:
    """The clients' values at the last poll: polls happen at 0, at `interval`, and so on.

    A poll reads the values before all other events of its time. It needs no event: when a count
    changes for the first time since a poll, its old value is what the poll read. Only KV memory and
    remaining tokens, which depend on the present time, need an event per poll, while any client has
    work.

    interval: seconds (> 0). counts_sent: whether a view adds the requests sent since the poll.
    """

    def __init__(self, env: Environment, interval: float, counts_sent: bool) -> None:
        self.counts_sent = counts_sent
        self._env = env
        self._interval = interval
        self._number = self._latest()  # of the poll that views are as of
        self._views: dict[ClientState, PolledState] = {}
        self._changed: dict[ClientState, _Counts] = {}  # values of the next poll, if different
        self._sent: set[PolledState] = set()
        self._gauges: dict[Gauge, dict[ClientState, float]] = {}
        self._asks = False  # whether the next poll is an event

    def view(self, state: ClientState) -> PolledState:
        """Return the polled view of a client; a new client is polled at once."""
        if state not in self._views:
            self.catch_up()
            self._views[state] = PolledState(state, self)
            for name, values in self._gauges.items():
                values[state] = getattr(state, name)
            state.watch(self._note, phases=True)
        return self._views[state]

    def catch_up(self) -> None:
        """Apply the latest poll, if there was one since."""
        latest = self._latest()
        if latest == self._number:
            return
        self._number = latest
        for view in self._sent:
            view.forget_sent()
        self._sent.clear()
        for state, counts in self._changed.items():
            self._views[state].take(counts)
        self._changed.clear()

    def gauge(self, name: Gauge, state: ClientState) -> float:
        """Return a computed value of a client as of the latest poll since it was first needed."""
        if name not in self._gauges:
            self._gauges[name] = {state: getattr(state, name) for state in self._views}
            self._ask_next()
        return self._gauges[name][state]

    def note_sent(self, view: PolledState) -> None:
        """Note that a view says more than the latest poll found."""
        self._sent.add(view)

    def _latest(self) -> int:
        number = int(self._env.now // self._interval)
        return number + ((number + 1) * self._interval <= self._env.now)  # rounding may hide one

    def _note(self, state: ClientState) -> None:
        """A client's counts have changed."""
        self.catch_up()
        self._changed[state] = counts_of(state)
        if self._gauges and not self._asks:
            self._ask_next()

    def _ask_next(self) -> None:
        if not self._asks:
            self._asks = True
            time = (self._latest() + 1) * self._interval
            self._env.at(time, POLL).callbacks.append(self._ask)

    def _ask(self, _: Event) -> None:
        """Poll all clients, and again later unless all are idle or only polls are scheduled."""
        self._asks = False
        is_idle = not any(state.num_outstanding for state in self._views)
        for name, values in self._gauges.items():
            for state in values:
                values[state] = found = getattr(state, name)
                is_idle = is_idle and not found
        if not is_idle and not self._env.only_has(POLL):
            self._ask_next()


def counts_of(state: ClientState) -> _Counts:
    """Return the counts of a client now."""
    return (
        state.num_outstanding,
        state.num_waiting,
        state.num_running,
        state.num_waiting_tokens,
        state.num_prompt_tokens,
    )
