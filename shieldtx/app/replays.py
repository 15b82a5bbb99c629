"""The check of parked records before they are received again: the same as that of a consumer."""

from __future__ import annotations

from functools import partial

from shieldtx.app.declarations import Declarations
from shieldtx.brokers import signing
from shieldtx.consumer.arrivals import read_arrival
from shieldtx.errors import ConfigurationError
from shieldtx.ports.inbox import IncomingEvent
from shieldtx.settings.settings import Settings
from shieldtx.store.dead_letter_rows import ParkedRecord


class ParkedCheck:
    """Decodes parked records, and checks their signatures, handlers and sources.

    The process of an operator may lack settings of the workers: without the keys, it would accept
    what they refuse; with another prefix, it would store other topics. It then decides nothing.
    """

    def __init__(self, settings: Settings, declarations: Declarations) -> None:
        self._declarations = declarations
        self._has_keys = bool(settings.signing_keys)
        self._decode = partial(
            signing.decode,
            prefix=settings.topic_prefix,
            keys=settings.signing_keys,
            reader=settings.source,
        )

    def __call__(self, parked: ParkedRecord) -> IncomingEvent:
        """Return the event of a record that its group may handle.

        Raises UndecodableRecord for a record that must stay parked; ConfigurationError where the
        application does not handle it, and where keys are missing to check it.
        """
        group = self._declarations.group(parked.group)
        if parked.record.topic not in self._declarations.topics_of(parked.group):
            raise ConfigurationError(
                f"group {parked.group} does not read topic {parked.record.topic} in this "
                "application: set SHIELDTX_TOPIC_PREFIX as for the workers"
            )
        known = [name for name, _ in parked.record.headers]
        if not self._has_keys and (
            signing.HEADER in known or signing.names_signature(parked.reason)
        ):
            raise ConfigurationError(
                "its signature cannot be checked: set SHIELDTX_SIGNING_KEY as for the workers"
            )
        # The table has no timestamps of records: an event without a time gets that of its parking.
        parked_at = int(parked.parked_at.timestamp() * 1000)
        record = parked.record._replace(timestamp=parked_at)
        arrival = read_arrival(record, group=group, decode=self._decode)
        if arrival is None and group.foreign_topic(record.topic) is not None:
            raise ConfigurationError(
                f"the decoder of foreign topic {record.topic} leaves the record out, or group "
                f"{parked.group} has no handler for the type of its event: discard the record"
            )
        if arrival is None:
            named = dict(parked.record.headers)
            type_, kind = (
                (named.get(name) or b"").decode(errors="backslashreplace")
                for name in ("ce_type", "ce_txkind")
            )
            raise ConfigurationError(
                f"group {parked.group} has no handler for {kind} of {type_!r} in this application"
            )
        return arrival
