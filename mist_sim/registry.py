"""Plugins by name: built-ins register where they are defined, third parties by entry point.

A package's plugin is imported when a scenario names it, so a broken plugin stops no other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from inspect import signature
from typing import Any, TypeVar

from mist_sim.errors import (
    ScenarioError,
    UnknownPluginError,
    UnloadableError,
    brief,
    did_you_mean,
)

T = TypeVar("T", bound=type[Any])


class Registry(Mapping[str, type[Any]]):
    """The named classes of one family; a mapping from name to class.

    A plugin is a dataclass whose init fields are its parameters. Scenario files choose it with
    `type: NAME` and set the fields; Python code creates the object.
    """

    def __init__(
        self,
        family: str,
        later: Mapping[str, str] | None = None,
        plugins: Mapping[str, str] | None = None,
    ) -> None:
        """later: classes by name, "module:class", imported when the name is first asked for.

        plugins: names that packages in `plugins/` of a checkout offer, with their folders.
        """
        self.family = family
        self._plugins = plugins or {}
        self._later = dict(later or {})
        self._classes: dict[str, type[Any]] = {}
        self._offers: dict[str, list[EntryPoint]] | None = None

    @property
    def member(self) -> str:
        """A word for one of the family, in messages."""
        name = self.family.replace("_", " ")
        return f"{name[:-3]}y" if name.endswith("ies") else name.removesuffix("s")

    def hint(self, name: str, known: Iterable[str]) -> str:
        """Return what to do about a name that is not known, to put behind it in a message."""
        if name in self._plugins:
            return f" without its plugin: {installing(self._plugins[name])}."
        return did_you_mean(name, known)

    def register(self, name: str) -> Callable[[T], T]:
        """Class decorator that gives the class a name and returns it unchanged.

        Raises ScenarioError for what is no name or no class, and ValueError when another class
        already has the name.
        """
        said: object = name
        if not isinstance(said, str):
            raise ScenarioError(
                f"{self.family}.register needs a name, got {brief(said)}: write "
                f'register("my_{self.member.replace(" ", "_")}") above the class'
            )

        def add(cls: T) -> T:
            if not isinstance(cls, type):
                raise ScenarioError(
                    f"{self.family} {name!r} must be a class, whose parameters a file sets, got "
                    f"{brief(cls)}"
                )
            is_other = self._later.get(name, _place(cls)) != _place(cls)
            kind = getattr(cls, "kind", name) if self.family == "stages" else name
            if kind != name:
                raise ScenarioError(
                    f"stages {name!r} must have this `kind`, since files and clients name a stage "
                    f"by one word, got {kind!r} of {cls.__name__}"
                )
            known = self[name] if is_other else self._classes.get(name)
            if known is not None and _place(known) != _place(cls):
                raise ValueError(f"{self.family} {name!r} is already {known!r}, cannot be {cls!r}")
            self._classes[name] = cls
            return cls

        return add

    def find_entry_points(self) -> None:
        """Note what installed packages offer under `mist_sim.<family>`, once; import nothing."""
        if self._offers is None:
            self._offers = {}
            for point in offered(f"mist_sim.{self.family}"):
                self._offers.setdefault(point.name, []).append(point)

    def loaded(self) -> dict[str, type[Any]]:
        """Return the classes that are imported, by name."""
        return dict(sorted(self._classes.items()))

    def unloadable(self) -> dict[str, str]:
        """Load what packages offer; return the names of those that cannot be, and why."""
        found = {}
        for name in sorted(self._offers or ()):
            try:
                self[name]
            except UnloadableError as error:
                found[name] = str(error)
        return found

    def loadable(self) -> list[str]:
        """Return the names of all others."""
        return sorted(self.keys() - self.unloadable().keys())

    def usable(self) -> dict[str, type[Any]]:
        """Return all classes by name, but those that cannot be loaded."""
        return {name: self[name] for name in self.loadable()}

    def _load(self, name: str, points: list[EntryPoint]) -> None:
        """Register what packages offer under a name. Raises UnloadableError if that fails."""
        point = points[0]
        try:
            if others := {each.value for each in points} - {point.value}:
                raise ValueError(f"{min(others)!r} has the same name")
            with redirect_stdout(sys.stderr):  # stdout is for results
                self.register(name)(point.load())
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a module may call sys.exit as it is imported
            raise UnloadableError(
                f"plugin {point.value!r} ({self.family} {name!r}) cannot be loaded: "
                f"{type(error).__name__}: {error}; repair or uninstall the package that offers it"
            ) from error

    def __getitem__(self, name: str) -> type[Any]:
        if self._offers and (points := self._offers.pop(name, None)):
            try:
                self._load(name, points)
            except BaseException:
                self._offers[name] = points
                raise
        if name not in self._classes and name in self._later:
            module, _, class_name = self._later[name].partition(":")
            self._classes[name] = getattr(import_module(module), class_name)
        try:
            return self._classes[name]
        except KeyError:
            raise UnknownPluginError(
                f"no {self.member} named {brief(name)}{self.hint(name, self)} "
                f"Known: {', '.join(self)}."
            ) from None

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._names))

    def __len__(self) -> int:
        return len(self._names)

    @property
    def _names(self) -> set[str]:
        return {*self._classes, *self._later, *(self._offers or ())}


def installing(folder: str) -> str:
    """Return how to install a package of `plugins/`."""
    return f"pip install ./plugins/{folder} in a checkout of mist-sim"


def offered(group: str) -> EntryPoints:
    """Return the entry points of installed packages under a group."""
    found: EntryPoints = _all_offered().select(group=group)
    return found


@cache
def _all_offered() -> Any:  # of a class that depends on Python's version
    """Return the entry points of all groups, in one pass over the installed packages."""
    return entry_points()


def comes_with_package(cls: type[Any]) -> bool:
    """Tell whether a plugin is one of mist-sim's own, whose access to requests is known."""
    return cls.__module__.startswith("mist_sim.")


def _place(cls: type[Any]) -> str:
    """A class is the same again when its module was loaded twice, as notebooks do."""
    return f"{cls.__module__}:{cls.__qualname__}"


def require_method(where: str, part: object, form: str) -> None:
    """Raise ScenarioError unless an object has a method that takes these arguments.

    where: who names the object, such as "router". form: the method as guides write it, such as
        "choose(request, stage, candidates)".
    """
    name, _, arguments = form.removesuffix(")").partition("(")
    if isinstance(part, type):
        raise ScenarioError(
            f"{where} must be an object with {form}, got the class {part.__name__}: make one, "
            f"{part.__name__}(...)"
        )
    method = getattr(part, name, None)
    if not callable(method):
        raise ScenarioError(f"{where} must have a method {form}, got {brief(part)}")
    try:
        own = signature(method)
    except ValueError:  # of compiled code that does not tell
        return
    try:
        own.bind(*filter(None, arguments.split(", ")))
    except TypeError:
        raise ScenarioError(
            f"{where}: {type(part).__name__}.{name} must take {form}, got {name}{own}"
        ) from None


def require_kind(where: str, value: object, kind: type, example: str) -> None:
    """Raise ScenarioError unless a value is of a kind. example: how one is made."""
    if not isinstance(value, kind):
        raise ScenarioError(
            f"{where} must be of type {kind.__name__}, such as {example}, got {brief(value)}"
        )


class Known(dict[str, Any]):
    """A mapping whose KeyError for an unknown key names the closest one.

    what: begins the message, such as "the summary has no".
    """

    def __init__(self, values: Mapping[str, Any], what: str) -> None:
        super().__init__(values)
        self._what = what

    def __missing__(self, key: object) -> Any:
        hint = did_you_mean(str(key), self)
        known = "" if hint != "." or len(self) > 12 else f" Known: {', '.join(self)}."
        raise KeyError(f"{self._what} {brief(key)}{hint}{known}")
