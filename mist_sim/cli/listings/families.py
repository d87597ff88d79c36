"""Names for scenarios: all families and their plugins, options of an engine, presets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mist_sim.cli.listings import catalogs, releases
from mist_sim.cli.listings.catalogs import captioned
from mist_sim.hardware import gpu_names, host_names
from mist_sim.hardware.prices import offers
from mist_sim.models import model_names
from mist_sim.network import topology_names
from mist_sim.report.elements import listed
from mist_sim.scenario.engines.versions import VERSIONS
from mist_sim.scenario.format.docstrings import documented
from mist_sim.scenario.format.fields import Quantity
from mist_sim.scenario.format.parts import Part
from mist_sim.scenario.options import engine_options
from mist_sim.scenario.plugins import FAMILIES, find_plugins
from mist_sim.scenario.presets import preset_names, preset_path
from mist_sim.scenario.slo_presets import slo_preset, slo_preset_names
from mist_sim.traces.profiles import load_profile, profile_names


def _named(*titles: str) -> Table:
    """Return an empty table with names in its first column."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, caption_justify="left")
    for title in titles:
        table.add_column(title)
    table.columns[0].no_wrap = True
    return table


def _with_broken(body: RenderableType, problems: Iterable[str]) -> RenderableType:
    """Return something, and below it what is wrong with plugins that cannot be loaded."""
    lines = [Padding(Text(problem), (0, 0, 0, 2)) for problem in problems]
    return Group(body, Text("\nNot usable", style="bold yellow"), *lines) if lines else body


def _described(text: str, more: str) -> Text:
    """Return a text with a dim one below it, if there is more to say."""
    return Text.assemble(text, (f"\n{more}" if more else "", "dim"))


def plugins(family_name: str, place: str) -> RenderableType:
    """Return the plugins of a family, with their parameters. place: of a plugin in a scenario."""
    family = FAMILIES[family_name]
    table = _named("type", f"in a scenario: {place}")
    for name in family.registry.usable():
        model = family.part_type(name)
        names = [info.alias or each for each, info in model.model_fields.items()]
        paragraphs, _ = documented(model.plugin, names)
        summary = next(iter(paragraphs), "")
        table.add_row(name, _described(summary, ", ".join(_parameters(model))))
    return _with_broken(table, family.registry.unloadable().values())


def _parameters(model: type[Part]) -> Iterator[str]:
    """Yield a plugin's parameters: "name", with its unit and default where it has them."""
    defaults = model.model_construct().model_dump(mode="json", by_alias=True, warnings=False)
    for info in model.model_fields.values():
        name = info.alias or ""
        if name in defaults and name != "type":
            value = defaults[name]
            yield f"{name} = {value if isinstance(value, str) else json.dumps(value)}"
        elif name not in ("", "type"):
            kinds = [mark.kind.base for mark in info.metadata if isinstance(mark, Quantity)]
            yield f"{name} (required{''.join(f', in {unit}' for unit in kinds)})"


class Listing(NamedTuple):
    """A family. names: returns those in it, without plugins that cannot be loaded. show: a list."""

    names: Callable[[], Iterable[str]]
    show: Callable[[], RenderableType]


def listings(places: Mapping[str, str]) -> dict[str, Listing]:
    """Return all families by name. places: of each in a scenario."""
    find_plugins()
    return {
        "models": Listing(model_names, catalogs.models),
        "gpus": Listing(gpu_names, catalogs.gpus),
        "hosts": Listing(host_names, catalogs.hosts),
        "topologies": Listing(topology_names, catalogs.topologies),
        **{
            name: Listing(family.registry.loadable, partial(plugins, name, places[name]))
            for name, family in FAMILIES.items()
        },
        "prices": Listing(lambda: sorted({offer.gpu for offer in offers()}), catalogs.prices),
        "engines": Listing(lambda: VERSIONS, releases.engines),
        "options": Listing(_option_names, options),
        "slos": Listing(slo_preset_names, slos),
        "profiles": Listing(profile_names, profiles),
        "presets": Listing(preset_names, presets),
    }


def homes_of(name: str, families: Mapping[str, Listing]) -> list[str]:
    """Return the families that have a name, in any case, or an alias of theirs."""
    known = {
        **{family: each.names() for family, each in families.items()},
        "models": model_names(with_aliases=True),
        "gpus": gpu_names(with_aliases=True),
        "topologies": topology_names(with_aliases=True),
    }
    return [family for family, names in known.items() if name.lower() in map(str.lower, names)]


def overview(places: Mapping[str, str], families: Mapping[str, Listing]) -> RenderableType:
    """Return all families with the names in them. places: of each in a scenario."""
    table = _named("family", "names")
    for family, place in places.items():
        table.add_row(family, _described(", ".join(families[family].names()), place))
    table.caption = "mist list FAMILY shows descriptions and parameters"
    broken = [family.registry.unloadable() for family in FAMILIES.values()]
    return _with_broken(table, [why for each in broken for why in each.values()])


def _option_names() -> list[str]:
    return [option.key for option in engine_options() if "." not in option.key]


def options() -> RenderableType:
    """Return the options of an engine, with vLLM's names and defaults."""
    lines: list[RenderableType] = []
    for option in engine_options():
        types = f" ({', '.join(option.types)})" if option.types else ""
        values = f"; one of {', '.join(option.values)}" if option.values else ""
        default = " (required)" if option.default is None else f" = {option.default}"
        whole = re.sub(r" \([^()]*[;:.] [^()]*\)", "", option.meaning)
        meaning = re.split(r"[;.] | \(vLLM's name", whole)[0]
        head = Text.assemble(
            f"{option.key}{default}", (f"   vLLM: {option.vllm or 'not known'}", "dim")
        )
        lines += [head, Padding(Text(f"{meaning}{values}{types}"), (0, 0, 0, 4))]
    note = "Keys of clients.N, with vllm serve's flags; mist help scenario KEY says more of each"
    return Group(*lines, Text(note, style="dim italic"))


def slos() -> RenderableType:
    """Return the limits that a scenario can name."""
    rows = []
    for name in slo_preset_names():
        said = slo_preset(name)
        (percentile,) = said["percentiles"]
        rows.append((name, said["ttft"], said["tpot"], f"p{percentile} of each"))
    caption = "server scenarios of MLPerf Inference; slo: NAME, or --set slo=NAME"
    return captioned(listed(("slo", "TTFT", "TPOT", "kept by"), rows, right=(1, 2)), caption)


def profiles() -> RenderableType:
    """Return the profiles of lengths that come with the package."""
    rows = []
    for name in profile_names():
        profile = load_profile(name)
        prompt, output = (int(np.median(lengths)) for lengths in profile.at(*_RANKS))
        medians = f"half of the prompts below {prompt:,} tokens, of the answers below {output:,}"
        rows.append((name, f"{profile.source}; {medians}"))
    caption = "workload.lengths: {type: profile, name: NAME, num_requests: N}"
    return captioned(listed(("profile", "computed from"), rows), caption)


_RANKS = np.repeat(_EVEN := (np.arange(100) + 0.5) / 100, 100), np.tile(_EVEN, 100)


def presets() -> RenderableType:
    """Return the bundled scenarios."""
    table = _named("preset", "mist run NAME")
    for name in preset_names():
        first = preset_path(name).read_text(encoding="utf-8").splitlines()[0]
        table.add_row(name, first.removeprefix("# "))
    return table
