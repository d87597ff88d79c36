"""A store below the GPU behind vLLM's connector interface: blocks computed once are loaded later.

Every full block that a step computes lies in the store from its planning on, or, if tokens were not
known then, from when its request ends, or gives way after a pause, and stays. Loads go
over one link, one after the other; each begins with the step in whose plan it is, and the worker
tells of it as the first step ends that it has ended by.

Sources: `KVConnectorBase_V1` in `vllm/distributed/kv_transfer/kv_connector/v1/base.py`;
`OffloadingConnectorScheduler`, which loads between steps, and `LMCacheConnectorV1Impl`, which by
default loads in the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any


class Store:
    """Content of the store, and loads on their way.

    latency, per_block: seconds of a load, and of each block in it.
    requests: that got memory, by id.
    in_step: whether a step waits for the loads of its plan.
    coming: requests whose blocks are on their way, with the ends of their loads.
    """

    def __init__(self, block_size: int, latency: float, per_block: float, *, in_step: bool) -> None:
        self.in_step = in_step
        self.coming: dict[str, float] = {}
        self._block_size = block_size
        self._latency = latency
        self._per_block = per_block
        self._free_at = 0.0
        self._content: set[Any] = set()
        self.requests: dict[str, Any] = {}
        self._num_computed: dict[str, int] = {}  # tokens of those that had memory last
        self._begun: dict[str, int] = {}  # blocks to load, of requests in the latest plan

    def num_matched(self, request: Any, num_computed: int) -> int:
        """Return the tokens behind the computed ones that lie in the store, in whole blocks."""
        size = self._block_size
        first = place = num_computed // size
        most = (request.num_tokens - 1) // size  # the last token is always computed
        while place < most and request.block_hashes[place] in self._content:
            place += 1
        return (place - first) * size

    def note(self, request: Any, num_tokens: int) -> None:
        """Note that a request has memory for tokens of the store."""
        self.requests[request.request_id] = request
        if num_tokens:
            self._begun[request.request_id] = num_tokens // self._block_size

    def compute(self, name: str, num_new: int) -> None:
        """Write what a step computes of a request."""
        request = self.requests[name]
        self._num_computed[name] = request.num_computed_tokens + num_new
        self.write(request)

    def write(self, request: Any) -> None:
        """Keep the full blocks of a request's computed tokens, as far as these are known."""
        num_tokens = min(self._num_computed.get(request.request_id, 0), request.num_tokens)
        num_full = num_tokens // self._block_size
        self._content.update(request.block_hashes[:num_full])

    def begin_in_step(self) -> float:
        """Return the seconds that the latest plan's step waits for its loads."""
        numbers = self._begun.values() if self.in_step else ()
        seconds = sum(self._latency + number * self._per_block for number in numbers)
        if self.in_step:
            self._begun.clear()
        return seconds

    def begin(self, now: float) -> None:
        """Begin the loads of the latest plan."""
        for name, num_blocks in self._begun.items():
            self._free_at = max(now, self._free_at) + (self._latency + num_blocks * self._per_block)
            self.coming[name] = self._free_at
        self._begun.clear()

    def take_arrived(self, now: float) -> set[str]:
        """Return whose loads have ended, once."""
        arrived = {name for name, end in self.coming.items() if end <= now}
        for name in arrived:
            del self.coming[name]
        return arrived


@contextmanager
def connected(store: Store | None) -> Iterator[None]:
    """Let vLLM's factory return a connector to a store meanwhile."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    before = KVConnectorFactory.create_connector
    if store is not None:
        KVConnectorFactory.create_connector = lambda *_, **__: _connector(store)
    try:
        yield
    finally:
        KVConnectorFactory.create_connector = before


def transfer_config() -> Any:
    """Return what the scheduler reads of a `KVTransferConfig`."""
    return SimpleNamespace(
        is_kv_consumer=True, is_kv_producer=True, kv_load_failure_policy="recompute"
    )


class SchedulersSide:
    """The scheduler's side of a connector; the worker's does nothing.

    As of `OffloadingConnector`, preempted requests need not deliver what is in flight.
    """

    requires_kv_delivery = False

    def __init__(self, store: Store) -> None:
        self._store = store
        self._latest: set[str] = set()  # requests of the latest plan
        self._kv_transfer_config = transfer_config()

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int, *_: Any, **__: Any
    ) -> tuple[int, bool]:
        """Return how many tokens are loaded, and whether between steps."""
        number = self._store.num_matched(request, num_computed_tokens)
        return number, number > 0 and not self._store.in_step

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Note that a request has memory."""
        self._store.note(request, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Write what a step computes."""
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

        number_of = scheduler_output.num_scheduled_tokens
        for name in set(scheduler_output.preempted_req_ids or ()) - self._latest:
            self._store.write(self._store.requests[name])  # no step in flight has it
        for name, number in number_of.items():
            self._store.compute(name, number)
        self._latest = set(number_of)
        return KVConnectorMetadata()

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        """Write what was not known when it was planned; blocks need not be kept for it."""
        self._store.write(request)
        return False, None

    request_finished_all_groups = request_finished

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        """Return the only group (0.33)."""
        return (0,)


def _connector(store: Store) -> Any:
    """Return a connector of the installed vLLM."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, SupportsHMA

    kind: Any = type("Connector", (SchedulersSide, KVConnectorBase_V1, SupportsHMA), {})
    kind.__abstractmethods__ = frozenset()
    return kind(store)
