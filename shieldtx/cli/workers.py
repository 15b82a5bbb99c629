"""`shieldtx relay` and `shieldtx consume`: the worker processes of a service."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, NoReturn

import typer

from shieldtx.app.application import ShieldTx
from shieldtx.app.workers import consumer_process, relay_process
from shieldtx.cli import topics
from shieldtx.cli.app_loading import invocation
from shieldtx.cli.once import consume_once, relay_once
from shieldtx.cli.output import AsJson, announce, print_json, print_line, require
from shieldtx.errors import BrokerUnavailable
from shieldtx.scheduling.worker import Worker

log = logging.getLogger(__name__)

Once = Annotated[bool, typer.Option("--once", help="Do what is due, then leave: for cron and CI.")]


def relay(context: typer.Context, *, once: Once = False, as_json: AsJson = False) -> None:
    """Publish the events of the outbox, in order per key, until SIGTERM.

    Start as many as you like: they share the shards out, and take over those of one that dies.
    SIGTERM, SIGHUP or Ctrl-C ends it gracefully: the pass is finished, the shards are freed. A
    second one ends it on the spot; the others then take over when its lease has run out. It prints
    a line that begins with "ready" when it works.

    With --once it publishes what is due and leaves; the exit status is 1 when the broker is away.

    Example: `shieldtx --app shop.orders:shield relay`

    Settings: SHIELDTX_DATABASE_URL, SHIELDTX_KAFKA_BOOTSTRAP; SHIELDTX_RELAY_LEASE (how soon a dead
    relay is replaced), SHIELDTX_RELAY_SEND_TIMEOUT, SHIELDTX_RELAY_BATCH_SIZE,
    SHIELDTX_RELAY_BATCH_BYTES, SHIELDTX_RELAY_POLL_INTERVAL, SHIELDTX_STOP_TIMEOUT,
    SHIELDTX_RETENTION_OUTBOX.
    """
    if once:
        require()
    app = invocation(context).declared()
    app.schema.check()
    app.schema.check_sequences()
    if not once:
        _run(relay_process(app), f"relay of {app.settings.source}")
    done = relay_once(app)
    counts = asdict(done)
    if as_json:
        print_json(counts)
    else:
        print_line(_listed(counts, "published", "retried", "failed", "released"))
    if done.outage:
        raise BrokerUnavailable(f"events stay in the outbox: {done.outage}")


def consume(
    context: typer.Context,
    group: Annotated[str, typer.Argument(help="A consumer group that your code declares.")],
    *,
    once: Once = False,
    as_json: AsJson = False,
) -> None:
    """Run the handlers of a consumer group, until SIGTERM.

    Start as many as there are partitions: each event has one effect, however often it is delivered.
    SIGTERM, SIGHUP or Ctrl-C ends it after the handler that runs; a second one on the spot. It
    prints a line that begins with "ready" when it works.

    With --once it handles what is on the topics and what is due in the inbox, and leaves; retries
    that wait for their time stay in the inbox. What is on a partition that is paused,
    because too many of its events are unfinished, is left to the next run.

    Example: `shieldtx --app shop.stock:shield consume stock`

    Settings: SHIELDTX_DATABASE_URL, SHIELDTX_KAFKA_BOOTSTRAP; SHIELDTX_CONSUMER_BATCH_SIZE,
    SHIELDTX_CONSUMER_BATCH_BYTES, SHIELDTX_CONSUMER_PENDING_LIMIT, SHIELDTX_STOP_TIMEOUT,
    SHIELDTX_RETENTION_INBOX, SHIELDTX_KAFKA_GROUP_PREFIX.
    """
    if once:
        require()
    app = invocation(context).declared()
    app.schema.check()
    app.schema.check_sequences()
    _require_topics(app, group, may_wait=not once)
    topics.refuse_strangers(app, group)
    if not once:
        _run(consumer_process(app, group), f"consumer {group} of {app.settings.source}")
    done = consume_once(app, group)
    if as_json:
        print_json(done)
    else:
        print_line(_listed(done, *done))


def _run(worker: Worker, what: str) -> NoReturn:
    """Run a worker to its end, and end the process with its exit status."""
    raise typer.Exit(worker.run(lambda: announce(f"ready: {what} (pid {os.getpid()})")))


def _require_topics(app: ShieldTx, group: str, *, may_wait: bool) -> None:
    """Refuse to start without the topics; a broker that is away may come back later."""
    try:
        topics.require(app, group)
    except BrokerUnavailable as error:
        if not may_wait:
            raise
        log.warning("the topics are not checked, %s", error)


def _listed(counts: Mapping[str, object], *names: str) -> str:
    return ", ".join(f"{counts[name]} {name}" for name in names)
