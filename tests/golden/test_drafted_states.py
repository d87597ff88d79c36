"""What vLLM 0.33.0 did with drafts where states are kept for a prefix cache.

All drafts are accepted, so that the first request ends a step before a plan made ahead knows it:
that step's three tokens of it leave the prompt one block of 32 tokens, and not two.
"""

import pytest

from conformance.mist_side import rules_of, run
from conformance.workloads import STEP, workload

SHORT, LONG, NUM_DRAFTS = (20, 7), (200, 4), 2  # tokens of a prompt and its answer
TOKEN_STEPS = {
    False: [[1, 2, 2, 2, 3, 3, 3], [8, 9, 9, 9]],
    True: [[1, 2, 2, 2, 3, 3, 3], [9, 10, 10, 10]],
}
"""The steps that gave the tokens of each answer, by `async_scheduling`."""

STEPS = {
    False: ["16 16", "4 16", "3 16", "3 16", " 32", " 32", " 32", " 32", " 8", " 3"],
    True: [
        *("16 16", "4 16", "3 16", "3 16", "3 16", " 32", " 32", " 32", " 16", " 8", " 3", " 3")
    ],
}
"""The tokens of both requests in each step."""


def end_times(steps: list[str]) -> list[float]:
    """Return when the steps end, by the law of the harness."""
    base, per_token, per_context = STEP
    ends, time, computed = [], 0.0, [0, 0]
    for step in steps:
        tokens = [int(number or 0) for number in step.split(" ")]
        context = sum(done for done, new in zip(computed, tokens, strict=True) if new)
        time += base + per_token * sum(tokens) + per_context * context
        computed = [done + new for done, new in zip(computed, tokens, strict=True)]
        ends.append(time)
    return ends


@pytest.mark.parametrize("method", ["ngram", "eagle"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_lost_step_of_drafts_takes_tokens_from_prompt(method, asynchronous):
    path = [1 + NUM_DRAFTS] * 9
    jobs = [
        {"arrival": 0.0, "prompt": prompt, "answer": answer, "priority": 0, "content": []}
        | {"path": path}
        for prompt, answer in (SHORT, LONG)
    ]
    spec = workload("drafted states, n-grams, ample", 0) | {
        "jobs": jobs,
        "block_size": 16,
        "max_num_batched_tokens": 32,
        "max_num_seqs": 8,
        "num_gpu_blocks": 80,
        "drafts": [method, NUM_DRAFTS],
        "acceptance_rate": 1.0,
    }
    found = run(spec, [0.0, 0.0], asynchronous=asynchronous, rules=rules_of("0.33.0"))
    ends = end_times(STEPS[asynchronous])
    expected = [[ends[step] for step in steps] for steps in TOKEN_STEPS[asynchronous]]
    for times, theirs in zip(found["token_times"], expected, strict=True):
        assert times == pytest.approx(theirs, rel=1e-9)
