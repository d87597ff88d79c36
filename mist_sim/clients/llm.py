"""A client that runs a language model: prefill and decode in the steps of its engines."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from collections.abc import Sequence as Stages
from typing import Literal

from simpy.events import Event

from mist_sim.clients.base import Client
from mist_sim.clients.decode.draft_paths import DraftPaths
from mist_sim.clients.decode.speculative_clock import Speculation
from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.engine.replicas import Engines, lane_shares
from mist_sim.clients.engine.step_records import StepRecords
from mist_sim.clients.kv_cache import (
    CacheTier,
    SwapSpace,
    lane_memory,
)
from mist_sim.clients.overload import AdmissionControl, Gate, PromptBacklog
from mist_sim.clients.scheduling import LaneState, Scheduler
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import Stage
from mist_sim.core.views import WAITING
from mist_sim.core.visit import Failure, Visit
from mist_sim.environment import Environment
from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors.base import Predictor
from mist_sim.hardware.predictors.ranks import PipelinePredictor, ranks_of
from mist_sim.models.kv_groups import KvGroups
from mist_sim.models.speculative import SpeculativeConfig
from mist_sim.stages import Decode, Prefill

ENGINES_A_CLIENT = 2**16  # at most; numbers engines across clients


Role = Literal["prefill", "decode"]

ROLES: Mapping[Role | None, frozenset[str]] = {
    None: frozenset({Prefill.kind, Decode.kind}),
    "prefill": frozenset({Prefill.kind}),
    "decode": frozenset({Decode.kind}),
}
"""The stages that a client of each role serves."""


class LlmClient(Client):
    """Takes visits of prefill and decode, and has engines serve them.

    scheduler: the batching policy; may be shared. Its `max_num_seqs` is an engine's, and the lanes
        of a pipeline share it.
    predictor: times the steps; may be shared. A `PipelinePredictor` makes an engine a pipeline
        with as many lanes as ranks.
    num_gpu_blocks, block_size, watermark: KV-cache memory of an engine (see `KvCacheConfig`), of
        which each lane has an equal part (vLLM v0 divides by pipeline_parallel_size as well).
    data_parallel_size: engines; a request goes to the least loaded one (vLLM's name).
    lockstep: whether these share their experts, so that they step together.
    kv_groups: how the layers of a model with sliding windows share the blocks; None: the model
        has none.
    enable_prefix_caching: whether full blocks are kept for later requests with equal tokens.
        None, as in vLLM v1: yes.
    cache_tiers: memory below the GPU that the prefix cache is written to, the nearest first.
        Every engine has its own, and each lane of a pipeline an equal part of that; the lanes
        share the links.
    swap_space: where an engine keeps the blocks of preempted sequences, for a scheduler whose
        `preemption` is "swap"; the lanes of a pipeline have equal parts of it.
    max_model_len: most tokens of a prompt and its answer; a longer prompt is refused, a longer
        answer ends there (vLLM's name and meaning). None: no limit.
    request_overhead, prompt_token_overhead: seconds from arrival until a request can be scheduled,
        for each request and for each token of its prompt.
    speculative_config: how the engine drafts tokens; None: it does not. The predictor's step
        times include the drafting.
    async_scheduling: whether a step is planned while the step before it runs (vLLM's name).
    admission: which requests are turned away when the engine is too busy.
    role: "prefill" or "decode" for a client that serves only that; None: both, in one visit.
    kv_block_bytes: size of a block over all GPUs of an engine; None: nothing can come here.
    Raises ScenarioError for parts that do not go together.
    """

    def __init__(
        self,
        name: str,
        *,
        scheduler: Scheduler,
        predictor: Predictor | PipelinePredictor,
        num_gpu_blocks: int,
        block_size: int = 16,
        watermark: float = 0.0,
        data_parallel_size: int = 1,
        lockstep: bool = False,
        kv_groups: KvGroups | None = None,
        enable_prefix_caching: bool | None = None,
        cache_tiers: Stages[CacheTier] = (),
        swap_space: SwapSpace | None = None,
        max_model_len: int | None = None,
        request_overhead: float = 0.0,
        prompt_token_overhead: float = 0.0,
        speculative_config: SpeculativeConfig | None = None,
        async_scheduling: bool = False,
        admission: AdmissionControl | None = None,
        role: Role | None = None,
        kv_block_bytes: float | None = None,
    ) -> None:
        super().__init__(name, ROLES[role])
        self.role = role
        self.kv_block_bytes = kv_block_bytes
        self.scheduler = scheduler
        self.predictor = ranks_of(predictor)
        num_lanes = len(self.predictor.ranks)
        if data_parallel_size < 1:
            raise ScenarioError(f"data_parallel_size must be >= 1, got {data_parallel_size}")
        self.memory = lane_memory(
            num_lanes,
            num_gpu_blocks=num_gpu_blocks,
            block_size=block_size,
            watermark=watermark,
            kv_groups=kv_groups,
            speculative_config=speculative_config,
            enable_prefix_caching=enable_prefix_caching,
            cache_tiers=cache_tiers,
            swap_space=swap_space,
            swaps=scheduler.preemption == "swap",
        )
        self.num_gpu_blocks = num_gpu_blocks * data_parallel_size
        self.data_parallel_size = data_parallel_size
        self.lockstep = lockstep
        self.max_model_len = max_model_len
        self.request_overhead = request_overhead
        self.prompt_token_overhead = prompt_token_overhead
        self.speculative_config = speculative_config
        self.async_scheduling = async_scheduling
        self.admission = admission or AdmissionControl()
        self.estimate = self.predictor.traits.estimate
        self._shares = lane_shares(scheduler.max_num_seqs, data_parallel_size, num_lanes)
        if async_scheduling:
            self._check_async(num_lanes)
        if speculative_config:
            self._check_speculation(speculative_config)

    def _check_async(self, num_lanes: int) -> None:
        other = ""
        if num_lanes > 1:
            other = f"pipeline_parallel_size {num_lanes}"
        elif self.lockstep:
            other = f"enable_expert_parallel and data_parallel_size {self.data_parallel_size}"
        elif self.speculative_config:
            other = "speculative_config, where nobody knows a step ahead who finishes"
        if other:
            raise ScenarioError(
                f"async_scheduling must be false with {other}; that combination is not simulated"
            )

    def _check_speculation(self, config: SpeculativeConfig) -> None:
        if self.predictor.traits.needs_longest_context:
            raise ScenarioError(
                "speculative_config must be null with a predictor that asks for the longest "
                "context, such as a profile of uneven decodes; roofline times drafts"
            )
        if problem := self.scheduler.cannot_verify(config.num_speculative_tokens):
            raise ScenarioError(f"scheduler must {problem}")

    def start(self, env: Environment, client_id: int, recorder: Recorder) -> None:
        """Join a simulation: make the engines, with all blocks free and nobody waiting."""
        super().start(env, client_id, recorder)
        self.stays: dict[Visit, SequenceState]  # type: ignore[assignment]
        self._gate = self._make_gate()
        self.lane_states: list[LaneState] = []  # engine by engine
        self._tier_links = [self.memory.links() for _ in range(self.data_parallel_size)]
        self._engines = Engines(
            env,
            self._shares,
            self.predictor,
            self._lane,
            lockstep=self.lockstep,
            async_scheduling=self.async_scheduling,
            rank=client_id * ENGINES_A_CLIENT,
        )

    def _lane(self, max_num_seqs: int, engine: int) -> Lane:
        state = LaneState(
            self.memory.manager(self._tier_links[engine]),
            self.scheduler.new_queue(),
            max_num_seqs=max_num_seqs,
            speculation=self._speculation(),
            swap_space=self.memory.swap_space,
            plans_ahead=self.async_scheduling,
            needs_longest_context=self.predictor.traits.needs_longest_context,
        )
        self.lane_states.append(state)
        return Lane(
            self.env,
            self.scheduler,
            state,
            records=StepRecords(self.recorder, self.client_id, self.predictor.traits.steps_inside),
            load=self.view,
            leave=self._leave,
            receive=self._receive,
            gate=self._gate,
        )

    def _speculation(self) -> Speculation | None:
        config = self.speculative_config
        if config is None:
            return None
        return Speculation(
            config.num_speculative_tokens,
            config.num_lookahead_tokens,
            self.max_model_len,
            DraftPaths(self.streams, config.survival).draw,
        )

    def _make_gate(self) -> Gate | None:
        """Return what turns requests away, None where nothing does."""
        if self.admission == AdmissionControl():
            return None
        backlog = None
        if self.admission.early_rejection:
            history = self.memory.history()
            backlog = PromptBacklog(self.predictor, self.data_parallel_size, history)
        return Gate(self.admission.max_num_waiting, backlog, self._time_to_enter)

    def takes(self, stages: Stages[Stage]) -> int:
        """Return the stages of one visit: a prompt and the tokens after it, as far as it serves.

        The next turn's prompt is a visit of its own.
        """
        num_stages = int(stages[0].kind in self.serves)
        if num_stages and Decode.kind in self.serves:
            while num_stages < len(stages) and stages[num_stages].kind == Decode.kind:
                num_stages += 1
        return num_stages

    def new_stay(self, visit: Visit) -> SequenceState:
        """Return the engine's view of a visit: one prompt, and the tokens to generate.

        One that continues an answer knows its prompt and the tokens that others emitted.
        """
        kv = visit.kv
        num_prompt_tokens = kv.num_prompt_tokens if kv else 0
        num_before = num_output_tokens = kv.num_output_tokens if kv else 0
        for stage in visit.stages:
            if isinstance(stage, Prefill):
                num_prompt_tokens += stage.num_prompt_tokens
                num_output_tokens += 1
            elif isinstance(stage, Decode):
                num_output_tokens += stage.num_tokens
        sequence = SequenceState(visit, num_prompt_tokens, num_output_tokens)
        if kv is not None:
            sequence.num_tokens += num_before
            sequence.incoming = kv
            sequence.last_token_at = kv.last_token_at
        return sequence

    def accept(self, visit: Visit) -> None:
        sequence = self.stays[visit]
        reason = self._limit_length(sequence)
        reason = reason or self.scheduler.refusal(self.lane_states[0], sequence)
        if reason is not None:
            self.reject(visit, reason)
            return
        num_before = self.view.num_waiting - 1
        busy = self._gate and self._gate.refusal(sequence, num_before, self.env.now)
        if busy:
            self.reject(visit, busy, is_busy=True)
            return
        delay = self._time_to_enter(sequence)
        if delay:
            self.env.start(self._enter_later(sequence, delay))
        else:
            self._engines.add_request(sequence)

    def _time_to_enter(self, sequence: SequenceState) -> float:
        """Return the seconds from arrival until a sequence can be scheduled."""
        return self.request_overhead + self.prompt_token_overhead * sequence.num_prompt_tokens

    def _enter_later(self, sequence: SequenceState, delay: float) -> Generator[Event, object, None]:
        yield self.env.timeout(delay)
        if not sequence.visit.is_over:
            self._engines.add_request(sequence)

    def _limit_length(self, sequence: SequenceState) -> str | None:
        """Cut an answer at the longest context; return why a prompt is too long, or None."""
        if self.max_model_len is None:
            return None
        room = self.max_model_len - sequence.num_prompt_tokens
        sequence.num_target_tokens = min(sequence.num_target_tokens, room)
        if room > 0:
            return None
        return (
            f"a prompt of {sequence.num_prompt_tokens} tokens leaves no room for an answer in "
            f"max_model_len={self.max_model_len}"
        )

    def _watch(self, visit: Visit) -> None:
        super()._watch(visit)
        request = visit.request
        if self.admission.drop_expired and not request.has_token:
            self._deadlines.add(request.deadline, visit, "ttft_deadline")

    def _limit_reached(self, visit: Visit, limit: str) -> None:
        if limit != "ttft_deadline":
            super()._limit_reached(visit, limit)
        elif visit.outcome is None and not visit.has_token and self.stays[visit].phase == WAITING:
            reason = f"{self.name}: busy, its first token was due while it waited (drop_expired)"
            visit.outcome = Failure("rejected", self.env.now, reason, is_busy=True)
            self.abort(visit)

    def abort(self, visit: Visit) -> None:
        sequence = self.stays[visit]
        if sequence.lane is not None:
            sequence.lane.give_up(sequence)
            return
        if self._gate is not None:  # it is on its way to an engine
            self._gate.prompt_is_done(sequence)
        self.finish(visit)

    def _receive(self, num_blocks: int) -> Event:
        """Begin to copy blocks that another client holds; return the event of the end."""
        if self.network is None or self.kv_block_bytes is None:
            raise ScenarioError(
                f"{self.name}: a network and kv_block_bytes are required for KV entries of other "
                "clients to come here"
            )
        return self.network.send(num_blocks * self.kv_block_bytes)

    def _leave(self, visit: Visit, rejection: str | None) -> None:
        """Take back a visit from the engine."""
        if rejection is None:
            self.finish(visit)
        else:
            self.reject(visit, rejection)
