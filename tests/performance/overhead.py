"""What the harness's step costs over the same step written plainly, as a ratio.

    python tests/performance/overhead.py [--pairs 400] [--model llama-15m] [--only single]

In one process group, on the same weights and batches, the engine's step and a plain training step alternate (A B, B A, A B,
...). Each step's time is the largest over ranks; the median over pairs of engine / plain is printed with its 95 % bootstrap
interval. Nothing of `benchmarks.compose`, of the strategies or of the replica takes part in the plain step: it is the
loop and the wrappers a user would write.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks import data, initialize, models
from benchmarks.cell import Batch, Cell
from benchmarks.compose import compose
from benchmarks.contract import Batch as Share
from benchmarks.contract import Chain
from benchmarks.layout import Layout
from benchmarks.world import World

LAYOUTS = ("single", "dp=2:ddp", "tp=2:hand")


class Copy(torch.autograd.Function):
    """Megatron's f: identity forward, all-reduce backward."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient


class Sum(torch.autograd.Function):
    """Megatron's g: all-reduce forward, identity backward."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient


class Gather(torch.autograd.Function):
    """All-gather along the last dimension forward, own slice backward."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        shares = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(shares, x.contiguous())
        return torch.cat(shares, dim=-1)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient.chunk(dist.get_world_size(), dim=-1)[dist.get_rank()].contiguous()


class Row(nn.Linear):
    """A Linear with a share of the inputs."""

    def forward(self, x: Tensor) -> Tensor:
        return Sum.apply(F.linear(x, self.weight))


class Head(nn.Linear):
    """A Linear with a share of the outputs, which are gathered."""

    def forward(self, x: Tensor) -> Tensor:
        return Gather.apply(F.linear(Copy.apply(x), self.weight))


class Vocabulary(nn.Embedding):
    """An Embedding with a share of the rows."""

    def forward(self, tokens: Tensor) -> Tensor:
        rows = self.weight.shape[0]
        own = tokens - dist.get_rank() * rows
        elsewhere = (own < 0) | (own >= rows)
        x = F.embedding(own.masked_fill(elsewhere, 0), self.weight)
        return Sum.apply(x.masked_fill(elsewhere.unsqueeze(-1), 0.0))


def cut(chain: Chain) -> None:
    """Megatron's cuts on a llama, in place."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def share(module: nn.Module, kind: type[nn.Module], dimension: int) -> None:
        module.__class__ = kind
        module.weight = nn.Parameter(module.weight.detach().chunk(size, dimension)[rank].clone())

    share(chain.embedding.token, Vocabulary, 0)
    for name, block in chain.named_children():
        if name.startswith("block"):
            for region in (block.attention, block.mlp):
                region.register_forward_pre_hook(lambda _, inputs: (Copy.apply(inputs[0]),))
            for column in (block.attention.query, block.attention.key, block.attention.value, block.mlp.gate, block.mlp.up):
                share(column, nn.Linear, 0)
            share(block.attention.output, Row, 1)
            share(block.mlp.down, Row, 1)
    share(chain.head.linear, Head, 0)


def plain_step(cell: Cell) -> Callable[[Share], Tensor]:
    """The training step of a cell as a user would write it for this one layout."""
    model = models.load(cell.model)
    chain = Chain({unit: model.build(unit) for unit in model.units})
    with torch.no_grad():
        for name, parameter in chain.named_parameters():
            parameter.copy_(initialize.full(model, name, cell.seed))
    if cell.layout.degree("tp") > 1:
        cut(chain)
    for copy, owner in model.tied.items():
        chain.get_submodule(copy.rpartition(".")[0]).weight = chain.get_parameter(owner)
    module = chain
    if cell.layout.degree("dp") > 1:
        module = DistributedDataParallel(chain, gradient_as_bucket_view=True)
    settings = cell.optimizer
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay
    )

    def step(batch: Share) -> Tensor:
        logits = module(batch.inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def measure(rank: int, cell: Cell, pairs: int, folder: str) -> None:
    """One rank: alternate both steps and write the seconds of each, shape (pairs, 2)."""
    torch.set_num_threads(1)
    world = World.start(cell, rank=rank, size=cell.processes, rendezvous=Path(folder, "rendezvous"), device_kind="cpu")
    engine, plain = compose(cell, world), plain_step(cell)
    text = data.Text(cell.data, cell.seed)
    vocabulary = models.load(cell.model).parameter_shapes["embedding.token.weight"][0]
    seconds = np.zeros((pairs, 2))
    for i in range(-20, pairs):  # the first twenty pairs warm up
        inputs, targets = text.batch(max(i, 0), cell.batch.global_size, cell.batch.sequence, vocabulary)
        batch = data.share(inputs, targets, world.coordinate("dp"), world.degrees["dp"])
        losses = {}
        for which in (0, 1) if i % 2 else (1, 0):
            dist.barrier()
            start = time.perf_counter()
            losses[which] = engine.step(batch).loss if which == 0 else plain(batch)
            seconds[max(i, 0), which] = time.perf_counter() - start
        if i == -20:
            torch.testing.assert_close(losses[0], losses[1], rtol=1e-6, atol=0)
    np.save(Path(folder, f"rank{rank}.npy"), seconds)
    world.close()


def ratios(cell: Cell, pairs: int) -> np.ndarray:
    """Engine seconds / plain seconds of each pair, the slowest rank's."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=measure, args=(r, cell, pairs, folder)) for r in range(cell.processes)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
            if process.exitcode:
                raise SystemExit(f"a rank of {cell.layout} ended with exit code {process.exitcode}")
        seconds = np.max([np.load(Path(folder, f"rank{r}.npy")) for r in range(cell.processes)], axis=0)
    return seconds[:, 0] / seconds[:, 1]


def main() -> None:
    """Print one line for each layout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--model", default="llama-tiny")
    parser.add_argument("--only", choices=LAYOUTS, action="append")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    for written in arguments.only or LAYOUTS:
        layout = Layout.parse(written)
        count = layout.devices
        cell = Cell(model=arguments.model, layout=layout, processes=count, devices=count, batch=Batch(sequence=128))
        values = ratios(cell, arguments.pairs)
        draws = np.random.default_rng(0).choice(values, (2000, len(values)))
        low, high = np.quantile(np.median(draws, axis=1), (0.025, 0.975))
        interval = f"95 % [{low:.4f}, {high:.4f}]"
        print(f"{written:12} engine / plain = {np.median(values):.4f}  {interval}  {len(values)} pairs", flush=True)


if __name__ == "__main__":
    main()
