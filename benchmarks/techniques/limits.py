"""Which techniques cannot go with which traits of a layout, or with each other."""

from __future__ import annotations

from benchmarks.cell import Cell
from benchmarks.contract import DTENSOR, SPLITS_BACKWARD


def problem(cell: Cell, traits: frozenset[str]) -> str | None:
    """Why the cell's techniques cannot go together, in one sentence with the upstream reason; None if they can.

    Args:
        traits: of the strategies of all axes.
    """
    if cell.compile == "block" and DTENSOR in traits:
        return (
            "a block that is compiled by itself expects gradients of the kind that it guessed from its outputs, and between "
            "blocks of DTensors they are plain (https://github.com/pytorch/pytorch/issues/143134): use compile=model"
        )
    if cell.compile != "none" and SPLITS_BACKWARD in traits:
        return (
            "the backward of a compiled program computes all its gradients at once, and this schedule asks for those of "
            "weights apart (torch/distributed/pipelining/_backward.py): choose a schedule with whole backwards"
        )
    if cell.compile != "none" and cell.offload == "activations":
        return (
            "torch.compile decides by itself what backward finds of a program, past the hooks by which activations are sent to "
            "the host: leave one of the two out"
        )
    if cell.checkpointing == "fairscale" and SPLITS_BACKWARD in traits:
        return (
            "a schedule that computes weight gradients apart asks autograd for some gradients and not for all, which "
            "FairScale's checkpointing refuses (CheckpointFunction in fairscale/nn/checkpoint/checkpoint_activations.py): "
            "choose full"
        )
    if cell.checkpointing == "fairscale" and cell.compile != "none":
        return (
            "FairScale's checkpointing makes a tensor that wants a gradient in every forward (_checkpointed_forward "
            "in fairscale/nn/checkpoint/checkpoint_activations.py), where torch.compile ends a program, so that a block falls "
            "into pieces: choose full"
        )
    if cell.checkpointing == "deepspeed" and SPLITS_BACKWARD in traits:
        return (
            "a schedule that computes weight gradients apart asks autograd for some gradients and not for all, which "
            "DeepSpeed's checkpointing refuses (CheckpointFunction in deepspeed/runtime/activation_checkpointing/"
            "checkpointing.py): choose full"
        )
    if cell.checkpointing == "deepspeed" and cell.compile != "none":
        return (
            "DeepSpeed's checkpointing reads and sets the states of random generators around a block (CheckpointFunction in "
            "deepspeed/runtime/activation_checkpointing/checkpointing.py), where torch.compile ends a program, and blocks were "
            "seen to run as they are: choose full"
        )
    if cell.checkpointing == "deepspeed" and cell.offload == "activations":
        return (
            "DeepSpeed's checkpointing keeps the inputs of blocks by itself (save_args_for_backward in deepspeed/runtime/"
            "activation_checkpointing/checkpointing.py), past the hooks by which activations are sent to the host: choose full"
        )
    if cell.checkpointing == "selective" and SPLITS_BACKWARD in traits:
        return (
            "a schedule that computes weight gradients apart runs blocks again for each kind, and selective checkpointing "
            "hands out what it kept once (torch/utils/checkpoint.py): choose full, or a schedule with whole backwards"
        )
    return None
