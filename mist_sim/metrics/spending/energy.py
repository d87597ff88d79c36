"""Energy of a run, of its clients and of its requests, from the records of steps.

Computed after the run. Each run of steps is priced by its work and its time; the rest of the energy
is idle. A step's energy and GPU time are shared equally by the tokens that it computes. Shares of
decodes are known by request. Shares of prompts, recomputation after preemptions included, are
summed by client and divided by the prompt tokens that each request computed there. So the energy of
requests and of idle time add up to the energy drawn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np

from mist_sim.core.states import State
from mist_sim.hardware.gpu_group import GpuGroup, GpuMachine, without_watts
from mist_sim.hardware.work import StepCounts
from mist_sim.metrics.clients.lives import POWERED, RESERVED, Lives
from mist_sim.metrics.latency import Array
from mist_sim.metrics.records.recorder import ColumnRecorder
from mist_sim.metrics.records.together import Tracks, joined_tracks, merged
from mist_sim.metrics.requests.rows import RequestRows
from mist_sim.metrics.spending.spent import Spent
from mist_sim.units import Watts, require_quantities

_PIECE = 65_536  # steps looked at together: few enough for a processor's cache
_WORK = (
    "num_steps",
    "num_chunks",
    "num_prefill_tokens",
    "num_decodes",
    "context_sum",
    "chunk_context_sum",
    "num_prefill_pairs",
    "busy",
)
"""Columns of steps on which the work of a run depends."""


@dataclass(frozen=True, kw_only=True)
class PowerOptions:
    """Power of the machines without their GPUs.

    host: watts of processors, memory, fans and network per GPU, constant over time; none by
        default, as in measurements of GPUs alone.
    pue: power usage effectiveness, the building's power divided by the machines' power (>= 1).

    Raises ValueError for values outside these ranges.
    """

    host: Watts = 0.0
    pue: float = 1.0

    def __post_init__(self) -> None:
        require_quantities(self)
        if not 0 <= self.host < np.inf:
            raise ValueError(f"host must be finite and >= 0 W, got {self.host}")
        if not 1 <= self.pue < np.inf:
            raise ValueError(f"pue must be finite and >= 1, got {self.pue}")


@dataclass(frozen=True)
class Runs:
    """The runs of steps of one track, as far as one group of GPUs computed them; one item each.

    group: number of that in its machine. start, end: seconds. gpu_seconds, energy: of all its GPUs
    at work. decodes: the share of the decodes in the tokens. num_steps, num_decodes: as recorded.
    """

    track: int
    group: int
    start: Array
    end: Array
    gpu_seconds: Array
    energy: Array
    decodes: Array
    num_steps: Array
    num_decodes: Array


class Ledger:
    """Energy and GPU seconds of a run, by client and request.

    Where a client has several groups of GPUs, each works, waits and costs for itself.

    machines: of each client, None for one without GPUs. machines_by_layout: of each of its layouts,
        by the client's number, where it changed them; all have the same GPUs.
    """

    def __init__(
        self,
        recorder: ColumnRecorder,
        machines: Sequence[GpuMachine | None],
        options: PowerOptions,
        machines_by_layout: Mapping[int, Sequence[GpuMachine | None]] = MappingProxyType({}),
    ) -> None:
        self._by_layout = machines_by_layout
        self._recorder = recorder
        self.machines = machines
        self.options = options
        self._known: dict[int, tuple[Spent, tuple[Spent, ...]]] = {}
        self._latest: tuple[int, dict[int, list[Runs]]] = -1, {}  # of which tracks alike
        self._known_after: dict[tuple[int, float], tuple[float, list[float]]] = {}

    @cached_property
    def watts_unknown(self) -> list[str]:
        """GPUs of which there are no watts, since their power is not known."""
        return without_watts(self.machines)

    @cached_property
    def end(self) -> float:
        """End of the last request or step, seconds."""
        requests = self._recorder.requests.columns()
        ends = [times[-1] for times in self._recorder.step_ends if len(times)]
        return float(max([*ends, requests["finished_at"].max(initial=0.0)]))

    @cached_property
    def lives(self) -> Lives:
        """Times in which clients were up."""
        return Lives(self._recorder, self.end)

    def groups(self, client_id: int) -> Sequence[GpuGroup]:
        """Return the groups of a client's GPUs; empty without any."""
        machine = self.machines[client_id]
        return machine.groups if machine is not None else ()

    def reserved_after(
        self, begin: float, client_id: int, group: int, states: Collection[State] = RESERVED
    ) -> float:
        """Return the GPU seconds that a group of a client's spent in some states, from a time."""
        num_gpus = self.groups(client_id)[group].num_gpus
        return num_gpus * self.lives.seconds(client_id, states, begin)

    def energy(self, client_id: int) -> Spent:
        """Return the joules of a client in the whole run."""
        return self._spent(client_id)[0]

    def gpu_seconds(self, client_id: int) -> Sequence[Spent]:
        """Return the GPU time of a client in the whole run, group by group."""
        return self._spent(client_id)[1]

    def energy_after(self, begin: float) -> float:
        """Return the joules of all clients from a time on; a run's come evenly over its steps."""
        return float(sum(sum(self.energy_of(k, begin)) for k in range(len(self.machines))))

    def idle_energy_after(self, begin: float) -> float:
        """Return the joules of GPUs that wait, from a time on."""
        return float(sum(self.energy_of(k, begin)[1] for k in range(len(self.machines))))

    def busy_after(self, begin: float, client_id: int, group: int) -> float:
        """Return the GPU seconds in steps of a group of a client's from a time on."""
        return self._after(begin, client_id)[1][group]

    def energy_of(self, client_id: int, begin: float) -> tuple[float, float]:
        """Return the joules of a client in steps, and idle, from a time on."""
        in_steps, busy = self._after(begin, client_id)
        idle = 0.0
        for group, seconds in zip(self.groups(client_id), busy, strict=True):
            gpu_seconds = group.num_gpus * self.lives.seconds(client_id, POWERED, begin)
            idle += max(gpu_seconds - seconds, 0.0) * self.idle_watts(group)
        return in_steps, idle

    def _after(self, begin: float, client_id: int) -> tuple[float, list[float]]:
        """Return a client's joules and each group's GPU seconds in steps from a time on."""
        key = client_id, begin
        if key not in self._known_after:
            runs = self.runs(client_id)
            joules = float(sum((r.energy * _share_after(r, begin)).sum() for r in runs))
            busy = []
            for number in range(len(self.groups(client_id))):
                mine = [r for r in runs if r.group == number]
                busy.append(
                    float(sum((r.gpu_seconds * _share_after(r, begin)).sum() for r in mine))
                )
            self._known_after[key] = joules, busy
        return self._known_after[key]

    def idle_watts(self, group: GpuGroup) -> float:
        """Return the watts of a GPU that waits, with its part of the host and the building."""
        return float(self._watts(group.idle_watts))

    def _watts(self, watts: Any) -> Any:
        """Return the watts of a GPU with its part of the host and the building."""
        return (watts + self.options.host) * self.options.pue

    def runs(self, client_id: int) -> list[Runs]:
        """Return the runs of a client, track by track, and there by group of GPUs.

        Computed anew for each client and not kept, since those of all take more than the records.
        """
        found = []
        for track in self._recorder.tracks_of(client_id):
            if (alike := self._alike_of.get(track)) is None:
                continue
            if alike != self._latest[0]:
                machine, tracks = self._alike[alike]
                these = self._of_tracks(tracks, machine)
                self._latest = alike, dict(zip(tracks, these, strict=True))
            found += self._latest[1][track]
        return found

    @cached_property
    def _alike(self) -> list[tuple[GpuMachine, list[int]]]:
        """The tracks, those of clients alike together: of many, each has few runs."""
        found, num_steps = list[tuple[GpuMachine, list[int]]](), 0
        for client_id, machine in enumerate(self.machines):
            if machine is None:
                continue
            for track in self._recorder.tracks_of(client_id):
                its = self._machine_of(track, machine)
                length = len(self._recorder.step_ends[track])
                if not found or its != found[-1][0] or num_steps + length > _PIECE:
                    found.append((its, []))
                    num_steps = 0
                found[-1][1].append(track)
                num_steps += length
        return found

    @cached_property
    def _alike_of(self) -> dict[int, int]:
        """Which of `_alike` each track is in."""
        return {track: k for k, (_, tracks) in enumerate(self._alike) for track in tracks}

    def _machine_of(self, track: int, machine: GpuMachine) -> GpuMachine:
        """Return the machine that computed a track's steps. machine: the client's first one."""
        client_id = self._recorder.track_clients[track]
        later = self._by_layout.get(client_id)
        found = (later and later[self._recorder.track_layouts[track]]) or machine
        of_track = getattr(found, "of_track", None)  # a `MachineByTrack`, asked fast
        if of_track is None:
            return found
        its: GpuMachine = of_track(self._recorder.tracks_of(client_id).index(track))
        return its

    def _of_tracks(self, tracks: Sequence[int], machine: GpuMachine) -> Iterator[list[Runs]]:
        """Yield the runs of each of some tracks, one item for each group."""
        joined = merged(self._recorder, joined_tracks(self._recorder, tracks))
        rows: dict[str, Any] = {name: joined.runs[name].astype(float) for name in _WORK}
        given = self._tokens_given(joined, rows)
        counts = _step_counts(rows, given, machine.num_drafts)
        tokens = counts.num_queries + counts.num_prefill_tokens
        decodes = counts.num_queries / np.maximum(tokens, 1)
        works = [group.work(counts, rows["busy"]) for group in machine.groups]
        spent = [(each.seconds, self._watts(each.watts) * each.seconds) for each in works]
        periods = joined.runs["start"], joined.run_ends()
        steps = joined.runs["num_steps"], joined.runs["num_decodes"]
        for track, (first, last) in zip(tracks, pairwise(joined.run_cuts), strict=True):
            yield [
                Runs(
                    track,
                    number,
                    *(each[first:last] for each in (*periods, *part, decodes, *steps)),
                )
                for number, part in enumerate(spent)
            ]

    def _tokens_given(self, joined: Tracks, rows: Mapping[str, Any]) -> Array:
        """Return the tokens that each run of some tracks gave its decodes in all.

        rows: their columns as decimal numbers.
        """
        if not any(self._recorder.step_tokens[track] for track in joined.numbers):
            return np.asarray(rows["num_steps"] * rows["num_decodes"])
        each = np.concatenate([self._recorder.decode_tokens(track) for track in joined.numbers])
        given = np.concatenate([[0], np.cumsum(each)])
        ends = np.cumsum(rows["num_steps"]).astype(np.int64)
        return np.diff(given[ends].astype(float), prepend=0.0)

    def _spent(self, client_id: int) -> tuple[Spent, tuple[Spent, ...]]:
        """Return the joules of a client and the GPU seconds by group, which are computed once."""
        if client_id not in self._known:
            self._known[client_id] = self._spend(client_id)
        return self._known[client_id]

    def _spend(self, client_id: int) -> tuple[Spent, tuple[Spent, ...]]:
        """Return the joules of a client, and the GPU seconds of each of its groups."""
        if self.machines[client_id] is None:
            return Spent.of(np.zeros(len(self._rows)), 0.0), ()
        prompts, all_runs = self._prompt_weights(client_id), self.runs(client_id)
        energy = self._by_token(all_runs, "energy", prompts)
        idle, seconds = 0.0, []
        for number, group in enumerate(self.groups(client_id)):
            busy = self.busy_after(0.0, client_id, number)
            powered = group.num_gpus * self.lives.seconds(client_id, POWERED)
            idle += max(powered - busy, 0.0) * self.idle_watts(group)
            unused = max(self.reserved_after(0.0, client_id, number) - busy, 0.0)
            runs = [each for each in all_runs if each.group == number]
            seconds.append(Spent.of(self._by_token(runs, "gpu_seconds", prompts), unused))
        return Spent.of(energy, idle), tuple(seconds)

    def _by_token(self, runs: list[Runs], name: str, prompts: Array) -> Array:
        """Return the totals of a client's runs, by request. prompts: weights of the prompts."""
        to_decodes = float(sum((getattr(r, name) * r.decodes).sum() for r in runs))
        to_prompts = float(sum((getattr(r, name) * (1 - r.decodes)).sum() for r in runs))
        decodes = sum((self._decode_weights(r, name) for r in runs), np.zeros(len(prompts)))
        of_decodes = _shared_out(to_decodes, decodes, prompts)
        return np.asarray(of_decodes + _shared_out(to_prompts, prompts, decodes))

    def _decode_weights(self, runs: Runs, name: str) -> Array:
        """Return the totals of a track's decodes by request; those of a step share equally."""
        tokens = self._recorder.tokens.columns()
        mine = tokens["track"] == runs.track
        each = getattr(runs, name) * runs.decodes / np.maximum(runs.num_decodes, 1)
        steps = np.concatenate([[0.0], np.cumsum(runs.num_steps)])
        up_to = np.concatenate([[0.0], np.cumsum(each)])
        stays = np.interp(tokens["end_step"][mine], steps, up_to)
        stays -= np.interp(tokens["first_step"][mine], steps, up_to)
        return self._rows.added(tokens["request_id"][mine], stays)

    def _prompt_weights(self, client_id: int) -> Array:
        """Return the prompt tokens that each request computed at a client, or else its visits."""
        visits = self._recorder.visits.columns()
        mine = visits["client_id"] == client_id
        weights = visits["num_input_tokens"][mine].astype(float)
        if not weights.any():
            weights = np.ones(len(weights))
        return self._rows.added(visits["request_id"][mine], weights)

    @cached_property
    def _rows(self) -> RequestRows:
        return RequestRows(self._recorder)


def _share_after(runs: Runs, begin: float) -> Array:
    """Return the share of each run that lies after a time."""
    period = runs.end - runs.start
    after = np.clip(runs.end - begin, 0.0, period)
    return np.divide(after, period, out=np.zeros(len(period)), where=period > 0)


def _shared_out(amount: float, weights: Array, otherwise: Array) -> Array:
    """Return an amount in proportion to weights, or to others where all of these are 0."""
    for candidate in (weights, otherwise):
        if (total := float(candidate.sum())) > 0:
            return candidate * (amount / total)
    return np.zeros(len(weights))


def _step_counts(rows: Mapping[str, Any], given: Array, num_drafts: int) -> StepCounts:
    """Return the tokens of runs, summed over the steps of each. given: tokens of its decodes."""
    steps, new, decodes = rows["num_steps"], rows["num_prefill_tokens"], rows["num_decodes"]
    queries = decodes * (1 + num_drafts)
    return StepCounts(
        num_steps=steps,
        num_prefill_tokens=new,
        num_samples=rows["num_chunks"] + queries,
        num_queries=queries,
        prefill_keys=steps * rows["chunk_context_sum"] + new * steps * (steps + 1) / 2,
        prefill_pairs=rows["num_prefill_pairs"],
        num_decodes=decodes,
        decode_keys=steps * (rows["context_sum"] + queries) + given * (steps - 1) / 2,
    )
