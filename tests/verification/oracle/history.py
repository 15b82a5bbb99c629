"""A history: rows through time, and what each night has to report about them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NamedTuple
from uuid import UUID

from shieldtx.domain.events import is_foreign
from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.reconcile.verdicts import Verdict
from tests.verification.oracle.setting import LIMIT, UNDO, Group, Judged, Setting, undo_of
from tests.verification.oracle.timeline import NEVER, Life, Restore
from tests.verification.oracle.topic_logs import Marks, Topics

O, I, V = OutboxStatus, InboxStatus, Verdict  # noqa: E741  short, for what happens in stories


class Pair(NamedTuple):
    """An event, and a group that has it or should have it."""

    kind: str
    upstream: str
    downstream: str
    group: str
    event_id: UUID


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A verdict that is true of a pair for some time, and so has to be reported."""

    pair: Pair
    verdict: Verdict
    since: float
    moved: float | None = None
    """When a row that belongs to it moved last; None: a run can report it at once.

    A run must not report the verdict until that time lies before its watermark.
    """
    by_limit: bool = False
    """Only a run that knows the group's attempt limit can report it."""
    trace: float | None = None
    """The age of the pair for a run; None: a run can report it at any age.

    Rows older than the horizon may be purged, and no run can report them.
    """
    until: float = NEVER
    rows: tuple[Life, ...] = ()
    """Rows that must still exist."""
    unlisted: bool = False
    """A further run would not know the row, so a run has to report this."""
    purged: tuple[Life, ...] = ()
    """The verdict is true only after these rows have been purged."""
    ambiguous_since: float | None = None
    """When an event was written that was sent more than once.

    As soon as that time lies before the horizon, a run has to report that it cannot know the
    verdict.
    """
    came_at: float | None = None
    """When an ambiguous event arrived that may have been sent once.

    A run reports it as ambiguous only if the event was older than all retentions by then. Earlier
    runs judged the others in time.
    """
    first_at: float | None = None
    """Since when the group may have had an event whose row shows a later arrival."""
    arrival: Life | None = None
    """The group's own row: an unknown group is judged by its own rows alone."""

    def is_said_by(self, night: Judged, setting: Setting) -> bool:
        """Return whether this night's run has to report it."""
        group = self.pair.downstream, self.pair.group
        is_left_out = setting.declared and group in night.unknown | night.mistyped | night.renamed
        is_known = setting.declared and not is_left_out
        has_arrived = self.arrival is not None and self.arrival.at(night.at) is not None
        return (
            (is_known or not self.by_limit)
            and self.is_true_at(night)
            and (has_arrived or not is_left_out)
        )

    def may_be_done_twice(self, night: Judged) -> bool:
        """Return whether the group may have purged the row that proves the event's arrival."""
        if self.first_at is None or self.arrival is None:
            return False
        downstream = self.pair.downstream
        is_lately = self.arrival.settled_at >= night.horizon(self.pair.upstream, downstream)
        return is_lately and self.arrival.born_at - self.first_at >= night.memory(downstream)

    def is_true_at(self, night: Judged) -> bool:
        """Return whether it is true in this night, and can be known."""
        until = min(self.until, *(row.gone_at for row in self.rows), NEVER)
        is_kept = self.trace is None or self.trace >= night.horizon(*self.pair[1:3])
        is_quiet = self.moved is None or self.moved < night.watermark
        written = self.ambiguous_since
        is_due = written is None or written < night.horizon(*self.pair[1:3])
        since = max(self.since, *(row.gone_at for row in self.purged), 0)
        is_any = is_quiet and is_kept and is_due and self._was_too_old_before(night)
        return since <= night.at < until and is_any

    def _was_too_old_before(self, night: Judged) -> bool:
        if self.came_at is None:
            return True
        assert self.ambiguous_since is not None
        all_that_is_kept = night.watermark - night.horizon(*self.pair[1:3])
        return self.came_at - self.ambiguous_since >= all_that_is_kept


@dataclass(kw_only=True, slots=True)
class History:
    """The events of a history, their rows, and the truth about them."""

    setting: Setting
    random: Random
    lives: list[Life] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    restores: list[Restore] = field(default_factory=list)
    marks: Marks = field(default_factory=Marks)
    topics: Topics | None = None
    """The topics; None if no run reads them."""
    _ids: int = 0

    # --- what runs have to report ----------------------------------------------------------------

    def expected(self, night: Judged) -> dict[Pair, Verdict]:
        """Return what a run of this night certainly has to report."""
        found: dict[Pair, Verdict] = {}
        for claim in self.claims:
            if claim.is_said_by(night, self.setting):
                assert claim.pair not in found, f"two things are true of {claim.pair}"
                found[claim.pair] = claim.verdict
        return found

    def must_tell(self, night: Judged) -> bool:
        """Return whether a run of this night has to report that it cannot judge something."""
        is_known = all(life.source == life.service for life in self.outboxes(night))
        is_told = any(
            (claim.unlisted or claim.ambiguous_since is not None or claim.may_be_done_twice(night))
            and claim.is_said_by(night, self.setting)
            for claim in self.claims
        )
        named = night.mistyped - night.unknown
        return bool(named) or is_told or not is_known

    def may_tell(self, night: Judged) -> bool:
        """Return whether a run may report that it does not know which group has had an event.

        A group that has purged its row of the first record looks like a group that received none.
        Whether a further run reads the event depends on the reports of earlier runs.
        """
        return self._may_be_sent_again(night) or any(
            self._came_late(night, life) or self._was_settled_late(night, life)
            for life in self.lives
            if life.group is not None and life.source in self.setting.services
        )

    def _may_be_sent_again(self, night: Judged) -> bool:
        return any(
            row["status"] is O.PROCESSED
            and row.get("unconfirmed")
            and row["created_at"] < night.horizon(life.source, service) <= row["settled_at"]
            for life in self.outboxes(night)
            for service in self.setting.services
            if life.source == life.service and (row := life.at(night.at)) is not None
        )

    def _came_late(self, night: Judged, arrival: Life) -> bool:
        """Return whether an event or its rollback arrived after its group may have purged."""
        row = arrival.at(night.at)
        if row is None:
            return False
        horizon = night.horizon(arrival.source, arrival.service)
        event_id = arrival.event_id
        outbox = self.outboxes(night)
        came = [
            life.born_at
            for life in outbox
            if life.service == arrival.service and life.kind is TxKind.ROLLBACK
            if life.columns["causation_id"] == event_id
        ]
        if not any(life.event_id == event_id for life in outbox):
            came.append(row["received_at"])
        kept = night.watermark - horizon
        return any(at >= horizon and at - row["event_time"] >= kept for at in came)

    def _was_settled_late(self, night: Judged, arrival: Life) -> bool:
        """Return whether a rollback was settled when the compensating row may be purged."""
        row = arrival.at(night.at)
        if row is None or arrival.kind is TxKind.COMMIT or row["status"] is not I.PROCESSED:
            return False
        horizon = night.horizon(arrival.source, arrival.service)
        return bool(row["event_time"] < horizon <= row["settled_at"])

    def outboxes(self, night: Judged) -> list[Life]:
        """Return the existing rows of all outboxes."""
        there = (life for life in self.lives if life.group is None)
        return [life for life in there if life.at(night.at) is not None]

    def rows(self, night: Judged, service: str) -> list[tuple[int, Life]]:
        """Return the existing rows of a service, in the order in which they were written.

        Each row has a number, which is the same in every night.
        """
        of_service = [life for life in self.lives if life.service == service]
        in_order = enumerate(sorted(of_service, key=lambda life: life.born_at), start=1)
        return [(seq, life) for seq, life in in_order if life.at(night.at) is not None]

    # --- the parts of stories --------------------------------------------------------------------

    def written(
        self,
        event_type: str,
        at: float,
        *,
        status: OutboxStatus = O.INIT,
        because: Life | None = None,
        due: float | None = None,
        id_at: float | None = None,
        **columns: Any,
    ) -> Life:
        """Write an event, by the service whose type it is; its id may be of another time."""
        source = event_type.partition(".")[0]
        of_event: dict[str, Any] = {"event_type": event_type, "topic": source}
        of_event |= dict.fromkeys(("key", "biz_key", "causation_id", "causation_source"))
        if because is not None:
            of_event |= {
                "causation_id": because.event_id,
                "causation_source": because.source,
            }
        event_id = self.new_id(at if id_at is None else id_at)
        return self._write(source, event_id, TxKind.COMMIT, status, at, due, of_event | columns)

    def _write(
        self,
        service: str,
        event_id: UUID,
        kind: TxKind,
        status: OutboxStatus,
        at: float,
        due: float | None,
        columns: dict[str, Any],
    ) -> Life:
        who = ("M\u00fcller", "S\u00f8ren", "Wu")[event_id.int % 3]
        payload = {"payload": f'{{"n": {event_id.int % 997}, "who": "{who}"}}'}
        times = {"created_at": at, "due_at": at if due is None else due, "last_error": None}
        life = Life(
            service=service,
            source=service,
            event_id=event_id,
            kind=kind,
            columns={**payload, "operation": "INSERT", **times, **columns},
        )
        life.becomes(status, at)
        self.lives.append(life)
        return life

    def sent(self, event: Life, at: float) -> None:
        """Let a relay publish the event."""
        if event.status is not O.PROCESSING:
            # An event with a chosen delay keeps its mark.
            is_delayed = self._is_delayed(event, at)
            in_main_queue = {} if is_delayed else {"waiting": False, "holds_key": False}
            event.becomes(O.PROCESSING, at, attempts=1, lease_until=at + 1, **in_main_queue)
        event.becomes(O.PROCESSED, at)

    def _is_delayed(self, event: Life, at: float) -> bool:
        row = event.at(at) or {}
        return bool(row.get("waiting")) and not row.get("holds_key")

    def received(
        self, event: Life, group: Group | str, at: float, *, status: InboxStatus = I.PROCESSING
    ) -> Life:
        """Let a group receive an event; for a rollback, a group of the event's writer.

        The compensating group of a service is given by its name.
        """
        service, name = (
            (source := event.columns["causation_source"], undo_of(source))
            if isinstance(group, str)
            else (group.service, group.name)
        )
        times = {"event_time": event.columns["created_at"], "received_at": at, "due_at": at}
        of_event = {k: v for k, v in event.columns.items() if not k.endswith("_at")}
        life = Life(
            service=service,
            source=event.source,
            event_id=event.event_id,
            kind=event.kind,
            group=name,
            columns={**of_event, **times, "compensated_id": None},
        )
        is_tried = status is I.PROCESSING
        life.becomes(status, at, attempts=int(is_tried), lease_until=at + 1 if is_tried else None)
        self.lives.append(life)
        return life

    def applied(self, arrival: Life, at: float, **changes: Any) -> None:
        """Let the handler of a group succeed."""
        if arrival.status is I.INIT:
            arrival.becomes(I.PROCESSING, at, attempts=1, lease_until=at + 1)
        arrival.becomes(I.PROCESSED, at, **changes)

    def gave_up(self, arrival: Life, at: float) -> Life:
        """Let the handler of a group fail permanently; return the rollback that it writes."""
        attempts = self.random.randint(1, LIMIT)
        arrival.becomes(I.MAX_RECONSUMED, at, attempts=attempts, last_error="Refused: no stock")
        return self.rollback(arrival, at)

    def rollback(self, arrival: Life, at: float) -> Life:
        """Let the service of a group take an event back."""
        of = {name: arrival.columns[name] for name in ("event_type", "topic", "key")}
        of |= {"causation_id": arrival.event_id, "causation_source": arrival.source}
        if is_foreign(of["topic"]):
            # Nothing is written into a foreign topic.
            of["topic"] = of["event_type"]
        columns = of | {"biz_key": None}
        event_id = self.new_id(at)
        return self._write(arrival.service, event_id, TxKind.ROLLBACK, O.INIT, at, None, columns)

    def compensated(
        self, rollback: Life, at: float, *, group: Group | str = UNDO, first: bool = True
    ) -> Life:
        """Let a group receive a rollback and compensate the event, unless it did before."""
        arrival = self.received(rollback, group, at)
        done = {"compensated_id": rollback.columns["causation_id"]} if first else {}
        self.applied(arrival, at + 1, **done)
        return arrival

    def arrival_of(self, event_id: UUID, group: Group) -> Life | None:
        """Return the row that a group has of an event."""
        of = event_id, group.service, group.name
        there = (each for each in self.lives if (each.event_id, each.service, each.group) == of)
        return next(there, None)

    def undone_by(self, arrival: Life) -> Life | None:
        """Return the rollback by which a group has compensated a received event."""
        of = arrival.service, arrival.group
        there = (each for each in self.lives if (each.service, each.group) == of)
        return next((e for e in there if e.compensates(arrival.event_id)), None)

    def say(
        self,
        verdict: Verdict,
        event: Life,
        group: Group | str,
        **known: Any,
    ) -> None:
        """Note a verdict on an event and a group."""
        service, name = (
            (source := event.columns["causation_source"], undo_of(source))
            if isinstance(group, str)
            else (group.service, group.name)
        )
        pair = Pair(event.kind.value, event.source, service, name, event.event_id)
        self.claims.append(Claim(pair=pair, verdict=verdict, **known))

    def waits(self, event: Life, groups: Iterable[Group | str], *, until: float = NEVER) -> None:
        """Note that no relay sends an event, though it is due."""
        row = event.at(event.versions[-1].at) or {}
        moved = max(row["created_at"], row["due_at"], row.get("lease_until") or 0)
        for group in groups:
            self.say(V.STUCK, event, group, since=event.versions[-1].at, until=until, moved=moved)

    def lacks(
        self,
        event: Life,
        group: Group | str,
        *,
        since: float,
        until: float = NEVER,
        moved: float | None = None,
    ) -> None:
        """Note that an event was sent and is not received."""
        moved = since if moved is None else moved
        known = {"moved": moved, "trace": since, "rows": (event,)}
        self.say(V.MISSING_DOWNSTREAM, event, group, since=since, until=until, **known)

    def is_left(
        self, event: Life, arrival: Life, group: Group | str, *, since: float, until: float = NEVER
    ) -> None:
        """Note that no worker handles an event, though it was received and is due."""
        row = arrival.at(since) or {}
        moved = max(row["received_at"], row["due_at"], row.get("lease_until") or 0)
        known = {"since": since, "until": until, "moved": max(moved, event.settled_at)}
        self.say(V.STUCK, event, group, arrival=arrival, **known)

    def purge(self) -> None:
        """Let each service purge expired rows, sooner or later."""
        for life in self.lives:
            kept = self.setting.retention[life.service]
            if kept is not None and life.status in life.lifecycle.purgeable:
                at = life.settled_at + kept + self.random.choice((1, 300, 1000))
                life.gone_at = min(life.gone_at, at)

    def forgotten(self, night: float) -> set[tuple[str, str, UUID]]:
        """Return the applied events that groups have purged by then: service, group, event."""
        return {
            (life.service, life.group, life.event_id)
            for life in self.lives
            if life.group is not None
            and life.status is I.PROCESSED
            and life.gone_at <= night
            and life.gone_at >= life.settled_at + (self.setting.retention[life.service] or NEVER)
        }

    def new_key(self) -> str:
        """Make a key that no other event has."""
        return f"key-{len(self.lives)}"

    def new_id(self, at: float) -> UUID:
        """Make an id like services do: it begins with the time."""
        self._ids += 1
        milliseconds = _BEGAN_MS + int(at * 60_000)
        noise = self.random.getrandbits(40) << 16 | self._ids
        return UUID(int=milliseconds << 80 | 0x7 << 76 | 0b10 << 62 | noise)


_BEGAN_MS: Final = 1_750_000_000_000
"""When histories begin, as far as ids are concerned; any past time is valid."""
