"""Older names of arguments of `vllm serve`, and what took their place.

Source: `EngineArgs.add_cli_args` in `vllm/engine/arg_utils.py` and its deprecation notes, 0.8 to
0.12; for graphs vLLM issue 20283 and pull request 26016.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mist_sim.scenario.from_vllm.flags import Arity, Flag


@dataclass(frozen=True, slots=True)
class Renamed:
    """An older name.

    now: the flag in its place. until: the last version of vLLM that has the old one. arity: how
    many values it takes. values: of the new flag, where the old one is a switch. alone: the new
    flag where one value is given.
    """

    now: str
    until: str
    arity: Arity = "one"
    values: tuple[str, ...] = ()
    alone: str = ""

    def flag(self, old: Flag) -> Flag:
        """Return the flag as newer versions write it."""
        name = self.alone if self.alone and len(old.values) == 1 else self.now
        return replace(old, name=name, values=self.values or old.values)


RENAMED: Mapping[str, Renamed] = {
    "--cuda-graph-sizes": Renamed(
        "--cudagraph-capture-sizes", "0.11", "many", alone="--max-cudagraph-capture-size"
    ),
    "--override-pooler-config": Renamed("--pooler-config", "0.11"),
    "--enable-multimodal-encoder-data-parallel": Renamed(
        "--mm-encoder-tp-mode", "0.10", "switch", values=("data",)
    ),
    **dict.fromkeys(
        ("--num-redundant-experts", "--eplb-window-size", "--eplb-step-interval"),
        Renamed("--eplb-config", "0.11"),
    ),
    "--eplb-log-balancedness": Renamed("--eplb-config", "0.11", "switch"),
    **dict.fromkeys(
        (
            "--guided-decoding-disable-fallback",
            "--guided-decoding-disable-any-whitespace",
            "--guided-decoding-disable-additional-properties",
        ),
        Renamed("--structured-outputs-config", "0.11", "switch"),
    ),
}
