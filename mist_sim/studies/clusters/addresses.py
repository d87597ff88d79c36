"""Which cluster an address names: dask://HOST:PORT or ray://HOST:PORT."""

from __future__ import annotations

import re

from mist_sim.errors import ScenarioError, brief
from mist_sim.studies.task import Executor

_ADDRESS = re.compile(r"(dask|ray)://([\w.-]+|\[[0-9a-fA-F:]+\]):(\d{1,5})")
_LAST_PORT = 65_535


def executor_at(address: str) -> Executor:
    """Return the executor of tasks on a cluster; it connects at the first task.

    Raises ScenarioError for other addresses.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[3]) <= _LAST_PORT:
        raise ScenarioError(
            "--cluster must be dask://HOST:PORT or ray://HOST:PORT, such as dask://10.0.0.7:8786, "
            f"got {brief(address)}"
        )
    kind, host, port = match.groups()
    if kind == "dask":
        from mist_sim.studies.clusters.on_dask import OnDask

        return OnDask(f"tcp://{host}:{port}", address)
    from mist_sim.studies.clusters.on_ray import OnRay

    return OnRay(address)
