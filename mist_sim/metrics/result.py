"""The result of a run: a summary, tables, and a folder of files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Required, TypedDict, cast, get_type_hints

from mist_sim.core.batch import StepLimits
from mist_sim.core.recorder import Recorder
from mist_sim.core.result_warnings import ResultWarning, WarningData
from mist_sim.core.sliders import Sliders
from mist_sim.errors import ScenarioError, brief, require_known
from mist_sim.garbage import rare_collections
from mist_sim.hardware.gpu_group import GpuMachine, LayoutPeriod
from mist_sim.hardware.setting import Borrowed, Setting
from mist_sim.metrics import clients, result_columns
from mist_sim.metrics.clients import LayoutOfClient, Room
from mist_sim.metrics.expected_errors import ExpectedError, expected_errors
from mist_sim.metrics.goodput import Slo
from mist_sim.metrics.latency import Array
from mist_sim.metrics.load import load_of_run
from mist_sim.metrics.requests import Counted
from mist_sim.metrics.run_warnings import pooled_warnings, run_warnings
from mist_sim.metrics.sensitivity import sensitivities
from mist_sim.metrics.spending import (
    Bill,
    CostOptions,
    Ledger,
    OfSpending,
    PowerOptions,
    rent_summary,
    spending_summary,
    spent_by_clients,
    spent_on_requests,
)
from mist_sim.metrics.summary import (
    OfEveryRun,
    OfSomeRuns,
    extrapolated_share,
    figures,
    verdicts,
)
from mist_sim.metrics.tables import (
    ONE_LINE,
    Columns,
    Findings,
    Presenter,
    frame_of,
    num_rows,
    write_parquet,
)
from mist_sim.metrics.timeline import TABLES as TIMELINE_TABLES
from mist_sim.metrics.timeline import timeline
from mist_sim.output import json_text, output_file, output_folder, write_text
from mist_sim.registry import Known

if TYPE_CHECKING:
    import pandas as pd


class AssumedHost(TypedDict):
    """Effect of an assumed host of GPUs on PCIe: milliseconds a step of so many tokens.

    num_groups: groups of GPUs of a client that sum on the host, each alone.
    """

    num_groups: int
    host: str
    measured_with: str
    num_tokens: int
    communication_ms: float
    other_host: str
    other_communication_ms: float


class SliderPosition(TypedDict):
    """TaiChi's sliders from a time on, in seconds of the run."""

    time: float
    num_p: int
    num_d: int
    s_p: int
    s_d: int


class Summary(OfEveryRun, OfSomeRuns, OfSpending, total=False):
    """The metrics of a run (`Result.summary`): keys of `vllm bench serve`, and ours.

    Keys of classes that are not `total` exist only if the scenario has such figures. Type checkers
    accept literal keys only; for a computed key, treat the summary as a `Mapping[str, Any]`.
    `docs/reference/metrics.md` says what each key means, and its unit. A figure is declared beside
    what computes it.
    """

    warnings: Required[list[WarningData]]
    engines: dict[str, str]
    kernels: dict[str, dict[str, str]]
    assumed: dict[str, list[str]]
    assumed_host: dict[str, AssumedHost]
    collectives: dict[str, str]
    expected_errors: dict[str, dict[str, ExpectedError | None]]
    layouts: list[LayoutOfClient]
    reconfigurations: list[SliderPosition]


def check_number(option: str, name: str) -> None:
    """Raise ScenarioError unless a summary may have a number of that name.

    option: that names it, for the message.
    """
    known = [each for each, kind in get_type_hints(Summary).items() if kind in (int, float, bool)]
    more = "docs/reference/metrics.md has all"
    require_known(name, known, f"{option} has no number", more)


class _Frame(cached_property["pd.DataFrame"]):
    """The table of that name as a frame, made once."""

    def __init__(self, doc: str) -> None:
        super().__init__(lambda result: result.table(self.attrname))
        self.__doc__ = doc


@dataclass(frozen=True, repr=False)
class Result(Findings):
    """The records of one run, and the figures computed from them.

    docs/guides/results.md says what the columns of its tables mean.

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

    recorder: Recorder
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
        arrival = self.counted.c["arrival_time"][self.counted.of_users]
        return "open loop" if arrival.any() else "offline"

    @cached_property
    def summary(self) -> Summary:
        """Metrics of the whole run; keys and units as `vllm bench serve` writes them."""
        return cast("Summary", Known(super().summary, "the summary has no"))

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
        kernels = {name: dict(named) for name, named in self.kernels.items()}
        found = _there(engines=dict(self.engines), kernels=kernels)
        found |= figures(self.counted, self.slo, self.estimates)
        found |= _there(
            assumed={name: list(options) for name, options in self.assumed.items()},
            assumed_host={name: dict(worth) for name, worth in self.assumed_hosts.items()},
            expected_errors=self._expected_errors(),
        )
        found |= verdicts(self.counted, self.slo, found)
        if "measured" in self.estimates.values():
            found["extrapolated_step_fraction"] = extrapolated_share(self.recorder)
        if self.step_limits:
            found |= clients.room_summary(self.rooms, self.client_names)
        layouts = clients.layouts_summary(self.layouts)
        found |= _there(layouts=layouts, collectives=dict(self.collectives))
        if self.sliders is not None:
            found["reconfigurations"] = [{"time": t, **asdict(s)} for t, s in self.sliders]
        if self.power_unknown:
            return found | {"power_unknown": self.power_unknown}
        if not self.is_unpriced:
            found |= rent_summary(self.machines, self.cost)
        return found | spending_summary(
            self.counted, self.ledger, self.bill, self.slo, found, self.client_names
        )

    def _expected_errors(self) -> dict[str, Any]:
        if not self.settings:
            return {}
        of_clients = {}
        if self.open_loop:
            limits = self._limits
            found = sensitivities(self.recorder, list(limits.values()), self.counted.done)
            of_clients = dict(zip(limits, found, strict=False))
        return expected_errors(self.settings, load_of_run(self.counted), of_clients)

    @cached_property
    def counted(self) -> Counted:
        """The requests that the summary's statistics are of."""
        return Counted(self.recorder, self.warmup, open_loop=self.open_loop)

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
        """How much more each client's steps could have held (see `metrics.clients.Room`)."""
        c, counted = self.counted.c, self.counted.counted
        arrival, prompt_tokens = c["arrival_time"][counted], c["num_prompt_tokens"][counted]
        return clients.rooms(self.recorder, [*self._limits.values()], arrival, prompt_tokens)

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

    requests = _Frame("A row a request, with its energy and cost.")
    stages = _Frame("A row a stage that was served.")
    steps = _Frame("A row a run of engine steps.")
    clients = _Frame("A row a client, with its energy and cost.")
    breakdown = _Frame("Parts of the latency of each request of a user, seconds.")
    transfers = _Frame("KV entries that went somewhere else.")
    retrievals = _Frame("KV entries asked for, by level.")
    events = _Frame("A row a decision; raises ScenarioError for a run that did not keep them.")
    client_states = _Frame("Times of clients up, starting, draining or away.")

    def over_time(self, interval: float | None = None) -> pd.DataFrame:
        """Clients in intervals of so many seconds; raises as `result_columns.over_time_columns`."""
        names = self.client_names
        return frame_of(
            result_columns.over_time_columns(self.recorder, self.ledger, names, interval)
        )

    def columns(self, table: str) -> Columns:
        """Return the columns of one of `TABLES`, without pandas; its frame has the same.

        Raises ScenarioError for a table that there is not.
        """
        check_tables([table])
        if table == "events" and self.recorder.events is None:
            raise ScenarioError(
                "this run kept no events; give events=True to simulate, start or run, or --events "
                "to mist run"
            )
        return _COLUMNS[table](self)

    def table(self, name: str) -> pd.DataFrame:
        """Return one of `TABLES` as a frame. Raises ScenarioError for a table that there is not."""
        return frame_of(self.columns(name))

    def has(self, name: str) -> bool:
        """Tell whether a table has rows. Raises ScenarioError for a table that there is not."""
        return num_rows(self.columns(name)) > 0

    def token_times(self, request_id: int) -> Array:
        """Return when the user had each output token of a request, in seconds."""
        return result_columns.token_times(self.recorder, request_id)

    def __repr__(self) -> str:
        run, end = self.counted, self.counted.c["finished_at"].max(initial=0.0)
        number = f"{run.finished.sum():,} of {run.of_users.sum():,}"
        return f"<Result: {number} requests finished in {end:.4g} s>"

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
        """Write what happened as Chrome trace events (ui.perfetto.dev draws them).

        replace: whether to overwrite an existing file.
        Raises ScenarioError if the file cannot be written.
        """
        with output_file(path, replace=replace) as file:
            kept = self.recorder.events is not None
            names = [name for name in TIMELINE_TABLES if kept or name != "events"]
            tables = {name: getattr(self, name) for name in names}
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
        kept = [] if self.recorder.events is None else ["events"]
        return tables + [name for name in others if self.has(name)] + kept


def _there(**parts: Any) -> dict[str, Any]:
    """Return the parts of a summary that are not empty."""
    return {name: value for name, value in parts.items() if value}


def _requests(result: Result) -> Columns:
    spent = spent_on_requests(result.recorder, result.ledger, result.bill)
    found = result_columns.requests_columns(result.recorder)
    return found | result_columns.class_columns(result.recorder, list(result.slo.groups)) | spent


def _clients(result: Result) -> Columns:
    names, blocks = result.client_names, result.num_gpu_blocks
    models = result.client_models or [""] * len(names)
    found = result_columns.clients_columns(result.recorder, names, models, blocks)
    found |= clients.room_columns(result.rooms)
    return found | spent_by_clients(result.recorder, result.ledger, result.bill, result.slo)


_COLUMNS: Mapping[str, Callable[[Result], Columns]] = {
    "requests": _requests,
    "stages": lambda of: result_columns.stages_columns(of.recorder, of.client_names),
    "steps": lambda of: result_columns.steps_columns(of.recorder, of.client_names),
    "clients": _clients,
    "transfers": lambda of: result_columns.transfers_columns(of.recorder, of.client_names),
    "retrievals": lambda of: result_columns.retrievals_columns(of.recorder, of.client_names),
    "events": lambda of: result_columns.events_columns(of.recorder, of.client_names),
    "client_states": lambda of: clients.states_columns(of.ledger.lives, of.client_names),
    "breakdown": lambda of: result_columns.breakdown_columns(of.recorder),
    "over_time": lambda of: result_columns.over_time_columns(
        of.recorder, of.ledger, of.client_names
    ),
}
TABLES = tuple(_COLUMNS)
"""The tables that a result can write."""


def check_tables(names: Collection[str]) -> None:
    """Raise ScenarioError for tables that a result does not have."""
    if isinstance(names, str):
        raise ScenarioError(
            f"tables must be a list of names, got {brief(names)}: write [{names!r}]"
        )
    for name in names:
        require_known(name, TABLES, "tables has no")
