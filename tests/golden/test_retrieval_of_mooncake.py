"""Stateful retrieval finds the reuse that a trace holds."""

from __future__ import annotations

import json
from pathlib import Path

import mist_sim as mist
from tests.unit.test_hand_over import TwoSpeeds  # noqa: F401


def reuse_of(path: Path, block_size: int) -> tuple[int, int]:
    """Return (prompt tokens in full blocks that an earlier prompt had, prompt tokens)."""
    known: set[int] = set()
    reused = asked = 0
    for line in path.read_text().splitlines():
        row = json.loads(line)
        ids = row["hash_ids"][: row["input_length"] // block_size]
        num_known = next((k for k, each in enumerate(ids) if each not in known), len(ids))
        reused += block_size * num_known
        asked += row["input_length"]
        known.update(ids)
    return reused, asked
