"""The base of everything that is read from a scenario file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from mist_sim.scenario.format.problems import Problem, explained, failure


class Strict(BaseModel):
    """A frozen mapping: unknown keys and values of another type are refused, in plain words."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,  # most runs use few of the many mappings that a file may have
    )

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            value = handler(data)
        except ValidationError as error:
            raise explained(error, cls) from None
        if problems := list(value.problems()):
            raise failure(problems)
        return value

    def problems(self) -> Iterable[Problem]:
        """Return problems of values that are valid one by one; locations are relative."""
        return ()
