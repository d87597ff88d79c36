"""Makes the lanes of a client; pipelines with one scheduler have a state of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mist_sim.clients.engine.flowing_lane import FlowingLane
from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.engine.queued.eager_cache import EagerAnswers
from mist_sim.clients.engine.queued.form import QueueForm
from mist_sim.clients.engine.queued.fresh import FreshQueue
from mist_sim.clients.engine.queued.lane import QueuedLane
from mist_sim.clients.engine.queued.state import QueuedState
from mist_sim.clients.engine.step_records import StepRecords
from mist_sim.clients.kv_cache import KvCacheManager, PrefixCachingManager
from mist_sim.clients.kv_cache.lane_memory import LaneMemory
from mist_sim.clients.scheduling.flowing_answers import Flowing
from mist_sim.clients.scheduling.order import WaitingQueue
from mist_sim.core.recorder import Recorder
from mist_sim.hardware.predictors.ranks import PipelinePredictor


def queued_state(memory: LaneMemory, queue: WaitingQueue, options: dict[str, Any]) -> QueuedState:
    """Return the state, empty. options: of `LaneState`."""
    pool = memory.pool()
    if not memory.caches_prefixes:
        return QueuedState(KvCacheManager(pool), FreshQueue(queue), **options)
    manager = PrefixCachingManager(pool, uncached_first=memory.uncached_first)
    manager.answers = answers = EagerAnswers(pool.block_size)
    answers.cache = manager.cache
    answers.state = state = QueuedState(manager, FreshQueue(queue), **options)
    return state


def step_tracks(
    recorder: Recorder,
    client_id: int,
    layout: int,
    predictor: PipelinePredictor,
    form: QueueForm | None,
) -> list[StepRecords]:
    """Return the tracks of a lane: one, or with a queue of batches as many as ranks."""
    inside, num_tracks = predictor.traits.steps_inside, len(predictor.ranks) if form else 1
    return [StepRecords(recorder, client_id, inside, layout) for _ in range(num_tracks)]


def lane_maker(
    form: QueueForm | None,
    flow: Flowing | None,
    plain: type[Lane],
    tracks: list[StepRecords],
    has_taker: Callable[[], bool] | None,
) -> Callable[..., Lane]:
    """Return a function that makes lanes: queued ones, ones whose answers flow, or plain ones."""
    if form is not None:
        return partial(QueuedLane, form=form, tracks=tracks)
    if flow is not None:
        return partial(FlowingLane, records=tracks[0], flow=flow, has_taker=has_taker)
    return partial(plain, records=tracks[0])
