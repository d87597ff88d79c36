"""When a client that starts is ready: after some seconds, or when its weights have come."""

from __future__ import annotations

from simpy.events import Event

from mist_sim.clients import Client, LlmClient
from mist_sim.environment import CHANGE, Environment
from mist_sim.lifecycle.start_up import StartTimes, StartUp, weight_bytes
from mist_sim.network import Fabric, Network, Seat


def loads_over(options: StartUp | None, client: Client, network: Network | None) -> Fabric | None:
    """Return the topology over which a client loads its weights; None: nobody shares its links."""
    if options is None or options.time is not None or not isinstance(network, Fabric):
        return None
    return network if isinstance(client, LlmClient) and client.machine is not None else None


def seats_of(client: Client) -> list[Seat]:
    """Return the engines of a client."""
    return [Seat(client.name, engine) for engine in range(client.num_seats)]


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
        """Let a client begin to start; the event happens when it is ready.

        Every engine loads weights of its own. What is under way when a start is given up goes on.
        """
        env, options = self._env, self._options
        fabric = loads_over(options, client, self._network)
        if fabric is None or options is None or client.machine is None:
            seconds = self._times.seconds(client.name, client.machine)
            return env.at(env.now + seconds, CHANGE)
        seats, ready = seats_of(client), Event(env)
        num_bytes = options.bytes_to_load(weight_bytes(client.machine)) * len(seats)
        loaded = fabric.read(seats, options.store, num_bytes, 0.0)

        def start_engine(_: Event) -> None:
            env.trigger(ready, env.now + options.engine_seconds, CHANGE)

        loaded.callbacks.append(start_engine)
        return ready
