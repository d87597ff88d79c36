"""The parts of reference pages that are made when the site is built, and stand in no file.

A page has `<!-- generated: NAME -->` in their place; tools/pages/site_hooks.py puts them in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import typer

from mist_sim.cli.app import app
from mist_sim.cli.listings import releases, scenario_keys
from mist_sim.clients.options.refused_options import REFUSALS, Rule
from mist_sim.scenario.engines.server_start import RULES
from mist_sim.scenario.engines.versions import LATEST, OLDEST, TABLE

MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)


def whole(text: str) -> str:
    """Return a page with the parts that are made."""
    return MARK.sub(lambda mark: MADE[mark[1]](), text)


@cache
def keys() -> str:
    """Return all keys of scenario files."""
    return scenario_keys.page()


@cache
def verbs() -> str:
    """Return what `mist VERB --help` says of every verb."""
    group = typer.main.get_command(app)
    return "\n".join(_verbs("mist", group.commands))  # type: ignore[attr-defined]


def _verbs(path: str, commands: dict[str, Any]) -> Iterator[str]:
    for name, command in commands.items():
        inner = getattr(command, "commands", {})
        names = [_named(each) for each in command.params if each.param_type_name == "argument"]
        yield f"## {path} {name}"
        yield _escaped(" ".join((command.help or "").split()))
        yield ""
        if not inner:
            yield f"`{' '.join([path, name, '[OPTIONS]', *names])}`"
            yield ""
        params = [each for each in command.params if each.name != "help"]
        if params and not inner:
            yield "| | |\n|---|---|"
            for each in params:
                text = _escaped(each.help or "").replace("|", r"\|")
                yield f"| `{_named(each)}` | {text} |"
            yield ""
        yield from _verbs(f"{path} {name}", inner)


def _named(param: Any) -> str:
    if param.param_type_name == "argument":
        return str(param.metavar or param.name.upper())
    names = ", ".join(param.opts)
    value = param.metavar or ("" if param.is_flag else "VALUE")
    return f"{names} {value}".rstrip().replace("|", "/")


def _versions() -> Iterator[str]:
    """Yield what each release does, since when, where its package has it, what keeps it down."""
    yield "| option or rule | value, and the releases since which it holds | in vLLM's package |"
    yield "|---|---|---|"
    for rule in releases.rules():
        yield f"| `{rule.key}` | {rule.values} | {_escaped(rule.sources)} |"
    yield ""
    yield "| not simulated, or not by default | since | what vLLM does |"
    yield "|---|---|---|"
    for topic, note in TABLE.notes.items():
        yield f"| {topic} | 0.{note.since} | {note.text} |"
    yield ""
    yield "| a server starts only if | of | in vLLM's package |"
    yield "|---|---|---|"
    for start in RULES:
        since = f"from 0.{start.since} on" * (start.since > OLDEST)
        until = f"up to 0.{start.until}" * (start.until < LATEST)
        of = " ".join(filter(None, (since, until))) or "all"
        yield f"| {start.what} | {of} | {_escaped(start.source)} |"


def _escaped(text: str) -> str:
    return text.replace("__", r"\_\_").replace("*", r"\*")


@cache
def versions() -> str:
    """Return what each release of vLLM does."""
    return "\n".join(_versions())


def _refusals() -> Iterator[str]:
    """Yield which options of an engine are refused beside another one."""
    yield "| with | these have to be so | why |"
    yield "|---|---|---|"
    for refusal in REFUSALS:
        rules = (f"`{each.option}`: {_needed(each)}" for each in refusal.rules)
        yield f"| `{refusal.option}` | {'; '.join(rules)} | {refusal.why} |"


def _needed(rule: Rule) -> str:
    """Return what an option has to be, without what an error says behind it."""
    return re.split(r"[,;]", rule.rule.removeprefix("be "))[0]


def refusals() -> str:
    """Return which options of an engine are refused together."""
    return "\n".join(_refusals())


MADE = {"keys": keys, "refusals": refusals, "verbs": verbs, "versions": versions}
