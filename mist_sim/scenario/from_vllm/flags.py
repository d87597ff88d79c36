"""Splits a command line into flags with values as vLLM's parser does; drops nothing.

Dashes and underscores are alike, `--key.sub value` is one entry of a JSON object, and a name may be
cut where only one flag begins so. Source: `FlexibleArgumentParser` in vllm/utils/argparse_utils.py
(0.19); Python's argparse reads the rest. Argparse itself stops at the first fault.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mist_sim.errors import cut, did_you_mean

Arity = Literal["switch", "one", "many"]

_NUMBER = re.compile(r"-\d+(\.\d+)?")
_LONG_DASH = re.compile(r"[\u2010-\u2015\u2212]+-?(?=[A-Za-z])")  # a web page's in place of "--"
_TRUTH = {"true": True, "false": False, "1": True, "0": False}
_JOINED = re.compile(r"(-[a-z]+)(\d\S*)")
_MODEL = "--model"
_LEVEL = "--optimization-level"


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag with its values. name: with dashes; empty for words that belong to no flag.

    is_on: whether a switch is on. fault: what is wrong with it, and what to do.
    """

    name: str
    values: tuple[str, ...] = ()
    is_on: bool = True
    fault: str = ""

    @property
    def value(self) -> str:
        """Its first value; empty without one."""
        return self.values[0] if self.values else ""

    @property
    def written(self) -> str:
        """The flag with its value, as written on a command line."""
        name = self.name if self.is_on else f"--no-{self.name[2:]}"
        return cut(" ".join([name, *self.values]).strip())


@dataclass(frozen=True, slots=True)
class Entry:
    """A key of a flag's JSON, or a setting. written: as in the command. of: the whole object."""

    written: str
    value: Any
    of: Mapping[str, Any] = field(default_factory=dict)


def flags_of(
    words: Sequence[str],
    arities: Mapping[str, Arity],
    short: Mapping[str, str],
    *,
    has_model: bool = False,
) -> list[Flag]:
    """Return the flags of a command line in order; words before them as one without a name.

    arities: how many values each known flag takes. short: other spellings. has_model: whether a
    word that belongs to no flag is to be there, which an unknown flag does not take for its own.
    """
    plain, entries = _entries_apart(list(_spelt_out(words, short)), short)
    says_model = any(word.partition("=")[0] == _MODEL for word in plain)
    found = [
        replace(flag, fault=_apart(flag, short)) if flag.fault else flag
        for flag in _plain_flags(plain, arities, has_model=has_model and not says_model)
    ]
    for name, values in entries.items():
        if name in arities:
            found.append(Flag(name, (json.dumps(values),)))
        else:
            found.append(Flag(name, (), fault=_unknown(name, arities)))
    return found


def _spelt_out(words: Sequence[str], short: Mapping[str, str]) -> Iterator[str]:
    """Yield words with the long names of flags, and a dash in place of an underscore."""
    for position, written in enumerate(words):
        word = _LONG_DASH.sub("--", written, count=1) if _LONG_DASH.match(written) else written
        if word != written and word[1:].partition("=")[0] in short:
            word = word[1:]
        flag, equals, value = word.partition("=")
        head, dot, rest = flag.partition(".")
        if word.startswith("-O") and word[:3] != "-O.":
            following = words[position + 1] if position + 1 < len(words) else ""
            if word != "-O":
                yield f"{_LEVEL}={word[2:].lstrip('=')}"
            else:
                yield _LEVEL if following in ("0", "1", "2", "3") else word
        elif (known := short.get(head) or short.get(head.replace("_", "-"))) is not None:
            yield known + dot + rest + equals + value
        elif word.startswith("--"):
            yield head.replace("_", "-") + dot + rest + equals + value
        else:
            yield word


def _entries_apart(
    words: Sequence[str], short: Mapping[str, str]
) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Return the other words, and the JSON objects of flags such as `--a.b 1`."""
    plain: list[str] = []
    entries: dict[str, dict[str, Any]] = {}
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        if not word.startswith("-") or "." not in flag or _NUMBER.fullmatch(word):
            plain.append(word)
            continue
        text = value if equals else next(rest, "")
        name, *keys = flag.removesuffix("+").split(".")
        place = entries.setdefault(name, {})
        for key in keys[:-1]:
            inner = place.setdefault(key, {})
            place = inner if isinstance(inner, dict) else place
        if flag.endswith("+"):  # vLLM appends; separate occurrences add up
            before = place.get(keys[-1])
            added = [_json_or_text(part.strip()) for part in text.split(",")]
            place[keys[-1]] = [*(before if isinstance(before, list) else []), *added]
        else:
            place[keys[-1]] = _json_or_text(text)
    return plain, entries


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _apart(flag: Flag, short: Mapping[str, str]) -> str:
    """Return a flag's fault; a short flag and its value in one word need a space."""
    found = _JOINED.fullmatch(flag.name)
    if found is None or found[1] not in short:
        return flag.fault
    return f"not known; write {found[1]} {found[2]}"


def _plain_flags(
    words: Sequence[str], arities: Mapping[str, Arity], *, has_model: bool
) -> Iterator[Flag]:
    position, loose = 0, []
    while position < len(words):
        word = words[position]
        position += 1
        if not _is_flag(word):
            loose.append(word)
            continue
        end = position
        while end < len(words) and not _is_flag(words[end]):
            end += 1
        flag, taken = _flag(word, words[position:end], arities)
        if flag.fault and has_model and not loose and taken > 1:
            taken -= 1
        position += taken
        yield flag
    if loose:
        yield Flag("", tuple(loose))


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and not _NUMBER.fullmatch(word)


def _flag(word: str, following: Sequence[str], arities: Mapping[str, Arity]) -> tuple[Flag, int]:
    """Return a flag, and how many of the words behind it are its own."""
    name, equals, value = word.partition("=")
    full = _full_name(name, arities)
    if full is None:
        return Flag(name, fault=_unknown(name, arities)), len(following)
    is_on = full in arities
    full = full if is_on else f"--{full[5:]}"
    if arities[full] == "switch":
        return _switch(full, is_on, value if equals else None, following)
    if equals:
        return Flag(full, (value,)), 0
    if not following:
        return Flag(full, fault="expected one argument; write its value behind it"), 0
    own = following if arities[full] == "many" else following[:1]
    return Flag(full, tuple(own)), len(own)


def _switch(
    name: str, is_on: bool, value: str | None, following: Sequence[str]
) -> tuple[Flag, int]:
    """Return a switch; manifests and older vLLM write `--x true` and `--x=false`."""
    if value is not None:
        if value.lower() not in _TRUTH:
            return Flag(name, (value,), fault="takes no value; leave it out"), 0
        return Flag(name, is_on=_TRUTH[value.lower()] is is_on), 0
    if following and following[0].lower() in ("true", "false"):
        return Flag(name, is_on=_TRUTH[following[0].lower()] is is_on), 1
    return Flag(name, is_on=is_on), 0


def _full_name(name: str, arities: Mapping[str, Arity]) -> str | None:
    """Return the flag of a name, or the only one that begins with it; "--no-x" for a switch x."""
    negated = {f"--no-{flag[2:]}": flag for flag in arities if arities[flag] == "switch"}
    if name in arities or name in negated:
        return name
    begun = [flag for flag in (*arities, *negated) if name.startswith("--") and len(name) > 4]
    begun = [flag for flag in begun if flag.startswith(name)]
    return begun[0] if len(begun) == 1 else None


def _unknown(name: str, arities: Mapping[str, Arity]) -> str:
    return (
        f"not known{did_you_mean(name, arities)} Leave it out if it changes no time, or say what "
        "it stands for with --set"
    )
