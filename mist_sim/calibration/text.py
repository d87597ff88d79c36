"""Times of tasks on texts, measured on the machine that this runs on."""

from __future__ import annotations

import json
import platform
import re
import statistics
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import thread_time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mist_sim.bounds import SPEC_BYTES
from mist_sim.clients.workers.text import LONG, TaskTime
from mist_sim.errors import ScenarioError
from mist_sim.rng import Streams

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


LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Tokens of the texts that are timed."""

_NUM_TEXTS = 12  # of each length; every second one is held out
_VOCABULARY = 16_384
_MOST_CHARACTERS = 8_000_000
_REPEATS = 7
_LEAST_SECONDS = 2e-3  # of a run: shorter calls are repeated within it
_SUFFIXES = (".txt", ".md", ".py", ".rst")


class TimedText(NamedTuple):
    """Seconds of a task on a text. num_tokens: of the text."""

    task: str
    num_tokens: int
    seconds: float
    is_held_out: bool


@dataclass(frozen=True)
class TextFit:
    """Lines through the times of tasks, and relative errors on the texts held out, by task."""

    tasks: Mapping[str, TaskTime]
    errors: Mapping[str, Sequence[float]]
    rows: Sequence[TimedText]
    source: str

    def share_within(self, task: str, error: float) -> float:
        """Return the share of held-out texts whose time the line predicts within a tolerance."""
        errors = self.errors[task]
        return sum(one <= error for one in errors) / len(errors)

    def text(self) -> str:
        """Return the file that a text client reads."""
        data = {
            "machine": f"{_processor()}, one core",
            "date": datetime.now(tz=UTC).date().isoformat(),
            "source": self.source,
            "tasks": {
                name: {
                    "base_s": float(f"{time.base:.4g}"),
                    "token_s": float(f"{time.per_token:.4g}"),
                    "long_token_s": float(f"{time.beyond:.4g}"),
                    "median_error": round(statistics.median(self.errors[name]), 3),
                    "within_15_percent": round(self.share_within(name, 0.15), 3),
                }
                for name, time in self.tasks.items()
            },
        }
        return json.dumps(data, indent=2) + "\n"


def calibrate_text(folder: Path) -> TextFit:
    """Train a tokenizer on the first half of a folder's texts, and time all tasks on the second.

    Every second text of a length is held out of the fit and scored. Takes about a minute.
    Raises ScenarioError where the folder has too little text, and where the package `tokenizers`
    is not installed.
    """
    corpus = _corpus(folder)
    half = len(corpus) // 2
    tokenizer = _trained(corpus[:half])
    rows = list(_timed(_texts(corpus[half:], tokenizer, folder), tokenizer))
    names = dict.fromkeys(row.task for row in rows)
    tasks = {
        name: _line([r for r in rows if r.task == name and not r.is_held_out]) for name in names
    }
    errors = {
        name: [
            abs(tasks[name].seconds(row.num_tokens) / row.seconds - 1)
            for row in rows
            if row.task == name and row.is_held_out
        ]
        for name in names
    }
    source = (
        f"mist calibrate text; Python {platform.python_version()}, tokenizers "
        f"{version('tokenizers')}, byte-level BPE of {tokenizer.get_vocab_size()} entries"
    )
    return TextFit(tasks, errors, rows, source)


def _corpus(folder: Path) -> str:
    """Return the texts of a folder in the order of their names, up to some millions of letters."""
    if not folder.is_dir():
        raise ScenarioError(f"{folder}: must be a folder of texts ({', '.join(_SUFFIXES)})")
    parts, num_characters = [], 0
    for path in sorted(folder.rglob("*")):
        if path.suffix not in _SUFFIXES or not path.is_file() or path.stat().st_size > SPEC_BYTES:
            continue
        text = path.read_text("utf-8", errors="ignore")
        parts.append(text)
        num_characters += len(text)
        if num_characters >= _MOST_CHARACTERS:
            break
    return "\n".join(parts)


def _trained(text: str) -> Tokenizer:
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError:
        raise ScenarioError(
            "the times of texts need the package tokenizers: pip install 'mist-sim[text]'"
        ) from None
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return tokenizer


def _texts(text: str, tokenizer: Tokenizer, folder: Path) -> Iterator[tuple[str, bool]]:
    """Yield (text, whether it is held out), some for each length.

    A text is paragraphs in random order; fitted and held-out texts have different paragraphs.
    """
    paragraphs = [part for part in text.split("\n\n") if part.strip()]
    per_token = len(text) / max(1, len(tokenizer.encode(text).ids))
    needed = int(2 * LENGTHS[-1] * per_token)
    if len(text) < needed:
        raise ScenarioError(
            f"{folder}: must have {2 * needed:,} characters of text or more, got about "
            f"{2 * len(text):,}"
        )
    draws = Streams(0).generator("texts")
    for length in LENGTHS:
        size = int(length * per_token)
        for number in range(_NUM_TEXTS):
            mine = paragraphs[number % 2 :: 2]
            order = draws.permutation(len(mine)).tolist()
            yield "\n\n".join([mine[place] for place in order])[:size], bool(number % 2)


def _timed(texts: Iterator[tuple[str, bool]], tokenizer: Tokenizer) -> Iterator[TimedText]:
    for text, is_held_out in texts:
        num_tokens = len(tokenizer.encode(text).ids)
        for name, task in tasks_on(text, tokenizer).items():
            yield TimedText(name, num_tokens, _seconds_of(task), is_held_out)


def _seconds_of(task: Task) -> float:
    """Return the least seconds of a core that a call took: other work on it only adds."""
    task()
    number, seconds = 1, _run(task, 1)
    while seconds < _LEAST_SECONDS:
        number *= 2 if seconds <= 0 else max(2, int(_LEAST_SECONDS / seconds))
        seconds = _run(task, number)
    return min([seconds, *(_run(task, number) for _ in range(_REPEATS - 1))]) / number


def _run(task: Task, number: int) -> float:
    begin = thread_time()
    for _ in range(number):
        task()
    return thread_time() - begin


def _line(rows: Sequence[TimedText]) -> TaskTime:
    """Return the line with the least squares of relative errors; no part is below 0."""
    from scipy.optimize import nnls

    lengths = np.array([row.num_tokens for row in rows], dtype=float)
    seconds = np.array([row.seconds for row in rows])
    columns = np.stack([np.ones(len(rows)), lengths, np.maximum(lengths - LONG, 0)], 1)
    found, _ = nnls(columns / seconds[:, None], np.ones(len(rows)))
    return TaskTime(*found.tolist())


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
