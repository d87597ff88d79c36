"""LoRA adapters in a lane: requests that may run together, and adapters on the GPUs.

Source: vLLM v1, `Scheduler.schedule` in `vllm/v1/core/sched/scheduler.py` (`scheduled_loras`), and
`LRUCacheLoRAModelManager` in `vllm/lora/model_manager.py`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from mist_sim.clients.scheduling.order import WaitingQueue
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.batch import AdapterWork
from mist_sim.models.adapters import AdapterMoves, LoraConfig


def adapter_of(sequence: SequenceState) -> str | None:
    """Return the name of a sequence's adapter; None: the model's own weights."""
    return sequence.visit.request.adapter


class AdapterQueue(WaitingQueue):
    """First come, first served; sequences whose adapter finds no free slot are passed over.

    While `max_loras` adapters are in use, a sequence with another one waits, and others pass it.
    """

    def __init__(self, max_loras: int) -> None:
        self._max_loras = max_loras
        self._queues: dict[str | None, OrderedDict[SequenceState, int]] = {}
        self._first, self._last = 0, 0  # places in the order
        self._length = 0
        self._in_use: Callable[[], Iterable[str]]

    def watch(self, in_use: Callable[[], Iterable[str]]) -> None:
        """Admit beside these adapters: of the sequences that run and go on."""
        self._in_use = in_use

    def may_run(self, sequence: SequenceState) -> bool:
        """Tell whether a sequence finds its adapter in use, or a free slot for it."""
        adapter, in_use = adapter_of(sequence), set(self._in_use())
        return adapter is None or adapter in in_use or len(in_use) < self._max_loras

    def add(self, sequence: SequenceState) -> None:
        """Queue a sequence behind all others, in the queue of its adapter."""
        self._last += 1
        self._queue_of(sequence)[sequence] = self._last
        self._length += 1

    def give_back(self, sequence: SequenceState) -> None:
        """Queue a sequence before all others, in the queue of its adapter."""
        self._first -= 1
        queue = self._queue_of(sequence)
        queue[sequence] = self._first
        queue.move_to_end(sequence, last=False)
        self._length += 1

    def head(self) -> SequenceState | None:  # type: ignore[override]
        """Return the first sequence whose adapter may run; None: there is none."""
        in_use = set(self._in_use())
        is_full = len(in_use) >= self._max_loras
        first, found = 0, None
        for adapter, queue in self._queues.items():
            if queue and not (is_full and adapter is not None and adapter not in in_use):
                sequence, place = next(iter(queue.items()))
                if found is None or place < first:
                    first, found = place, sequence
        return found

    def take(self) -> SequenceState:
        """Take the head; raises IndexError if no sequence may be admitted."""
        sequence = self.head()
        if sequence is None:
            raise IndexError("no sequence may be admitted")
        self.remove(sequence)
        return sequence

    def remove(self, sequence: SequenceState) -> None:
        """Take a sequence out of the queue of its adapter."""
        del self._queue_of(sequence)[sequence]
        self._length -= 1

    def _queue_of(self, sequence: SequenceState) -> OrderedDict[SequenceState, int]:
        return self._queues.setdefault(adapter_of(sequence), OrderedDict())

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[SequenceState]:
        return (sequence for queue in self._queues.values() for sequence in queue)


class AdapterSlots:
    """The adapters on the GPUs and in host memory, the least recently used first.

    lora: how many there may be. moves: how long it takes until one is there.
    """

    def __init__(self, lora: LoraConfig, moves: AdapterMoves) -> None:
        self._moves = moves
        self._on_gpu, self._in_host = _Recent(lora.max_loras), _Recent(lora.num_in_host)

    def begin(
        self, members: Iterable[tuple[SequenceState, int]], wait: float
    ) -> tuple[AdapterWork, float]:
        """Return the adapters of steps, and how long the first one waits until all are there.

        members: of each, with their tokens in a step, in order of admission. wait: seconds that it
        waits already.
        """
        work = [(adapter, number) for each, number in members if (adapter := adapter_of(each))]
        adapters = dict.fromkeys(adapter for adapter, _ in work)
        for adapter in adapters:
            if self._in_host.use(adapter):
                wait += self._moves.read
            if self._on_gpu.use(adapter):
                wait += self._moves.copy
        return AdapterWork(len(adapters), sum([number for _, number in work])), wait


class _Recent:
    """A set of limited size, from which the least recently used one falls."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._names: OrderedDict[str, None] = OrderedDict()

    def use(self, name: str) -> bool:
        """Use one; return whether it was not there."""
        is_new = name not in self._names
        if is_new and len(self._names) == self._size:
            self._names.popitem(last=False)
        self._names[name] = None
        self._names.move_to_end(name)
        return is_new
