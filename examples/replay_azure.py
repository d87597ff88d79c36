"""Replay an Azure trace at several speeds on four groups of H100s.

    python replay_azure.py AzureLLMInferenceTrace_conv.csv

The traces are in the Azure Public Dataset: https://github.com/Azure/AzurePublicDataset
"""

import sys

import mist_sim as mist

if len(sys.argv) != 2:
    sys.exit(__doc__)
trace = mist.AzureReader(path=sys.argv[1])
for speedup in (1.0, 2.0, 4.0):
    names = [f"llm-{i}" for i in range(4)]
    result = mist.Simulation(
        clients=[mist.llm_client(n, model="llama-3.1-70b", tensor_parallel_size=4) for n in names],
        workload=mist.Workload(trace, mist.TraceArrivals(speedup=speedup)),
        router=mist.LeastOutstandingRouter(),
        slo=mist.Slo(ttft=2.0, tpot=0.1),
    ).run()
    summary = result.summary
    print(
        f"speed x {speedup:g}: {summary['request_throughput']:.2f} requests/s,"
        f" p99 TTFT {summary['p99_ttft_ms']:,.0f} ms, p99 TPOT {summary['p99_tpot_ms']:.1f} ms,"
        f" {100 * summary['good_request_fraction']:.1f} % within the SLO"
    )
