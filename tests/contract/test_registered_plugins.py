"""Every registered plugin passes the checks that `mist_sim.testing` offers to others.

A plugin with parameters that have no default, or with corners worth a run of their own, has
configurations below; the tests fail for a registered name that is missing there.
"""

import json
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from pyarrow import Table, parquet

from mist_sim import testing
from mist_sim.admission import ADMISSIONS
from mist_sim.clients import CLIENTS, SequentialClient
from mist_sim.clients.scheduling import SCHEDULERS
from mist_sim.durations import DURATIONS
from mist_sim.eviction import EVICTIONS
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.predictors import PREDICTORS
from mist_sim.lifecycle import AUTOSCALERS
from mist_sim.models import load_model
from mist_sim.registry import Registry
from mist_sim.routers import ROUTERS
from mist_sim.scenario.sections.clients.family import CLIENT
from mist_sim.stages import STAGES
from mist_sim.traces import (
    ARRIVALS,
    LENGTHS,
    SAMPLERS,
    TRACE_READERS,
    FixedLength,
    RequestClass,
    UniformLength,
)
from tests.conftest import ROOT
from tests.reference.measured import measured_layers, measured_steps
from tests.reference.regression_files import written

Configurations = dict[str, list[dict[str, Any]]]


def parts(model: str, gpu: str, ranks: int) -> dict[str, Any]:
    return {"model": load_model(model), "cluster": Cluster(load_gpu(gpu), ranks)}


H100 = {"gpu": "h100-sxm"}
EXPERTS = H100 | {"model": "mixtral-8x7b", "tensor_parallel_size": 2}
DRAM = {"name": "dram", "read_bandwidth": "150 GB/s", "latency": "80 ns", "hit_rate": 0.25}
NVME = {"name": "nvme", "read_bandwidth": "7 GB/s", "latency": "50 us", "hit_rate": 0.5}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "acceptance_rate": 0.6}

ROUTERS_TO_CHECK: Configurations = {
    "heavy_light": [
        {},
        {"by": "kv_cache", "threshold": 900, "heavy_share": 0.9},
        {"by": "tokens_remaining", "threshold": 50, "heavy_share": 0.1},
    ],
    "least_outstanding": [{}],
    "length_aware": [
        {"ttft": 0.2},
        {"ttft": 0.02, "if_none": "reject"},
        {"ttft": 0.02, "if_none": "soonest"},
        {"ttft": 0.2, "if_none": "soonest", "estimate_error": 0.5},
    ],
    "load": [{}, {"by": "kv_cache"}, {"by": "tokens_remaining"}],
    "placement_aware": [{}, {"balance_abs_threshold": 1}],
    "power_of_two": [{}],
    "prefix_affinity": [{}, {"cache_threshold": 0.0, "balance_abs_threshold": 2}],
    "random": [{}],
    "round_robin": [{}],
    "session_affinity": [{}, {"balance_abs_threshold": 1, "max_sessions": 2}],
}

SCHEDULERS_TO_CHECK: Configurations = {
    "chunked": [
        {},
        {"max_num_seqs": 1},
        {"max_num_seqs": 8, "max_num_batched_tokens": 8},
        {"max_num_seqs": 4, "max_num_batched_tokens": 37},
        {"max_num_seqs": 8, "max_num_batched_tokens": 40, "long_prefill_token_threshold": 16},
        {
            "max_num_batched_tokens": 300,
            "long_prefill_token_threshold": 100,
            "max_num_partial_prefills": 3,
            "order": "priority",
        },
        {
            "max_num_seqs": 8,
            "max_num_batched_tokens": 40,
            "long_prefill_token_threshold": 16,
            "scheduler_reserve_full_isl": False,
        },
        {"max_num_batched_tokens": 300, "prefill_schedule_interval": 3},
    ],
    "continuous": [
        {},
        {"max_num_seqs": 1},
        {"max_num_seqs": 6, "max_num_batched_tokens": 100},
        {"max_num_batched_tokens": 60},  # refuses the longer prompts
        {"order": "least_work_left"},
    ],
    "mixed": [{}, {"max_num_batched_tokens": 100}, {"order": "shortest_prompt_first"}],
    "static": [{}, {"max_num_seqs": 6, "max_num_batched_tokens": 100}],
}

PREDICTORS_TO_CHECK: Configurations = {
    "roofline": [
        parts("llama-3.1-8b", "h100-sxm", 1),
        parts("llama-3.1-70b", "a100-80gb-pcie", 4),
        parts("codellama-34b", "ascend-910b3", 4),
    ],
    "bestserve": [
        parts("codellama-34b", "ascend-910b3", 4),
        parts("codellama-34b", "ascend-910b3", 4) | {"composition": "algorithm_1"},
        parts("llama-3.1-8b", "l40s", 1),
    ],
    "seesaw": [
        parts("llama-2-70b", "a10", 8),
        parts("llama-2-70b", "a100-80gb-sxm", 4) | {"piggyback": 0.5},
        parts("llama-3.1-8b", "l40s", 1),
    ],
    "linear": [
        parts("llama-2-70b", "a100-80gb-sxm", 4) | {"step": 44e-3, "prefill_token": 0.2045e-3},
        parts("llama-3.1-8b", "h100-sxm", 1) | {"step": 5e-3, "decode": 50e-6},
    ],
    "table": [
        parts("llama-3.1-8b", "h100-sxm", 1) | {"format": "steps", "path": measured_steps()},
        parts("llama-3.1-8b", "h100-sxm", 1)
        | {"format": "layer_profile", "path": measured_layers(32)},
    ],
}

_FILES = TemporaryDirectory()  # of predictors that read one
PREDICTORS_TO_CHECK["regression"] = [
    parts("llama-3.1-8b", "h100-sxm", 1) | {"path": written(Path(_FILES.name) / "regression.json")}
]

_PROGRAM = f"{sys.executable} {ROOT / 'examples/step_times.py'}"
PREDICTORS_TO_CHECK |= {"program": [parts("llama-3.1-8b", "h100-sxm", 1) | {"command": _PROGRAM}]}

STAGES_TO_CHECK: Configurations = {name: [{}] for name in STAGES}

TRACES: dict[str, str] = {
    "azure": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n"
        "2023-11-16 18:16:00.0000001,1,1\n"
    ),
    "mooncake": "".join(
        json.dumps(
            {"timestamp": time, "input_length": 600, "output_length": 9, "hash_ids": [0, time]}
        )
        + "\n"
        for time in (27, 27, 3_052)
    ),
    "timed_trace": "".join(
        json.dumps(
            {"timestamp": time, "input_length": 40, "output_length": 9, "hash_ids": [0, 1, time]}
        )
        + "\n"
        for time in (27, 27, 3_052)
    ),
    "agentic_mooncake": "".join(
        json.dumps(
            {
                "request_id": f"r{number}",
                "session_id": "s",
                "input_length": 600 + 512 * number,
                "output_length": 9,
                "hash_ids": list(range(number + 2)),
                "wait_for": [f"r{number - 1}"] if number else [],
                "delay": 100.0,
                "tool_wait_ms": 1_400,
            }
        )
        + "\n"
        for number in range(3)
    ),
    "dynamo": "".join(
        json.dumps(
            {
                "schema": "dynamo.request.trace.v1",
                "event_type": "request_end",
                "event_time_unix_ms": 1_700_000_001_000 + time,
                "agent_context": {"session_id": "s"},
                "request": {
                    "request_id": f"r{time}",
                    "request_received_ms": 1_700_000_000_000 + time,
                    "output_tokens": 4,
                    "replay": {
                        "trace_block_size": 16,
                        "input_length": 40,
                        "input_sequence_hashes": [7, 8, 9 + time],
                    },
                },
            }
        )
        + "\n"
        for time in (0, 0, 3_052)
    ),
    "otel": "".join(
        json.dumps(
            {
                "resourceSpans": [
                    {
                        "scopeSpans": [
                            {
                                "spans": [
                                    {
                                        "traceId": "5b8efff798038103d269b633813fc60c",
                                        "name": "chat m",
                                        "startTimeUnixNano": str(1_700_000_000 * 10**9 + time),
                                        "endTimeUnixNano": str(1_700_000_002 * 10**9 + time),
                                        "attributes": [
                                            {"key": key, "value": value}
                                            for key, value in (
                                                ("gen_ai.operation.name", {"stringValue": "chat"}),
                                                ("gen_ai.usage.input_tokens", {"intValue": "97"}),
                                                ("gen_ai.usage.output_tokens", {"intValue": 52}),
                                            )
                                        ],
                                    }
                                ]
                            }
                        ]
                    }
                ]
            }
        )
        + "\n"
        for time in (0, 0, 3_000_000_000)
    ),
    "servegen": (
        "workload,client,window_start_s,rate_req_s,cv,arrival_law,param1,param2\n"
        "language/m-large,0,0,0.02,1.5,Gamma,0.4,120\n"
        "language/m-large,1,0,0.01,1,Weibull,0.9,90\n"
        "language/m-large,0,600,0,0,,0,0\n"
    ),
    "lengths_csv": "num_prefill_tokens,num_decode_tokens\n120,7\n2048,1\n",
    "csv": "timestamp,prompt_tokens,output_tokens\n12.5,120,7\n15.25,2048,1\n",
    "burstgpt": (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Log Type\n"
        "5.0,a,3,ChatGPT,472,18,Conversation log\n"
        "45.5,,1,GPT-4,1087,230,API log\n"
        "45.5,a,2,ChatGPT,500,7,Conversation log\n"
    ),
    "vidur": "arrived_at,num_prefill_tokens,num_decode_tokens\n0.25,591,140\n1.5,547,248\n",
    "splitwise": (
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
        "0,2,0,0.0,1,10,3\n1,2,0,0.5,1,20,4\n"
    ),
    "llmservingsim": "".join(
        json.dumps(
            {
                "input_toks": 20,
                "output_toks": 15,
                "arrival_time_ns": time,
                "input_tok_ids": [*range(16), *range(time, time + 4)],
                "output_tok_ids": list(range(15)),
            }
        )
        + "\n"
        for time in (7, 7, 1_000_000_007)
    ),
    "agentic": "".join(
        json.dumps(
            {
                "block_size": 4,
                "requests": [
                    {"t": 3 * t, "in": 9 + 4 * t, "out": t, "hash_runs": [[1, 2 + t]]}
                    for t in range(3)
                ],
            }
        )
        + "\n"
        for _ in range(2)
    ),
    "ragpulse": "".join(
        json.dumps(
            {
                "timestamp": str(time),
                "input_length": 20,
                "output_length": 3,
                "session_id": "s",
                "hash_ids": {"sys_prompt": [1], "user_input": [2 + time % 2]},
            }
        )
        + "\n"
        for time in (7, 2, 3)
    ),
    "sharegpt": json.dumps(
        [
            {
                "id": f"c{k}",
                "conversations": [
                    {"from": "human", "value": "What is a queue?"},
                    {"from": "gpt", "value": "A line of those who wait, first come, first served."},
                ],
            }
            for k in range(3)
        ]
    ),
}

SERVEGEN_LEVELS = (0, 0.01, *(step / 20 for step in range(1, 20)), 0.97, 0.99, 0.995, 0.999, 1)

BESIDE = {  # files that a reader looks for in the folder of its own
    "ragpulse": {
        "1_sys_prompt.jsonl": '{"sys_prompt_id": 1, "token_length": 10}\n',
        "2_passages.jsonl": "",
        "3_history.jsonl": "",
        "4_user_input.jsonl": "".join(
            json.dumps({"user_input_id": number, "token_length": 5}) + "\n" for number in (2, 3)
        ),
        "5_web_search.jsonl": "",
    },
    "servegen": {
        "client_lengths.csv": (
            "workload,client,field,windows,"
            + ",".join(f"q{level:g}" for level in SERVEGEN_LEVELS)
            + ",mean\n"
            + "".join(
                f"language/m-large,{client},{field}_tokens,9,"
                + ",".join(str(10 * k) for k in range(len(SERVEGEN_LEVELS)))
                + ",100\n"
                for client in (0, 1)
                for field in ("input", "output")
            )
        )
    },
}

PARQUET_TRACES: dict[str, list[dict[str, Any]]] = {
    "chat_parquet": [
        {
            "conversation": [
                {"role": "user", "content": "What is a queue?"},
                {"role": "assistant", "content": "A line of those who wait."},
            ]
        }
        for _ in range(3)
    ],
    "mist": [
        {
            "request_id": number,
            "parent_id": None,
            "session_id": number % 2,
            "model": "",
            "arrival_time": 2.0 + number,
            "num_prompt_tokens": 7 + number,
            "num_output_tokens": 3,
        }
        for number in range(3)
    ],
}

READERS_TO_CHECK: Configurations = {name: [{}] for name in (*TRACES, *PARQUET_TRACES)}

BUNDLE = {
    "attention_workers": 3,
    "slots": 4,
    "coefficients": "deepseek-v3-ascend-910c",
    "cycle_s": "10 us",
}

RETRIEVAL = {
    "passage_tokens": 5,
    "index": {"type": "flat", "num_vectors": 1_000_000, "dimensions": 768},
    "search": {"cores": 4, "memory": "8 GiB", "memory_bandwidth": "50 GB/s"},
}

CLIENTS_TO_CHECK: Configurations = {  # as a scenario file has them
    "afd": [
        BUNDLE,
        BUNDLE | {"batches": 1, "ffn_workers": 2, "static_graph": False},
        BUNDLE | {"batches": 3, "placement": "least_load", "max_model_len": 200},
        BUNDLE | {"gpu": "h100-sxm", "layers": 4, "joint_steps": True},
    ],
    "llm": [
        H100,
        H100 | {"scheduler": {"type": "static", "max_num_seqs": 8}},
        H100 | {"scheduler": {"type": "continuous", "order": "least_work_left"}},
        H100 | {"pipeline_parallel_size": 2},
        H100 | {"data_parallel_size": 2},
        H100 | {"async_scheduling": True},
        H100 | {"kv_cache": {"num_gpu_blocks_override": 60}},  # preempts
        H100 | {"admission": {"max_num_waiting": 5}},
        H100 | {"speculative_config": NGRAM},
        EXPERTS | {"data_parallel_size": 2, "enable_expert_parallel": True},
        H100 | {"role": "prefill"},
        H100 | {"role": "prefill", "kv_cache": {"num_gpu_blocks_override": 60}},
        H100 | {"role": "decode"},
        H100 | {"role": "decode", "kv_cache": {"num_gpu_blocks_override": 60}},  # preempts
        H100 | {"role": "decode", "async_scheduling": True},
    ],
    "application": [
        {},
        {"base_time": "5 ms"},
        {"base_time": {"type": "exponential", "mean": "100 ms"}},
    ],
    "image_encoder": [
        {"model": "qwen3.5-27b", "gpu": "l4"},
        {"model": "gemma-3-4b", "gpu": "l4", "max_batch_size": 2, "max_wait": "10 ms"},
        {"model": "kimi-k2.5", "gpu": "h100-sxm", "bandwidth": "1 GB/s"},
    ],
    "kv_retrieval": [
        {"bytes_per_token": "128 KiB", "levels": [NVME]},
        {"bytes_per_token": "128 KiB", "levels": [DRAM, NVME], "hits": "drawn"},
        {
            "bytes_per_token": "128 KiB",
            "levels": [DRAM | NVME, {"name": "a", "read_bandwidth": "1 GB/s", "hit_rate": 0.5}],
            "max_batch_size": 3,
            "device": {"name": "cpu0"},
        },
        {
            "bytes_per_token": "128 KiB",
            "levels": [{"name": "all", "read_bandwidth": "10 MB/s", "capacity": "1 GB"}],
            "hits": "stored",
            "eviction": "lfu",
        },
    ],
    "rag": [
        RETRIEVAL,
        RETRIEVAL | {"max_batch_size": 3, "max_wait": "10 ms", "num_documents": 2},
        RETRIEVAL
        | {
            "passage_tokens": {"type": "uniform", "low": 1, "high": 9},
            "embedder": {"model": "dpr", "gpu": "l4"},
            "reranker": {"model": "ms-marco-minilm-l6", "gpu": "l4"},
            "num_candidates": 20,
            "store": {"latency": "10 ms", "bandwidth": "1 MB/s"},
        },
    ],
    "sequential": [
        {"serves": ["preprocess", "rag"], "base_time": "100 ms", "num_workers": 3},
        {"serves": ["postprocess"], "time_per_token": "1 ms"},
        {"serves": ["tool_call"]},
        {
            "serves": ["preprocess"],
            "base_time": {"type": "lognormal", "mean": "100 ms", "std": "300 ms"},
            "time_per_token": {"type": "gamma", "mean": "1 ms", "std": "1 ms"},
            "num_workers": 2,
        },
    ],
}

CLIENTS_TO_CHECK["text"] = []  # whose stages name a task, in test_text_work.py

LAWS_TO_CHECK: Configurations = {
    "constant": [{"time": 0.5}],
    "empirical": [{"times": [0.1, 0.2, 7.0]}, {"times": [3.0]}],
    "exponential": [{"mean": 2.0}, {"mean": 1e-300}],
    "gamma": [
        {"mean": 2.0, "std": 1.0},
        {"mean": 1.0, "std": 100.0},  # nine draws of ten are below the smallest float
        {"mean": 1e9, "std": 1e3},
    ],
    "lognormal": [{"mean": 2.0, "std": 1.0}, {"mean": 1.0, "std": 100.0}],
    "uniform": [{"low": 0.0, "high": 1.0}],
}

ADMISSIONS_TO_CHECK: Configurations = {
    "limit": [
        {"max_requests": 4},
        {"max_requests": 4, "shares": {"chat": 0.5}, "max_waiting": 3},
        {"max_tokens": 900},
    ],
    "saturation": [{}, {"queue_depth": 1, "sheds_from": 1, "interval": 0.2}],
}
EVICTIONS_TO_CHECK: Configurations = {"fifo": [{}], "lfu": [{}], "lru": [{}]}

AUTOSCALERS_TO_CHECK: Configurations = {
    "queue_length": [{"target": 4.0}, {"target": 0.5, "counts": "waiting"}],
    "utilisation": [{}, {"target": 0.3, "of": "kv_cache"}],
    "slo_attainment": [{}, {"below": 0.5, "above": 0.9, "step": 3}],
    "schedule": [
        {"at": (0.0, 60.0), "clients": (0, 4)},
        {"at": (0.0, 60.0), "clients": (0, 4), "period": 86_400.0},
    ],
}

FAMILIES: list[tuple[Registry, Configurations]] = [
    (CLIENTS, CLIENTS_TO_CHECK),
    (ROUTERS, ROUTERS_TO_CHECK),
    (SCHEDULERS, SCHEDULERS_TO_CHECK),
    (PREDICTORS, PREDICTORS_TO_CHECK),
    (STAGES, STAGES_TO_CHECK),
    (TRACE_READERS, READERS_TO_CHECK),
    (DURATIONS, LAWS_TO_CHECK),
    (AUTOSCALERS, AUTOSCALERS_TO_CHECK),
    (ADMISSIONS, ADMISSIONS_TO_CHECK),
    (EVICTIONS, EVICTIONS_TO_CHECK),
]


ARRIVALS_TO_CHECK: Configurations = {
    "all_at_once": [{}],
    "bursty": [{"rate_on": 20.0, "on": 2.0, "off": 5.0}],
    "constant": [{"rate": 3.0}],
    "day": [{"peak": 20.0, "low": 2.0, "peak_at": 43_200.0}],
    "gamma": [{"rate": 5.0, "burstiness": 0.5}],
    "normal": [{"rate": 5.0, "cv": 0.3}],
    "poisson": [{"rate": 5.0}],
    "schedule": [{"at": (0.0, 10.0), "rates": (5.0, 20.0)}],
    "uniform": [{"rate": 5.0}],
}
LENGTHS_TO_CHECK: Configurations = {
    "fixed": [{"tokens": 7}],
    "geometric": [{"mean": 50.0}],
    "lognormal": [{"mean": 300.0, "std": 500.0}],
    "mean_median_p95": [{"mean": 300.0, "median": 200.0, "p95": 900.0}],
    "normal": [{"mean": 300.0, "std": 50.0}],
    "uniform": [{"low": 1, "high": 9}],
}
_SHORT = {"prompt": FixedLength(tokens=5), "output": UniformLength(low=1, high=9)}
SAMPLERS_TO_CHECK: Configurations = {
    "mix": [
        {"num_requests": 50, "classes": {"a": RequestClass(**_SHORT)}},
    ],
    "prefix_repetition": [
        {"num_requests": 50, "suffix": FixedLength(tokens=5), "output": FixedLength(tokens=5)}
        | {"num_prefixes": 3, "prefix_len": 40},
    ],
    "profile": [{"num_requests": 50}],
    "synthetic": [{"num_requests": 50, **_SHORT}],
}


def each(registry: Registry, configurations: Configurations, most: int = 99) -> list[Any]:
    """Return a factory of every configuration of every registered plugin.

    most: configurations of a plugin in every run of the tests; the rest is for `make test-deep`.
    """
    return [
        pytest.param(
            partial(registry[name], **parameters),
            id=f"{name}-{position}",
            marks=[pytest.mark.deep] if position >= most else [],
        )
        for name in registry
        for position, parameters in enumerate(configurations.get(name, []))
    ]


@pytest.mark.parametrize(
    ("registry", "configurations"), FAMILIES, ids=[registry.family for registry, _ in FAMILIES]
)
def test_every_registered_plugin_is_checked(registry, configurations):
    """Add a configuration for the new plugin above. (Other tests may register some of theirs.)"""
    ours = {name for name, cls in registry.items() if cls.__module__.startswith("mist_sim.")}
    assert set(configurations) >= ours


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param(kind, options, id=f"{kind}-{position}")
        for kind, configurations in CLIENTS_TO_CHECK.items()
        for position, options in enumerate(configurations)
    ],
)
def test_clients(kind, options):
    spec = CLIENT.part_type(kind).model_validate({"name": "client", "type": kind, **options})
    testing.check_client(lambda: next(iter(spec.clients("llama-3.1-8b"))))


@pytest.mark.parametrize("factory", each(ROUTERS, ROUTERS_TO_CHECK))
def test_routers(factory):
    testing.check_router(factory)


@pytest.mark.parametrize("factory", each(SCHEDULERS, SCHEDULERS_TO_CHECK, most=2))
def test_schedulers(factory):
    testing.check_scheduler(factory)


@pytest.mark.parametrize("factory", each(PREDICTORS, PREDICTORS_TO_CHECK))
def test_predictors(factory):
    testing.check_predictor(factory)


@pytest.mark.parametrize("name", list(STAGES))
def test_stages(name):
    testing.check_stage(STAGES[name])


@pytest.mark.parametrize("name", TRACES)
def test_trace_readers(name, tmp_path):
    path = tmp_path / "trace"
    path.write_text(TRACES[name])
    for beside, text in BESIDE.get(name, {}).items():
        (tmp_path / beside).write_text(text)
    testing.check_trace_reader(partial(TRACE_READERS[name], path=str(path)))


@pytest.mark.parametrize("name", PARQUET_TRACES)
def test_readers_of_parquet(name, tmp_path):
    path = tmp_path / "trace.parquet"
    parquet.write_table(Table.from_pylist(PARQUET_TRACES[name]), path)
    testing.check_trace_reader(partial(TRACE_READERS[name], path=str(path)))


@pytest.mark.parametrize("factory", each(DURATIONS, LAWS_TO_CHECK))
def test_duration_laws(factory):
    testing.check_duration_law(factory)


@pytest.mark.parametrize("factory", each(ARRIVALS, ARRIVALS_TO_CHECK))
def test_arrivals(factory):
    testing.check_arrivals(factory)


@pytest.mark.parametrize("factory", each(LENGTHS, LENGTHS_TO_CHECK))
def test_laws_of_lengths(factory):
    testing.check_length_law(factory)


@pytest.mark.parametrize("factory", each(SAMPLERS, SAMPLERS_TO_CHECK))
def test_samplers(factory):
    testing.check_sampler(factory)


def test_every_law_of_a_workload_is_checked():
    markers = {"trace", "closed_loop"}  # which have no times of their own
    assert set(ARRIVALS_TO_CHECK) == set(ARRIVALS) - markers
    assert set(LENGTHS_TO_CHECK) == set(LENGTHS)
    assert set(SAMPLERS_TO_CHECK) == set(SAMPLERS)


@pytest.mark.parametrize("factory", each(ADMISSIONS, ADMISSIONS_TO_CHECK))
def test_admissions(factory):
    testing.check_admission(factory)


@pytest.mark.parametrize("factory", each(EVICTIONS, EVICTIONS_TO_CHECK))
def test_evictions(factory):
    testing.check_eviction(factory)


@pytest.mark.parametrize("factory", each(AUTOSCALERS, AUTOSCALERS_TO_CHECK))
def test_autoscalers(factory):
    testing.check_autoscaler(factory)


def test_a_worker_with_a_function_that_draws():
    def service_time(stage, rng):
        return rng.exponential(0.01 + 1e-4 * stage.num_tokens)

    testing.check_client(
        lambda: SequentialClient(
            "w", serves=["preprocess"], num_workers=2, service_time=service_time
        )
    )
