"""Public traces: recognised, read whole, and as many rows as they have."""

import pytest

from mist_sim.traces.readers.opening import form_of, reader_of

COUNTS = {
    "AzureLLMInferenceTrace_code.csv": ("azure", 8_819),
    "AzureLLMInferenceTrace_conv.csv": ("azure", 19_366),
    "arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv": ("lengths_csv", 28_257),
    "mooncake_synthetic_trace.jsonl": ("mooncake", 3_993),
    "sharegpt_format_sample.json": ("sharegpt", 1_000),
    "sharegpt-lengths/sharegpt_8k_turns_llama2.csv": ("lengths_csv", 30_731),
    "ragpulse/0_trace.jsonl": ("ragpulse", 7_106),
    "agentic-claude-code/traces_rle.jsonl.gz": ("agentic", 44_971),
}
SERVEGEN = 20_000  # of millions, drawn


@pytest.mark.deep
@pytest.mark.parametrize("name", COUNTS)
def test_a_trace_is_read_whole(name, shared):
    path = str(shared(f"traces/{name}"))
    form, number = COUNTS[name]
    assert form_of(path) == form
    assert sum(1 for _ in reader_of(path).rows()) == number


@pytest.mark.deep
def test_clients_of_servegen_are_read(shared):
    path = str(shared("traces/servegen/client_rates.csv.gz"))
    assert form_of(path) == "servegen"
    assert sum(1 for _ in reader_of(path, num_requests=SERVEGEN).rows()) == SERVEGEN
