"""Moves TaiChi's sliders while a run goes on."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Literal

from simpy.events import Event

from mist_sim.clients import Client
from mist_sim.core.flowing import FlowPolicy
from mist_sim.core.sliders import Sliders, all_sliders
from mist_sim.environment import CHANGE, Environment
from mist_sim.errors import InvariantError
from mist_sim.reconfiguration.reconfiguration_options import Change, OnChange, Reconfigure
from mist_sim.reconfiguration.slider_rules import sliding
from mist_sim.reconfiguration.traffic import Traffic, TrafficWatch, differ

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
