"""The output of the demo: a live display in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from examples.retail.progress import Progress

_LINE_EVERY_S: Final = 2.0
_BAR_WIDTH: Final = 40


class Display:
    """Prints messages with the seconds since the beginning, and the progress of the orders."""

    def __init__(self, console: Console, *, baskets: int) -> None:
        self.console = console
        self._baskets = baskets
        self._began = time.monotonic()
        self._live: Live | None = None
        self._last_line = 0.0
        self._last: Progress | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def say(self, message: str) -> None:
        """Print a message."""
        line = f"[dim]{self.seconds:5.1f} s[/]  {message}"
        self.console.print(line, highlight=False, soft_wrap=True)

    def show(self, progress: Progress, shards: Mapping[str, int]) -> None:
        """Show the progress of the orders; `shards` are the counts of each relay, by its name."""
        if self._live is not None:
            self._live.update(self._picture(progress, shards), refresh=True)
        elif progress != self._last and time.monotonic() - self._last_line > _LINE_EVERY_S:
            self.sum_up(progress)

    def sum_up(self, progress: Progress) -> None:
        """Print the progress of the orders in one line."""
        counts = [f"{name} {count:,}" for name, count in _counts(progress).items()]
        self.say(", ".join(counts))
        self._last, self._last_line = progress, time.monotonic()

    def _picture(self, progress: Progress, shards: Mapping[str, int]) -> Group:
        picture = Table.grid(padding=(0, 2))
        for name, count in _counts(progress).items():
            style = "yellow" if name == "lag" else "green"
            bar = ProgressBar(
                total=self._baskets,
                completed=count,
                width=_BAR_WIDTH,
                complete_style=style,
                finished_style=style,
            )
            picture.add_row(name, bar, f"{count:,}")
        holdings = ", ".join(f"{count} by {relay}" for relay, count in shards.items())
        return Group(picture, f"[dim]shards held: {holdings or 'none'}[/]")


def _counts(progress: Progress) -> dict[str, int]:
    return {
        "written": progress.written,
        "published": progress.published,
        "applied": progress.applied,
        "refused": progress.refused,
        "compensated": progress.compensated,
        "lag": progress.lag,
    }
