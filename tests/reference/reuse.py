"""Which blocks of prompts repeat, computed from the trace files alone, block by block."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Blocks = set[tuple[int, int]]


def agents_of(session: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """Yield the requests of the main agent of a session, and of each sub-agent."""
    yield [request for request in session["requests"] if "requests" not in request]
    for request in session["requests"]:
        if "requests" in request:
            yield request["requests"]


def blocks_of(request: dict[str, Any]) -> list[int]:
    return [first + k for first, number in request["hash_runs"] for k in range(number)]


def sessions_of(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def _common(blocks: list[int], known: set[int]) -> int:
    return next((place for place, block in enumerate(blocks) if block not in known), len(blocks))


def agentic_reuse(path: Path, block_size: int = 16) -> list[int]:
    """Return for each request, agent by agent, its tokens in blocks that a request before had.

    A prompt's last token is always computed; blocks of `block_size` tokens are reused.
    """
    found = []
    for session in sessions_of(path):
        known: set[int] = set()
        for agent in agents_of(session):
            for request in agent:
                blocks = blocks_of(request)
                tokens = _common(blocks, known) * session["block_size"]
                found.append(min(tokens, (request["in"] - 1) // block_size * block_size))
                known.update(blocks)
    return found


def reuse_of_three(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield (session, blocks, blocks shared with one of the three requests before) as the CSV."""
    for session in sessions_of(path):
        for agent in agents_of(session):
            before: list[list[int]] = []
            for request in agent:
                blocks = blocks_of(request)
                shared = [_shared(blocks, other) for other in before[-3:]]
                yield session["id"], len(blocks), max(shared, default=0)
                before.append(blocks)


def _shared(one: list[int], other: list[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def ragpulse_reuse(folder: Path, block_size: int = 16) -> list[int]:
    """Return for each request in order of time its tokens in blocks that one before began with."""
    lengths = {}
    for name, key in (
        ("1_sys_prompt", "sys_prompt_id"),
        ("2_passages", "passage_id"),
        ("3_history", "history_id"),
        ("4_user_input", "user_input_id"),
        ("5_web_search", "web_search_id"),
    ):
        lines = (folder / f"{name}.jsonl").read_text("utf-8").splitlines()
        for part in (json.loads(line) for line in lines if line.strip()):
            lengths[part[key]] = part["token_length"]
    lines = (folder / "0_trace.jsonl").read_text("utf-8").splitlines()
    rows = sorted(
        (json.loads(line) for line in lines if line.strip()), key=lambda r: float(r["timestamp"])
    )
    tree: dict[int, Any] = {}
    found = []
    for row in rows:
        ids = row["hash_ids"]
        order = ("sys_prompt", "passages_ids", "history", "web_search", "user_input")
        node, common, is_known = tree, 0, True
        for part in (number for key in order for number in ids[key]):
            is_known = is_known and part in node
            common += lengths[part] if is_known else 0
            node = node.setdefault(part, {})
        most = (row["input_length"] - 1) // block_size
        found.append(min(common // block_size, most) * block_size)
    return found
