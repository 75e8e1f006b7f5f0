"""Knobs and processes of layouts, and what compose refuses."""

import sys

import pytest

from benchmarks.cell import Cell
from benchmarks.compose import illegal, knobs, processes
from benchmarks.errors import UsageError
from benchmarks.layout import Layout
from benchmarks.registry import AXES, load, names
from benchmarks.site import Site
from benchmarks.strategies import process_degrees, strategies

CPU, NODE = Site(kind="cpu", count=2), Site(kind="cuda", count=8, memory_bytes=80 * 2**30)


@pytest.mark.parametrize(("axis", "name"), [(a, n) for a, folder in AXES.items() for n in names(folder)])
def test_every_file_holds_one_documented_strategy(axis: str, name: str):
    module = load(AXES[axis], name)
    assert module.Strategy.axis == axis
    assert module.__doc__ and module.Strategy.__doc__
    with open(module.__file__) as file:
        assert sum(1 for _ in file) <= 200


def test_one_process_may_drive_all_stages():
    assert processes(Layout.parse("pp=4:devices,dp=2:ddp")) == 2
    assert process_degrees(Layout.parse("pp=2:gpipe,tp=2:hand,dp=2:ddp")) == {"pp": 2, "dp": 2, "tp": 2}


def test_knobs_reach_the_strategy():
    found = strategies(Layout.parse("dp=2:fsdp[reshard=false]"))
    assert found["dp"].reshard is False
    assert knobs(Cell(layout="dp=2:fsdp", processes=2, devices=2)) == {"dp": {"reshard": True}}


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("dp=2:fsdp[reshrad=false]", "did you mean 'reshard'"),
        ("dp=2:fsdp[reshard=2.5]", "takes a bool or a int"),
        ("dp=2:ddp[static_graph=1]", "takes a bool"),
        ("dp=2:ddp[compression=int8]", "'none' or 'bf16' or 'fp16'"),
        ("pp=2:manual[reshard=false]", "has none"),
    ],
)
def test_misspelt_knobs(layout: str, said: str):
    with pytest.raises(UsageError, match=said):
        strategies(Layout.parse(layout))


@pytest.mark.parametrize(
    ("cell", "site", "said"),
    [
        ({"layout": "dp=3:ddp"}, CPU, "use a multiple of 3"),
        ({"layout": "dp=2:ddp", "batch": {"global": 4, "microbatches": 4}}, CPU, "use a multiple of 8"),
        ({"layout": "tp=3:hand"}, CPU, "heads"),
        ({"layout": "pp=7:gpipe", "batch": {"global": 7}}, CPU, "at most pp=6"),
        ({"layout": "pp=4:1f1b", "batch": {"global": 8, "microbatches": 2}}, CPU, "at least as many microbatches as stages"),
        ({"layout": "pp=2:devices,tp=2:hand"}, CPU, "one process drives all stages"),
        ({"layout": "pp=2:devices,dp=2:fsdp"}, NODE, "the one device of its mesh"),
        ({"layout": "pp=2:devices,dp=2:zero1"}, NODE, "one device"),
        ({"layout": "dp=4:fsdp[reshard=3]"}, CPU, "a divisor of 4"),
        ({"layout": "tp=2:hand,dp=4:fsdp[reshard=2]"}, CPU, "without other axes"),
        ({"layout": "dp=2x2:ddp"}, CPU, "write dp=4"),
        ({"layout": "dp=4:hsdp"}, CPU, "write dp=2x2:hsdp"),
        ({"layout": "dp=2x2:hsdp,pp=2:devices"}, NODE, "the one device of its mesh"),
        ({"layout": "dp=2:dataparallel"}, CPU, "nothing is parallel"),
        ({"layout": "dp=2:dataparallel", "precision": "bf16"}, NODE, "the first device's layers"),
        (
            {"layout": "dp=2:dataparallel", "model": "resnet-tiny[synchronised=true]"},
            NODE,
            "each of which would norm its own images",
        ),
        ({"layout": "dp=2:dataparallel,tp=2:hand"}, NODE, "would meet each other"),
        ({"layout": "tp=2:dtensor,dp=2:fsdp1"}, CPU, "new Parameter objects"),
        ({"layout": "pp=2:gpipe,dp=2:fsdp1", "batch": {"global": 8, "microbatches": 2}}, CPU, "still need them"),
        ({"layout": "pp=2:gpipe,dp=2:fsdp1", "model": "gpt2-tiny"}, CPU, "two flattened units"),
        ({"layout": "pp=2:gpipe,dp=2:ddp[static_graph=true]"}, CPU, "without a word"),
        ({"layout": "dp=2:ddp[static_graph=true]", "batch": {"global": 8, "microbatches": 2}}, CPU, "without a word"),
        ({"layout": "dp=2:ddp[compression=fp16]"}, CPU, "not those of fp32"),
        ({"layout": "dp=2:ddp[compression=bf16]", "precision": "bf16"}, CPU, "NCCL 2.10"),
        ({"layout": "pp=2:zbv,tp=2:dtensor,dp=2:zero1"}, CPU, "anew in every forward"),
        ({"layout": "pp=2:zbv,tp=2:dtensor,dp=2:zero1-native"}, CPU, "anew in every forward"),
        ({"layout": "dp=2:ddp", "offload": "parameters"}, CPU, "offload=optimizer"),
        ({"layout": "pp=2:gpipe,dp=2:zero2"}, CPU, "DeepSpeed refuses it under a pipeline"),
        ({"layout": "pp=2:gpipe,dp=2:zero3"}, CPU, "DeepSpeed refuses it under a pipeline"),
        ({"layout": "pp=2:devices,dp=2:zero2", "model": "gpt2-tiny"}, CPU, "cannot be summed any more"),
        ({"layout": "tp=2:dtensor,dp=2:zero3"}, CPU, "knows nothing of DTensors"),
        ({"layout": "dp=4:zero3[hierarchical=3]"}, CPU, "use a divisor of the data degree"),
        ({"layout": "dp=2:zero0", "offload": "optimizer"}, CPU, "use stage 1, 2 or 3"),
        ({"layout": "pp=2:zbv,dp=2:fairscale-sdp"}, CPU, "choose a schedule with whole backwards"),
        ({"layout": "pp=2:gpipe,dp=2:fairscale-sdp", "model": "gpt2-tiny"}, CPU, "whose ranks hold all gradients"),
        ({"layout": "tp=2:dtensor,dp=2:fairscale-sdp"}, CPU, "use plain tensors"),
        ({"layout": "dp=2:fairscale-sdp", "offload": "optimizer"}, CPU, "use offload=none"),
        ({"layout": "tp=2:hand,dp=2:fairscale-fsdp"}, CPU, "use flatten=false"),
        ({"layout": "pp=2:gpipe,dp=2:fairscale-fsdp", "batch": {"global": 8, "microbatches": 2}}, CPU, "still need them"),
        ({"layout": "pp=2:zbv,tp=2:dtensor,dp=2:fairscale-oss"}, CPU, "anew in every forward"),
        ({"layout": "pp=2:fairscale,tp=2:fairscale"}, CPU, "one process drives all stages"),
        ({"layout": "pp=2:fairscale[balance=size]"}, CPU, "CUDA devices alone"),
        ({"layout": "pp=2:fairscale[checkpoint=always]", "checkpointing": "full"}, CPU, "once more"),
        ({"layout": "pp=2:fairscale", "compile": "block"}, CPU, "threads of its own"),
        ({"layout": "pp=2:fairscale,dp=2:ddp", "model": "resnet-tiny"}, NODE, "in another order"),
        ({"layout": "pp=2:fairscale[checkpoint=always],dp=2:fairscale-sdp"}, CPU, "checkpoint nothing"),
        ({"layout": "pp=2:fairscale[checkpoint=always],dp=2:fairscale-fsdp"}, CPU, "checkpoint nothing"),
        ({"layout": "pp=2:fairscale[checkpoint=always],dp=2:zero2", "batch": {"microbatches": 2}}, CPU, "in several pieces"),
        (
            {"layout": "pp=2:fairscale[checkpoint=always],dp=2:ddp[compression=fp16]", "precision": "fp16"},
            CPU,
            "compression=none",
        ),
        ({"layout": "tp=2:fairscale", "checkpointing": "selective"}, CPU, "summed a second time"),
        ({"layout": "tp=2:fairscale[loss=true]", "model": "gpt2-tiny[vocabulary=257]"}, CPU, "257 outputs"),
        ({"layout": "pp=2:zbv", "checkpointing": "fairscale"}, CPU, "FairScale's checkpointing refuses"),
        ({"layout": "single", "checkpointing": "fairscale", "compile": "block"}, CPU, "where torch.compile ends a program"),
        ({"layout": "pp=2:manual,dp=2:fairscale-sdp", "checkpointing": "fairscale"}, CPU, "choose checkpointing full"),
        ({"layout": "dp=2:fairscale-fsdp[mixed=fp16]", "precision": "bf16"}, CPU, "name that, or none"),
        ({"layout": "dp=2:fairscale-fsdp[fp32_reduce_scatter=false]"}, CPU, "nothing to cast"),
        ({"layout": "dp=2:fairscale-fsdp", "offload": "parameters"}, CPU, "use a CUDA device"),
        ({"layout": "dp=2:fairscale-fsdp", "offload": "parameters", "batch": {"microbatches": 2}}, NODE, "use one microbatch"),
        ({"layout": "tp=2:hand", "model": "hf-llama-tiny"}, CPU, "use a data axis"),
        ({"layout": "dp=16:ddp", "batch": {"global": 16}}, NODE, "16 devices and there are 8"),
        ({"batch": {"sequence": 100000}}, CPU, "shorter sequence"),
    ],
)
def test_what_cannot_run_says_why(cell: dict, site: Site, said: str):
    reason = illegal(Cell.model_validate(cell), site)
    assert reason is not None and said in reason


def test_norms_that_are_not_shared_may_run_in_threads():
    local = {"layout": "dp=2:dataparallel", "model": "resnet-tiny"}
    assert illegal(Cell.model_validate(local), NODE) is None


@pytest.mark.parametrize(
    "layout",
    [
        "single",
        "pp=2:devices,dp=2:fsdp",
        "pp=2:gpipe,tp=2:dtensor,dp=2:zero1",
        "pp=4:fairscale[checkpoint=except_last,balance=time],dp=2:ddp",
        "pp=2:gpipe,tp=2:fairscale[loss=true],dp=2:zero1",
        "dp=2x2:hsdp",
        "dp=4:fsdp[reshard=2]",
        "dp=2:fsdp1",
    ],
)
def test_what_can_run_on_cpu(layout: str):
    assert illegal(Cell(layout=layout), CPU) is None


def test_a_framework_that_checkpointing_misses(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "fairscale", None)
    for name in [n for n in sys.modules if n.startswith(("fairscale.", "benchmarks.techniques.fairscale"))]:
        monkeypatch.delitem(sys.modules, name)
    said = illegal(Cell(checkpointing="fairscale"), CPU)
    assert said == "checkpointing 'fairscale' needs fairscale, which is not installed: pip install fairscale"
    assert illegal(Cell(checkpointing="full"), CPU) is None


def test_a_missing_framework_takes_only_its_own_cells(monkeypatch: pytest.MonkeyPatch):
    def load_without(folder: str, name: str):
        if name == "zero1":
            raise ModuleNotFoundError("No module named 'deepspeed'", name="deepspeed")
        return load(folder, name)

    monkeypatch.setattr("benchmarks.registry.load", load_without)
    assert "pip install deepspeed" in illegal(Cell(layout="dp=2:zero1"), CPU)
    assert illegal(Cell(layout="dp=2:ddp"), CPU) is None
