"""Whether mist-sim schedules as vLLM does: the same random workloads through both, to the bit.

`python -m conformance --help`. Only `vllm_side` needs vLLM, and nothing else of this repository, so
it can run in an environment of its own (`--python`).

- `workloads`: random workloads, by class, of the `jobs` that it draws.
- `vllm_side`: a workload through the scheduler and the KV manager of an installed vLLM.
- `mist_side`: the same through this package.
- `logs`: what vLLM did, in few bytes, for tests where it is not installed.
- `report`: compares and counts.
"""
