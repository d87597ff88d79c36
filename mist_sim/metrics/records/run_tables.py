"""The tables of a run: columns and types of requests, visits, steps and moves."""

from __future__ import annotations

from mist_sim.metrics.records.columns import Table

_TABLES = {
    # a row a request
    "requests": """
        request_id:i8 parent_id:i8 session_id:i8 arrival_time:f8 sent_at:f8 first_token_at:f8
        finished_at:f8 queued:f8 front_end:f8 at_gateway:f8 decode_time:f8 num_gaps:i8
        num_prompt_tokens:i8 num_output_tokens:i8 num_preemptions:i4 num_queried_tokens:i8
        num_cached_tokens:i8 num_known_tokens:i8 truncated:? num_attempts:i4
        wasted_input_tokens:i8 wasted_output_tokens:i8 status:i1 reason:i4 model:i4
    """,
    # a row a stay at a client
    "visits": """
        request_id:i8 client_id:i4 stages:i4 queued_at:f8 started_at:f8 first_token_at:f8
        finished_at:f8 num_queried_tokens:i8 num_cached_tokens:i8 num_input_tokens:i8
        num_output_tokens:i8 served:? num_served_stages:i4
    """,
    # steps that gave a request its tokens
    "tokens": "request_id:i8 track:i4 first_step:i8 end_step:i8 first_count:i8 resumed:?",
    # times between tokens that no one step took
    "gaps": "time:f8 gap:f8 count:i4",
    # drafts of steps, and those accepted
    "drafts": "time:f8 num_drafts:i8 draft_tokens:i8 accepted_tokens:i8",
    # KV entries that moved
    "moves": """
        request_id:i8 track:i4 kind:i4 source:i4 destination:i4 num_tokens:i8 num_bytes:f8 start:f8
        end:f8 again:?
    """,
    # KV entries that were asked for, by the level that had them
    "retrievals": "request_id:i8 client_id:i4 level:i4 num_tokens:f8 num_bytes:f8 start:f8 end:f8",
    # states that clients come to
    "states": "client_id:i4 time:f8 state:i4",
    # failed clients, when their groups have the wanted number of clients again
    "made_up": "client_id:i4 time:f8",
    # visits that were lost with a client
    "losses": "request_id:i8 client_id:i4 time:f8 num_tokens:i8 retried:?",
    # one track's runs of steps
    "steps": """
        start:f8 num_steps:i4 num_chunks:i4 num_prefill_tokens:i4 num_decodes:i4 context_sum:i8
        chunk_context_sum:i8 num_prefill_pairs:i8 busy:f8 num_waiting:i4 num_used_blocks:i4
        num_gaps:i4 num_extrapolated:i4
    """,
}
_COLUMNS = {
    name: dict(column.split(":") for column in columns.split()) for name, columns in _TABLES.items()
}


def empty_table(name: str) -> Table:
    """Return one of the tables of a run, without rows. name: `requests`, `visits`, and so on."""
    return Table(**_COLUMNS[name])
