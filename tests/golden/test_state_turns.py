"""What vLLM 0.33.0 did with a long prompt whose pieces leave tokens of some steps over.

With a step of 48 tokens and blocks of 64, every second piece ends at a block, and two short
prompts come in beside it. In the steps between it takes all tokens, and their answers wait.
"""

import pytest

from conformance.mist_side import rules_of, run
from conformance.workloads import workload

LONG, SHORT = 300, 10  # tokens of a prompt
TOKEN_STEPS = ([8, 9, 10], [1, 3, 5, *range(7, 24)], [1, 3, 5, *range(7, 24)])
"""The steps that gave the tokens of each answer; equal with asynchronous scheduling."""


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_prompt_takes_its_piece_before_younger_decodes(asynchronous):
    jobs = [
        {"arrival": 0.0, "prompt": prompt, "answer": answer, "priority": 0, "content": []}
        for prompt, answer in ((LONG, 3), (SHORT, 20), (SHORT, 20))
    ]
    spec = workload("aligned states, plain, ample", 0) | {
        "jobs": jobs,
        "block_size": 64,
        "max_num_batched_tokens": 48,
        "max_num_seqs": 8,
        "num_gpu_blocks": 80,
    }
    found = run(spec, [0.0] * len(jobs), asynchronous=asynchronous, rules=rules_of("0.33.0"))
    steps = [{number: new for number, new, _ in rows} for rows, _, _ in found["steps"]]
    assert steps[:4] == [{0: 48}, {0: 16, 1: SHORT, 2: SHORT}, {0: 48}, {0: 16, 1: 1, 2: 1}]
    ends = sorted({time for times in found["token_times"] for time in times})
    numbers = sorted({number for steps in TOKEN_STEPS for number in steps})
    of_end = dict(zip(ends, numbers, strict=True))
    assert [[of_end[time] for time in times] for times in found["token_times"]] == [*TOKEN_STEPS]
