"""The codec with signatures: only a holder of the secret can take an event back.

A ROLLBACK record carries an HMAC-SHA256 (RFC 2104) of all fields that its receivers act on. COMMIT
records have no signature: other producers than shieldtx may write them.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from datetime import UTC
from typing import Final

from pydantic import SecretStr

from shieldtx.brokers import cloudevents, decoding
from shieldtx.domain.events import Envelope
from shieldtx.domain.states import TxKind
from shieldtx.errors import UndecodableRecord
from shieldtx.ports.broker import ReceivedRecord, Record

HEADER: Final = "ce_signature"
MIN_KEY_BYTES: Final = 32
"""The output size of SHA-256: shorter keys weaken an HMAC (RFC 2104, section 3)."""

_FORMAT: Final = "shieldtx rollback 1"


def encode(envelope: Envelope, prefix: str, keys: Sequence[SecretStr] = ()) -> Record:
    """Return the record that carries `envelope`, signed with the first of the keys."""
    record = cloudevents.encode(envelope, prefix)
    if not keys or envelope.kind is not TxKind.ROLLBACK:
        return record
    signature = _signature(envelope, record.topic, keys[0])
    return record._replace(headers=(*record.headers, (HEADER, signature)))


def decode(
    record: ReceivedRecord,
    prefix: str,
    keys: Sequence[SecretStr] = (),
    *,
    reader: str | None = None,
) -> Envelope:
    """Return the envelope that `record` carries, if one of the keys has signed it.

    `reader` is the service that reads it. Raises UndecodableRecord. Without keys, signatures are
    not checked.
    """
    envelope = decoding.decode(record, prefix, reader=reader)
    if not keys or envelope.kind is not TxKind.ROLLBACK:
        return envelope
    found = dict(record.headers).get(HEADER)
    if found is None:
        raise UndecodableRecord(f"{HEADER}: the header is missing from a rollback")
    expected = [_signature(envelope, record.topic, key) for key in keys]
    if not any([hmac.compare_digest(found, signature) for signature in expected]):  # noqa: C419  a list: the time reveals nothing
        raise UndecodableRecord(
            f"{HEADER}: is not that of this record: forged, changed, or signed with a key that is "
            "not in SHIELDTX_SIGNING_KEY"
        )
    return envelope


def names_signature(reason: str) -> bool:
    """Whether a signature is the reason why a record was refused."""
    return reason.startswith(f"{HEADER}:")


def _signature(envelope: Envelope, topic: str, key: SecretStr) -> bytes:
    secret = key.get_secret_value().encode()
    return hmac.digest(secret, _signed_part(envelope, topic), "sha256").hex().encode()


def _signed_part(e: Envelope, topic: str) -> bytes:
    """Return the bytes to sign, which differ for any two records.

    They include the physical topic, so that a record of another system with the same key is
    refused.
    """
    fields = (
        _FORMAT,
        topic,
        str(e.id),
        e.source,
        e.type,
        e.kind,
        e.operation,
        e.time.astimezone(UTC).isoformat(),
        e.key,
        e.biz_key,
        None if e.causation_id is None else str(e.causation_id),
        e.causation_source,
        e.payload,
    )
    return b"".join(_framed(field) for field in fields)


def _framed(field: str | None) -> bytes:
    """Return a field after its length, so that its content cannot shift its end."""
    if field is None:
        return b"-"
    content = field.encode()
    return b"%d:%s" % (len(content), content)
