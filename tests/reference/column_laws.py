"""What has to hold of the tables of every run, column by column (docs/guides/results.md).

Tables are compared with one another and with what was asked, not with how a run was computed.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mist_sim.metrics import Result

STATUSES = {"finished", "rejected", "timed_out", "cancelled", "lost"}
KINDS = {"hand_over", "load", "swap_out", "swap_in"}
STATES = {"off", "starting", "up", "draining", "failed"}
ROOM = ("room", "at_tokens", "at_sequences", "at_memory", "at_adapters")
"""Shares of the time in steps; unknown for clients without a scheduler that tells."""

MAY_BE_EMPTY = {
    "requests": ["session_id", "parent_id", "first_token_at", "ttft", "tpot", "interference"],
    "stages": [],
    "steps": [],
    "clients": [
        "mean_running",
        "prefix_cache_hit_rate",
        "average_power",
        "good_tokens_per_j",
        "good_tokens_per_usd",
        *ROOM,
    ],
    "transfers": ["num_bytes"],
    "client_states": [],
}
"""By table; `queued` of requests that failed, too."""

COUNTS = ("num_prompt_tokens", "num_output_tokens", "num_cached_tokens", "num_preemptions")
WASTED = ("wasted_input_tokens", "wasted_output_tokens")
"""Columns that are 0 at least."""

_ALMOST = 1e-9


def assert_columns_keep_their_laws(result: Result, asked: Mapping[int, int]) -> None:
    """Check all tables. asked: output tokens of each request that users sent, by its id."""
    requests = result.requests.set_index("request_id", drop=False)
    assert_full(result)
    assert_ids(requests, asked)
    assert_times_of_requests(requests)
    assert_tokens_of_requests(result, requests, asked)
    assert_stages(result, requests)
    assert_steps(result)
    assert_clients(result, requests)
    assert_transfers(result, requests)
    assert_states(result)
    assert_energy(result, requests)
    assert_summary(result, requests)


def assert_summary(result: Result, requests: pd.DataFrame) -> None:
    """It counts the requests of users, each once."""
    summary, own = result.summary, requests[requests["request_id"] >= 0]
    counts = own["status"].value_counts()
    assert summary["completed"] == counts.get("finished", 0)
    assert summary["failed"] == len(own) - summary["completed"]
    for status in STATUSES - {"finished"}:
        assert summary.get(f"num_{status}", 0) == counts.get(status, 0)
    done = own[own["status"] == "finished"]
    assert summary["total_output_tokens"] == done["num_output_tokens"].sum()
    assert summary["total_input_tokens"] == done["num_prompt_tokens"].sum()
    assert summary["num_preemptions"] == own["num_preemptions"].sum()
    for name in ("prefix_cache_hit_rate", "prefix_cache_hit_rate_unbounded"):
        rate = summary.get(name, 0.0)
        assert np.isnan(rate) or 0 <= rate <= 1, name


def has(values: Iterable[Any], known: Iterable[Any]) -> bool:
    """Tell whether all values are known."""
    return set(values) <= set(known)


def assert_full(result: Result) -> None:
    """Nothing is missing but where the documentation says so."""
    for name, columns in MAY_BE_EMPTY.items():
        table = getattr(result, name)
        missing = table.columns[table.isna().any()]
        assert has(missing, [*columns, "queued"] if name == "requests" else columns), name


# --- requests ---------------------------------------------------------------------------------


def assert_ids(requests: pd.DataFrame, asked: Mapping[int, int]) -> None:
    """Users' requests are numbered from 0, children below it; a parent is there."""
    ids = requests["request_id"]
    assert ids.is_monotonic_increasing
    assert ids.is_unique
    assert ids[ids >= 0].tolist() == sorted(asked)
    assert (requests["parent_id"].notna() == (ids < 0)).all()
    assert has(requests["parent_id"].dropna(), ids)
    assert has(requests["status"], STATUSES)
    assert ((requests["reason"] == "") == (requests["status"] == "finished")).all()


def assert_times_of_requests(requests: pd.DataFrame) -> None:
    """Requests arrive, are sent, get their first token and end, in this order."""
    r = requests
    finished = r["status"] == "finished"
    times = r[["arrival_time", "sent_at", "finished_at"]]
    assert np.isfinite(times.to_numpy()).all()
    assert (r["arrival_time"] >= 0).all()
    assert (r["arrival_time"] <= r["sent_at"]).all()
    assert (r["sent_at"] <= r["finished_at"]).all()
    token = r["first_token_at"]
    assert (token.isna() | ((r["sent_at"] <= token) & (token <= r["finished_at"]))).all()
    pd.testing.assert_series_equal(r["ttft"], token - r["arrival_time"], check_names=False)
    pd.testing.assert_series_equal(
        r["e2el"], r["finished_at"] - r["arrival_time"], check_names=False
    )
    queued = r["queued"]
    assert (queued.isna() | (queued >= 0)).all()
    assert not (finished & queued.isna()).any()
    assert (queued <= r["finished_at"] - r["sent_at"] + _ALMOST)[finished].all()
    tpot = r["tpot"]
    assert (tpot.isna() | (tpot >= 0)).all()
    assert (r["interference"].isna() == tpot.isna()).all()
    assert (r["interference"].isna() | (r["interference"] >= 0)).all()


def assert_tokens_of_requests(
    result: Result, requests: pd.DataFrame, asked: Mapping[int, int]
) -> None:
    """Counts are whole, those of a prompt at most the prompt, and answers as long as asked for."""
    r = requests
    finished = r["status"] == "finished"
    for name in (*COUNTS, *WASTED):
        assert (r[name] >= 0).all(), name
    assert (r["num_attempts"] >= 1).all()
    at_most = np.maximum(r["num_prompt_tokens"] - 1, 0)  # the last one is always computed
    assert (r["num_cached_tokens"] <= at_most).all()
    assert not (r["truncated"] & ~finished).any()
    whole = r[finished & ~r["truncated"] & (r["request_id"] >= 0)]
    assert whole["num_output_tokens"].tolist() == [asked[k] for k in whole["request_id"]]
    shorter = r[r["truncated"] & (r["request_id"] >= 0)]
    assert all(row.num_output_tokens < asked[row.request_id] for row in shorter.itertuples())
    once = finished & (r["num_attempts"] == 1)
    assert not r.loc[once, list(WASTED)].any(axis=None)
    failed = r[~finished]
    assert (failed["wasted_output_tokens"] >= failed["num_output_tokens"]).all()
    for row in r[r["request_id"] >= 0].itertuples():
        assert_token_times(result, row)


def assert_token_times(result: Result, row: Any) -> None:
    """Each token of the last attempt has a time; the first one in time is `first_token_at`."""
    times = result.token_times(row.request_id)
    assert len(times) == row.num_output_tokens
    assert (np.diff(times) >= 0).all()
    in_time = times[times <= row.finished_at]
    if len(in_time):
        assert row.first_token_at == in_time[0]
    else:
        assert np.isnan(row.first_token_at)
    if len(times) < 2:
        assert np.isnan(row.tpot)


# --- stages, steps, clients -------------------------------------------------------------------


def assert_stages(result: Result, requests: pd.DataFrame) -> None:
    """Stages are queued, begun and ended in this order, while their request is there."""
    stages = result.stages
    assert has(stages["client"], result.client_names)
    assert has(stages["request_id"], requests.index)
    times = stages[["queued_at", "started_at", "finished_at"]].to_numpy(float)
    assert np.isfinite(times).all()
    assert (np.diff(times) >= 0).all()
    of = requests.loc[stages["request_id"]]
    assert (stages["queued_at"].to_numpy() >= of["arrival_time"].to_numpy()).all()
    done = (of["status"] == "finished").to_numpy()
    assert (stages["finished_at"].to_numpy() <= of["finished_at"].to_numpy())[done].all()
    decodes = stages[stages["stage"] == "decode"]
    prompts = stages[stages["stage"] == "prefill"]
    assert has(decodes["request_id"], prompts["request_id"])


def assert_steps(result: Result) -> None:
    """Runs of a track follow one another, and what they compute fits together."""
    s = result.steps
    if not len(s):
        return
    assert has(s["client"], result.client_names)
    assert (s["start"] < s["end"]).all()
    for _, track in s.groupby("track"):
        assert (track["start"].to_numpy()[1:] >= track["end"].to_numpy()[:-1]).all()
        assert track["client"].nunique() == 1
    assert (s["num_steps"] >= 1).all()
    assert (s["num_chunks"] + s["num_decodes"] > 0).all()
    assert ((s["num_chunks"] > 0) == (s["num_prefill_tokens"] > 0)).all()
    assert (s["num_prefill_tokens"] >= s["num_chunks"]).all()
    assert (s["num_decodes"] >= 0).all()
    assert (s["context_sum"] >= 0).all()  # none, of prompts of one token that decodes begin with
    assert not s.loc[s["num_decodes"] == 0, "context_sum"].any()
    of_prompts = ["chunk_context_sum", "num_prefill_pairs"]
    assert not s.loc[s["num_chunks"] == 0, of_prompts].any(axis=None)
    assert (s["chunk_context_sum"] >= 0).all()
    assert (s["num_prefill_pairs"] >= s["num_prefill_tokens"] * s["num_steps"]).all()
    assert (s["busy"] > 0).all()
    assert (s["busy"] <= (s["end"] - s["start"]) * (1 + _ALMOST)).all()
    assert (s["num_waiting"] >= 0).all()
    blocks = dict(zip(result.client_names, result.num_gpu_blocks, strict=True))
    assert (s["num_used_blocks"] >= 0).all()
    assert (s["num_used_blocks"] <= s["client"].map(blocks)).all()
    assert s["num_extrapolated"].between(0, s["num_steps"]).all()


def assert_clients(result: Result, requests: pd.DataFrame) -> None:
    """Clients did what their steps and visits say, and gave the tokens that requests got."""
    c = result.clients.set_index("client", drop=False)
    assert c["client"].tolist() == result.client_names
    s = result.steps
    visits = result.recorder.visits.columns()
    assert c["num_visits"].sum() == len(visits["request_id"])
    for place, running in enumerate(c["mean_running"]):
        mine = (visits["client_id"] == place) & ~np.isnan(visits["started_at"])
        begin, end = visits["started_at"][mine], visits["finished_at"][mine]
        if not mine.any() or end.max() == begin.min():
            assert np.isnan(running)
            continue
        inside = running * (end.max() - begin.min())
        assert inside == pytest.approx((end - begin).sum(), abs=1e-9)
    finished = requests["status"] == "finished"
    tokens = requests["wasted_output_tokens"] + requests["num_output_tokens"] * finished
    assert c["num_output_tokens"].sum() == tokens.sum()
    sums = {
        "num_steps": s["num_steps"],
        "num_prefill_tokens": s["num_prefill_tokens"] * s["num_steps"],
    }
    for name, values in sums.items():
        by_client = values.groupby(s["client"]).sum().reindex(c.index, fill_value=0)
        assert c[name].tolist() == by_client.tolist(), name
    busy = s["busy"].groupby(s["client"]).sum()
    for name in busy.index:
        assert c.loc[name, "busy"] == pytest.approx(busy[name])
    assert (c["busy"] >= 0).all()
    for name in ROOM:
        share = c[name].dropna()
        assert ((share >= 0) & (share <= 1 + _ALMOST)).all(), name
    assert (c["num_decode_tokens"] <= c["num_output_tokens"]).all()
    for name, mine in s.groupby("client"):
        decodes = mine[mine["num_decodes"] > 0]
        num_steps = decodes["num_steps"].sum()
        total = (decodes["num_decodes"] * decodes["num_steps"]).sum()
        assert c.loc[name, "mean_decodes"] == (total / num_steps if num_steps else 0)
        assert c.loc[name, "peak_used_blocks"] >= mine["num_used_blocks"].max()
    assert (c["peak_used_blocks"] <= c["num_gpu_blocks"]).all()
    rate = c["prefix_cache_hit_rate"]
    assert (rate.isna() | rate.between(0, 1)).all()


# --- transfers, states, energy ----------------------------------------------------------------


def assert_transfers(result: Result, requests: pd.DataFrame) -> None:
    """Entries of requests that are there go between places that are there, forwards in time."""
    t = result.transfers
    if not len(t):
        return
    assert has(t["kind"], KINDS)
    assert has(t["client"], result.client_names)
    assert has(t["request_id"], requests.index)
    assert t["start"].is_monotonic_increasing
    assert (t["start"] <= t["end"]).all()
    arrived = requests.loc[t["request_id"], "arrival_time"].to_numpy()
    assert (t["start"].to_numpy() >= arrived).all()
    assert (t["num_tokens"] >= 0).all()
    assert (t["num_bytes"].isna() | (t["num_bytes"] >= 0)).all()
    handed = t[t["kind"] == "hand_over"]
    assert has(handed["source"], result.client_names)
    assert (handed["source"] != handed["client"]).all()
    inwards = t[t["kind"] != "swap_out"]
    assert has(inwards["destination"], ["gpu"])
    assert has(t.loc[t["kind"] == "swap_out", "source"], ["gpu"])


def assert_states(result: Result) -> None:
    """The periods of a client follow one another without gaps."""
    states = result.client_states
    assert has(states["state"], STATES)
    assert has(states["client"], result.client_names)
    assert (states["start"] < states["end"]).all()
    for _, mine in states.groupby("client", sort=False):
        assert mine["start"].tolist()[1:] == mine["end"].tolist()[:-1]


def assert_energy(result: Result, requests: pd.DataFrame) -> None:
    """What requests took and what nobody took is what the clients drew, or cost."""
    c = result.clients
    for name in ("energy", "cost"):
        if name not in c:
            continue
        drawn, idle = c[name].dropna(), c[f"idle_{name}"].dropna()
        assert (idle >= -_ALMOST).all()
        assert (drawn >= idle - _ALMOST).all()
        assert (requests[name] >= 0).all()
        assert requests[name].sum() + idle.sum() == pytest.approx(drawn.sum(), rel=1e-9)
    if "gpu_seconds" in requests:
        assert (requests["gpu_seconds"] >= 0).all()
