"""Groups that are former ones in the last night: their missing rows are not reported.

The exception is the rollbacks of events that they have applied, and have not compensated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shieldtx.domain.states import InboxStatus, TxKind
from shieldtx.reconcile.verdicts import Verdict
from tests.verification.oracle.facts import Rows
from tests.verification.oracle.history import History, Pair
from tests.verification.oracle.setting import Judged

_WITHOUT_EFFECT = {InboxStatus.MAX_RECONSUMED, InboxStatus.FENCED, InboxStatus.DISCARDED}


def to_be_compensated(rows: Rows) -> set[tuple[Any, ...]]:
    """Return by service, group and source the events with an effect, or perhaps a later one."""
    compensated = {(r["service"], r["group"], r["compensated_id"]) for r in rows.inbox}
    return {
        (row["service"], row["group"], row["source"], row["event_id"])
        for row in rows.inbox
        if row["kind"] is TxKind.COMMIT
        and row["status"] not in _WITHOUT_EFFECT
        and (row["service"], row["group"], row["event_id"]) not in compensated
    }


def are_there(h: History, night: Judged) -> bool:
    """Return whether a night's configuration declares former groups.

    No other group may have received a type, and former groups may receive events anyway.
    """
    return any(h.setting.former_groups(service, night) for service in h.setting.services)


def without_what_they_lack(
    h: History, night: Judged, verdicts: Mapping[Pair, Verdict], rows: Rows
) -> dict[Pair, Verdict]:
    """Leave out the verdicts on events of which a former group has no row."""
    former = {
        (service, each.name)
        for service in h.setting.services
        for each in h.setting.former_groups(service, night)
    }
    arrived = {(row["service"], row["group"], row["source"], row["event_id"]) for row in rows.inbox}
    owed = to_be_compensated(rows)
    causes = {
        (row["source"], row["event_id"]): (row["causation_source"], row["causation_id"])
        for row in rows.outbox
        if row["kind"] is TxKind.ROLLBACK
    }

    def is_lacked(pair: Pair) -> bool:
        group = pair.downstream, pair.group
        event = pair.upstream, pair.event_id
        return (
            group in former
            and (*group, *event) not in arrived
            and (*group, *causes.get(event, ())) not in owed
        )

    return {pair: verdict for pair, verdict in verdicts.items() if not is_lacked(pair)}
