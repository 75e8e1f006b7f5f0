"""Signals while a run goes on."""

from __future__ import annotations

import os
import signal

import pytest

from harness.interrupts import Interrupts


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def test_once_asks_and_twice_stops(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        send(signal.SIGINT)
        assert interrupts.asked
        assert "Ctrl-C again stops at once" in capsys.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        send(signal.SIGINT)  # while processes are cleaned up nothing more is heeded
        send(signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_stops_at_once(number: signal.Signals) -> None:
    with Interrupts(), pytest.raises(KeyboardInterrupt):
        send(number)


def test_what_was_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            send(signal.SIGINT)
            assert not interrupts.asked
    finally:
        signal.signal(signal.SIGINT, before)
