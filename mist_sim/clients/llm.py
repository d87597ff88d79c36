"""A client that runs a language model: prefill and decode in the steps of its engines."""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Sequence as Stages

from simpy.events import Event

from mist_sim.clients.base import Client
from mist_sim.clients.decode.draft_paths import DraftPaths
from mist_sim.clients.decode.speculative_clock import Speculation
from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.engine.replicas import Engines, lane_schedulers
from mist_sim.clients.engine.step_records import StepRecords
from mist_sim.clients.engine_config import EngineConfig
from mist_sim.clients.kv_cache import EngineMemory, lane_memory
from mist_sim.clients.overload import AdmissionControl, Gate, PromptBacklog
from mist_sim.clients.registry import CLIENTS
from mist_sim.clients.scheduling import Scheduler
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.events import Failure, Recorder, Visit
from mist_sim.core.request import Stage
from mist_sim.environment import Environment
from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors.base import Predictor
from mist_sim.hardware.predictors.ranks import PipelinePredictor
from mist_sim.models.speculative import SpeculativeConfig
from mist_sim.stages import Decode, Prefill


@CLIENTS.register("llm")
class LlmClient(Client):
    """Takes visits of prefill and decode, and has engines serve them.

    config: what the engines are (see `EngineConfig`), with a scheduler of the client's own; several
        engines and the lanes of a pipeline have copies of it. Its `max_num_seqs` is an engine's,
        whose lanes share it. Of the overhead, it is the times before a request can be scheduled
        that the client adds. `llm_client` resolves what is left open.
    predictor: times the steps, with drafting and overhead; may be shared. A `PipelinePredictor`
        makes an engine a pipeline with as many lanes as ranks.
    memory: the KV cache of each engine.
    Raises ScenarioError for parts that do not go together.
    """

    def __init__(
        self,
        name: str,
        config: EngineConfig,
        *,
        predictor: Predictor | PipelinePredictor,
        memory: EngineMemory,
    ) -> None:
        super().__init__(name, frozenset({Prefill.kind, Decode.kind}))
        if config.scheduler is None:
            raise ScenarioError("scheduler must be given; llm_client chooses one by the GPU")
        self.config = config
        self.scheduler = scheduler = config.scheduler
        self.predictor = predictor
        num_lanes = len(predictor.ranks) if isinstance(predictor, PipelinePredictor) else 1
        if num_lanes != config.pipeline_parallel_size:
            raise ScenarioError(
                f"pipeline_parallel_size must be {num_lanes}, the ranks that the predictor times, "
                f"got {config.pipeline_parallel_size}"
            )
        self.memory = lane_memory(
            memory,
            config.kv_cache,
            num_lanes,
            drafting=config.speculative_config,
            swaps=scheduler.preemption == "swap",
        )
        self.data_parallel_size = config.data_parallel_size
        self.num_gpu_blocks = memory.num_gpu_blocks * config.data_parallel_size
        self.lockstep = config.lockstep
        self.max_model_len = config.max_model_len
        self.request_overhead = config.overhead.request or 0.0
        self.prompt_token_overhead = config.overhead.prompt_token or 0.0
        self.speculative_config = config.speculative_config
        self.async_scheduling = config.async_scheduling
        self.admission = config.admission
        self.estimate = getattr(predictor, "estimate", "custom")
        self.schedulers = lane_schedulers(scheduler, config.data_parallel_size, num_lanes)
        if config.speculative_config:
            self._check_speculation(config.speculative_config)

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
        self._gate = self._make_gate()
        self._sequences: dict[Visit, SequenceState] = {}  # of visits that may be given up
        self._lanes: dict[SequenceState, Lane] = {}  # of those that have entered an engine
        self._tier_links = [self.memory.links() for _ in range(self.data_parallel_size)]
        self._engines = Engines(
            env,
            self.schedulers,
            self.predictor,
            self._lane,
            lockstep=self.lockstep,
            async_scheduling=self.async_scheduling,
        )

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

    def _accept(self, visit: Visit) -> None:
        sequence = _sequence(visit)
        reason = self._limit_length(sequence) or self.schedulers[0].refusal(sequence)
        if reason is not None:
            self._reject(visit, reason)
            return
        busy = self._gate and self._gate.refusal(sequence, self.view.num_waiting, self.env.now)
        if busy:
            self._reject(visit, busy, is_busy=True)
            return
        if visit.request.limits is not None:
            self._sequences[visit] = sequence
        self.view.num_waiting += 1
        delay = self._time_to_enter(sequence)
        if delay:
            self.env.start(self._enter_later(sequence, delay))
        else:
            self._enter(sequence)

    def _time_to_enter(self, sequence: SequenceState) -> float:
        """Return the seconds from arrival until a sequence can be scheduled."""
        return self.request_overhead + self.prompt_token_overhead * sequence.num_prompt_tokens

    def _enter_later(self, sequence: SequenceState, delay: float) -> Generator[Event, object, None]:
        yield self.env.timeout(delay)
        if not sequence.visit.is_over:
            self._enter(sequence)

    def _enter(self, sequence: SequenceState) -> None:
        """Hand a sequence to an engine."""
        lane = self._engines.add_request(sequence)
        if sequence.visit in self._sequences:
            self._lanes[sequence] = lane

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
        elif visit.failure is None and not visit.has_token and self._is_waiting(visit):
            reason = f"{self.name}: busy, its first token was due while it waited (drop_expired)"
            visit.failure = Failure("rejected", self.env.now, reason, is_busy=True)
            self._abort(visit)

    def _is_waiting(self, visit: Visit) -> bool:
        sequence = self._sequences[visit]
        lane = self._lanes.get(sequence)
        return lane is None or not lane.is_running(sequence)

    def _abort(self, visit: Visit) -> None:
        sequence = self._sequences[visit]
        lane = self._lanes.get(sequence)
        if lane is not None:
            self._engines.abort(sequence, lane)
            return
        self.view.num_waiting -= 1  # it is on its way to an engine
        if self._gate is not None:
            self._gate.prompt_is_done(sequence)
        self._leave(visit, None)

    def _leave(self, visit: Visit, rejection: str | None) -> None:
        """Take back a visit from the engine."""
        if visit.request.limits is not None:
            self._lanes.pop(self._sequences.pop(visit), None)
        if rejection is None:
            self._finish(visit)
        else:
            self._reject(visit, rejection)


def _sequence(visit: Visit) -> SequenceState:
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
