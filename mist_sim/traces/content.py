"""Content ids: they tell which requests begin with the same tokens (`core.request.Content`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from mist_sim.core.content_ids import OF_BLOCK, OF_CONVERSATION, OF_PREFIX, content_id, content_ids
from mist_sim.core.request import Content


def conversation_content(session_id: int, num_tokens: int) -> Content:
    """Return the content of a turn: the first tokens of its conversation, answer included."""
    return ((content_id(OF_CONVERSATION, session_id), num_tokens),)


def prefix_content(prefix: int, num_tokens: int) -> Content:
    """Return the content of a prompt that begins with one of several known prefixes."""
    return ((content_id(OF_PREFIX, prefix), num_tokens),) if num_tokens else ()


def block_content(
    hash_ids: Sequence[int],
    output_hash_ids: Sequence[int],
    num_prompt_tokens: int,
    num_output_tokens: int,
    block_size: int,
) -> Content:
    """Return the content of chain hashes of blocks of `block_size` tokens.

    hash_ids: those of the prompt's full blocks, and perhaps of the rest (Mooncake has one).
    output_hash_ids: those of the blocks that the answer completes. Raises ValueError if the numbers
    of ids do not fit the numbers of tokens.
    """
    if not hash_ids and not output_hash_ids:
        return ()
    full, rest = divmod(num_prompt_tokens, block_size)
    if len(hash_ids) != full and len(hash_ids) != full + (rest > 0):
        either = f"{full} or {full + 1}" if rest else f"{full}"
        raise ValueError(
            f"hash_ids must have {either} ids for {num_prompt_tokens} tokens in blocks of "
            f"{block_size}, got {len(hash_ids)}"
        )
    content = list(zip(content_ids(OF_BLOCK, hash_ids), repeat(block_size)))
    if len(hash_ids) > full:
        content[-1] = (content[-1][0], rest)
    if output_hash_ids:
        completed = (num_prompt_tokens + num_output_tokens) // block_size - full
        if len(hash_ids) != full or len(output_hash_ids) != completed:
            raise ValueError(
                f"output_hash_ids must be the {completed} blocks that {num_output_tokens} tokens "
                f"complete behind {full} blocks in hash_ids, got {len(output_hash_ids)} behind "
                f"{len(hash_ids)}"
            )
        content += zip(content_ids(OF_BLOCK, output_hash_ids), repeat(block_size))
    return tuple(content)
