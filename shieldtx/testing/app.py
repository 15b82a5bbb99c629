"""Services brought together in memory for a test: their databases, a broker, a clock."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from sqlalchemy.orm import Session

from shieldtx.app.application import ShieldTx
from shieldtx.domain.events import NO_HEADERS, Event
from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.errors import BrokerUnavailable, ConfigurationError
from shieldtx.ports.broker import Record
from shieldtx.testing.clock import MovableClock
from shieldtx.testing.defects import Defects
from shieldtx.testing.drain import Workers
from shieldtx.testing.event_rows import failures_in, waiting_in
from shieldtx.testing.memory_broker import MemoryBroker
from shieldtx.testing.outcome import Drained, EventRow, EventsFailed, EventStates, NotDrained
from shieldtx.testing.records import commit_record, events_of, foreign_record, rollback_record

_PARTITIONS: Final = 2
"""Of each topic: with one, events of different keys would never overtake each other."""

_SEND_S: Final = 1.0


class MemoryApp:
    """One or several services in a test; `memory_app` returns it.

    Nothing runs by itself: `drain` runs relays, consumers and checks in the thread of the test.
    """

    def __init__(
        self,
        shields: Sequence[ShieldTx],
        *,
        broker: MemoryBroker,
        clock: MovableClock | None,
        defects: Sequence[Defects],
    ) -> None:
        """Work with services whose databases have tables; without `clock`, time cannot move.

        `defects` note the given-up events of each service.
        """
        self.broker = broker
        """The broker, for planned failures: `broker.go_down()`."""
        self._shields = shields
        self._clock = clock
        self._defects = defects
        self._known: set[EventRow] = set()
        """The failures that a drain has reported, and that have not been replayed since."""
        self._create_topics()

    @contextmanager
    def session(self, shield: ShieldTx | None = None) -> Iterator[Session]:
        """Open a session of a service's database for one transaction, which the block commits.

        `shield` may be left out where there is one service.
        """
        with Session(self._only(shield).engine) as session, session.begin():
            yield session

    # --- time and work ----------------------------------------------------------------------------

    def now(self) -> datetime:
        """Return the time of the databases, in UTC; raises ConfigurationError like `advance`."""
        return self._moving().now()

    def advance(self, delta: timedelta) -> None:
        """Move the databases' clock: retries, delayed events, checks and leases become due.

        Call `drain` afterwards. Raises ConfigurationError for a negative time, and where a service
        has another database than SQLite.
        """
        self._moving().advance(delta)

    def drain(self, *, check: bool = True, passes: int = 200) -> Drained:
        """Run relays, consumers and checks until nothing is left to do, and return what happened.

        What is due later waits for `advance`. Raises EventsFailed where events failed permanently,
        a group gave an event up that its handler did not refuse, records were parked, or the broker
        was unavailable, unless `check` is false. Raises NotDrained if `passes` of all workers are
        not enough.
        """
        self._create_topics()
        # A row that was replayed since, and fails again, looks as before: it is a new failure.
        self._known.intersection_update(self._failures())
        with ExitStack() as stack:
            if self._clock is not None:
                stack.enter_context(self._clock.stopped())
            workers = [stack.enter_context(Workers.of(shield)) for shield in self._shields]
            for _ in range(passes):
                had_work = [each.run_once() for each in workers]
                if not any(had_work):
                    break
            else:
                raise NotDrained(passes, waiting_in(self._shields))
        failures = [row for row in self._failures() if row not in self._known]
        self._known.update(failures)
        result = Drained(
            published=sum(each.published for each in workers),
            outcomes=sum((each.outcomes for each in workers), Counter()),
            checked=sum(each.checked for each in workers),
            outage=next((each.outage for each in workers if each.outage), ""),
            waiting=waiting_in(self._shields),
            failures=failures,
        )
        if check and (result.failures or result.outage):
            raise EventsFailed(result)
        return result

    # --- events from and to other services --------------------------------------------------------

    def deliver(
        self,
        event_type: str,
        payload: Any = None,
        *,
        key: str | None = None,
        biz_key: str | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
        version: int | None = None,
        source: str = "upstream",
        check: bool = True,
    ) -> Event:
        """Publish an event as another service does, drain, and return the event.

        `version` is that of the payload's schema. Raises ConfigurationError if no group handles the
        type, EventRefused for fields that a service could not write, and the errors of `drain`.
        """
        event = Event(type=event_type, payload=payload, key=key, biz_key=biz_key, headers=headers)
        event = replace(event, source=source)
        shield, topic = self._reader_of(event_type)
        self._create_topics()
        record = commit_record(
            event,
            topic=topic,
            version=version,
            at=datetime.now(UTC) if self._clock is None else self._clock.now(),
            prefix=shield.settings.topic_prefix,
        )
        self._publish(record)
        self.drain(check=check)
        return event

    def deliver_record(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        check: bool = True,
    ) -> Drained:
        """Write a record, or a tombstone, into a foreign topic as its producer does, and drain.

        Raises ConfigurationError if no group reads the topic, and the errors of `drain`.
        """
        if not any(topic in shield.foreign_topics() for shield in self._shields):
            raise ConfigurationError(f"no group of these services reads foreign topic {topic!r}")
        self._create_topics()
        self._publish(foreign_record(topic, value, key=key, headers=headers or {}))
        return self.drain(check=check)

    def roll_back(
        self,
        event: Event | UUID,
        *,
        reason: str = "refused",
        source: str = "downstream",
        check: bool = True,
    ) -> Drained:
        """Take an event back as the service does whose handler gave it up, and drain.

        Raises ConfigurationError for an event in no outbox of these, and the errors of `drain`.
        """
        for shield in self._shields:
            for row in shield.stores.dead_letters().find(_id_of(event)):
                if row.group is None:
                    self._create_topics()
                    settings = shield.settings
                    record = rollback_record(
                        row.envelope,
                        source=source,
                        reason=reason,
                        prefix=settings.topic_prefix,
                        keys=settings.signing_keys,
                    )
                    self._publish(record)
                    return self.drain(check=check)
        raise ConfigurationError(f"event {_id_of(event)} is in no outbox of these services")

    # --- state for assertions ---------------------------------------------------------------------

    def published(
        self,
        event_type: str | None = None,
        *,
        kind: TxKind = TxKind.COMMIT,
        shield: ShieldTx | None = None,
    ) -> list[Event]:
        """Return the events on the topics, in the order in which they were published.

        Only those of a type, if it is given, and of one of the services. Payloads have the types
        that the services declare.
        """
        sources = None if shield is None else {shield.settings.source}
        return [
            event
            for event in events_of(self.broker.history(), self._shields)
            if event_type in {event.type, None}
            and event.kind is kind
            and (sources is None or event.source in sources)
        ]

    def written(
        self, event_type: str | None = None, *, shield: ShieldTx | None = None
    ) -> list[Event]:
        """Return the events of outboxes that are not published yet, also delayed ones, in order."""
        found = []
        for each in self._shields if shield is None else [shield]:
            letters = each.stores.dead_letters()
            for row in each.stores.trace().unsettled():
                if row.group is not None or event_type not in {row.identity.type, None}:
                    continue
                envelope = letters.find(row.identity.event_id)[0].envelope
                declared = each.event_types.find(envelope.type)
                is_own = declared is not None and envelope.kind is TxKind.COMMIT
                payload = (
                    each.event_types.read(envelope) if is_own else json.loads(envelope.payload)
                )
                found.append(envelope.opened(payload))
        return found

    def state_of(self, event: Event | UUID) -> EventStates:
        """Return the states of an event in all outboxes and inboxes of the services."""
        outbox: OutboxStatus | None = None
        inbox: dict[str, InboxStatus] = {}
        attempts: dict[str, int] = {}
        for shield in self._shields:
            facts = shield.stores.trace().facts(_id_of(event))
            if facts.written is not None:
                outbox = OutboxStatus(facts.written.status)
            for row in facts.received:
                group = str(row.group)
                inbox[group], attempts[group] = InboxStatus(row.status), row.attempts
        return EventStates(outbox=outbox, inbox=inbox, attempts=attempts)

    # --- inside -----------------------------------------------------------------------------------

    def _only(self, shield: ShieldTx | None) -> ShieldTx:
        if shield is not None:
            return shield
        if len(self._shields) > 1:
            raise ConfigurationError("there are several services: name one, session(shop.shield)")
        return self._shields[0]

    def _moving(self) -> MovableClock:
        if self._clock is None:
            raise ConfigurationError(
                "the clock cannot move, because a service has a given engine of a database server: "
                "leave the engine out, or declare short delays for this test"
            )
        return self._clock

    def _failures(self) -> list[EventRow]:
        of_defects = [row for each in self._defects for row in each.rows()]
        return [*failures_in(self._shields), *of_defects]

    def _create_topics(self) -> None:
        # Again at each drain: a test may declare handlers of its own.
        names = {t for each in self._shields for t in (*each.topics(), *each.foreign_topics())}
        # During an outage that a test has planned, the workers report it.
        with suppress(BrokerUnavailable):
            self.broker.topics().create(sorted(names), partitions=_PARTITIONS, replication=1)

    def _reader_of(self, event_type: str) -> tuple[ShieldTx, str]:
        """Return a service with a handler of an event type, and its logical topic."""
        for shield in self._shields:
            for group in shield.groups.values():
                if handler := group.handler_of(event_type, TxKind.COMMIT):
                    return shield, handler.topic
        raise ConfigurationError(f"no group of these services handles events of {event_type!r}")

    def _publish(self, record: Record) -> None:
        delivery = self.broker.publisher().publish([record], timeout=_SEND_S)[0]
        if delivery.reason:
            raise ConfigurationError(f"the event was not published: {delivery.reason}")


def _id_of(event: Event | UUID) -> UUID:
    return event.id if isinstance(event, Event) else event
