"""F32: forged rollbacks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle
from typing import Any
from uuid import UUID

from pydantic import SecretStr

from shieldtx.brokers import decoding, signing
from shieldtx.domain.events import Envelope, new_event_id
from shieldtx.ports.broker import ReceivedRecord
from tests.verification.faults.banks import Banks
from tests.verification.faults.foreign_client import ForeignClient, RawRecord
from tests.verification.faults.matrix import Fault
from tests.verification.faults.scenarios.members import await_rollbacks
from tests.verification.faults.world import World

KEY = "the banks' own key that no other client has"
KEY_OF_THE_FORGER = "a key of the same length that the forger made up"
MISSING = f"{signing.HEADER}: the header is missing"
WRONG = f"{signing.HEADER}: is not that of this record"
NOT_AUTHORISED = "is not authorised to send a ROLLBACK"


@dataclass(frozen=True, kw_only=True, slots=True)
class Forgery:
    """A rollback that must not be accepted."""

    record: RawRecord
    reason: str
    """Part of the reason for parking it."""


def forgeries(genuine: RawRecord, credited: UUID, prefix: str) -> Iterator[Forgery]:
    """Yield a forger's variants of a genuine rollback that would take a credited transfer back."""
    other = {"ce_causationid": str(credited).encode()}
    new_id = {"ce_id": str(new_event_id()).encode()}
    yield Forgery(record=genuine.headed(**other, **new_id).without(signing.HEADER), reason=MISSING)
    # Under the id of the genuine one, which would then be the duplicate.
    yield Forgery(record=genuine.headed(**other).without(signing.HEADER), reason=MISSING)
    yield Forgery(record=genuine.headed(**other, **new_id), reason=WRONG)
    yield Forgery(record=genuine.headed(**other), reason=WRONG)
    yield Forgery(record=genuine.headed(**new_id), reason=WRONG)
    yield Forgery(record=genuine.headed(ce_causationsource=b"downstream"), reason=WRONG)
    yield Forgery(record=genuine.evolve(value=b'{"reason": "because"}'), reason=WRONG)
    yield Forgery(
        record=genuine.headed(**other, **{signing.HEADER: os.urandom(32).hex().encode()}),
        reason=WRONG,
    )
    envelope = _envelope(genuine, prefix).evolve(id=new_event_id(), causation_id=credited)
    yield Forgery(record=_signed(envelope, prefix, KEY_OF_THE_FORGER), reason=WRONG)
    # By a service that has the key, but no authority over transfers.
    gossip = envelope.evolve(id=new_event_id(), source="gossip")
    yield Forgery(record=_signed(gossip, prefix, KEY), reason=NOT_AUTHORISED)


def forged_among_genuine(banks: Banks) -> None:
    """Forged, tampered and replayed rollbacks lie among the genuine ones when these are read."""
    banks.open(but="upstream consume")
    banks.write(60, refused=0.3)
    await_rollbacks(banks)
    foreign_client = ForeignClient(banks.kafka.bootstrap)
    genuine = foreign_client.read(banks.topics[1])
    credited = [row.id for row in banks.downstream.rows("SELECT id FROM credit ORDER BY n")]
    planned = [
        forgery
        for rollback, transfer in zip(genuine[:5], credited, strict=False)
        for forgery in forgeries(rollback, transfer, banks.prefix)
    ]
    partitions = cycle(range(foreign_client.partitions(banks.topics[1])))
    put = foreign_client.put(*(f.record.evolve(partition=next(partitions)) for f in planned))
    banks.planted |= {record.place for record in put}
    foreign_client.put(*(record.evolve(partition=next(partitions)) for record in genuine))
    for _ in range(2):
        banks.upstream.consume()
    ends = foreign_client.ends(banks.topics[1])
    banks.until(
        lambda: foreign_client.has_read(banks.upstream.group, banks.topics[1], ends), "all are read"
    )
    banks.drain()
    _expect_none_believed(banks, planned, put)
    refunded = {row.id for row in banks.upstream.rows("SELECT id FROM refund")}
    due = {row.id for row in banks.upstream.rows("SELECT id FROM transfer")} - set(credited)
    banks.expect(refunded == due, "refused transfers are refunded, and no others")


def _expect_none_believed(banks: Banks, planned: list[Forgery], put: list[RawRecord]) -> None:
    parked = {
        (row.topic, row.record_partition, row.record_offset): row.reason
        for row in banks.upstream.rows("SELECT * FROM shield_parked")
    }
    banks.expect(len(parked) == len(put), f"{len(parked)} records are parked, not {len(put)}")
    for forgery, record in zip(planned, put, strict=True):
        reason = parked.get(record.place, "nothing")
        banks.expect(forgery.reason in reason, f"parked for {reason!r}, not for {forgery.reason!r}")
    banks.expect(planned, "nothing was forged")


def _envelope(raw: RawRecord, prefix: str) -> Envelope:
    received = ReceivedRecord(
        topic=raw.topic,
        partition=raw.partition,
        offset=raw.offset,
        key=raw.key,
        value=raw.value,
        headers=raw.headers,
    )
    return decoding.decode(received, prefix)


def _signed(envelope: Envelope, prefix: str, key: str) -> RawRecord:
    record = signing.encode(envelope, prefix, [SecretStr(key)])
    return RawRecord(
        topic=record.topic, partition=0, key=record.key, value=record.value, headers=record.headers
    )


def signed(world: World, open_: ExitStack) -> Mapping[str, Any]:
    """Let the banks sign their rollbacks, and upstream accept those of downstream alone."""
    del world, open_
    return {"settings": {"SHIELDTX_SIGNING_KEY": KEY, "BANK_WARY": "1"}}


FAULTS = (
    Fault(
        id="F32",
        name="rollbacks forged, tampered with, replayed",
        run=forged_among_genuine,
        setting=signed,
    ),
)
