"""The timed tasks: usual work on a text before and after a model, in plain Python."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Task = Callable[[], object]

_BLANKS = re.compile(r"[ \t\r\f\v]+")
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_RULES = [
    re.compile(pattern)
    for pattern in (
        r"[\w.+-]+@[\w-]+\.[\w.]+",  # addresses of mail
        r"\b(?:\d[ -]?){13,16}\b",  # numbers of cards
        r"\b\d{3}-\d{2}-\d{4}\b",  # numbers of social security
        r"(?i)\b(?:password|secret|token)\s*[:=]\s*\S+",
    )
]
_LINK = re.compile(r"\[(\d+)\]|(https?://\S+)")
_INSTRUCTIONS = "Answer the question with the help of the text. Name the lines that you used.\n"


def normalize(text: str) -> str:
    """Return a text in one form of Unicode (NFKC), without control characters and extra blanks."""
    text = _CONTROLS.sub("", unicodedata.normalize("NFKC", text))
    return "\n".join([_BLANKS.sub(" ", line).strip() for line in text.splitlines()])


def augment(text: str) -> str:
    """Return a prompt with instructions, two examples and the question."""
    examples = "".join(f"### Example {k}\nQ: why?\nA: because {k}\n" for k in range(2))
    return f"<|system|>{_INSTRUCTIONS}{examples}<|user|>{text}<|assistant|>"


def validate(text: str) -> bool:
    """Return whether an answer in JSON can be read and keeps rules of privacy."""
    answer = json.loads(text)["answer"]
    return not any(rule.search(answer) for rule in _RULES)


def enhance(text: str) -> str:
    """Return an answer with links for its references and addresses."""
    return _LINK.sub(lambda found: f"<a href='#{found[1] or found[2]}'>{found[0]}</a>", text)


def tasks_on(text: str, tokenizer: Tokenizer) -> dict[str, Task]:
    """Return calls of all tasks on one text."""
    ids: Sequence[int] = tokenizer.encode(text).ids
    answer = json.dumps({"answer": text})
    return {
        "normalize": lambda: normalize(text),
        "tokenize": lambda: tokenizer.encode(text),
        "augment": lambda: augment(text),
        "detokenize": lambda: tokenizer.decode(ids),
        "validate": lambda: validate(answer),
        "enhance": lambda: enhance(text),
    }
