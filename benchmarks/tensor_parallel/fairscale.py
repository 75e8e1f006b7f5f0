"""Tensor parallelism by FairScale's layers (`fairscale.nn.model_parallel`), which are Megatron's as they were first published
(Shoeybi et al., Megatron-LM, 2019). FairScale is no longer maintained.

    x (replicated) -> column -> nonlinearity or attention heads -> row -> sum over ranks -> y (replicated)

Every layer communicates by itself: each column layer sums the gradient of its own input over the ranks, so that query, key and
value are three all-reduces in backward where one would do for the sum of the three.

With `loss=true` the logits stay cut over the vocabulary, and `vocab_parallel_cross_entropy` takes the loss of them; it works on
the logits in place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from fairscale.nn.model_parallel import initialize as groups
from fairscale.nn.model_parallel import initialize_model_parallel
from fairscale.nn.model_parallel.cross_entropy import vocab_parallel_cross_entropy
from fairscale.nn.model_parallel.layers import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
from torch import Tensor, nn

from benchmarks.cell import Cell
from benchmarks.contract import Assembly, TensorParallel
from benchmarks.site import Site
from benchmarks.tensor_parallel._cuts import note_cut
from benchmarks.tensor_parallel._limits import loss_problem
from benchmarks.tensor_parallel._on_cpu import caveats
from benchmarks.tied import shared_names, tie_again
from benchmarks.world import World

ORDER = (
    "shim: FairScale is given our process groups, as it numbers ranks with the data axis outermost and not the pipeline "
    "(initialize_model_parallel in fairscale/nn/model_parallel/initialize.py)"
)


@dataclass(frozen=True)
class Strategy(TensorParallel):
    """FairScale's column, row and vocabulary layers."""

    loss: bool = False
    """Loss parallelism: the vocabulary stays cut in the cross entropy."""

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        if cell.checkpointing == "selective":
            return (
                "FairScale sums the ranks' products in place (_reduce in fairscale/nn/model_parallel/mappings.py), and "
                "selective checkpointing keeps those very tensors, in which they would be summed a second time: choose full or "
                "every-2"
            )
        return loss_problem(cell) if self.loss else None

    def shard(self, assembly: Assembly, plan: Mapping[str, str], world: World) -> Assembly:
        shims = _join(world)
        for part in assembly.parts:
            shared = shared_names(part.module)
            for name, style in plan.items():
                cut = self._cut(style, part.module.get_submodule(name))
                if cut is not None:
                    # FairScale makes weights on the host, of which nothing was set: they get their values with all others.
                    part.module.set_submodule(name, cut.to("meta"))
                    note_cut(name, style, part)
            tie_again(part.module, shared)
            part.caveats += shims
        loss = _mean_cross_entropy if self.loss else assembly.loss
        return dataclasses.replace(assembly, loss=loss, caveats=caveats(assembly, world))

    def _cut(self, style: str, whole: nn.Module) -> nn.Module | None:
        """FairScale's layer in the place of `whole`; None where it stays whole."""
        if style == "vocabulary":
            return VocabParallelEmbedding(whole.num_embeddings, whole.embedding_dim, init_method=_as_it_is)
        if style not in ("column", "head", "row"):
            return None
        sizes = (whole.in_features, whole.out_features, whole.bias is not None)
        if style == "row":
            return RowParallelLinear(*sizes, input_is_parallel=True, init_method=_as_it_is)
        return ColumnParallelLinear(*sizes, gather_output=style == "head" and not self.loss, init_method=_as_it_is)


def _join(world: World) -> tuple[str, ...]:
    """Tell FairScale which ranks hold a model together. Returns the shims that it took."""
    pipeline, data, tensor = (world.degrees[axis] for axis in ("pp", "dp", "tp"))
    agrees = pipeline == 1 or data == 1
    if not groups.model_parallel_is_initialized():
        if agrees:
            initialize_model_parallel(tensor, pipeline)
        else:
            groups._MODEL_PARALLEL_GROUP = world.group("tp")
            groups._DATA_PARALLEL_GROUP, groups._PIPELINE_PARALLEL_GROUP = world.group("dp"), world.group("pp")
    return () if agrees else (ORDER,)


def _as_it_is(weight: Tensor) -> Tensor:
    return weight


def _mean_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over all rows; FairScale takes exponentials in the dtype of the logits."""
    return vocab_parallel_cross_entropy(logits.float(), targets).mean()
