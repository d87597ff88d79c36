"""A client that decodes on a bundle of attention and FFN workers."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from math import ceil, inf, nan
from typing import Literal

from mist_sim.bounds import COPIES
from mist_sim.clients.afd.bundle import Bundle, BundleConfig
from mist_sim.clients.afd.bundle_engine import AfdStay, BundleEngine
from mist_sim.clients.afd.seats import Seats
from mist_sim.clients.afd.track import BatchTrack
from mist_sim.clients.afd.worker_placement import PLACEMENTS
from mist_sim.clients.base import Client
from mist_sim.clients.kv_cache.moves import GPU, KvMove
from mist_sim.clients.registry import CLIENTS
from mist_sim.clients.stay import Stay
from mist_sim.clients.stores import EntryForm, Mover, OtherClients, Stores
from mist_sim.clients.traits import ClientTraits, EngineGroup, KvForm, TimesOrigin
from mist_sim.core.recorder import Recorder
from mist_sim.core.visit import Visit
from mist_sim.environment import Environment
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, GpuSpec, load_gpu
from mist_sim.hardware.afd import (
    AfdCoefficients,
    AttentionGpus,
    BundleMachine,
    BundleShape,
    FfnGpus,
    activation_bytes,
    chosen_coefficients,
    named_coefficients,
)
from mist_sim.models import ModelSpec, load_generating
from mist_sim.network import Seat, Tenant, Ways
from mist_sim.stages import Decode
from mist_sim.units import Bytes, DollarsPerHour, Seconds

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGpus:
    """The options of a bundle that describe its GPUs.

    gpu: GPU of attention workers, and of FFN workers if `ffn_gpu` is None; None: unknown.
    attention, ffn: GPUs of a worker of each kind. price, ffn_price: dollars of a GPU an hour; None:
    as the catalog says. kv_memory: bytes for KV entries of an attention worker; None: not known.

    Raises ValueError for prices out of range, and for options that need an unset GPU.
    """

    gpu: str | GpuSpec | None
    ffn_gpu: str | GpuSpec | None
    attention: int
    ffn: int
    price: float | None
    ffn_price: float | None
    kv_memory: float | None

    def __post_init__(self) -> None:
        for name, value in (("gpu_price", self.price), ("ffn_gpu_price", self.ffn_price)):
            if value is not None and not 0 <= value < inf:
                raise ValueError(f"{name} must be finite and >= 0 $/h, got {value}")
        for name, said, needed, gpu in (
            ("ffn_gpu", self.ffn_gpu, "gpu", self.gpu),
            ("gpu_price", self.price, "gpu", self.gpu),
            ("ffn_gpu_price", self.ffn_price, "ffn_gpu", self.ffn_gpu),
        ):
            if said is not None and gpu is None:
                raise ValueError(f"{needed} is required with {name}")

    def machine(self, model: ModelSpec, config: BundleConfig) -> BundleMachine | None:
        """Return the machine of a bundle; None if its GPUs are unknown.

        Raises ValueError if weights and `kv_memory` do not fit, and ScenarioError for an unknown
        GPU.
        """
        if self.gpu is None:
            return None
        gpu = load_gpu(self.gpu)
        ffn_gpu = gpu if self.ffn_gpu is None else load_gpu(self.ffn_gpu)
        self._check_split(model)
        shape = BundleShape(
            coefficients=config.coefficients,
            attention_workers=config.attention_workers,
            ffn_workers=config.ffn_workers,
            slots=config.slots_per_batch,
            static_graph=config.static_graph,
        )
        attention = AttentionGpus(
            model=model,
            cluster=Cluster(gpu, self.attention),
            number=config.attention_workers,
            shape=shape,
            price=self.price,
        )
        spreads = model.moe is not None and self.ffn > 1
        ffn = FfnGpus(
            model=model,
            cluster=Cluster(ffn_gpu, self.ffn, enable_expert_parallel=spreads),
            number=config.ffn_workers,
            shape=shape,
            price=self.price if self.ffn_gpu is None else self.ffn_price,
        )
        self._check_memory(attention, ffn)
        return BundleMachine(attention, ffn)

    def _check_split(self, model: ModelSpec) -> None:
        """Raise ValueError for a model that cannot be divided among the GPUs of a worker."""
        if model.layers:
            raise ValueError(f"model must have layers that are alike; those of {model.name} differ")
        if model.num_attention_heads % self.attention:
            raise ValueError(
                f"attention_gpus must divide the {model.num_attention_heads} attention heads of "
                f"{model.name}, got {self.attention}"
            )
        if model.moe is not None and model.moe.num_experts < self.ffn:
            raise ValueError(
                f"ffn_gpus must be <= {model.moe.num_experts}, the experts of {model.name}, "
                f"got {self.ffn}"
            )
        if model.moe is None and model.intermediate_size % self.ffn:
            raise ValueError(
                f"ffn_gpus must divide the MLP size {model.intermediate_size} of {model.name}, "
                f"got {self.ffn}"
            )

    def _check_memory(self, attention: AttentionGpus, ffn: FfnGpus) -> None:
        """Raise ValueError for workers that do not hold their weights and KV entries."""
        kv_memory = self.kv_memory or 0.0
        beside = f" and {kv_memory / _GIB:.1f} GiB of kv_memory" if kv_memory else ""
        for name, workers, more in (("attention", attention, kv_memory), ("ffn", ffn, 0.0)):
            needed, gpu = workers.weight_bytes + more, workers.gpu
            if needed > workers.gpus_an_engine * gpu.memory:
                raise ValueError(
                    f"{name}_gpus must be >= {ceil(needed / gpu.memory)}: weights of "
                    f"{workers.weight_bytes / _GIB:.1f} GiB{beside if more else ''} are on each "
                    f"worker, and {gpu.name} has {gpu.memory / _GIB:.1f} GiB; "
                    f"got {workers.gpus_an_engine}"
                )


def linked(
    coefficients: AfdCoefficients,
    ways: Ways,
    attention: Tenant,
    ffn: Tenant,
    model: ModelSpec,
) -> AfdCoefficients:
    """Return coefficients in seconds, with the communication of a step that the links allow.

    In each layer every attention GPU sends an equal part of the activations to every FFN GPU, all
    at once, and gets as much back. The links are assumed to carry nothing else. `beta_c`
    comes on top of latencies. attention, ffn: the workers.
    """
    there = ways.exchange(attention.seats, ffn.seats)
    back = ways.exchange(ffn.seats, attention.seats)
    bytes_there, bytes_back = activation_bytes(model)
    per_request = bytes_there * there.time_per_byte + bytes_back * back.time_per_byte
    return replace(
        coefficients,
        # of the requests in the batch of one FFN worker, and all share the links
        alpha_c=model.num_layers * per_request * ffn.data,
        beta_c=coefficients.beta_c + model.num_layers * (there.latency + back.latency),
    )


_COEFFICIENTS = ("alpha_a", "beta_a", "alpha_f", "beta_f", "alpha_c", "beta_c")


@CLIENTS.register("afd")
@dataclass(eq=False)
class AfdClient(Client):
    """A bundle of attention and FFN workers that decodes answers begun by prefill clients.

    model: model of the KV entries.
    attention_workers: attention workers of the bundle (x of xA-yF).
    ffn_workers: FFN workers of the bundle (y of xA-yF), which share each batch evenly.
    slots: requests per attention worker and batch.
    batches: batches in flight, each with its own slots.
    coefficients: published coefficients by name; each of the next six overrides one.
    alpha_a: attention time per token in a worker's slots, cycles.
    beta_a: fixed attention time, cycles.
    alpha_f: FFN time per request in an FFN worker's batch, cycles.
    beta_f: fixed FFN time, cycles.
    alpha_c: communication time, both ways, per such request, cycles.
    beta_c: fixed communication time, cycles.
    communication: how its time is computed: from `coefficients`; or `topology`, from the network's
        links between the GPUs of the workers, plus beta_c if it is given.
    place: where the GPUs of the attention workers are in network.topology, node1 or node1/gpu4;
        null: the first node with room.
    ffn_place: place of the FFN workers' GPUs.
    attention_gpus: GPUs per attention worker.
    ffn_gpus: GPUs per FFN worker, over which whole experts are spread.
    gpu: GPU of the attention workers, and of the FFN workers if ffn_gpu is null: for power, cost
        and start-up; times do not depend on it. null: unknown.
    ffn_gpu: GPU of the FFN workers, if different.
    gpu_price: dollars per hour of one gpu, in place of the catalog's.
    ffn_gpu_price: dollars per hour of one ffn_gpu.
    cycle_s: length of a cycle.
    static_graph: whether an empty slot costs as much FFN and communication time as a full one.
    layers: a step is divided into them evenly, and each goes to the FFN and back; null: a step goes
        there and back once.
    joint_steps: whether all batches begin each step together, as parts of one batch of an engine;
        needs layers. Otherwise each begins its next step as soon as it is back.
    placement: how requests choose an attention worker: random among free slots, or least_load, the
        worker with the fewest tokens.
    max_model_len: longest context; answers are cut there.
    kv_memory: memory for KV entries per attention worker; slots of the longest context must fit.
    kv_cache_dtype: how entries are stored; auto as the model says.
    Raises ValueError for numbers out of range, coefficients that are missing, slots without memory,
    and GPUs that the model cannot be divided among, or that are too small.
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
    gpu: str | GpuSpec | None = None
    ffn_gpu: str | GpuSpec | None = None
    gpu_price: DollarsPerHour | None = None
    ffn_gpu_price: DollarsPerHour | None = None
    static_graph: bool = True
    layers: int | None = None
    joint_steps: bool = False
    placement: Literal["random", "least_load"] = "random"
    max_model_len: int | None = None
    kv_memory: Bytes | None = None
    kv_cache_dtype: str = "auto"

    def __post_init__(self) -> None:
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
        model = load_generating(self.model).with_dtypes(kv_cache=self.kv_cache_dtype)
        self.kv_bytes_per_token = model.kv_bytes_per_token
        self._model, self._as_given = model, self.config
        super().__init__(self.name, self._describe("fitted" if published else "given"))
        self._check_memory()

    def _describe(self, estimate: str) -> ClientTraits:
        """Return the bundle's traits. estimate: fitted (all published coefficients) or given.

        Its times were never compared with measurements.
        """
        x, y, longest = self.attention_workers, self.ffn_workers, self.max_model_len
        limit = (inf, "nothing limits it")
        return ClientTraits(
            serves=(Decode.kind,),
            model=self.model,
            role="decode",
            entries=KvForm(dtype=self._model.kv_cache_dtype, block_bytes=self.kv_bytes_per_token),
            takes_entries=True,
            longest_prompt=(longest - 1, f"by max_model_len={longest}") if longest else limit,
            engines=(
                EngineGroup(x, 1, self.attention_gpus),
                EngineGroup(y, 1, self.ffn_gpus, self.ffn_place, False, "FFN workers"),
            ),
            machine=self._gpus().machine(self._model, self.config),
            times=TimesOrigin(estimate=estimate, settings={"tpot": None}),
        )

    def _gpus(self) -> WorkerGpus:
        return WorkerGpus(
            gpu=self.gpu,
            ffn_gpu=self.ffn_gpu,
            attention=self.attention_gpus,
            ffn=self.ffn_gpus,
            price=self.gpu_price,
            ffn_price=self.ffn_gpu_price,
            kv_memory=self.kv_memory,
        )

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
        self.config = self._over_links() if self.communication == "topology" else self._as_given
        self.bundle = Bundle(self.config)
        self.tracks = [BatchTrack(recorder, client_id) for _ in range(self.batches)]
        rng = self.streams.generator(f"{self.name}: placement")
        self._engine = engine = BundleEngine(
            env,
            client_id,
            self.bundle,
            Seats(self.bundle, PLACEMENTS[self.placement](rng)),
            self.tracks,
            fetch=self._fetch,
            leave=self._leave,
            num_waiting=lambda: self.view.num_waiting,
        )
        workers = range(self.attention_workers)
        self._movers = [self._mover_to(worker, engine, self.tracks) for worker in workers]

    def _over_links(self) -> BundleConfig:
        """Return the bundle's configuration, with communication times computed from its links."""
        ways = self.network.ways if self.network is not None else None
        if ways is None:
            raise ScenarioError(
                f"{self.name}: communication must be coefficients where the network has no "
                f"topology, got {self.communication}"
            )
        attention, ffn = self.tenants()
        c = linked(self._as_given.coefficients, ways, attention, ffn, self._model)
        return replace(self._as_given, coefficients=c)

    def halt(self) -> None:
        """Lose the steps in flight; steps that have ended count."""
        self._engine.halt()

    def restart(self) -> None:
        """Come back, empty; workers that were away did not work."""
        before = self.bundle
        super().restart()
        self.bundle.attention_work, self.bundle.ffn_work = before.attention_work, before.ffn_work
        self.bundle.last_end = before.last_end

    def new_stay(self, visit: Visit) -> AfdStay:
        """Return the record of a visit, with the tokens of the answer done and left."""
        kv = visit.kv
        num_prompt = kv.num_prompt_tokens if kv else 0
        num_before = kv.num_output_tokens if kv else 0
        num_steps = sum(stage.num_tokens for stage in visit.stages if isinstance(stage, Decode))
        if self.max_model_len is not None:
            num_steps = min(num_steps, self.max_model_len - num_prompt - num_before)
        stay = AfdStay(visit, num_prompt, num_before + num_steps)
        stay.num_steps = num_steps
        if kv is not None:
            stay.num_held = kv.num_tokens
            stay.continue_from(kv)
        return stay

    def accept(self, visit: Visit) -> None:
        """Queue an answer for a slot; one that has no steps left ends at once."""
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
        return self._as_afd(self.stays[visit])

    def _as_afd(self, stay: Stay) -> AfdStay:
        if not isinstance(stay, AfdStay):
            raise TypeError(f"{self.name}: new_stay must return an AfdStay, got {stay!r}")
        return stay

    def _mover_to(self, worker: int, engine: BundleEngine, tracks: list[BatchTrack]) -> Mover:
        """Return the mover that brings requests' KV entries to an attention worker.

        Entries come in one piece per layer, and count as blocks of one token. If the bundle fails
        meanwhile, they arrive at the engine it had before.
        """

        def record(move: KvMove, num_bytes: float, start: float, end: float) -> None:
            seat = self._as_afd(move.sequence).seat
            if seat is not None:
                tracks[seat.batch].records.move(move, num_bytes, start, end)

        def end_move(move: KvMove) -> None:
            engine.arrive(self._as_afd(move.sequence))

        form = EntryForm(
            block_bytes=self.kv_bytes_per_token,
            block_size=1,
            num_layers=self._model.num_layers,
            in_blocks=False,
        )
        others = OtherClients(self.env, self.network, Seat(self.name, worker), form)
        return Mover(self.env, Stores(others), record, end_move)

    def _fetch(self, stay: AfdStay) -> None:
        """Begin to bring the KV entries of a request to its attention worker."""
        kv, seat = stay.incoming, stay.seat
        if kv is None or seat is None:
            raise ScenarioError(f"{self.name}: {stay.visit.request} must come with KV entries")
        self.begin(stay.visit)
        num_tokens = kv.num_tokens
        move = KvMove("hand_over", stay, kv.source, GPU, num_tokens, num_tokens)
        self._movers[seat.worker].begin(move)

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

        A time in which the bundle was away counts as waiting. NaN before the first step.
        """
        end = self.bundle.last_end
        if not end:
            return nan, nan
        attention = self.bundle.attention_work / self.attention_workers
        return 1 - attention / end, 1 - self.bundle.ffn_work / self.ffn_workers / end
