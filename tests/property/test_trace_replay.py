"""Run, export, replay: a workload that is written and read back gives the same records."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim import ChunkedScheduler, Result, Simulation, TraceArrivals, Workload
from mist_sim.core.content_ids import origin_of
from mist_sim.traces import TRACE_READERS, Rows, TraceRow
from mist_sim.traces.workload import block_content
from mist_sim.traces.writers import WRITERS
from tests.effort import examples
from tests.reference.engines import llm_engine
from tests.reference.predictors import ConstantPredictor

BLOCK = 16
OPTIONS: dict[str, dict[str, Any]] = {"mooncake": {"hash_block_size": BLOCK}}
WITH_BLOCKS = {"mooncake", "timed_trace", "dynamo"}


def _dynamo(rows: list[TraceRow]) -> str:
    """Return Dynamo's form, in which requests lie in the order of their ends."""
    records = [
        {
            "schema": "dynamo.request.trace.v1",
            "event_type": "request_end",
            "event_time_unix_ms": row.arrival_time * 1e3 + 1,
            "request": {
                "request_received_ms": row.arrival_time * 1e3,
                "output_tokens": row.num_output_tokens,
                "replay": {
                    "trace_block_size": BLOCK,
                    "input_length": row.num_prompt_tokens,
                    "input_sequence_hashes": [origin_of(span)[1] for span, _ in row.content],
                },
            },
        }
        for row in rows
    ]
    return "".join(json.dumps(record) + "\n" for record in records)


def _otel(rows: list[TraceRow]) -> str:
    keys = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
    spans = [
        {
            "traceId": str(number),
            "startTimeUnixNano": str(round(row.arrival_time * 1e9)),
            "endTimeUnixNano": str(round(row.arrival_time * 1e9) + 1),
            "attributes": [
                {"key": key, "value": {"intValue": str(tokens)}}
                for key, tokens in zip(keys, row[:2], strict=True)
            ],
        }
        for number, row in enumerate(rows)
    ]
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]})


FORMS = {
    **{name: lambda rows, write=write: "".join(write(rows)) for name, write in WRITERS.items()},
    "dynamo": _dynamo,
    "otel": _otel,
}


def _run(source: Any, with_blocks: bool) -> Result:
    client = llm_engine(
        predictor=ConstantPredictor(0.02),
        num_gpu_blocks=400,
        scheduler=ChunkedScheduler(max_num_batched_tokens=512, max_num_seqs=4),
        enable_prefix_caching=with_blocks,
    )
    return Simulation(clients=[client], workload=Workload(source, TraceArrivals())).run()


def _records(source: Any, with_blocks: bool) -> pd.DataFrame:
    return _run(source, with_blocks).requests.drop(columns=["session_id"])


@st.composite
def workloads(draw: st.DrawFn) -> list[TraceRow]:
    """Draw requests whose times are whole milliseconds, which every form can say."""
    gaps = draw(st.lists(st.integers(0, 200), min_size=1, max_size=8))
    rows, at = [], 0
    for position, gap in enumerate(gaps):
        at += gap if position else 0
        prompt, output = draw(st.integers(1, 300)), draw(st.integers(1, 12))
        shared = draw(st.integers(0, 4))
        number = -(-prompt // BLOCK)
        own = [1_000 * (position + 1) + k for k in range(number)]
        ids = [*range(min(shared, prompt // BLOCK)), *own][:number]
        content = block_content(ids, (), prompt, output, BLOCK)
        rows.append(TraceRow(prompt, output, at / 1e3, content=content))
    return rows


@given(workloads())
@examples(12)
@pytest.mark.parametrize("form", FORMS)
def test_a_workload_replays_the_same_in_every_form(form, tmp_path_factory, rows):
    has_blocks = form in WITH_BLOCKS
    if not has_blocks:
        rows = [row._replace(content=()) for row in rows]
    path = tmp_path_factory.mktemp("trace") / "t"
    path.write_text(FORMS[form](rows))
    reader = TRACE_READERS[form](path=str(path), **OPTIONS.get(form, {}))
    first, again = (_records(source, has_blocks) for source in (Rows(rows), reader))
    exact = first.select_dtypes(exclude="float").columns
    pd.testing.assert_frame_equal(first[exact], again[exact], check_dtype=False)
    pd.testing.assert_frame_equal(first, again, check_dtype=False, rtol=1e-9, atol=1e-9)


@given(workloads())
@examples(12)
def test_a_run_replays_same_from_its_own_table(tmp_path_factory, rows):
    rows = [row._replace(content=()) for row in rows]
    folder: Path = tmp_path_factory.mktemp("run")
    result = _run(Rows(rows), with_blocks=False)
    result.save(folder / "run")
    reader = TRACE_READERS["mist"](path=str(folder / "run/requests.parquet"))
    assert [row[:2] for row in reader.rows()] == [row[:2] for row in rows]
    first, again = (_records(source, with_blocks=False) for source in (Rows(rows), reader))
    pd.testing.assert_frame_equal(first, again, check_dtype=False, rtol=1e-9, atol=1e-9)
