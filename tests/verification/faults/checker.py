"""The checker: counts violations of the promise.

Its sources are the journal of the clients, the topics as another client reads them, the business
tables of both banks and the history of status changes. A status column counts only where another
source agrees.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import Engine, text

from shieldtx.domain.states import TxKind
from tests.verification.faults.bank import OPENING_BALANCE
from tests.verification.faults.history import Step, illegal_steps
from tests.verification.faults.journal import Operations
from tests.verification.faults.topics import Read


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """All traces that a run left."""

    operations: Operations
    records: Sequence[Read]
    """Of the commit and the rollback topic, whole."""
    transfers: Mapping[UUID, tuple[str, int, int]]
    """What upstream committed: account, sequence number, amount."""
    credits: Sequence[tuple[UUID, str, int, int]]
    """Effects downstream in their order: id, account, number, amount."""
    refunds: Sequence[UUID]
    """Compensations upstream."""
    withdrawals: Sequence[UUID]
    """Local rollbacks upstream."""
    outbox: Mapping[UUID, tuple[str, str]]
    """Upstream: status and reason."""
    rollbacks: Mapping[UUID, str]
    """Downstream's ROLLBACK events and their status."""
    parked: frozenset[UUID]
    """Transfers that wait for an operator: FAILED without local rollback, DEAD, undecodable."""
    illegal: Sequence[Step]
    balances: tuple[int, int]
    """Sums upstream and downstream."""
    accounts: int
    handed_over: frozenset[UUID] = frozenset()
    """Events that a repair has stored in an inbox, by its audit: they need no record."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """The work of a run, and the number of violations of each promise."""

    attempted: int
    ok: int
    info: int
    fail: int
    committed: int
    records: int
    duplicate_records: int
    effects: int
    compensations: int
    parked: int
    lost: int
    ghost: int
    double: int
    inversions: int
    both: int
    neither: int
    illegal: int
    money: int
    """The difference in the sum of both banks."""
    violations: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """A few examples of each violation."""

    @property
    def clean(self) -> bool:
        """Return whether every promise was kept."""
        return not any(
            (
                self.lost,
                self.ghost,
                self.double,
                self.inversions,
                self.both,
                self.neither,
                self.illegal,
                self.money,
            )
        )


def gather(
    upstream: Engine,
    downstream: Engine,
    records: Sequence[Read],
    operations: Operations,
    *,
    ledger: Engine | None = None,
) -> Evidence:
    """Read the tables of both banks; upstream may have a ledger in another database."""
    books = [upstream] if ledger is None else [upstream, ledger]

    def rows(engine: Engine, query: str) -> list[Any]:
        with engine.connect() as connection:
            return list(connection.execute(text(query)).all())

    withdrawals = [r.id for r in rows(upstream, "SELECT id FROM withdrawal ORDER BY n")]
    failed = {r.event_id for r in rows(upstream, _OUTBOX) if r.status == "FAILED"}
    dead = {r.causation_id for r in rows(upstream, _DEAD)}
    undecodable = {UUID(r.id) for r in rows(downstream, _UNDECODABLE) if r.id}
    return Evidence(
        operations=operations,
        records=records,
        transfers={
            r.id: (r.account, r.seq, r.amount)
            for engine in books
            for r in rows(engine, "SELECT id, account, seq, amount FROM transfer")
        },
        credits=[
            (r.id, r.account, r.seq, r.amount)
            for r in rows(downstream, "SELECT id, account, seq, amount FROM credit ORDER BY n")
        ],
        refunds=[r.id for r in rows(upstream, "SELECT id FROM refund ORDER BY n")],
        withdrawals=withdrawals,
        outbox={r.event_id: (r.status, r.last_error or "") for r in rows(upstream, _OUTBOX)},
        rollbacks={r.event_id: r.status for r in rows(downstream, _ROLLBACKS)},
        parked=frozenset(dead | undecodable | failed - set(withdrawals)),
        illegal=[*illegal_steps(upstream), *illegal_steps(downstream)],
        balances=(
            int(sum(rows(engine, _BALANCE)[0][0] for engine in books)),
            int(rows(downstream, _BALANCE)[0][0]),
        ),
        accounts=rows(upstream, "SELECT count(*) FROM account")[0][0],
        handed_over=frozenset(UUID(r.id) for r in rows(downstream, _HANDED_OVER)),
    )


_BALANCE = "SELECT coalesce(sum(balance), 0) FROM account"
_OUTBOX = "SELECT event_id, status, last_error FROM shield_outbox WHERE tx_kind = 'COMMIT'"
_ROLLBACKS = "SELECT event_id, status FROM shield_outbox WHERE tx_kind = 'ROLLBACK'"
_DEAD = "SELECT causation_id FROM shield_inbox WHERE status = 'DEAD' AND causation_id IS NOT NULL"
_HANDED_OVER = (
    "SELECT jsonb_array_elements_text(events) AS id FROM shield_audit, "
    "jsonb_path_query(detail::jsonb, '$.events.*') AS events "
    "WHERE action = 'repair' AND detail::jsonb ->> 'action' = 'hand over'"
)
_UNDECODABLE = (
    "SELECT convert_from(decode(header ->> 1, 'base64'), 'UTF8') AS id FROM shield_parked, "
    "json_array_elements(record_headers::json) AS header WHERE header ->> 0 = 'ce_id' "
    "AND convert_from(decode(header ->> 1, 'base64'), 'UTF8') ~ '^[0-9a-f-]{36}$'"
)


def count(evidence: Evidence) -> Counts:
    """Count every invariant of the promise."""
    e = evidence
    committed = set(e.transfers)
    commits = [r for r in e.records if r.kind == TxKind.COMMIT]
    rollbacks = [r for r in e.records if r.kind == TxKind.ROLLBACK]
    delivered = {r.id for r in commits} | e.handed_over
    effects = Counter(transfer for transfer, *_ in e.credits)
    returns = Counter([*e.refunds, *e.withdrawals])
    answers = e.operations.counts()
    violations: dict[str, list[Any]] = {
        "lost": [
            *(committed - delivered - _failed(e)),
            *(
                i
                for i, (status, _) in e.outbox.items()
                if status == "PROCESSED" and i not in delivered
            ),
            *(e.operations.of("ok") - committed),
        ],
        "ghost": [
            *(r.id for r in commits if r.id not in committed),
            *(r.id for r in rollbacks if r.id not in e.rollbacks),
            *(set(effects) - committed),
            *(set(returns) - committed),
            *(e.operations.of("fail") & committed),
        ],
        "double": [i for i, n in (*effects.items(), *returns.items()) if n > 1],
        "inversions": [
            *_inversions((account, seq, i) for i, account, seq, _ in e.credits),
            *_inversions(((r.key, r.partition), r.seq, r.id) for r in commits),
        ],
        "both": list(set(effects) & set(returns)),
        "neither": list(committed - set(effects) - set(returns) - e.parked),
        "illegal": [step for step in e.illegal for _ in range(step.rows)],
    }
    stranded = sum(
        e.transfers[i][2] for i in e.parked & committed if i not in effects and i not in returns
    )
    return Counts(
        attempted=len(e.operations.answers),
        ok=answers["ok"],
        info=answers["info"],
        fail=answers["fail"],
        committed=len(committed),
        records=len(e.records),
        duplicate_records=len(e.records) - len({(r.kind, r.id) for r in e.records}),
        effects=sum(effects.values()),
        compensations=sum(returns.values()),
        parked=len(e.parked),
        **{name: len(found) for name, found in violations.items()},
        money=e.accounts * OPENING_BALANCE - sum(e.balances) - stranded,
        violations={name: found[:3] for name, found in violations.items() if found},
    )


def _failed(evidence: Evidence) -> set[UUID]:
    """Return the events that ended FAILED in a permitted way: with a reason."""
    return {i for i, (status, why) in evidence.outbox.items() if status == "FAILED" and why}


def _inversions(seen: Iterable[tuple[Hashable, int | None, UUID | None]]) -> list[Any]:
    """Return the ids that follow a later one of their key; repetitions do not count."""
    highest: dict[Hashable, int] = defaultdict(int)
    known: set[UUID | None] = set()
    late = []
    for key, seq, event in seen:
        if event in known or seq is None:
            continue
        known.add(event)
        if seq < highest[key]:
            late.append((key, seq, highest[key]))
        highest[key] = max(highest[key], seq)
    return late
