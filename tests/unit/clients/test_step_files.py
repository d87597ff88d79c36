"""The files of the core that a plain step enters are those of docs/architecture.md."""

import os
import re
import subprocess
import sys

from tests.conftest import ROOT

WATCHED = """
import sys
from pathlib import Path
from mist_sim import simulate
from mist_sim.clients.engine.core.core import Core
from tests.reference.scenarios import scenario, synthetic

entered, step = set(), Core.step

def note(frame, event, argument):
    path = Path(frame.f_code.co_filename)
    if event == "call" and path.parent.parts[-2:] == ("engine", "core"):
        entered.add(path.name)

def watched(core, *arguments):
    sys.setprofile(note)
    try:
        return step(core, *arguments)
    finally:
        sys.setprofile(None)

Core.step = watched
simulate(scenario(workload=synthetic(60, (20, 500), (10, 200), "20 /s")))
print(*entered)
"""


def test_plain_step_enters_six_files_that_page_lists():
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    section = page.partition("## The life of a step")[2].partition("Prompts with shared")[0]
    listed = re.findall(r"^\| `(\w+\.py)` \|", section, re.MULTILINE)
    run = subprocess.run(
        [sys.executable, "-c", WATCHED],
        cwd=ROOT,
        env=os.environ | {"MIST_SIM_CORE": "python", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(run.stdout.split()) == sorted(listed)
    assert len(listed) == 6
