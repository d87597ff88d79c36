"""Seconds of a client's start: its weights on their way to the GPUs, then its engine.

The weights go storage -> host -> device, in a pipeline as fast as its slowest part. Of a format
there is one figure that was fitted, on the 8B model of the measurements alone: 30 loads of
Llama-3.1-8B (16.06 GB) in random order on an H100 SXM with an NVMe of 29.4 GB/s, mean 4.437 s from
safetensors and 0.678 s in ServerlessLLM's format. Tests score both on 32B models; the table is in
docs/guides/failures_and_autoscaling.md.
Source: github.com/ServerlessLLM/ServerlessLLM, benchmarks/results/h100_2025 (Apache-2.0).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from simpy.events import Event

from mist_sim.checks import NotNegative, Positive, check_fields
from mist_sim.clients import Client
from mist_sim.durations import SecondsOrLaw, draws
from mist_sim.environment import CHANGE, Environment
from mist_sim.errors import ScenarioError
from mist_sim.hardware.gpu_group import GpuMachine
from mist_sim.network import Network, Seat, Store, Ways
from mist_sim.rng import Streams
from mist_sim.units import BytesPerSecond, Seconds

Format = Literal["safetensors", "sllm"]

SAFETENSORS_RATE = 3.62e9
"""Bytes/s at which one process reads safetensors from storage and copies them to its GPU.

16.06 GB / 4.437 s. Slower than storage and links: pages are mapped one by one.
"""
SLLM_EFFICIENCY = 0.806
"""Share of the slowest link that ServerlessLLM's format reaches: 16.06 GB / 0.678 s / 29.4 GB/s."""


COMPILATION = 19.37
GRAPH_CAPTURE = 15.0
OTHER = 4.97
"""Seconds of an engine's start: Llama-3-8B on one H100 with a cold cache.

Source: vLLM pull request 11005 (2024-12-09, -O3): Dynamo 4.6 s, compilation 14.77 s, capture 15 s
of 39.34 s.
"""


@dataclass(frozen=True, kw_only=True)
class StartUp:
    """Seconds of a client from its start until it takes requests.

    time: the whole time, a constant or a law; replaces the others.
    storage: rate at which weights move from storage to the host; None: they are there already, as
        in the page cache.
    weights_at: their place on a network with a topology, whose links loads share with all other
        traffic: "host" or "storage", that of the node of each GPU, or a place such as
        "remote/storage". None: "host". `storage` is then each engine's largest read rate.
    format: of the files. safetensors is read by one process a GPU at 3.62 GB/s each; sllm
        (ServerlessLLM) at 80.6 % of what storage and host links carry.
    compilation: time to compile the model, with tracing; 0 s with a warm cache. None: 19.37 s.
    graph_capture: time to capture CUDA graphs; 0 s without graphs. None: 15 s.
    other: rest of the engine's start: profiling, the KV cache. None: 4.97 s.

    The engine's times that are left out are assumed: those of Llama-3-8B on one H100 with a cold
    cache. They vary with model, version and host more than with size: a 70B model took 85 s to
    compile and 60 s to capture.
    Raises ValueError for values out of range.
    """

    time: SecondsOrLaw | None = None
    storage: Positive[BytesPerSecond] | None = None
    weights_at: str | None = None
    format: Format = "safetensors"
    compilation: NotNegative[Seconds] | None = None
    graph_capture: NotNegative[Seconds] | None = None
    other: NotNegative[Seconds] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("storage", "weights_at", "format", "compilation", "graph_capture", "other"):
            if self.time is not None and getattr(self, name) != getattr(StartUp, name):
                raise ValueError(f"{name} must be left out with time, which is all of the start")

    def load_seconds(self, num_bytes: float, num_gpus: int, host_bandwidth: float) -> float:
        """Return how long weights take to come to the GPUs that share them.

        num_bytes: of all weights. host_bandwidth: bytes/s from the host to one GPU.
        """
        to_host = math.inf if self.storage is None else self.storage
        slowest = min(to_host, num_gpus * host_bandwidth)
        if self.format == "sllm":
            return num_bytes / (SLLM_EFFICIENCY * slowest)
        return num_bytes / min(slowest, num_gpus * SAFETENSORS_RATE)

    @property
    def store(self) -> Store:
        """Where an engine reads weights on a network with a topology, and how fast at most."""
        is_plain = self.format == "safetensors"
        return Store(
            self.weights_at or "host", self.storage, SAFETENSORS_RATE if is_plain else None
        )

    def bytes_to_load(self, num_bytes: float) -> float:
        """Return the bytes that take as long on free links as weights do in their format."""
        return num_bytes / SLLM_EFFICIENCY if self.format == "sllm" else num_bytes

    @property
    def engine_seconds(self) -> float:
        """Seconds of an engine's start when its weights are there."""
        return sum(self._engine_times)

    @property
    def _engine_times(self) -> list[Seconds]:
        said = self.compilation, self.graph_capture, self.other
        usual = COMPILATION, GRAPH_CAPTURE, OTHER
        return [own if value is None else value for value, own in zip(said, usual, strict=True)]

    @property
    def assumed(self) -> tuple[str, ...]:
        """The options of the engine's times that are left out and count; none beside `time`."""
        if self.time is not None:
            return ()
        names = ("compilation", "graph_capture", "other")
        return tuple(name for name in names if getattr(self, name) is None)

    def seconds(self, machine: GpuMachine | None, name: str) -> float:
        """Return a client's start time, if it is not given.

        machine: its GPUs, which all load at once; a client without any has no weights and no
            engine. name: for messages.
        Raises ScenarioError for an engine's weights on unknown GPUs.
        """
        if machine is None:
            raise ScenarioError(
                f"start_up must have a time, since the GPUs and weights of {name} are unknown"
            )
        load = max(
            self.load_seconds(group.weight_bytes, group.gpus_an_engine, group.gpu.from_host)
            for group in machine.groups
        )
        return sum(self._engine_times, load)


def loads_over(options: StartUp | None, client: Client, network: Network | None) -> Ways | None:
    """Return the links over which a client loads its weights; None: loads share no links."""
    if options is None or options.time is not None or network is None:
        return None
    traits = client.traits
    return network.ways if traits.engines and traits.machine is not None else None


def seats_of(client: Client) -> list[Seat]:
    """Return all engines of a client."""
    return [seat for tenant in client.tenants() for seat in tenant.seats]


def weights_of(client: Client, machine: GpuMachine) -> list[tuple[list[Seat], float]]:
    """Return which engines of a client load how many bytes of weights each.

    Its groups of engines are the groups of its GPUs, unless these are one group of equal engines.
    """
    tenants, groups = client.tenants(), machine.groups
    if len(tenants) != len(groups):
        return [(seats_of(client), groups[0].weight_bytes)]
    both = zip(tenants, groups, strict=True)
    return [([*tenant.seats], group.weight_bytes) for tenant, group in both]


@dataclass(eq=False)
class Starts:
    """Begins starts of clients; a law of their time has a stream of its own for each client."""

    _env: Environment
    _options: StartUp | None
    _streams: Streams
    _network: Network | None
    _drawn: dict[str, Iterator[float]] = field(default_factory=dict)

    def begin(self, client: Client) -> Event:
        """Begin the start of a client; the event happens when it is ready.

        Every engine loads its own weights. Loads of an abandoned start run to their end.
        """
        env, options = self._env, self._options
        ways, machine = loads_over(options, client, self._network), client.traits.machine
        if ways is None or options is None or machine is None:
            return env.at(env.now + self._seconds(client.name, machine), CHANGE)
        ready = Event(env)
        loads = [
            ways.read(seats, options.store, options.bytes_to_load(weight_bytes) * len(seats), 0.0)
            for seats, weight_bytes in weights_of(client, machine)
        ]
        left = loads.copy()

        def start_engine(_: Event) -> None:
            left.pop()
            if not left:
                env.trigger(ready, env.now + options.engine_seconds, CHANGE)

        for loaded in loads:
            loaded.callbacks.append(start_engine)
        return ready

    def _seconds(self, name: str, machine: GpuMachine | None) -> float:
        """Return the time of a client's next start; 0 s by default."""
        if self._options is None:
            return 0.0
        time = self._options.time
        if time is None:
            return self._options.seconds(machine, name)
        if isinstance(time, float | int):
            return float(time)
        if name not in self._drawn:
            rng = self._streams.generator(f"{name}: start-up")
            self._drawn[name] = draws(time, rng, "lifecycle.start_up.time", block=64)
        return next(self._drawn[name])
