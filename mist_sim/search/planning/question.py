"""The question of a plan: GPUs to choose from, a budget, a rate, and how long to look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf
from typing import Annotated, Any

from mist_sim.bounds import COPIES
from mist_sim.checks import NotNegative, Positive, Range, check_fields
from mist_sim.errors import ScenarioError, brief, did_you_mean, in_words, listed
from mist_sim.routers import ROUTERS
from mist_sim.scenario import Scenario
from mist_sim.scenario.loading import as_data
from mist_sim.search.bracketing import settable
from mist_sim.search.designs import DESIGNS
from mist_sim.search.goodput import USUAL_REQUESTS, GoodputOptions
from mist_sim.studies.built import Built, Rates, Users
from mist_sim.studies.varied_gpus import clients_in, given_prices, kind_of
from mist_sim.studies.verdicts.request_times import Target
from mist_sim.studies.verdicts.steady_state import least_of_users
from mist_sim.traces import ClosedLoop
from mist_sim.units import RENT, DollarsPerHour, PerSecond, Seconds

_USUAL = DESIGNS[:-1]  # re-sharding is for throughput: few limits on latencies leave it any

LEAST_OUTSTANDING = "least_outstanding"
WIDTHS = (1, 2, 4, 8)
"""Tensor parallel sizes to try: the GPUs of a node are eight, and models are cut in halves."""

_OWN_KEYS = ("name", "count", "gpu", "role", "place", "gpu_price", "tensor_parallel_size")
_CHUNK = "scheduler.max_num_batched_tokens"
_DECIDED = {"tensor_parallel_size": "give tensor_parallel_sizes", "gpu": "give gpus"}
_PLANNED = ("llm", "afd")  # types of clients in place of which a plan puts its own
_MOST_GPUS = 16

HOURS = 24
"""Of a day."""

USUAL_TOTAL = 600_000
"""Simulated requests of a search, about a minute of one core."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of a plan: what may be bought, and how the search goes.

    gpus: names of the catalog, or paths of spec files. rate: requests per second (> 0); None: the
    scenario's own. users: people who each send a request, read its answer and think, in place of
    arrivals (>= 1); None: arrivals, or the users of the scenario's own closed loop. think: seconds
    that they do on average (>= 0); times are exponential, as those of terminals in queueing theory
    (Lazowska et al., Quantitative System Performance, 1984). day: requests per second in each hour
    of a day (24 of them, >= 0), in place of a rate: the answer is for the busiest, and says what
    the others need. max_gpus: in all (>= 1).
    max_usd_per_hour: dollars an hour in all (> 0); None: any. tensor_parallel_sizes, designs,
    routers: what is tried; designs are of `DESIGNS`, all but reshard by default; routers: None: the
    scenario's own, or least_outstanding where it names none. vary: further options of engines to
    try, by their key below a client, such as pipeline_parallel_size: (1, 2) or
    kv_cache.kv_cache_dtype: (auto, fp8); engines of each combination are candidates. prices:
    dollars of one GPU an hour in place of the catalog's and the scenario's, by any name of a GPU in
    `gpus`, such as x1 for a file x1.toml. attainment, most_requests, as_is: as in `GoodputOptions`.
    total_requests: after which the search stops looking for something better, of all its runs (>
    0); those of hybrids, bundles and re-sharding engines count as ten. seconds: of a clock, after
    which it stops (> 0). None: when all is known.

    Raises ScenarioError for values that make no search.
    """

    gpus: tuple[str, ...]
    rate: Positive[PerSecond] | None = None
    users: Positive[int] | None = None
    think: NotNegative[Seconds] = 0.0
    day: tuple[float, ...] | None = None
    max_gpus: Annotated[int, Range(f"[1, {COPIES}]")] = _MOST_GPUS
    max_usd_per_hour: Positive[float] | None = None
    tensor_parallel_sizes: tuple[Positive[int], ...] = WIDTHS
    designs: tuple[str, ...] = _USUAL
    routers: tuple[str, ...] | None = None
    vary: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    prices: Mapping[str, Positive[DollarsPerHour]] = field(default_factory=dict)
    attainment: float | None = None
    most_requests: int | None = None
    as_is: bool = False
    total_requests: Positive[int] | None = USUAL_TOTAL
    seconds: Positive[Seconds] | None = None

    def __post_init__(self) -> None:
        self.goodput  # noqa: B018 - checks what both share
        for name in ("gpus", "designs", "tensor_parallel_sizes"):
            _check_list(name, getattr(self, name))
        if self.routers is not None:
            _check_list("routers", self.routers)
            for name in self.routers:
                ROUTERS[name]  # raises for an unknown name
        for name in self.designs:
            if name not in DESIGNS:
                raise ScenarioError(
                    f"designs must be of {', '.join(DESIGNS)}, got {brief(name)}"
                    f"{did_you_mean(name, DESIGNS)}"
                )
        check_fields(self, ScenarioError)
        self._check_day()
        self._check_vary()
        self._check_users()
        self._check_prices()

    def _check_day(self) -> None:
        if self.day is None:
            return
        for name in ("rate", "users"):
            if (value := getattr(self, name)) is not None:
                raise ScenarioError(f"{name} must be left out with day, got {value:g}")
        if len(self.day) != HOURS or not all(0 <= rate < inf for rate in self.day):
            raise ScenarioError(
                f"day must be {HOURS} rates, finite and >= 0 /s, got {brief(list(self.day))}"
            )
        if not any(self.day):
            raise ScenarioError("day must have an hour with requests, got 0 /s in all")

    def _check_vary(self) -> None:
        for key in self.vary:
            if key in (*_OWN_KEYS, _CHUNK):
                how = _DECIDED.get(key, "the plan finds it")
                raise ScenarioError(f"vary must be of options that a plan leaves, got {key}: {how}")
            _check_list(f"vary {key}", tuple(map(repr, self.vary[key])))

    def _check_users(self) -> None:
        if self.users is not None:
            if self.rate is not None:
                raise ScenarioError(
                    f"rate must be left out with users, who set it, got {self.rate:g} /s and "
                    f"{in_words(self.users, 'user')}"
                )
        elif self.think:
            raise ScenarioError(
                f"think must be given with users, got {self.think:g} s alone; give users"
            )

    def _check_prices(self) -> None:
        names = {kind_of(gpu): gpu for gpu in self.gpus} if self.prices else {}
        for name in self.prices:
            if kind_of(name) not in names:
                raise ScenarioError(
                    f"prices must be of GPUs that are asked for, {', '.join(self.gpus)}, got "
                    f"{brief(name)}"
                )

    def price(self, gpu: str) -> float | None:
        """Return the given dollars of a GPU an hour; None: the catalog's."""
        own = {kind_of(name): price for name, price in self.prices.items()}
        return own.get(kind_of(gpu)) if own else None

    @property
    def budget(self) -> str:
        """GPUs and dollars at most, in words."""
        gpus = f"{self.max_gpus} GPU{'s' * (self.max_gpus > 1)}"
        most = self.max_usd_per_hour
        return gpus if most is None else f"{gpus} and {most:g} $/h"

    @property
    def longest(self) -> int:
        """Requests of the longest run at the rate that is asked for."""
        users = 0 if self.users is None else least_of_users(self.users)
        return self.most_requests or max(USUAL_REQUESTS, users)

    @property
    def goodput(self) -> GoodputOptions:
        """The options that judge rates. Raises ScenarioError for values that make no search."""
        return GoodputOptions(
            attainment=self.attainment, most_requests=self.most_requests, as_is=self.as_is
        )


def _check_list(name: str, values: tuple[Any, ...]) -> None:
    if not values or len(set(values)) < len(values):
        raise ScenarioError(f"{name} must be one or more that differ, got {brief(list(values))}")


Settings = tuple[tuple[str, Any], ...]
"""Options of engines that vary, as keys below a client, and their values."""


class Question:
    """A scenario of which the clients are asked for; its workload, limits and options stay.

    scenario: its first client of type llm says the options that engines have beside GPU, count,
        tensor parallel size and role.
    Raises ScenarioError for one without such a client, with one of another type, or without limits.
    """

    def __init__(self, scenario: Scenario, options: PlanOptions) -> None:
        self.options = options
        models = scenario.workload.models or ()
        if len(models) > 1:
            raise ScenarioError(
                f"a plan is of one model, got workload.models of {listed(models)}; plan each in a "
                "scenario of its own, with its client, its limits and its share of the rate "
                "(--rate)"
            )
        if options.users is not None:
            scenario = with_users(scenario, options.users, options.think)
        loop = scenario.workload.arrivals.make()
        self.loop: ClosedLoop | None = loop if isinstance(loop, ClosedLoop) else None
        if self.loop is not None and options.rate is not None:
            raise ScenarioError(
                f"rate must be left out for a closed loop, whose users set it, got "
                f"{options.rate:g} /s; give users, or workload.arrivals a rate"
            )
        said: Mapping[str, Any] = scenario.origin.said or as_data(scenario)
        self._engine = _engine_of(said)
        self._own_prices = given_prices(said)
        self._has_router = "router" in said
        self._scenario = scenario
        self.network = said.get("network")
        self.target: Target = options.goodput.target(scenario)
        self.model = self._engine.get("model") or scenario.model
        self._load: Rates | Users | None = None

    def measure(self, built: Built) -> None:
        """Read how many requests there are, and how often they come, off a scenario of these.

        Raises ScenarioError for arrivals without a rate.
        """
        self._load = built.load

    def asking(self, rate: float) -> Question:
        """Return the same question at another rate, requests per second."""
        found = Question(self._scenario, replace(self.options, rate=rate))
        found._load = self._load
        return found

    def begin_over(self, seconds: float) -> None:
        """Let users whom the options ask for begin one by one, over some seconds.

        All at once they would wait for one another as they never do again.
        """
        if self.options.users is not None:
            ramp = {"workload.arrivals.ramp_up": f"{seconds!r} s"}
            self._scenario = self._scenario.changed(ramp)

    @property
    def load(self) -> Rates | Users:
        """The rates or users that can send the requests; known once measured."""
        if self._load is None:
            raise ScenarioError("the workload of a plan is not known before its engines")
        return self._load

    @property
    def rate(self) -> float:
        """Requests per second that are asked for; an int: users."""
        return self.load.own if self.options.rate is None else float(self.options.rate)

    @property
    def num_requests(self) -> int:
        """Requests of the workload as it stands."""
        return self.load.num_requests

    @property
    def least_requests(self) -> int:
        """Requests of the shortest run that tells well of so many users; 0 without."""
        return 0 if self.loop is None else least_of_users(self.loop.concurrency)

    def times(self, factor: float) -> float:
        """Return a multiple of the rate that is asked for; of users a whole number."""
        return settable(self.rate * factor, self.rate) if self.loop else self.rate * factor

    @property
    def routers(self) -> tuple[str | None, ...]:
        """The routers to try; None: the scenario's own."""
        if self.options.routers is not None:
            return self.options.routers
        return (None,) if self._has_router else (LEAST_OUTSTANDING,)

    def sizes(self, width: int, settings: Settings = ()) -> dict[str, Any]:
        """Return the given options of an engine of one tensor parallel size, and of settings."""
        return {**self._engine, "tensor_parallel_size": width, **dict(settings)}

    @property
    def settings(self) -> Iterator[Settings]:
        """Each way to set the options that vary."""
        vary = self.options.vary
        return (tuple(zip(vary, each, strict=True)) for each in product(*vary.values()))

    def having(
        self,
        gpu: str,
        width: int,
        count: int,
        router: str | None = None,
        settings: Settings = (),
    ) -> Scenario:
        """Return the scenario with so many equal engines that do both, at its own rate.

        width: GPUs that share every layer. settings: options of engines, in place of its own.
        Raises ScenarioError where that cannot be.
        """
        engine = self._engine | {"name": "llm", "gpu": gpu, "count": count}
        if width > 1:
            engine["tensor_parallel_size"] = width
        if (price := self._price(gpu)) is not None:
            engine["gpu_price"] = price
        changes: dict[str, Any] = {
            "clients": [engine],
            "network": None,
            "hand_over": {},
            "routers": {},
            "replications": 1,
            "lifecycle": None,
            "reconfigure": None,
        }
        said = self._scenario.origin.said or {}
        if not said.get("cost"):
            changes["cost"] = {}
        if router is not None:
            changes["router"] = router
        changes |= {f"clients.0.{key}": value for key, value in settings}
        return self._scenario.changed(changes)

    def _price(self, gpu: str) -> str | None:
        """Return the given price of a GPU, as a scenario has it; None: the catalog's."""
        price = self.options.price(gpu)
        if price is not None:
            return f"{price!r} $/h"
        own = self._own_prices.get(kind_of(gpu))
        return own.price if own is not None and RENT.parse(own.price) > 0 else None

    @property
    def own_prices(self) -> Iterator[str]:
        """A sentence on each price that the scenario gives for one of the GPUs to choose from."""
        asked = {kind_of(gpu): gpu for gpu in self.options.gpus}
        for kind, own in self._own_prices.items():
            if kind not in asked or self.options.price(asked[kind]) is not None:
                continue
            told = f"{own.price} for each {kind} ({own.key})"
            if self._price(asked[kind]):
                yield f"Price as given: {told}."
            else:
                yield (
                    f"Not used, since nothing is cheaper: {told}; the catalog's price counts, or "
                    f"that of --price {kind}=DOLLARS."
                )

    def at_rate(self, scenario: Scenario, rate: float | None = None) -> Scenario:
        """Return a scenario at a rate (1/s), or with users (an int), by default those asked for."""
        if rate is None and self.options.rate is None:
            return scenario
        changes = self.load.at(rate or self.rate)
        return Scenario.from_dict(as_data(scenario), changes)


def with_users(scenario: Scenario, users: int, think: float) -> Scenario:
    """Return a scenario whose requests are sent by users, in place of its arrivals.

    think: seconds from an answer to the next request of its user, on average.
    """
    pause = {"type": "exponential", "mean": f"{think!r} s"} if think else "0 s"
    arrivals = {"type": "closed_loop", "concurrency": users, "think_time": pause}
    return scenario.changed({"workload.arrivals": arrivals})


def _engine_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a scenario's first engine, without those that a plan decides."""
    engines = []
    for client in clients_in(said):
        kind = client.get("type", "llm")
        if client and kind not in _PLANNED:
            raise ScenarioError(
                f"clients must all be of type llm for a plan, which finds engines of an LLM only; "
                f"got {brief(client.get('name'))} of type {kind}"
            )
        if client and kind == "llm":
            engines.append({k: v for k, v in client.items() if k not in _OWN_KEYS})
    if not engines:
        raise ScenarioError(
            "clients must have one of type llm, whose engines are planned, got none"
        )
    return engines[0]
