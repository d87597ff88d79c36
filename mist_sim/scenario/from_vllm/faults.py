"""All faults of command lines at once: refused flags, and values that a scenario cannot have."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from mist_sim.core.result_warnings import OLDER_ENGINES
from mist_sim.errors import ScenarioError
from mist_sim.scenario import Scenario, build
from mist_sim.scenario.engines.server_start import LENGTH, SEQUENCES
from mist_sim.scenario.from_vllm.account import Statement, check, faults_of

_ROUNDS = 12
_PATH = re.compile(r"([\w.]+): (?!is required)")
_NUMBER = re.compile(r"-?[\w.]+")
_OWN = "clients"  # keys of a client have defaults, those of a workload have none


def check_all(
    statements: tuple[Statement, ...], data: Mapping[str, Any], *, without: Collection[str] = ()
) -> None:
    """Raise ScenarioError with the refused flags and the scenario's problems, if any.

    data: the scenario's keys. without: paths in it that are said elsewhere.
    A key that is missing only because its flag was refused is not reported again.
    """
    data = deepcopy(dict(data))
    for path in without:
        _mend(data, path.split("."))
    problems = _problems(data)
    if not faults_of(statements):
        if problems:
            raise ScenarioError("\n".join(problems))
        return
    check(statements, [line for line in problems if _is_of_a_value(line, data)])


_NEEDED = {
    LENGTH: ("--max-model-len", "a request of the model's longest context does not fit in memory"),
    SEQUENCES: ("--max-num-seqs", "not all sequences that may run have room for their states"),
}


def needed_to_start(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield which flags vLLM needs to start, of servers without problems of another kind.

    data: the scenario's keys.
    """
    scenario = Scenario.from_dict(dict(data))
    for part in scenario.clients:
        for key, value in part.said_to_start(scenario.model).items():
            flag, why = _NEEDED[key]
            add = f"add {flag} {value}"
            yield f"{part.name}: vLLM does not start with this line, since {why}; {add}"
    for client in build(scenario).clients:
        told = client.traits.times.warnings if client.traits.times else ()
        yield from (f"{client.name}: {each}" for each in told if each.kind == OLDER_ENGINES)


def _is_of_a_value(line: str, data: Mapping[str, Any]) -> bool:
    """Whether a problem is one value's, and not of the parts that a refused flag leaves out."""
    path = _path(line).split(".")
    return _mend(deepcopy(dict(data)), path) and path[-1] not in ("model", "method", "type")


def _path(line: str) -> str:
    """Return the path that a problem begins with, empty where it names none."""
    found = _PATH.match(line)
    return found[1] if found else ""


def _problems(data: Mapping[str, Any]) -> list[str]:
    """Return the scenario's problems, one after another.

    A scenario finds some problems only where others are not there: faulty values give way to
    values that are none, until the rest holds. What these bring about is left out.
    """
    found: list[str] = []
    stand_ins = set[str]()
    rest = deepcopy(dict(data))
    for _ in range(_ROUNDS):
        try:
            build(Scenario.from_dict(rest))
        except ScenarioError as error:
            lines = str(error).splitlines()
        else:
            return found
        new = [line for line in lines if not found or _is_of_a_value(line, data)]
        paths = list(filter(None, map(_path, new)))
        found += [line for line in new if line not in found and _path(line) not in stand_ins]
        mended = {path for path in paths if _mend(rest, path.split("."))}
        if not mended:
            return found
        stand_ins |= mended
    return found


def _mend(data: Any, path: Sequence[str]) -> bool:
    """Take a faulty value away, or put 1 of its unit there; return whether it was there."""
    *places, last = path or ("",)
    for step in places:
        if isinstance(data, list) and step.isdecimal() and int(step) < len(data):
            data = data[int(step)]
        elif isinstance(data, dict) and step in data:
            data = data[step]
        else:
            return False
    if not isinstance(data, dict) or last not in data or isinstance(data[last], dict | list):
        return False
    value = data[last]
    if path[0] == _OWN:
        del data[last]
    else:
        data[last] = _NUMBER.sub("1", value, count=1) if isinstance(value, str) else 1
    return bool(path[0] == _OWN or data[last] != value)
