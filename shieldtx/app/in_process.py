"""Relay and consumers in threads of the service's own process, for small services."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self

from shieldtx.app.application import ShieldTx
from shieldtx.app.http_endpoints import WatchedWorkers, http_endpoints
from shieldtx.app.start_checks import check_group, check_relay, check_tables
from shieldtx.app.workers import consumer_process, relay_process
from shieldtx.domain.callables import check_callable
from shieldtx.errors import ConfigurationError
from shieldtx.scheduling.exit_status import EXIT_NOT_GRACEFUL, EXIT_STOPPED
from shieldtx.scheduling.worker import Worker

log = logging.getLogger(__name__)


def end_process(worker: str, status: int) -> None:  # noqa: ARG001  the signature of the callback
    """Send SIGTERM to this process: its server stops gracefully, and its supervisor restarts it."""
    os.kill(os.getpid(), signal.SIGTERM)


class InProcessWorkers:
    """Runs a relay and consumers in threads of this process, as a context manager.

    Both `with` and `async with` check the tables and topics, start the workers, and return when
    they work. At the end they stop gracefully, as the commands `shieldtx relay` and `shieldtx
    consume` do. Each process of a service may run them: relays share shards, consumers partitions.
    Handlers take time from the requests of the process, since Python runs one thread at a time.

    A worker that fails for longer than SHIELDTX_FAILURE_LIMIT ends: `on_failure(worker, status)` is
    called in its thread, by default `end_process`. A pass that hangs ends the whole process, since
    its thread cannot be ended otherwise.
    """

    def __init__(
        self,
        app: ShieldTx,
        *,
        relay: bool = True,
        groups: Collection[str] | None = None,
        on_failure: Callable[[str, int], None] = end_process,
    ) -> None:
        """Run a relay unless `relay` is false, and a consumer for each group, by default for all.

        All are those that have handlers at the start. Raises ConfigurationError for an unknown
        group, or if nothing is to run.
        """
        if isinstance(groups, str):
            raise ConfigurationError(f"groups must be a collection of names, not {groups!r}")
        self._app = app
        self._relay = relay
        self._groups = None if groups is None else list(groups)
        if not (relay or self._groups is None or self._groups):
            raise ConfigurationError("there is nothing to run: neither a relay nor a group")
        for group in self._groups or ():
            app.topics_of(group)
        check_callable(
            on_failure, what="on_failure of InProcessWorkers", call="on_failure(name, status)"
        )
        self._on_failure = on_failure
        self._running: list[tuple[Worker, threading.Thread]] = []
        self._stopping = False
        self._endpoints = ExitStack()

    def start(self) -> None:
        """Start all workers and wait until they work.

        Raises ShieldTxError if the tables or topics are missing, and what a worker raises at its
        start; then none runs.
        """
        if self._running:
            raise ConfigurationError("the workers run already")
        self._stopping = False
        check_tables(self._app)
        groups = self._groups_to_run()
        try:
            watched = self._open_endpoints()
            for group in groups:
                check_group(self._app, group, may_wait=True)
            if self._relay:
                check_relay(self._app, may_wait=True)
                self._start("relay", relay_process(self._app), watched)
            for group in groups:
                self._start(f"consumer {group}", consumer_process(self._app, group), watched)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop all workers gracefully, and wait for their end."""
        self._stopping = True
        for worker, _ in self._running:
            worker.stop("service stops")
        for _, thread in self._running:
            # `on_failure` may call this in the thread of the worker that has failed.
            if thread is not threading.current_thread():
                thread.join()
        self._endpoints.pop_all().close()
        self._running.clear()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # Its thread continues, and running workers would keep the process alive.
            with suppress(Exception):
                await starting
            await asyncio.to_thread(self.stop)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.stop)

    def _open_endpoints(self) -> WatchedWorkers:
        watched = self._endpoints.enter_context(http_endpoints(self._app))
        if watched.address is not None:
            log.info(
                "HTTP endpoints are open",
                extra={"action": "http_endpoints_open", "address": watched.address},
            )
        return watched

    def _groups_to_run(self) -> list[str]:
        """Return the groups; by default all with handlers, also those declared after this object.

        Raises ConfigurationError if nothing is to run.
        """
        if self._groups is not None:
            return self._groups
        found = sorted(name for name, group in self._app.groups.items() if group.subscriptions())
        if not (self._relay or found):
            raise ConfigurationError("there is nothing to run: no group has a handler")
        return found

    def _start(self, name: str, worker: Worker, watched: WatchedWorkers) -> None:
        watched.add(worker)
        ready = threading.Event()
        errors: list[BaseException] = []

        def run() -> None:
            try:
                status = worker.run(ready.set)
            except BaseException as error:  # noqa: BLE001  raised in the thread that starts
                errors.append(error)
                status = EXIT_NOT_GRACEFUL
            if ready.is_set():
                self._ended(name, status)
            ready.set()

        thread = threading.Thread(target=run, name=f"shieldtx {name}")
        thread.start()
        self._running.append((worker, thread))
        ready.wait()
        if errors:
            raise errors[0]

    def _ended(self, name: str, status: int) -> None:
        if self._stopping or status == EXIT_STOPPED:
            return
        log.error(
            "worker in this process has failed",
            extra={"action": "in_process_worker_failed", "worker": name, "status": status},
        )
        self._on_failure(name, status)
