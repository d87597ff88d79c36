"""The types of a summary: its keys, and what each holds.

`docs/reference/metrics.md` says what they mean. At run time a summary is a plain dictionary.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict, get_type_hints

from mist_sim.errors import ScenarioError, brief, did_you_mean


class SloShare(TypedDict):
    """The share of good requests beside the one asked for; the rest is as of `SloFigure`."""

    asked: float
    value: float
    kept: bool
    verdict: str
    error_known: bool


class SloFigure(TypedDict):
    """A figure beside its limit, milliseconds. verdict: pass, miss, or within error.

    of_requests: whether a good request keeps the limit; else it is one on a percentile of the run.
    error_known: whether the verdict knows the expected error of the step times.
    """

    limit: float
    value: float
    kept: bool
    of_requests: bool
    verdict: str
    error_known: bool


class _Milliseconds(TypedDict):
    mean: float
    p50: float
    p90: float
    p99: float


class LatencyPart(_Milliseconds):
    """A part of the latency, milliseconds. share: of the whole."""

    share: float


class StageLatency(_Milliseconds):
    """The time in a stage, milliseconds. count: how often it was served."""

    count: int


class Moves(TypedDict):
    """KV entries on their way, added up. bytes: NaN where not known of all."""

    transfers: int
    tokens: int
    bytes: float
    seconds: float


class Overload(TypedDict):
    """A time in which more came than could be done; seconds of the run, and requests."""

    begin: float
    end: float
    most_waiting: int
    longest_wait: float
    left: int
    is_growing: bool


class Outage(TypedDict):
    """A time in which a failed client was missing, seconds. end: None for good."""

    begin: float
    end: float | None


class PhaseFigures(TypedDict):
    """Requests before, during or after failures; p99 of the finished ones in milliseconds."""

    completed: int
    failed: int
    p99_ttft_ms: float
    p99_tpot_ms: float
    p99_e2el_ms: float
    p99_queue_ms: float
    arrivals_per_s: float


class RecoveryFigures(TypedDict):
    """When latencies were as before a failure; seconds."""

    begin: float
    end: float
    back_after: dict[str, float | None]


class WarningData(TypedDict):
    """A warning of the result. kind: a name in `KINDS`. of: the runs or points that it is of.

    detail: the part of the text that holds for this run alone. brief: what stands above the tables.
    """

    kind: str
    text: str
    detail: NotRequired[str]
    of: NotRequired[list[str]]
    brief: NotRequired[str]


class ExpectedError(TypedDict):
    """The range of nine in ten measurements, as measured / simulated - 1.

    Without one, low and high are None and `like` says why. here: what the client is, in the words
    of `like`. other: in what the nearest measured run is other. sensitivity: in an open loop, what
    its load makes of errors of step times (`metrics.sensitivity`), whose range is `step_times`.
    """

    low: float | None
    high: float | None
    num_points: int
    like: str
    other: list[str]
    here: str
    knows_kernel: bool
    load: str | None
    arrivals: str | None
    sensitivity: NotRequired[dict[str, float]]
    step_times: NotRequired[list[float]]


class AssumedHost(TypedDict):
    """Effect of an assumed host of GPUs on PCIe: milliseconds a step of so many tokens.

    num_groups: groups of GPUs of a client that sum on the host, each alone.
    """

    num_groups: int
    host: str
    measured_with: str
    num_tokens: int
    communication_ms: float
    other_host: str
    other_communication_ms: float


class SliderPosition(TypedDict):
    """TaiChi's sliders from a time on, in seconds of the run."""

    time: float
    num_p: int
    num_d: int
    s_p: int
    s_d: int


class LayoutOfClient(TypedDict):
    """A layout of a client, and when it began; seconds of the run."""

    client: str
    start: float
    ready: float
    layout: str
    num_gpu_blocks: int
    collectives: NotRequired[str]


class _OfGroups(TypedDict):
    """Figures of a run and of groups of its requests; latencies are milliseconds."""

    completed: int
    failed: int
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    output_throughput: float
    total_token_throughput: float
    steady_request_throughput: float
    steady_output_throughput: float
    steady_total_token_throughput: float
    mean_ttft_ms: float
    p50_ttft_ms: float
    p90_ttft_ms: float
    p95_ttft_ms: float
    p99_ttft_ms: float
    mean_tpot_ms: float
    p50_tpot_ms: float
    p90_tpot_ms: float
    p95_tpot_ms: float
    p99_tpot_ms: float
    mean_e2el_ms: float
    p50_e2el_ms: float
    p90_e2el_ms: float
    p95_e2el_ms: float
    p99_e2el_ms: float


class _Goodput(TypedDict, total=False):
    """Figures where the scenario has limits on requests."""

    request_goodput: float
    steady_request_goodput: float
    good_request_fraction: float
    num_missed: int
    misses: dict[str, int]


class GroupFigures(_OfGroups, _Goodput):
    """The figures of the requests of one model or class."""


class _Always(_OfGroups):
    """Figures that every run has; latencies are milliseconds."""

    median_ttft_ms: float
    std_ttft_ms: float
    median_tpot_ms: float
    std_tpot_ms: float
    mean_itl_ms: float
    median_itl_ms: float
    std_itl_ms: float
    p50_itl_ms: float
    p90_itl_ms: float
    p95_itl_ms: float
    p99_itl_ms: float
    max_itl_ms: float
    median_e2el_ms: float
    std_e2el_ms: float
    mean_queue_ms: float
    median_queue_ms: float
    std_queue_ms: float
    p50_queue_ms: float
    p90_queue_ms: float
    p95_queue_ms: float
    p99_queue_ms: float
    duration: float
    has_steady_part: bool
    steady_begin: float
    steady_end: float
    max_output_tokens_per_s: float
    max_concurrent_requests: int
    peak_requests_in_flight: int
    num_rejected: int
    num_timed_out: int
    num_cancelled: int
    num_retries: int
    wasted_input_tokens: int
    wasted_output_tokens: int
    num_truncated: int
    num_preemptions: int
    prefix_cache_hit_rate: float
    prefix_cache_hit_rate_unbounded: float
    latency_breakdown_ms: dict[str, LatencyPart]
    stage_latency_ms: dict[str, StageLatency]
    utilisation: float
    unstable: bool
    estimates: dict[str, str]
    warnings: list[WarningData]


class Summary(_Always, _Goodput, total=False):
    """The metrics of a run (`Result.summary`): keys of `vllm bench serve`, and ours.

    Keys of this class exist only if the scenario has such figures. Type checkers accept literal
    keys only; for a computed key, treat the summary as a `Mapping[str, Any]`.
    `docs/reference/metrics.md` says what each key means, and its unit.
    """

    stability: str
    stability_needs: int
    stability_growth: list[int]
    overloaded_s: float
    arrivals_s: float
    overloads: list[Overload]
    engines: dict[str, str]
    kernels: dict[str, dict[str, str]]
    assumed: dict[str, list[str]]
    assumed_host: dict[str, AssumedHost]
    collectives: dict[str, str]
    expected_errors: dict[str, dict[str, ExpectedError | None]]
    extrapolated_step_fraction: float
    room: float
    room_limit: str
    layouts: list[LayoutOfClient]
    reconfigurations: list[SliderPosition]
    slo: dict[str, SloFigure]
    slo_shares: dict[str, SloShare]
    models: dict[str, GroupFigures]
    classes: dict[str, GroupFigures]
    communication: dict[str, Moves]
    tier_hit_rates: dict[str, float]
    num_swaps: int
    swapped_tokens: int
    swap_time: float
    num_hand_overs: int
    handed_over_tokens: int
    mean_hand_over_ms: float
    num_fetches: int
    fetched_tokens: int
    mean_fetch_ms: float
    num_retrievals: int
    retrieved_tokens: float
    retrieval_hit_rate: float
    retrieval_hit_rates: dict[str, float]
    mean_retrieval_ms: float
    mean_moves_per_request: float
    max_moves_per_request: int
    spec_decode_num_drafts: int
    spec_decode_draft_tokens: int
    spec_decode_accepted_tokens: int
    spec_decode_acceptance_rate: float
    spec_decode_acceptance_length: float
    num_lost: int
    num_lost_visits: int
    num_retried_visits: int
    lost_kv_tokens: int
    num_client_failures: int
    num_client_starts: int
    mean_clients_up: float
    steady_arrivals_per_s: list[float]
    outages: list[Outage]
    through_failures: dict[str, PhaseFigures]
    recoveries: list[RecoveryFigures]
    power_unknown: list[str]
    energy_j: float
    idle_energy_j: float
    average_power_w: float
    energy_per_output_token_j: float
    good_tokens_per_j: float
    power_estimates: dict[str, str]
    cost_usd: float
    cost_per_million_output_tokens_usd: float
    electricity_cost_usd: float
    good_tokens_per_usd: float
    api_cost_usd: float
    api_cost_per_million_output_tokens_usd: float
    prices: dict[str, str]
    mean_usd_per_hour: float
    usd_per_hour: float
    price_origins: list[str]


def check_number(option: str, name: str) -> None:
    """Raise ScenarioError unless a summary may have a number of that name.

    option: that names it, for the message.
    """
    known = [each for each, kind in get_type_hints(Summary).items() if kind in (int, float, bool)]
    if name not in known:
        raise ScenarioError(
            f"{option} has no number {brief(name)}{did_you_mean(name, known)} "
            "docs/reference/metrics.md has all"
        )
