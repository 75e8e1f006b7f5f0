"""Pipelines of several stages on a process: where stages lie, in which order they run, what that keeps, what is refused."""

import hashlib
from pathlib import Path

import pytest

from benchmarks import models
from benchmarks.cell import Cell
from benchmarks.compose import illegal, knobs
from benchmarks.contract import SPLITS_BACKWARD, TIED_ACROSS_STAGES
from benchmarks.errors import UsageError
from benchmarks.pipeline_parallel._schedule_file import read
from benchmarks.pipeline_parallel._several_stages import fullest
from benchmarks.registry import names
from benchmarks.site import Site
from benchmarks.stages import spread
from benchmarks.strategies import strategies

CPU = Site(kind="cpu", count=2)
SCHEDULES = Path(__file__).parents[3] / "configs" / "schedules"


def cell(layout: str, microbatches: int = 8, model: str = "llama-tiny[blocks=6]") -> Cell:
    return Cell(model=model, layout=layout, batch={"global": 2 * microbatches, "microbatches": microbatches})


def pipeline(layout: str):
    return strategies(cell(layout).layout)["pp"]


def actions(layout: str, microbatches: int, process: int) -> str:
    """What a process does, told apart by its own stages: F0 is a forward of its first stage."""
    made = cell(layout, microbatches)
    held = pipeline(layout).placement(made)[process]
    return " ".join(f"{kind}{held.index(stage)}" for stage, kind in pipeline(layout).order(made)[process])


@pytest.mark.parametrize(
    "layout, placement",
    [
        ("pp=2:gpipe", [[0], [1]]),
        ("pp=3:1f1b", [[0], [1], [2]]),
        ("pp=2:interleaved", [[0, 2], [1, 3]]),
        ("pp=2:interleaved[stages_each=3]", [[0, 2, 4], [1, 3, 5]]),
        ("pp=4:looped-bfs", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("pp=2:interleaved-zero-bubble", [[0, 2], [1, 3]]),
        ("pp=2:zbv", [[0, 3], [1, 2]]),
        ("pp=4:dualpipev", [[0, 7], [1, 6], [2, 5], [3, 4]]),
        ("pp=2:csv", [[0], [1]]),
    ],
)
def test_where_stages_lie(layout: str, placement: list[list[int]]):
    assert [list(held) for held in pipeline(layout).placement(cell(layout))] == placement


def test_the_ends_of_a_v_are_on_one_process():
    gpt2, made = models.load("gpt2-tiny"), cell("pp=2:zbv", model="gpt2-tiny")
    zbv = pipeline("pp=2:zbv")
    assert TIED_ACROSS_STAGES in zbv.traits(made, gpt2)
    units = spread(zbv, gpt2, made)
    first = [unit for stage in zbv.placement(made)[0] for unit in units[stage]]
    assert first[0] == "embedding" and first[-1] == "head"


# Worked out by hand from the papers, for two processes with two stages each and two microbatches.
@pytest.mark.parametrize(
    "layout, first, last",
    [
        ("pp=2:looped-bfs", "F0 F0 F1 F1 B1 B1 B0 B0", "F0 F0 F1 F1 B1 B1 B0 B0"),
        # The first process warms up with (v - 1) N + 2 (N - 1) = 4 forwards, the last with 2.
        ("pp=2:interleaved", "F0 F0 F1 F1 B1 B1 B0 B0", "F0 F0 F1 B1 F1 B1 B0 B0"),
    ],
)
def test_orders(layout: str, first: str, last: str):
    assert actions(layout, 2, 0) == first
    assert actions(layout, 2, 1) == last


@pytest.mark.parametrize("name", names("pipeline_parallel"))
def test_which_schedules_split_backward(name: str):
    made = cell(f"pp=2:{name}")
    traits = pipeline(f"pp=2:{name}").traits(made, models.load(made.model))
    assert (SPLITS_BACKWARD in traits) == (name in {"interleaved-zero-bubble", "zbv", "dualpipev", "csv"})


def test_what_a_process_keeps_when_it_keeps_most():
    # F0 F0 F1 B1 F0 B0 ...: two of the first stage and one of the second, then two and none.
    order = [(0, "F"), (0, "F"), (2, "F"), (2, "I"), (2, "W"), (0, "B")]
    assert fullest(order) == {0: 2, 2: 1}


@pytest.mark.parametrize(
    "layout, microbatches, held",
    [
        ("pp=2:gpipe", 8, [8, 8]),
        ("pp=2:1f1b", 8, [2, 1]),
        ("pp=2:traced-1f1b", 8, [2, 1]),
        ("pp=3:deepspeed", 2, [2, 2, 1]),
        ("pp=2:looped-bfs", 8, [8, 8, 8, 8]),  # all microbatches, of each stage
    ],
)
def test_microbatches_in_flight(layout: str, microbatches: int, held: list[int]):
    made = cell(layout, microbatches)
    model = models.load(made.model)
    assert [pipeline(layout).in_flight(made, model, stage) for stage in range(len(held))] == held


@pytest.mark.parametrize(
    "layout, most",
    [
        ("pp=4:interleaved[stages_each=1]", 7),  # 2 (N - 1) + 1 stages of activations on the first process
        ("pp=4:interleaved", 11),  # (v - 1) N + 2 (N - 1) + 1
        ("pp=4:zbv", 8),  # 2 N stages
        ("pp=4:csv", 4),  # N
    ],
)
def test_stages_whose_activations_are_held_at_once(layout: str, most: int):
    made = cell(layout, 16, model="llama-tiny[blocks=8]")
    assert max(fullest(actions).total() for actions in pipeline(layout).order(made)) == most


@pytest.mark.parametrize("path", sorted(SCHEDULES.glob("zb-h1-*.csv")), ids=lambda path: path.stem)
def test_the_schedules_that_come_along_are_zb_h1(path: Path):
    processes, microbatches = map(int, path.stem.rpartition("-")[2].split("x"))
    found = read(path)
    assert (len(found.actions), found.microbatches) == (processes, microbatches)
    assert found.placement == [(process,) for process in range(processes)]
    for process, row in enumerate(found.actions):
        kinds = "".join(action.kind for action in row)
        assert len(kinds) - len(kinds.lstrip("F")) == min(microbatches, processes - process)  # 1F1B's warm-up
        assert fullest((a.stage, a.kind) for a in row).total() <= processes
        assert kinds.endswith("W" * min(process, microbatches))  # what fills the bubble


@pytest.mark.parametrize(
    "layout, microbatches, said",
    [
        ("pp=2:dualpipev", 2, "torch's ScheduleDualPipeV refuses 2 microbatches on 4 stages: DualPipeV requires at"),
        ("pp=4:interleaved", 11, "multiple of the number of rounds (2)"),
        ("pp=4:interleaved-zero-bubble", 11, "multiple of the number of rounds (2)"),
        ("pp=8:interleaved", 8, "cannot make 16 stages: use at most pp=4"),
        ("pp=2:zbv,tp=2:hand", 1, None),
        ("pp=3:csv", 8, "no schedule zb-h1 for 3 processes and 8 microbatches, only for 2x1, 2x16, 2x2, 2x4, 2x8, 4x1, "),
        ("pp=2:traced-1f1b,tp=2:hand", 8, "tensor parallelism cannot cut"),
        ("pp=4:traced-1f1b", 2, "at least as many microbatches as stages"),
    ],
)
def test_what_is_refused(layout: str, microbatches: int, said: str | None):
    reason = illegal(cell(layout, microbatches), CPU)
    assert (reason is None) if said is None else (said in reason and "\n" not in reason)


def test_a_traced_model_that_looks_at_the_whole_batch():
    made = Cell(model="resnet-tiny", layout="pp=2:traced-1f1b,dp=2:ddp", batch={"global": 8, "microbatches": 2})
    assert "norms over the batch" in illegal(made, CPU)


def test_a_process_without_a_stage():
    with pytest.raises(UsageError, match="holds at least one stage"):
        pipeline("pp=2:interleaved[stages_each=0]")


# ------------------------------------------------------------------------------------------------ schedules as files

GOOD = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1I1,1W1\n"


def written(folder: Path, text: str) -> Cell:
    path = folder / "mine.csv"
    path.write_text(text)
    return cell(f"pp=2:csv[file={path}]", 2)


def test_a_file_of_ones_own(tmp_path: Path):
    assert illegal(written(tmp_path, GOOD), CPU) is None


def test_a_record_knows_what_was_in_the_file(tmp_path: Path):
    made = written(tmp_path, GOOD)
    assert knobs(made)["pp"]["configuration"] == {"sha256": hashlib.sha256(GOOD.encode()).hexdigest()}
    swapped = written(tmp_path, GOOD.replace("0B0,0B1", "0B1,0B0"))
    assert swapped.layout == made.layout
    assert knobs(swapped)["pp"]["configuration"] == {"sha256": hashlib.sha256((tmp_path / "mine.csv").read_bytes()).hexdigest()}


def test_pairs_and_waits(tmp_path: Path):
    text = "0F0,,3F0,(0F1;3B0)OVERLAP_F_B,0B0,3F1,3B1,0B1\n1F0,2F0,2B0,1B0, 1F1 ,2F1,2B1,1B1\n"
    made = written(tmp_path, text)
    assert illegal(made, CPU) is None
    assert strategies(made.layout)["pp"].placement(made) == [(0, 3), (1, 2)]


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "is empty"),
        ("0F0,0F1,0B0,0X1\n", "line 1: '0X1' is no action; write a stage, one of F, B, I, W and a microbatch"),
        ("0F0,0F1 0B0\n", "line 1: '0F1 0B0' is no action"),
        ("0F0,0B0\n,,\n", "line 2: the process has nothing to do"),
        (GOOD.replace("0B1", "0B0"), "0B0 after 0B0 on line 1 comes too often or too early"),
        (GOOD.replace("1I1,1W1", "1W1,1I1"), "1W1 after 1F1 on line 2 comes too often or too early"),
        (GOOD.replace("1F0,1B0", "1B0,1F0"), "1B0 on line 2 comes too often or too early"),
        (GOOD.replace(",1W1", ""), "1W1 is missing"),
        (GOOD.replace(",0F1", "").replace(",0B1", ""), "0F1 is missing"),
        (GOOD.replace("1F1", "0F1"), "stage 0 stands on lines 1 and 2; keep it on one"),
    ],
)
def test_a_file_that_is_no_schedule(tmp_path: Path, text: str, said: str):
    with pytest.raises(UsageError) as caught:
        illegal(written(tmp_path, text), CPU)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_waits_for_itself(tmp_path: Path):
    # The second process wants the gradient of its first microbatch after a forward that can never come.
    reason = illegal(written(tmp_path, "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"), CPU)
    assert "torch's _PipelineScheduleRuntime refuses 2 microbatches on 2 stages" in reason


def test_a_file_for_another_size(tmp_path: Path):
    made = written(tmp_path, GOOD)
    other = made.model_copy(update={"batch": made.batch.model_copy(update={"microbatches": 4, "global_size": 8})})
    assert "is a schedule for 2 processes and 2 microbatches and the cell has 2 processes and 4" in illegal(other, CPU)


@pytest.mark.parametrize(
    "file, said",
    [
        ("nowhere.csv", "cannot read schedule nowhere.csv"),
        ("zb-h2", "unknown schedule 'zb-h2'"),
        ("zb-h", "did you mean 'zb-h1'"),
    ],
)
def test_a_file_that_is_not_there(file: str, said: str):
    with pytest.raises(UsageError, match=said):
        illegal(cell(f"pp=2:csv[file={file}]"), CPU)
