"""The events that an incremental run looks up because of the rows that it reads.

A later rollback changes the verdict on its event without changing a row of the event. A later
effect does not change the row of its rollback, which was settled because there was no effect.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from .row_filters import Read, quoted
from .server_checks import Servers

_BY_OUTBOX = """
    SELECT DISTINCT o.causation_source AS source, o.causation_id::text AS event_id
    FROM {outbox} o
    WHERE o.tx_kind = 'ROLLBACK' AND o.source = {name} AND o.causation_source IS NOT NULL
      AND o.causation_id IS NOT NULL AND {condition}"""
_BY_INBOX = """
    SELECT DISTINCT i.causation_source AS source, i.causation_id::text AS event_id
    FROM {inbox} i
    WHERE i.tx_kind = 'ROLLBACK' AND i.causation_source = {name}
      AND i.causation_id IS NOT NULL AND {condition}"""

_WITHOUT_EFFECT = """
    SELECT DISTINCT r.source, r.event_id::text AS event_id
    FROM {inbox} r JOIN {inbox} i
      ON i.consumer_group = r.consumer_group AND i.source = r.causation_source
      AND i.event_id = r.causation_id
    WHERE r.tx_kind = 'ROLLBACK' AND r.status = 'PROCESSED' AND r.compensated_id IS NULL
      AND r.causation_source <> {name} AND i.status = 'PROCESSED' AND {condition}"""


def taken_back(
    servers: Servers, outboxes: Mapping[str, Read], inboxes: Mapping[str, Read]
) -> dict[str, set[str]]:
    """Return the ids of events with a rollback in these reads, and of rollbacks with an effect.

    They are grouped by the service that wrote them.
    """
    found: dict[str, set[str]] = defaultdict(set)
    names = {service.name for service in servers.services}
    for service in servers.services:
        for query, reads in (
            (_BY_OUTBOX, outboxes),
            (_BY_INBOX, inboxes),
            (_WITHOUT_EFFECT, inboxes),
        ):
            condition = reads[service.name].condition
            names_it = quoted(service.name)
            for source, event_id in servers.rows(
                service, query, name=names_it, condition=condition
            ):
                if source in names:
                    found[source].add(event_id)
    return dict(found)
