"""Where the pieces of a prompt end, so that states can be kept there for later requests."""

from __future__ import annotations

from typing import NamedTuple

from mist_sim.clients.engine_rules import SharedStop


class StateRules(NamedTuple):
    """How a version keeps states of ends of pieces (vLLM's `mamba_cache_mode: align`).

    waits: whether a request waits a step for a state that another one saves in it.
    shared_stop: which pieces end where full attention found more than states.
    goes_on: whether a piece that begins inside a block ends at the next block, and one of less than
        a block is computed where no step has room for a block.
    saves_inside: whether a kernel saves a state before the end of a piece, too.
    most: tokens of a prompt that fit into an empty step.

    Source: `Scheduler._mamba_block_aligned_split` in `vllm/v1/core/sched/scheduler.py`.
    """

    waits: bool = False
    shared_stop: SharedStop = "never"
    goes_on: bool = False
    saves_inside: bool = False
    most: int = 0


class Piece(NamedTuple):
    """Tokens [begin, end) of a prompt that a step may compute.

    num_tokens: of the prompt, with all that it has answered. num_prompt: without that.
    shared_end: tokens that full attention finds where states have fewer; 0: no more.
    """

    begin: int
    end: int
    num_tokens: int
    num_prompt: int
    shared_end: int = 0

    @property
    def prefill_end(self) -> int:
        """Tokens that are computed before decoding."""
        return max(self.num_prompt, self.num_tokens - 1)


def end_of(piece: Piece, size: int, rules: StateRules) -> int:
    """Return where a piece ends with blocks of so many tokens; its begin: it cannot be computed."""
    if piece.begin >= piece.prefill_end:
        return piece.end
    return _stop(piece, size, rules) if rules.goes_on else _cut(piece, size, rules)


def _cut(piece: Piece, size: int, rules: StateRules) -> int:
    """Return the end in 0.15 to 0.24."""
    begin, end = piece.begin, piece.end
    last = piece.num_tokens // size * size
    if end < last:
        end = begin + (end - begin) // size * size
    elif begin < last < end:
        end = last
    num_shared = piece.shared_end - begin
    if rules.shared_stop != "never" and num_shared >= size and end - begin > num_shared:
        end = begin + num_shared // size * size
    return end


def _stop(piece: Piece, size: int, rules: StateRules) -> int:
    """Return the end in 0.33: whole blocks, and the first stop inside these."""
    begin, end = piece.begin, piece.end
    saves = end >= piece.prefill_end and _saves(begin, end, piece.prefill_end, size, rules)
    last = 0 if saves else (piece.num_tokens - 1) // size * size
    if end < piece.prefill_end:
        aligned = end // size * size
        if aligned > begin or size <= rules.most:
            end = aligned
    next_block = 0 if begin % size == 0 or saves else (begin // size + 1) * size
    shared = 0
    if begin < piece.shared_end < end:
        shared = begin + (piece.shared_end - begin) // size * size
    return max(begin, min((s for s in (next_block, last, shared) if begin < s < end), default=end))


def saved_block(begin: int, end: int, size: int, rules: StateRules) -> int | None:
    """Return the block at whose end a step saves a state beside the newest one; None: at none."""
    return -(-end // size) - 2 if _saves(begin, end, end, size, rules) else None


def _saves(begin: int, end: int, place: int, size: int, rules: StateRules) -> bool:
    """Tell whether a step saves a state at the end of the last block before a place.

    Source: `is_mamba_prefill_checkpoint_valid` in `vllm/v1/kv_cache_interface.py`.
    """
    if not rules.saves_inside or begin % size:
        return False
    saved, block = (place - 1) // size * size, -(-end // size) - 2
    return block > (begin - 1) // size and begin + size <= saved < end
