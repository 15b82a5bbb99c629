"""A claim and the due rows of the inbox are bounded by bytes as well as by rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shieldtx.domain.events import Envelope
from shieldtx.ports.inbox import Handled
from shieldtx.ports.relay import Settlement
from shieldtx.store.inbox_store import SqlInboxStore
from shieldtx.store.relay_store import SqlRelayStore
from shieldtx.store.statements import inbox_unfinished
from tests.contract.conftest import Stores
from tests.contract.store.test_inbox import GROUP, HANDLED, begin, finish, receive
from tests.contract.store.test_outbox import claim, envelope, ids, write

BYTES = 1000


@pytest.fixture
def stores(stores: Stores) -> Stores:
    return replace(
        stores,
        outbox=SqlRelayStore(stores.engine, stores.tables, batch_bytes=BYTES),
        inbox=SqlInboxStore(stores.engine, stores.tables, batch_bytes=BYTES),
    )


def test_claim_ends_at_its_byte_limit_and_the_next_continues(stores: Stores) -> None:
    written = write(stores, *(envelope("k", payload='"' + "x" * 398 + '"') for _ in range(5)))
    first = claim(stores)
    # Two are below the bound; the third reaches it.
    assert ids(first) == written[:3]
    assert first.cut
    stores.outbox.settle(first.token, Settlement(processed=ids(first)))
    assert ids(claim(stores)) == written[3:]


def test_bytes_count_not_characters(stores: Stores) -> None:
    written = write(stores, *(envelope("k", payload='"' + "ü" * 249 + '"') for _ in range(5)))
    assert ids(claim(stores)) == written[:2]


def test_one_event_of_any_size_is_claimed(stores: Stores) -> None:
    large, small = write(stores, envelope(payload='"' + "x" * 2 * BYTES + '"'), envelope())
    assert ids(claim(stores)) == [large]
    assert ids(claim(stores)) == [small]


def test_small_events_are_not_cut(stores: Stores) -> None:
    write(stores, *(envelope() for _ in range(10)))
    claimed = claim(stores)
    assert len(claimed.events) == 10
    assert not claimed.cut


def due(stores: Stores) -> list[Envelope]:
    return list(stores.inbox.due(GROUP, handled=HANDLED, limit=100))


def test_due_rows_end_where_their_bytes_do_and_the_next_go_on(stores: Stores) -> None:
    sent = [envelope(f"k{n}", payload='"' + "ü" * 199 + '"') for n in range(5)]
    receive(stores, *sent)
    first = due(stores)
    assert [e.id for e in first] == [e.id for e in sent[:3]]
    assert first[0].payload == sent[0].payload
    for each in first:
        finish(stores, begin(stores, each))
    assert [e.id for e in due(stores)] == [e.id for e in sent[3:]]


def test_one_row_of_any_size_is_due(stores: Stores) -> None:
    large, small = envelope("a", payload='"' + "x" * 2 * BYTES + '"'), envelope("b")
    receive(stores, large, small)
    assert [e.id for e in due(stores)] == [large.id]
    finish(stores, begin(stores, large))
    assert [e.id for e in due(stores)] == [small.id]


def test_missing_byte_bound_of_due_rows_is_detected(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No mutant of the banks shows this: due rows are only read, and leave no trace in the
    database.
    """
    bounded = inbox_unfinished.group_parameters

    def by_rows_alone(group: str, handled: Handled, limit: int, _bytes: int) -> dict[str, Any]:
        return bounded(group, handled, limit, 2**62)

    monkeypatch.setattr(inbox_unfinished, "group_parameters", by_rows_alone)
    with pytest.raises(AssertionError):
        test_due_rows_end_where_their_bytes_do_and_the_next_go_on(stores)
