"""Energy and dollars of a run, and their columns in its results.

Energy of a run, of its clients and of its requests, from the records of steps.

Computed after the run. Each run of steps is priced by its work and its time; the rest of the energy
is idle. A step's energy and GPU time are shared equally by the tokens that it computes. Shares of
decodes are known by request. Shares of prompts, recomputation after preemptions included, are
summed by client and divided by the prompt tokens that each request computed there. So the energy of
requests and of idle time add up to the energy drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import isclose
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from mist_sim.checks import Checked, NotNegative, Range, check_fields
from mist_sim.core.recorder import Recorder
from mist_sim.core.views import STATES
from mist_sim.errors import ScenarioError
from mist_sim.hardware.devices import is_its_device
from mist_sim.hardware.gpu_group import GpuGroup, GpuMachine, num_gpus, without_watts
from mist_sim.hardware.prices import Price, PriceKind, check_provider, price_of
from mist_sim.hardware.work import StepCounts
from mist_sim.metrics.clients import POWERED, RESERVED, Lives
from mist_sim.metrics.goodput import Slo
from mist_sim.metrics.latency import Array
from mist_sim.metrics.requests import Counted, Mask, RequestRows, samples
from mist_sim.metrics.stats import share
from mist_sim.metrics.tables import Columns, column, in_order
from mist_sim.metrics.together import Tracks, joined_tracks, merged
from mist_sim.units import DollarsPerKwh, DollarsPerMillionTokens, Watts


@dataclass(frozen=True)
class Spent:
    """GPU seconds, joules or dollars of one client's steps, by request, and of its idle time.

    Kept for the requests that had a part in it: a run has many clients, and each request few.

    rows, values: the requests with a part, in the order of the recorder's, and their parts.
    num_requests: of the run. in_steps: sum of the parts. idle: while no step ran. GPUs of a failed
        client draw nothing and stay reserved; GPUs of a client that is off do neither.
    """

    rows: NDArray[np.int32]
    values: Array
    num_requests: int
    in_steps: float
    idle: float

    @classmethod
    def of(cls, by_request: Array, idle: float) -> Spent:
        """Return these parts of all requests, in the order of the recorder's, and of idle time."""
        rows = np.flatnonzero(by_request).astype(np.int32)
        return cls(rows, by_request[rows], len(by_request), float(by_request.sum()), idle)

    @property
    def by_request(self) -> Array:
        """The parts of all requests, in the order of the recorder's; a new array."""
        found = np.zeros(self.num_requests)
        found[self.rows] = self.values
        return found

    @property
    def total(self) -> float:
        """All of it."""
        return self.in_steps + self.idle


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
class PowerOptions(Checked):
    """Power of the machines without their GPUs.

    host: watts of processors, memory, fans and network per GPU, constant over time; none by
        default, as in measurements of GPUs alone.
    pue: power usage effectiveness, the building's power divided by the machines' power (>= 1).

    Raises ValueError for values outside these ranges.
    """

    host: NotNegative[Watts] = 0.0
    pue: Annotated[float, Range("[1, inf)")] = 1.0


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
        recorder: Recorder,
        machines: Sequence[GpuMachine | None],
        options: PowerOptions,
        machines_by_layout: Mapping[int, Sequence[GpuMachine | None]] = MappingProxyType({}),
    ) -> None:
        self._by_layout = machines_by_layout
        self._recorder = recorder
        self.machines = machines
        self.options = options
        self._latest: tuple[int, dict[int, list[Runs]]] = -1, {}  # of which tracks alike
        self._known: dict[int, tuple[Spent, tuple[Spent, ...]]] = {}
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

    def energy(self, client_id: int) -> Spent:
        """Return the joules of a client in the whole run."""
        return self._spent(client_id)[0]

    def gpu_seconds(self, client_id: int) -> Sequence[Spent]:
        """Return the GPU time of a client in the whole run, group by group."""
        return self._spent(client_id)[1]

    def energy_after(self, begin: float) -> float:
        """Return the joules of all clients from a time on; a run's come evenly over its steps."""
        return float(sum(sum(self.energy_of(k, begin)) for k in range(len(self.machines))))

    def energy_of(self, client_id: int, begin: float) -> tuple[float, float]:
        """Return the joules of a client in steps, and idle, from a time on."""
        in_steps, busy = self.in_steps(client_id, begin)
        powered, idle = self.lives.seconds(client_id, POWERED, begin), 0.0
        for group, seconds in zip(self.groups(client_id), busy, strict=True):
            idle += max(group.num_gpus * powered - seconds, 0.0) * self.idle_watts(group)
        return in_steps, idle

    def in_steps(self, client_id: int, begin: float) -> tuple[float, list[float]]:
        """Return a client's joules, and each group's GPU seconds, in steps from a time on."""
        key = client_id, begin
        if key not in self._known_after:
            joules, busy = 0.0, [0.0 for _ in self.groups(client_id)]
            for runs in self.runs(client_id):
                share_after = _share_after(runs, begin)
                joules += float((runs.energy * share_after).sum())
                busy[runs.group] += float((runs.gpu_seconds * share_after).sum())
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
        reserved, seconds = self.lives.seconds(client_id, RESERVED), []
        groups = zip(self.groups(client_id), self.in_steps(client_id, 0.0)[1], strict=True)
        for number, (group, busy) in enumerate(groups):
            unused = max(group.num_gpus * reserved - busy, 0.0)
            runs = [each for each in all_runs if each.group == number]
            seconds.append(Spent.of(self._by_token(runs, "gpu_seconds", prompts), unused))
        energy = self._by_token(all_runs, "energy", prompts)
        return Spent.of(energy, self.energy_of(client_id, 0.0)[1]), tuple(seconds)

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


HOURS_A_MONTH = 365 * 24 / 12
"""On average over a year."""

_HOUR = 3600.0
_KWH = 3.6e6  # joules
_MILLION = 1e6


@dataclass(frozen=True, kw_only=True)
class ApiPrices(Checked):
    """Prices of an API, in dollars a million tokens (>= 0).

    input: of prompts. output: of answers.
    cached_input: of prompt tokens that a prefix cache had; None: as `input`.

    Raises ValueError for negative prices.
    """

    input: NotNegative[DollarsPerMillionTokens]
    output: NotNegative[DollarsPerMillionTokens]
    cached_input: NotNegative[DollarsPerMillionTokens] | None = None


@dataclass(frozen=True, kw_only=True)
class CostOptions:
    """Prices of machines, electricity and APIs.

    price: kind of the catalog's offers to use where a client has no gpu_price: on_demand, spot, or
        reserved_1y and reserved_3y, for a commitment of one or three years.
    provider: provider of the offers; None: the median of all providers.
    billing: reservation pays for all GPUs from the start of the run to its end, but not while a
        client is off, unless they are reserved for years; use for the time that they spend in
        steps.
    electricity: price of the electricity of the machines, if it is paid separately; none by
        default.
    api: prices of an API for the same requests.

    Raises ValueError for negative prices, and for a commitment that is billed by use, and
    ScenarioError for a provider without offers.
    """

    price: PriceKind = "on_demand"
    provider: str | None = None
    billing: Literal["reservation", "use"] = "reservation"
    electricity: NotNegative[DollarsPerKwh] = 0.0
    api: ApiPrices | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.is_commitment and self.billing == "use":
            raise ValueError(
                f"billing must be reservation with price {self.price}, which is paid for whether "
                "it is used or not, got use"
            )
        if self.provider is not None:
            check_provider(self.provider)

    @property
    def is_commitment(self) -> bool:
        """Whether GPUs are reserved for years, and paid for while their client is off, too."""
        return self.price in ("reserved_1y", "reserved_3y")


class Bill:
    """Dollars of a run, by client and request.

    prices: of one GPU per hour, by client and then by group; empty for a client without GPUs.
    Raises ScenarioError if a machine has no price.
    """

    def __init__(self, ledger: Ledger, options: CostOptions) -> None:
        self._ledger = ledger
        self.options = options
        self.prices = gpu_prices(ledger.machines, options)

    def cost(self, client_id: int) -> Spent:
        """Return the dollars of a client in the whole run, by request and idle.

        By use, waiting GPUs cost nothing, nor does their electricity.
        """
        ledger, energy, power = self._ledger, self._ledger.energy(client_id), self._per_joule
        by_request, idle = np.zeros(energy.num_requests), 0.0
        for seconds, rent, paid, busy in zip(
            ledger.gpu_seconds(client_id),
            self._rents(client_id),
            self._paid_after(client_id, 0.0),
            ledger.in_steps(client_id, 0.0)[1],
            strict=True,
        ):
            by_request = by_request + seconds.by_request * rent
            idle += max(paid - busy, 0.0) * rent
        if not power:
            return Spent.of(by_request, idle)
        if self._pays_idle:
            idle += energy.idle * power
        return Spent.of(by_request + energy.by_request * power, idle)

    def cost_after(self, begin: float) -> float:
        """Return the dollars of all clients from a time on."""
        total = 0.0
        for client_id in self._with_gpus:
            paid = zip(self._paid_after(client_id, begin), self._rents(client_id), strict=True)
            rents = sum(seconds * rent for seconds, rent in paid)
            total += rents + self._joules_paid(client_id, begin) * self._per_joule
        return total

    def electricity_after(self, begin: float) -> float:
        """Return the part of `cost_after` that is electricity."""
        return sum(self._joules_paid(each, begin) for each in self._with_gpus) * self._per_joule

    @property
    def _with_gpus(self) -> list[int]:
        return [k for k, machine in enumerate(self._ledger.machines) if machine is not None]

    def _joules_paid(self, client_id: int, begin: float) -> float:
        if not self._per_joule:
            return 0.0
        in_steps, idle = self._ledger.energy_of(client_id, begin)
        return in_steps + idle if self._pays_idle else in_steps

    def _paid_after(self, client_id: int, begin: float) -> list[float]:
        """Return the GPU seconds of each group that have to be paid for, from a time on."""
        ledger = self._ledger
        if not self._pays_idle:
            return ledger.in_steps(client_id, begin)[1]
        states = STATES if self.options.is_commitment else RESERVED
        seconds = ledger.lives.seconds(client_id, states, begin)
        return [group.num_gpus * seconds for group in ledger.groups(client_id)]

    @property
    def _pays_idle(self) -> bool:
        return self.options.billing == "reservation"

    @property
    def _per_joule(self) -> float:
        """Dollars of a joule."""
        return self.options.electricity / _KWH

    def _rents(self, client_id: int) -> list[float]:
        """Return the dollars of a GPU of each group a second."""
        return [price.dollars / _HOUR for price in self.prices[client_id]]

    def mean_price(self, client_id: int) -> float:
        """Return the dollars of a client's GPU an hour, on average; 0 for one without GPUs."""
        prices = [price.dollars for price in self.prices[client_id]]
        if len(set(prices)) <= 1:
            return prices[0] if prices else 0.0
        groups = self._ledger.groups(client_id)
        dollars = sum(p * group.num_gpus for p, group in zip(prices, groups, strict=True))
        return dollars / sum(group.num_gpus for group in groups)

    def told(self, client_id: int) -> str:
        """Return a printable line on the price of its GPUs and its origin; empty without GPUs."""
        prices = dict.fromkeys(f"{p.dollars:g} $/h, {p.origin}" for p in self.prices[client_id])
        return "; ".join(prices)


def gpu_prices(
    machines: Sequence[GpuMachine | None], options: CostOptions
) -> list[tuple[Price, ...]]:
    """Return the price of one GPU per hour, by client and group; empty for clients without GPUs.

    Raises ScenarioError for a GPU whose price is neither given nor in the catalog.
    """
    return [
        tuple(_price(group, options) for group in machine.groups) if machine else ()
        for machine in machines
    ]


def rent_summary(
    machines: Sequence[GpuMachine | None], options: CostOptions | None
) -> dict[str, Any]:
    """Return the dollars an hour of all GPUs, and where their prices come from.

    options: of the scenario; None: offers on demand. Empty without GPUs, and where one has no
    price.
    """
    several = Counter(map(id, machines))  # copies of a client share their machine
    kinds = list({id(each): each for each in machines if each is not None}.values())
    try:
        prices = gpu_prices(kinds, options or CostOptions())
    except ScenarioError:
        return {}
    origins: dict[str, None] = {}
    dollars = 0.0
    for machine, mine in zip(kinds, prices, strict=True):
        for price, group in zip(mine, machine.groups, strict=True):
            dollars += several[id(machine)] * price.dollars * group.num_gpus
            origins[f"{price.dollars:g} $/h, {price.origin}"] = None
    return {"usd_per_hour": dollars, "price_origins": list(origins)} if dollars else {}


def billed_per_hour(summary: Mapping[str, Any]) -> float | None:
    """Return the dollars an hour that a run was billed; without a bill the rent of all its GPUs.

    They differ where GPUs are paid by use, start and stop, or where electricity is paid. summary:
    of a run. None if neither is known.
    """
    rent: float | None = summary.get("usd_per_hour")
    dollars = summary.get("cost_usd")
    if dollars is None or not summary["duration"]:
        return rent
    bill = float(dollars) * _HOUR / summary["duration"]
    return rent if rent is not None and isclose(bill, rent, rel_tol=1e-6) else bill


def dollars_an_hour(machines: Sequence[GpuMachine | None], options: CostOptions) -> float:
    """Return the dollars of all GPUs an hour. Raises ScenarioError for a GPU without a price."""
    return float(
        sum(
            price.dollars * group.num_gpus
            for machine, prices in zip(machines, gpu_prices(machines, options), strict=True)
            for price, group in zip(prices, machine.groups if machine else (), strict=True)
        )
    )


def _price(group: GpuGroup, options: CostOptions) -> Price:
    if group.price is not None:
        return Price(group.price, "given")
    gpu = group.gpu
    if not is_its_device(gpu):
        raise ScenarioError(
            f"gpu_price must be given for {gpu.name}: it is a GPU of your own, which has none of "
            "the catalog's prices"
        )
    price = price_of(gpu.based_on, options.price, options.provider)
    if gpu.name == gpu.based_on:
        return price
    return replace(price, origin=f"that of {gpu.based_on}, on which it is based: {price.origin}")


def api_cost(prices: ApiPrices, requests: Mapping[str, Any]) -> Array:
    """Return an API's price of each request, in dollars; 0 for failed requests.

    requests: the recorder's columns. Prompt tokens found in a prefix cache at the first admission
        count as cached.
    """
    cached = np.minimum(requests["num_cached_tokens"], requests["num_prompt_tokens"])
    cached_price = prices.input if prices.cached_input is None else prices.cached_input
    dollars = (
        (requests["num_prompt_tokens"] - cached) * prices.input
        + cached * cached_price
        + requests["num_output_tokens"] * prices.output
    )
    return np.asarray(np.where(requests["status"] == 0, dollars, 0.0) / _MILLION)


class OfSpending(TypedDict, total=False):
    """Joules and dollars of runs on GPUs that are known, and where their prices come from."""

    power_unknown: list[str]
    energy_j: float
    idle_energy_j: float
    average_power_w: float
    energy_per_output_token_j: float
    good_tokens_per_j: float
    power_estimates: dict[str, str]
    cost_usd: float
    cost_per_million_output_tokens_usd: float
    electricity_cost_usd: float
    good_tokens_per_usd: float
    api_cost_usd: float
    api_cost_per_million_output_tokens_usd: float
    prices: dict[str, str]
    mean_usd_per_hour: float
    usd_per_hour: float
    price_origins: list[str]


def spending_summary(
    run: Counted,
    ledger: Ledger,
    bill: Bill | None,
    slo: Slo,
    summary: dict[str, Any],
    client_names: Sequence[str],
) -> dict[str, Any]:
    """Return energy and cost from the end of the warm-up on; empty without GPUs.

    summary: the run's summary, whose output tokens they are divided by.
    """
    if not any(ledger.machines):
        return {}
    warmup, num_tokens = run.warmup, summary["output_throughput"] * summary["duration"]
    num_good = None
    if slo.judges_requests:
        num_good = int(run.c["num_output_tokens"][_good(run, slo)].sum())
    found: dict[str, Any] = {}
    if not ledger.watts_unknown:
        energies = [ledger.energy_of(k, warmup) for k in range(len(ledger.machines))]
        energy = float(sum(sum(each) for each in energies))
        found = {
            "energy_j": energy,
            "idle_energy_j": float(sum(idle for _, idle in energies)),
            "average_power_w": share(energy, ledger.end - warmup),
            "energy_per_output_token_j": share(energy, num_tokens),
            **({} if num_good is None else {"good_tokens_per_j": share(num_good, energy)}),
            "power_estimates": {
                name: machine.watts_origin
                for name, machine in zip(client_names, ledger.machines, strict=True)
                if machine is not None
            },
        }
    if bill is None:
        return found
    cost = bill.cost_after(warmup)
    found["cost_usd"] = cost
    found["cost_per_million_output_tokens_usd"] = share(cost * _MILLION, num_tokens)
    if bill.options.electricity:
        found["electricity_cost_usd"] = bill.electricity_after(warmup)
    if num_good is not None:
        found["good_tokens_per_usd"] = share(num_good, cost)
    if bill.options.api is not None:
        asked = float(api_cost(bill.options.api, run.c)[run.ended].sum())
        of_these = float(run.c["num_output_tokens"][run.ended].sum())
        found["api_cost_usd"] = asked
        found["api_cost_per_million_output_tokens_usd"] = share(asked * _MILLION, of_these)
    if (hourly := billed_per_hour(summary | found)) is not None:
        found["mean_usd_per_hour"] = hourly
    found["prices"] = {name: told for k, name in enumerate(client_names) if (told := bill.told(k))}
    return found


def _good(run: Counted, slo: Slo) -> Mask:
    """Return which requests of users finished after the warm-up and kept all limits."""
    times = samples(run.c)
    kept = slo.kept(
        times["ttft"], times["tpot"], times["e2el"], run.c["num_gaps"], run.c.get("group")
    )
    return np.asarray(kept & run.ended)


def _good_tokens_of_clients(recorder: Recorder, slo: Slo, num_clients: int) -> Array:
    """Return the output tokens that good requests got from each client in the whole run."""
    run, visits = Counted(recorder), recorder.visits.columns()
    rows = RequestRows(recorder).of(visits["request_id"])
    mine = _good(run, slo)[rows] & (visits["queued_at"] >= run.c["sent_at"][rows])
    tokens = np.where(mine, visits["num_output_tokens"], 0)
    return np.asarray(np.bincount(visits["client_id"], tokens, num_clients), dtype=float)


def spent_on_requests(recorder: Recorder, ledger: Ledger, bill: Bill | None) -> Columns:
    """Return columns of the table of requests: joules, GPU seconds and dollars of each."""
    requests = recorder.requests.columns()
    clients = range(len(ledger.machines))
    nothing = np.zeros(len(requests["request_id"]))
    columns: dict[str, Any] = {}
    if any(ledger.machines):
        if not ledger.watts_unknown:
            columns["energy"] = sum((ledger.energy(k).by_request for k in clients), nothing)
        spent = (of_group for k in clients for of_group in ledger.gpu_seconds(k))
        columns["gpu_seconds"] = sum((of_group.by_request for of_group in spent), nothing)
    if bill is not None:
        columns["cost"] = sum((bill.cost(k).by_request for k in clients), nothing)
        if bill.options.api is not None:
            columns["api_cost"] = api_cost(bill.options.api, requests)
    order = np.argsort(requests["request_id"])
    return in_order(columns, order)


def spent_by_clients(recorder: Recorder, ledger: Ledger, bill: Bill | None, slo: Slo) -> Columns:
    """Return columns of the table of clients: their totals over the whole run, idle included."""
    clients = range(len(ledger.machines))
    if not any(ledger.machines):
        return {}
    columns: dict[str, Any] = {"num_gpus": [num_gpus(machine) for machine in ledger.machines]}
    if not ledger.watts_unknown:
        energy = [ledger.energy(k) for k in clients]
        columns |= {
            "energy": [spent.total for spent in energy],
            "idle_energy": [spent.idle for spent in energy],
            "average_power": [share(spent.total, ledger.end) for spent in energy],
            "power_estimate": [m.watts_origin if m else "-" for m in ledger.machines],
        }
    if bill is not None:
        costs = [bill.cost(k) for k in clients]
        columns["gpu_price"] = [bill.mean_price(k) for k in clients]
        columns["cost"] = [spent.total for spent in costs]
        columns["idle_cost"] = [spent.idle for spent in costs]
    if slo.judges_requests:
        good = _good_tokens_of_clients(recorder, slo, len(ledger.machines)).tolist()
        columns["good_tokens"] = [int(number) for number in good]
        for name, whole in (("j", "energy"), ("usd", "cost")):
            if whole in columns:
                each = zip(good, columns[whole], strict=True)
                columns[f"good_tokens_per_{name}"] = [share(*of_client) for of_client in each]
    return {name: column(values) for name, values in columns.items()}
