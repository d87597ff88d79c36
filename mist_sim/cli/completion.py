"""Completion of `--set KEY=VALUE` in a shell: keys, and values that have names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import typer

from mist_sim.errors import MistError

Node = Mapping[str, Any]


def settings(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return how a setting may go on, as far as the next dot or the end of its value.

    Of a scenario that is named before, clients that are there and options of their types are
    offered; without one, those of all types.
    """
    from mist_sim.scenario.json_schema import json_schema

    return completions(json_schema(), incomplete, _scenario_of(ctx))


def completions(schema: Node, incomplete: str, data: Any = None) -> list[str]:
    """Return the settings that begin with what was typed, sorted.

    schema: the JSON Schema of scenario files. data: a scenario as a file would hold it; None: any.
    """
    key, is_value, _ = incomplete.partition("=")
    *above, _ = [*key.split("."), ""] if is_value else key.split(".")
    nodes, here = [_inlined(schema, schema)], data
    for step in above:
        nodes, here = _below(nodes, step, here), _part(here, step)
    if is_value:
        found = [f"{key}={value}" for value in _values(nodes, above[-1])]
    else:
        path = "".join(f"{step}." for step in above)
        found = [f"{path}{name}" for name in _names(nodes, here)]
    return sorted({one for one in found if one.startswith(incomplete)})


def _inlined(node: Any, schema: Node) -> Any:
    """Return a part of a schema with what it refers to in place."""
    if isinstance(node, list):
        return [_inlined(inner, schema) for inner in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(schema["$defs"][node["$ref"].rpartition("/")[2]], schema)
    return {key: _inlined(inner, schema) for key, inner in node.items() if key != "$defs"}


def _scenario_of(ctx: typer.Context) -> Any:
    """Return the scenario that the command names, with every default; None without one."""
    name = ctx.params.get("scenario") or next(iter(ctx.args), None)  # what is not parsed yet
    if not isinstance(name, str):
        return None
    from mist_sim.scenario import Scenario
    from mist_sim.scenario.format.yaml_text import parse

    try:
        return parse(Scenario.load(name).resolved(), name)
    except MistError:
        return None


def _part(data: Any, step: str) -> Any:
    if isinstance(data, list):
        return data[int(step)] if step.isdecimal() and int(step) < len(data) else None
    return data.get(step) if isinstance(data, dict) else None


def _forms(nodes: list[Node], data: Any = None) -> Iterator[Node]:
    """Yield the schemas of a value; of several types only its own, if that is known."""
    for node in nodes:
        for inner in node.get("anyOf", (node,)):
            if "anyOf" in inner:
                yield from _forms([inner], data)
                continue
            kind = inner.get("properties", {}).get("type", {}).get("const")
            is_another = isinstance(data, dict) and kind not in (None, data.get("type", kind))
            if not is_another:
                yield inner


def _below(nodes: list[Node], step: str, data: Any) -> list[Node]:
    """Return what may stand under a key, or at a position of a list."""
    found: list[Node] = []
    for form in _forms(nodes, data):
        if step.isdecimal() and "items" in form:
            found.append(form["items"])
        elif step in form.get("properties", {}):
            found.append(form["properties"][step])
        elif isinstance(form.get("additionalProperties"), dict):  # keys that are names
            found.append(form["additionalProperties"])
    return found


def _names(nodes: list[Node], data: Any) -> Iterator[str]:
    """Yield keys, with a dot where more keys follow and an equals sign where a value does."""
    for form in _forms(nodes, data):
        if "items" in form:
            yield from (f"{number}." for number in range(len(data) if data else 1))
        for name, node in form.get("properties", {}).items():
            inner = list(_forms([node]))
            if any(one.get("type") in ("object", "array") for one in inner):
                yield f"{name}."
            if any(one.get("type") not in ("object", "array") for one in inner):
                yield f"{name}="


def _values(nodes: list[Node], key: str) -> Iterator[str]:
    """Yield the values that have names."""
    from mist_sim.hardware import gpu_names
    from mist_sim.models import model_names

    yield from {"model": model_names, "gpu": gpu_names}.get(key, list)()
    for form in _forms(nodes):
        yield from (str(value) for value in form.get("enum", ()))
        if "const" in form:
            yield str(form["const"])
        if form.get("type") == "boolean":
            yield from ("true", "false")
        if form.get("type") == "null":
            yield "null"
