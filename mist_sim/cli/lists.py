"""Names of options, and options that are lists of words or numbers with commas between them."""

from __future__ import annotations

from mist_sim.bounds import COPIES
from mist_sim.errors import ScenarioError, brief


def option_of(name: str) -> str:
    """Return the option that sets a parameter, such as --max-gpus."""
    return f"--{name.replace('_', '-')}"


def words(text: str, option: str) -> tuple[str, ...]:
    """Return the words of a list. Raises ScenarioError for an empty one."""
    found = tuple(word.strip() for word in text.split(","))
    if not all(found):
        raise ScenarioError(f"{option} must be words with commas between them, got {brief(text)}")
    return found


def whole_numbers(text: str, option: str, least: int = 1, most: int = COPIES) -> tuple[int, ...]:
    """Return the whole numbers of a list. Raises ScenarioError for others, and other words."""
    found = []
    for word in text.split(","):
        if not (word.strip().isdecimal() and least <= int(word) <= most):
            raise ScenarioError(
                f"{option} must be whole numbers from {least} to {most}, separated by commas, "
                f"got {brief(word)}"
            )
        found.append(int(word))
    return tuple(found)
