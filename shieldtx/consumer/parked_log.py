"""What a consumer logs about the records that it parks."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from shieldtx.domain.log_fields import record_fields
from shieldtx.ports.inbox import Parked

log = logging.getLogger(__name__)


def log_parked(group: str, records: Iterable[Parked]) -> None:
    """Log the records that a group has parked, after they are committed."""
    for parked in records:
        log.error(
            "record is parked",
            extra={
                "action": "record_parked",
                "group": group,
                **record_fields(parked.record),
                "reason": parked.reason,
            },
        )
