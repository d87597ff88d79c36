"""Files that are not what they should be: refused soon, in little memory, and never shown."""

import gzip
import io
import json
import os
import time
import tomllib
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim import Cluster, Scenario, ScenarioError, TraceError, load_gpu, load_model
from mist_sim import inputs as line_reader
from mist_sim.bounds import LINE_LENGTH, TABLE_BYTES
from mist_sim.calibration.afd_latency import fit_afd_coefficients
from mist_sim.calibration.fitted_figures import LoopProtocol, closed_loop_observations
from mist_sim.durations import DURATIONS
from mist_sim.errors import printable
from mist_sim.hardware import load_host
from mist_sim.hardware.predictors import PREDICTORS, TablePredictor
from mist_sim.inputs import lines_of
from mist_sim.network import load_topology
from mist_sim.scenario.build import build
from mist_sim.scenario.from_vllm.commands import from_vllm
from mist_sim.search.planning.deployment import deployment_of
from mist_sim.spec_files import toml_string
from mist_sim.traces import TRACE_READERS
from mist_sim.validation.runs import read_run
from tests.effort import examples
from tests.reference.scenarios import BASE
from tests.unit.models.test_models import LLAMA
from tools.kernels.kernel_calibration import calibrate_kernels

MIB = 2**20


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def parts() -> dict[str, Any]:
    return {"model": load_model("llama-3.1-8b"), "cluster": Cluster(load_gpu("h100-sxm"))}


def table(form: str) -> Callable[[str], object]:
    return lambda path: TablePredictor(**parts(), path=path, format=form)


def trace(name: str) -> Callable[[str], object]:
    return lambda path: list(TRACE_READERS[name](path=path).rows())


READERS: dict[str, Callable[[str], object]] = {
    **{name: trace(name) for name in TRACE_READERS},
    "steps": table("steps"),
    "splitwise": table("splitwise"),
    "regression": lambda path: PREDICTORS["regression"](**parts(), path=path),
    "durations": lambda path: DURATIONS["empirical"](path=path),
    "gpu": load_gpu,
    "model": load_model,
    "host": load_host,
    "topology": load_topology,
    "scenario": Scenario.load,
    "vllm": lambda path: from_vllm([path]),
    "afd": lambda path: fit_afd_coefficients(Path(path)),
    "kernels": lambda path: calibrate_kernels(Path(path), load_gpu("h100-sxm")),
    "closed_loop": lambda path: closed_loop_observations(Path(path), "qwen3-32b", LoopProtocol()),
}
"""What reads a file of each kind, given its path."""


def refusal(read: Callable[[str], object], path: str, most_mib: float = 150) -> str:
    """Return what is said, which takes less than a second and no more memory than that."""
    tracemalloc.start()
    before = time.process_time()
    try:
        with pytest.raises(ScenarioError) as caught:
            read(path)
        assert time.process_time() - before < 3  # tracemalloc takes most of it
        assert tracemalloc.get_traced_memory()[1] < most_mib * MIB
    finally:
        tracemalloc.stop()
    return str(caught.value)


# --- what a message shows ---------------------------------------------------------------------

SECRET = "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"
WORDS = ("root", "daemon", "bash", "nologin", "0:0")
KEYS = "API_KEY=hunter2\nexport TOKEN=hunter3\n"


@pytest.mark.parametrize("name", READERS)
def test_the_first_line_of_another_file_is_not_shown(name):
    """A scenario of somebody else may name any file that its user can read."""
    Path("secret").write_text(SECRET)
    Path("keys").write_text(KEYS)
    Path("secret.json").write_text(json.dumps({"password": "hunter2"}))
    said = "\n".join(
        refusal(READERS[name], path) for path in ("./secret", "./keys", "./secret.json")
    )
    for word in (*WORDS, "hunter"):
        assert word not in said, said


def test_nor_is_that_of_a_file_in_a_run_folder():
    Path("secret").write_text(SECRET)
    Path("run").mkdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo("pipe")
    run = "name: n\nengine: e\nprovenance: p\n"
    for said in (
        "scenario: ../secret\nsummary: {mean_ttft_ms: 1}\n",
        "scenario: demo\nrequests: ../secret\n",
        "scenario: demo\nsummary: ../secret\n",
        "scenario: ../pipe\nsummary: {mean_ttft_ms: 1}\n",
        "scenario: demo\nrequests: ../pipe\n",
    ):
        Path("run/run.yaml").write_text(run + said)
        message = refusal(lambda path: read_run(Path(path)), "run")
        assert not any(word in message for word in WORDS), message


@pytest.mark.parametrize("name", ["azure", "lengths_csv", "steps", "splitwise"])
def test_a_header_that_is_nearly_right_gets_a_hint(name):
    columns = {
        "azure": "TIMESTAMP,ContextToken,GeneratedTokens",
        "lengths_csv": "num_prefill_token,num_decode_tokens",
        "steps": "num_new_tokens,num_context_token,num_decodes,context_sum,seconds",
        "splitwise": "model,hardwares,tensor_parallel,prompt_size,batch_size,prompt_time,token",
    }
    Path("t.csv").write_text(f"{columns[name]}\n1,1,1,1,1\n")
    assert "; did you mean '" in refusal(READERS[name], "t.csv")


# --- sizes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("start", ["", "[{", "# a", "a,b\n", '{"a": "'], ids=repr)
def test_a_file_without_end_and_line_ends(name, start):
    """A terabyte of zeros, which takes no room on a disk."""
    with Path("t.csv").open("wb") as file:
        file.write(start.encode())
        file.truncate(2**40)
    assert "t.csv" in refusal(READERS[name], "./t.csv")


def test_a_trace_of_one_long_line_is_refused_with_the_line():
    Path("t").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "1" * 10**7)
    with pytest.raises(TraceError, match=f"t:2: a line must have <= {LINE_LENGTH} characters"):
        trace("azure")("t")
    Path("t").write_text('[{"id": "' + "x" * 10**7)
    with pytest.raises(TraceError, match=f"t:1: a conversation must have <= {LINE_LENGTH} charac"):
        trace("sharegpt")("t")
    Path("t").write_text('[{"id": ' + "9" * 5000 + "}]")
    with pytest.raises(TraceError, match="t:1: not valid JSON .*digits"):
        trace("sharegpt")("t")


STEPS = "num_new_tokens,num_context_tokens,num_decodes,context_sum,seconds\n"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (STEPS + "1,0,0,0,1\n" * 2_001, "must have <= 10000 cells; leave out"),
        (STEPS + "1,0,0,0,1\n" * (TABLE_BYTES // 10), f"must have <= {TABLE_BYTES} bytes"),
        (STEPS + "1,0,0,0,1,2\n", "t.csv:2: a row must have 5 columns, got 6"),
        (
            STEPS.replace("seconds", "seconds,note") + '0,0,1,16,1,"a\n1,0,0,0,1,b"\n',
            "t.csv:2: a quoted field opened in line 2 swallows 1 line",
        ),
        (STEPS + f"1,0,0,0,{'9' * 400}\n", "line 2: seconds must be a number >= 0, got "),
        ("a,a\n1,1\n", "no column 'num_new_tokens'. The file has 2 columns; needed are num_new"),
        (STEPS.replace("seconds", "seconds,seconds") + "1\n", "more than one column 'seconds'"),
        ("# a: b\n" * 1_001 + "# a,b\n" + STEPS, "no column 'num_new_tokens'"),
        (
            STEPS
            + "0,0,1,16,1\n"
            + "".join(f"{k % 99 + 1},{k // 99},0,0,1\n" for k in range(1_900)),
            "num_new_tokens, num_context_tokens must make a grid of <= 1000 points, got 1980",
        ),
    ],
    ids=["cells", "bytes", "row", "quote", "digits", "columns", "twice", "notes", "grid"],
)
def test_tables_without_measure(monkeypatch, content, problem):
    monkeypatch.setattr("mist_sim.inputs.TABLE_CELLS", 10_000)
    monkeypatch.setattr("mist_sim.hardware.tables.base.GRID_POINTS", 1_000)
    Path("t.csv").write_text(content)
    assert problem in refusal(table("steps"), "t.csv")


def test_what_is_packed_is_read_as_far_as_it_may_be_long():
    Path("d.txt.gz").write_bytes(gzip.compress(b"0.5\n1.5\n"))
    assert DURATIONS["empirical"](path="d.txt.gz")._values.tolist() == [0.5, 1.5]
    Path("b.gz").write_bytes(gzip.compress(b"1\n" * TABLE_BYTES))
    assert f"must have <= {TABLE_BYTES} bytes" in refusal(READERS["durations"], "b.gz")
    Path("c.gz").write_bytes(b"no gzip")
    assert "c.gz: cannot be read: Not a gzipped file" in refusal(READERS["durations"], "c.gz")


def test_times_without_measure(monkeypatch):
    monkeypatch.setattr("mist_sim.durations.MEASURED_TIMES", 100)
    Path("d.txt").write_text("1\n" * 101)
    assert "must have <= 100 times" in refusal(READERS["durations"], "d.txt")


@pytest.mark.parametrize(
    "text",
    ["a" + ".a" * 60_000 + " = 1", "[a" + " . a" * 9_000 + "]", "x = {a" + ".'a'" * 60 + "=1}"],
)
def test_specs_whose_keys_have_many_dots(text):
    Path("g.toml").write_text(text)
    assert "g.toml:1: a key must have <= 50 dots" in refusal(load_gpu, "./g.toml")


@pytest.mark.parametrize(
    ("patterns", "problem"),
    [
        (["re:([a-z_.]+)+X"], "must repeat single characters, at most 5 times"),
        (["re:" + ".*[a-z]" * 6 + "X"], "must repeat single characters, at most 5 times"),
        (["re:" + ".*[a-z]" * 4 + ".*X"] * 4_000, "matching takes over 0.2 s; name whole modules"),
    ],
)
def test_patterns_of_modules_that_take_for_ever(monkeypatch, patterns, problem):
    monkeypatch.setattr("mist_sim.models.huggingface.config_exceptions.PATIENCE", 0.2)
    weights = {"num_bits": 8, "type": "float"}
    quantized = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"g": {"targets": ["Linear"], "weights": weights}},
        "ignore": patterns,
    }
    config = {**LLAMA, "num_hidden_layers": 10_000, "quantization_config": quantized}
    Path("config.json").write_text(json.dumps(config))
    before = time.process_time()
    with pytest.raises(ScenarioError, match=problem):
        load_model("./config.json")
    assert time.process_time() - before < 5


# --- no files ---------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
@pytest.mark.parametrize("name", [name for name in READERS if name != "scenario"])
def test_pipes_and_devices_are_not_waited_for(name):
    os.mkfifo("pipe")
    for path in ("./pipe", "/dev/zero"):
        assert path.removeprefix("./") in refusal(READERS[name], path)


@pytest.mark.parametrize("name", [*TRACE_READERS, "steps", "durations", "regression"])
def test_folders_are_no_files(name):
    Path("t.csv").mkdir()
    assert "t.csv: is a folder, and must be a file" in refusal(READERS[name], "t.csv")


# --- what scenario files may say ---------------------------------------------------------------


def whole(text: str) -> str:
    """Return JSON as YAML and TOML take it: a character beyond 16 bits in one piece."""
    return text.replace(r"\udb40\udc41", r"\U000e0041")


def scenario_file(**changes: Any) -> str:
    client = {**BASE["clients"][0], **changes}
    text = json.dumps({**BASE, "clients": [client]})
    Path("s.yaml").write_text(whole(text))
    return "s.yaml"


def of_file(path: str) -> object:
    return build(Scenario.load(path))


LONG = "x" * 300


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model": LONG}, "clients.0.model: no path can be 'xxx"),
        ({"gpu": LONG}, "clients.0.gpu: no path can be 'xxx"),
        ({"gpu": "y/" * 2_000 + LONG}, "clients.0.gpu: must have <= 4096 characters"),
        ({"host": "y/" * 2_000 + LONG}, "clients.0.host: must have <= 4096 characters"),
        ({"gpu": "y/" * 1_800 + "x"}, "clients.0.gpu: no "),
        ({"host": LONG}, "clients.0.host: no path can be 'xxx"),
        ({"predictor": {"type": "table", "format": "steps", "path": LONG}}, "path: no path can be"),
        ({"place": [0, 1]}, "clients.0.place.0: must be text, got 0; write it in quotes\n"),
        ({"place": 3}, "clients.0.place: must be text or a list, got 3"),
        ({"place": [["a"]]}, "clients.0.place.0: must be text, got ['a']"),
        (
            {"speculative_config": {"method": "ngram", "acceptance_rate": ["x"]}},
            "clients.0.speculative_config.acceptance_rate.0: must be a number, got 'x'",
        ),
        (
            {"speculative_config": {"method": "ngram", "acceptance_rate": "x"}},
            "clients.0.speculative_config.acceptance_rate: must be a number or a list, got 'x'",
        ),
        ({"x" * 900: 1}, "xxx...: unknown key"),
    ],
)
def test_values_of_a_file_that_no_file_can_have(changes, problem):
    message = refusal(of_file, scenario_file(**changes))
    assert problem in message + "\n"
    assert all(len(line) < 2_000 for line in message.splitlines())
    assert "tuple[" not in message


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        ("{0: 1}", "keys must be text, got 0"),
        ("{null: 1}", "keys must be text, got None"),
        ("{1.5: {a: 1}}", "keys must be text, got 1.5"),
        ("{based_on: pcie-peer, bus_bandwidth: {x: 5 GB/s}}", "bus_bandwidth"),
        ("[0]", "must be a name, a path or a mapping, got [0]"),
    ],
)
def test_hosts_of_a_file_that_are_none(host, problem):
    Path("s.yaml").write_text(
        "workload: {lengths: {type: profile, num_requests: 3}, arrivals: {type: all_at_once}}\n"
        f"clients: [{{name: a, model: qwen3-0.6b, gpu: l4, tensor_parallel_size: 2, host: {host}}}]"
    )
    message = refusal(of_file, "s.yaml")
    assert "clients.0.host" in message
    assert problem in message


UNSEEN = [
    *("\x1b[2J", "a\x07", "\x9b1m", "\u202eb", "\r", "a\nb", "\t", "\u2028", "\ufeff"),
    "\U000e0041",
]
"""Controls of terminals and of the direction of writing, ends of lines, tags."""


@pytest.mark.parametrize("text", UNSEEN, ids=repr)
def test_texts_that_are_not_what_one_sees(text):
    said = "must be printable and on one line, got '"
    assert f"s.yaml: clients.0.name: {said}" in refusal(of_file, scenario_file(name=text))
    assert f"s.yaml: clients.0: keys {said}" in refusal(of_file, scenario_file(**{text: 1}))
    Path("g.toml").write_text(f'based_on = "l4"\nname = {whole(json.dumps(text))}')
    assert f"g.toml: name: {said}" in refusal(load_gpu, "./g.toml")
    Path("run.yaml").write_text(whole(json.dumps({"name": text})))
    assert f"run.yaml: name: {said}" in refusal(lambda path: read_run(Path(path)), ".")


@pytest.mark.parametrize("text", UNSEEN, ids=repr)
def test_names_of_files_are_printed_with_escapes(mist, text):
    """A scenario cannot be blamed for its folder; whoever reads its name in a terminal neither."""
    name = f"{text} [red] :smile:"
    Path(f"{name}.yaml").write_text(Path(scenario_file()).read_text())
    for words in (["run", f"{name}.yaml"], ["compare", f"{name}.yaml", "s.yaml"]):
        code, out, err = mist(*words, "-q")
        assert (code, err) == (0, "")
        assert "[red]" in out
        assert ":smile:" in out
        assert out.replace("\n", "").isprintable()
    code, _, err = mist("run", f"{name}.yam")
    assert code == 2
    assert err.replace("\n", "").isprintable()
    assert err.count("\n") == 1


@given(st.text())
@examples(200)
def test_any_text_is_one_printable_line(text):
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)
    assert printable(text) == text or not text.isprintable()
    assert tomllib.loads(f"a = {toml_string(text)}") == {"a": printable(text)}


def test_a_folder_cannot_write_into_a_script():
    """`mist plan --out` wrote a path into a comment of `deploy.sh`, line ends and all."""
    folder = Path("a\ntouch pwned #")
    folder.mkdir()
    (folder / "g.toml").write_text('based_on = "l4"')
    scenario = {**BASE, "clients": [{**BASE["clients"][0], "gpu": "g.toml"}]}
    (folder / "s.yaml").write_text(json.dumps(scenario))
    with pytest.raises(ScenarioError, match=r"the path 'a\\ntouch pwned #/g.toml' must be prin"):
        Scenario.load(folder / "s.yaml")
    deployment = deployment_of(Scenario.from_dict(scenario | {"clients": BASE["clients"]}))
    remark = f"{folder}\u2028touch pwned"
    text = replace(deployment, notes=(remark,), read_back=remark).text
    assert all(line.startswith(("# ", "vllm serve ")) for line in text.splitlines())


@pytest.mark.parametrize("name", ["summary", "comparison", "search", "plan"])
def test_results_nested_without_end_are_no_bug(mist, name):
    Path("o").mkdir()
    Path(f"o/{name}.json").write_text("[" * 10_000 + "]" * 10_000)
    code, _, err = mist("report", "o")
    assert code == 2
    assert "not valid JSON" in err


def test_lists_that_hold_themselves():
    Path("s.yaml").write_text("clients: &a [*a, {b: *a}]\nworkload: &c {c: *c}\n")
    assert "clients.0: must be a mapping" in refusal(of_file, "s.yaml")


def test_keys_that_are_lists():
    Path("s.yaml").write_text("clients: {? [[1]] : 3}\n")
    assert "s.yaml: not valid YAML: keys must be text" in refusal(of_file, "s.yaml")


def test_a_key_of_another_type_is_named_without_the_words_of_a_library():
    Path("s.yaml").write_text(
        "workload: {lengths: {type: profile, num_requests: 3}, arrivals: {type: all_at_once},\n"
        "  priorities: {x: 1}}\nclients: [{name: a, model: qwen3-0.6b, gpu: l4}]\n"
    )
    message = refusal(of_file, "s.yaml")
    assert (
        message
        == (
            "s.yaml: workload.priorities.x: the key must be a whole number, got 'x'; "
            "write it without quotes"
        )
        or message == "s.yaml: workload.priorities.x: the key must be a whole number, got 'x'"
    )


def test_many_mistakes_are_one_short_message():
    clients = "\n".join("- {name: a, gpu: l4, modes: 1}" for _ in range(300))
    Path("s.yaml").write_text(f"clients:\n{clients}\n")
    with pytest.raises(ScenarioError) as caught:
        Scenario.load("s.yaml")
    lines = str(caught.value).splitlines()
    assert len(lines) == 21
    assert lines[-1] == "s.yaml: 281 more problems"


# --- the command line -------------------------------------------------------------------------


def test_lack_of_memory_is_not_called_a_bug(mist, monkeypatch):
    def without_memory(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("mist_sim.scenario.simulate", without_memory)
    code, out, err = mist("run", "demo", "-q")
    assert (code, out) == (2, "")
    assert err.startswith("error: this takes more memory than there is, or than a limit allows;")
    assert "bug" not in err


def test_a_long_word_of_the_command_line_is_not_all_repeated(mist):
    for words in (
        ["run", "x" * 100_000],
        ["run", "demo", "--set", "a" * 100_000 + "=1"],
        ["run", "demo", "--set", "a" * 100_000],
        ["run", "demo", "--set", "a" + ".b" * 10_000 + "=1"],
        ["run", "demo", "--set", "clients." + "b" * 10_000 + "=1"],
        ["run", "demo", "--set", "clients." + "9" * 10_000 + "=1"],
        ["run", "demo", "--set", "clients.0.gpu=" + "b" * 100_000],
        ["list", "c" * 100_000],
        ["afd", "x" * 5_000, "--slots", "1"],
    ):
        code, _, err = mist(*words)
        assert code == 2
        assert len(err) < 5_000, err[:200]


def test_results_that_are_other_tables_are_refused(mist):
    import pandas as pd

    Path("run").mkdir()
    Path("run/summary.json").write_text('{"completed": 1, "duration": 1.0}')
    for name in ("requests", "stages", "steps", "clients"):
        pd.DataFrame({"a": [1]}).to_parquet(f"run/{name}.parquet")
    code, _, err = mist("timeline", "run")
    assert code == 2
    assert "run: not a table of results that mist run wrote" in err
    assert not Path("timeline.json").exists()
    Path("run/requests.parquet").write_bytes(b"PAR1 no more")
    assert mist("timeline", "run")[0] == 2


# --- lines ------------------------------------------------------------------------------------


@examples(300)
@given(st.text("ab\n\r\x0b\x85\u2028", max_size=60), st.integers(1, 9))
def test_lines_are_those_of_the_file(text, chunk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_reader, "_CHUNK", chunk)
        mine = list(lines_of(io.StringIO(text, newline=""), "x"))
    assert mine == list(io.StringIO(text, newline=""))


@pytest.mark.parametrize("chunk", [3, 5, 7])
def test_a_line_may_be_just_so_long(monkeypatch, chunk):
    monkeypatch.setattr(line_reader, "_CHUNK", chunk)
    monkeypatch.setattr(line_reader, "LINE_LENGTH", 7)
    for end in ("\n", "\r\n", "\r"):
        text = f"a{end}123456{end}b"
        assert list(lines_of(io.StringIO(text, newline=""), "x"))[1] == f"123456{end}"
        too_long = f"a{end}12345678{end}b"
        with pytest.raises(TraceError, match="^x:2: a line must have <= 7 characters"):
            list(lines_of(io.StringIO(too_long, newline=""), "x"))
