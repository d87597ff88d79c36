"""Damaged scenarios as files: written as YAML, some with what only YAML can say."""

import json
from typing import Any

from mist_sim.scenario.format import yaml_text
from tests.damage.draws import Draw
from tests.damage.scenarios import damaged_scenario, places, put

_PLACE = "stands-for-raw-yaml"
_RAW = [
    *("!!python/object/apply:os.system [id]", "!!python/name:os.system", "!x y", "!!binary aGk="),
    *("0x" + "f" * 5_000, "0o17", "1_000", "1e400", ".inf", "-.INF", ".nan", "+.5", "0x1F", "~"),
    *("2026-11-23", "2026-11-23T10:00:00Z", "1:30:00", "yes", "No", "NULL", "'", '"', "|", ">-"),
    *("&a [*a]", "&b {x: *b}", "*unknown", "!!set {a, b}", "!!omap [a: 1]", "{? [1, 2] : 3}"),
    *(
        "{? {a: 1} : 3}",
        "{<<: {a: 1}, b: 2}",
        "{<<: [1]}",
        '"\\ud800"',
        '"\\x00"',
        "? ",
        "- ",
        ": ",
    ),
    *("[" * 60 + "]" * 60, "{a: " * 60 + "1" + "}" * 60, "[" + "1, " * 5_000 + "]", "- ", ": "),
    *(
        "&c [" + ", ".join(["x"] * 9) + "]",
        "{a: 1, a: 2}",
        "%YAML 1.1",
        "---",
        "...",
        "\t",
        "# ",
        "@",
        "`",
        "é",
    ),
]


def damaged_yaml(number: int) -> bytes:
    """Return the bytes of a scenario file that is wrong in one to three places."""
    draw, data = Draw(f"yaml {number}"), damaged_scenario(number)
    raw = ""
    if draw.share() < 0.15 and (found := list(places(data))):
        put(data, draw.choice(found), _PLACE)
        raw = draw.choice(_RAW)
    text = yaml_text.dump(data) if draw.share() < 0.05 else as_yaml(data)
    return text.replace(f'"{_PLACE}"', raw).replace(_PLACE, raw).encode("utf-8", "surrogatepass")


def bomb(number: int) -> str:
    """Return a scenario whose lists refer to one another, and hold far more than the file does."""
    draw = Draw(f"bomb {number}")
    wide, deep = draw.choice([2, 5, 9, 50]), draw.choice([1, 3, 9, 20])
    first = draw.choice(
        ["x", "{name: a, gpu: l4}", "{type: fixed, tokens: 1}", "[]", "1", "prefill"]
    )
    lines = [f"a0: &a0 [{', '.join([first] * wide)}]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * wide)}]" for k in range(1, deep)]
    key = draw.choice(["clients", "model", "workload", "seed", "slo", "network", "a", "routers"])
    form = draw.choice(["{}: *a{}", "{}: {{x: *a{}}}", "{}: [*a{}, *a{}]", "{}: {{? *a{} : 1}}"])
    return "\n".join([*lines, form.format(key, deep - 1, deep - 1), ""])


def as_yaml(data: Any) -> str:
    """Return data as YAML, with braces and quotes."""
    if isinstance(data, dict):
        return f"{{{', '.join(f'{as_yaml(key)}: {as_yaml(item)}' for key, item in data.items())}}}"
    if isinstance(data, list | tuple):
        return f"[{', '.join(map(as_yaml, data))}]"
    text = json.dumps(data)
    return _NOT_IN_JSON.get(text, text)


_NOT_IN_JSON = {"NaN": ".nan", "Infinity": ".inf", "-Infinity": "-.inf"}
