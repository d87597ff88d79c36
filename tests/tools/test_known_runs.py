"""Published runs: what each row sums up, and what is told where something is missing."""

import numpy as np
import pandas as pd
import pytest

import mist_sim as mist
from mist_sim.errors import ScenarioError
from tools.validation import known
from tools.validation.__main__ import main
from tools.validation.points import points_row


def test_nothing_is_fitted_on_single_prompts_and_tokens(tmp_path):
    """The efficiencies of both cards are from other tables, which the catalog names."""
    assert [run.fitted for run in known._splitwise(tmp_path / "rows.csv")] == ["", ""]
    for name in known.SPLITWISE_GPUS:
        assert "aiconfigurator-core" in mist.load_gpu(name).sources["prefill.mfu"]


def test_a_row_of_many_points_has_mean_and_median_of_their_errors():
    row = points_row("TTFT", np.array([-0.4, 0.1, 0.3, -0.2]))
    assert (row.error, row.spread, row.middle) == pytest.approx((-0.05, 0.25, 0.25))
    row = points_row("TTFT", np.array([0.1, 0.1, -0.7]))
    assert (row.error, row.spread, row.middle) == pytest.approx((0.1, 0.3, 0.1))


def test_points_with_a_queue_for_memory_are_apart():
    points = {"tp_size": [2, 2, 8], "silicon_ttft_ms": [900.0, 4100.0, 80.0]}
    points |= {"ttft_error": [10.0, -50.0, 2.0], "tpot_error": [1.0, 3.0, -2.0]}
    rows = {row.metric: row.spread for row in known._closed_loop_errors(pd.DataFrame(points))}
    assert rows == pytest.approx(
        {
            "TTFT, mean of a point": 0.06,
            "TTFT, TP 2": 0.1,
            "TTFT, TP 8": 0.02,
            "TTFT, points above 4 s": 0.5,
            "TPOT, mean of a point": 0.02,
            "TPOT, TP 2": 0.02,
            "TPOT, TP 8": 0.02,
        }
    )


def test_runs_whose_package_is_missing_are_told(tmp_path, monkeypatch, capsys):
    header = "isl,osl,concurrency,tp_size,silicon_ttft_ms,silicon_tpot_ms"
    points = ["1024,8,2,2,60,12", "1024,8,2,8,50,9"] * 2  # a point for each half
    (tmp_path / known.CLOSED_LOOP).write_text("\n".join([header, *points]) + "\n")
    monkeypatch.setattr(known, "find_spec", lambda name: None)
    main(["--measurements", str(tmp_path)])
    shown = capsys.readouterr().out
    assert shown.count("skipped: needs plugins/silicon") == 2
    assert "TPOT, mean of a point" in shown


def test_a_folder_without_published_runs_is_refused(tmp_path):
    with pytest.raises(ScenarioError, match="holds none of .* --measurements"):
        main(["--measurements", str(tmp_path)])
