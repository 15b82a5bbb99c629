from __future__ import annotations

import pytest

from shieldtx.store.dialects import dialect_named
from shieldtx.store.statements import claim
from shieldtx.store.statements.envelope_columns import ENVELOPE_WIDTH, envelope_columns
from shieldtx.store.tables import tables


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_claim_returns_a_column_for_each_field_of_its_rows(database: str) -> None:
    t = tables()
    columns = claim.claim(t, dialect_named(database)).exported_columns
    names = [getattr(column, "name", None) for column in columns]
    envelope = [column.name for column in envelope_columns(t.outbox, "created_at")]
    fields = claim.ClaimRow._fields[1:]
    assert names[:ENVELOPE_WIDTH] == envelope
    assert len(names[ENVELOPE_WIDTH:]) == len(fields)
    assert names[ENVELOPE_WIDTH:][:5] == list(fields[:5])
