"""Workloads: requests made from rows, arrivals and pipelines."""

from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest

from mist_sim import traces
from mist_sim.core.request import Stage
from mist_sim.errors import ScenarioError, TraceError
from mist_sim.rng import Streams
from mist_sim.stages import Decode, Postprocess, Prefill, Rag, Reasoning, completion
from mist_sim.traces import (
    AllAtOnce,
    AzureReader,
    ClosedLoop,
    ConstantArrivals,
    FixedLength,
    GeometricLength,
    PoissonArrivals,
    Profile,
    Rows,
    Synthetic,
    TraceArrivals,
    TraceRow,
    Workload,
    template,
)
from tests.refusals import refused

STREAMS = Streams(7)
ROWS = Rows([TraceRow(10, 3, 0.0, 4), TraceRow(20, 1, 1.5, None, ((8, 20),)), TraceRow(30, 2, 1.5)])
SYNTHETIC = Synthetic(
    num_requests=5_000, prompt=GeometricLength(mean=90), output=GeometricLength(mean=9)
)


def lengths(workload: Workload, streams: Streams = STREAMS) -> list[tuple[int, int]]:
    return [(r.num_prompt_tokens, r.num_output_tokens) for r in workload.requests(streams)]


def times(workload: Workload) -> list[float | None]:
    return [request.arrival_time for request in workload.requests(STREAMS)]


def test_all_names_exported_exist():
    assert all(hasattr(traces, name) for name in traces.__all__)


def test_requests_carry_the_rows():
    first, second, third = Workload(ROWS, TraceArrivals()).requests(STREAMS, in_runs=False)
    assert (first.request_id, second.request_id, third.request_id) == (0, 1, 2)
    assert (first.arrival_time, second.arrival_time, third.arrival_time) == (0.0, 1.5, 1.5)
    assert (first.num_prompt_tokens, first.num_output_tokens, first.session_id) == (10, 3, 4)
    assert first.stages == completion(10, 3)
    assert second.stages == (Prefill(num_prompt_tokens=20), Decode(num_tokens=0))
    assert second.session_id is None
    assert (first.content, second.content) == ((), ((8, 20),))


def test_requests_are_made_one_at_a_time():
    pulled = []

    class Endless:
        def rows(self) -> Iterator[TraceRow]:
            while True:
                pulled.append(1)
                yield TraceRow(1, 1)

    requests = Workload(Endless(), PoissonArrivals(rate=1)).requests(STREAMS)
    assert not pulled
    assert [next(requests).request_id for _ in range(3)] == [0, 1, 2]
    assert len(pulled) == 3


def test_speedup_divides_times():
    assert times(Workload(ROWS, TraceArrivals(speedup=3))) == [0.0, 0.5, 0.5]


def test_arrivals_replace_the_times_of_a_trace():
    assert times(Workload(ROWS, ConstantArrivals(rate=2))) == [0.0, 0.5, 1.0]
    assert times(Workload(ROWS, AllAtOnce())) == [0.0, 0.0, 0.0]


def test_a_closed_loop_leaves_times_open():
    loop = ClosedLoop(concurrency=2, think_time=0.5)
    workload = Workload(ROWS, loop)
    assert times(workload) == [None, None, None]
    assert workload.closed_loop is loop
    assert Workload(ROWS, AllAtOnce()).closed_loop is None


def test_num_requests_is_known_where_it_can_be():
    assert Workload(ROWS, AllAtOnce()).num_requests == 3
    assert Workload(SYNTHETIC, AllAtOnce()).num_requests == 5_000
    assert Workload(Profile(num_requests=9), AllAtOnce()).num_requests == 9
    assert Workload(AzureReader(path="x"), AllAtOnce()).num_requests is None
    assert Workload(AzureReader(path="x", num_requests=5), AllAtOnce()).num_requests == 5


# ------------------------------------------------------------------ randomness


def test_lengths_and_arrivals_have_streams_of_their_own():
    poisson = Workload(SYNTHETIC, PoissonArrivals(rate=3))
    assert lengths(poisson) == lengths(Workload(SYNTHETIC, PoissonArrivals(rate=9)))
    assert lengths(poisson) == lengths(Workload(SYNTHETIC, ClosedLoop(concurrency=1)))
    other = Synthetic(
        num_requests=5_000, prompt=FixedLength(tokens=1), output=FixedLength(tokens=1)
    )
    assert times(poisson) == times(Workload(other, PoissonArrivals(rate=3)))


def test_streams_have_their_documented_names():
    arrivals = PoissonArrivals(rate=3)
    workload = Workload(SYNTHETIC, arrivals)
    assert times(workload)[:9] == list(islice(arrivals.times(STREAMS.generator("arrivals")), 9))
    rows = list(SYNTHETIC.sample_rows(STREAMS.generator("lengths")))
    assert lengths(workload) == [(row.num_prompt_tokens, row.num_output_tokens) for row in rows]


def test_equal_seeds_give_equal_requests():
    workload = Workload(SYNTHETIC, PoissonArrivals(rate=3))
    assert lengths(workload) == lengths(workload)
    assert times(workload) == times(workload)
    assert lengths(workload) != lengths(workload, Streams(8))


# ------------------------------------------------------------------ pipelines


def test_a_template_puts_rows_lengths_where_classes_stand():
    rag, reasoning = Rag(num_query_tokens=64, num_documents=8), Reasoning(num_tokens=100)
    pipeline = template([rag, Prefill, reasoning, Decode, Postprocess()])
    first = next(Workload(ROWS, AllAtOnce(), pipeline).requests(STREAMS))
    assert first.stages == (
        rag,
        Prefill(num_prompt_tokens=10),
        reasoning,
        Decode(num_tokens=2),
        Postprocess(),
    )
    assert (first.num_prompt_tokens, first.num_output_tokens) == (10, 103)


def test_totals_are_sums_over_all_stages():
    pipeline = template([Prefill, Decode, Prefill(num_prompt_tokens=7), Decode(num_tokens=4)])
    assert lengths(Workload(ROWS, AllAtOnce(), pipeline)) == [(17, 8), (27, 6), (37, 7)]


def test_a_template_of_prefill_and_decode_is_default():
    plain = list(Workload(ROWS, AllAtOnce()).requests(STREAMS))
    same = list(Workload(ROWS, AllAtOnce(), template([Prefill, Decode])).requests(STREAMS))
    for left, right in zip(plain, same, strict=True):
        assert left.stages == right.stages
        assert left.num_prompt_tokens == right.num_prompt_tokens
        assert left.num_output_tokens == right.num_output_tokens


test_impossible_templates_are_refused_when_made = refused(
    template,
    ([], "a pipeline needs at least one stage"),
    ([Decode, Prefill], r"stage 0 \(decode\) needs a prefill before it"),
    ([Prefill, "decode"], "the class EncodeImages, KvRetrieval, Prefill or Decode, got 'decode'"),
    ([Prefill, Reasoning], "the class EncodeImages, KvRetrieval, Prefill or Decode, got <class"),
    error=ValueError,
)


def test_a_function_can_be_a_pipeline_and_is_checked_once_a_shape(monkeypatch):
    checked = []
    monkeypatch.setattr("mist_sim.traces.workload.validate_pipeline", checked.append)

    def long_prompts_retrieve(row: TraceRow) -> tuple[Stage, ...]:
        stages = completion(row.num_prompt_tokens, row.num_output_tokens)
        if row.num_prompt_tokens < 20:
            return stages
        return (Rag(num_query_tokens=5, num_documents=1), *stages)

    requests = list(Workload(ROWS, AllAtOnce(), long_prompts_retrieve).requests(STREAMS))
    assert [len(request.stages) for request in requests] == [2, 3, 3]
    assert len(checked) == 2


def test_a_function_that_makes_no_pipeline_is_refused():
    def decode_only(row: TraceRow) -> tuple[Stage, ...]:
        return (Decode(num_tokens=row.num_output_tokens),)

    with pytest.raises(ScenarioError, match=r"pipeline of request 0: stage 0 \(decode\) needs"):
        next(Workload(ROWS, AllAtOnce(), decode_only).requests(STREAMS))


# ------------------------------------------------------------------ refusals


def test_a_source_without_times_cannot_use_its_own():
    with pytest.raises(ScenarioError) as caught:
        next(Workload(SYNTHETIC, TraceArrivals()).requests(STREAMS))
    assert "Synthetic gives none" in str(caught.value)
    assert "choose one of all_at_once, bursty, closed_loop, constant" in str(caught.value)


@pytest.mark.parametrize("bad", [[1.0, 0.5], [-1.0, 0.0], [0.0, float("nan")]])
def test_impossible_times_are_refused(bad):
    workload = Workload.from_lists([5, 5], [5, 5], bad)
    with pytest.raises(ScenarioError, match="arrival times must be finite, >= 0 s and never decr"):
        list(workload.requests(STREAMS))


def test_arrivals_that_end_are_refused():
    class Two:
        def times(self, rng: np.random.Generator) -> Iterator[float]:
            return iter([0.0, 1.0])

    requests = Workload(ROWS, Two()).requests(STREAMS)
    assert len(list(islice(requests, 2))) == 2
    with pytest.raises(ScenarioError, match="arrivals must not end before the requests do"):
        next(requests)


def test_what_is_no_source_or_no_arrivals_is_refused():
    with pytest.raises(ValueError, match=r"source must have rows\(\) or sample_rows\(rng\), got l"):
        Workload([TraceRow(1, 1)], AllAtOnce())
    with pytest.raises(
        ValueError, match=r"arrivals must have times\(rng\), or be Trace.*got float"
    ):
        Workload(ROWS, 5.0)


def test_rows_without_tokens_are_refused():
    with pytest.raises(ValueError, match=r"items\[1\]\.num_output_tokens must be >= 1, got 0"):
        Rows([TraceRow(1, 1), TraceRow(1, 0)])
    with pytest.raises(ValueError, match=r"items\[0\]\.num_prompt_tokens must be >= 1, got 0"):
        Rows([TraceRow(0, 1)])
    with pytest.raises(ValueError, match="items must have at least one row, got none"):
        Rows([])


def test_reader_that_checks_nothing_is_stopped_by_pipeline():
    class Careless:
        def rows(self) -> Iterator[TraceRow]:
            yield TraceRow(0, 1)

    with pytest.raises(ScenarioError, match="pipeline of request 0: num_prompt_tokens must be > 0"):
        next(Workload(Careless(), AllAtOnce()).requests(STREAMS))


def test_trace_errors_come_through(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,0,1\n")
    with pytest.raises(TraceError, match=r"bad\.csv:2: ContextTokens must be"):
        next(Workload(AzureReader(path=str(path)), TraceArrivals()).requests(STREAMS))


# ------------------------------------------------------------------ from lists


def test_from_lists():
    workload = Workload.from_lists([5, 6], [1, 2], [0.25, 0.5])
    assert lengths(workload) == [(5, 1), (6, 2)]
    assert times(workload) == [0.25, 0.5]
    assert times(Workload.from_lists([5, 6], [1, 2])) == [0.0, 0.0]
    assert times(Workload.from_lists([5], [1], arrivals=ConstantArrivals(rate=1))) == [0.0]
    faster = Workload.from_lists([5], [1], [3.0], arrivals=TraceArrivals(speedup=2))
    assert times(faster) == [1.5]


def test_from_lists_takes_arrays_and_makes_plain_numbers():
    workload = Workload.from_lists(np.array([5]), np.array([1]), np.array([0.5]))
    request = next(workload.requests(STREAMS))
    assert type(request.num_prompt_tokens) is int
    assert type(request.arrival_time) is float
    with pytest.raises(ScenarioError, match="prompt_tokens must be a whole number, got 5.5"):
        Workload.from_lists([5.5], [1])


def test_from_lists_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="the lists must be equally long, got 1, 2 and 1"):
        Workload.from_lists([1], [1, 2])
    with pytest.raises(ValueError, match="the lists must be equally long, got 1, 1 and 2"):
        Workload.from_lists([1], [1], [0.0, 1.0])
    with pytest.raises(ValueError, match="arrival_times must be None when arrivals is given"):
        Workload.from_lists([1], [1], [0.0], arrivals=PoissonArrivals(rate=1))


def test_the_azure_conversation_trace_as_requests(shared):
    reader = AzureReader(path=str(shared("traces/AzureLLMInferenceTrace_conv.csv")))
    requests = list(Workload(reader, TraceArrivals(speedup=2)).requests(STREAMS))
    assert len(requests) == 19_366
    assert requests[-1].request_id == 19_365
    assert requests[-1].arrival_time == pytest.approx(3501.721937 / 2, rel=1e-15)
