"""Shell text as simple commands: words without quotes, with the variables that the text sets.

POSIX's quoting (2.2), parameter expansion (2.6.2) and lists (2.9.3), as far as scripts that start
servers use them; bash's arrays. Nothing is run: `$(...)` and unset variables are kept as written. A
backslash, PowerShell's backtick or cmd's caret ends a line that goes on, also before a comment, as
documents show it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from mist_sim.errors import ScenarioError, cut

_PROMPT = re.compile(  # behind a line that goes on, > sends output to a file unless a flag follows
    r"(?<!\\\n)^[ \t]*(?:[$%>!][ \t]+|!(?=\w))|(?<=\\\n)[ \t]*>[ \t]+(?=-)", re.MULTILINE
)
_TOKEN = re.compile(
    r"""(?P<comment>(?<![^\s;&|()])\#[^\n]*)
    |(?P<joined>(?:\\|(?<=\s)[`^])(?:[ \t]+\#[^\n]*|[ \t]*\r?)\n)
    |(?P<space>[ \t\r]+)
    |(?P<end>\n|&&|\|\||;;|\|&|[;|]|&(?!>))
    |(?P<redirection>\d*(?:>>|>&|&>>|&>|<<<|<<-?|>|<)[ \t]*&?(?:'[^']*'|"[^"]*"|[^\s;&|'"]*))
    |(?P<single>\$?'[^']*')
    |(?P<double>"(?:\\.|[^"\\])*")
    |(?P<run>\$\((?:[^()]|\([^()]*\))*\)|`[^`\n]*`)
    |(?P<variable>\$\{[^{}]*\}|\$\w+)
    |(?P<escaped>\\.)
    |(?P<bracket>[()])
    |(?P<plain>[^\s;|&<>'"`$\\()#]+|.)""",
    re.VERBOSE | re.DOTALL,
)
_VARIABLE = re.compile(
    r"\\(?P<escaped>[\\\"$`\n])|\$\{(?P<name>\w+)(?:\[[@*]\])?(?P<how>:?[-=+?])?(?P<word>[^{}]*)\}"
    r"|\$(?P<bare>\w+)"
)
_ALL_OF_A_LIST = re.compile(r'"\$\{\w+\[@\]\}"')
_ARGUMENT = re.compile(r"\$\{?\d+\}?")  # of the script, which is read as it runs without
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)


@dataclass
class Variables:
    """Values that a script has set so far, lists as well, and which it exports."""

    values: dict[str, str] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)

    def expanded(self, text: str) -> str:
        """Return a text with its variables replaced by their values; unset ones are kept."""
        return _VARIABLE.sub(self._value, text)

    def _value(self, found: re.Match[str]) -> str:
        if found["escaped"] is not None:
            return "" if found["escaped"] == "\n" else found["escaped"]
        name, how = found["name"] or found["bare"], found["how"] or ""
        value = self.values.get(name)
        if name in self.lists:
            value = " ".join(self.lists[name])
        if how.endswith("+"):
            return self.expanded(found["word"]) if value else ""
        if how[-1:] in ("-", "=") and (value is None or (how[0] == ":" and not value)):
            return self.expanded(found["word"]).strip("\"'")
        return found[0] if value is None else value

    def kept(self) -> Variables:
        """Return a copy, which later assignments do not change."""
        lists = {name: list(words) for name, words in self.lists.items()}
        return Variables(dict(self.values), lists, set(self.exported))

    def go_back(self, before: Variables) -> None:
        """Take the values of a copy again."""
        again = before.kept()
        self.values, self.lists, self.exported = again.values, again.lists, again.exported

    @property
    def environment(self) -> dict[str, str]:
        """What a program started now would see of them."""
        return {name: self.values[name] for name in self.values if name in self.exported}


def simple_commands(text: str, variables: Variables) -> Iterator[list[str]]:
    """Yield the words of each simple command, with the assignments before it.

    variables: set as the text goes on. Raises ScenarioError for quotes that do not end.
    """
    reader = _Reader(variables)
    text = _PROMPT.sub("", text)
    for token in _TOKEN.finditer(text):
        if token.lastgroup == "plain" and token[0] in ("'", '"'):
            raise ScenarioError(
                f"--from-vllm: not a command line: No closing quotation; write {token[0]} where "
                f"that ends which begins here: {cut(text[token.start() :], 40)}"
            )
        if reader.take(token):
            yield from _run(reader.words, variables)
            reader.words = []
    reader.finish_word()
    yield from _run(reader.words, variables)


def _run(words: list[str], variables: Variables) -> Iterator[list[str]]:
    """Set variables if a command only sets variables; else yield the command."""
    if words and words[0] in ("export", "declare", "readonly", "local", "typeset"):
        words = [word for word in words[1:] if not word.startswith("-")]
        variables.exported |= {word.partition("=")[0] for word in words}
    found = [ASSIGNMENT.fullmatch(word) for word in words]
    if not words or not all(found):
        if words and not all(word.isidentifier() and word in variables.exported for word in words):
            yield words
        return
    for each in found:
        if each is not None and not (_ARGUMENT.fullmatch(each[3]) and each[1] in variables.values):
            before = variables.values.get(each[1], "") if each[2] else ""
            variables.values[each[1]] = before + each[3]


class _Reader:
    """Builds words out of tokens."""

    def __init__(self, variables: Variables) -> None:
        self.words: list[str] = []
        self._variables = variables
        self._word: str | None = None
        self._list: tuple[str, list[str]] | None = None  # name, and words before it

    def take(self, token: re.Match[str]) -> bool:
        """Add a token; return whether it ends a command."""
        kind, text = token.lastgroup or "", token[0]
        if kind == "end":
            return self._end()
        if kind == "redirection" and self._list is None:
            self._redirect()
        elif kind == "bracket":
            return self._bracket(text)
        elif kind in ("space", "joined"):
            self.finish_word()
        elif kind == "variable" or _ALL_OF_A_LIST.fullmatch(text):
            self._add_variable(text)
        elif kind != "comment":
            self._add(self._plain(kind, text))
        return False

    def _end(self) -> bool:
        self.finish_word()
        return self._list is None

    def _redirect(self) -> None:
        if self._word is not None and self._word.isdecimal():
            self._word = None
        self.finish_word()

    def finish_word(self) -> None:
        """End the word that is being read."""
        if self._word is not None:
            self.words.append(self._word)
            self._word = None

    def _add(self, text: str) -> None:
        self._word = (self._word or "") + text

    def _plain(self, kind: str, text: str) -> str:
        if kind == "single":
            return text.removeprefix("$")[1:-1]
        if kind == "double":
            return self._variables.expanded(text[1:-1])
        if kind == "escaped":
            return text[1]
        return text

    def _add_variable(self, text: str) -> None:
        """Add a variable outside quotes, whose value falls apart into words."""
        name = text.strip('"').strip("${}").removesuffix("[@]").removesuffix("[*]")
        if name in self._variables.lists:
            parts = self._variables.lists[name]
            if not text.startswith('"'):
                parts = [word for part in parts for word in part.split()]
        else:
            value = self._variables.expanded(text)
            parts = [value] if value == text else value.split()
        for number, part in enumerate(parts):
            if number:
                self.finish_word()
            self._add(part)

    def _bracket(self, text: str) -> bool:
        """Read a list, NAME=(...), or begin or end a group."""
        if text == "(" and self._word and ASSIGNMENT.fullmatch(self._word) and not self._list:
            self._list = (self._word.rstrip("=").rstrip("+"), self.words)
            self.words, self._word = [], None
            return False
        if text == ")" and self._list is not None:
            self.finish_word()
            (name, before), self._list = self._list, None
            self._variables.lists.setdefault(name, []).extend(self.words)
            self.words = before
            return False
        return self._end()
