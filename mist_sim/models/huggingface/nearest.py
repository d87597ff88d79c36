"""Reads a model that is not known as the nearest one that is, and names what that leaves out.

A block that is not known (a kind of layer, a key that changes a layer) is taken as the nearest
known one. Unknown values are not guessed: sizes that are missing are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from mist_sim.bounds import MODEL_SIZE
from mist_sim.errors import ScenarioError, brief
from mist_sim.models.huggingface.config_reader import ConfigReader, MissingSizeError
from mist_sim.models.huggingface.config_text import (
    TEXT_PART,
    language_config,
    language_keys,
    text_part,
)
from mist_sim.models.huggingface.unknown import Watched

Read = Callable[[ConfigReader], dict[str, Any]]
"""Reads a config of a known type."""

_NEAREST: tuple[tuple[tuple[str, ...], str], ...] = (
    (("compress_ratios", "o_lora_rank"), "deepseek_v4"),
    (("index_topk", "kv_lora_rank"), "deepseek_v32"),
    (("linear_attn_config", "kv_lora_rank"), "kimi_linear"),
    (("linear_num_value_heads", "linear_key_head_dim"), "qwen3_next"),
    (("ssm_state_size", "mamba_num_heads"), "nemotron_h"),
    (("kv_lora_rank", "n_routed_experts"), "deepseek_v3"),
    (("num_experts", "moe_intermediate_size"), "qwen3_moe"),
    (("n_routed_experts", "moe_intermediate_size"), "qwen3_moe"),
    (("num_local_experts",), "mixtral"),
)
"""The model whose layers are nearest, by the keys that tell it; otherwise Llama's."""

_WORDS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        ("mamba", "linear", "conv", "delta", "rnn", "recurrent", "ssm", "kda", "lightning"),
        ("linear", "mamba", "sliding"),
    ),
    (("sliding", "window", "local", "chunk"), ("sliding",)),
    (("sparse", "moe", "expert"), ("sparse", "moe")),
    (("full", "global", "attention"), ("full", "attention")),
)
"""Words in the name of an unknown kind of layer, and words in those of the nearest, best first."""


class Lenient(ConfigReader):
    """A reader that takes unknown blocks as the nearest known ones, and lists them."""

    def __init__(
        self, config: Mapping[str, object], where: str, notes: list[str] | None = None
    ) -> None:
        super().__init__(config, where)
        self.notes: list[str] = [] if notes is None else notes

    def leave_out(self, problem: str, taken: str) -> None:
        """Leave a block out."""
        self._note(taken)

    def known_kind(self, key: str, kind: object, known: Sequence[object]) -> object:
        """Return the nearest kind of layer."""
        found = _nearest_kind(str(kind).lower(), known)
        self._note(f"{key}: {kind!s:.40} as {found}")
        return found

    def part(self, value: Mapping[str, object], where: str) -> ConfigReader:
        """Return a reader with the same notes."""
        return type(self)(value, where, self.notes)

    def _note(self, taken: str) -> None:
        if taken not in self.notes:
            self.notes.append(taken)


class _Asking(Lenient):
    """A reader that notes the sizes that are missing, and takes each as 1."""

    def size(self, *keys: str, default: int | None = None, most: int = MODEL_SIZE) -> int:
        """Return 1 if no key is given and there is no default, and note which one is asked for."""
        if default is None and all(self.config.get(key) is None for key in keys):
            self._note(keys[0])
            return 1
        return super().size(*keys, default=default, most=most)

    def leave_out(self, problem: str, taken: str) -> None:
        """A block that is left out asks for nothing."""

    def known_kind(self, key: str, kind: object, known: Sequence[object]) -> object:
        """Return the nearest of the known kinds."""
        return _nearest_kind(str(kind).lower(), known)


def _nearest_kind(kind: str, known: Sequence[object]) -> object:
    for words, others in _WORDS:
        if any(word in kind for word in words):
            for other in others:
                for each in known:
                    if other in str(each):
                        return each
    return known[0]


def flattened(config: Mapping[str, object]) -> dict[str, object]:
    """Return the config of the language model alone, for any type of model."""
    keys = language_keys(config)
    if not keys:
        return dict(config)
    flat = {**config, **language_config(config), TEXT_PART: True}
    del flat[keys[0]]
    return flat


def nearest_type(flat: Mapping[str, object]) -> str:
    """Return the `model_type` of the nearest known model, by the keys of a config."""
    for keys, model_type in _NEAREST:
        if all(flat.get(key) for key in keys):
            return model_type
    return "llama"


def missing_and_left(
    flat: Mapping[str, object], model_type: str, read: Read
) -> tuple[list[str], set[str]]:
    """Return how a config differs from a known type of model.

    First the sizes that such a model has and this config has not, then the keys that it has not.
    """
    config = Watched({**flat, "model_type": model_type})
    reader = _Asking(config, "")
    # sizes of 1 may not fit one another; what was asked before is noted
    with suppress(ScenarioError, ValueError, TypeError, ArithmeticError):
        read(reader)
    return reader.notes, set(config.not_understood())


def all_missing(reader: ConfigReader, first: MissingSizeError, read: Read) -> ScenarioError:
    """Return the error that names every size that a config of its type leaves out.

    first: the error that named one of them.
    """
    missing, _ = missing_and_left(reader.config, str(reader.config.get("model_type")), read)
    if len(missing) <= 1:
        return first
    base = reader.config.get("_name_or_path") or reader.config.get("text_model_id")
    of = brief(base) if base else "the model that it was made from"
    return reader.error(f"{', '.join(missing)} are missing; copy them from the config.json of {of}")


def read_nearest(
    config: Mapping[str, object], where: str, read: Read, known: frozenset[str]
) -> dict[str, Any]:
    """Return the sizes of a config that is not read as it is, as those of the nearest model.

    `approximated` lists the approximations: the type, blocks taken as others, and the keys that
    are left out. known: types that `read` reads. Raises ScenarioError where sizes are missing.
    """
    problems: list[ScenarioError] = []
    for candidate, is_own in _candidates(config, where, known):
        reader = Lenient(Watched(candidate.config), candidate.where)
        try:
            fields = read(reader)
        except MissingSizeError as error:
            problems.append(all_missing(candidate, error, read))
            continue
        except ScenarioError as error:
            problems.append(error)
            continue
        said, taken = _said(config), candidate.config["model_type"]
        names = [f"{said} as {taken}", *reader.notes]
        if not is_own and isinstance(reader.config, Watched):
            names += sorted(reader.config.not_understood())
        return fields | {"approximated": tuple(names)}
    raise problems[0]


def _candidates(
    config: Mapping[str, object], where: str, known: frozenset[str]
) -> Iterator[tuple[ConfigReader, bool]]:
    """Yield the config as its own type, where that is known, and as the nearest one."""
    try:
        own = text_part(ConfigReader(config, where))
    except ScenarioError:
        own = None
    if own is not None and own.config.get("model_type") in known:
        yield own, True
    flat = flattened(config)
    taken = nearest_type(flat)
    yield ConfigReader({**flat, "model_type": taken}, f"{where}: as {taken}"), False


def _said(config: Mapping[str, object]) -> str:
    own = language_config(config).get("model_type")
    return f"{own or config.get('model_type')!s:.40}"
