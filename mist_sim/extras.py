"""Optional dependencies: nothing is imported before it is used, and a missing one is named."""

from __future__ import annotations

from importlib.util import find_spec

from mist_sim.errors import ScenarioError


def require_extra(module: str, extra: str, what: str) -> None:
    """Raise ScenarioError that names the extra when a module is not installed.

    what: what needs it, for the message.
    """
    if find_spec(module) is None:
        raise ScenarioError(f'{what} needs {module}: pip install "mist-sim[{extra}]"')
