"""Suites become cells."""

from pathlib import Path

import pytest

from benchmarks.cell import Cell
from benchmarks.errors import UsageError
from benchmarks.site import Site
from harness import matrix, suites
from harness.selection import matches, parse_filter

FOUR = Site(kind="cpu", count=4)


def cells(text: str, tmp_path: Path, site: Site = FOUR, **options) -> list[Cell]:
    path = tmp_path / "mine.yaml"
    path.write_text("description: a test\n" + text)
    return matrix.expand(suites.load(str(path)), site, **options)


def problem(text: str, tmp_path: Path, **options) -> str:
    with pytest.raises(UsageError) as caught:
        cells(text, tmp_path, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_lists_are_multiplied(tmp_path):
    found = cells(
        """
cells:
  - model: [llama-tiny, gpt2-tiny]
    layout: [single, "tp=2:hand,dp=2:ddp"]
    precision: [fp32, bf16]
    batch: {microbatches: [1, 2], sequence: 32}
""",
        tmp_path,
    )
    assert len(found) == 2 * 2 * 2 * 2
    assert {c.batch.sequence for c in found} == {32}
    assert {(str(c.layout), c.devices) for c in found} == {("single", 1), ("tp=2:hand,dp=2:ddp", 4)}


def test_an_open_degree_is_what_is_left_of_each_world(tmp_path):
    found = cells("cells: [{layout: ['tp=2:hand,dp=*:ddp', single], world: [1, 2, 4, 8]}]", tmp_path)
    assert [str(c.layout) for c in found] == ["tp=2:hand", "tp=2:hand,dp=2:ddp", "tp=2:hand,dp=4:ddp", "single"]


@pytest.mark.parametrize("count, degrees", [(1, [1]), (2, [1, 2]), (6, [1, 2, 4]), (8, [1, 2, 4, 8])])
def test_worlds_follow_the_devices(tmp_path, count, degrees):
    found = cells("cells: [{layout: 'dp=*', world: devices}]", tmp_path, Site(count=count))
    assert [c.devices for c in found] == degrees


def test_worlds_may_be_the_largest_and_numbers_together(tmp_path):
    found = cells("cells: [{layout: 'dp=*', world: [1, largest]}]", tmp_path, Site(count=6))
    assert [c.devices for c in found] == [1, 4]


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_group_may_be_for_one_kind_of_device(tmp_path, kind):
    text = "cells: [{device: cpu, seed: 1}, {device: cuda, seed: 2}, {seed: 3}]"
    assert [c.seed for c in cells(text, tmp_path, Site(kind=kind))] == [{"cpu": 1, "cuda": 2}[kind], 3]


def test_weak_scaling_gives_every_device_as_much(tmp_path):
    text = "cells: [{layout: 'dp=*', world: [1, 2, 4], batch: {global: 4}, scaling: %s}]"
    assert [c.batch.global_size for c in cells(text % "weak", tmp_path)] == [4, 8, 16]
    assert [c.batch.global_size for c in cells(text % "strong", tmp_path)] == [4, 4, 4]


def test_defaults_are_filled_in_and_a_cell_stands_once(tmp_path):
    found = cells(
        """
defaults: {precision: bf16, batch: {global: 16, sequence: 32}, protocol: {measure_steps: 7}}
cells:
  - {layout: [single, "dp=2"], batch: {sequence: 8}}
  - {layout: single, batch: {sequence: 8}}
""",
        tmp_path,
    )
    assert len(found) == 2
    assert {(c.precision, c.batch.global_size, c.batch.sequence, c.protocol.measure_steps) for c in found} == {
        ("bf16", 16, 8, 7)
    }


def test_a_sequence_multiplies_models_of_text_alone(tmp_path):
    found = cells("cells: [{model: [llama-tiny, mlp-tiny], batch: {sequence: [32, 128]}}]", tmp_path)
    assert [(c.model, c.batch.sequence) for c in found] == [("llama-tiny", 32), ("llama-tiny", 128), ("mlp-tiny", 64)]


def test_exclusions_need_all_their_fields(tmp_path):
    found = cells(
        """
cells:
  - layout: [single, "dp=2:ddp", "dp=2:fsdp"]
    precision: [fp32, bf16, fp16]
    clip: [0, 1]
    exclude:
      - {layout: ["fsdp", single], precision: [bf16, fp16]}
      - {layout: "dp=2:ddp", clip: 1.0}
""",
        tmp_path,
    )
    assert {(c.layout.family, c.precision, c.clip) for c in found} == {
        ("single", "fp32", 0.0),
        ("single", "fp32", 1.0),
        ("dp:fsdp", "fp32", 0.0),
        ("dp:fsdp", "fp32", 1.0),
        ("dp:ddp", "fp32", 0.0),
        ("dp:ddp", "bf16", 0.0),
        ("dp:ddp", "fp16", 0.0),
    }


def test_overrides_replace_axes_of_every_group(tmp_path):
    overrides = {"precision": "bf16", "protocol.measure_steps": "3", "batch.global": 4}
    found = cells("cells: [{layout: [single, 'dp=2'], precision: [fp32, fp16]}]", tmp_path, overrides=overrides)
    assert [(str(c.layout), c.precision, c.protocol.measure_steps, c.batch.global_size) for c in found] == [
        ("single", "bf16", 3, 4),
        ("dp=2:ddp", "bf16", 3, 4),
    ]


def test_without_a_suite_there_is_one_cell():
    assert matrix.expand(suites.COMMAND_LINE, FOUR) == [Cell()]


@pytest.mark.parametrize(
    "text, parts",
    [
        ("cells: [{layuot: single}]", ["unknown key 'layuot' in suite mine.yaml", "did you mean 'layout'?"]),
        ("cells: [{batch: {golbal: 8}}]", ["unknown key 'golbal' in suite mine.yaml of 'batch'", "did you mean 'global'?"]),
        ("cells: [{protocol: {measure_step: 8}}]", ["unknown key 'measure_step'", "did you mean 'measure_steps'?"]),
        ("cels: []", ["missing", "cells"]),
        ("cells: [{}]\ndefault: {}", ["unknown key 'default' in suite mine.yaml", "did you mean 'defaults'?"]),
        ("cells: []", ["cells", "in suite mine.yaml"]),
        ("cells: [{model: lama-tiny}]", ["unknown model 'lama-tiny'", "did you mean 'llama-tiny'?"]),
        ("cells: [{precision: fp61}]", ["unknown precision 'fp61'", "did you mean 'fp16'?"]),
        ("cells: [{layout: 'dp=2:dpd'}]", ["unknown data parallel implementation 'dpd'", "did you mean 'ddp'?", "mine.yaml"]),
        ("cells: [{layout: 'td=2'}]", ["unknown axis 'td'"]),
        ("cells: [{layout: 'tp=3,dp=*', world: [2, 4]}]", ["fits no world of 2, 4 devices"]),
        ("cells: [{world: device}]", ["world is 'device'", "give 'devices'"]),
        ("cells: [{world: [1, 0]}]", ["world is 0", "numbers of devices"]),
        ("cells: [{device: cuda}]", ["no cell is left", "'device'", "4xcpu"]),
        ("cells: [{clip: .inf}]", ["clip", "finite", "in suite mine.yaml"]),
        ("cells: [{clip: '1e999'}]", ["clip", "finite", "in suite mine.yaml"]),
        ("cells: [{batch: {global: many}}]", ["batch.global 'many' in suite mine.yaml"]),
        ("cells: [{exclude: [{layuot: single}]}]", ["unknown field 'layuot'", "did you mean 'layout'?"]),
        ("cells: [{exclude: [{layout: single}]}]", ["no cell is left"]),
        ("cells: [{layout: single, layout: dp=2}]", ["'layout' stands twice"]),
        ("cells: [", ["cannot read", "write valid YAML"]),
        ("cells: [{data: /no/such/text}]", ["'/no/such/text' does not exist"]),
    ],
)
def test_a_mistake_is_one_sentence_with_the_nearest_name(tmp_path, text, parts):
    message = problem(text, tmp_path)
    for part in parts:
        assert part in message


def test_a_mistake_on_the_command_line_is_said_to_be_there(tmp_path):
    message = problem("cells: [{}]", tmp_path, overrides={"protocol.mesure_steps": 3})
    assert "unknown key 'mesure_steps' on the command line" in message and "'measure_steps'?" in message


def test_an_unknown_suite_is_named_with_the_nearest(tmp_path):
    with pytest.raises(UsageError, match="unknown suite 'smok'.*did you mean 'smoke'"):
        suites.load("smok")


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("path", sorted(suites.SUITES.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_suite_of_the_repository_gives_cells(path, kind, count):
    suite = suites.load(path.stem)
    if suite.device in (None, kind):
        assert matrix.expand(suite, Site(kind=kind, count=count))


@pytest.mark.parametrize("name", ["node", "memory", "scaling-strong", "scaling-weak"])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_suites_for_gpus_follow_the_devices_found(name, count):
    found = matrix.expand(suites.load(name), Site(kind="cuda", count=count))
    assert max(c.devices for c in found) == {1: 1, 3: 2, 8: 8}[count]


def test_a_layout_that_the_machine_is_too_small_for_gives_no_cell(tmp_path):
    text = "cells: [{layout: [single, 'tp=2,dp=*'], world: %s}]"
    assert [str(c.layout) for c in cells(text % "largest", tmp_path, Site(count=1))] == ["single"]
    assert "fits no world of 1 devices" in problem(text % "1", tmp_path)


def test_a_suite_for_other_devices_is_refused():
    with pytest.raises(UsageError, match="suite node is for cuda devices and this is 4xcpu"):
        matrix.expand(suites.load("node"), FOUR)


@pytest.mark.parametrize(
    "expression, wanted",
    [
        ("model=llama-tiny,precision=bf16", True),
        ("model=llama-*", True),
        ("model=gpt2-*", False),
        ("dp=2:fsdp", True),
        ("fsdp[reshard=false]", True),
        ("tp=2", True),
        ("tp=2:hand,dp=2", True),
        ("layout=tp=2:hand,precision=fp32", False),
        ("layout=single", False),
        ("single", False),
        ("devices=4", True),
        ("clip=1", True),
        ("batch.global=16", True),
        ("protocol.measure_steps=31", False),
    ],
)
def test_filter(expression, wanted):
    cell = Cell(layout="tp=2:hand,dp=2:fsdp[reshard=false]", devices=4, precision="bf16", clip=1.0, batch={"global": 16})
    assert matches(cell, parse_filter(expression)) is wanted


def test_a_filter_that_leaves_nothing_or_names_nothing_is_refused(tmp_path):
    assert "leaves none of 1 cells" in problem("cells: [{}]", tmp_path, filter_text="precision=bf16")
    assert "did you mean 'precision'?" in problem("cells: [{}]", tmp_path, filter_text="precison=bf16")


def test_the_largest_batch_is_asked_for_by_a_cell_of_one_row(tmp_path):
    text = "defaults: {batch: {global: 8, sequence: 32}}\ncells: [{layout: 'dp=2', batch: max}]"
    (cell,) = cells(text, tmp_path, FOUR.model_copy(update={"device_memory_bytes": 2**30}))
    assert (cell.batch.global_size, cell.batch.sequence, cell.protocol.search) == (2, 32, True)
    assert "--device-memory 2GiB" in problem(text, tmp_path)
    assert cells(text, tmp_path, Site(kind="cuda", count=4)) == [cell]


def test_very_many_cells_are_asked_about(tmp_path):
    assert matrix.MOST_CELLS == 10_000
    text = "cells: [{seed: [1, 2, 3, 4], clip: [1, 2, 3]}]"
    assert "12 cells are asked for in suite mine.yaml" in problem(text, tmp_path, most=11)
    assert "--yes" in problem(text, tmp_path, most=11)
    assert len(cells(text, tmp_path, most=12)) == len(cells(text, tmp_path, most=None)) == 12
    assert len(cells(text, tmp_path, most=11, filter_text="seed=3")) == 3


def test_what_cannot_even_be_counted_one_by_one_is_refused_at_once(tmp_path):
    many = list(range(1, 2000))
    text = f"cells: [{{seed: {many}, clip: {many}, batch: {{global: {many}, sequence: {many}}}}}]"
    assert "15,968,023,992,001 cells" in problem(text, tmp_path)
