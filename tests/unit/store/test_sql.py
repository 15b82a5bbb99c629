"""Every statement of the store as SQL text in `sql/`, next to the test, for reviewers and DBAs.

A change of a statement shows as a change of its text. To write the files again:

    UPDATE_SQL=1 .venv/bin/pytest tests/unit/store/test_sql.py
"""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Executable, Insert
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.postgresql import psycopg

from shieldtx.domain.schedule import Due
from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.ports.delayed_events import BizKey
from shieldtx.ports.half_messages import CheckSchedule
from shieldtx.ports.hand_over import LaterPositions
from shieldtx.store import statements
from shieldtx.store.dialects import dialect_named
from shieldtx.store.statements import retention
from shieldtx.store.statements.claim import claim
from shieldtx.store.statements.row_filters import RowFilter
from shieldtx.store.tables import tables

FOLDER = Path(__file__).parent / "sql"
WIDTH = 110
# `:name` is a parameter, in PostgreSQL with its type.
COMPILERS = {
    "postgresql": psycopg.dialect(paramstyle="named"),
    "sqlite": sqlite.dialect(paramstyle="named"),
}
POSTGRESQL_ONLY = {"locks", "sequences"}

T = tables()
AN_ID = UUID(int=1)
A_DAY = timedelta(days=1)

SAMPLES: Mapping[str, Any] = {
    "t": T,
    "o": T.outbox.alias("o"),
    "plan": CheckSchedule(),
    "record": ReceivedRecord(topic="orders", partition=0, offset=1, key=b"", value=b"", headers=()),
    "keys": [(AN_ID, "stock", "shop")],
    "table": T.outbox,
    "shards": [0, 1],
    "target": InboxStatus.MAX_RECONSUMED,
    "status": OutboxStatus.UNRESOLVED,
    "topics": ["orders"],
    "event": BizKey("order.placed", "4711"),
    "needed": retention.is_needed_in_outbox(T),
    "kept": ["sample"],
    "groups": ["stock"],
    "ids": [AN_ID],
    "handler": ("orders.placed", TxKind.COMMIT),
}
"""Arguments, by the names of the parameters, that annotations alone do not determine."""

OF_MODULES: Mapping[str, Mapping[str, Any]] = {
    "half_messages": {"source": OutboxStatus.HALF},
    "hand_over": {
        "keys": ["k1"],
        "after": datetime(2026, 3, 1, tzinfo=UTC),
        "since": datetime(2026, 3, 1, tzinfo=UTC),
        "of": [("t", "4711")],
        "later": LaterPositions(
            seq=7,
            due_at=datetime(2026, 3, 1, tzinfo=UTC),
            delayed_until=datetime(2026, 3, 1, tzinfo=UTC),
        ),
    },
    "locks": {"table": "shield_outbox", "tables": ["shield_outbox"], "condition": "shard < 4"},
    "status": {"status": "FAILED"},
    "retention": {"status": ["PROCESSED"]},
}

OF_TYPES: Mapping[str, Any] = {
    "UUID": AN_ID,
    "Sequence[UUID]": [AN_ID],
    "str": "sample",
    "str | None": "sample",
    "int": 100,
    "bool": True,
    "timedelta": A_DAY,
    "timedelta | None": A_DAY,
    "Due": Due(delay=A_DAY),
    "RowFilter": RowFilter(
        event_type="sample",
        kind=TxKind.COMMIT,
        key="sample",
        biz_key="sample",
        error="sample",
        since=datetime(2026, 3, 1, tzinfo=UTC),
    ),
}


@pytest.mark.parametrize(
    ("module", "database"),
    [
        (module.name, database)
        for module in pkgutil.iter_modules(statements.__path__)
        for database in COMPILERS
        # Migrations change SQLite's tables without any of these.
        if database != "sqlite" or module.name not in POSTGRESQL_ONLY
    ],
)
def test_statements_are_those_of_their_sql_files(module: str, database: str) -> None:
    found = "\n".join(
        f"-- {title}\n{text_of(statement, database)}\n"
        for title, statement in statements_of(module, database)
    )
    file = FOLDER / database / f"{module}.sql"
    if not found:
        assert not file.exists()
        return
    if os.environ.get("UPDATE_SQL"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(found)
    assert file.read_text() == found, "see the top of this test"


def test_every_sql_file_belongs_to_a_module() -> None:
    modules = {module.name for module in pkgutil.iter_modules(statements.__path__)}
    assert {file.stem for file in FOLDER.glob("*/*.sql")} <= modules


def statements_of(module: str, database: str) -> Iterator[tuple[str, Executable]]:
    """Call every function of a module that builds a statement, and again with each switch set."""
    for name, function in functions_of(module):
        parameters = inspect.signature(function).parameters.values()
        given = {p.name: sample(p, module, database) for p in parameters if p.default is p.empty}
        yield name, function(**given)
        for switch in (p.name for p in parameters if p.default is False):
            yield f"{name} ({switch})", function(**given, **{switch: True})


def test_statement_is_built_once_per_tables_database_options() -> None:
    postgresql, other = dialect_named("postgresql"), dialect_named("sqlite")
    built = claim(T, postgresql, of_source=True)
    assert claim(T, postgresql, of_source=True) is built
    others = [
        claim(T, postgresql, of_source=False),
        claim(T, other, of_source=True),
        claim(tables("elsewhere"), postgresql, of_source=True),
    ]
    assert len({*map(id, others), id(built)}) == 4


def functions_of(module: str) -> Iterator[tuple[str, Callable[..., Executable]]]:
    built = re.compile(r"Select|Insert|Update|Delete|Executable|TextClause")
    source = importlib.import_module(f"{statements.__name__}.{module}")
    for name, built_once in vars(source).items():
        function = inspect.unwrap(built_once)
        if inspect.isfunction(function) and function.__module__ == source.__name__:
            returned = str(inspect.signature(function).return_annotation)
            if built.search(returned) and not name.startswith("_"):
                yield name, function


def sample(parameter: inspect.Parameter, module: str, database: str) -> Any:
    name = parameter.name
    if name == "d":
        return dialect_named(database)
    for samples in (OF_MODULES.get(module, {}), SAMPLES):
        if name in samples:
            return samples[name]
    return OF_TYPES[parameter.annotation]


def text_of(statement: Any, database: str) -> str:
    """Return a statement's text, with short values in place of its parameters."""
    given = required_columns(statement.table) if isinstance(statement, Insert) else None
    compiled = statement.compile(dialect=COMPILERS[database], column_keys=given)
    values = {
        name: literal_of(bind.value) for name, bind in compiled.binds.items() if not bind.required
    }

    def value_of(found: re.Match[str]) -> str:
        return values.get(found["name"]) or found[0].replace("__[POSTCOMPILE_", ":").rstrip("]")

    in_list = re.compile(r"__\[POSTCOMPILE_(?P<name>\w+)\]")
    parameter = re.compile(r"(?<!:):(?P<name>\w+)(::[A-Z]+( WITH TIME ZONE)?\b)?(?!\w)")
    return laid_out(parameter.sub(value_of, in_list.sub(value_of, str(compiled)))) + ";"


def required_columns(table: Any) -> list[str]:
    """Return the columns that each INSERT names; the parameters of one may name further columns."""
    return [c.name for c in table.c if not (c.nullable or c.identity or c.server_default)]


def literal_of(value: Any) -> str | None:
    if isinstance(value, list | tuple) and all(isinstance(one, str | int) for one in value):
        return ", ".join(map(repr, value))
    if value is None:
        return "NULL"
    return repr(value) if type(value) in {str, int, bool} else None


def laid_out(text: str) -> str:
    """Begin a line with each clause, indented by the brackets around it."""
    positions, depth = [], 0
    clauses = re.compile(
        r"\s*\n\s*| (?=WHERE |ORDER BY |GROUP BY |FOR UPDATE|FOR SHARE|RETURNING |SET |UNION ALL "
        r"|VALUES |ON CONFLICT )"
    )
    for clause in clauses.split(text.strip()):
        indent = "  " * depth
        depth += clause.count("(") - clause.count(")")
        positions += textwrap.wrap(
            clause,
            WIDTH,
            initial_indent=indent,
            subsequent_indent=indent + "    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(positions)
