"""F27, F38: undecodable records among valid ones, and large ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

import psutil

from shieldtx.domain.events import new_event_id
from shieldtx.embedded import EmbeddedKafka
from tests.verification.faults.bank import by_hand
from tests.verification.faults.banks import Banks
from tests.verification.faults.foreign_client import LARGEST, ForeignClient, RawRecord
from tests.verification.faults.matrix import Fault
from tests.verification.faults.world import World

FIFTY_MB = 50_000_000
SIXTEEN_MB = 16 * 2**20
NEARLY_A_MB = 900_000
LARGE_EVENTS = 240
MOST_MEMORY = 400_000_000
"""Bytes of a relay, or of a consumer."""
FOREIGN = "foreign"


@dataclass(frozen=True, kw_only=True, slots=True)
class Poison:
    """A record that cannot be an event."""

    record: RawRecord
    reason: str
    """Part of the reason for parking it."""


def poisons(good: RawRecord) -> Iterator[Poison]:
    """Yield variants of a good record with one defect each."""
    for value, reason in (
        (None, "a tombstone"),
        (b"", "is not JSON"),
        (b'{"account": "account-1", "seq"', "is not JSON"),
        (b'{"account": "\xff"}', "is not UTF-8"),
        (b'{"account": "a\\u0000b"}', "NUL"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"amount": NaN}', "is not JSON"),
        (json.dumps("x" * FIFTY_MB).encode(), "bytes, the limit is"),
    ):
        yield Poison(record=good.evolve(value=value), reason=reason)
    for name in ("ce_specversion", "ce_id", "ce_source", "ce_type", "ce_txkind", "content-type"):
        yield Poison(record=good.without(name), reason=f"{name}: the header is missing")
    for name, wrong, reason in (
        ("ce_specversion", b"0.3", "is not 1.0"),
        ("ce_txkind", b"MAYBE", "is none of"),
        ("ce_txkind", b"ROLLBACK", "does not fit the kind"),
        ("ce_id", b"17", "is not a UUID"),
        ("ce_time", b"yesterday", "is not a time"),
        ("ce_partitionkey", b"another", "differs from the record's key"),
        ("content-type", b"text/plain", "is not application/json"),
        ("ce_source", None, "has no value"),
        ("ce_type", b"\xff\xfe", "is not UTF-8"),
    ):
        yield Poison(record=good.headed(**{name: wrong}), reason=reason)
    many = tuple((f"n{number}", b"") for number in range(10_000))
    yield Poison(record=good.evolve(headers=(*good.headers, *many)), reason="the limit is 256")
    yield Poison(record=good.evolve(headers=()), reason="the header is missing")


def poison_among_good_ones(banks: Banks) -> None:
    """Every partition has undecodable records and records without a handler."""
    banks.open(but="downstream consume")
    banks.write(30)
    banks.until(lambda: set(banks.upstream.outbox()) == {"PROCESSED"}, "all are on the topic")
    foreign_client = ForeignClient(banks.kafka.bootstrap)
    # A new id: a parked record with the id of a transfer would count as that transfer.
    good = foreign_client.read(banks.topics[0])[0].headed(ce_id=str(new_event_id()).encode())
    partitions = cycle(range(foreign_client.partitions(good.topic)))
    planned = list(poisons(good))
    unasked = [
        good.headed(ce_type=b"bank.unheard-of"),
        good.headed(ce_source=FOREIGN.encode()).evolve(value=b'{"account": 5}'),
    ]
    put = foreign_client.put(
        *(p.record.evolve(partition=next(partitions)) for p in planned),
        *(record.evolve(partition=next(partitions)) for record in unasked),
    )
    banks.planted |= {record.place for record in put}
    banks.downstream.consume()
    banks.write(30)
    _await_all(banks, foreign_client)
    _expect_parked(banks, planned, put[: len(planned)])
    _expect_refused(banks)


def _await_all(banks: Banks, foreign_client: ForeignClient) -> None:
    side, topic = banks.downstream, banks.topics[0]
    ends = foreign_client.ends(topic)
    banks.until(
        lambda: foreign_client.has_read(side.group, topic, ends),
        "every partition goes on after its poison",
        60,
    )
    # No parked record counts as a transfer here, so all transfers have to reach a terminal state.
    banks.until(
        lambda: (
            banks.upstream.one("SELECT count(*) FROM transfer")
            == side.one("SELECT count(*) FROM credit")
            + banks.upstream.one("SELECT count(*) FROM refund")
        ),
        "every transfer is credited or refunded",
    )


def _expect_parked(banks: Banks, planned: list[Poison], put: list[RawRecord]) -> None:
    """Every undecodable record is kept, byte for byte, with its defect."""
    parked = {
        (row.topic, row.record_partition, row.record_offset): row
        for row in banks.downstream.rows("SELECT * FROM shield_parked")
    }
    banks.expect(len(parked) == len(put), f"{len(parked)} records are parked, not {len(put)}")
    for poison, record in zip(planned, put, strict=True):
        row = parked.get(record.place)
        reason = row.reason if row is not None else "nothing"
        banks.expect(
            poison.reason in reason,
            f"parked for {reason!r}, not for {poison.reason!r}",
        )
        kept = row is not None and (row.record_key, row.record_value) == (record.key, record.value)
        banks.expect(kept, f"other bytes are parked for {poison.reason!r}")


def _expect_refused(banks: Banks) -> None:
    """The handler refuses an event of another shape; its source gets a rollback."""
    status = banks.downstream.rows(
        "SELECT status FROM shield_inbox WHERE source = :foreign", foreign=FOREIGN
    )
    banks.expect([tuple(s) for s in status] == [("MAX_RECONSUMED",)], f"refused: {status}")
    unheard = banks.downstream.rows(
        "SELECT event_id FROM shield_inbox WHERE event_type <> 'bank.transferred'"
    )
    banks.expect(not unheard, "a type that no handler asked for goes by")


def large_among_small_ones(banks: Banks) -> None:
    """Events of 900 kB fill batches that are bounded by bytes, among records of 16 MB."""
    up, topic = banks.upstream, banks.topics[0]
    accounts = [banks.accounts[n % len(banks.accounts)] for n in range(LARGE_EVENTS)]
    up.call("large", partial(by_hand.transfer_too_much, size=NEARLY_A_MB), *accounts).finish()
    banks.open(but="downstream consume")
    banks.write(30)
    banks.until(lambda: set(up.outbox()) == {"PROCESSED"}, "all are on the topic", 60)
    foreign_client = ForeignClient(banks.kafka.bootstrap)
    model = foreign_client.read(topic)[0]
    value = json.dumps("x" * (SIXTEEN_MB - 2)).encode()
    # From a foreign source: neither an event of the banks nor a transfer.
    model = model.headed(ce_id=str(new_event_id()).encode(), ce_source=FOREIGN.encode())
    large = model.evolve(value=value)
    partitions = range(foreign_client.partitions(topic))
    put = foreign_client.put(*(large.evolve(partition=partition) for partition in partitions))
    banks.planted |= {record.place for record in put}
    banks.downstream.consume()
    banks.write(30)
    _await_all(banks, foreign_client)
    _expect_refused(banks)
    for worker in (worker for side in banks.sides for worker in side.workers if worker.is_running):
        memory = psutil.Process(worker.pid).memory_info().rss
        banks.expect(memory < MOST_MEMORY, f"{worker.name}: {memory / 1e6:.0f} MB")


def large_records(world: World, open_: ExitStack) -> Mapping[str, Any]:
    """Start a broker that accepts records as large as the undecodable ones."""
    settings = {"message.max.bytes": str(LARGEST)}
    return {"kafka": open_.enter_context(EmbeddedKafka(settings=settings))}


def many_in_a_batch(world: World, open_: ExitStack) -> Mapping[str, Any]:
    """Allow more of these events in a batch, by their number, than exist."""
    sizes = {f"SHIELDTX_{who}_BATCH_SIZE": "1000" for who in ("RELAY", "CONSUMER")}
    return {**large_records(world, open_), "settings": sizes}


FAULTS = (
    Fault(
        id="F27",
        name="bad records among good records",
        run=poison_among_good_ones,
        setting=large_records,
    ),
    Fault(
        id="F38",
        name="large events in full batches, records of 16 MB",
        run=large_among_small_ones,
        setting=many_in_a_batch,
    ),
)
