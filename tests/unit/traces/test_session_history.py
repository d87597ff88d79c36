"""Logs with conversations: what their prompts share is assumed only where that is asked for."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim import Scenario, ScenarioError, simulate
from mist_sim.traces import TraceRow
from mist_sim.traces.readers.opening import _repeating
from mist_sim.traces.readers.tabular_reader import BurstGptReader, CsvReader
from mist_sim.traces.statistics import Known
from mist_sim.traces.workload import conversation_content
from mist_sim.traces.writers import timed_trace_lines
from tests.commands import mist
from tests.effort import examples
from tests.warned import texts

TURNS = [  # time, prompt, answer, conversation: b begins anew, since its second prompt is shorter
    (0, 100, 20, "a"),
    (40, 64, 16, "b"),
    (80, 160, 40, "a"),
    (120, 70, 10, "b"),
    (160, 200, 5, "a"),
    (200, 90, 9, ""),
]
LOG = "timestamp,prompt_tokens,completion,session\n" + "".join(
    f"{time},{prompt},{answer},{name}\n" for time, prompt, answer, name in TURNS
)
COLUMNS = {"output_column": "completion", "session_column": "session"}
KNOWN = 120 + 200  # of the prompts of a: that of b is too short to repeat 80 tokens


@pytest.fixture
def log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text(LOG)
    by_session = sorted(LOG.splitlines()[1:], key=lambda line: line.split(",")[3])
    lines = [f"{k},{line.partition(',')[2]}" for k, line in enumerate(by_session)]
    (tmp_path / "by_session.csv").write_text("\n".join([LOG.splitlines()[0], *lines]) + "\n")
    (tmp_path / "b.csv").write_text(
        "Timestamp,Request tokens,Response tokens,Session ID\n" + LOG.partition("\n")[2]
    )
    return str(tmp_path / "log.csv")


def scenario(trace, **workload):
    client = {"name": "llm", "gpu": "h100-sxm"}
    return Scenario.from_dict(
        {"model": "llama-3.1-8b", "workload": {"trace": trace, **workload}, "clients": [client]}
    )


def test_prompts_repeat_the_history_of_their_conversation_if_they_are_as_long(log):
    rows = CsvReader(path=log, session_history="repeats", **COLUMNS).rows()
    assert [(row.session_id, row.content) for row in rows] == [
        (0, conversation_content(0, 120)),
        (1, conversation_content(1, 80)),
        (0, conversation_content(0, 200)),
        (1, conversation_content(2, 80)),
        (0, conversation_content(0, 205)),
        (None, ()),
    ]
    assert not any(row.content for row in CsvReader(path=log, **COLUMNS).rows())


def test_a_prompt_may_be_all_of_its_history():
    rows = [TraceRow(100, 20, session_id=3), TraceRow(120, 5, session_id=3)]
    found = [row.content for row in _repeating(rows, "log")]
    assert found == [conversation_content(0, 120), conversation_content(0, 125)]


def test_content_of_a_rows_own_is_kept():
    own = conversation_content(7, 30)
    rows = [TraceRow(30, 5, session_id=1, content=own), TraceRow(40, 5, session_id=1)]
    assert [row.content for row in _repeating(rows, "log")] == [own, conversation_content(0, 45)]


OF_OWN = {"type": "csv", "path": "log.csv", **COLUMNS}
USERS = {"arrivals": {"type": "closed_loop", "concurrency": 1, "sessions": True}}


@pytest.mark.parametrize(
    ("trace", "more"),
    [
        (OF_OWN, {}),
        ({"type": "burstgpt", "path": "b.csv"}, {}),
        ({**OF_OWN, "path": "by_session.csv"}, USERS),
    ],
)
def test_a_prefix_cache_finds_it_only_then(log, trace, more):
    told, found = (
        simulate(scenario({**trace, **key}, **more)) for key in ({}, {"session_history": "repeats"})
    )
    assert found.summary["prefix_cache_hit_rate_unbounded"] == pytest.approx(
        (112 + 192) / sum(prompt for _, prompt, _, _ in TURNS)  # full blocks of 16 tokens
    )
    assert texts(found.summary, "no prefixes") == []
    assert told.summary["prefix_cache_hit_rate_unbounded"] == 0
    (text,) = texts(told.summary, "no prefixes")
    assert "which requests are of one conversation, and not what their prompts share" in text
    assert "session_history: repeats in workload.trace" in text
    assert "session_history" in told.summary["assumed"]["llm"]


def test_log_without_conversations_is_said_to_have_none(log):
    told = simulate(scenario({"type": "csv", "path": "log.csv", "output_column": "completion"}))
    (text,) = texts(told.summary, "no prefixes")
    assert text.endswith(
        "has neither hashes nor conversations, so no two prompts are known to begin alike."
    )


def test_a_history_needs_conversations(log, tmp_path):
    with pytest.raises(ValueError, match="left out without session_column"):
        CsvReader(path=log, session_history="repeats")
    (tmp_path / "burst.csv").write_text("Timestamp,Request tokens,Response tokens\n1,2,3\n")
    reader = BurstGptReader(path=str(tmp_path / "burst.csv"), session_history="repeats")
    with pytest.raises(ScenarioError, match="since no row has a conversation"):
        list(reader.rows())


OPTIONS = ["--format=csv", *(f"--set={key}={value}" for key, value in COLUMNS.items())]
REPEATS = "--set=session_history=repeats"


def test_inspect_shows_what_is_known(log, capsys):
    total = sum(prompt for _, prompt, _, _ in TURNS)
    for more, share in ([], 0), ([REPEATS], KNOWN / total):
        mist("trace", "inspect", log, "--json", *OPTIONS, *more)
        found = json.loads(capsys.readouterr().out)
        assert found["sessions"] == 2
        assert found["known_prompt_share"] == pytest.approx(share)


def test_what_a_form_cannot_hold_is_told(log, capsys):
    mist("trace", "convert", log, "--to=mooncake", "--out=m.jsonl", *OPTIONS)
    err = capsys.readouterr().err
    assert "Conversations are left out: mooncake has no place for them. Where each" in err
    assert "--set session_history=repeats" in err
    mist("trace", "convert", log, "--to=vidur", "--out=v.csv", *OPTIONS, REPEATS)
    err = capsys.readouterr().err
    assert "Conversations are left out: vidur has no place for them." in err
    assert "What prompts share is left out: vidur has no place for it" in err
    mist("trace", "convert", log, "--to=timed_trace", "--out=t.jsonl", *OPTIONS, REPEATS)
    err = capsys.readouterr().err
    assert "hash_ids say what their prompts share" in err
    assert "What prompts share" not in err
    mist("trace", "sample", log, "--share=1", "--to=azure", "--out=a.csv", *OPTIONS)
    assert "Conversations are left out: azure has no place for them." in capsys.readouterr().err
    by_hashes, by_history = (
        simulate(scenario(trace)).summary["prefix_cache_hit_rate_unbounded"]
        for trace in (
            {**OF_OWN, "session_history": "repeats"},
            {"type": "timed_trace", "path": "t.jsonl"},
        )
    )
    assert by_hashes == by_history > 0


def tokens_of(turns):
    """Return the tokens of each prompt with its answer: numbers, each new one once."""
    new, histories, found = iter(range(10**9)), {}, []
    for session, prompt, answer in turns:
        history = histories.get(session, [])
        start = history if prompt >= len(history) else []
        tokens = start + [next(new) for _ in range(prompt + answer - len(start))]
        histories[session] = tokens
        found.append(tokens)
    return found


@given(
    turns=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 120), st.integers(1, 40)),
        min_size=1,
        max_size=20,
    )
)
@examples(100)
def test_prompts_share_tokens_that_they_have_in_common(turns):
    """Histories are written out, token by token; ids are equal where all before is."""
    rows = [TraceRow(prompt, answer, 0.0, session) for session, prompt, answer in turns]
    rows = list(_repeating(rows, "log"))
    lines = [json.loads(line) for line in timed_trace_lines(rows)]
    seen, known, ids = [], Known(), {}
    for tokens, row, line in zip(tokens_of(turns), rows, lines, strict=True):
        prompt = tokens[: row.num_prompt_tokens]
        common = max((_common(prompt, earlier) for earlier in seen), default=0)
        assert known.follow(row.content, len(prompt))[0] == common
        seen.append(tokens)
        blocks = line["hash_ids"] + line["output_hash_ids"]
        assert len(line["hash_ids"]) == len(prompt) // 16
        assert len(blocks) == len(tokens) // 16
        for k, number in enumerate(blocks):
            assert ids.setdefault(number, tokens[: 16 * (k + 1)]) == tokens[: 16 * (k + 1)]
    assert len({tuple(path) for path in ids.values()}) == len(ids)


def _common(one, other):
    pairs = enumerate(zip(one, other, strict=False))
    return next((k for k, (a, b) in pairs if a != b), min(len(one), len(other)))
