"""A client that runs a language model: prefill and decode in the steps of its engines."""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Sequence as Stages

from simpy.events import Event

from mist_sim.clients.base import Client
from mist_sim.clients.decode.draft_paths import DraftPaths
from mist_sim.clients.decode.speculative_clock import Speculation
from mist_sim.clients.engine.kv_state import EngineKvState
from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.engine.replicas import Engines, lane_schedulers
from mist_sim.clients.engine.step_records import StepRecords
from mist_sim.clients.kv_cache import (
    CacheTier,
    SwapSpace,
    lane_memory,
)
from mist_sim.clients.overload import AdmissionControl, Gate, PromptBacklog
from mist_sim.clients.scheduling import Scheduler
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import Stage
from mist_sim.core.views import WAITING
from mist_sim.core.visit import Failure, Visit
from mist_sim.environment import Environment
from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors.base import Predictor
from mist_sim.hardware.predictors.ranks import PipelinePredictor
from mist_sim.models.kv_groups import KvGroups
from mist_sim.models.speculative import SpeculativeConfig
from mist_sim.stages import Decode, Prefill

ENGINES_A_CLIENT = 2**16  # at most; numbers engines across clients


class LlmClient(Client):
    """Takes visits of prefill and decode, and has engines serve them.

    scheduler: the batching policy; one object for each client, of which several engines and the
        lanes of a pipeline have copies. Its `max_num_seqs` is an engine's, whose lanes share it.
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
    ) -> None:
        super().__init__(name, frozenset({Prefill.kind, Decode.kind}))
        self.scheduler = scheduler
        self.predictor = predictor
        num_lanes = len(predictor.ranks) if isinstance(predictor, PipelinePredictor) else 1
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
        self.estimate = getattr(predictor, "estimate", "custom")
        self.schedulers = lane_schedulers(scheduler, data_parallel_size, num_lanes)
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
        if getattr(self.predictor, "needs_longest_context", False):
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
        self._tier_links = [self.memory.links() for _ in range(self.data_parallel_size)]
        self._engines = Engines(
            env,
            self.schedulers,
            self.predictor,
            self._lane,
            lockstep=self.lockstep,
            async_scheduling=self.async_scheduling,
            rank=client_id * ENGINES_A_CLIENT,
        )
        self._kv_state = EngineKvState(env, self._engines, self.memory.block_size, self.stays)
        self.view.kv = self._kv_state

    def _lane(self, scheduler: Scheduler, engine: int) -> Lane:
        lane = Lane(
            self.env,
            scheduler,
            self.memory.manager(self._tier_links[engine]),
            records=StepRecords(self.recorder, self.client_id, self.predictor),
            load=self.view,
            leave=self._leave,
            speculation=self._speculation(),
            gate=self._gate,
            swap_space=self.memory.swap_space,
        )
        if getattr(self.predictor, "needs_longest_context", False):
            scheduler.clock.watch_longest()
        return lane

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
        """A visit is one prompt and its tokens; the next turn's prompt is a visit of its own."""
        if stages[0].kind != Prefill.kind:
            return 0  # the KV entries of a bare decode are not here
        num_stages = 1
        while num_stages < len(stages) and stages[num_stages].kind == Decode.kind:
            num_stages += 1
        return num_stages

    def new_stay(self, visit: Visit) -> SequenceState:
        """Return the engine's view of a visit: one prompt, and the tokens to generate."""
        num_prompt_tokens = 0
        num_output_tokens = 0
        for stage in visit.stages:
            if isinstance(stage, Prefill):
                num_prompt_tokens += stage.num_prompt_tokens
                num_output_tokens += 1
            elif isinstance(stage, Decode):
                num_output_tokens += stage.num_tokens
        return SequenceState(visit, num_prompt_tokens, num_output_tokens)

    def accept(self, visit: Visit) -> None:
        sequence, content = self.stays[visit], visit.request.content
        if content:
            self._kv_state.accept(visit.request)
        reason = self._limit_length(sequence) or self.schedulers[0].refusal(sequence)
        if reason is not None:
            self.reject(visit, reason)
            return
        num_before = self.view.num_waiting - 1
        busy = self._gate and self._gate.refusal(sequence, num_before, self.env.now)
        if busy:
            self.reject(visit, busy, is_busy=True)
            return
        if content and self.history and self.memory.caches_prefixes:
            known = min(self.history.meet(content), sequence.num_prompt_tokens - 1)
            visit.num_known_tokens = known - known % self.memory.block_size
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
        if (lane := sequence.lane) is not None:
            lane.engine.abort(sequence, lane)
            return
        if self._gate is not None:  # it is on its way to an engine
            self._gate.prompt_is_done(sequence)
        self.finish(visit)

    def finish(self, visit: Visit) -> None:
        super().finish(visit)
        if visit.request.content:
            self._kv_state.finish(visit.request)

    def _leave(self, visit: Visit, rejection: str | None) -> None:
        """Take back a visit from the engine."""
        if rejection is None:
            self.finish(visit)
        else:
            self.reject(visit, rejection)
