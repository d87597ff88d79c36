"""The ten scripts of docs/faq.md run and say what the page says."""

import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

SCRIPTS = ROOT / "examples/questions"
PAGE = (ROOT / "docs/faq.md").read_text(encoding="utf-8")

_KEEP = r"at this rate \(90 % of requests\)"

# script -> what it prints
EXPECTED = {
    "burst": r"good requests +39\.\d+ % +90 % asked: ",
    "fp8_or_bf16": rf"1 of 2 keep their limits {_KEEP}: fp8\.",
    "how_many_gpus": r"From count=3 on, 90 % of the requests are good",
    "largest_rate": r"18\.\d /s, between \d+\.\d and \d+\.\d; tpot misses first",
    "prefix_cache": r"p99 TTFT, ms +36\d +6\d\.\d \*",
    "split_or_not": rf"None keeps its limits {_KEEP}; 2 prefill \+ 2 decode\s+comes",
    "which_chunk": r"max_num_batched_tokens=1024\n.*\n? *.*good requests 9\d\.\d %",
    "which_gpu": r"\$ a million output tokens +1\.\d\d +0\.9\d+ +0\.\d+ \* +0\.\d+",
    "which_parallelism": r"p99 TPOT, ms +3\d\.\d +2\d\.\d +1\d\.\d \*",
    "which_router": rf"1 of 4 keep their limits {_KEEP}: prefix_affinity\.",
}


def test_the_page_has_every_script_and_its_picture():
    names = {path.stem for path in SCRIPTS.glob("*.py")}
    assert names == set(EXPECTED)
    assert set(re.findall(r"question_(\w+)\.png", PAGE)) == names
    assert {name for name in names if f"`{name}.py`" in PAGE} == names
    assert all((ROOT / f"docs/images/question_{name}.png").is_file() for name in names)


@pytest.mark.page
@pytest.mark.parametrize("name", EXPECTED)
def test_a_script_answers_its_question(name, tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra report")
    command = [sys.executable, str(SCRIPTS / f"{name}.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(EXPECTED[name], done.stdout), done.stdout
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
