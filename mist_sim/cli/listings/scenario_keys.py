"""All keys of scenario files, from their schema and the plugins' docstrings.

`mist help scenario` prints them; the documentation has them as a page (tools/pages/generated.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mist_sim import units
from mist_sim.clients.kv_cache import KvCacheConfig
from mist_sim.clients.options.overload import AdmissionControl
from mist_sim.clients.options.resharding_options import Resharding
from mist_sim.clients.rag import EncoderPass, LatencyTable, PassageStore
from mist_sim.clients.retrieval.levels import StorageLevel
from mist_sim.clients.workers.fetching import Fetch
from mist_sim.core.front_end import FrontEnd
from mist_sim.core.hand_over import HandOver
from mist_sim.errors import ScenarioError, did_you_mean
from mist_sim.hardware.devices import MemoryTier
from mist_sim.hardware.predictors import EngineOverhead
from mist_sim.hardware.predictors.scaled import StepTimeScale
from mist_sim.hardware.sampling import Sampling
from mist_sim.hardware.vector_search import INDEXES, SEARCHERS
from mist_sim.lifecycle import Lifecycle
from mist_sim.metrics import ApiPrices, CostOptions, PowerOptions, Slo
from mist_sim.metrics.goodput import ClassLimits
from mist_sim.models import SpeculativeConfig
from mist_sim.models.adapters import LoraConfig
from mist_sim.models.vision import ImagesConfig
from mist_sim.network import Fabric, Link
from mist_sim.reconfiguration import Reconfigure
from mist_sim.registry import comes_with_package
from mist_sim.scenario.format.docstrings import documented_with_bases
from mist_sim.scenario.format.parts import Part
from mist_sim.scenario.json_schema import json_schema
from mist_sim.scenario.plugins import FAMILIES
from mist_sim.scenario.sections.whole import PARTS
from mist_sim.traces import Retries
from mist_sim.traces.predictions import Predictions
from mist_sim.traces.prompt_images import PromptImages

KINDS = (  # what keys of this version hold
    *(units.DURATION, units.RATE, units.SIZE, units.BANDWIDTH),
    *(units.POWER, units.RENT, units.ELECTRICITY, units.TOKEN_PRICE),
)
MEANINGS = {
    "workload": "which requests, when they are sent, which stages they walk",
    "clients": "the serving units, at least one",
    "type": "which kind of client",
}

DRAWN_AT = "`prompt`, `output` and `suffix` of drawn lengths"
LAWS_AT = "`workload.patience`, `lifecycle.start_up.time`, `base_time` and `time_per_token`"
# (heading, family, where it stands in a file, properties of the schema that hold its choices)
SECTIONS = (
    ("Routers", "routers", "`router` and `routers.STAGE`", ("router",)),
    ("Schedulers", "schedulers", "`clients.N.scheduler`", ("scheduler",)),
    ("Predictors", "predictors", "`clients.N.predictor`", ("predictor",)),
    ("Traces", "trace_readers", "`workload.trace`", ("trace",)),
    ("Lengths that are drawn", "samplers", "`workload.lengths`", ("lengths",)),
    ("Length distributions", "lengths", DRAWN_AT, ("prompt", "output", "suffix")),
    ("Arrivals", "arrivals", "`workload.arrivals`", ("arrivals",)),
    ("Laws of times", "durations", LAWS_AT, ("patience", "base_time", "time_per_token", "time")),
    ("Autoscalers", "autoscalers", "`policy` of `lifecycle.autoscaling.N`", ("policy",)),
    ("Admission at the gateway", "admissions", "`gateway`", ("gateway",)),
    ("Evictions", "evictions", "`eviction` of `kv_cache`, tiers and levels", ("eviction",)),
    ("Stages", "stages", "`workload.pipeline.N`", ("pipeline",)),
    ("Connectors", "connectors", "`network.connector`", ("connector",)),
    ("Policies of disaggregation", "hand_over_policies", "`hand_over.policy`", ("policy",)),
)
PLAIN = (
    *("workload", "slo", "power", "hand_over", "on_failure", "kv_cache", "overhead", "admission"),
    "front_end",
)
NULLABLE = (
    *("cost", "api", "network", "lifecycle", "start_up", "reconfigure", "on_change", "store"),
    *("latency_table", "retries", "speculative_config", "resharding", "lora", "sampling", "images"),
    *("fetch", "predictions"),
)
SEVERAL = ("failures", "drains", "autoscaling")
LINKS = {
    **{name: f"[mapping](#{name})" for name in PLAIN},
    **{name: f"[mapping](#{name}) or null" for name in NULLABLE},
    **{name: f"[mapping](#{name}), or a list of them" for name in SEVERAL},
    "clients": "list of [clients](#clients)",
    "pipeline": "list of [stages](#stages)",
    "routers": "mapping of stages to [routers](#routers)",
    "schedule": "list of [mappings](#schedule)",
    "levels": "list of [levels](#levels)",
    "tiers": "list of [tiers](#tiers)",
    "step_time_scale": "number, or [mapping](#step_time_scale), or null",
    "index": "one of [indexes](#index) or null",
    "search": "one of [these](#search) or null",
    "embedder": "[mapping](#embedder-reranker) or null",
    "reranker": "[mapping](#embedder-reranker) or null",
    "passage_tokens": "whole number or one of [length distributions](#length-distributions)",
}
CHOOSING = {name for section in SECTIONS for name in section[3]}  # keys whose value is a plugin

INTRO = """\
## Quantities
A quantity is a number and a unit: `500 ms`. Bare numbers are refused where a unit is needed.

| kind | units | written back as |
|---|---|---|
"""
ROW = re.compile(r"\| `([^`]+)` \| (.*) \| (.*) \| (.*) \|")
LONG = 12  # words of a meaning that is not written again
Above = dict[str, str]  # rows of a section, and the title of the first table that has each

LIFE_GUIDE = "[Failures, starts and autoscaling](../guides/failures_and_autoscaling.md) shows how."
SLIDERS_GUIDE = """\
[Prefill and decode apart](../guides/prefill_and_decode_apart.md#sliders-that-move)
shows how."""


def anchor(heading: str) -> str:
    """Return the link target that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def markdown(text: str) -> str:
    """Escape what Markdown would take for markup, outside of `code`."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([<*|\[\]])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def type_of(name: str, schema: dict[str, Any]) -> str:
    """Return a property's type in words."""
    of_names = name == "clients" and "type" in schema.get("items", {})
    if name in LINKS and not of_names:
        return LINKS[name]
    if name in CHOOSING and "anyOf" in schema:  # an API's `output` is a price
        heading = section_of(name, schema)[0]
        null = " or null" if {"type": "null"} in schema.get("anyOf", ()) else ""
        time = "duration or " if unit_of(schema) else ""
        return f"{time}one of [{heading.lower()}](#{anchor(heading)}){null}"
    if "anyOf" in schema:
        return " or ".join(type_of("", choice) for choice in schema["anyOf"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{choice}`" for choice in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {type_of('', schema['items'])}"
    if unit := unit_of(schema):
        return next(kind.name for kind in KINDS if kind.base == unit)
    words = {"string": "text", "integer": "whole number", "boolean": "true or false"}
    return str(words.get(schema["type"], schema["type"]))


def section_of(name: str, schema: dict[str, Any]) -> tuple[str, str, str, tuple[str, ...]]:
    """Return the section of a key's plugins; of several sections, the one that has them all."""
    names = set(choices({"properties": {name: schema}}, (name,)))
    possible = [each for each in SECTIONS if name in each[3]]
    return next(each for each in possible if names <= set(FAMILIES[each[1]].registry))


def unit_of(schema: dict[str, Any]) -> str:
    """Return the base unit of a quantity, or an empty string."""
    for choice in (schema, *schema.get("anyOf", ())):
        for example in choice.get("examples", ()):
            return str(example).removeprefix("1 ")
    return ""


def default_of(name: str, schema: dict[str, Any], required: list[str]) -> str:
    """Return a property's default as a file would write it."""
    if name == "arrivals":
        return "`trace` for a trace, otherwise required"
    if name in required:
        return "required"
    if name == "async_scheduling":
        return "by [`engine`](engines.md)"
    value, unit = schema.get("default"), unit_of(schema)
    if name in LINKS and value == {}:
        return "see there"
    if unit and value is not None:
        number = float(str(value).removesuffix(unit))
        value = (
            f"{number / 2**30:g} GiB" if unit == "B" and number >= 2**20 else f"{number:g} {unit}"
        )
    text = value if isinstance(value, str) else json.dumps(value).replace('"', "")
    return f"`{text}`"


def table(
    schema: dict[str, Any], meanings: dict[str, str], title: str = "", above: Above | None = None
) -> Iterator[str]:
    """Yield the lines of a table of a mapping's keys; a long row that is above names its title."""
    properties = schema["properties"]
    if not properties:
        return
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    for name, inner in properties.items():
        default = default_of(name, inner, schema.get("required", []))
        meaning = meanings.get(name, "")
        meaning = markdown(meaning) + offered(name, inner)
        row = f"| `{name}` | {type_of(name, inner)} | {default} |"
        known = title if above is None else above.setdefault(row + meaning, title)
        if known != title and len(meaning.split()) >= LONG:
            meaning = f"as of `{known}`"
        yield f"{row} {meaning} |"
    yield ""


def described(schema: dict[str, Any]) -> dict[str, str]:
    """Return the meaning of a mapping's keys from their descriptions in the schema."""
    found = {}
    for name, inner in schema["properties"].items():
        texts = [MEANINGS.get(name) or inner.get("description", "")]
        choices = inner.get("anyOf", ())
        plain = [c for c in choices if "pattern" not in c and "properties" not in c]
        texts += [c["description"] for c in plain if "description" in c]
        found[name] = "; ".join(texts)
    return found


def offered(name: str, inner: dict[str, Any]) -> str:
    """Return the names of the plugins that a key chooses from; the sections say what they are.

    Distributions of lengths and times stand at several keys, and in their own section only.
    """
    if name not in CHOOSING or section_of(name, inner)[1] in ("lengths", "durations"):
        return ""
    names = choices({"properties": {name: inner}}, (name,))
    return "; plugins: " + ", ".join(f"`{choice}`" for choice in names) if names else ""


def plugin(
    cls: type, schema: dict[str, Any], title: str = "", above: Above | None = None
) -> Iterator[str]:
    """Yield a class's docstring and the table of its parameters; title, above: of `table`."""
    shown = {name: inner for name, inner in schema["properties"].items() if name != "type"}
    text, meanings = documented_with_bases(cls, shown)
    for paragraph in text:
        yield markdown(paragraph)
        yield ""
    yield from table({**schema, "properties": shown}, meanings, title, above)


def is_of_others(name: str) -> bool:
    """Tell whether a plugin of this name is from another package that is installed here."""
    there = (family.registry for family in FAMILIES.values() if name in family.registry)
    return not all(comes_with_package(registry[name]) for registry in there)


def choices(schema: Any, properties: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Return the schemas of a family's plugins by name, wherever the properties lie."""
    found: dict[str, dict[str, Any]] = {}
    if isinstance(schema, dict):
        for name, inner in schema.get("properties", {}).items():
            if name in properties:
                options = inner.get("items", inner)
                for option in options.get("anyOf", ()):
                    kind = option.get("properties", {}).get("type", {}).get("const")
                    if kind is not None and not is_of_others(kind):
                        found[kind] = option
        for inner in schema.values():
            found = choices(inner, properties) | found
    elif isinstance(schema, list):
        for inner in schema:
            found = choices(inner, properties) | found
    return found


def section(heading: str, cls: type, schema: dict[str, Any]) -> Iterator[str]:
    """Yield a heading, and below it what a class and its parameters are."""
    yield heading
    yield from plugin(cls, schema)


def parts(properties: dict[str, Any], **classes: type) -> Iterator[str]:
    """Yield the section of each of these properties, whose values are mappings of a class."""
    for name, cls in classes.items():
        inner = properties[name].get("items", properties[name])
        inner = next(each for each in inner.get("anyOf", [inner]) if "properties" in each)
        yield from section(f"## {name}", cls, inner)


def retrieval(client: dict[str, Any]) -> Iterator[str]:
    """Yield what a client of type rag is made of, beside its own keys."""
    keys = client["properties"]
    for key, family in (("index", INDEXES), ("search", SEARCHERS)):
        yield f"## {key}"
        for name, option in choices(client, (key,)).items():
            yield from section(f"### {name}", family[name], option)
    yield from section("## embedder, reranker", EncoderPass, keys["embedder"]["anyOf"][0])
    yield from parts(keys, store=PassageStore, latency_table=LatencyTable)


def lines() -> Iterator[str]:
    """Yield the whole page."""
    schema = json_schema()
    keys, workload = schema["properties"], schema["$defs"]["WorkloadSpec"]
    yield from INTRO.splitlines()
    for kind in KINDS:
        names = ", ".join(f"`{unit}`" for unit, _ in kind.factors)
        yield f"| {kind.name} | {names} | `{kind.base}` |"
    yield ""
    yield "## The scenario"
    yield from table(schema, described(schema))
    yield "## workload"
    yield from table(workload, described(workload))
    yield from every_client(schema, workload["properties"])
    yield "## network"
    link, fabric, _ = keys["network"]["anyOf"]
    yield "Either one link, or, where it names a `topology`:"
    yield ""
    yield from section("### A link", Link, link)
    yield from section("### A topology", Fabric, fabric)
    yield from parts(keys, hand_over=HandOver, front_end=FrontEnd)
    yield from judged(keys)
    life, sliders = keys["lifecycle"]["anyOf"][0], keys["reconfigure"]["anyOf"][0]
    yield "## lifecycle"
    yield from with_parts(Lifecycle, life, LIFE_GUIDE, PARTS["lifecycle"])
    yield "## reconfigure"
    yield from with_parts(Reconfigure, sliders, SLIDERS_GUIDE, PARTS["reconfigure"])
    yield from families(schema)


def every_client(schema: dict[str, Any], workload: dict[str, Any]) -> Iterator[str]:
    """Yield the types of clients that come with the package, and the mappings in them.

    workload: properties of the workload; its `retries` stand among these.
    """
    yield "## clients"
    own = "[one of your own](../guides/own_client.md)"
    yield f"A list; each entry is of one of these types, or of {own}."
    yield ""
    ours = FAMILIES["clients"].registry
    options = schema["properties"]["clients"]["items"]["anyOf"]
    named = {option["properties"]["type"]["const"]: option for option in options}
    clients = {
        name: client
        for name, client in named.items()
        if ours[name].__module__.startswith("mist_sim.")
    }
    for title, client in clients.items():
        yield f"### Clients of type {title}"
        yield markdown(client["description"])
        yield ""
        yield from table(client, described(client))
    keys = clients["llm"]["properties"]
    yield from parts(keys, kv_cache=KvCacheConfig)
    yield from parts(keys["kv_cache"]["properties"], tiers=MemoryTier)
    yield from parts(keys, overhead=EngineOverhead, admission=AdmissionControl)
    yield from retrieval(clients["rag"])
    yield from parts(clients["kv_retrieval"]["properties"], levels=StorageLevel)
    yield from parts(clients["sequential"]["properties"], fetch=Fetch)
    yield from parts(workload, retries=Retries, images=PromptImages, predictions=Predictions)
    yield from parts(keys, speculative_config=SpeculativeConfig, resharding=Resharding)
    yield from parts(keys, lora=LoraConfig, sampling=Sampling, images=ImagesConfig)
    yield from parts(keys, step_time_scale=StepTimeScale)


def judged(keys: dict[str, Any]) -> Iterator[str]:
    """Yield what judges a run: limits, power and cost."""
    yield "## slo"
    yield "The name of one of the presets that `mist list slos` shows, or:"
    yield ""
    limits = keys["slo"]["anyOf"][1]
    yield from plugin(Slo, limits)
    classes = limits["properties"]["classes"]["additionalProperties"]
    yield from section("### A class", ClassLimits, classes)
    yield from parts(keys, power=PowerOptions, cost=CostOptions)
    yield from parts(keys["cost"]["anyOf"][0]["properties"], api=ApiPrices)


def families(schema: dict[str, Any]) -> Iterator[str]:
    """Yield the plugins of every family that come with the package."""
    for heading, family, place, properties in SECTIONS:
        yield f"## {heading}"
        yield f"At {place}; the family `{family}` of `mist list`."
        yield ""
        plugins, above = choices(schema, properties), Above()
        for name, cls in FAMILIES[family].registry.items():
            if comes_with_package(cls):
                yield f"### {name}"
                yield from plugin(cls, plugins[name], name, above)


def with_parts(
    cls: type, schema: dict[str, Any], guide: str, inner: Mapping[str, type[Part]]
) -> Iterator[str]:
    """Yield a mapping that holds others, and these."""
    yield guide
    yield ""
    yield from plugin(cls, schema)
    classes = {name: part.plugin for name, part in inner.items()}
    yield from parts(schema["properties"], **classes)


def page() -> str:
    """Return the text of the page."""
    text = "\n".join(lines()).strip() + "\n"
    return re.sub(r"\n{3,}", "\n\n", text)


class Explained(NamedTuple):
    """A section of the page in plain text. above: the one that it is in; empty for none."""

    name: str
    above: str
    texts: list[str]
    rows: dict[str, str]


def explained(key: str) -> list[str]:
    """Return what a key is wherever a scenario may have it, a paragraph each.

    key: its name, perhaps with the path before it: `clients.0.scheduler.max_num_seqs`; or that of a
        plugin, such as `workload.trace.csv`. A mapping, and a plugin, come with their keys.
    Raises ScenarioError for one that no scenario has.
    """
    *_, above, name = ["", *(word for word in key.split(".") if not word.isdigit())]
    sections = list(_sections())
    found: dict[str, list[str]] = {}
    for each in sections:
        for known, text in each.rows.items():
            found.setdefault(known, []).append(f"{known} of {each.name}: {text}")
    families = [heading for heading, _, _, properties in SECTIONS if above in properties]
    named = [each for each in sections if name in (each.name, each.name.partition(" type ")[2])]
    if plugins := [each for each in named if each.above in families]:
        return [_whole(each) for each in plugins]
    if name not in found and not named:
        known_names = [*found, *(each.name for each in sections)]
        raise ScenarioError(
            f"{key}: no key of scenarios{did_you_mean(name, known_names)} "
            "mist help scenario prints all; mist VERB --help the options of a verb"
        )
    mine = [text for text in found.get(name, ()) if above and above in text.partition(":")[0]]
    named = [each for each in named if not each.above] or named * (name not in found)
    inner = [each for top in named for each in sections if top in (each, *_above(each, sections))]
    return [*(mine or found.get(name, [])), *map(_whole, inner)]


def _above(section: Explained, sections: Sequence[Explained]) -> list[Explained]:
    return [each for each in sections if not each.above and each.name == section.above]


def _whole(section: Explained) -> str:
    """Return a section as text: what it is, and its keys."""
    rows = [f"{name}: {text}" for name, text in section.rows.items()]
    texts = [f"{section.name}: {text}" for text in section.texts[:1]] + section.texts[1:]
    return "\n".join([*(texts or [f"{section.name}:"]), *rows])


def _sections() -> Iterator[Explained]:
    """Yield the sections of the page; a row that is as of another section has its text."""
    above, section = "", Explained("", "", [], {})
    known: dict[tuple[str, str], str] = {}
    for line in page().splitlines():
        if line.startswith("#"):
            yield section
            heading = line.lstrip("# ")
            above = above if line.startswith("###") else ""
            section = Explained(heading, above, [], {})
            above = above or heading
        elif cells := ROW.fullmatch(line):
            name, kind, default, meaning = map(_plain, cells.groups())
            meaning = known.get((meaning.removeprefix("as of "), name), meaning)
            known[section.name, name] = meaning
            section.rows[name] = f"{kind}; default: {default}\n  {meaning}".rstrip()
        elif line and not line.startswith("|"):
            section.texts.append(_plain(line))
    yield section


def _plain(markup: str) -> str:
    """Return text without links, code marks and escapes."""
    return re.sub(r"\[(.+?)\]\([^)]*\)|[`\\]", r"\1", markup)
