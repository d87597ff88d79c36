"""Damaged traces, for every reader."""

import json
from typing import Any

from tests.contract.test_registered_plugins import TRACES
from tests.damage.draws import NUMBERS, TEXTS, Draw, worn


def damaged_trace(number: int) -> tuple[str, bytes]:
    """Return the type of a reader, and the bytes of a file for it."""
    draw = Draw(f"trace {number}")
    kind = draw.choice(sorted(TRACES))
    text = TRACES[kind]
    for _ in range(draw.choice([0, 1, 1, 2])):
        text = with_another_value(draw, text)
    content = text.encode("utf-8", "surrogatepass")
    return kind, worn(draw, content) if draw.share() < 0.5 else content


def with_another_value(draw: Draw, text: str) -> str:
    """Replace a number or a word of a text by another one."""
    words = [k for k in range(len(text)) if text[k].isalnum() and not text[k - 1 : k].isalnum()]
    start = draw.choice(words or [0])
    end = start
    while end < len(text) and (text[end].isalnum() or text[end] in ".-"):
        end += 1
    value = draw.choice([*NUMBERS, *TEXTS])
    new = value if isinstance(value, str) and draw.share() < 0.5 else _as_json(value)
    return text[:start] + new + text[end:]


def _as_json(value: Any) -> str:
    return json.dumps(value)
