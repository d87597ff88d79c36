"""Servers on the loopback that lie, stall and flood; each ends when its client leaves it."""

import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import repeat
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import ClassVar

LONGEST = 30.0  # s that a server goes on, far beyond any limit that a test sets
MOST_BYTES = 2**28  # that one sends: enough to fill what has no bound
GAP = 0.02  # s between the pieces of one that drips

Lie = Callable[["Talk"], None]
OK = b"HTTP/1.1 200 OK\r\n"
CLOSED = b"HTTP/1.0 200 OK\r\n\r\n"  # an answer that ends with the connection
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


class Talk(StreamRequestHandler):
    """One connection: `path`, `headers` and `body` of its request, and words back."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    lie: ClassVar[Lie]

    def handle(self) -> None:
        """Read a request, and lie. A client that leaves ends it."""
        try:
            self.path = self.rfile.readline().decode().split()[1]
            lines = iter(self.rfile.readline, b"\r\n")
            pairs = (line.decode().partition(": ")[::2] for line in lines)
            self.headers = {name.lower(): value.strip() for name, value in pairs}
            self.body = self.rfile.read(int(self.headers.get("content-length", 0)))
            self._ends, self._sent = time.monotonic() + LONGEST, 0
            type(self).lie(self)
        except (OSError, IndexError):
            pass

    def say(self, *words: bytes) -> None:
        """Send bytes."""
        for word in words:
            if time.monotonic() > self._ends or self._sent > MOST_BYTES:
                raise OSError("a test has no limit of its own")
            self.wfile.write(word)
            self._sent += len(word)

    def chunks(self, *words: bytes) -> None:
        """Send bytes as chunks of HTTP."""
        self.say(*(f"{len(word):x}\r\n".encode() + word + b"\r\n" for word in words))

    def for_ever(self, word: bytes, gap: float = 0.0, *, chunked: bool = False) -> None:
        """Send a word again and again."""
        for each in repeat(word):
            (self.chunks if chunked else self.say)(each)
            time.sleep(gap)

    def events(self, *events: object) -> None:
        """Send events of a stream, and end it."""
        self.say(CHUNKED)
        for event in events:
            text = event if isinstance(event, str) else json.dumps(event)
            self.chunks(f"data: {text}\n\n".encode())
        self.chunks(b"data: [DONE]\n\n", b"")

    def stall(self) -> None:
        """Say nothing until the client leaves."""
        self.connection.settimeout(LONGEST)
        self.connection.recv(1)


PIECE = {"choices": [{"text": "x"}]}
EVENT = f"data: {json.dumps(PIECE)}\n".encode()


def honest(talk: Talk) -> None:
    """Answer as a server of OpenAI's API does."""
    if not talk.body:
        talk.say(OK, b"Content-Length: 2\r\n\r\n{}")
        return
    asked = json.loads(talk.body)["max_tokens"]
    talk.events(*[PIECE] * asked, {"choices": [], "usage": {"completion_tokens": asked}})


def _counts(number: object, name: str = "completion_tokens") -> Lie:
    return lambda talk: talk.events(PIECE, PIECE, PIECE, {"usage": {name: number}})


def _packed(talk: Talk) -> None:
    bomb = gzip.compress(bytes(2**24)) * 64  # a GiB
    talk.say(OK, b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb), bomb)


def _redirects(talk: Talk) -> None:
    talk.say(b"HTTP/1.1 307 Elsewhere\r\nLocation: %s\r\n" % talk.path.encode())
    talk.say(b"Transfer-Encoding: chunked\r\n\r\n")
    talk.for_ever(b"x" * 4_096, chunked=True)


def _begins_and(lie: Lie, begin: bytes = CHUNKED) -> Lie:
    def begun(talk: Talk) -> None:
        talk.say(begin)
        lie(talk)

    return begun


ANY: Mapping[str, Lie] = {
    "stalls": Talk.stall,
    "begins and stalls": _begins_and(Talk.stall),
    "drips headers": _begins_and(lambda talk: talk.for_ever(b"x", GAP), OK),
    "floods headers": _begins_and(lambda talk: talk.for_ever(b"x" * 4_096), OK),
    "says continue for ever": lambda talk: talk.for_ever(b"HTTP/1.1 100 Continue\r\n\r\n"),
    "speaks another tongue": lambda talk: talk.for_ever(b"\0" * 4_096),
    "is redirected in a circle": _redirects,
}
"""Lies to any request."""

ANSWERS: Mapping[str, tuple[Lie, str]] = {
    **dict.fromkeys(("stalls", "begins and stalls"), (ANY["stalls"], "took over")),
    **{name: (ANY[name], "") for name in list(ANY)[2:-1]},
    "is redirected in a circle": (_redirects, "a redirect to"),
    "drips comments": (
        _begins_and(lambda talk: talk.for_ever(b": ping\n\n", GAP, chunked=True)),
        "the answer took over 8 s; 0 of 8 tokens had come",
    ),
    "drips tokens": (
        _begins_and(lambda talk: talk.for_ever(EVENT, GAP, chunked=True)),
        "over 8 pieces",
    ),
    "floods without line ends": (
        _begins_and(lambda talk: talk.for_ever(b"x" * 4_096, chunked=True)),
        "a line of the answer has over 32768 bytes",
    ),
    "floods with blank lines": (
        _begins_and(lambda talk: talk.for_ever(b"\n" * 4_096, chunked=True)),
        "the answer has over 294912 bytes",
    ),
    "nests": (lambda talk: talk.events("[" * 15_000 + "]" * 15_000), "not valid JSON"),
    "sends broken JSON": (lambda talk: talk.events('{"choices": [1'), "not valid JSON"),
    "counts below 0": (_counts(-3), "completion_tokens must be from 0 to 8"),
    "counts too many": (_counts(10**23), "completion_tokens must be from 0 to 8"),
    "counts truth": (_counts(True), "completion_tokens must be from 0 to 8"),
    "counts below what it sent": (_counts(1), "must be at least the pieces of the answer less one"),
    "cuts the prompt": (_counts(1, "prompt_tokens"), "the server cut the prompt"),
    "gives up": (
        lambda talk: talk.events({"choices": [{"text": "", "finish_reason": "abort"}]}),
        "finish_reason is 'abort'",
    ),
    "goes on after the end": (
        lambda talk: talk.events(PIECE, "[DONE]", PIECE),
        "the answer goes on after [DONE]",
    ),
    "closes midway": (lambda talk: talk.say(CLOSED, EVENT, EVENT), "broke off after 2 of 8 tokens"),
    "answers before it answers": (
        lambda talk: talk.for_ever(b"HTTP/1.1 103 Soon\r\n\r\n" * 1_000),
        "the answer has over 294912 bytes",
    ),
    "extends its chunks": (
        _begins_and(lambda talk: talk.for_ever(b"1;" + b"x" * 4_096 + b"\r\n\n\r\n")),
        "the answer has over 294912 bytes",
    ),
    "fails and stalls": (
        _begins_and(Talk.stall, b"HTTP/1.1 503 No\r\nContent-Length: 9\r\n\r\nbusy"),
        "status 503: 'busy'",
    ),
    "sends a packed bomb": (_packed, ""),
    "fails without end": (
        _begins_and(
            lambda talk: talk.for_ever(b"x" * 4_096),
            b"HTTP/1.1 500 No\r\nContent-Length: 99999999999\r\n\r\n",
        ),
        "status 500: 'xxx",
    ),
    "leaves": (lambda talk: talk.say(CHUNKED, b'1f\r\ndata: {"choices": [{"text": 1}]}'), ""),
    "says nothing": (lambda talk: talk.events(), "the answer was empty"),
    "says what is no object": (lambda talk: talk.events(["choices"], 7), "the answer was empty"),
}
"""Lies to a request for 8 tokens, and what is said of each."""


def _whole(end: bytes) -> bytes:
    usage = {"choices": [], "usage": {"completion_tokens": 8, "prompt_tokens": 99}}
    data = [*[json.dumps(PIECE)] * 8, json.dumps(usage), "[DONE]"]
    return b"".join(b": \xff" + end + b"data: " + each.encode() + end * 2 for each in data)


ODD: Mapping[str, Lie] = {
    "a byte a chunk": lambda talk: talk.say(
        CHUNKED, b"".join(b"1\r\n%c\r\n" % byte for byte in _whole(b"\r\n")), b"0\r\n\r\n"
    ),
    "other ends of lines": lambda talk: talk.say(CLOSED, _whole(b"\r")),
    "no last end of a line": lambda talk: talk.say(CLOSED, _whole(b"\n").rstrip()),
    "stalls after the end": lambda talk: (
        talk.say(CHUNKED),
        talk.chunks(_whole(b"\n")),
        talk.stall(),
    ),
    "no counts": lambda talk: talk.say(CLOSED, EVENT * 8),
}
"""Answers of 8 tokens that are odd, and whole."""


@contextmanager
def lying(lie: Lie) -> Iterator[str]:
    """Serve on a free port of the loopback while the block lasts; yield the URL."""

    class Server(ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False
        request_queue_size = 128

    with Server(("127.0.0.1", 0), type("Liar", (Talk,), {"lie": staticmethod(lie)})) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
