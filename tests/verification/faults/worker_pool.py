"""The crew of a long run: many workers, some of which are down at any time."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import psutil

from tests.verification.faults.banks import Banks
from tests.verification.faults.failpoints import Failpoint
from tests.verification.faults.side import Side
from tests.verification.faults.workers import Worker

RELAYS = 2
"""Of each bank."""
CONSUMERS = 2
"""Of each bank."""


@dataclass(kw_only=True)
class Post:
    """A place in the crew: which process has it now."""

    side: Side
    words: tuple[str, ...]
    worker: Worker
    back_at: float = 0.0
    """When a dead one is replaced, by the monotonic clock."""

    def __str__(self) -> str:
        return f"{self.words[0]} of {self.side.name}"


@dataclass(kw_only=True)
class Footprint:
    """The largest that a worker has been, for what must stay flat."""

    megabytes: int = 0
    descriptors: int = 0
    threads: int = 0

    def take(self, worker: Worker) -> None:
        """Look at a living worker."""
        process = psutil.Process(worker.pid)
        with process.oneshot():
            self.megabytes = max(self.megabytes, process.memory_info().rss // 2**20)
            self.descriptors = max(self.descriptors, process.num_fds())
            self.threads = max(self.threads, process.num_threads())


@dataclass(kw_only=True)
class WorkerPool:
    """Relays and consumers of both banks."""

    banks: Banks
    environment: Mapping[str, Mapping[str, str]]
    """Of the workers of each side, beside the side's own."""
    posts: list[Post] = field(default_factory=list)
    died: list[str] = field(default_factory=list)
    """Who ended without having been killed."""
    footprint: Footprint = field(default_factory=Footprint)

    def hire(self) -> None:
        """Start everybody."""
        for side in self.banks.sides:
            for words in [("relay",)] * RELAYS + [("consume", side.group)] * CONSUMERS:
                worker = side.launch(*words, **self.environment[side.name])
                self.posts.append(Post(side=side, words=words, worker=worker))
        for post in self.posts:
            post.worker.await_ready()

    def anybody(self) -> Post:
        """Choose one of those that work."""
        living = [post for post in self.posts if post.worker.is_running]
        return self.banks.chance.choice(living or self.posts)

    def kill(self, post: Post, *, for_seconds: float) -> None:
        """Let a process crash; it is replaced after a while."""
        post.worker.kill()
        post.back_at = time.monotonic() + for_seconds

    def replace_by_broken(self, post: Post, point: Failpoint) -> None:
        """Let a process crash, and put one in its place that will break at a failpoint."""
        post.worker.kill()
        post.side.mark.unlink(missing_ok=True)
        self._fill(post, **post.side.broken_at(point))

    def look(self) -> None:
        """Replace the dead, and measure the living."""
        for post in self.posts:
            if post.worker.is_running:
                continue
            if post.back_at == 0.0:
                # It ended at a failpoint, or could not begin without its database; or it died.
                if post.worker.exit_status != -signal.SIGKILL and post.worker.is_ready():
                    self.died.append(
                        f"{post}: exit status {post.worker.exit_status}\n{post.worker.tail(8)}"
                    )
                post.back_at = time.monotonic() + 1
            elif time.monotonic() >= post.back_at:
                self._fill(post)

    def measure(self) -> None:
        """Note how large the living are."""
        for post in self.posts:
            if post.worker.is_running:
                self.footprint.take(post.worker)

    def all_back(self) -> None:
        """Replace whoever is down."""
        for post in self.posts:
            if not post.worker.is_running:
                self._fill(post)

    def _fill(self, post: Post, **more: str) -> None:
        post.worker = post.side.launch(*post.words, **{**self.environment[post.side.name], **more})
        post.back_at = 0.0
