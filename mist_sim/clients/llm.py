"""A client that runs a language model: prefill and decode in the steps of its engines."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from collections.abc import Sequence as Stages
from copy import copy
from dataclasses import replace
from functools import partial
from math import inf, nan
from typing import ClassVar, Self

from simpy.events import Event

from mist_sim.clients.base import Client
from mist_sim.clients.engine.kv_state import EngineKvState
from mist_sim.clients.engine.lane_setup import LaneSetup, Replicas
from mist_sim.clients.engine.lanes import lane_memory, lane_shares, queue_form
from mist_sim.clients.engine.prefill_estimate import PrefillEstimate
from mist_sim.clients.engine.stepped import (
    SteppedEngines,
    SteppedLane,
    SteppedTogether,
    SteppedView,
    Stepper,
)
from mist_sim.clients.engine_rules import EngineRules
from mist_sim.clients.engine_traits import engine_traits
from mist_sim.clients.kv_cache import EngineMemory
from mist_sim.clients.kv_cache.tiers import SharedTiers
from mist_sim.clients.layouts import (
    EngineLayout,
    Transition,
    carry_over,
    check_domain,
    fits_held,
    in_one_node,
    why_not,
)
from mist_sim.clients.options.engine_config import EngineConfig, check_speculation
from mist_sim.clients.options.overload import AdmissionControl, Gate, PromptBacklog
from mist_sim.clients.registry import CLIENTS
from mist_sim.clients.scheduling import ChunkedScheduler, Scheduler, WholePromptScheduler
from mist_sim.clients.scheduling.cadence import interval_of
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.clients.stores import EngineStores, Stores
from mist_sim.clients.traits import KvForm, Role, TimesOrigin
from mist_sim.core.flowing import FlowRule
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import Request, Stage
from mist_sim.core.views import WAITING
from mist_sim.core.visit import AwaitedKv, Failure, HeldKv, Visit
from mist_sim.environment import CHANGE, Environment, engine_phases
from mist_sim.errors import InvariantError, ScenarioError, brief
from mist_sim.hardware.collectives import ONE_NODE, Spans, told, told_of_trays
from mist_sim.hardware.machine import Machine
from mist_sim.hardware.predictors.base import Predictor
from mist_sim.hardware.predictors.ranks import PipelinePredictor, ranks_of
from mist_sim.hardware.predictors.tower_times import TowerTimes
from mist_sim.network import Network
from mist_sim.stages import Decode, Prefill


@CLIENTS.register("llm")
class LlmClient(Client):
    """Takes visits of prefill and decode, and serves them on engines.

    config: options of the engines (see `EngineConfig`). The `max_num_seqs` of its scheduler applies
        to an engine, whose lanes share it. Of the overhead, the client adds the times before a
        request can be scheduled. `llm_client` resolves unset options.
    predictor: times the steps, with drafting and overhead; may be shared. A `PipelinePredictor`
        makes an engine a pipeline with as many lanes as ranks.
    memory: the KV cache of each engine.
    rules: rules of the engines' version; None: those of vLLM 0.12.
    machine: its GPUs; None: unknown. origin: where its step times come from; None: the predictor's
        times only. tower: encodes images; None: it serves none.
    Raises ScenarioError for parts that contradict one another.
    """

    view: SteppedView
    stays: dict[Visit, SequenceState]  # type: ignore[assignment]
    timed_across: Callable[[Spans], PipelinePredictor] | None = None
    what_fits: Callable[[int], str] | None = None  # what would hold a request of so many tokens
    shares_swaps: ClassVar[bool] = False  # whether all layouts have the same swap space
    _first_layout: EngineLayout | None = None  # once it has had another
    _asked: Transition | None = None
    _across: Callable[[Spans], EngineLayout] | None = None  # of the present layout; None: its own
    _streams_in_steps = True
    new_stay = staticmethod(SequenceState.of_visit)

    def __init__(
        self,
        name: str,
        config: EngineConfig,
        *,
        predictor: Predictor | PipelinePredictor,
        memory: EngineMemory,
        rules: EngineRules | None = None,
        machine: Machine | None = None,
        origin: TimesOrigin | None = None,
        tower: TowerTimes | None = None,
    ) -> None:
        if config.scheduler is None:
            raise ScenarioError("scheduler must be given; llm_client chooses one by the GPU")
        if not isinstance(config.scheduler, ChunkedScheduler | WholePromptScheduler):
            raise ScenarioError(
                "scheduler must be a ChunkedScheduler or a child of it, made with its options, "
                f"got {brief(config.scheduler)}"
            )
        self.config = config
        self.rules = rules or EngineRules()
        self.scheduler = scheduler = config.scheduler
        self.predictor = self._predictor_inside = ranks_of(predictor)
        num_lanes = len(self.predictor.ranks)
        if num_lanes != config.pipeline_parallel_size:
            raise ScenarioError(
                f"pipeline_parallel_size must be {num_lanes}, the ranks that the predictor times, "
                f"got {config.pipeline_parallel_size}"
            )
        self.form = form = queue_form(config, self.rules, memory)
        num_lanes = 1 if form else num_lanes
        self.memory = lane_memory(config, self.rules, memory, form)
        self.data_parallel_size = config.data_parallel_size
        self.num_gpu_blocks = memory.num_gpu_blocks * config.data_parallel_size
        self.block_tokens = config.kv_cache.block_size
        self.block_groups = memory.kv_groups.num_all_groups if memory.kv_groups else 1
        self.kv_entries = memory.kv_entries
        self.lockstep = config.lockstep
        self.max_model_len = config.max_model_len
        self.request_overhead = config.overhead.request or 0.0
        self.prompt_token_overhead = config.overhead.prompt_token or 0.0
        self.speculative_config = config.speculative_config
        self.async_scheduling = bool(config.async_scheduling)
        self.admission = config.admission
        self.kv_block_bytes = memory.kv_block_bytes
        self._num_layers = memory.num_layers
        self._adapter_moves = memory.adapter_moves
        self._tower = tower
        self._times = origin or TimesOrigin(estimate=self.predictor.traits.estimate)
        kept = KvForm(block_bytes=memory.kv_block_bytes, num_layers=memory.num_layers)
        super().__init__(name, engine_traits(config, self.memory, kept, machine, self._times))
        self._shares = lane_shares(scheduler.max_num_seqs, config.data_parallel_size, num_lanes)
        if config.speculative_config:
            check_speculation(config)

    def start(self, env: Environment, client_id: int, recorder: Recorder) -> None:
        """Join a simulation: make the engines, with all blocks free and no sequence waiting.

        They lie as the client was made; where it comes back, as it did last.
        """
        if getattr(self, "env", None) is not env:
            if self._first_layout is not None:
                self._lie(self._first_layout, 0)
            self.layouts = ()
        self._asked = None
        super().start(env, client_id, recorder)
        self._gate = self._make_gate()
        self._enters_later = bool(self.request_overhead or self.prompt_token_overhead)
        self._enters_at_once = not (self._enters_later or self._gate)
        self._turned: tuple[Role, int, FlowRule | None] | None = None
        self._engines = self._make_engines()
        self._kv_state = EngineKvState(self._engines, self.memory.block_size, self.stays)
        self.view.kv = self._kv_state
        self._show_layout()

    @property
    def lanes(self) -> list[SteppedLane]:
        """Its present lanes, engine by engine."""
        return self._engines.lanes

    def new_view(self, client_id: int) -> SteppedView:
        """Return the counts that routers see, some of which the core keeps."""
        return SteppedView(client_id, self.name)

    def _make_engines(self) -> SteppedEngines:
        """Return new, empty engines of the present layout."""
        if (before := getattr(self, "_engines", None)) is not None:
            self.streamed += before.num_unwritten()
        form = KvForm(
            block_size=self.memory.block_size,
            block_bytes=self.kv_block_bytes,
            num_layers=self._num_layers,
        )
        self._kv_stores = EngineStores(
            self.env,
            self.network,
            self.name,
            self.memory,
            form,
            swaps_overlap=self.scheduler.swaps_overlap,
        )
        stepper, scheduler = Stepper.of(self.env), self.scheduler
        if not isinstance(scheduler, ChunkedScheduler | WholePromptScheduler):
            raise InvariantError(f"the core knows no rules of {scheduler}")
        replicas = Replicas() if self.lockstep else None
        setup = LaneSetup(
            config=self.config,
            rules=self.rules,
            scheduler=scheduler,
            plans_ahead=self.async_scheduling,
            predictor=self.predictor,
            form=self.form,
            memory=self.memory,
            replicas=replicas,
            recorder=self.recorder,
            client_id=self.client_id,
            layout=self._layout_number,
            leave=self._leave,
            gate=self._gate,
            flow=self.flow,
            has_taker=self.has_taker,
            block_bytes=self.kv_block_bytes or nan,
            streams=self.streams,
            adapter_moves=self._adapter_moves,
            tower=self._tower,
            shared=self.shared_parts.tiers if self.shared_parts else SharedTiers(),
        )
        size = len(self._shares) // self.data_parallel_size  # lanes of an engine
        phases = partial(engine_phases, self.client_id)
        lanes = []
        for number, share in enumerate(self._shares):
            engine = self._first_engine + number // size
            stores, place = self._stores(engine), phases(number)
            lane = SteppedLane(
                stepper,
                place,
                setup,
                max_num_seqs=share,
                view=self.view,
                stores=stores,
                engine=engine,
            )
            lanes.append(lane)
        if size > 1:
            number = len(lanes) if self.lockstep else size
            for start in range(0, len(lanes), number):
                several = lanes[start : start + number]
                place = phases(start // number)
                SteppedTogether.in_turn(stepper, place, several, replicas, self.predictor)
        elif replicas is not None:
            SteppedTogether.in_lockstep(stepper, phases(0), lanes, replicas)
        return SteppedEngines(lanes, size)

    def _stores(self, engine: int) -> Stores:
        """Return where the KV entries of an engine's lanes come from and go to."""
        return self._kv_stores.of(engine)

    def _make_gate(self) -> Gate | None:
        """Return the gate that rejects requests; None without one."""
        if self.admission == AdmissionControl():
            return None
        backlog = None
        if self.admission.early_rejection:
            history = self.memory.history()
            backlog = PromptBacklog(self.predictor, self.data_parallel_size, history)
        return Gate(self.admission.max_num_waiting, backlog, self._time_to_enter)

    def takes(self, stages: Stages[Stage]) -> int:
        """Return the stages of one visit: a prompt and the tokens after it, as far as it serves.

        The next turn's prompt is a separate visit.
        """
        first, serves = stages[0], self.traits.serves
        if first.kind not in serves or (first.continues and not self.scheduler.takes_over):
            return 0
        num_stages = 1
        if Decode.kind in serves:
            for stage in stages[1:]:
                if stage.kind != Decode.kind:
                    break
                num_stages += 1
        return num_stages

    def serve_whole(
        self, request: Request, stages: tuple[Stage, ...], leaves: Callable[[int, Visit], None]
    ) -> None:
        """Serve a request whole; without delays it enters an engine with one call."""
        first = stages[0]
        if not self._enters_at_once or type(first) is not Prefill:
            super().serve_whole(request, stages, leaves)
            return
        num_output_tokens = 1  # of the prompt
        for stage in stages[1:]:
            num_output_tokens += stage.num_new_tokens
        visit = Visit(request, stages, self.env.now)
        sequence = SequenceState(visit, first.num_prompt_tokens, num_output_tokens)
        self.stays[visit] = sequence
        sequence.leaves = leaves
        sequence.enter(self.view)
        is_long = sequence.num_final_tokens > (self.max_model_len or inf)
        if is_long or sequence.num_tokens > self._short:
            self.accept(visit)
            return
        if request.content:
            self._kv_state.accept(request)
            self._meet(sequence)
        self._engines.add_request(sequence)

    def accept(self, visit: Visit) -> None:
        """Refuse a visit that can never be served or finds the engines too busy, or queue it."""
        sequence, content = self.stays[visit], visit.request.content
        if content:
            self._kv_state.accept(visit.request)
        reason = sequence.limit_to(self.max_model_len)
        if reason is None and sequence.num_final_tokens <= sequence.num_tokens:
            visit.is_cut = True
            self.begin(visit)
            self.finish(visit)
            return
        reason = reason or self._refusal(sequence)
        if reason is not None:
            self.reject(visit, reason)
            return
        if self._gate is not None:
            busy = self._gate.refusal(sequence, self.view.num_waiting - 1, self.env.now)
            if busy is not None:
                self.reject(visit, busy, is_busy=True)
                return
        if content:
            self._meet(sequence)
        if delay := self._time_to_enter(sequence):
            self.env.start(self._enter_later(sequence, delay))
        else:
            self._engines.add_request(sequence)

    def _refusal(self, sequence: SequenceState) -> str | None:
        """Return why a sequence can never be served, or None."""
        if sequence.num_tokens <= self._short:
            return None
        return self.scheduler.refusal(self.lanes[0].needs, sequence)

    def num_streamed(self) -> int:
        """Return the output tokens of all steps that have ended by now, in all runs."""
        return self.streamed + self._engines.num_unwritten()

    def _meet(self, sequence: SequenceState) -> None:
        """Note what a visit computes, and what of its prompt was known before."""
        if self.history and self.memory.caches_prefixes:
            self.history.meet_visit(sequence, self.memory.block_size)

    def _time_to_enter(self, sequence: SequenceState) -> float:
        """Return the seconds from arrival until a sequence can be scheduled."""
        return self.request_overhead + self.prompt_token_overhead * sequence.num_prompt_tokens

    def _enter_later(self, sequence: SequenceState, delay: float) -> Generator[Event, object, None]:
        yield self.env.timeout(delay)
        if not sequence.visit.is_over:
            self._engines.add_request(sequence)

    def _watch(self, visit: Visit) -> None:
        super()._watch(visit)
        request = visit.request
        if self.admission.drop_expired and not request.has_token:
            self._deadlines.add(request.deadline, visit, "ttft_deadline")

    def _limit_reached(self, visit: Visit, limit: str) -> None:
        sequence = self.stays[visit]
        if sequence.lane is not None:
            sequence.lane.settle(sequence)
        if limit != "ttft_deadline":
            super()._limit_reached(visit, limit)
        elif visit.outcome is not None or visit.has_token or visit.request.has_token:
            return
        elif self.stays[visit].phase == WAITING:
            reason = f"{self.name}: busy, its first token was due while it waited (drop_expired)"
            visit.outcome = Failure("rejected", self.env.now, reason, is_busy=True)
            self.abort(visit)

    def abort(self, visit: Visit) -> None:
        """Give up a sequence at its lane, or end it at once if it has not entered an engine."""
        sequence = self.stays[visit]
        if sequence.lane is not None:
            sequence.lane.give_up(sequence)
            return
        if self._gate is not None:  # it is on its way to an engine
            self._gate.prompt_is_done(sequence)
        self.finish(visit)

    def turn(self, role: Role, chunk: int, flow: FlowRule | None) -> None:
        """Change role and chunk; the served stages stay."""
        if not isinstance(self.scheduler, ChunkedScheduler):
            raise InvariantError(f"{self.name} has no chunks, its scheduler is {self.scheduler}")
        self._turned = role, chunk, flow
        flows = None if role == self.view.role else flow
        self.view.take_role(role)
        self._engines.turn(replace(self.scheduler, max_num_batched_tokens=chunk), flows)

    def restart(self) -> None:
        """Come back, empty, in the role and with the chunk that it has been given."""
        turned = self._turned
        super().restart()
        if turned is not None:
            self.turn(*turned)

    def lose_entries(self, visit: Visit, reason: str) -> None:
        """An answer cannot go on without its entries; a prompt is computed from the start."""
        sequence = self.stays[visit]
        if sequence.has_rest and visit.outcome is None:
            if not sequence.num_coming:
                sequence.forget_brought()
                if sequence.lane is not None:
                    sequence.lane.forget_brought(sequence)
        else:
            super().lose_entries(visit, reason)

    def halt(self) -> None:
        """Lose the steps in flight; steps that have ended count."""
        for lane in self.lanes:
            lane.halt()

    @property
    def held_kv(self) -> Iterator[HeldKv]:
        """KV entries that it keeps for clients that go on from them."""
        return (kv for lane in self.lanes for kv in lane.kept.values())

    @property
    def num_reserved(self) -> int:
        """Places that it keeps for entries which are still to be computed, or on their way."""
        places = [stay for stay in self.stays.values() if stay.num_coming]
        return sum(isinstance(stay.incoming, AwaitedKv) for stay in places)

    def _leave(self, visit: Visit, rejection: str | None) -> None:
        """Take back a visit from the engine."""
        if rejection is None:
            self.finish(visit)
        else:
            self.reject(visit, rejection)

    # --- layouts ------------------------------------------------------------------------------

    def named(self, name: str) -> Self:
        """Return a client like this one, which has joined no run, with another name."""
        other = copy(self)
        other.name = name
        other.streamed = 0
        return other

    def fail(self, reason: str) -> None:
        """Lose everything inside; the client comes back in the layout requested last."""
        super().fail(reason)
        if self._asked is not None:
            self._enter(self._asked, self.env.now)

    @property
    def _machine(self) -> Machine | None:
        """The GPUs of its engines, as in its traits; None: unknown."""
        machine = self.traits.machine
        return machine if isinstance(machine, Machine) else None

    @property
    def layout(self) -> EngineLayout:
        """The present layout of its engines: times, memory, lanes and GPUs."""
        return EngineLayout(
            predictor=self.predictor,
            memory=self.memory,
            shares=tuple(self._shares),
            data_parallel_size=self.data_parallel_size,
            lockstep=self.lockstep,
            async_scheduling=self.async_scheduling,
            form=self.form,
            kv_block_bytes=self.kv_block_bytes,
            machine=self._machine,
            collectives=self.collectives or self._over_trays,
            across=self._across or partial(_across, copy(self)),
        )

    def join_network(self, network: Network | None) -> None:
        """Time steps by the nodes that the ranks lie on."""
        ways = network.ways if network is not None else None
        if ways is None:
            check_domain(self.name, self._machine, self.predictor)
        self.lie_on(ways.spans(self.name) if ways is not None else ONE_NODE)
        times = self.traits.times
        more = in_one_node(self._machine, self.predictor) if ways is None else ()
        if times is not None and more:
            times = replace(times, assumed=times.assumed + more)
            self.traits = replace(self.traits, times=times)

    def lie_on(self, spans: Spans) -> None:
        """Adapt step times to the nodes of the ranks. spans: groups of ranks over several nodes.

        A predictor passed as an object, or with collectives in its times, stays unchanged;
        `collectives` describes the choice. Raises ScenarioError for a hierarchical all-reduce of
        ranks on one node.
        """
        if self.traits.times is not self._times:
            self.traits = replace(self.traits, times=self._times)
        self.predictor, self.collectives = self._predictor_inside, self._over_trays
        if self.config.all_reduce == "hierarchical" and not spans.tensor:
            raise ScenarioError(
                f"{self.name}: all_reduce must not be hierarchical where the ranks that sum are on "
                "one node; network.topology with spans_nodes puts them on several"
            )
        if not self.config.enable_expert_parallel:
            spans = replace(spans, replicas=None)  # replicas exchange nothing
        if not spans and not self.collectives:
            return
        self.traits = replace(self.traits, times=self._times.across(nodes=bool(spans)))
        if not spans:
            return
        link = None
        machine = self._machine
        if self.timed_across is not None and machine is not None:
            self.predictor = self.timed_across(spans)
            link = machine.cluster.gpu.interconnect
        self.collectives = told(spans, link, sums=self.predictor.traits.sums_over_links)

    @property
    def _over_trays(self) -> str:
        """How its ranks sum where links join hosts, as text; empty: on one, or not by links."""
        machine = self._machine
        if machine is None or not self._predictor_inside.traits.sums_over_links:
            return ""
        cluster = machine.cluster
        return told_of_trays(cluster.gpu.interconnect, cluster.tensor_parallel_size)

    @property
    def _layout_number(self) -> int:
        return max(len(self.layouts) - 1, 0)

    @property
    def is_changing(self) -> bool:
        """Whether another layout was asked for, and the transition has not begun."""
        return self._asked is not None

    def change_layout(self, layout: EngineLayout, seconds: float) -> None:
        """Change to another layout, with a transition of `seconds`.

        Each engine stops after the step in flight; a step planned ahead is not computed. When all
        have stopped, and entries under way to this client have come, the transition begins:
        sequences move to the engines of the new layout, in the order of `carry_over`, and keep
        their computed tokens as far as there is room. Blocks that only the prefix cache keeps are
        lost. Entries kept for other clients move too, and the transition waits until they have
        room. Steps begin when it is over. A client that fails before the transition begins comes
        back in the new layout.

        layout: a layout on the same GPUs, usually taken from another client that was made with
            other options and takes no part in the run. seconds: time for weights and KV entries
            together.
        Raises ScenarioError for a client that is in no run or already about to change, for seconds
        that are not finite and >= 0, and for changes that are not supported: other GPUs, another
        model or block size, sliding windows, tiers, swap space, early rejection, flowing answers.
        """
        if problem := self._why_not(layout, seconds):
            raise ScenarioError(f"{self.name}: {problem}")
        first_engine, ways = 0, self.network.ways if self.network is not None else None
        if ways is None:
            check_domain(self.name, layout.machine, layout.predictor)
        else:
            dp, ranks = layout.data_parallel_size, layout.num_ranks
            first_engine, spans = ways.lay_out(self.name, dp, ranks)
            layout = layout if layout.across is None else layout.across(spans)
        self._asked = asked = Transition(layout, seconds, first_engine)
        self.env.at(self.env.now, CHANGE).callbacks.append(partial(self._stop_for, asked))

    def _why_not(self, layout: EngineLayout, seconds: float) -> str | None:
        """Return why the layout cannot become another one now; None: it can."""
        most = self.scheduler.max_num_seqs
        if not hasattr(self, "env"):
            return "layout must not change before the run has begun"
        if self._asked is not None:
            return "layout must not change while the client is about to change it"
        if not 0 <= seconds < inf:
            return f"seconds must be finite and >= 0, got {seconds}"
        if self.flow is not None:
            return "layout must not change where answers flow; that combination is not simulated"
        if self.admission.early_rejection:
            return "layout must not change with early_rejection; that combination is not simulated"
        if layout.num_ranks > 1 and interval_of(self.scheduler) > 1:
            return "layout must have no pipeline with a prefill_schedule_interval above 1"
        if max(layout.shares) > most:
            shares = max(layout.shares)
            return f"layout must have shares of at most max_num_seqs ({most}), got {shares}"
        problem = why_not(self.layout, layout, shares_swaps=self.shares_swaps)
        return None if problem is None else f"layout {problem}"

    def _stop_for(self, asked: Transition, _: Event) -> None:
        """Let the engines stop, unless the client has failed and come back meanwhile."""
        if self._asked is asked:
            self._engines.stop(self._change_when_still)

    def _change_when_still(self) -> None:
        """Begin the transition if no step is in flight and no entries are on their way."""
        if self._asked is None or not self._engines.are_still:
            return
        before, asked, layout = self._engines, self._asked, self._asked.layout
        if any(lane.has_moves for lane in before.lanes):
            return
        contents = [lane.put_down() for lane in before.lanes]
        if not fits_held(contents, layout):
            return
        ready = self.env.now + self._transition_time(asked)
        self._enter(asked, ready)
        self._engines = after = self._make_engines()
        self._kv_state = self.view.kv = self._kv_state.follow(after)
        self._show_layout()
        carry_over(self.stays.values(), before.lanes, contents, after)
        after.sleep_until(ready)

    def _transition_time(self, asked: Transition) -> float:
        """Return the seconds that a transition takes which begins now."""
        return asked.seconds

    def _enter(self, asked: Transition, ready: float) -> None:
        """Take another layout from now on; its steps begin when it is ready."""
        self._asked, layout = None, asked.layout
        self._first_layout = self._first_layout or self.layout
        known = self.layouts or (self.layout.period(0.0, 0.0),)
        self._lie(layout, asked.first_engine)
        self.layouts = (*known, layout.period(self.env.now, ready))
        self.recorder.record_layout(self.client_id, self.env.now, layout.num_tracks)

    def _lie(self, layout: EngineLayout, first_engine: int) -> None:
        """Let all that is asked of the client be as a layout says."""
        self.predictor, self.memory, self.form = layout.predictor, layout.memory, layout.form
        self._shares = list(layout.shares)
        self.data_parallel_size, self.lockstep = layout.data_parallel_size, layout.lockstep
        self.async_scheduling = layout.async_scheduling
        self.num_gpu_blocks = layout.num_gpu_blocks
        self.kv_block_bytes, self.collectives = layout.kv_block_bytes, layout.collectives
        self.traits = layout.described(self.traits)
        self._across = layout.across
        self._first_engine = first_engine
        self._reaches = {}  # other engines may be as near or far

    def _show_layout(self) -> None:
        """Show the present layout's memory to routers, and note what surely fits in it."""
        self.view.take_memory(self.num_gpu_blocks)
        self.view.prefill = PrefillEstimate(self._engines, self.predictor)
        self.view.token_bytes = (self.kv_block_bytes or 0.0) / self.memory.block_size
        self._short = self._surely_fit()

    def _surely_fit(self) -> float:
        """Return with how many tokens a sequence is never refused; 0: the scheduler is asked."""
        most, scheduler = float(self.memory.num_tokens), self.scheduler
        is_ours = type(scheduler).refusal in (Scheduler.refusal, WholePromptScheduler.refusal)
        if self.memory.groups is not None or not is_ours:
            return 0
        if isinstance(scheduler, WholePromptScheduler):
            most = min(most, scheduler.max_num_batched_tokens or inf)
        drafting = self.speculative_config
        if drafting is not None:
            most -= drafting.num_speculative_tokens + drafting.num_lookahead_tokens
        return most


def _across(client: LlmClient, spans: Spans) -> EngineLayout:
    """Return the layout of a client that is in no run, its ranks lying on nodes in that way."""
    client.lie_on(spans)
    return client.layout
