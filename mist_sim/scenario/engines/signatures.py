"""Signatures, for type checkers and `help`, of functions that take the options of a config."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import ParamSpec, Protocol, cast, overload

from mist_sim.clients import EngineConfig, LlmClient

P = ParamSpec("P")


class Maker(Protocol[P]):
    """A client of a name, from a config or from its options."""

    @overload
    def __call__(self, name: str, config: EngineConfig, /) -> LlmClient: ...
    @overload
    def __call__(self, name: str, /, *args: P.args, **kwargs: P.kwargs) -> LlmClient: ...


def taking(
    config_type: Callable[P, EngineConfig],
) -> Callable[[Callable[..., LlmClient]], Maker[P]]:
    """Tell type checkers and `help` that a function takes the options of a config."""

    def signed(function: Callable[..., LlmClient]) -> Maker[P]:
        first = list(inspect.signature(function).parameters.values())[:2]
        options = inspect.signature(config_type).parameters.values()
        signature = inspect.Signature([*first, *options], return_annotation="LlmClient")
        function.__signature__ = signature  # type: ignore[attr-defined]
        return cast("Maker[P]", function)

    return signed
