"""${message}.

Revision ID: ${up_revision}
Revises: ${down_revision | comma,n}
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


# `upgrade` is one transaction, which waits for each lock for a fraction of a second: indexes of the
# outbox and the inbox, and checks of their rows, belong into `ONLINE = (...)` (shieldtx/store/online.py).
# Autogenerate creates no CHECK constraints, index predicates or storage parameters, and no `schema=schema`:
# add them by hand. tests/migrations compares the result with shieldtx/store/tables.py.


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:
    """Describe the change."""
    ${upgrades if upgrades else 'raise NotImplementedError'}


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:
    """Describe the reversal."""
    ${downgrades if downgrades else 'raise NotImplementedError'}
