"""Rules that every stage keeps."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, cast, get_type_hints

from mist_sim.core.request import Stage
from mist_sim.stages import STAGES
from mist_sim.testing.rules import require

_EXAMPLES: dict[object, object] = {int: 1, float: 1.0, str: "x", bool: True}


def check_stage(cls: type[Stage], **parameters: object) -> None:
    """Check that a stage is an immutable value with a unique kind, and refuses bad values.

    parameters: values of fields without a default; not needed for numbers and strings. A field that
        counts something (`num_...`) must refuse -1 with a ValueError that names it. A stage with a
        length returns to its old value when lengthened and shortened by the same number, and counts
        the tokens gained.
    """
    name, plugin = cls.__name__, cast(Any, cls)
    require(issubclass(plugin, Stage), f"{name} must be a subclass of Stage")
    require(plugin is not Stage and is_dataclass(plugin), f"{name} must be a frozen dataclass")
    kind = plugin.kind
    require(
        isinstance(kind, str) and kind.isidentifier() and kind != Stage.kind,
        f"{name}.kind must be a word of its own, got {kind!r}",
    )
    require("kind" not in {item.name for item in fields(cls)}, f"{name}.kind must be a ClassVar")
    known = STAGES.loaded().get(cls.kind, cls)
    require(known is cls, f"{name}.kind is {kind!r}, which already names {known.__name__}")
    values = example_values(cls) | parameters
    one, same = cls(**values), cls(**values)
    require(one == same and hash(one) == hash(same), f"{name} must be equal for equal parameters")
    try:
        setattr(one, next(iter(values), "kind"), None)
    except (AttributeError, TypeError):
        pass
    else:
        raise AssertionError(f"{name} must be frozen: @dataclass(frozen=True)")
    _check_length(one)
    for field in values:
        if field.startswith("num_"):
            other = cls(**(values | {field: 7}))
            require(one != other, f"{name} must differ when {field} differs")
            _check_refusal(cls, values | {field: -1}, field)


def _check_length(stage: Stage) -> None:
    name, gained = type(stage).__name__, 3
    try:
        more = stage.longer(gained)
    except TypeError:
        return  # it has no length
    require(type(more) is type(stage), f"{name}.longer must return a stage of its class")
    require(
        stage.longer(0) == stage != more and more.longer(-gained) == stage,
        f"{name}.longer must add what it is told, and take it off where that is below 0",
    )
    for count in ("num_input_tokens", "num_new_tokens"):
        added = getattr(more, count) - getattr(stage, count)
        require(
            added in (0, gained),
            f"{name}.{count} must grow by {gained} with the stage, or not at all, got {added}",
        )


def example_values(cls: type[Stage]) -> dict[str, Any]:
    """Return a value for each parameter that is a number or a string."""
    hints = get_type_hints(cls)
    return {
        item.name: _EXAMPLES[hints[item.name]]
        for item in fields(cls)
        if hints[item.name] in _EXAMPLES
    }


def _check_refusal(cls: type[Stage], values: dict[str, Any], field: str) -> None:
    try:
        cls(**values)
    except ValueError as error:
        require(field in str(error), f"{cls.__name__}: the error must name {field}, got {error}")
    else:
        raise AssertionError(f"{cls.__name__} must refuse {field}=-1 with a ValueError")
