"""Runs the examples in a Markdown file and compares what they print with what the file shows.

    python tools/pages/run_blocks.py README.md docs/tutorial.md           report differences
    python tools/pages/run_blocks.py --write README.md docs/tutorial.md   write the new output

All blocks of a file run in order, in one new folder that holds a copy of `examples/`:

- ```python runs; all such blocks of a file share their variables. A block that begins with the
  comment `# not run` is left out.
- ```console runs the lines that begin with `$`: `mist` inside this process, `python` in another.
- ```yaml and ```toml whose first line is a comment with a file name write that file.
- The lines below a command, and the ```text block after a Python block, are its standard output.
  Without such lines the output is not compared. Where they end with `...`, only as many
  paragraphs as stand before it are shown and compared.
- ```bash (commands for elsewhere), ```csv, ```json and ```tree (a drawing) are only shown. A test
  asks for one of these names, so that no output goes without being compared.
"""

from __future__ import annotations

import difflib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from mist_sim.cli import main as mist

ROOT = Path(__file__).resolve().parents[2]
BAD_INPUT = 2  # exit code of an error that a file may show on purpose
SHOWN = ("bash", "csv", "json", "tree", "yaml", "toml")
FILE_NAME = re.compile(r"# ([\w.-]+\.(?:yaml|toml))")


@dataclass
class Block:
    """A fenced block: its language, its lines, and the position of the first of them."""

    language: str
    lines: list[str]
    start: int


END = Block("", [], 0)


def blocks(text: str) -> list[Block]:
    """Return the code blocks of a page, in their order."""
    found: list[Block] = []
    opened: Block | None = None
    for position, line in enumerate(text.splitlines()):
        if opened is None and line.startswith("```"):
            opened = Block(line[3:].strip(), [], position + 1)
        elif opened is not None and line == "```":
            found.append(opened)
            opened = None
        elif opened is not None:
            opened.lines.append(line)
    return found


def _runs(block: Block) -> bool:
    return block.language == "python" and "# not run" not in block.lines[0]


class Runner:
    """Runs the blocks of one file; `output` is what each shown output should be, by position."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = path.read_text("utf-8").splitlines()
        self.blocks = blocks(path.read_text("utf-8"))
        self.variables: dict[str, Any] = {"__name__": "__main__"}

    def not_compared(self) -> list[str]:
        """Return what is wrong with blocks that might show output and are not compared."""
        problems = []
        for before, block in pairwise([END, *self.blocks]):
            place, language = f"{self.path.name}:{block.start}", block.language
            if language == "text" and not (_runs(before) and self._follows(before, block)):
                problems.append(f"{place}: text is output, and follows the Python that prints it")
            elif language not in ("console", "python", "text", *SHOWN):
                problems.append(f"{place}: no block is {language!r}; this may be one of {SHOWN}")
        return problems

    def run(self) -> list[str]:
        """Return the file's lines with the output as it is now. Raises what a block raises."""
        changes: list[tuple[int, int, list[str]]] = []
        for block, following in pairwise([*self.blocks, END]):
            if block.language == "console":
                changes += self._console(block)
            elif _runs(block):
                output = self._python(block)
                if following.language == "text" and self._follows(block, following):
                    end = following.start + len(following.lines)
                    changes.append((following.start, end, output))
            elif block.language in ("yaml", "toml") and (name := FILE_NAME.match(block.lines[0])):
                Path(name[1]).write_text("\n".join(block.lines) + "\n", encoding="utf-8")
        lines = list(self.lines)
        for start, end, output in reversed(changes):
            lines[start:end] = output
        return lines

    def _follows(self, block: Block, following: Block) -> bool:
        """Tell whether nothing but empty lines lies between two blocks."""
        between = self.lines[block.start + len(block.lines) + 1 : following.start - 1]
        return not any(between)

    def _python(self, block: Block) -> list[str]:
        text = "\n" * block.start + "\n".join(block.lines)  # so that errors show the file's lines
        code = compile(text, str(self.path), "exec", dont_inherit=True)
        with redirect_stdout(io.StringIO()) as out:
            exec(code, self.variables)  # noqa: S102 - this is what the file is for
        return _printed(out.getvalue())

    def _console(self, block: Block) -> list[tuple[int, int, list[str]]]:
        changes = []
        commands = [i for i, line in enumerate(block.lines) if line.startswith("$ ")]
        for first, end in zip(commands, [*commands[1:], len(block.lines)], strict=True):
            words = shlex.split(block.lines[first][2:], comments=True)
            shown = end > first + 1
            code, out, err = COMMANDS[words[0]](words[1:])
            if code and not (shown and code == BAD_INPUT):
                place = f"{self.path}:{block.start + first + 1}"
                raise RuntimeError(f"{place}: {block.lines[first]} left with {code}:\n{err}")
            if shown:
                output = _printed(err if code else out)
                output = _cut(output, block.lines[first + 1 : end])
                changes.append((block.start + first + 1, block.start + end, output))
        return changes


def _mist(args: list[str]) -> tuple[object, str, str]:
    """Run `mist`; return its exit code and what it wrote to stdout and stderr."""
    code: object = 0
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        try:
            mist(args)
        except SystemExit as left:
            code = left.code
    return code, out.getvalue(), err.getvalue()


def _script(args: list[str]) -> tuple[object, str, str]:
    """Run a Python file; return what `_mist` does."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *args], env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


COMMANDS = {"mist": _mist, "python": _script}


def _printed(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _cut(output: list[str], shown: list[str]) -> list[str]:
    """Return the paragraphs of an output that a page shows, if it shows only the first ones."""
    if shown[-1] != "...":
        return output
    begun = [
        place for place, line in enumerate(output) if line and not (place and output[place - 1])
    ]
    number = sum(bool(line) and not before for before, line in pairwise(["", *shown[:-1]]))
    return [*output[: begun[number]], "..."] if number < len(begun) else output


def check(path: Path, *, write: bool) -> list[str]:
    """Run a file's blocks in a new folder; return the differences, or write them away."""
    runner = Runner(path.resolve())
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        shutil.copytree(ROOT / "examples", "examples")
        now = runner.run()
    if write:
        runner.path.write_text("\n".join(now) + "\n", encoding="utf-8")
        return []
    return list(difflib.unified_diff(runner.lines, now, f"{path}", "now", lineterm="", n=1))


def main() -> None:
    """Check the pages on the command line, each in a process; with `--write`, mend them."""
    os.environ["COLUMNS"] = "80"
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        os.environ.pop(name, None)
    arguments = sys.argv[1:]
    write = "--write" in arguments
    pages = [name for name in arguments if name != "--write"]
    if len(pages) > 1:  # a process each, so that what a page registers is unknown to the others
        command = [sys.executable, __file__, *(["--write"] if write else [])]
        sys.exit(max(subprocess.run([*command, page], check=False).returncode for page in pages))
    differences: list[str] = []
    for name in pages:
        differences += check(Path(name), write=write)
    print("\n".join(differences), end="\n" if differences else "")
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    main()
