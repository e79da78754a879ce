"""Progress on standard error while a run goes on; only on a terminal."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console

from preflight.run import Event, Exercising, NodeDone


class Meter:
    """One line that changes: how many nodes have answered, and what is being exercised."""

    def __init__(self, nodes: int, color: bool) -> None:
        console = Console(stderr=True, no_color=not color)
        self._status = (
            console.status(f"connecting to {nodes} nodes") if console.is_terminal else None
        )
        self._nodes = nodes
        self._done = self._lost = 0

    def __enter__(self) -> Meter:
        """Begin."""
        if self._status:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wipe the line."""
        if self._status:
            self._status.stop()

    def show(self, event: Event) -> None:
        """Show what happened."""
        if isinstance(event, NodeDone):
            self._done += 1
            self._lost += not event.reached
            lost = f", {self._lost} not reached" if self._lost else ""
            text = f"{self._done} of {self._nodes} nodes probed{lost}"
        elif isinstance(event, Exercising):
            text = event.check
        else:
            text = "judging"
        if self._status:
            self._status.update(text)
