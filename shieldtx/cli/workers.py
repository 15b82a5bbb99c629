"""`shieldtx relay` and `shieldtx consume`: the worker processes of a service."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, NoReturn

import typer

from shieldtx.app.application import ShieldTx
from shieldtx.app.http_endpoints import WatchedWorkers, http_endpoints
from shieldtx.app.start_checks import check_group, check_relay, check_tables
from shieldtx.app.workers import consumer_process, end_dead_attempts, relay_process
from shieldtx.cli.app_loading import invocation
from shieldtx.cli.errors import FAILED, Failure, report
from shieldtx.cli.output import AsJson, announce, print_json, print_line, require
from shieldtx.cli.process_fields import name_service
from shieldtx.errors import BrokerUnavailable
from shieldtx.relay.result import RelayResult
from shieldtx.scheduling.exit_status import log_briefly
from shieldtx.scheduling.gc_tuning import few_collections
from shieldtx.scheduling.signals import graceful_signals
from shieldtx.scheduling.worker import Worker, end_at_once
from shieldtx.scheduling.worker_log import WorkerIdentity, WorkerLog
from shieldtx.store.status import DEFAULT_LIMIT, Count, Precision, Unsent

log = logging.getLogger(__name__)

Once = Annotated[
    bool, typer.Option("--once", help="Process everything that is due and exit, for cron and CI.")
]


def relay(context: typer.Context, *, once: Once = False, as_json: AsJson = False) -> None:
    """Publish the events of the outbox, in order per key, until SIGTERM.

    Start any number of relays: they share the shards, and take over the shards of a relay that
    dies. SIGTERM, SIGHUP or Ctrl-C stops the relay gracefully: it finishes the pass and frees the
    shards. A second signal ends it at once; other relays take over after its lease. When it works,
    it prints a line that begins with "ready".

    With --once it publishes the due events of the shards that it gets, and exits. The output has
    the number of due events that remain unsent, and of shards that other relays hold. The exit
    status is 1 if due events remain unsent, if an attempt failed, or if the broker is unreachable.
    Due are all events except half messages and delayed events before their time.

    Example: `shieldtx --app shop.orders:shield relay`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_KAFKA_BOOTSTRAP;
    SHIELDTX_RELAY_LEASE (how soon a dead relay is replaced), SHIELDTX_RELAY_SEND_TIMEOUT,
    SHIELDTX_RELAY_BATCH_SIZE, SHIELDTX_RELAY_BATCH_BYTES, SHIELDTX_RELAY_POLL_INTERVAL,
    SHIELDTX_STOP_TIMEOUT, SHIELDTX_RETENTION_OUTBOX, SHIELDTX_TOPIC_PREFIX,
    SHIELDTX_DATABASE_SCHEMA, SHIELDTX_SIGNING_KEY. `shieldtx --help` lists all.
    """
    if once:
        require()
    app = _checked(context)
    with http_endpoints(app) if not once else nullcontext() as watched:
        check_relay(app, may_wait=True)
        if watched is not None:
            _run(watched, relay_process(app), f"relay of {app.settings.source}")
    done = _relay_once(app)
    # After the end of its relay: the shards that are held now are those of others.
    left = app.stores.status().unsent()
    counts = asdict(done)
    if as_json:
        remain = {"unsent": asdict(left.events), "shards_of_other_relays": left.shards_held}
        print_json(counts | remain)
    else:
        print_line(_listed(counts, "published", "retried", "failed", "released"))
        print_line(f"due events unsent: {_number(left.events)}; {_held(left)}")
    if done.outage:
        raise BrokerUnavailable(f"events stay in the outbox: {done.outage}")
    if problems := _problems(done, left):
        report(Failure(line="; ".join(problems), status=FAILED))
        raise typer.Exit(FAILED)


def consume(
    context: typer.Context,
    group: Annotated[str, typer.Argument(help="Consumer group that your code declares.")],
    *,
    once: Once = False,
    as_json: AsJson = False,
) -> None:
    """Run the handlers of a consumer group, until SIGTERM.

    Start at most one consumer per partition: each event has one effect, however often it is
    delivered. SIGTERM, SIGHUP or Ctrl-C stops the consumer after the running handler; a second
    signal at once. When it works, it prints a line that begins with "ready".

    With --once it handles the records of the topics and the due events of the inbox, and exits.
    Events that wait stay in the inbox (for a retry, another event, a paused handler), as do events
    in progress at other workers; the output has the number of all that are unfinished. Records of a
    partition that is paused, because too many of its events are unfinished, are left to the next
    run; the output also has the number of the group's paused partitions.

    Example: `shieldtx --app shop.stock:shield consume stock`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_KAFKA_BOOTSTRAP;
    SHIELDTX_CONSUMER_BATCH_SIZE, SHIELDTX_CONSUMER_BATCH_BYTES,
    SHIELDTX_CONSUMER_PENDING_LIMIT, SHIELDTX_STOP_TIMEOUT, SHIELDTX_RETENTION_INBOX,
    SHIELDTX_KAFKA_GROUP_PREFIX, SHIELDTX_TOPIC_PREFIX, SHIELDTX_DATABASE_SCHEMA,
    SHIELDTX_SIGNING_KEY, SHIELDTX_CONSUMER_CONCURRENCY, SHIELDTX_CONSUMER_BREAKER. `shieldtx
    --help` lists all.
    """
    if once:
        require()
    app = _checked(context)
    with http_endpoints(app) if not once else nullcontext() as watched:
        check_group(app, group, may_wait=not once)
        if watched is not None:
            _run(
                watched, consumer_process(app, group), f"consumer {group} of {app.settings.source}"
            )
    done, paused = _consume_once(app, group)
    if not as_json:
        print_line(_listed(done, *done))
    left: dict[str, Any] = {"paused_partitions": paused}
    try:
        # After the end of its consumer: what is in progress now is in progress at others.
        unfinished = _unfinished(app, group)
        left["unfinished"] = asdict(unfinished)
    finally:
        if as_json:
            print_json(done | left)
    if not as_json:
        print_line(
            f"events unfinished in the inbox: {_number(unfinished)}; partitions paused: {paused}"
        )


def _unfinished(app: ShieldTx, group: str) -> Count:
    """Return how many of a group's events wait, for whatever reason, or run in other workers."""
    rows = app.stores.unfinished_rows().count(group, limit=DEFAULT_LIMIT)
    precision = Precision.AT_LEAST if rows >= DEFAULT_LIMIT else Precision.EXACT
    return Count(rows=rows, precision=precision)


def _checked(context: typer.Context) -> ShieldTx:
    """Return the application of `--app`; raises ShieldTxError if its tables do not fit."""
    app = invocation(context).declared()
    name_service(app.settings.source)
    check_tables(app)
    return app


def _run(watched: WatchedWorkers, worker: Worker, what: str) -> NoReturn:
    """Run a worker until it stops, and end the process with its exit status."""
    # The worker freezes all objects itself: the modules of the program and of the application.
    gc.unfreeze()
    watched.add(worker)
    address = f", http://{watched.address}" if watched.address else ""
    raise typer.Exit(worker.run(lambda: announce(f"ready: {what} (pid {os.getpid()}{address})")))


def _number(count: Count) -> str:
    return f"{count.rows:,}{'' if count.precision is Precision.EXACT else ' or more'}"


def _held(left: Unsent) -> str:
    return f"other relays hold {left.shards_held} of {left.shards} shards"


def _problems(done: RelayResult, left: Unsent) -> list[str]:
    """Return what `relay --once` could not do."""
    problems = []
    if left.events.rows:
        problems.append(
            f"{_number(left.events)} due events remain unsent, {_held(left)}: see `shieldtx status`"
        )
    if done.failed:
        problems.append(f"{done.failed:,} events failed permanently: see `shieldtx dead list`")
    if done.retried:
        problems.append(
            f"{done.retried:,} attempts failed: `shieldtx dead show EVENT_ID` has the reason"
        )
    return problems


def _listed(counts: Mapping[str, object], *names: str) -> str:
    return ", ".join(f"{counts[name]} {name}" for name in names)


@few_collections()
def _relay_once(app: ShieldTx) -> RelayResult:
    """Check back half messages, publish the due events of free shards, then release the shards."""
    with _stopped_by_signals("relay --once") as stop:
        return _relay_what_is_due(app, stop)


def _relay_what_is_due(app: ShieldTx, stop: threading.Event) -> RelayResult:
    _check_once(app, stop)
    relay = app.build_relay()
    done = RelayResult()
    try:
        while not stop.is_set():
            step = relay.run_once()
            done = done.then(step)
            if not step.more:
                break
            if step.slowed:
                stop.wait(min(step.slowed, relay.until_renewal.total_seconds()))
    finally:
        relay.close()
        app.tracer.close()
    return done


@few_collections()
def _consume_once(app: ShieldTx, group: str) -> tuple[dict[str, int], int]:
    """Handle the records of the topics and the due events of the inbox.

    Returns the counts, and the number of partitions of the group that are paused at the end.
    """
    with _stopped_by_signals(f"consume {group} --once") as stop:
        return _consume_what_is_due(app, group, stop)


def _consume_what_is_due(
    app: ShieldTx, group: str, stop: threading.Event
) -> tuple[dict[str, int], int]:
    consumer = app.build_consumer(group, stopping=stop.is_set)
    done: Counter[str] = Counter(dict.fromkeys(("records", "fresh", "duplicates", "parked"), 0))
    paused = 0
    try:
        while not stop.is_set():
            step = consumer.run_once()
            done["records"] += step.records
            done["fresh"] += step.fresh
            done["duplicates"] += step.duplicates
            done["parked"] += step.parked
            paused = step.paused
            for outcome, count in step.outcomes.items():
                done[outcome.name.lower()] += count
            if step.more or not consumer.has_caught_up():
                continue
            # Last: a worker that died with events in progress holds them until its leases end.
            if not end_dead_attempts(app, group):
                break
    finally:
        consumer.close()
        app.tracer.close()
    return dict(done), paused


def _check_once(app: ShieldTx, stop: threading.Event) -> None:
    """Check back the due half messages; park those too old, or with all check-backs used up."""
    for check_back in app.half_messages.check_backs(stopping=stop.is_set):
        while check_back.run_once().more and not stop.is_set():
            pass
    parking = app.half_messages.parking()
    while parking.run_once().more and not stop.is_set():
        pass


@contextmanager
def _stopped_by_signals(command: str) -> Iterator[threading.Event]:
    """Yield an event that the first signal sets; a second signal ends the process at once."""
    stop = threading.Event()
    worker_log = WorkerLog(command, WorkerIdentity())

    def end(number: int) -> None:
        if stop.is_set():
            end_at_once(worker_log, number)
        stop.set()
        log_briefly(partial(worker_log.stopping, signal.Signals(number).name))

    with graceful_signals(end):
        yield stop
