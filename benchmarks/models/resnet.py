"""ResNet: convolutions with batch norm, and a shortcut around every two or three of them.

He et al., Deep Residual Learning for Image Recognition, 2016; in the bottleneck the 3x3 convolution halves the image, as in
torchvision. It learns to tell handwritten digits apart, resized to the model's images and repeated to three channels.

Batch norm makes every image's output depend on the others in its batch, see `benchmarks.models._batch_norm`.

The stream that the shortcuts make stays fp32 in every precision: only what stands between its sums computes in the
precision's dtype. Shapes: (rows, channels, height, width) unless said otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.cell import Cell
from benchmarks.errors import UsageError
from benchmarks.images import CLASSES, Digits
from benchmarks.models._batch_norm import BatchNorm, synchronise
from benchmarks.models._images import ImageModel
from benchmarks.models._shapes import parameter_shapes
from benchmarks.world import World

COLOURS = 3
HALVINGS = 32
"""By how much the last stage's feature maps are smaller than the images."""


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    """One size of the family; `configs/models/resnet.yaml` says what each means."""

    stage1: int
    stage2: int
    stage3: int
    stage4: int
    width: int
    bottleneck: bool
    image: int
    classes: int
    synchronised: bool
    smooth: bool

    @property
    def stages(self) -> tuple[int, ...]:
        """Blocks of each stage."""
        return self.stage1, self.stage2, self.stage3, self.stage4


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What one block is given and makes."""

    inputs: int
    """Channels in."""
    width: int
    """Channels inside."""
    outputs: int
    """Channels out."""
    stride: int
    """2 where it halves the image."""
    side: int
    """Height and width of its output."""

    def convolutions(self, bottleneck: bool) -> list[tuple[int, int, int, int]]:
        """(channels in, channels out, kernel, stride) of the convolutions one after the other."""
        if bottleneck:
            return [
                (self.inputs, self.width, 1, 1),
                (self.width, self.width, 3, self.stride),
                (self.width, self.outputs, 1, 1),
            ]
        return [(self.inputs, self.width, 3, self.stride), (self.width, self.outputs, 3, 1)]

    @property
    def projects(self) -> bool:
        """Whether the shortcut needs a convolution of its own, as it ends with another shape."""
        return self.stride != 1 or self.inputs != self.outputs


class Convolution(nn.Module):
    """A convolution without bias, and its batch norm."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int):
        super().__init__()
        self.filter = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        self.norm = BatchNorm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.filter(x))


class Stem(nn.Module):
    """Images in; a quarter of their height and width out."""

    def __init__(self, d: Dimensions):
        super().__init__()
        self.convolution = Convolution(COLOURS, d.width, 7, 2)
        self.activation, self.pool = (F.gelu, F.avg_pool2d) if d.smooth else (F.relu, F.max_pool2d)

    def forward(self, images: Tensor) -> Tensor:
        return self.pool(self.activation(self.convolution(images)), 3, stride=2, padding=1).float()


class Block(nn.Module):
    """Convolutions, and a shortcut around them."""

    def __init__(self, shape: Shape, d: Dimensions):
        super().__init__()
        self.activation = F.gelu if d.smooth else F.relu
        self.convolutions = nn.ModuleList(Convolution(*each) for each in shape.convolutions(d.bottleneck))
        self.shortcut = Convolution(shape.inputs, shape.outputs, 1, shape.stride) if shape.projects else None

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for i, convolution in enumerate(self.convolutions):
            y = convolution(self.activation(y) if i else y)
        return self.activation((x if self.shortcut is None else self.shortcut(x)).float() + y)


class Head(nn.Module):
    """Feature maps in, logits (rows, classes) out."""

    def __init__(self, channels: int, classes: int):
        super().__init__()
        self.linear = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.mean((2, 3)))


class Model(ImageModel):
    """What strategies must know of ResNet."""

    tensor_plan = ()
    mixes_rows = True
    step_length = 0.03  # batch norm makes small weights turn fast

    def __init__(self, name: str, dimensions: Mapping[str, bool | int | float]):
        """Raises `UsageError` where the dimensions do not fit together."""
        self.name, self.dimensions = name, Dimensions(**dimensions)
        d = self.dimensions
        if d.image % HALVINGS:
            raise UsageError(f"model {name!r} has image={d.image}: it is halved five times, give a multiple of {HALVINGS}")
        if d.classes < CLASSES:
            raise UsageError(f"model {name!r} has classes={d.classes}: the images have {CLASSES}, give as many or more")
        self.blocks = tuple(f"block{i}" for i in range(sum(d.stages)))
        self.units = ("stem", *self.blocks, "head")
        self.smooth_options = {} if d.smooth else {"smooth": True}
        self._shapes = dict(zip(self.blocks, _shapes(d), strict=True))
        self._channels = self._shapes[self.blocks[-1]].outputs

    def samples(self, cell: Cell) -> Digits:
        return Digits(cell.seed, side=self.dimensions.image, channels=COLOURS)

    def example(self, rows: int, sequence: int) -> Tensor:
        return torch.empty(rows, COLOURS, self.dimensions.image, self.dimensions.image, device="meta")

    def build(self, unit: str) -> nn.Module:
        d = self.dimensions
        if unit == "stem":
            return Stem(d)
        if unit == "head":
            return Head(self._channels, d.classes)
        return Block(self._shapes[unit], d)

    def initial(self, name: str, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        if len(shape) == 1 and name.endswith("bias"):
            return torch.zeros(shape)
        if len(shape) == 1:
            # So many blocks add up in the stream; begun at 1 throughout, gradients of deep sizes explode.
            ends_block = name.endswith(
                "convolutions.2.norm.weight" if self.dimensions.bottleneck else "convolutions.1.norm.weight"
            )
            return torch.full(shape, len(self.blocks) ** -0.5 if ends_block else 1.0)
        # He et al., Delving Deep into Rectifiers, 2015, by what a filter reaches; the head's Linear by what reaches it.
        reach = shape[1] if len(shape) == 2 else shape[0] * math.prod(shape[2:])
        deviation = ((1 if len(shape) == 2 else 2) / reach) ** 0.5
        return torch.empty(shape).normal_(0.0, deviation, generator=generator)

    def share_batch(self, module: nn.Module, world: World) -> None:
        group = world.group("dp")
        if self.dimensions.synchronised and group is not None:
            synchronise(module, group, world.device.type)

    def incomparable(self, cell: Cell) -> str | None:
        ranks, microbatches = cell.layout.degree("dp"), cell.batch.microbatches
        if microbatches > 1:
            return (
                f"batch norm takes its statistics over one of {microbatches} microbatches at a time, and the single-device "
                "step over the whole batch: only with one microbatch are they the same function"
            )
        if ranks > 1 and not self.dimensions.synchronised:
            return (
                f"local batch norm takes its statistics over one of {ranks} data ranks' images, and the single-device step "
                "over all of them: with [synchronised=true] they are the same function"
            )
        return None

    def boundary(self, unit: str, rows: int, sequence: int) -> tuple[int, ...]:
        d = self.dimensions
        if unit == "head":
            return (rows, d.classes)
        if unit == "stem":
            return (rows, d.width, d.image // 4, d.image // 4)
        shape = self._shapes[unit]
        return (rows, shape.outputs, shape.side, shape.side)

    def forward_flops(self, unit: str, rows: int, sequence: int, *, causal: bool) -> int:
        d = self.dimensions
        if unit == "head":
            return 2 * rows * self._channels * d.classes
        if unit == "stem":
            return 2 * rows * COLOURS * d.width * 7 * 7 * (d.image // 2) ** 2
        shape = self._shapes[unit]
        side, products = shape.side * shape.stride, 0
        for inputs, outputs, kernel, stride in shape.convolutions(d.bottleneck):
            side //= stride
            products += inputs * outputs * kernel * kernel * side * side
        if shape.projects:
            products += shape.inputs * shape.outputs * shape.side * shape.side
        return 2 * rows * products

    def shallow(self, blocks: int) -> Mapping[str, int]:
        # A block for every stage at least, as each has widths of its own.
        counts = [1] * len(self.dimensions.stages)
        for stage, most in enumerate(self.dimensions.stages):
            counts[stage] = min(most, 1 + max(0, blocks - sum(counts)))
        return {f"stage{i + 1}": count for i, count in enumerate(counts)}

    def activation_bytes(self, rows: int, sequence: int) -> int:
        # Of each convolution its output, in fp32 or as two 16-bit copies, before and after its norm.
        elements = (COLOURS + self.dimensions.width) * self.dimensions.image**2 // 4
        for shape in self._shapes.values():
            side = shape.side * shape.stride
            for _, outputs, _, stride in shape.convolutions(self.dimensions.bottleneck):
                side //= stride
                elements += outputs * side * side
            elements += shape.outputs * shape.side * shape.side * (1 + shape.projects)
        return 8 * rows * elements

    def tensor_problem(self, degree: int) -> str | None:
        return f"{self.name} is made of convolutions, and a tensor plan cuts Linears and Embeddings: spread it along dp or pp"

    @cached_property
    def parameter_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return parameter_shapes(self)


def _shapes(d: Dimensions) -> list[Shape]:
    """The shape of every block in order."""
    found, inputs = [], d.width
    for stage, blocks in enumerate(d.stages):
        width = d.width * 2**stage
        for i in range(blocks):
            outputs = 4 * width if d.bottleneck else width
            stride = 2 if stage and not i else 1
            side = d.image // 4 // 2**stage
            found.append(Shape(inputs=inputs, width=width, outputs=outputs, stride=stride, side=side))
            inputs = outputs
    return found
