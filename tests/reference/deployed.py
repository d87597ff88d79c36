"""A plan's `vllm serve` lines, read back by `mist from-vllm`."""

import shlex
from pathlib import Path
from typing import Any

from mist_sim.scenario import Scenario
from mist_sim.scenario.from_vllm.commands import from_vllm
from mist_sim.scenario.loading import as_data
from mist_sim.search.planning.deployment import Deployment


def read_back(planned: Scenario, deployment: Deployment, script: Path) -> dict[str, Any]:
    """Return a planned scenario's keys with the clients and the model that its script gives.

    script: a file to write. The load, the limits and prices are no options of a server: they stay
    those of the plan, and so does the GPU. That the proxy is not read is said beside them.
    """
    script.write_text(deployment.text)
    data = as_data(planned)
    words = shlex.split(deployment.read_back)
    engine = words[words.index("--engine") + 1] if "--engine" in words else None
    keys = from_vllm([str(script)], gpu=data["clients"][0]["gpu"], engine=engine).keys
    keys = {key: value for key, value in keys.items() if key != "assumptions"}
    keys |= {"engine": engine} if engine else {}
    sets = [words[k + 1] for k, word in enumerate(words) if word == "--set"]
    rest = {key: data[key] for key in ("workload", "slo", "cost") if key in data}
    return as_data(Scenario.from_dict(rest | keys, dict(each.split("=", 1) for each in sets)))
