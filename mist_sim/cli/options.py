"""Options of verbs: a verb is a plain function, and its docstring has a line for each of them.

Parameters before the `*` are arguments, those after it options; their types and defaults are those
of the function. A line of the docstring is `NAME [--FLAG...] [METAVAR]: TEXT`, indented where it
goes on; a parameter without a line has the one of `SHARED`. A parameter whose type is a dataclass,
such as a `Session`, stands for its fields, or for those that its `options` name.
`Annotated[TYPE, {...}]` has more of what `typer.Option` takes; a `typer.Context` is none.
"""

from __future__ import annotations

import re
from ast import FunctionDef, get_docstring, parse
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import is_dataclass
from inspect import Parameter, Signature, cleandoc, getsource, signature
from types import GenericAlias
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import typer

from mist_sim.errors import InvariantError

SHARED = """
allow_programs: Run the programs that the file names (predictor: {type: program, ...}); they can do
    all that you can.
approximate: Simulate an unknown model as the nearest known one; results name it, and have no error
    bar.
as_is: Judge the workload's own requests, ramp and end included; without it runs go on until steady
    state is judged.
as_json --json: Print the results as JSON in place of the tables.
attainment: Share of the requests that must keep the limits; by default slo.attainment, or 0.9.
cluster ADDRESS: Run on a running cluster: dask://HOST:PORT or ray://HOST:PORT.
columns --set KEY=VALUE: Set an option of the trace's form, as under workload.trace of a scenario,
    such as time_column=ts_ms of --format csv; repeatable.
commands --from-vllm COMMAND: Replace the clients by the server of "vllm serve ...", or the workload
    by that of "vllm bench serve ..."; or a file that holds it.
each_tolerance --tolerance: Stop when a goodput is known to within this share; by default 0.02.
file FILE: The trace.
folder DIR: The folder that mist run, compare, goodput, plan, search or sweep wrote with --out.
force: Replace earlier results in DIR; other files stay.
form --format NAME: The trace's form, one of mist list trace_readers; by default recognised by its
    first line.
input_len N: Tokens of each prompt.
jobs N: Parallel runs; by default one per core.
most_requests N: Length of the longest run, in requests; a rate that it cannot judge is undecided.
    By default 30000, and four times as many where the interval would be wide.
num_requests N: Read only the first N requests.
out DIR: Write the results into this new or empty folder.
output_len N: Tokens of each answer.
quiet --quiet -q: Print only results and errors.
replace --force: Replace FILE if it exists.
replications N: Search with N seeds; gives the mean and a confidence interval.
resume: Continue a stopped run of the same command, with its results in DIR.
scenario SCENARIO: A YAML file, the name of a preset (mist list presets), or - for standard input;
    not needed if --from-vllm gives everything.
seconds: Stop by a clock, so that the answer depends on the machine; 0: never.
seed: Set the seed.
settings --set KEY=VALUE: Set a value of the scenario, such as clients.0.count=8 or router=random;
    repeatable.
to NAME: azure, burstgpt, llmservingsim, mooncake, splitwise, timed_trace or vidur.
tolerance: Stop when the goodput is known to within this share.
tpot_ms MS: Limit on TPOT.
ttft_ms MS: Limit on TTFT.
vary KEY=A,B,...: Try each of these values, such as clients.0.count=1,2,4; repeatable: all
    combinations.
"""
"""Options that several verbs have, with the same words in all of them."""

_LINE = re.compile(r"(\w+)((?: --?[\w-]+)*)(?: ([^\s:-]\S*))?: (.*)")


class Declared(NamedTuple):
    """What a line declares; no flags: the parameter's name."""

    flags: Sequence[str]
    metavar: str | None
    text: str


def read(docstring: str, names: Container[str]) -> tuple[str, dict[str, Declared]]:
    """Return a docstring without the lines of these parameters, and what the lines declare."""
    about: list[str] = []
    found: dict[str, Declared] = {}
    latest = ""
    for line in cleandoc(docstring).splitlines():
        if (match := _LINE.fullmatch(line)) and match[1] in names:
            latest = match[1]
            found[latest] = Declared(match[2].split(), match[3], match[4])
        elif found and line and not line[0].isspace():
            raise InvariantError(f"no parameter of a verb is meant by its docstring's {line!r}")
        elif found and line:
            before = found[latest]
            found[latest] = before._replace(text=f"{before.text} {line.strip()}")
        elif not found:
            about.append(line)
    return "\n".join(about).strip(), found


_SHARED = read(SHARED, re.findall(r"^\w+", SHARED, re.MULTILINE))[1]


def as_command(verb: Callable[..., None]) -> Callable[..., None]:
    """Return a verb with its options as Typer reads them."""
    options: list[Parameter] = []
    groups: dict[str, tuple[Any, Collection[str]]] = {}
    for name, each in signature(verb, eval_str=True).parameters.items():
        if not is_dataclass(each.annotation):
            options.append(each)
            continue
        group: Any = each.annotation
        inner = signature(group, eval_str=True).parameters
        groups[name] = group, getattr(group, "options", inner)
        options += [inner[option] for option in groups[name][1]]
    about, lines = read(_docstring(verb), [each.name for each in options])

    def command(**given: Any) -> None:
        for name, (group, names) in groups.items():
            given[name] = group(**{option: given.pop(option) for option in names})
        verb(**given)

    command.__doc__ = about
    command.__signature__ = Signature(  # type: ignore[attr-defined]
        [_declared(each, _SHARED | lines) for each in options]
    )
    return command


def _docstring(verb: Callable[..., None]) -> str:
    """Return a verb's docstring; `python -OO` drops it, and so it is read from the source."""
    if verb.__doc__ is None:
        (function,) = parse(getsource(verb)).body
        return get_docstring(function) or "" if isinstance(function, FunctionDef) else ""
    return verb.__doc__


def _declared(parameter: Parameter, lines: dict[str, Declared]) -> Parameter:
    kind, default = parameter.annotation, parameter.default
    if kind is typer.Context:
        return parameter.replace(kind=Parameter.KEYWORD_ONLY)
    if parameter.name not in lines:
        raise InvariantError(f"the docstring of a verb has no line for {parameter.name}")
    flags, metavar, text = lines[parameter.name]
    kind, more = get_args(kind) if get_origin(kind) is Annotated else (kind, {})
    default = ... if default is Parameter.empty else default
    if get_origin(kind) is Sequence:  # Typer knows lists only
        kind = GenericAlias(list, get_args(kind))
        default = default if default is ... else [*default]
    if parameter.kind is Parameter.KEYWORD_ONLY:
        flags = flags or [option_of(parameter.name)]  # or Typer adds --no-...
        info = typer.Option(default, *flags, metavar=metavar, help=text, **more)
    else:
        info = typer.Argument(default, metavar=metavar, help=text, **more)
    return Parameter(parameter.name, Parameter.KEYWORD_ONLY, default=info, annotation=kind)


def option_of(name: str) -> str:
    """Return the option that sets a parameter, such as --max-gpus."""
    return f"--{name.replace('_', '-')}"
