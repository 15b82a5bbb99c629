"""Events that a service may have handled although its inbox lacks their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from shieldtx.domain.states import TxKind
from shieldtx.ports.hand_over import EventPosition
from shieldtx.reconcile.repair.age import may_be_forgotten


@dataclass(frozen=True, kw_only=True, slots=True)
class LostRows:
    """Inboxes that may lack rows of events whose effects exist.

    No operator has confirmed that their services lost the effects together with the rows.
    """

    whole_since: Mapping[str, datetime] = field(default_factory=dict)
    """By service: the time from which its inbox has the rows of all events sent to it."""
    kinds: Mapping[str, frozenset[TxKind]] = field(default_factory=dict)
    """By service: the kinds of events that its groups receive; no entry: any kind."""

    def why_not(
        self,
        sent_at: datetime | None,
        position: EventPosition | None = None,
        *,
        kind: TxKind | None,
        to: str | None = None,
    ) -> str | None:
        """Return why an event is not sent to a service (`to` None: to all); None: it may be sent.

        For an event that may have been sent more than once, the time of writing counts. `kind` is
        None if it is not known.
        """
        for service, since in sorted(self.whole_since.items()):
            kinds = self.kinds.get(service)
            if to not in (None, service) or (kinds is not None and kind not in {None, *kinds}):
                continue
            if may_be_forgotten(sent_at, position, since=since):
                return (
                    f"it was sent before {since:%Y-%m-%d %H:%M:%S%z}, and of that time the inbox "
                    f"of {service} is not known to have all rows: it was emptied, recreated or "
                    "restored, or no run has seen it before. Its effect may be there without its "
                    "row, and would come a second time. Only if it is not there, as after a "
                    f"restore of the whole database of {service} or where {service} is new, "
                    f"repair with `--restored {service}`"
                )
        return None


NONE_LOST: Final = LostRows()
