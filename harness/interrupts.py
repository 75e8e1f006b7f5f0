"""Ctrl-C and requests to end, while a run goes on: once, the cells that run finish their records; twice, all stops at once.

SIGTERM and SIGHUP stop at once. Whatever comes while processes are cleaned up is not heeded any more.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any


class Interrupts:
    """Handles signals while it is entered, in the main thread; elsewhere it does nothing."""

    asked = False
    """Whether to begin no further cell."""

    def __enter__(self) -> Interrupts:
        self._before: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():
            handlers = {signal.SIGINT: self._interrupt, signal.SIGTERM: self._stop, signal.SIGHUP: self._stop}
            for number, handler in handlers.items():
                if signal.getsignal(number) != signal.SIG_IGN:  # as nohup asks for
                    self._before[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            self._stop(number, frame)
        self.asked = True
        print("\nfinishing what runs, then stopping; Ctrl-C again stops at once", file=sys.stderr, flush=True)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        for handled in self._before:
            signal.signal(handled, signal.SIG_IGN)
        raise KeyboardInterrupt
