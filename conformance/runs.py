"""Runs workloads in vLLM one by one; a file keeps each result, and a later run goes on."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from conformance.jobs import Spec

_ROOT = Path(__file__).resolve().parents[1]
_RESERVE = "scheduler_reserve_full_isl"
Result = dict[str, Any]


class FailedError(Exception):
    """Results of vLLM are not to be had: why, and what to do."""


@dataclass
class Runs:
    """Results of an installed vLLM.

    python: of an environment that has vLLM. asynchronous: whether it plans one step ahead.
    first_chunk: whether prompts are admitted by their first chunk.
    keep: a file of results, read if it is there, to which each new one is added; None: no file.
    header: `version` of vLLM and `options` of its scheduler, once the first result is there.
    """

    python: str
    asynchronous: bool = False
    first_chunk: bool = False
    keep: Path | None = None
    header: dict[str, Any] = field(default_factory=dict)
    _kept: dict[tuple[str, int], Result] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.keep is not None and self.keep.exists():
            self._read(self.keep)

    def _read(self, path: Path) -> None:
        """Read the file; a last line that was cut off by a stop is dropped from it."""
        text = path.read_text("utf-8")
        whole = text[: text.rfind("\n") + 1]
        if text and not whole:
            raise FailedError(f"--keep {path} is no file of results: name another one")
        if whole != text:
            path.write_text(whole, "utf-8")
        first, *lines = whole.splitlines() or ["{}"]
        self._check(json.loads(first))
        for line in lines:
            name, seed, result = json.loads(line)
            self._kept[name, seed] = result

    def _check(self, header: dict[str, Any]) -> None:
        """Take the header of a file. Raises FailedError for results of another kind of run."""
        if not header:
            return
        if "asynchronous" not in header:
            raise FailedError(f"--keep {self.keep} is no file of results: name another one")
        if header["asynchronous"] != self.asynchronous:
            mode = "with" if header["asynchronous"] else "without"
            raise FailedError(f"--keep {self.keep} has results {mode} --async: name another file")
        if self.first_chunk and header["options"][_RESERVE]:
            raise FailedError(
                f"--keep {self.keep} has results without --first-chunk: name another file"
            )
        self.header = {"version": header["version"], "options": header["options"]}

    def of(self, specs: list[Spec]) -> Iterator[tuple[Spec, Result]]:
        """Yield workloads with what vLLM did, those in the file first.

        Raises FailedError where its process ends before it has run all.
        """
        missing = []
        for spec in specs:
            if (found := self._kept.get((spec["name"], spec["seed"]))) is not None:
                yield spec, found
            else:
                missing.append(spec)
        if missing:
            yield from self._run(missing)

    def _run(self, specs: list[Spec]) -> Iterator[tuple[Spec, Result]]:
        flags = ["--async"] * self.asynchronous + ["--first-chunk"] * self.first_chunk
        with tempfile.TemporaryFile("w+") as errors:
            there = subprocess.Popen(
                [self.python, "-m", "conformance.vllm_side", *flags],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=_ROOT,
            )
            try:
                yield from self._results(there, specs)
            except (BrokenPipeError, json.JSONDecodeError):
                there.wait()
                errors.seek(0)
                Console(stderr=True).print(errors.read()[-2_000:], markup=False)
                raise FailedError(
                    f"vLLM's side ended early under {self.python}; is vllm installed there?"
                ) from None
            finally:
                there.kill()
                there.wait()
                for pipe in (there.stdin, there.stdout):
                    if pipe is not None:
                        with suppress(BrokenPipeError):
                            pipe.close()

    def _results(
        self, there: subprocess.Popen[str], specs: list[Spec]
    ) -> Iterator[tuple[Spec, Result]]:
        assert there.stdin is not None
        assert there.stdout is not None
        json.dump(specs, there.stdin)
        there.stdin.close()
        header = json.loads(there.stdout.readline())
        if self.header not in ({}, header):
            raise FailedError(
                f"--keep {self.keep} has results of {self.header}, and {self.python} has {header}: "
                "name another file"
            )
        if not self.header:
            self._add(header | {"asynchronous": self.asynchronous})
        self.header = header
        for spec in specs:
            result = json.loads(there.stdout.readline())
            self._add([spec["name"], spec["seed"], result])
            yield spec, result

    def _add(self, line: Any) -> None:
        """Write a line to the file at once, so that a stop loses no other."""
        if self.keep is not None:
            with self.keep.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
