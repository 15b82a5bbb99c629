"""Nights in a row: each from the last good one of the same basis, and held against the truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from shieldtx.reconcile.basis import Basis, basis_of, changes
from shieldtx.reconcile.incremental import FOUND_AGAIN
from shieldtx.reconcile.request import ReconcileRequest, ServiceDatabase
from shieldtx.reconcile.verdicts import Verdict
from tests.verification.oracle.history import History, Pair
from tests.verification.oracle.reading import Reading
from tests.verification.oracle.setting import Judged

_NO_FOLDER: Final = Path("nowhere")


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """What a run has said, and what it had to say."""

    night: Judged
    found: Mapping[Pair, Verdict]
    """All that it says."""
    truth: Mapping[Pair, Verdict]
    is_full: bool
    is_whole: bool = True
    """Whether what is only counted is among what was found."""

    @property
    def wrong(self) -> list[str]:
        """Return in sentences what it has missed, and what it accuses falsely."""
        return [
            f"{'full' if self.is_full else 'further'} run at {self.night.at}: {pair} is "
            f"{self.found.get(pair)}, should be {self.truth.get(pair)}"
            for pair in sorted(self.found.keys() | self.truth.keys())
            if not self._is_right(pair)
        ]

    def _is_right(self, pair: Pair) -> bool:
        found, truth = self.found.get(pair), self.truth.get(pair)
        if found is None:
            # A further run leaves out what is in order.
            is_told = truth is not None and (self.is_whole or truth.is_listed)
            return truth is None or not (is_told and (self.is_full or truth.is_mismatch))
        return found is truth or (truth is None and not found.is_mismatch)

    def mismatches(self, of: Mapping[Pair, Verdict]) -> set[tuple[Pair, Verdict]]:
        """Return what of it is a mismatch."""
        return {(pair, verdict) for pair, verdict in of.items() if verdict.is_mismatch}


@dataclass(kw_only=True, slots=True)
class PythonNights:
    """The nights of one history, by the rules in Python."""

    history: History
    _basis: Basis | None = field(default=None, init=False)
    _watermark: float | None = field(default=None, init=False)

    def run(self) -> list[Said]:
        """Run all nights, and return what each has said."""
        return [self._run(night) for night in self.history.setting.nights]

    def _run(self, night: Judged) -> Said:
        basis = basis_of(request_of(self.history, night, {}), {})
        if self._basis is not None and changes(self._basis, basis):
            self._basis, self._watermark = None, None
        since = self._watermark
        services = self.history.setting.services
        moved_since = {} if since is None else dict.fromkeys(services, since)
        reading = Reading(history=self.history, night=night, moved_since=moved_since)
        found = reading.verdicts()
        hidden = any(v.is_mismatch and v not in FOUND_AGAIN for v in found.values())
        if not hidden and not reading.obstacles() and not self._is_any_unlisted(night, found):
            self._basis, self._watermark = basis, night.watermark
        return Said(
            night=night,
            found=found,
            truth=self.history.expected(night),
            is_full=since is None,
        )

    def _is_any_unlisted(self, night: Judged, found: Mapping[Pair, Verdict]) -> bool:
        """Whether a row waits for a person without an error, so that a further run misses it."""
        parked = {pair.event_id for pair, verdict in found.items() if verdict is Verdict.PARKED}
        return any(
            (life.at(night.at) or {"last_error": ""})["last_error"] is None
            for life in self.history.lives
            if life.event_id in parked and life.group is None
        )


def request_of(
    history: History, night: Judged, databases: Mapping[str, ServiceDatabase]
) -> ReconcileRequest:
    """Ask for what a night judges, in these databases."""
    setting = history.setting
    services = []
    for name in setting.services:
        kept = night.retention[name]
        database = databases.get(name)
        services.append(
            ServiceDatabase(
                name=name,
                url="" if database is None else database.url,
                schema=None if database is None else database.schema,
                retention=None if kept is None else timedelta(minutes=kept),
                groups=setting.expected(name, night),
                others=(name,) if setting.unreceived(name) else (),
            )
        )
    return ReconcileRequest(
        services=tuple(services), folder=_NO_FOLDER, margin=timedelta(minutes=night.margin)
    )
