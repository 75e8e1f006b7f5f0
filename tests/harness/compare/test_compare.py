import pytest

from benchmarks.errors import UsageError
from harness.compare import Terms, compare, compare_runs, differences, written
from tests.harness.runs import made, stored


def words(base, head):
    comparison = compare_runs(base, head)
    return {v.metric: v.word for v in comparison.verdicts}, comparison.exit_status


FIVE = (1.000, 1.001, 0.999, 1.002, 0.998)
EXACT = ("peak_memory_bytes", "loss", "gradient_norm", "loss_after_3_steps", "collectives.dp.all_reduce")


def test_one_run_a_side_tells_exact_metrics_and_no_times():
    found, status = words([[made()]], [[made(seconds=2.0)]])
    assert found == {**dict.fromkeys(EXACT, "stable"), "step_seconds": "inconclusive"} and status == 2


def test_five_runs_a_side_tell_times():
    base = [[made(seconds=s)] for s in FIVE]
    assert words(base, [[made(seconds=s)] for s in FIVE]) == ({**dict.fromkeys(EXACT, "stable"), "step_seconds": "stable"}, 0)
    found, status = words(base, [[made(seconds=1.1 * s)] for s in FIVE])
    assert found["step_seconds"] == "regressed" and status == 1
    found, status = words(base, [[made(seconds=0.9 * s)] for s in FIVE])
    assert found["step_seconds"] == "improved" and status == 0


@pytest.mark.parametrize(
    ("change", "metric", "word"),
    [
        ({"peak": 1001}, "peak_memory_bytes", "regressed"),
        ({"peak": 999}, "peak_memory_bytes", "improved"),
        ({"peak": 1000 * (1 + 1e-6)}, "peak_memory_bytes", "regressed"),
        ({"loss": 5.0 * (1 + 1e-6)}, "loss", "regressed"),
        ({"loss": 5.0 * (1 - 1e-6)}, "loss", "improved"),
        ({"norm": 4.0 + 1e-12}, "gradient_norm", "regressed"),
        ({"last": 3.0 * (1 + 1e-6)}, "loss_after_3_steps", "regressed"),
        ({"calls": 4}, "collectives.dp.all_reduce", "regressed"),
        ({"calls": 0}, "collectives.dp.all_reduce", "improved"),
    ],
)
def test_exact_metrics_fail_in_both_directions(change, metric, word):
    found, status = words([[made()]], [[made(**change)]])
    assert found[metric] == word and status == 1


def test_exact_metrics_that_vary_are_held_to_their_own_range():
    base = [[made(peak=peak)] for peak in (1000, 1010)]
    assert words(base, [[made(peak=1005)]])[0]["peak_memory_bytes"] == "stable"
    assert words(base, [[made(peak=1020)]])[0]["peak_memory_bytes"] == "stable"
    assert words(base, [[made(peak=1021)]])[0]["peak_memory_bytes"] == "regressed"
    assert words(base, [[made(peak=989)]])[0]["peak_memory_bytes"] == "improved"


def test_a_figure_that_varies_within_the_head_is_not_told_from_one_run_of_the_base():
    head = [[made(loss=loss)] for loss in (5.1, 5.2)]
    assert words([[made()]], head)[0]["loss"] == "inconclusive"
    assert words([[made()]] * 3, head)[0]["loss"] == "regressed"


def test_losses_after_other_numbers_of_steps_do_not_compare():
    found, _ = words([[made()]], [[made(steps=4, last=2.5)]])
    assert not [metric for metric in found if metric.startswith("loss_after")] and found["loss"] == "stable"


def test_two_environments_of_one_machine():
    terms = Terms(environments_may_differ=True, differences="torch 2.12 against 2.13")
    comparison = compare_runs([[made()]], [[made(environment="two", loss=5.1, peak=1001)]], terms)
    found = {verdict.metric: verdict.word for verdict in comparison.verdicts}
    assert found["peak_memory_bytes"] == "regressed" and "loss" not in found
    why = compare_runs([[made()]], [[made(environment="two")]], Terms(differences="torch 2.12 against 2.13")).verdicts[0].why
    assert why == "machine or software differ: torch 2.12 against 2.13"


def test_in_what_environments_differ():
    one = {"id": "1", "host": "a", "site": {"frameworks": {"torch": "2.12", "deepspeed": "0.19"}}, "driver": "570"}
    other = {"id": "2", "host": "b", "site": {"frameworks": {"torch": "2.13"}}, "driver": "570"}
    assert differences(one, other) == "torch 2.12 against 2.13, deepspeed 0.19 against none"
    assert differences(one, one) == ""


def test_a_calibrated_spread_asks_for_a_larger_change():
    base = [[made(seconds=s)] for s in FIVE]
    head = [[made(seconds=1.05 * s)] for s in FIVE]
    assert words(base, head)[0]["step_seconds"] == "regressed"
    comparison = compare_runs(base, head, Terms(spreads={made().cell_id: 0.03}))
    assert {v.metric: v.word for v in comparison.verdicts}["step_seconds"] == "inconclusive"


@pytest.mark.parametrize(
    ("base", "head", "word", "status"),
    [
        ([made()], [made(environment="two")], "not comparable", 2),
        ([made()], [], "not comparable", 2),
        ([], [made()], "missing baseline", 2),
        ([made(status="oom")], [made()], "missing baseline", 2),
        ([made()], [made(status="crashed")], "errored", 1),
        ([made(status="timeout")], [made(status="crashed")], "errored", 1),
    ],
)
def test_cells_without_a_partner(base, head, word, status):
    assert words([base], [head]) == ({"": word}, status)


def test_cells_that_fail_alike_are_counted():
    comparison = compare_runs([[made(status="skipped")]], [[made(status="skipped")]])
    assert comparison.verdicts == () and comparison.without_figures == {"skipped": 1} and comparison.exit_status == 2


def test_runs_that_are_not_interleaved_are_noted():
    base = [[made(time=f"2025-01-01T00:0{i}:00Z")] for i in (1, 2)]
    after = [[made(time=f"2025-01-01T00:0{i}:00Z")] for i in (3, 4)]
    between = [[made(time=f"2025-01-01T00:0{i}:30Z")] for i in (1, 2)]
    assert "not interleaved" in compare_runs(base, after).notes[0]
    assert compare_runs(base, between).notes == ()


def test_text_tells_changes_one_by_one_and_counts_the_rest():
    text = written(compare_runs([[made(), made("tp=2:hand")]], [[made(peak=2000), made("tp=2:hand")]]), "base", "head")
    assert "regressed (1)" in text and "1000 bytes -> 2000 bytes" in text
    assert "1 s -> 1 s (+0.0%); 1 against 1 run: give 5 or more on each side" in text
    assert "verdicts: 9 stable, 2 inconclusive, 1 regressed" in text and text.endswith("exact metrics")


def test_folders_of_runs(tmp_path, capsys):
    for i, seconds in enumerate(FIVE):
        stored(tmp_path / "base" / str(i), made(seconds=seconds))
        stored(tmp_path / "head" / str(i), made(seconds=1.2 * seconds))
    assert compare(tmp_path / "base", tmp_path / "head") == 1
    assert "regressed (1)" in capsys.readouterr().out
    assert compare(tmp_path / "base" / "0", tmp_path / "head" / "0") == 2


def test_bad_folders(tmp_path):
    run = stored(tmp_path / "run", made())
    (tmp_path / "nothing").mkdir()
    for other in ("absent", "nothing"):
        with pytest.raises(UsageError, match="give"):
            compare(run, tmp_path / other)


def test_a_line_that_cannot_be_read_is_named(tmp_path):
    run = stored(tmp_path / "run", made(), made("tp=2:hand"))
    whole = (run / "records.jsonl").read_text()
    for lines, said in (
        (whole[:-40], "line 2 of .* is cut off"),
        (whole.replace('{"schema":1', '{"schema":2', 1), "line 1 of .* is of schema 2"),
        (whole.replace('"status":"ok"', '"status":"fine"', 1), "line 1 of .* is no record"),
    ):
        (run / "records.jsonl").write_text(lines)
        with pytest.raises(UsageError, match=said.replace(" is of schema", ".* is of schema")):
            compare(run, run)


def test_markdown_tells_what_is_not_stable_and_cannot_be_broken(tmp_path):
    base, head = (
        stored(tmp_path / "base", made()),
        stored(tmp_path / "head", made(status="crashed", reason="a | b <c> @you\n*d*")),
    )
    assert compare(base, head, summary=tmp_path / "summary.md") == 1
    text = (tmp_path / "summary.md").read_text()
    assert text.startswith("### hpbench: there are regressions") and "1 errored" in text
    row = next(line for line in text.splitlines() if "errored" in line and line.startswith("|"))
    assert "a \\| b &lt;c>" in row and "\\*d\\*" in row and "@you" not in row and row.count(" | ") == 4
