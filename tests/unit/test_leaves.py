"""The leaves: errors, units, random streams, the registry; and the vocabulary of stages."""

import json
import math
import pickle  # noqa: TID251  (process pools hand exceptions over this way)
import re
import struct
from dataclasses import FrozenInstanceError
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mist_sim import registry as registry_module
from mist_sim import units
from mist_sim.bounds import QUANTITIES
from mist_sim.errors import InvariantError, MistError, ScenarioError, TraceError, UnknownPluginError
from mist_sim.registry import Registry
from mist_sim.rng import Streams
from mist_sim.routers import ROUTERS
from mist_sim.stages import (
    STAGES,
    Decode,
    KvRetrieval,
    Postprocess,
    Prefill,
    Preprocess,
    Rag,
    Reasoning,
    ToolCall,
    completion,
    validate_pipeline,
)
from tests.commands import mist
from tests.refusals import refusal, refused

# ------------------------------------------------------------------------------ errors


def test_bad_input_is_a_value_error_and_a_broken_law_is_not():
    assert issubclass(InvariantError, MistError)
    assert not issubclass(InvariantError, ValueError)
    for error in (ScenarioError, TraceError, UnknownPluginError):
        assert issubclass(error, MistError)
        assert issubclass(error, ValueError)


def test_trace_error_names_file_line_and_problem_and_survives_another_process():
    error = TraceError("azure.csv", 17, "GeneratedTokens must be > 0, got 0")
    assert str(error) == "azure.csv:17: GeneratedTokens must be > 0, got 0"
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (copy.path, copy.line, copy.problem) == (error.path, error.line, error.problem)
    assert str(copy) == str(error)


# ------------------------------------------------------------------------------ units

KINDS = [kind for kind in vars(units).values() if isinstance(kind, units.Kind)]
KIND_IDS = [kind.name for kind in KINDS]


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
@given(value=st.floats(1e3, 1e9), sign=st.sampled_from([-1.0, 1.0]))
@example(value=0.0, sign=-1.0)
@example(value=1.1, sign=1.0)
def test_what_format_writes_parse_reads_to_same_bits(kind, value, sign):
    assert bits(kind.parse(kind.format(sign * value))) == bits(sign * value)


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
def test_quantities_have_bounds(kind):
    smallest, largest = QUANTITIES[kind.name]
    for value in (0.0, smallest, -smallest, largest, -largest):
        assert kind.parse(kind.format(value)) == value
    assert kind.parse(f"0e999 {kind.base}") == 0
    for text in ("1e300", "-1e300", "1e-300", "1e999", "1e-999", f"{smallest / 2}"):
        with pytest.raises(ScenarioError, match=f"a {kind.name} must be 0 or from .* got '{text}"):
            kind.parse(f"{text} {kind.base}")
    with pytest.raises(
        ScenarioError, match=f"a {kind.name} needs a number and a unit, .*111\\.\\.\\."
    ):
        kind.parse("1" * 100_000)


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
def test_every_unit_of_a_kind_is_read_with_its_factor(kind):
    for unit, factor in kind.factors:
        assert kind.parse(f"3 {unit}") == 3 * factor
        assert kind.parse(f" 3{unit} ") == 3 * factor


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (units.DURATION, "500 ms", 0.5),
        (units.DURATION, "2 min", 120.0),
        (units.DURATION, "-1.5e3 s", -1500.0),
        (units.RATE, "30 /min", 0.5),
        (units.SIZE, "80 GiB", 80 * 2**30),
        (units.SIZE, "80 GB", 80e9),
        (units.BANDWIDTH, "400 Gb/s", 50e9),
        (units.BANDWIDTH, "3.35 TB/s", 3.35e12),
        (units.COMPUTE, "989 TFLOP/s", 989e12),
        (units.POWER, "0.7 kW", 700.0),
    ],
)
def test_quantities_mean_what_people_mean(kind, text, value):
    assert kind.parse(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
def test_a_wrong_unit_is_refused_with_the_kind_the_known_units_and_the_text(kind):
    message = refusal(lambda: kind.parse("7 parsec"))
    for words in (f"'parsec' is not a unit of {kind.name}", kind.base, "'7 parsec'"):
        assert words in message


test_units_that_are_none = refused(
    lambda kind, text: kind.parse(text),
    (units.DURATION, "5 mss", "did you mean 'ms'?"),
    (units.SIZE, "80 Gib", "did you mean 'GiB'?"),
    (units.BANDWIDTH, "400 Gbs", "did you mean 'Gb/s'?"),
    (units.COMPUTE, "1 TFLOPs", "did you mean 'TFLOP/s'?"),
    (units.SIZE, "400 Gb", "not a unit of size"),
    (units.SIZE, "1e300 PiB", "from 1 to 1e+18 B, got '1e300 PiB'"),
    *(
        (
            units.DURATION,
            text,
            f"a duration needs a number and a unit, .*got {re.escape(repr(text))}$",
        )
        for text in ("5", "s", "", "5 5 s", "1,5 s", "nan s", "inf s", 5, 5.0, None)
    ),
)


# ------------------------------------------------------------------------------ random streams

NAMES = st.text(min_size=1, max_size=12)


def draws(seed: int, name: str) -> list[float]:
    return Streams(seed).generator(name).random(4).tolist()


@given(seed=st.integers(0, 2**31), names=st.lists(NAMES, min_size=2, max_size=5, unique=True))
def test_draws_follow_seed_and_name_and_nothing_else(seed, names):
    found = [draws(seed, name) for name in names]
    assert found == [draws(seed, name) for name in names]
    assert len({*map(tuple, found), tuple(draws(seed + 1, names[0]))}) == len(names) + 1


@given(name=NAMES, others=st.lists(NAMES, max_size=5))
def test_other_streams_never_shift_a_stream(name, others):
    alone = draws(7, name)
    streams = Streams(7)
    for other in others:
        streams.generator(other).random(3)
    interleaved = streams.generator(name)
    values = []
    for _ in range(4):
        values.append(interleaved.random())
        for other in others:
            streams.generator(other).random()
    assert values == alone


def test_two_streams_of_one_seed_are_uncorrelated():
    streams = Streams(7)
    first, second = (streams.generator(f"client{i}").random(20_000) for i in range(2))
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / math.sqrt(20_000)  # 4 standard errors


# ------------------------------------------------------------------------------ registry


class Shortest:
    """A plugin."""


class Longest:
    """Another plugin."""


@pytest.fixture
def routers() -> Registry:
    registry = Registry("routers")
    registry.register("shortest")(Shortest)
    return registry


def offer(monkeypatch, **points):
    """Make installed packages offer `points`: a name and a class, or an exception to raise."""
    groups = []

    def load(target):
        if isinstance(target, BaseException):
            raise target
        return target

    def offered(group):
        groups.append(group)
        return [
            SimpleNamespace(
                name=name, value=f"plug:{name}", load=lambda target=target: load(target)
            )
            for name, target in points.items()
        ]

    monkeypatch.setattr(registry_module, "offered", offered)
    return groups


def test_registering_returns_the_class_unchanged(routers):
    assert routers.register("longest")(Longest) is Longest
    assert dict(routers) == {"longest": Longest, "shortest": Shortest}
    assert list(routers) == ["longest", "shortest"]
    assert len(routers) == 2
    assert "longest" in routers


def test_a_taken_name_is_refused_and_the_first_class_keeps_it(routers):
    with pytest.raises(ValueError, match=r"'shortest' is already .*Shortest.* be .*Longest"):
        routers.register("shortest")(Longest)
    assert routers["shortest"] is Shortest


def test_running_a_definition_again_replaces_it(routers):
    """As a notebook does when its cell runs again."""
    again = type("Shortest", (), {"__module__": Shortest.__module__})
    routers.register("shortest")(again)
    assert routers["shortest"] is again


def test_an_unknown_name_gets_hint_and_known_names(routers):
    message = refusal(lambda: routers["shortets"], UnknownPluginError)
    assert message.startswith(
        "no router named 'shortets'; did you mean 'shortest'? Known: shortest"
    )
    assert "shortets" not in routers
    assert routers.get("nope", 1) == 1


def test_a_class_that_is_named_for_later_is_imported_when_it_is_asked_for():
    place = f"{Longest.__module__}:{Longest.__qualname__}"
    family = Registry("routers", later={"longest": place, "gone": "no.such:Module"})
    assert list(family) == ["gone", "longest"]
    assert len(family) == 2
    assert "longest" in family
    with pytest.raises(ValueError, match=r"'longest' is already .*Longest.* be .*Shortest"):
        family.register("longest")(Shortest)
    assert family.register("longest")(Longest) is Longest
    assert family["longest"] is Longest
    with pytest.raises(ModuleNotFoundError):
        family["gone"]
    with pytest.raises(UnknownPluginError, match=r"did you mean 'gone'\? Known: gone, longest"):
        family["gona"]


def test_entry_point_is_loaded_when_it_is_named(routers, monkeypatch):
    groups = offer(monkeypatch, longest=Longest, broken=ImportError("no torch"))
    assert "longest" not in routers
    routers.find_entry_points()
    routers.find_entry_points()
    assert list(routers) == ["broken", "longest", "shortest"]
    assert routers.loaded() == {"shortest": Shortest}
    assert routers["longest"] is Longest
    assert routers.usable() == {"longest": Longest, "shortest": Shortest}
    assert groups == ["mist_sim.routers"]


@pytest.mark.parametrize(
    ("name", "target", "reason"),
    [
        ("broken", ImportError("no module named 'torch'"), "no module named 'torch'"),
        ("broken", SystemExit(0), "SystemExit: 0"),
        ("broken", "no class", "must be a class"),
        ("shortest", Longest, "is already"),
    ],
)
def test_entry_point_that_fails_names_plugin_and_reason(routers, monkeypatch, name, target, reason):
    offer(monkeypatch, longest=Longest, **{name: target})
    routers.find_entry_points()
    for _ in range(2):  # again, and not by another error
        message = refusal(lambda: routers[name])
        assert f"'plug:{name}' (routers '{name}') cannot be loaded" in message
        assert reason in message
        assert "uninstall" in message
    assert routers.unloadable() == {name: message}
    assert routers["longest"] is Longest


def test_a_plugin_that_leaves_as_it_is_imported(monkeypatch, capsys, tmp_path):
    """`mist run` printed nothing and ended with 0, whatever the scenario named."""
    (tmp_path / "leaving.py").write_text("print('hello')\nraise SystemExit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("leaving", "leaving:Router", "mist_sim.routers")
    monkeypatch.setattr(ROUTERS, "_offers", {"leaving": [point]})
    few = ("--set", "workload.lengths.num_requests=5", "-q")
    mist("run", "demo", *few)
    assert "requests finished" in capsys.readouterr().out
    mist("run", "demo", *few, "--set", "router=leaving", code=2)
    out, err = capsys.readouterr()
    assert out == ""
    assert "plugin 'leaving:Router' (routers 'leaving') cannot be loaded: SystemExit: 0" in err
    for family in ("routers", ""):
        mist("list", *filter(None, [family]))
        out = " ".join(capsys.readouterr().out.split())
        assert "round_robin" in out
        assert "Not usable plugin 'leaving:Router'" in out
    mist("schema")
    out = capsys.readouterr().out
    assert json.loads(out)
    assert "round_robin" in out


# ------------------------------------------------------------------------------ stages


def test_the_registry_knows_every_stage_by_its_kind():
    built_in = {Prefill, Decode, Reasoning, Rag, KvRetrieval, Preprocess, Postprocess, ToolCall}
    assert built_in <= set(STAGES.values())
    assert all(cls.kind == name for name, cls in STAGES.items())


@pytest.mark.parametrize(
    ("stage", "values", "rule"),
    [
        (Prefill, {"num_prompt_tokens": 0}, "> 0"),
        (Decode, {"num_tokens": -1}, ">= 0"),
        (Reasoning, {"num_tokens": -1}, ">= 0"),
        (KvRetrieval, {"num_tokens": 0}, "> 0"),
        (Preprocess, {"num_tokens": -1}, ">= 0"),
        (ToolCall, {"duration": -0.5}, ">= 0"),
        (ToolCall, {"duration": math.inf}, "finite"),
        (Rag, {"num_query_tokens": 0, "num_documents": 4}, "> 0"),
        (Rag, {"num_documents": 0, "num_query_tokens": 4}, "> 0"),
    ],
)
def test_stage_refuses_nonsense_with_field_rule_and_value(stage, values, rule):
    field, value = next(iter(values.items()))
    message = refusal(lambda: stage(**values), ValueError)
    assert message.startswith(f"{field} must be ")
    assert rule in message
    assert message.endswith(f"got {value}")


def test_stages_are_frozen_keyword_only_values():
    assert Prefill(num_prompt_tokens=8) == Prefill(num_prompt_tokens=8)
    assert {Decode(num_tokens=0), Decode(num_tokens=0)} == {Decode(num_tokens=0)}
    with pytest.raises(FrozenInstanceError):
        Prefill(num_prompt_tokens=8).num_prompt_tokens = 9
    with pytest.raises(TypeError, match="positional"):
        Prefill(8)


@given(num_prompt_tokens=st.integers(1, 10**6), num_output_tokens=st.integers(1, 10**6))
def test_a_completion_is_prefill_then_tokens_after_first(num_prompt_tokens, num_output_tokens):
    stages = completion(num_prompt_tokens, num_output_tokens)
    assert stages == (
        Prefill(num_prompt_tokens=num_prompt_tokens),
        Decode(num_tokens=num_output_tokens - 1),
    )
    validate_pipeline(stages)


test_pipelines_that_cannot_be = refused(
    lambda call: call(),
    (lambda: completion(0, 5), r"num_\w+ must be >=? ?\d, got 0"),
    (lambda: completion(5, -1), r"num_\w+ must be >=? ?\d, got -1"),
    (lambda: validate_pipeline([]), "at least one stage, got none"),
    error=ValueError,
)


@pytest.mark.parametrize("generating", [Decode(num_tokens=4), Reasoning(num_tokens=4)])
def test_tokens_need_a_prefill_before_them(generating):
    prefill, before = Prefill(num_prompt_tokens=8), Preprocess(num_tokens=8)
    validate_pipeline([before, prefill, generating])
    with pytest.raises(ValueError, match=rf"stage 1 \({generating.kind}\) needs a prefill") as late:
        validate_pipeline([before, generating, prefill])
    assert str(late.value).endswith(f"preprocess -> {generating.kind} -> prefill")


def test_stages_around_the_model_may_stand_anywhere():
    assert not validate_pipeline(  # raises where it has an objection
        [
            Rag(num_query_tokens=32, num_documents=4),
            KvRetrieval(num_tokens=128),
            Prefill(num_prompt_tokens=512),
            Reasoning(num_tokens=64),
            ToolCall(duration=0.2),
            Prefill(num_prompt_tokens=64),
            Decode(num_tokens=0),
            Postprocess(num_tokens=65),
        ]
    )
    validate_pipeline([Preprocess(), Postprocess()])
