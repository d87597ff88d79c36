"""From timed searches to coefficients: what was put in comes out; files, and faiss itself."""

from dataclasses import replace

import pytest

from mist_sim import ScenarioError
from mist_sim.calibration import rag as grid
from mist_sim.calibration.rag import (
    calibrate_rag,
    coefficients_text,
    fit_searches,
    index_of,
    notes_of,
    read_searches,
    searches_text,
)
from mist_sim.hardware.vector_search import load_coefficients
from mist_sim.hardware.vector_search.coefficients import Rates
from tests.commands import exit_code

TRUE = {
    "flat": Rates(batches=1e-5, queries=2e-6, scanned_values=1e-10),
    "ivf_pq": Rates(batches=2e-6, results=1e-7, vectors=2e-9, lists=1e-6, code_bytes=4e-10),
    "hnsw": Rates(queries=3e-6, distances=4e-8, expansions=2e-7),
}
NOTES = notes_of("faiss 1", 'a "machine"', "2026-11-23")


def timed(exponent: float = 0.5):
    """The searches of the grid as these rates would take them; two cores are 2^exponent."""
    for index in grid.indexes():
        for search in grid.searches(index):
            each = TRUE[search.index].query_seconds(index_of(search), search.num_results)
            seconds = TRUE[search.index].batches + search.batch_size * each
            work = index_of(search).work()
            yield replace(
                search,
                seconds=seconds / search.num_threads**exponent,
                num_distances=work.codes or work.distances or work.vectors,
            )


def test_rates_are_found_again():
    found = fit_searches(list(timed()), "faiss", "here", "today")
    assert max(found.coefficients.errors.values()) < 0.01  # small graphs are met whole
    assert found.coefficients.core_exponent == pytest.approx(0.5)
    ivf, flat = found.coefficients.ivf_pq, found.coefficients.flat
    assert ivf.list_imbalance == pytest.approx(1.0)
    assert ivf.code_bytes == pytest.approx(4e-10, rel=0.02)
    assert flat.scanned_values == pytest.approx(1e-10, rel=0.02)
    assert found.coefficients.hnsw.ef_exponent == pytest.approx(1.0, abs=0.02)


def test_what_is_held_out_does_not_move_fit():
    searches = list(timed())
    other = [replace(s, seconds=9 * s.seconds) if s.is_held_out else s for s in searches]
    one, two = (fit_searches(each, "", "", "").coefficients for each in (searches, other))
    assert one.flat == two.flat
    assert one.hnsw == two.hnsw
    assert two.errors["ivf_pq"] == pytest.approx(8 / 9, rel=0.01)


def test_files_there_and_back(tmp_path):
    path, out = tmp_path / "searches.csv", tmp_path / "own.toml"
    searches = [replace(s, seconds=float(f"{s.seconds:.4g}")) for s in timed()]
    path.write_text(searches_text(searches, NOTES), encoding="utf-8")
    again = read_searches(path)[0]
    assert [s.seconds for s in again] == [s.seconds for s in searches]
    found = calibrate_rag(path)
    assert found.coefficients.machine == "a  machine"
    out.write_text(coefficients_text(found), encoding="utf-8")
    ours = load_coefficients(str(out))
    assert ours.date == "2026-11-23"
    assert ours.ivf_pq.code_bytes == pytest.approx(found.coefficients.ivf_pq.code_bytes, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda text: text.replace("# machine", "# mach"), "missing: machine"),
        (lambda text: text.replace("batch_size,", "size,"), "the columns must be index, num_vec"),
        (lambda text: text.replace(",False\n", ",0\n", 1), ":5: is_held_out must be of type bool"),
        (lambda text: text.replace("flat,", "flt,"), "rows of flat to fit"),
        (lambda text: text.replace(",True\n", ",False\n"), "one held out, got"),
    ],
)
def test_wrong_files_are_refused(tmp_path, change, rule):
    path = tmp_path / "searches.csv"
    text = change(searches_text(list(timed()), NOTES))
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ScenarioError, match=rule):
        calibrate_rag(path)


def test_the_verb_times_fits_and_writes(tmp_path, monkeypatch, capsys):
    """On indexes of a few hundred vectors, with the real faiss."""
    pytest.importorskip("faiss")
    small = [
        replace(index, num_vectors=600, dimensions=16, num_lists=index.num_lists and 8, pq_bytes=4)
        if index.index == "ivf_pq"
        else replace(index, num_vectors=500, dimensions=16)
        for index in grid.indexes()
    ]
    chosen = [next(i for i in small if i.index == kind) for kind in TRUE]
    both = [replace(i, is_held_out=held) for i in chosen for held in (False, True)]
    monkeypatch.setattr(grid, "indexes", lambda: iter(both))
    monkeypatch.setattr(grid, "_efforts", efforts)
    monkeypatch.setattr("mist_sim.calibration.rag._ROUND_SECONDS", 1e-4)
    monkeypatch.setattr("mist_sim.calibration.rag._ROUNDS", 1)
    csv, out = tmp_path / "runs.csv", tmp_path / "own.toml"
    assert exit_code("calibrate", "rag", str(csv), "--measure", "--out", str(out)) == 0
    searches = read_searches(csv)[0]
    assert len(searches) == 2 * (6 + 2 * 6 + 2 * 6)
    for search in searches:
        index = index_of(search)
        tables = 4 * search.num_lists * search.pq_bytes * 256
        assert index.num_bytes - tables == pytest.approx(search.index_bytes, rel=0.05)
    assert "median error" in capsys.readouterr().out
    assert load_coefficients(str(out)).software.startswith("faiss-cpu")


def efforts(index):
    if index.index == "flat":
        return [index]
    if index.index == "hnsw":
        return [replace(index, ef_search=ef) for ef in (4, 16)]
    return [replace(index, num_probes=probes) for probes in (1, 4)]
