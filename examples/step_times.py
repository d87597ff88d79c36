"""Times engine steps for `predictor: {type: program, command: python examples/step_times.py}`.

Reads lines of JSON and answers each with a line: first a greeting that says what is timed, then
batches. Here a step reads all weights once and each cached token once, on one H100.
"""

import json
import sys

BANDWIDTH = 0.8 * 3.35e12  # bytes/s
FLOPS = 0.7 * 989e12


def seconds(model, batch):
    chunks, decodes = batch["chunks"], batch["num_decodes"]
    num_tokens = sum(new for new, _ in chunks) + decodes
    num_keys = sum(new + context for new, context in chunks) + batch["context_sum"]
    width = model["hidden_size"]
    params = model["num_layers"] * (2 * width * width + 3 * width * model["intermediate_size"])
    kv_bytes = 4 * model["num_layers"] * model["num_key_value_heads"] * model["head_dim"]
    compute = 2 * params * num_tokens / FLOPS
    return max(compute, 2 * params / BANDWIDTH) + num_keys * kv_bytes / BANDWIDTH


greeting = json.loads(sys.stdin.readline())
if greeting["cluster"]["tensor_parallel_size"] != 1:
    sys.exit("one GPU only")
print(json.dumps({"protocol": 1, "version": "1"}), flush=True)
for line in sys.stdin:
    times = [seconds(greeting["model"], batch) for batch in json.loads(line)["batches"]]
    print(json.dumps({"seconds": times}), flush=True)
