"""Starts of clients: ready after some seconds, or when the weights have come."""

from __future__ import annotations

from simpy.events import Event

from mist_sim.clients import Client
from mist_sim.environment import CHANGE, Environment
from mist_sim.hardware.gpu_group import GpuMachine
from mist_sim.lifecycle.start_up import StartTimes, StartUp
from mist_sim.network import Network, Seat, Ways


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


class Starts:
    """Begins starts of clients."""

    def __init__(
        self,
        env: Environment,
        options: StartUp | None,
        times: StartTimes,
        network: Network | None,
    ) -> None:
        self._env = env
        self._options = options
        self._times = times
        self._network = network

    def begin(self, client: Client) -> Event:
        """Begin the start of a client; the event happens when it is ready.

        Every engine loads its own weights. Loads of an abandoned start run to their end.
        """
        env, options = self._env, self._options
        ways, machine = loads_over(options, client, self._network), client.traits.machine
        if ways is None or options is None or machine is None:
            seconds = self._times.seconds(client.name, machine)
            return env.at(env.now + seconds, CHANGE)
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
