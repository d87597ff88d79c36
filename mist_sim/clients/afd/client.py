"""A client that decodes on a bundle of attention and FFN workers."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from math import inf, nan
from types import MappingProxyType
from typing import Literal

from simpy.events import Event

from mist_sim.bounds import COPIES
from mist_sim.clients.afd.bundle import Bundle
from mist_sim.clients.afd.config import BundleConfig
from mist_sim.clients.afd.engine import AfdStay, BundleEngine
from mist_sim.clients.afd.links import linked
from mist_sim.clients.afd.placement import PLACEMENTS
from mist_sim.clients.afd.seats import Seats
from mist_sim.clients.afd.track import BatchTrack
from mist_sim.clients.base import Client
from mist_sim.clients.kv_cache.moves.kv_move import GPU, KvMove
from mist_sim.clients.registry import CLIENTS
from mist_sim.core.recorder import Recorder
from mist_sim.core.visit import Visit
from mist_sim.environment import MOVE, Environment
from mist_sim.errors import ScenarioError
from mist_sim.hardware.afd import chosen_coefficients, named_coefficients
from mist_sim.models import load_model
from mist_sim.network import Fabric, Message, Seat, Tenant
from mist_sim.stages import Decode
from mist_sim.units import Bytes, Seconds

_COEFFICIENTS = ("alpha_a", "beta_a", "alpha_f", "beta_f", "alpha_c", "beta_c")


@CLIENTS.register("afd")
@dataclass(eq=False)
class AfdClient(Client):
    """A bundle of attention and FFN workers that decodes what prefill clients began.

    model: whose KV entries come.
    attention_workers: of the bundle (x of xA-yF).
    ffn_workers: of the bundle (y of xA-yF), who share a batch evenly.
    slots: requests of an attention worker in one batch.
    batches: in flight, each with slots of its own.
    coefficients: published ones by name; the six below take their place one by one.
    alpha_a: attention of a worker, cycles for each token that its slots hold.
    beta_a: attention, cycles that are fixed.
    alpha_f: FFN, cycles for each request in the batch of an FFN worker.
    beta_f: FFN, cycles that are fixed.
    alpha_c: communication both ways, cycles for each of these requests.
    beta_c: communication, cycles that are fixed.
    communication: coefficients, as they say; or topology, as the links of the network between the
        GPUs of the workers say, with beta_c, if it is given, on top.
    place: where the GPUs of the attention workers are in network.topology, node1 or node1/gpu4;
        null: the first node with room.
    ffn_place: the same of the FFN workers.
    attention_gpus: GPUs of an attention worker.
    ffn_gpus: GPUs of an FFN worker.
    cycle_s: how long a cycle is.
    static_graph: an empty slot costs FFN and communication as much as a full one.
    layers: into which a step is divided evenly, each of which goes to the FFN and back; null: a
        step goes there and back once.
    joint_steps: all batches begin each step together, as parts of one batch of an engine do; needs
        layers. Else each begins its next step as soon as it is back.
    placement: the attention worker that a request comes to: random among free slots, or least_load,
        the one that holds the fewest tokens.
    max_model_len: longest context; answers are cut there.
    kv_memory: for KV entries, of one attention worker; slots of the longest context must fit.
    kv_cache_dtype: how entries are stored; auto as the model says.
    Raises ValueError for numbers out of range, coefficients that are missing, slots without memory.
    Source: arXiv 2601.21351v3, section 5.1.
    """

    name: str
    _: KW_ONLY
    model: str
    attention_workers: int
    ffn_workers: int = 1
    slots: int
    batches: int = 2
    coefficients: str | None = None
    alpha_a: float | None = None
    beta_a: float | None = None
    alpha_f: float | None = None
    beta_f: float | None = None
    alpha_c: float | None = None
    beta_c: float | None = None
    cycle_s: Seconds
    communication: Literal["coefficients", "topology"] = "coefficients"
    place: str | None = None
    ffn_place: str | None = None
    attention_gpus: int = 1
    ffn_gpus: int = 1
    static_graph: bool = True
    layers: int | None = None
    joint_steps: bool = False
    placement: Literal["random", "least_load"] = "random"
    max_model_len: int | None = None
    kv_memory: Bytes | None = None
    kv_cache_dtype: str = "auto"
    role: str = field(default="decode", init=False)
    settings = MappingProxyType({"tpot": None})  # nobody compared it
    can_fail = False  # a pass in flight is not discarded

    def __post_init__(self) -> None:
        super().__init__(self.name, (Decode.kind,))
        if not 0 < self.cycle_s < inf:
            raise ValueError(f"cycle_s must be finite and > 0 s, got {self.cycle_s}")
        if self.placement not in PLACEMENTS:
            known = ", ".join(PLACEMENTS)
            raise ValueError(f"placement must be one of {known}, got {self.placement!r}")
        base = named_coefficients(self.coefficients) if self.coefficients else None
        given = {name: getattr(self, name) for name in _COEFFICIENTS}
        self._check_gpus()
        if self.communication == "topology":
            given |= {"alpha_c": 0.0, "beta_c": self.beta_c or 0.0}  # the links' share comes later
        self.config = BundleConfig(
            coefficients=chosen_coefficients(base, given).times(self.cycle_s),
            attention_workers=self.attention_workers,
            ffn_workers=self.ffn_workers,
            slots=self.slots,
            batches=self.batches,
            static_graph=self.static_graph,
            layers=self.layers,
            joint_steps=self.joint_steps,
        )
        published = base is not None and not any(value is not None for value in given.values())
        self.estimate = "fitted" if published else "given"  # all that are published are fitted
        model = load_model(self.model).with_dtypes(kv_cache=self.kv_cache_dtype)
        self.kv_bytes_per_token = model.kv_bytes_per_token
        self._model = model
        self.num_seats = self.attention_workers
        self.served_model = self.model
        self._check_memory()

    def _check_gpus(self) -> None:
        if self.communication not in ("coefficients", "topology"):
            raise ValueError(
                f"communication must be coefficients or topology, got {self.communication!r}"
            )
        if self.communication == "topology" and self.alpha_c is not None:
            raise ValueError(
                "alpha_c must not be set with communication: topology, which derives it, "
                f"got {self.alpha_c}"
            )
        for name in ("attention_gpus", "ffn_gpus"):
            if not 1 <= getattr(self, name) <= COPIES:
                raise ValueError(f"{name} must be from 1 to {COPIES}, got {getattr(self, name)}")

    def tenants(self, takes: bool) -> list[Tenant]:
        """Return what its workers need of a network.

        takes: whether clients hand KV entries over, which come to the attention workers.
        """
        x, y = self.attention_workers, self.ffn_workers
        attention = Tenant(self.name, x, 1, self.attention_gpus, self.place, takes=takes)
        ffn = Tenant(self.name, y, 1, self.ffn_gpus, self.ffn_place, first=x, what="FFN workers")
        return [attention, ffn]

    def _check_memory(self) -> None:
        longest = self.max_model_len
        if longest is not None and longest < 2:
            raise ValueError(f"max_model_len must be >= 2 tokens, got {longest}")
        if self.kv_memory is None:
            return
        if longest is None:
            raise ValueError("max_model_len is required with kv_memory, which holds so many tokens")
        of_a_slot = longest * self.kv_bytes_per_token * self.batches
        most = int(self.kv_memory // of_a_slot)
        if most < 1:
            raise ValueError(
                f"kv_memory must be >= {of_a_slot / 2**30:.2f} GiB, a context of {longest} tokens "
                f"in each of {self.batches} batches, got {self.kv_memory / 2**30:.2f} GiB"
            )
        if self.slots > most:
            raise ValueError(
                f"slots must be <= {most}: kv_memory of {self.kv_memory / 2**30:.1f} GiB holds so "
                f"many contexts of {longest} tokens in each of {self.batches} batches, "
                f"got {self.slots}"
            )

    def start(self, env: Environment, client_id: int, recorder: Recorder) -> None:
        """Join a simulation: all slots are free."""
        super().start(env, client_id, recorder)
        self.view.role = self.role
        if self.communication == "topology":
            if not isinstance(self.network, Fabric):
                raise ScenarioError(
                    f"{self.name}: communication must be coefficients where the network has no "
                    f"topology, got {self.communication}"
                )
            attention, ffn = self.tenants(takes=False)
            c = linked(self.config.coefficients, self.network, attention, ffn, self._model)
            self.config = replace(self.config, coefficients=c)
        self.bundle = Bundle(self.config)
        self.tracks = [BatchTrack(recorder, client_id) for _ in range(self.batches)]
        rng = self.streams.generator(f"{self.name}: placement")
        self._engine = BundleEngine(
            env,
            client_id,
            self.bundle,
            Seats(self.bundle, PLACEMENTS[self.placement](rng)),
            self.tracks,
            fetch=self._fetch,
            leave=self._leave,
            num_waiting=lambda: self.view.num_waiting,
        )

    def new_stay(self, visit: Visit) -> AfdStay:
        """Return the record of a visit: what of the answer is there, and what is left."""
        kv = visit.kv
        num_prompt = kv.num_prompt_tokens if kv else 0
        num_before = kv.num_output_tokens if kv else 0
        num_steps = sum(stage.num_tokens for stage in visit.stages if isinstance(stage, Decode))
        if self.max_model_len is not None:
            num_steps = min(num_steps, self.max_model_len - num_prompt - num_before)
        stay = AfdStay(visit, num_prompt, num_before + num_steps)
        stay.num_queued_tokens = 0
        stay.num_tokens += num_before
        stay.num_before = num_before
        stay.num_steps = num_steps
        if kv is not None:
            stay.num_held = kv.num_tokens
            stay.incoming = kv
            stay.last_token_at = kv.last_token_at
        return stay

    def accept(self, visit: Visit) -> None:
        stay = self._stay(visit)
        if stay.num_steps > 0:
            self._engine.add_request(stay)
            return
        visit.is_cut = True
        self.begin(visit)
        self.finish(visit)

    def abort(self, visit: Visit) -> None:
        """One that waits goes at once, one in a step at its end."""
        self._engine.abort(self._stay(visit))

    def _stay(self, visit: Visit) -> AfdStay:
        stay = self.stays[visit]
        if not isinstance(stay, AfdStay):
            raise TypeError(f"{self.name}: new_stay must return an AfdStay, got {stay!r}")
        return stay

    def _fetch(self, stay: AfdStay) -> Event:
        """Bring the KV entries of a request to its attention worker, in one piece a layer."""
        kv, visit, begun = stay.incoming, stay.visit, self.env.now
        if self.network is None or kv is None:
            raise ScenarioError(
                f"{self.name}: a network is required, over which KV entries come here"
            )
        self.begin(visit)
        kv.begin_copy()
        message = Message(
            Seat(kv.source, kv.engine),
            Seat(self.name, stay.seat.worker if stay.seat else 0),
            kv.num_tokens * self.kv_bytes_per_token,
            self._model.num_layers,
            kv.compute_time,
        )
        after = self.network.post_processing(message)
        ready = arrival = self.network.send(message)
        if after:
            ready = Event(self.env)
            arrival.callbacks.append(lambda _: self.env.trigger(ready, self.env.now + after, MOVE))

        def come(_: Event) -> None:
            if stay.seat is not None:
                blocks = kv.num_tokens  # of one token
                move = KvMove("hand_over", stay, kv.source, GPU, blocks, kv.num_tokens)
                self.tracks[stay.seat.batch].records.move(
                    move, message.num_bytes, begun, self.env.now
                )

        arrival.callbacks.append(lambda _: kv.release())
        ready.callbacks.append(come)
        return ready

    def _leave(self, stay: AfdStay, num_tokens: int) -> None:
        """Hand back a visit with so many tokens."""
        visit = stay.visit
        visit.num_output_tokens = num_tokens
        if num_tokens:
            visit.last_token_at = stay.last_token_at
        self.finish(visit)

    @property
    def idle_shares(self) -> tuple[float, float]:
        """Shares of the time until the last step's end in which attention and FFN workers waited.

        NaN before the first step.
        """
        end = self.bundle.last_end
        if not end:
            return nan, nan
        attention = self.bundle.attention_work / self.attention_workers
        return 1 - attention / end, 1 - self.bundle.ffn_work / self.ffn_workers / end
