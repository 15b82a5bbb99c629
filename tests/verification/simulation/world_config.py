"""The size of a world, and its peculiarities."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from datetime import timedelta

from shieldtx.ports.broker import BATCH_BYTES
from tests.verification.simulation.banks import TOPIC, TYPE, Transfer
from tests.verification.simulation.second_source import Notice

HALF_MESSAGES = 0.2
"""The share of worlds with half messages."""

SECOND_SOURCE = 0.15
"""The share of worlds in which a second service writes into the tables of the first."""

OTHER_NUMBERS = 0.15
"""The share of worlds in which writers have settings for the number of shards."""

PARKED_EVENTS = 0.15
"""The share of worlds in which the credit parks events that it cannot handle."""

REMOVED_TYPE = 0.15
"""The share of worlds with more events without a handler than a consumer takes at a time."""

LANES = 0.25
"""The share of worlds whose consumers have several lanes."""

COROUTINES = 0.25
"""The share of worlds whose handlers are coroutine functions."""

BREAKERS = 0.2
"""The share of worlds whose consumers pause handlers after failures."""

FOREIGN_ROLLBACKS = 0.2
"""The share of further worlds in which a group takes back events of another service."""


EARLY_TAKEOVERS = 0.25
"""The share of worlds whose relays see at once which others have died."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorldConfig:
    """The size of a world."""

    transfers: tuple[Transfer, ...]
    relays: int
    consumers: int
    shards: int
    partitions: int
    relay_batch: int
    consumer_batch: int
    attempts: int
    """Attempts of relays and of handlers."""
    has_fraud_group: bool
    sharing: str = "one"
    """How the handler of the transfers takes its events: "one" by one, "alone", or as a "list"."""
    half_messages: frozenset[int] = frozenset()
    """The transfers whose events are half messages."""
    has_threads: bool = False
    """Whether processes are suspended concurrently, instead of one inside the other."""
    rates: tuple[float, ...] = (1.0,)
    """Rates of the processes' own clocks, cyclically."""
    skews: tuple[float, ...] = (0.0,)
    """Errors of their wall clocks in seconds, cyclically."""
    topics_are_apart: bool = False
    """Whether other members of a group read the rollback topic than the commit topic."""
    old_relays: int = 0
    """Number of the upstream service's relays of a release that does not declare transfers."""
    batch_bytes: int = BATCH_BYTES
    """Maximum bytes of a claim and a poll, except for the event that reaches it."""
    outbox_retention: timedelta = timedelta(hours=2)
    """A short one lets the purge run concurrently with waiting, retried or DEAD rollbacks."""
    notices: tuple[Notice, ...] = ()
    """The events that a second service writes into the outbox of the first."""
    shard_settings: tuple[int | None, ...] = (None,)
    """The numbers of shards in the settings of the upstream bank's web processes."""
    lanes: int = 1
    """Number of lanes of each consumer."""
    has_coroutines: bool = False
    """Whether handlers are coroutine functions."""
    has_early_takeovers: bool = False
    """Whether relays run on one host and take over the shards of dead ones at once."""
    breaker: int | None = None
    """Number of failures that pause a handler; None: the consumers have no breaker."""
    defect_seconds: float = 0.0
    """How long a handler of the downstream bank has a defect, from the beginning."""
    deadly_probes: float = 0.0
    """The share of probes of that handler that end with their process."""
    parks: bool = False
    """Whether the credit parks an event after an unexpected error in its last attempt."""
    removed: int = 0
    """Number of events that an earlier release received, of a type whose handler was removed."""


def with_half_messages(config: WorldConfig, draw: random.Random) -> WorldConfig:
    """Let transfers be announced by half messages, in some worlds."""
    if draw.random() >= HALF_MESSAGES:
        return config
    return replace(
        config, half_messages=frozenset(t.number for t in config.transfers if draw.random() < 0.7)
    )


def with_variety(config: WorldConfig, draw: random.Random) -> WorldConfig:
    """Let declarations of processes differ, batches be small and rows be old, in some worlds."""
    if draw.random() < FOREIGN_ROLLBACKS:
        frauds = [replace(t, is_fraud=draw.random() < 0.7) for t in config.transfers]
        config = replace(config, transfers=tuple(frauds), has_fraud_group=True)
    return replace(
        config,
        topics_are_apart=draw.random() < 0.5,
        old_relays=draw.randint(1, config.relays - 1) if draw.random() < 0.2 else 0,
        batch_bytes=draw.choice((1, 30)) if draw.random() < 0.2 else config.batch_bytes,
        outbox_retention=timedelta(seconds=draw.choice((3, 10, 30)))
        if draw.random() < 0.2
        else config.outbox_retention,
    )


def with_second_source(config: WorldConfig, draw: random.Random) -> WorldConfig:
    """Let a second service write into the tables of the first, in some worlds."""
    if draw.random() >= SECOND_SOURCE:
        return config
    event_type, topic = ("notice", "notices") if draw.random() < 0.7 else (TYPE, TOPIC)
    return replace(
        config,
        notices=tuple(
            Notice(
                number=n,
                key=draw.choice(("k", "k", "l", None)),
                type=event_type,
                topic=topic,
                is_committed=draw.random() > 0.1,
            )
            for n in range(draw.randint(1, 4))
        ),
    )


def with_shard_settings(config: WorldConfig, draw: random.Random) -> WorldConfig:
    """Let writers have settings for the shards, some of them wrong, in some worlds."""
    if draw.random() >= OTHER_NUMBERS:
        return config
    number = config.shards
    wrong = [n for n in (number - 1, number + 1, 2 * number, 64) if n > 0]
    settings = (draw.choice((None, number)), draw.choice(wrong), draw.choice((None, number)))
    return replace(config, shard_settings=settings[: draw.randint(2, 3)])


def with_removed_type(config: WorldConfig, draw: random.Random) -> WorldConfig:
    """Let the inbox be full of events without a handler, in some worlds."""
    if draw.random() >= REMOVED_TYPE:
        return config
    return replace(config, removed=2 * config.consumer_batch + draw.randint(1, 3))


def with_parked_events(config: WorldConfig, draw: random.Random) -> WorldConfig:
    """Let the credit fail and park its events, in some worlds."""
    if draw.random() >= PARKED_EVENTS:
        return config
    failing = [
        replace(t, failures=draw.randint(1, 3)) if draw.random() < 0.5 else t
        for t in config.transfers
    ]
    return replace(config, transfers=tuple(failing), parks=True)


def with_lanes(config: WorldConfig, draw: random.Random) -> WorldConfig:
    """Let consumers have several lanes and handlers be coroutines, in some worlds."""
    lanes = draw.randint(2, 3) if draw.random() < LANES else 1
    return replace(config, lanes=lanes, has_coroutines=draw.random() < COROUTINES)


def with_early_takeovers(config: WorldConfig, draw: random.Random) -> WorldConfig:
    """Let the relays run on one host, in some worlds."""
    return replace(config, has_early_takeovers=draw.random() < EARLY_TAKEOVERS)


def with_breaker(config: WorldConfig, draw: random.Random) -> WorldConfig:
    """Let consumers have a breaker, and a handler a defect for a while, in some worlds."""
    if draw.random() >= BREAKERS:
        return config
    return replace(
        config,
        breaker=draw.randint(0, 3),
        defect_seconds=draw.choice((0.0, 10.0, 30.0, 90.0)),
        deadly_probes=draw.choice((0.0, 0.0, 0.8)),
    )


def config_of(draw: random.Random) -> WorldConfig:
    """Draw the size of a world."""
    r = draw.random
    keys = ("k", "l", None) if r() < 0.2 else ("k", "l") if r() < 0.5 else ("k",)
    has_fraud_group = r() < 0.2
    refusals = draw.choice((0.0, 0.3, 0.6))
    failures = draw.choice((0.0, 0.0, 0.5))
    transfers = tuple(
        Transfer(
            number=n,
            key=draw.choice(keys),
            amount=2**n,
            is_committed=r() > 0.1,
            delay=3.0 if r() < 0.05 else 0.0,
            failures=draw.randint(1, 3) if r() < failures else 0,
            is_refused=r() < refusals,
            is_fraud=has_fraud_group and r() < 0.5,
            refund_failures=draw.randint(1, 3) if r() < failures * 0.5 else 0,
        )
        for n in range(draw.randint(2, 6))
    )
    clocks_are_wrong = r() < 0.3
    return WorldConfig(
        transfers=transfers,
        relays=2 if r() < 0.8 else 3,
        consumers=2,
        shards=draw.randint(1, 3),
        partitions=draw.randint(1, 2),
        relay_batch=draw.choice((1, 4, 8, 40)),
        consumer_batch=draw.choice((1, 2, 10)),
        attempts=draw.randint(1, 3),
        has_fraud_group=has_fraud_group,
        sharing=draw.choice(("one", "one", "one", "alone", "list")),
        has_threads=r() < 0.25,
        rates=(1.0, 0.7, 1.4) if clocks_are_wrong else (1.0,),
        skews=(0.0, 3600.0, -3600.0) if clocks_are_wrong else (0.0,),
    )
