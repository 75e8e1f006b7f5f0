"""What FairScale's FullyShardedDataParallel needs where there is no CUDA. It is no longer maintained, and written for GPUs: it
asks for CUDA streams whatever the device (fairscale/nn/data_parallel/fully_sharded_data_parallel.py, version 0.4.13).

A CPU does one thing after the other, so a stream that does nothing is a right one. `without_cuda` puts such streams in the
place of `torch.cuda` for that one file; with CUDA nothing is touched.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from fairscale.internal import reduce_scatter_bucketer
from fairscale.nn.data_parallel import fully_sharded_data_parallel as upstream


class _Stream:
    """Of work that is done as soon as it is asked for."""

    def wait_stream(self, other: object) -> None:
        pass

    def synchronize(self) -> None:
        pass


class _Cuda:
    """The part of `torch.cuda` that the file uses."""

    def __init__(self) -> None:
        self._only = _Stream()

    def is_available(self) -> bool:
        return True  # or no stream is made, and the file looks for them all the same

    def Stream(self) -> _Stream:
        return self._only

    def current_stream(self) -> _Stream:
        return self._only

    def stream(self, stream: _Stream) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def synchronize(self) -> None:
        pass


class _Torch:
    """torch, but for `torch.cuda`."""

    cuda = _Cuda()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def without_cuda() -> tuple[str, ...]:
    """Make the wrapper run in this process. Returns what was changed, each in one sentence, for the record."""
    if torch.cuda.is_available():
        return ()
    upstream.torch = _Torch()
    record = torch.Tensor.record_stream
    torch.Tensor.record_stream = lambda tensor, stream: None if isinstance(stream, _Stream) else record(tensor, stream)
    # gloo's reduce-scatter of one tensor wants a flat one, and the file gives it a matrix (Bucket.flush).
    reduce_scatter_bucketer.enable_nccl_base_collectives = False
    return (
        "shim: FairScale's FullyShardedDataParallel runs with streams that do nothing, as it asks for CUDA's on every device",
        "shim: its reduce-scatter goes by a list of tensors, as the one tensor that it gives is none that gloo takes",
    )
