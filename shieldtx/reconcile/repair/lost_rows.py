"""Events that a service may have handled, though its inbox lacks their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from shieldtx.ports.hand_over import Line
from shieldtx.reconcile.repair.age import may_be_forgotten


@dataclass(frozen=True, kw_only=True, slots=True)
class LostRows:
    """Inboxes that may lack rows of events whose effects are there.

    An operator has not confirmed that their services lost the effects together with the rows.
    """

    whole_since: Mapping[str, datetime] = field(default_factory=dict)
    """By service: from when its inbox has the rows of all that was sent to it."""

    def why_not(
        self, sent_at: datetime | None, line: Line | None = None, *, to: str | None = None
    ) -> str | None:
        """Return why an event is not sent to a service, or, without one, to all; None: it may be.

        An event that may have been sent more than once counts from when it was written.
        """
        for service, since in sorted(self.whole_since.items()):
            if to in (None, service) and may_be_forgotten(sent_at, line, since=since):
                return (
                    f"the inbox of {service} was emptied, recreated or restored since it was sent: "
                    "its effect may be there without its row, and would come a second time; only "
                    f"if the inbox and the data of {service} are of the same moment, as after a "
                    f"restore of its whole database, repair with `--restored {service}`"
                )
        return None


NONE_LOST: Final = LostRows()
