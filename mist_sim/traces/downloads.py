"""Downloads of traces: they resume where they stopped, and leave no partial files.

A server may be broken, or hostile: a download is bounded in time and bytes.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from threading import Timer
from time import monotonic
from typing import IO, Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urljoin
from urllib.request import (
    FileHandler,
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
    url2pathname,
)

from mist_sim.bounds import DOWNLOAD_BYTES
from mist_sim.errors import ScenarioError, brief, cut

PATIENCE = 3_600.0  # s for a whole download, by default
_CHUNK = 1 << 18  # bytes
_SILENCE = 60.0  # s without a byte
_POINTER = b"version https://git-lfs.github.com/spec/"
_PAGE = (b"<!doctype html", b"<html")
_PARTIAL, _DONE, _NOT_SATISFIABLE = 206, 200, 416
_MOVED = (301, 302, 303, 307, 308)
_MOST_MOVES = 5
_SCHEMES = ("https://", "http://", "file://")
_LENGTH = re.compile("[0-9]{1,18}")
_PART = re.compile(r"bytes ([0-9]{1,18})-[0-9]+/([0-9]{1,18}|\*)")

Progress = Callable[[int, int | None], None]
"""Called with the bytes that are there, and all that there will be, where it is known."""


class Fetched(NamedTuple):
    """A file that was downloaded.

    url: where it was, perhaps after redirects. ends: whether the server said where the file ends.
    """

    sha256: str
    url: str
    ends: bool


def fetch(
    url: str,
    target: Path,
    *,
    sha256: str = "",
    timeout: float = PATIENCE,
    progress: Progress | None = None,
) -> Fetched:
    """Download a file to `target`, which must not exist yet.

    The received part is kept in `target`.part until it is complete, and a later call resumes it if
    the server can. sha256: the expected checksum; empty: any. timeout: seconds for all of it.

    Raises ScenarioError for a URL that cannot be read, a file of another checksum, a Git LFS
    pointer or a page of HTML in its place; a .part of these is removed.
    """
    if not url.startswith(_SCHEMES):
        raise ScenarioError(f"{cut(url, 200)}: a URL must begin with {', '.join(_SCHEMES)}")
    part = target.with_name(f"{target.name}.part")
    try:
        with _within(timeout) as watch:
            opener = _opener(watch, monotonic() + timeout)
            found_at, ends = _download(url, part, partial(opener.open, timeout=_SILENCE), progress)
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, HTTPError):
            error.close()
        kept = "".join(f"; {each}" for each in _kept(part))
        raise ScenarioError(f"{cut(url, 200)}: cannot be read: {_reason(error)}{kept}") from None
    except KeyboardInterrupt as stop:
        for each in _kept(part):
            stop.add_note(each)
        raise
    try:
        _check_kind(url, part)
        found = _digest(part)
        if sha256 and found != sha256.lower():
            raise ScenarioError(
                f"{cut(url, 200)}: sha256 must be {sha256}, got {found}; the file has changed or "
                "was damaged on the way: call again, or give the URL itself to take it as it is"
            )
    except ScenarioError:
        part.unlink()
        raise
    shutil.move(part, target)
    return Fetched(found, found_at, ends)


Watch = Callable[[socket.socket], None]
Opener = Callable[[Request], Any]


@contextmanager
def _within(seconds: float) -> Iterator[Watch]:
    """Bound the time of a block of code, which passes its connections to the yielded function.

    A socket's own limit begins anew with each byte, so a watch ends the connections from outside.
    Raises TimeoutError.
    """
    is_over = False
    watched: list[socket.socket] = []

    def end() -> None:
        nonlocal is_over
        is_over = True
        for each in watched:
            with suppress(OSError):  # it has ended
                each.shutdown(socket.SHUT_RDWR)

    def watch(connection: socket.socket) -> None:
        watched.append(opened.enter_context(connection.dup()))  # TLS takes the first one away
        if is_over:
            end()

    with ExitStack() as opened:
        timer = Timer(seconds, end)
        timer.daemon = True
        opened.callback(timer.cancel)
        timer.start()
        try:
            yield watch
        except (OSError, HTTPException, ValueError):
            if is_over:
                raise TimeoutError(f"it took over {seconds:g} s") from None
            raise
        if is_over:  # the end of a connection may look like that of a file
            raise TimeoutError(f"it took over {seconds:g} s")


def _opener(watch: Watch, end: float) -> OpenerDirector:
    """Return what opens URLs, without redirects, whose pages urllib's handler reads whole.

    end: when a connection is to stand, in seconds of `monotonic`.
    """

    class Plain(HTTPConnection):
        def connect(self) -> None:
            # socket takes the time for each of the addresses that a name has
            places = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            self.timeout = max(min(_SILENCE, end - monotonic()), 1e-3) / len(places)
            super().connect()
            self.sock.settimeout(_SILENCE)
            watch(self.sock)

    class Secure(HTTPSConnection, Plain):
        """Its connection is watched before TLS begins."""

    class Http(HTTPHandler):
        def http_open(self, request: Request) -> Any:
            return self.do_open(Plain, request)

    class Https(HTTPSHandler):
        def https_open(self, request: Request) -> Any:
            return self.do_open(Secure, request)

    opener = OpenerDirector()
    for handler in (
        *(ProxyHandler(), UnknownHandler(), Http(), Https(), FileHandler()),
        *(HTTPDefaultErrorHandler(), HTTPErrorProcessor()),
    ):
        opener.add_handler(handler)
    return opener


def _download(url: str, part: Path, opener: Opener, progress: Progress | None) -> tuple[str, bool]:
    """Append the missing bytes to the part, or begin again if the server cannot resume.

    Returns the URL of the file after redirects, and whether the server said where it ends.
    """
    have = _size(part)
    try:
        answer, url = _answer(url, opener, have)
    except HTTPError as error:
        if error.code != _NOT_SATISFIABLE or not have:
            raise
        error.close()
        answer, url = _answer(url, opener, 0)  # the part is no beginning of it
    with answer:
        done, total = _bounds(answer, have)
        _check_size(total or 0)
        with part.open("ab" if done else "wb") as file:
            done = _copy(answer, file, done, total, progress)
    if total is not None and done != total:
        raise OSError(f"it ended after {done} of {total} bytes")
    return url, total is not None or getattr(answer, "chunked", False)


def _bounds(answer: Any, have: int) -> tuple[int, int | None]:
    """Return where an answer begins in the file, and where the file ends; None: it does not say.

    have: bytes that are there. Raises OSError for another part than was asked.
    """
    lengths = set(answer.headers.get_all("Content-Length", []))
    if len(lengths) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
        raise OSError(f"Content-Length must be one whole number, got {brief(sorted(lengths))}")
    length = int(lengths.pop()) if lengths else None
    if getattr(answer, "status", _DONE) != _PARTIAL:
        return 0, length
    found = _PART.fullmatch(answer.headers.get("Content-Range", ""))
    if not have or found is None or int(found[1]) != have:
        raise OSError(f"the server sent another part than asked, which begins at {have}")
    if found[2] != "*":
        return have, int(found[2])
    return have, None if length is None else have + length


def _answer(url: str, opener: Opener, begin: int) -> tuple[Any, str]:
    """Return the answer to a request for a file from a byte on, and its URL after redirects."""
    headers = {"Range": f"bytes={begin}-"} if begin else {}
    for _ in range(_MOST_MOVES):
        _check_ordinary(url)
        try:
            return opener(Request(url, headers=headers)), url  # noqa: S310
        except HTTPError as error:
            if error.code not in _MOVED or "Location" not in error.headers:
                raise
            error.close()
            moved = urljoin(url, error.headers["Location"])
        if not moved.startswith(_SCHEMES[:2] if url.startswith("http://") else _SCHEMES[:1]):
            raise OSError(f"it is redirected to {brief(moved, 200)}; if you trust that, give it")
        url = moved
    raise OSError(f"it is redirected over {_MOST_MOVES} times, the last time to {brief(url, 200)}")


def _check_ordinary(url: str) -> None:
    """Raise OSError for a pipe or a device on this machine, which may have no end."""
    if url.startswith("file://"):
        path = Path(url2pathname(url.removeprefix("file://")))
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise OSError("it must be an ordinary file")


def _check_size(num_bytes: int) -> None:
    if num_bytes > DOWNLOAD_BYTES:
        raise OSError(f"it must have <= {DOWNLOAD_BYTES} bytes")


def _copy(
    answer: Any, file: IO[bytes], done: int, total: int | None, progress: Progress | None
) -> int:
    while chunk := answer.read1(_CHUNK):
        _check_size(done + len(chunk))
        file.write(chunk)
        done += len(chunk)
        if progress is not None:
            progress(done, total)
    return done


def _check_kind(url: str, part: Path) -> None:
    """Raise ScenarioError for pages and pointers that servers send instead of a file."""
    with part.open("rb") as file:
        begin = file.read(512)
    if begin.startswith(_POINTER):
        raise ScenarioError(
            f"{cut(url, 200)}: is a Git LFS pointer, not the file itself; download it with git lfs "
            "pull, or from the page where the repository offers it"
        )
    if begin.lstrip().lower().startswith(_PAGE):
        raise ScenarioError(
            f"{cut(url, 200)}: is a page of HTML, not a trace; take the link of the file itself"
        )
    if not begin:
        raise ScenarioError(f"{cut(url, 200)}: is empty; take the link of the file itself")


def _digest(part: Path) -> str:
    with part.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _kept(part: Path) -> Iterator[str]:
    """Yield what is said of a part that stays; one that is empty goes."""
    if _size(part):
        yield f"{part} keeps what has come, call again to go on"
    else:
        part.unlink(missing_ok=True)


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _reason(error: Exception) -> str:
    if isinstance(error, URLError) and not isinstance(error, HTTPError):
        error = error.reason if isinstance(error.reason, Exception) else error
    if isinstance(error, HTTPError):
        return f"status {error.code}"
    return brief(str(getattr(error, "strerror", None) or error) or type(error).__name__, 200)
