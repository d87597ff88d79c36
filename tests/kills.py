"""Commands that are stopped at random moments: no results are lost, and no process is left.

    python -m tests.kills [NUMBER] [--first SEED]

does so many cases, each made from a seed, and prints those that fail with their seeds. A case
prepares a place with earlier results, or with none, lets a command replace them with `--force`, and
stops it: with SIGKILL, SIGTERM, SIGINT or SIGHUP, for the command alone or its whole group, at any
moment, while its workers start, or while it writes. Sometimes the next command is killed as well.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from mist_sim.output import SUFFIX, is_free, written_here
from tests.damage.draws import Draw
from tests.processes import in_session, wait_until_gone
from tests.reference.scenarios import of_profile

SECONDS = 5.0
"""After the signal: all processes have ended. Waiting for a processor does not count."""

_LONG = 600.0  # seconds that no command takes on a busy machine
_MIST = str(Path(sysconfig.get_path("scripts"), "mist"))
_SCENARIO = {
    "model": "llama-3.1-8b",
    "slo": {"ttft": "1 s", "tpot": "50 ms"},
    "workload": of_profile(60, "20 /s"),
    "clients": [{"name": "llm", "gpu": "h100-sxm"}],
}
_POINTS = "isl,osl,concurrency,tp_size,silicon_ttft_ms,silicon_tpot_ms\n" + "512,8,4,2,100,10\n" * 6
_SLIDERS = ["--chunks=512", "--set=workload.lengths.num_requests=20", "--tolerance=0.5", "--as-is"]

Files = dict[str, bytes]


class Verb(NamedTuple):
    """A command that writes `out`; earlier results there are those of another one."""

    words: list[str]
    out: str = "results"
    earlier: str = "run"

    @property
    def has_workers(self) -> bool:
        return "--jobs=2" in self.words


VERBS = {
    "run": Verb(["run", "a.json"], earlier="replications"),
    "demo": Verb(["demo"]),
    "replications": Verb(["run", "a.json", "--replications=4", "--jobs=2"]),
    "goodput": Verb(
        [
            "goodput",
            "a.json",
            "--replications=2",
            "--rates=1:60",
            "--most-requests=1000",
            "--jobs=2",
        ]
    ),
    "compare": Verb(["compare", "a.json", "b.json", "--jobs=2"]),
    "sliders": Verb(["sliders", "taichi-hybrid", *_SLIDERS, "--jobs=2"], earlier="compare"),
    "bestserve": Verb(
        ["bestserve", "a.json", "--strategies=1m,2m,1p1d", "--replications=2", "--jobs=2"],
        earlier="compare",
    ),
    "timeline": Verb(["timeline", "reference/run/results"], "out.json", "schema"),
    "schema": Verb(["schema"], "out.json", "timeline"),
    "calibrate": Verb(["calibrate", "closed_loop", "points.csv"], "out.json", "schema"),
    "fit": Verb(["fit", "steps.csv"], "out.json", "schema"),
}
SIGNALS = {
    signal.SIGKILL: "",
    signal.SIGTERM: "terminated",
    signal.SIGINT: "interrupted",
    signal.SIGHUP: "hung up",
}
MOMENTS = {"any": 1.1, "start": 0.8, "new": 0.05, "journal": 0.002}
"""When a signal comes, and how much later at most: at any moment, in parts of the time that the
command takes; in seconds after its workers start, or after such a name is in its private folder."""


class Case(NamedTuple):
    """What is done, made from a seed.

    before: what is there: "nothing", an "empty" folder, "earlier" results, or these with a file of
    others ("theirs"). group: whether all processes get the signal. wait: how long after the moment
    it comes. again: whether the next command is killed, too. resume: whether the last one goes on
    with what a study had found, and does not begin anew.
    """

    seed: int
    verb: str
    before: str
    signal: signal.Signals
    group: bool
    moment: str
    wait: float
    again: bool
    resume: bool


def case_of(seed: int) -> Case:
    """Return the case of a seed."""
    draw = Draw(f"kill {seed}")
    name = draw.choice(list(VERBS))
    verb = VERBS[name]
    is_folder = verb.out == "results"
    moments = ["any", "new", *["start"] * verb.has_workers, *["journal"] * 2 * is_folder]
    before = ["nothing", "earlier", *["empty", "theirs"] * is_folder]
    number = draw.choice([signal.SIGKILL, *SIGNALS])
    moment = draw.choice(moments)
    return Case(
        seed,
        name,
        draw.choice(before),
        number,
        draw.share() < 0.5,
        moment,
        draw.share() * MOMENTS[moment],
        draw.share() < 0.25,
        draw.share() < 0.5,
    )


@dataclass(frozen=True)
class Command:
    """A command that was started, alone in its session."""

    process: subprocess.Popen[bytes]
    errors: Path

    @classmethod
    def start(cls, words: list[str], folder: Path) -> Command:
        descriptor, errors = tempfile.mkstemp(dir=folder / "errors")
        with os.fdopen(descriptor) as file:
            process = subprocess.Popen(
                [_MIST, *words],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                env=os.environ | {"COLUMNS": "80", "PYTHONFAULTHANDLER": "1"},
                start_new_session=True,
            )
        return cls(process, Path(errors))

    def await_moment(self, moment: str, room: Path) -> None:
        """Wait until it is there, or the command has ended. room: its private folder."""
        if moment == "start":
            self._await(self._has_workers, 0.01)
        elif moment != "any":
            self._await((room / "new").exists, 0.001)
            self._await((room / moment).exists, 0.0)  # it is there for a millisecond

    def _await(self, condition: Callable[[], bool], pause: float) -> None:
        while self.process.poll() is None and not condition():
            time.sleep(pause)

    def _has_workers(self) -> bool:
        return any("popen_loky" in words for words in in_session(self.process.pid).values())

    def stop(self, number: signal.Signals, *, group: bool) -> float:
        """Send a signal; return after how many seconds all processes of the command are gone.

        Raises AssertionError when they are not in time, with where they are.
        """
        if self.process.poll() is None:
            (os.killpg if group else os.kill)(self.process.pid, number)
        try:
            return wait_until_gone(self.process.pid, SECONDS)
        except AssertionError as error:
            self._abort(in_session(self.process.pid))
            raise AssertionError(f"{error}; {self.end()}") from None

    def _abort(self, left: Iterable[int]) -> None:
        """End processes, which say first where they are."""
        for number in (signal.SIGABRT, signal.SIGKILL):
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(0.5)

    def end(self) -> tuple[int, str]:
        """Wait for its end; return the exit code and what it said on stderr."""
        code = self.process.wait(_LONG)
        said = self.errors.read_text("utf-8", "replace")
        self.errors.unlink()
        return code, said


@dataclass
class Campaign:
    """Cases in a folder, and what came of them."""

    folder: Path
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    _results: dict[str, tuple[Files, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "errors").mkdir()
        (self.folder / "a.json").write_text(json.dumps(_SCENARIO))
        (self.folder / "b.json").write_text(json.dumps(_SCENARIO | {"router": "random"}))
        (self.folder / "points.csv").write_text(_POINTS)
        (self.folder / "steps.csv").write_text(_steps())
        self.results("run")  # which the timeline reads

    def results(self, name: str) -> tuple[Files, float]:
        """Return what a command writes, which is the same every time, and how long it takes."""
        if name not in self._results:
            place = self.folder / "reference" / name / VERBS[name].out
            place.parent.mkdir(parents=True)
            start = time.monotonic()
            code, said = self._start(name, place).end()
            assert code == 0, said
            self._results[name] = files(place), time.monotonic() - start
        return self._results[name]

    def _start(self, name: str, place: Path, jobs: int = 1, more: Sequence[str] = ()) -> Command:
        words = [word.replace("--jobs=2", f"--jobs={jobs}") for word in VERBS[name].words]
        return Command.start([*words, "--out", str(place), "--force", *more], self.folder)

    def run(self, case: Case) -> None:
        """Do a case. Raises AssertionError where something is not as it has to be."""
        place = self.folder / str(case.seed) / VERBS[case.verb].out
        place.parent.mkdir()
        theirs = self._prepare(case, place)
        before, new = files(place), {**self.results(case.verb)[0], **theirs}
        code, said = self._stopped(case, place)
        was_cut = (_room(place) / "journal").exists()
        found = found_after(place)
        assert found in (before, new), f"neither the old nor the new is whole: {sorted(found)}"
        _check_words(case, code, said, is_new=found == new)
        outcome = "while files moved" if was_cut else _outcome(code, is_new=found == new)
        self.outcomes[f"{case.signal.name}, {case.moment}: {outcome}"] += 1
        if case.again:
            killed = case._replace(signal=signal.SIGKILL, moment="any", wait=case.wait % 1)
            self._stopped(killed, place)
            again = found_after(place)
            assert again in (found, new), f"a second kill lost {sorted(again)}"
        more = ["--resume"] * (case.resume and VERBS[case.verb].has_workers)
        code, said = self._start(case.verb, place, more=more).end()
        assert code == 0, f"the next command: {said}"
        assert files(place) == new, f"not what the next command writes: {sorted(files(place))}"
        left = sorted(path.name for path in place.parent.iterdir())
        assert left == [place.name], f"beside the results: {left}"
        shutil.rmtree(place.parent)

    def _prepare(self, case: Case, place: Path) -> Files:
        """Put earlier results to a place; return the files of others there."""
        earlier = self.results(VERBS[case.verb].earlier)[0]
        self.results(case.verb)  # its time is measured while nothing else runs
        if case.before != "nothing" and place.name == "results":
            place.mkdir()
        if case.before in ("earlier", "theirs"):
            for name, content in earlier.items():
                (place / name).write_bytes(content)
        if case.before == "theirs":
            (place / "theirs.txt").write_text("theirs")
            return {"theirs.txt": b"theirs"}
        return {}

    def _stopped(self, case: Case, place: Path) -> tuple[int, str]:
        """Start a command and stop it; return its exit code and what it said."""
        command = self._start(case.verb, place, jobs=2)
        command.await_moment(case.moment, _room(place))
        unit = self.results(case.verb)[1] if case.moment == "any" else 1.0
        time.sleep(case.wait * unit)
        seconds = command.stop(case.signal, group=case.group)
        self.slowest = max(self.slowest, seconds)
        return command.end()


def _room(place: Path) -> Path:
    """Return the private folder of who writes a place."""
    return place.with_name(f".{place.name}{SUFFIX}")


def files(place: Path) -> Files:
    """Return a file, or those of a folder, by name; "" is that of a file."""
    if place.is_dir():
        return {path.name: path.read_bytes() for path in place.iterdir()}
    return {"": place.read_bytes()} if place.exists() else {}


def found_after(place: Path) -> Files:
    """Return what the next command into a place finds there, from a copy."""
    copy = place.parent.with_suffix(".copy")
    shutil.copytree(place.parent, copy)
    is_free(copy / place.name)  # finishes what a killed command had begun
    found = files(copy / place.name)
    room = _room(copy / place.name)
    left = {path.name for path in copy.iterdir()} - {place.name}
    assert left <= {room.name}, "something is left beside"
    assert not left or [path.name for path in room.iterdir()] == ["study.jsonl"], "in the room"
    if (copy / place.name).is_dir():
        assert all(written_here(copy / place.name).values()), "sums are wrong"
    shutil.rmtree(copy)
    return found


def _outcome(code: int, *, is_new: bool) -> str:
    if code == 0:
        return "ended before"
    return "stopped after it wrote" if is_new else "stopped before it wrote"


def _check_words(case: Case, code: int, said: str, *, is_new: bool) -> None:
    """Raise AssertionError where a command did not say what came of its results."""
    number = case.signal
    assert code in (0, -number, 128 + number), f"exit code {code}: {said}"
    if code == 0:
        assert is_new, f"it said it was done: {said}"
    if code == 128 + number:
        word, _, results = said.rstrip().splitlines()[-1].partition("; ")
        assert word == SIGNALS[number], said
        told = ("the results are in",) if is_new else ("no results were", "finished runs are kept")
        assert results.startswith(told), said
        assert "Traceback" not in said, said


def _steps() -> str:
    """Return a table of measured steps, whose times follow a formula."""
    rows = ["# model: llama-3.1-8b", "# gpu: h100-sxm", "# tensor_parallel_size: 1"]
    rows += ["num_new_tokens,num_context_tokens,num_decodes,context_sum,seconds"]
    rows += [
        f"{new},{old},0,0,{0.006 + 4e-5 * new + 2e-9 * new * old}"
        for new in (16, 64, 256, 1024, 4096)
        for old in (0, 512, 4096)
    ]
    rows += [
        f"0,0,{n},{n * mean},{0.006 + 2e-5 * n + 2e-8 * n * mean}"
        for n in (1, 4, 16, 64, 256)
        for mean in (128, 1024, 4096)
    ]
    return "\n".join(rows) + "\n"


@contextmanager
def heard() -> Iterator[None]:
    """Let commands hear signals that a shell has made this process ignore, and so all it starts."""
    ignored = [number for number in SIGNALS if signal.getsignal(number) == signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


def campaign(seeds: range, report: Callable[[str], None] = print) -> list[str]:
    """Do the cases of some seeds; return what failed, a line or more each."""
    failed = []
    with tempfile.TemporaryDirectory(prefix="mist-kills-") as folder, heard():
        cases = Campaign(Path(folder))
        for done, seed in enumerate(seeds, 1):
            case = case_of(seed)
            try:
                cases.run(case)
            except AssertionError as error:
                failed.append(f"{case}: {error}")
                report(failed[-1])
            if done % 25 == 0 or done == len(seeds):
                report(
                    f"{done} of {len(seeds)}, {len(failed)} failed; slowest {cases.slowest:.1f} s"
                )
        for outcome, times in sorted(cases.outcomes.items()):
            report(f"{times:5} {outcome}")
    return failed


def main() -> int:
    """Run the command line; return 1 where a case failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("number", type=int, nargs="?", default=500)
    parser.add_argument("--first", type=int, default=time.time_ns() // 10**6)
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.number)
    print(f"seeds {seeds.start} to {seeds.stop - 1}", flush=True)
    return bool(campaign(seeds, lambda line: print(line, flush=True)))


if __name__ == "__main__":
    sys.exit(main())
