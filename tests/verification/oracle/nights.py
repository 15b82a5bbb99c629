"""Consecutive nights: each starts at the last good one of its basis, and is checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from shieldtx.domain.states import OutboxStatus
from shieldtx.reconcile import basis, earlier_runs, earlier_topics, observed
from shieldtx.reconcile.basis import Basis
from shieldtx.reconcile.incremental import FOUND_AGAIN
from shieldtx.reconcile.observed import Observed, ObservedTopics
from shieldtx.reconcile.request import BrokerAccess, ReconcileRequest, ServiceDatabase
from shieldtx.reconcile.verdicts import Verdict
from tests.verification.oracle import (
    ahead,
    foreign_sources,
    former_groups,
    old_copies,
    renames,
    restores,
    topic_truth,
    unhandled,
)
from tests.verification.oracle.facts import Rows
from tests.verification.oracle.history import History, Pair
from tests.verification.oracle.proof import Proof, lacking, proof_of
from tests.verification.oracle.reading import Reading, rows_of
from tests.verification.oracle.setting import Judged
from tests.verification.oracle.topic_logs import Log
from tests.verification.oracle.topic_reading import PREFIX, TopicReading, name_of, topics_at

_NO_FOLDER: Final = Path("nowhere")
_OF_AN_EARLIER_RELEASE: Final = 6
"""The rules version of the last release whose runs stored the inbox contents of their own night."""

Verdicts = Mapping[Pair, Verdict]


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """What a run has reported, and what it had to report."""

    night: Judged
    found: Verdicts
    """All that it reports."""
    truth: Verdicts
    is_full: bool
    tells: bool
    """Whether it reports that it cannot judge something."""
    must_tell: bool
    may_tell: bool = False
    """Whether it may report this, though nothing is wrong."""
    is_whole: bool = True
    """Whether the findings include verdicts that are only counted."""
    because: tuple[str, ...] = ()
    """Its own reasons for a full run; empty: it was configured as one, or is not one."""
    problem: str = ""
    """Why it broke off; empty: it did not."""
    restored: str = ""
    """The service whose database it must recognize as another one."""

    @property
    def wrong(self) -> list[str]:
        """Return sentences about what it has missed, and what it reports falsely."""
        return list(self._wrong())

    def _wrong(self) -> Iterator[str]:
        run = f"the {'full' if self.is_full else 'further'} run at {self.night.at}"
        if self.problem:
            yield f"{run} broke off: {self.problem}"
            return
        if self.must_tell > self.tells or self.tells > (self.must_tell or self.may_tell):
            verb = "reports" if self.tells else "does not report"
            yield f"{run} {verb} that it cannot judge something"
        if self.restored and not self._sees_the_restored():
            yield f"{run} does not see that the database of {self.restored} was put back"
        for pair in sorted(self.found.keys() | self.truth.keys()):
            if not self._is_right(pair):
                found, truth = self.found.get(pair), self.truth.get(pair)
                yield f"{run}: {pair} is {found}, and should be {truth}"

    def _sees_the_restored(self) -> bool:
        """Return whether it is a full run with a reason; without a good run before, always."""
        named = any(self.restored in why for why in self.because)
        return self.is_full and (named or not self.because)

    def _is_right(self, pair: Pair) -> bool:
        found, truth = self.found.get(pair), self.truth.get(pair)
        if found is None:
            # A further run leaves out what is in order.
            is_told = truth is not None and (self.is_whole or truth.is_listed)
            return truth is None or not (is_told and (self.is_full or truth.is_mismatch))
        return found is truth or (truth is None and not found.is_mismatch)


def mismatches(verdicts: Verdicts) -> set[tuple[Pair, Verdict]]:
    """Return the mismatches among verdicts."""
    return {(pair, verdict) for pair, verdict in verdicts.items() if verdict.is_mismatch}


@dataclass(kw_only=True, slots=True)
class PythonNights:
    """The nights of one history, by the rules in Python."""

    history: History
    _good: _Good | None = field(default=None, init=False)
    _ended: list[Basis] = field(default_factory=list, init=False)
    """The basis of each run that has ended, the latest first."""
    _judged: old_copies.EarlierRuns = field(default_factory=old_copies.EarlierRuns, init=False)

    def run(self) -> list[Said]:
        """Run all nights, and return what each has reported."""
        return [self._run(night) for night in self.history.setting.nights]

    def _run(self, night: Judged) -> Said:
        request = request_of(self.history, night, {})
        judged = basis.basis_of(request, restores.identities(self.history, night))
        rows = rows_of(self.history, night)
        because = tuple(self._losses(night, judged, rows))
        start = None if because or self._good is None else self._good.watermark
        services = [night.called(name) for name in self.history.setting.services]
        moved_since = {} if start is None else dict.fromkeys(services, start)
        reading = Reading(
            setting=self.history.setting,
            night=night,
            rows=rows,
            moved_since=moved_since,
            past=earlier_runs.past_of(self._ended, judged),
        )
        logs = self._read(night, judged, rows)
        met = Observed(received=reading.received(), topics=topics_at(logs, night.at))
        lately = Observed(received=reading.received_lately())
        # Like another machine that still runs an earlier release every night.
        earlier = replace(judged, observed=lately, rules=_OF_AN_EARLIER_RELEASE)
        self._ended[:0] = [earlier, replace(judged, observed=met)]
        beside = TopicReading(
            night=night,
            rows=rows,
            logs=logs,
            looked_at=reading.own_outbox(),
            moved_since=moved_since,
        )
        of_groups = reading.verdicts()
        found = {**of_groups, **beside.verdicts()}
        problems = [*reading.obstacles(), *beside.obstacles()]
        problems += [*reading.ambiguous(of_groups), *reading.ahead(of_groups), *beside.ambiguous()]
        tells = bool(problems) or self._is_any_unlisted(night, found)
        spans = self._judged.spans(night, rows, of_groups.keys())
        hidden = any(v.is_mismatch and v not in FOUND_AGAIN for v in found.values())
        if not hidden and not tells:
            self._good = _Good(
                basis=judged,
                watermark=night.watermark,
                proof=proof_of(rows),
                topics=topics_at(logs, night.at),
            )
        return Said(
            night=night,
            found=found,
            truth=truth_of(self.history, night, found, is_full=start is None),
            is_full=start is None,
            tells=tells or bool(spans),
            must_tell=must_tell(self.history, night),
            may_tell=may_tell(self.history, night),
            because=because,
            restored=restores.must_look_at_all(self.history, night),
        )

    def _read(self, night: Judged, judged: Basis, rows: Rows) -> list[Log]:
        """Return the topics that a run reads."""
        topics = self.history.topics
        if topics is None or not topics.are_read(night.at):
            return []
        named = {(r["topic"], r["kind"]) for r in rows.outbox if r["source"] == r["service"]}
        named |= topic_truth.for_others(self.history, night)
        earlier = earlier_topics.topics_before(self._ended, judged).topics
        logs = sorted(topics.logs.items())
        return [log for name, log in logs if name in named or name_of(log) in earlier]

    def _losses(self, night: Judged, judged: Basis, rows: Rows) -> Iterator[str]:
        """Yield why a run may not read moved rows alone, though there was a good one."""
        good = self._good
        if good is None:
            return
        yield from basis.changes(good.basis, judged)
        if good.basis.services.keys() == judged.services.keys():
            yield from basis.losses(good.basis, judged)
        if any(at is not None and at > night.at for *_, at in good.proof):
            yield "a clock was set back"
        yield from (f"{service} lacks rows" for service in sorted(lacking(good.proof, rows)))
        topics = self.history.topics
        if topics is not None and good.topics.topics:
            now = topics_at(topics.logs.values(), night.at)
            yield from observed.topics_replaced(good.topics, now)

    def _is_any_unlisted(self, night: Judged, found: Verdicts) -> bool:
        """Return whether a dead letter without an error exists, which a further run misses."""
        parked = {pair.event_id for pair, verdict in found.items() if verdict is Verdict.PARKED}
        waiting = {OutboxStatus.FAILED, OutboxStatus.UNRESOLVED}
        rows = [
            life.at(night.at) or {}
            for life in self.history.outboxes(night)
            if life.event_id in parked
        ]
        return any(row["status"] in waiting and row["last_error"] is None for row in rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Good:
    """The basis of a further run."""

    basis: Basis
    watermark: float
    proof: Proof
    topics: ObservedTopics


def truth_of(
    history: History, night: Judged, found: Verdicts, *, is_full: bool
) -> dict[Pair, Verdict]:
    """Return what a run certainly has to report: about groups, and about topics.

    A further run may omit or find what was lost after an earlier judgement.
    """
    of_groups = history.expected(night) | renames.expected(history, night)
    if former_groups.are_there(history, night):
        rows = rows_of(history, night)
        of_groups = former_groups.without_what_they_lack(history, night, of_groups, rows)
    of_topics = topic_truth.expected(history, night)
    truth = renames.with_names_of(history, night, of_groups | of_topics)
    if is_full:
        return truth
    lost = topic_truth.lost_once_judged(history, night)
    passed_over = renames.with_names_of(history, night, lost).keys() - found.keys()
    return {pair: verdict for pair, verdict in truth.items() if pair not in passed_over}


def must_tell(history: History, night: Judged) -> bool:
    """Return whether a run has to report that it cannot judge something."""
    others = (ahead, old_copies, renames, foreign_sources, topic_truth, unhandled)
    return history.must_tell(night) or any(each.must_tell(history, night) for each in others)


def may_tell(history: History, night: Judged) -> bool:
    """Return whether a run may report that it cannot judge something, where all is in order."""
    others = (ahead, old_copies, foreign_sources, topic_truth, unhandled)
    return (
        history.may_tell(night)
        or former_groups.are_there(history, night)
        or any(each.may_tell(history, night) for each in others)
    )


def request_of(
    history: History, night: Judged, databases: Mapping[str, ServiceDatabase]
) -> ReconcileRequest:
    """Return the request for a night's run in these databases."""
    setting = history.setting
    services = []
    for name in setting.services:
        kept = night.retention[name]
        database = databases.get(name)
        services.append(
            ServiceDatabase(
                name=night.called(name),
                url="" if database is None else database.url,
                schema=None if database is None else database.schema,
                retention=None if kept is None else timedelta(minutes=kept),
                groups=setting.expected(name, night),
                others=setting.others(name, night),
                former_groups=setting.former_groups(name, night),
            )
        )
    return ReconcileRequest(
        services=tuple(services),
        folder=_NO_FOLDER,
        broker=broker_of(history, night),
        margin=timedelta(minutes=night.margin),
    )


def broker_of(history: History, night: Judged) -> BrokerAccess | None:
    """Return where a night reads topics; None: it reads none."""
    topics = history.topics
    is_read = topics is not None and topics.are_read(night.at)
    return BrokerAccess(bootstrap="127.0.0.1:1", topic_prefix=PREFIX) if is_read else None
