"""The result of a run: a summary, tables, and a folder of files.

Clients over time: service rates, utilisation, queues, power, in equal intervals.

Everything follows from the records, after the run. Sums over the intervals are the totals of the
run: rates times seconds are the tokens and visits of the clients, watts times seconds their joules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from itertools import pairwise, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from mist_sim.core.result_warnings import ResultWarning
from mist_sim.core.sliders import Sliders
from mist_sim.core.step_limits import StepLimits
from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.garbage import rare_collections
from mist_sim.hardware.gpu_group import GpuMachine, LayoutPeriod
from mist_sim.hardware.setting import Borrowed, Setting
from mist_sim.metrics import result_columns
from mist_sim.metrics.clients import (
    POWERED,
    Room,
    layouts_summary,
    room_columns,
    room_summary,
    rooms,
    run_periods,
    states_columns,
)
from mist_sim.metrics.goodput import Slo
from mist_sim.metrics.latency import Array
from mist_sim.metrics.pooled import pooled_warnings
from mist_sim.metrics.records.recorder import ColumnRecorder
from mist_sim.metrics.requests import (
    Breakdown,
    breakdown_columns,
    class_columns,
    retrievals_columns,
)
from mist_sim.metrics.run_warnings import run_warnings
from mist_sim.metrics.spending import (
    Bill,
    CostOptions,
    Ledger,
    PowerOptions,
    rent_summary,
    spending_summary,
    spent_by_clients,
    spent_on_requests,
)
from mist_sim.metrics.summary import summarise
from mist_sim.metrics.tables import (
    ONE_LINE,
    Columns,
    Findings,
    Presenter,
    concatenated,
    frame_of,
    num_rows,
    write_parquet,
)
from mist_sim.metrics.timeline import TABLES as TIMELINE_TABLES
from mist_sim.metrics.timeline import timeline
from mist_sim.output import json_text, output_file, output_folder, write_text

if TYPE_CHECKING:
    import pandas as pd

    from mist_sim.metrics.summary_types import Summary


_DEFAULT_INTERVALS = 100
_MOST_INTERVALS = 100_000


def over_time_columns(
    recorder: ColumnRecorder,
    ledger: Ledger,
    client_names: Sequence[str],
    interval: float | None = None,
) -> Columns:
    """Return a row per client and interval, client by client.

    interval: seconds (> 0); None: a hundredth of the run. The last one may be shorter.

    start, end: seconds. visits, prefill_tokens, output_tokens: rates per second of visits that
        ended, prompt tokens computed and tokens emitted; tokens count at the end of their step.
        busy: seconds of work per second, as in the table of clients. utilisation: `busy` divided by
        the number of engines and pipeline ranks; NaN for clients without steps. num_waiting,
        num_in_service: visits in the queue and in service, mean over the interval. power: mean
        watts, idle power included; only with clients that have GPUs.

    Raises ValueError for an interval that is not positive, or so short that there would be more
    than 100,000.
    """
    edges = _edges(ledger.end, interval)
    parts = []
    for client_id, name in enumerate(client_names):
        sums = _sums(recorder, client_id, edges)
        tracks = [recorder.mean_tracks(client_id, *period) for period in pairwise(edges.tolist())]
        seconds = np.diff(edges)
        rates = {key: np.diff(sum_) / seconds for key, sum_ in sums.items()}
        rates["utilisation"] = rates["busy"] / [number or math.nan for number in tracks]
        if any(ledger.machines) and not ledger.watts_unknown:
            rates["power"] = np.diff(_energy(ledger, client_id, edges)) / seconds
        names = np.full(len(seconds), name, dtype=object)
        parts.append({"client": names, "start": edges[:-1], "end": edges[1:]} | rates)
    return concatenated(parts)


def _edges(end: float, interval: float | None) -> Array:
    """Return where intervals begin, and where the last one ends."""
    if interval is None:
        interval = end / _DEFAULT_INTERVALS
    elif not 0 < interval < math.inf:
        raise ValueError(f"interval must be finite and > 0 s, got {interval}")
    if not end:
        return np.zeros(1)
    if end / interval > _MOST_INTERVALS:
        least = end / _MOST_INTERVALS
        raise ValueError(f"interval must be >= {least:.3g} s in a run of {end:g} s, got {interval}")
    number = max(math.ceil(end / interval * (1 - 1e-12)), 1)
    return np.append(np.arange(number) * interval, end)


def _sums(recorder: ColumnRecorder, client_id: int, edges: Array) -> dict[str, Array]:
    """Return a client's cumulative sums from the start of the run up to each time."""
    visits = recorder.visits.columns()
    mine = visits["client_id"] == client_id
    queued, begun, ended = (
        visits[name][mine] for name in ("queued_at", "started_at", "finished_at")
    )
    is_begun = ~np.isnan(begun)
    left = np.where(is_begun, begun, ended)
    in_service = _area(begun[is_begun], ended[is_begun], edges)
    tracks = [_track_sums(recorder, k, edges) for k in recorder.tracks_of(client_id)]
    nothing = np.zeros(len(edges))
    prompts, tokens, busy = (
        (sum(sums, nothing) for sums in zip(*tracks, strict=True))
        if tracks
        else (nothing, nothing, in_service)
    )
    return {
        "visits": _events(ended, np.ones(len(ended)), edges),
        "prefill_tokens": prompts,
        "output_tokens": tokens,
        "busy": busy,
        "num_waiting": _area(queued, left, edges),
        "num_in_service": in_service,
    }


def _track_sums(recorder: ColumnRecorder, track: int, edges: Array) -> tuple[Array, Array, Array]:
    """Return prompt tokens computed, tokens emitted and seconds of work of a track."""
    rows = recorder.steps[track].columns()
    ends = recorder.step_ends[track][:]
    prompts = np.repeat(rows["num_prefill_tokens"], rows["num_steps"])
    emitted = recorder.decode_tokens(track).astype(float)
    tokens = recorder.tokens.columns()
    is_first = (tokens["track"] == track) & ~tokens["resumed"]
    emitted += np.bincount(tokens["first_step"][is_first] - 1, minlength=len(ends))
    start, end = run_periods(recorder, track)
    return (
        _events(ends, prompts, edges),
        _events(ends, emitted, edges),
        _linear(start, end, rows["busy"], edges),
    )


def _energy(ledger: Ledger, client_id: int, edges: Array) -> Array:
    """Return a client's joules up to each time; those of a run spread evenly over its steps."""
    joules = np.zeros(len(edges))
    left = [ledger.lives.seconds(client_id, POWERED, edge) for edge in edges.tolist()]
    powered = ledger.lives.seconds(client_id, POWERED) - np.array(left)
    all_runs = ledger.runs(client_id)
    for number, group in enumerate(ledger.groups(client_id)):
        busy = np.zeros(len(edges))
        for runs in all_runs:
            if runs.group == number:
                joules += _linear(runs.start, runs.end, runs.energy, edges)
                busy += _linear(runs.start, runs.end, runs.gpu_seconds, edges)
        joules = joules + (powered * group.num_gpus - busy) * ledger.idle_watts(group)
    return joules


def _events(times: Array, counts: Array, edges: Array) -> Array:
    """Return how much came up to each time, that time included. times: never decrease."""
    up_to = np.concatenate([[0.0], np.cumsum(counts)])
    found: Array = up_to[np.searchsorted(times, edges, side="right")]
    found[0] = 0.0  # an event at time 0 belongs to the first interval
    return found


def _linear(start: Array, end: Array, amounts: Array, edges: Array) -> Array:
    """Return how much came up to each time, evenly in periods that follow one another."""
    if not len(start):
        return np.zeros(len(edges))
    up_to = np.concatenate([[0.0], np.cumsum(amounts)])
    found = np.interp(edges, np.stack([start, end], axis=1).ravel(), np.repeat(up_to, 2)[1:-1])
    return np.asarray(found)


def _area(entered: Array, left: Array, edges: Array) -> Array:
    """Return the time spent inside up to each time, summed over all visits."""
    spent = _since(entered, edges) - _since(left, edges)
    return np.asarray(np.maximum.accumulate(spent))  # it never falls, but where it is rounded


def _since(times: Array, edges: Array) -> Array:
    """Return the seconds since each time, summed over the times before each edge."""
    times = np.sort(times)
    number = np.searchsorted(times, edges, side="right")
    up_to = np.concatenate([[0.0], np.cumsum(times)])
    return np.asarray(number * edges - up_to[number])


TABLES = (
    "requests",
    "stages",
    "steps",
    "clients",
    "transfers",
    "retrievals",
    "client_states",
    "breakdown",
    "over_time",
)
"""The tables that a result can write."""


@dataclass(frozen=True, repr=False)
class Result(Findings):
    """The records of one run, and the figures computed from them.

    client_names: position is the client_id of the records.
    num_gpu_blocks: KV blocks of each client, 0 for those without a cache.
    block_tokens: tokens of a block of each client, 0 without a cache. block_groups: groups of
        layers of each that have blocks of their own. kv_entries: how each stores keys and values.
    slo: limits for goodput. warmup: requests that arrive earlier than this many seconds are
    left out of the summary's statistics. open_loop: whether arrivals ignored completions.
    estimates: origin of the step times, by client. assumed: options that were not set and whose
        default is an assumption, by client. assumed_hosts: effect of the assumed host on a client
        whose host was not named (`Client.assumed_host`). settings: settings of the clients that
        time steps (`Client.settings`), from which TTFT and TPOT get expected errors. engines:
        engine whose defaults each client has. kernels: back ends of the timed kernels, by client.
    scenario_text: returns `scenario`; None: the run came from no scenario. title: description of
        what was simulated. client_groups: for each client the name of its group of equal clients;
        empty if there are no groups. machines: the GPUs of each client, None without any.
    layouts: how the model lay on the GPUs, by client, for clients that changed their layout during
        the run.
    collectives: how collectives are timed, for each client that spans several nodes.
    client_models: the model that each client serves, empty for none.
    power: power draw beside the GPUs; None: there is none, and tables show no joules.
    cost: prices to use; None: no cost is computed. is_unpriced: the prices asked for are not known.
    sliders: when TaiChi's sliders moved (seconds), and their positions; None: they never move.
    step_limits: limits of each client's steps; None: unknown; empty: for no client.
    known_warnings: warnings known before the run (`Simulation.warnings`). is_of_rows: whether the
    requests are those of a trace, which has no more of them.
    presenter: shows the result as tables.
    """

    recorder: ColumnRecorder
    client_names: list[str]
    num_gpu_blocks: list[int]
    block_tokens: list[int] = field(default_factory=list)
    block_groups: list[int] = field(default_factory=list)
    kv_entries: list[str] = field(default_factory=list)
    slo: Slo = Slo()
    warmup: float = 0.0
    open_loop: bool = True
    estimates: dict[str, str] = field(default_factory=dict)
    assumed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    assumed_hosts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    settings: dict[str, Mapping[str, Setting | Borrowed | None]] = field(default_factory=dict)
    engines: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, Mapping[str, str]] = field(default_factory=dict)
    scenario_text: Callable[[], str] | None = None
    title: str = ""
    client_groups: list[str] = field(default_factory=list)
    machines: list[GpuMachine | None] = field(default_factory=list)
    layouts: dict[str, tuple[LayoutPeriod, ...]] = field(default_factory=dict)
    collectives: dict[str, str] = field(default_factory=dict)
    client_models: list[str] = field(default_factory=list)
    power: PowerOptions | None = None
    cost: CostOptions | None = None
    is_unpriced: bool = False
    sliders: tuple[tuple[float, Sliders], ...] | None = None
    step_limits: list[StepLimits | None] = field(default_factory=list)
    known_warnings: tuple[ResultWarning, ...] = ()
    is_of_rows: bool = False
    presenter: Presenter = ONE_LINE

    @cached_property
    def scenario(self) -> str | None:
        """The resolved scenario as YAML text; None if the run came from none."""
        return None if self.scenario_text is None else self.scenario_text()

    @cached_property
    def loop(self) -> str:
        """The form of the load: "open loop", "closed loop", or "offline", all at time 0."""
        if not self.open_loop:
            return "closed loop"
        c = self.recorder.requests.columns()
        sent_by_users = c["parent_id"] == c["request_id"]
        return "open loop" if c["arrival_time"][sent_by_users].any() else "offline"

    @cached_property
    def summary(self) -> Summary:
        """Metrics of the whole run; keys and units as `vllm bench serve` writes them."""
        return cast("Summary", super().summary)

    @cached_property
    def warnings(self) -> tuple[ResultWarning, ...]:
        """Warnings from the run, then those known before it."""
        return (
            *run_warnings(self.data, self.recorder, self.warmup, is_of_rows=self.is_of_rows),
            *pooled_warnings(self.recorder, self.slo, self.warmup),
            *self.known_warnings,
        )

    @cached_property
    def data(self) -> dict[str, Any]:
        """The metrics without the warnings."""
        with rare_collections():
            return self._summarised()

    def _summarised(self) -> dict[str, Any]:
        engines: dict[str, Any] = {"engines": dict(self.engines)} if self.engines else {}
        if self.kernels:
            engines["kernels"] = {name: dict(named) for name, named in self.kernels.items()}
        found = engines | summarise(
            self.recorder,
            slo=self.slo,
            warmup=self.warmup,
            open_loop=self.open_loop,
            estimates=self.estimates,
            assumed=self.assumed,
            assumed_hosts=self.assumed_hosts,
            settings=self.settings,
            limits=self._limits,
        )
        if self.step_limits:
            found |= room_summary(self.rooms, self.client_names)
        if self.layouts:
            found["layouts"] = layouts_summary(self.layouts)
        if self.collectives:
            found["collectives"] = dict(self.collectives)
        if self.sliders is not None:
            found["reconfigurations"] = [{"time": t, **asdict(s)} for t, s in self.sliders]
        if self.power_unknown:
            return found | {"power_unknown": self.power_unknown}
        if not self.is_unpriced:
            found |= rent_summary(self.machines, self.cost)
        return found | spending_summary(
            self.recorder,
            self.ledger,
            self.bill,
            slo=self.slo,
            warmup=self.warmup,
            summary=found,
            client_names=self.client_names,
        )

    @cached_property
    def ledger(self) -> Ledger:
        """Joules and GPU seconds by client and request.

        If the GPUs of any engine are unknown (`power_unknown`), nothing is known for all clients.
        """
        known = self.machines and not self.power_unknown
        machines = self.machines if known else [None] * len(self.client_names)
        by_layout = {
            self.client_names.index(name): [period.machine for period in periods]
            for name, periods in self.layouts.items()
            if known
        }
        return Ledger(self.recorder, machines, self.power or PowerOptions(), by_layout)

    @cached_property
    def rooms(self) -> list[Room]:
        """How much more each client's steps could have held (see `metrics.clients.room`)."""
        return rooms(self.recorder, [*self._limits.values()], self.warmup)

    @property
    def _limits(self) -> dict[str, StepLimits | None]:
        """Limits of the steps of each client."""
        return dict(zip(self.client_names, self.step_limits or repeat(None), strict=False))

    @property
    def power_unknown(self) -> list[str]:
        """Clients with steps whose GPUs are unknown, such as bundles without `gpu`."""
        machines = dict(zip(self.client_names, self.machines, strict=True)) if self.machines else {}
        return [name for name in self.estimates if machines.get(name) is None]

    @property
    def asks_for_spending(self) -> bool:
        """Whether power or cost was set in the scenario."""
        return self.cost is not None or self.power is not None

    @cached_property
    def bill(self) -> Bill | None:
        """Dollars by client and request; None if no cost is asked for."""
        return Bill(self.ledger, self.cost) if self.cost is not None else None

    @cached_property
    def requests(self) -> pd.DataFrame:
        """A row a request (see `result_columns.requests_columns`), with its energy and cost."""
        return frame_of(self.columns("requests"))

    @cached_property
    def stages(self) -> pd.DataFrame:
        """A row a served stage (see `result_columns.stages_columns`)."""
        return frame_of(self.columns("stages"))

    @cached_property
    def steps(self) -> pd.DataFrame:
        """A row a run of engine steps (see `result_columns.steps_columns`)."""
        return frame_of(self.columns("steps"))

    @cached_property
    def clients(self) -> pd.DataFrame:
        """A row a client (see `result_columns.clients_columns`), with its energy and cost."""
        return frame_of(self.columns("clients"))

    @cached_property
    def breakdown(self) -> pd.DataFrame:
        """Parts of the latency of each request of a user (see `breakdown.Breakdown`), seconds."""
        return frame_of(self.columns("breakdown"))

    def over_time(self, interval: float | None = None) -> pd.DataFrame:
        """Clients in intervals of so many seconds (see `over_time.over_time_columns`)."""
        names = self.client_names
        return frame_of(over_time_columns(self.recorder, self.ledger, names, interval))

    @cached_property
    def transfers(self) -> pd.DataFrame:
        """KV entries that went somewhere else (see `result_columns.transfers_columns`)."""
        return frame_of(self.columns("transfers"))

    @cached_property
    def retrievals(self) -> pd.DataFrame:
        """KV entries asked for, by level (see `retrievals.retrievals_columns`)."""
        return frame_of(self.columns("retrievals"))

    @cached_property
    def client_states(self) -> pd.DataFrame:
        """Times of clients up, starting, draining or away (see `lives.states_columns`)."""
        return frame_of(self.columns("client_states"))

    def columns(self, table: str) -> Columns:
        """Return the columns of one of `TABLES`, without pandas; its frame has the same.

        Raises ScenarioError for a table that there is not.
        """
        check_tables([table])
        recorder, names = self.recorder, self.client_names
        match table:
            case "requests":
                spent = spent_on_requests(recorder, self.ledger, self.bill)
                found = result_columns.requests_columns(recorder)
                return found | class_columns(recorder, list(self.slo.groups)) | spent
            case "stages":
                return result_columns.stages_columns(recorder, names)
            case "steps":
                return result_columns.steps_columns(recorder, names)
            case "clients":
                models, blocks = self.client_models or [""] * len(names), self.num_gpu_blocks
                found = result_columns.clients_columns(recorder, names, models, blocks)
                found |= room_columns(self.rooms)
                return found | spent_by_clients(recorder, self.ledger, self.bill, self.slo)
            case "transfers":
                return result_columns.transfers_columns(recorder, names)
            case "retrievals":
                return retrievals_columns(recorder, names)
            case "client_states":
                return states_columns(self.ledger.lives, names)
            case "breakdown":
                return breakdown_columns(Breakdown(recorder), recorder)
            case _:
                return over_time_columns(recorder, self.ledger, names)

    def token_times(self, request_id: int) -> Array:
        """Return when the user had each output token of a request, in seconds."""
        return result_columns.token_times(self.recorder, request_id)

    def __repr__(self) -> str:
        c = self.recorder.requests.columns()
        own = c["parent_id"] == c["request_id"]
        done = own & (c["status"] == 0)
        end = c["finished_at"].max(initial=0.0)
        return f"<Result: {done.sum():,} of {own.sum():,} requests finished in {end:.4g} s>"

    def save(
        self, folder: str | Path, *, replace: bool = False, tables: Collection[str] | None = None
    ) -> Path:
        """Write the files of `write_files` as `Findings.save` does.

        tables: which ones, of `TABLES`; None: all but `breakdown` and `over_time`.
        Raises ScenarioError also for tables that there are not.
        """
        if tables is not None:
            check_tables(tables)
        with output_folder(folder, replace=replace) as place:
            place.fill(partial(self.write_files, tables=tables))
        return place.path

    def save_timeline(self, path: str | Path, *, replace: bool = False) -> None:
        """Write requests, steps and transfers as Chrome trace events (ui.perfetto.dev draws them).

        replace: whether to overwrite an existing file.
        Raises ScenarioError if the file cannot be written.
        """
        with output_file(path, replace=replace) as file:
            tables = {name: getattr(self, name) for name in TIMELINE_TABLES}
            file.write(timeline(tables, self.summary))

    def write_files(self, folder: Path, tables: Collection[str] | None = None) -> None:
        """Write summary.json, scenario.resolved.yaml of a run from a scenario, and the tables."""
        write_text(folder / "summary.json", json_text(self.summary))
        if self.scenario is not None:
            write_text(folder / "scenario.resolved.yaml", self.scenario)
        for name in self._usual_tables() if tables is None else tables:
            write_parquet(self.columns(name), folder / f"{name}.parquet")

    def _usual_tables(self) -> list[str]:
        """Return the tables written by default."""
        tables = ["requests", "stages", "steps", "clients"]
        others = ("transfers", "retrievals", "client_states")
        return tables + [name for name in others if num_rows(self.columns(name))]


def check_tables(names: Collection[str]) -> None:
    """Raise ScenarioError for tables that a result does not have."""
    for name in names:
        if name not in TABLES:
            raise ScenarioError(
                f"tables has no {brief(name)}{did_you_mean(name, TABLES)} "
                f"Known: {', '.join(TABLES)}"
            )
