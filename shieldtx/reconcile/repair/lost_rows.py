"""Events that a service may have handled, though its inbox lacks their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from shieldtx.domain.states import TxKind
from shieldtx.ports.hand_over import Line
from shieldtx.reconcile.repair.age import may_be_forgotten


@dataclass(frozen=True, kw_only=True, slots=True)
class LostRows:
    """Inboxes that may lack rows of events whose effects are there.

    An operator has not confirmed that their services lost the effects together with the rows.
    """

    whole_since: Mapping[str, datetime] = field(default_factory=dict)
    """By service: from when its inbox has the rows of all that was sent to it."""
    kinds: Mapping[str, frozenset[TxKind]] = field(default_factory=dict)
    """By service: of which kinds its groups receive events; left out: of any kind."""

    def why_not(
        self,
        sent_at: datetime | None,
        line: Line | None = None,
        *,
        kind: TxKind | None,
        to: str | None = None,
    ) -> str | None:
        """Return why an event is not sent to a service, or, without one, to all; None: it may be.

        An event that may have been sent more than once counts from when it was written. None for
        its kind: it is not known.
        """
        for service, since in sorted(self.whole_since.items()):
            kinds = self.kinds.get(service)
            if to not in (None, service) or (kinds is not None and kind not in {None, *kinds}):
                continue
            if may_be_forgotten(sent_at, line, since=since):
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
