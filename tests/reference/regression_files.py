"""A small regression file for tests, made from plain numbers."""

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any


def regression_content(**changes: Any) -> dict[str, Any]:
    """Return the content of a file for llama-3.1-8b on one H100."""
    tokens, contexts = [1, 16, 256, 2048, 8192], [1, 128, 2048, 9000]
    decodes, means = [1, 3, 8, 64, 300], [0, 100, 2000, 20_000]
    return {
        "format": "mist-sim regression",
        "version": 1,
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "tensor_parallel_size": 1,
        "stages": {
            "prefill": {
                "tokens": tokens,
                "contexts": contexts,
                "seconds": [[0.007 + t * (2e-5 + c * 1e-9) for c in contexts] for t in tokens],
                "measured_contexts": [9000, 9000, 9000, 9000, 2048],
            },
            "decode": {
                "tokens": decodes,
                "contexts": means,
                "seconds": [[0.006 + n * (1e-5 + m * 3e-8) for m in means] for n in decodes],
                "measured_contexts": [20_000, 20_000, 20_000, 20_000, 2_000],
            },
        },
        **changes,
    }


@cache
def regression_file(slower: float = 1.0) -> str:
    """Return the path of a file that lasts as long as the tests; its prompts take longer."""
    content = regression_content()
    rows = content["stages"]["prefill"]["seconds"]
    content["stages"]["prefill"]["seconds"] = [[slower * time for time in row] for row in rows]
    return written(Path(tempfile.mkdtemp(prefix="mist-learned-")) / "times.json", **content)


def written(path: Any, **changes: Any) -> str:
    """Write the content into a file, and return its path."""
    path.write_text(json.dumps(regression_content(**changes)), encoding="utf-8")
    return str(path)
