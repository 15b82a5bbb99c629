"""The codec with signatures: only who knows the secret can have something taken back.

A ROLLBACK record carries an HMAC-SHA256 (RFC 2104) of all that its receivers act on. COMMIT records
carry none: other producers than shieldtx may write them.
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
"""As long as what SHA-256 gives: shorter keys weaken an HMAC (RFC 2104, section 3)."""

_FORMAT: Final = "shieldtx rollback 1"


def encode(envelope: Envelope, prefix: str, keys: Sequence[SecretStr] = ()) -> Record:
    """Return the record that carries `envelope`, signed with the first of the keys."""
    record = cloudevents.encode(envelope, prefix)
    if not keys or envelope.kind is not TxKind.ROLLBACK:
        return record
    signature = _signature(envelope, record.topic, keys[0])
    return record._replace(headers=(*record.headers, (HEADER, signature)))


def decode(record: ReceivedRecord, prefix: str, keys: Sequence[SecretStr] = ()) -> Envelope:
    """Return the envelope that `record` carries, if any of the keys has signed it.

    Raises UndecodableRecord. Without keys nothing is asked of signatures.
    """
    envelope = decoding.decode(record, prefix)
    if not keys or envelope.kind is not TxKind.ROLLBACK:
        return envelope
    found = dict(record.headers).get(HEADER)
    if found is None:
        raise UndecodableRecord(f"{HEADER}: the header is missing from a rollback")
    expected = [_signature(envelope, record.topic, key) for key in keys]
    if not any([hmac.compare_digest(found, signature) for signature in expected]):  # noqa: C419  all, so that the time tells nothing
        raise UndecodableRecord(
            f"{HEADER}: is not that of this record: forged, changed, or signed with a key that is "
            "not in SHIELDTX_SIGNING_KEY"
        )
    return envelope


def _signature(envelope: Envelope, topic: str, key: SecretStr) -> bytes:
    secret = key.get_secret_value().encode()
    return hmac.digest(secret, _signed_part(envelope, topic), "sha256").hex().encode()


def _signed_part(e: Envelope, topic: str) -> bytes:
    """Write down what is signed, so that no other record has the same bytes.

    The broker's name of the topic keeps a record of one system out of another with the same key.
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
    """Put its length before a field: where one ends is not for its content to say."""
    if field is None:
        return b"-"
    content = field.encode()
    return b"%d:%s" % (len(content), content)
