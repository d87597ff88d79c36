"""Print the length profile of a trace: python -m tools.length_profile FILE [SOURCE].

FILE is in Azure's form; SOURCE says where it comes from.
"""

from __future__ import annotations

import json
import sys

from mist_sim.traces.profiles import compute_profile
from mist_sim.traces.readers.tabular_reader import AzureReader

SOURCE = (
    "Azure Public Dataset, AzureLLMInferenceDataset2023, CC-BY 4.0; "
    "Patel et al., Splitwise: Efficient Generative LLM Inference Using Phase Splitting, ISCA 2024"
)
METHOD = (
    "prompt: quantiles of prompt tokens at prompt_levels; output: quantiles of output tokens at "
    "output_levels for each of equally large parts of the requests sorted by prompt tokens; "
    "rounded to whole tokens (mist_sim.traces.profiles.compute_profile)"
)


def main(path: str, source: str = SOURCE) -> None:
    """Read the trace at `path` and print its profile as JSON."""
    rows = AzureReader(path=path).rows()
    lengths = ((row.num_prompt_tokens, row.num_output_tokens) for row in rows)
    profile = {"source": source, "method": METHOD} | compute_profile(lengths)
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in profile.items())
    sys.stdout.write("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python -m tools.length_profile TRACE.csv [SOURCE] > PROFILE.json")
    main(*sys.argv[1:])
