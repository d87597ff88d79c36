"""What if an accelerator had other figures? Change one at a time, and serve the same requests.

python what_if_gpu.py [GPU]
"""

import sys
from dataclasses import replace

import mist_sim as mist

try:
    gpu = mist.load_gpu(sys.argv[1] if len(sys.argv) > 1 else "b200")
except mist.ScenarioError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
what_ifs = {
    "as it is": gpu,
    "memory bandwidth x 1.5": replace(gpu, memory_bandwidth=1.5 * gpu.memory_bandwidth),
    "compute x 1.5": replace(gpu, flops={kind: 1.5 * rate for kind, rate in gpu.flops.items()}),
    "memory x 1.5": replace(gpu, memory=1.5 * gpu.memory),
}
requests = mist.Workload.from_lists(
    [2_000] * 300, [300] * 300, arrivals=mist.PoissonArrivals(rate=12.0)
)
for what, changed in what_ifs.items():
    try:
        client = mist.llm_client("llm", model="qwen3-32b", gpu=changed)
    except mist.ScenarioError as error:  # such as a model that does not fit
        print(f"{gpu.name}, {what}: {error}", file=sys.stderr)
        sys.exit(2)
    summary = mist.Simulation(clients=[client], workload=requests, seed=1).run().summary
    print(
        f"{gpu.name}, {what:23} TTFT {summary['mean_ttft_ms']:7,.0f} ms,"
        f" TPOT {summary['mean_tpot_ms']:5.1f} ms, {summary['output_throughput']:5,.0f} tokens/s"
    )
