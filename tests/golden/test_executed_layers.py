"""The roofline beside layers that ran on an H100 (docs/background/calibration.md)."""

import numpy as np
import pytest

from benchmarks.executed_layers import TABLES, by_kind

LIMITS = {  # errors on the page, rounded up
    "decodes": 0.04,
    "prompts below 1,024 tokens": 0.07,
    "longer prompts, without": 0.06,
    "longer prompts, with a context": 0.17,
    "both": 0.11,
}


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_mean_errors_by_class_of_step(path):
    found = by_kind(path)
    assert sum(map(len, found.values())) == 161
    for kind, ratio in found.items():
        assert np.abs(ratio - 1).mean() < LIMITS[kind], kind


def test_both_tables_are_there():
    assert [path.stem for path in TABLES] == [
        "llama-3.1-70b-tp4-h100-sxm-layers",
        "llama-3.1-8b-h100-sxm-layers",
    ]
