"""A log of one's own in `mist trace`: the options of its form, as in a scenario."""

import pytest

OWN = "ts_ms,prompt_toks,completion_toks\n" + "".join(
    f"{500 * k},{100 + k},{20 + k}\n" for k in range(50)
)
OPTIONS = [
    "--format=csv",
    "--set=time_column=ts_ms",
    "--set=time_unit=ms",
    "--set=prompt_column=prompt_toks",
    "--set=output_column=completion_toks",
]


@pytest.fixture
def log(tmp_path):
    (tmp_path / "own.csv").write_text(OWN, "utf-8")
    return "own.csv"


def test_columns_of_ones_own_are_named_as_in_a_scenario(mist, log):
    code, out, _ = mist("trace", "inspect", log, *OPTIONS)
    assert code == 0
    assert " 2.00  /s\n" in out


def test_such_log_is_converted_sampled_and_learnt_from(mist, log, tmp_path):
    for words in (["convert"], ["sample", "--share=1"], ["synth", "--requests=5"]):
        verb, *more = words
        code, _, err = mist("trace", verb, log, "--to=vidur", "--out=out.csv", *more, *OPTIONS)
        assert code == 0, err
        rows = (tmp_path / "out.csv").read_text("utf-8").splitlines()
        assert len(rows) == 1 + (5 if verb == "synth" else 50)
        (tmp_path / "out.csv").unlink()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--format csv --set time_column=NAME --set prompt_column=NAME"),
        (["--format=csv"], "say what yours are called with time_column, prompt_column and"),
        (["--format=csv", "--set=timecolumn=x"], "--set: timecolumn: unknown key for type csv"),
        (["--format=csv", "--set=time_unit=h"], "--set: time_unit: must be"),
        (["--format=csv", "--set=time_column"], "--set time_column: must be KEY=VALUE"),
        (["--format=cvs", "--set=time_column=x"], "'cvs'"),
    ],
)
def test_bad_input_is_one_message(mist, log, words, said):
    code, out, err = mist("trace", "inspect", log, *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert said in err


@pytest.mark.parametrize(("gap", "said"), [(1, "1.00  /s"), (3600, "1.00  /h"), (90_000, "/day")])
def test_a_small_rate_is_not_shown_as_zero(mist, tmp_path, gap, said):
    path = tmp_path / "log.csv"
    rows = "".join(f"{number * gap},9,8\n" for number in range(3))
    path.write_text("timestamp,prompt_tokens,output_tokens\n" + rows)
    assert said in mist("trace", "inspect", "log.csv")[1]
