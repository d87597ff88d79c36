"""TaiChi's sliders while a run goes on: at given times, or when the workload has changed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Literal, NamedTuple

from simpy.events import Event

from mist_sim.checks import NotNegative, Positive, check_fields
from mist_sim.clients import Client
from mist_sim.core.flowing import FlowPolicy
from mist_sim.core.request import Request
from mist_sim.core.sliders import Sliders, all_sliders
from mist_sim.durations import not_reached
from mist_sim.environment import CHANGE, Environment
from mist_sim.errors import InvariantError, ScenarioError
from mist_sim.traces import TraceRow
from mist_sim.units import Seconds

__all__ = [
    "Change",
    "OnChange",
    "Reconfigure",
    "Reconfigurer",
    "Search",
    "Traffic",
    "TrafficWatch",
    "check_reconfigure",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A position that the sliders get at a time.

    at: seconds of the run (>= 0). num_p: clients that are P-heavy from then on (>= 1).
    s_p, s_d: tokens of a step of P-heavy and of D-heavy clients; s_d is in [1, s_p]. Answers flow
        at s_d = s_p, too, since roles stay.
    Raises ValueError for values out of range.
    """

    at: NotNegative[Seconds]
    num_p: Positive[int]
    s_p: Positive[int]
    s_d: int

    def __post_init__(self) -> None:
        check_fields(self)
        if not 1 <= self.s_d <= self.s_p:
            raise ValueError(f"s_d must be in [1, s_p] ([1, {self.s_p}]), got {self.s_d}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OnChange:
    """Search new sliders when the workload has changed.

    window: time between two looks of the gateway at the requests since its last look (> 0); much
        longer than an answer takes, since only finished answers have a known length.
    change: relative change of the rate, mean prompt or mean answer, compared with those of the last
        search, that triggers a search (> 0); before the first search, compared with the first
        window.
    delay: time from the look to the change, for the search and the change itself (>= 0). There are
        no looks meanwhile.
    chunks: chunk sizes to try, at least two, in tokens per step.
    Raises ValueError for values out of range.

    Source: TaiChi (arXiv:2508.01989) §3.1 searches upon a significant change, in minutes; how much
    is significant, and how long a window is, are ours.
    """

    window: Positive[Seconds] = 120.0
    change: Positive[float] = 0.5
    delay: NotNegative[Seconds] = 120.0
    chunks: tuple[int, ...] = (256, 512, 1024, 2048)

    def __post_init__(self) -> None:
        check_fields(self)
        if len(set(self.chunks)) < 2 or min(self.chunks) < 1:
            raise ValueError(
                f"chunks must be two sizes of >= 1 token or more, got {list(self.chunks)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconfigure:
    """How clients with roles p_heavy and d_heavy change role and chunk during a run.

    They change between two steps, keep their requests, and are never out of service.

    schedule: positions of the sliders at given times.
    on_change: searches positions when the workload has changed; None: no search.
    Raises ValueError unless exactly one of the two is set, and for two changes at one time.
    """

    schedule: tuple[Change, ...] = ()
    on_change: OnChange | None = None

    def __post_init__(self) -> None:
        if bool(self.schedule) == (self.on_change is not None):
            got = "both" if self.schedule else "neither"
            raise ValueError(f"schedule or on_change must be given, and not both, got {got}")
        times = [change.at for change in self.schedule]
        if sorted(set(times)) != times:
            raise ValueError(f"schedule must have times that increase, got {times}")

    def not_by(self, end: float) -> Iterator[tuple[str, str]]:
        """Yield (place in the file, when) of what never came in a run that ended after `end` s."""
        for position, change in enumerate(self.schedule):
            yield from not_reached(f"reconfigure.schedule.{position}", [change.at], end)
        if self.on_change is not None and end < self.on_change.window:
            yield "reconfigure.on_change", f"at its first look, at {self.on_change.window:g} s"


def sliding(clients: Iterable[Client]) -> list[Client]:
    """Return the clients with variable role and chunk, in order."""
    return [client for client in clients if client.traits.slider is not None]


def check_reconfigure(options: Reconfigure, clients: Sequence[Client]) -> None:
    """Raise ScenarioError for positions that the clients cannot have."""
    members = sliding(clients)
    if not members:
        raise ScenarioError("has no effect: no client has role p_heavy or d_heavy")
    for position, change in enumerate(options.schedule):
        if change.num_p >= len(members):
            raise ScenarioError(
                f"schedule.{position}.num_p must be < {len(members)}, the clients with role "
                f"p_heavy or d_heavy, of which one stays d_heavy, got {change.num_p}"
            )
    for key, chunk in _chunks(options):
        for client in members:
            _check_chunk(client, key, chunk)


def _chunks(options: Reconfigure) -> Iterable[tuple[str, int]]:
    """Yield the keys of chunks that clients may get, and their tokens."""
    for position, change in enumerate(options.schedule):
        yield f"schedule.{position}.s_d", change.s_d
    if options.on_change is not None:
        yield "on_change.chunks", min(options.on_change.chunks)


def _check_chunk(client: Client, key: str, chunk: int) -> None:
    slider = client.traits.slider
    if slider is None or slider.chunk is None:
        found = slider.scheduler if slider else "none"
        raise ScenarioError(
            f"{client.name}: scheduler must be chunked with reconfigure, got {found}"
        )
    if chunk < slider.max_num_seqs:
        raise ScenarioError(
            f"{key} must be >= max_num_seqs of {client.name} ({slider.max_num_seqs}), since "
            f"every running request may need one token of a step, got {chunk}; lower max_num_seqs"
        )


class Seen(NamedTuple):
    """A request: its arrival, in seconds since the window began, and its prompt's tokens.

    answer: its tokens; None if it has not ended, or failed.
    """

    time: float
    prompt: int
    answer: int | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests of a window of so many seconds, in order; answers that ended in it.

    So long answers are under-represented, unless the window is much longer than they take.
    """

    seconds: float
    requests: tuple[Seen, ...]

    @property
    def answers(self) -> list[int]:
        """The tokens of the answers that are known."""
        return [one.answer for one in self.requests if one.answer is not None]

    @property
    def figures(self) -> tuple[float, float, float] | None:
        """Requests per second, and the mean tokens of a prompt and of an answer.

        None where no answer is known.
        """
        answers, num_requests = self.answers, len(self.requests)
        if not answers:
            return None
        prompts = sum([one.prompt for one in self.requests])
        return num_requests / self.seconds, prompts / num_requests, sum(answers) / len(answers)

    def rows(self) -> list[TraceRow]:
        """Return the requests as a workload, the first at 0 s.

        Requests whose answer length is unknown take the known lengths, one after the other. Raises
        ValueError if none is known.
        """
        answers, first = cycle(self.answers), self.requests[0].time
        if self.figures is None:
            raise ValueError("requests must have one at least whose answer is known")
        return [
            TraceRow(prompt, max(next(answers) if answer is None else answer, 1), time - first)
            for time, prompt, answer in self.requests
        ]


def differ(seen: tuple[float, ...], known: tuple[float, ...], part: float) -> bool:
    """Tell whether any figure differs by more than a share from its reference."""
    return any(abs(s - k) > part * k for s, k in zip(seen, known, strict=True))


class TrafficWatch:
    """Counts requests sent and served.

    Children of requests do not count: they are part of the answer.
    """

    def __init__(self) -> None:
        self._begin = 0.0
        self._requests: dict[Request, Seen] = {}

    def begin(self, now: float) -> None:
        """Begin a window, in seconds of the run."""
        self._begin = now
        self._requests.clear()

    def sent(self, request: Request, now: float) -> None:
        """Note a request that is sent for the first time."""
        if request.parent_id is None:
            self._requests[request] = Seen(now - self._begin, request.num_prompt_tokens)

    def served(self, request: Request, num_output_tokens: int) -> None:
        """Note a request with a complete answer."""
        if request in self._requests:
            self._requests[request] = self._requests[request]._replace(answer=num_output_tokens)

    def seen(self, now: float) -> Traffic:
        """Return the requests and answers since the window began."""
        return Traffic(now - self._begin, tuple(self._requests.values()))


Search = Callable[[Traffic, Sequence[Sliders]], Sliders]
"""Returns the best of some positions for what was seen; the first of equals."""

_Position = tuple[Literal["p_heavy", "d_heavy"], int]  # a client's role and chunk


class Reconfigurer:
    """Moves the sliders of a run: at the times of a schedule, or after a search.

    search: finds the positions; None if the options need no search.
    watch: counts requests sent and served, if the options need it.
    moved: (seconds, sliders) of each change.
    """

    def __init__(
        self,
        options: Reconfigure,
        env: Environment,
        clients: Sequence[Client],
        policy: FlowPolicy,
        search: Search | None,
    ) -> None:
        self.moved: list[tuple[float, Sliders]] = []
        self.watch: TrafficWatch | None = None
        self._env = env
        self._policy = policy
        self._clients = sliding(clients)
        self._positions = [_position(client) for client in self._clients]
        if options.on_change is not None and search is not None:
            self.watch = TrafficWatch()
            env.start(self._look(options.on_change, search, self.watch))
        elif options.schedule:
            env.start(self._follow(options.schedule))

    def _follow(self, schedule: Sequence[Change]) -> Generator[Event, Any, None]:
        for change in schedule:
            yield self._env.at(change.at, CHANGE)
            num_d = len(self._clients) - change.num_p
            self._move(Sliders(num_p=change.num_p, num_d=num_d, s_p=change.s_p, s_d=change.s_d))

    def _look(
        self, options: OnChange, search: Search, watch: TrafficWatch
    ) -> Generator[Event, Any, None]:
        """Look at every window, until no other event is left."""
        env, known = self._env, None  # the figures of the last search
        watch.begin(env.now)
        while True:
            yield env.at(env.now + options.window, CHANGE)
            if env.only_has(CHANGE):
                return
            seen = watch.seen(env.now)
            figures = seen.figures
            if known is None:
                known = figures
            elif figures is not None and differ(figures, known, options.change):
                known, best = figures, search(seen, self._choices(options.chunks))
                yield env.at(env.now + options.delay, CHANGE)
                self._move(best)
            watch.begin(env.now)

    def _choices(self, chunks: Sequence[int]) -> list[Sliders]:
        """Return hybrid positions: the present one, and those with the given chunk sizes.

        Positions for which fewer clients change their role come first.
        """
        num_p = [role for role, _ in self._positions].count("p_heavy")
        found = [s for s in all_sliders(len(self._clients), chunks) if s.design == "hybrid"]
        found.sort(key=lambda sliders: abs(sliders.num_p - num_p))
        now = self._sliders()
        return found if now is None else [now, *(one for one in found if one != now)]

    def _sliders(self) -> Sliders | None:
        """Return where the sliders are; None where clients of one role have different chunks."""
        chunks: dict[str, set[int]] = {"p_heavy": set(), "d_heavy": set()}
        for role, chunk in self._positions:
            chunks[role].add(chunk)
        if any(len(sizes) != 1 for sizes in chunks.values()):
            return None
        num_p = [role for role, _ in self._positions].count("p_heavy")
        return Sliders(
            num_p=num_p,
            num_d=len(self._positions) - num_p,
            s_p=chunks["p_heavy"].pop(),
            s_d=chunks["d_heavy"].pop(),
        )

    def _move(self, sliders: Sliders) -> None:
        """Let clients change that are not yet as the sliders say."""
        later = list(self._wanted(sliders))
        if later == self._positions:
            return
        for client, before, position in zip(self._clients, self._positions, later, strict=True):
            if position == before:
                continue
            role, chunk = position
            client.turn(role, chunk, self._policy.flow(role))
        self._positions = later
        self.moved.append((self._env.now, sliders))

    def _wanted(self, sliders: Sliders) -> Iterator[_Position]:
        """Yield the new role and chunk of each client; as few as possible change their role.

        The first D-heavy ones become P-heavy, and the last P-heavy ones D-heavy.
        """
        numbers = range(len(self._positions))
        order = sorted(numbers, key=lambda n: self._positions[n][0] != "p_heavy")
        p_heavy = set(order[: sliders.num_p])
        for number in numbers:
            yield ("p_heavy", sliders.s_p) if number in p_heavy else ("d_heavy", sliders.s_d)


def _position(client: Client) -> _Position:
    role, slider = client.traits.role, client.traits.slider
    if role not in ("p_heavy", "d_heavy") or slider is None or slider.chunk is None:
        raise InvariantError(f"{client.name} has no slider, its role is {role}")
    return role, slider.chunk
