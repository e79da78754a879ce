"""Many blocking jobs side by side, with a bound on their number and an end in time.

Not an executor of the standard library: those wait for stuck threads when the program ends.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Done(Generic[T, R]):
    """A finished job: its result, or what it raised."""

    def __init__(self, item: T, job: Callable[[T], R]) -> None:
        self.item = item
        self._future: Future[R] = Future()
        try:
            self._future.set_result(job(item))
        except BaseException as error:  # noqa: BLE001 - raised again by whoever takes the result
            self._future.set_exception(error)

    @property
    def result(self) -> R:
        """What the job returned; raises what it raised."""
        return self._future.result()


def fan_out(
    job: Callable[[T], R], items: Sequence[T], width: int, deadline: float
) -> Iterator[Done[T, R]]:
    """Yield jobs as they finish, at most `width` at a time, until the deadline (monotonic).

    Jobs that are late go on in daemon threads, and what they return is lost.
    """
    todo: queue.SimpleQueue[T] = queue.SimpleQueue()
    done: queue.SimpleQueue[Done[T, R]] = queue.SimpleQueue()
    for item in items:
        todo.put(item)

    def work() -> None:
        while time.monotonic() < deadline:
            try:
                item = todo.get_nowait()
            except queue.Empty:
                return
            done.put(Done(item, job))

    if items:
        start(work, min(width, len(items)))
    with contextlib.suppress(queue.Empty):
        for _ in items:
            yield done.get(timeout=max(0.0, deadline - time.monotonic()))


def start(work: Callable[[], None], most: int) -> None:
    """Start daemon threads, fewer where this machine has no more: those do it all, or we do."""
    try:
        threading.Thread(target=work, daemon=True).start()
    except RuntimeError:
        work()
        return
    with contextlib.suppress(RuntimeError):
        for _ in range(most - 1):
            threading.Thread(target=work, daemon=True).start()
