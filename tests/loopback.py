"""Servers on the loopback; one has OpenAI's API, with delays that a test sets."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Delays:
    """first: seconds to the first token. gap: between tokens. fails: requests that get a 500.

    stalls: requests that get no answer until the server ends.
    """

    first: float = 0.0
    gap: float = 0.0
    fails: frozenset[int] = frozenset()
    stalls: frozenset[int] = frozenset()
    bodies: list[dict] = field(default_factory=list)


@contextmanager
def server(delays: Delays) -> Iterator[str]:
    """Serve while the block lasts; yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self._whole(200, {"data": []})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            number = len(delays.bodies)
            delays.bodies.append(body)
            if number in delays.fails:
                self._whole(500, {"error": "broken"})
                return
            if number in delays.stalls:
                self.rfile.read(1)  # until the client leaves
                return
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            due = time.perf_counter() + delays.first
            for _ in range(body["max_tokens"]):
                time.sleep(max(due - time.perf_counter(), 0))
                self._event({"choices": [{"text": "x "}]})
                due += delays.gap
            self._event({"choices": [], "usage": {"completion_tokens": body["max_tokens"]}})
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")

        def _event(self, event: dict) -> None:
            self._chunk(f"data: {json.dumps(event)}\n\n".encode())

        def _chunk(self, content: bytes) -> None:
            self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
            self.wfile.flush()

        def _whole(self, status: int, body: dict) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with served(Handler) as url:
        yield url


@contextmanager
def served(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve on a free port of the loopback while the block lasts; yield the URL."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}"
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
