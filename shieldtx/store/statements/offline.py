"""The statements around the revisions in SQL that runs without shieldtx: checks, locks, settings.

Each is a block of PL/pgSQL, which prints no rows and raises an exception as a plain error. The
names in it are those of shieldtx, and need no quotes.
"""

from __future__ import annotations

from datetime import timedelta

from shieldtx.store.statements.locks import TIMEOUTS, qualified

_NAMES = ", ".join(f"'{name}'" for name in TIMEOUTS)


def first_install(version_table: str, schema: str | None, *, target: str) -> str:
    """Refuse existing tables, and create the schema if there is none, as `shieldtx db upgrade`."""
    own = qualified(version_table, schema)
    lines = [
        f"IF to_regclass({_found_by(version_table, schema)}) IS NOT NULL THEN",
        "    RAISE EXCEPTION 'the tables exist already, at revision %',",
        f"        (SELECT version_num FROM {own})",
        f"        USING HINT = 'shieldtx db upgrade REVISION:{target} --sql goes on from there';",
        "END IF;",
    ]
    return _block([*_alone(schema), *lines])


def make_schema(schema: str, comment: str) -> str:
    """Create the schema if there is none; IF NOT EXISTS would need the right to create schemas."""
    return _block(
        [
            f"IF to_regnamespace('{schema}') IS NULL THEN",
            f'    CREATE SCHEMA "{schema}";',
            f"    COMMENT ON SCHEMA \"{schema}\" IS '{comment}';",
            "END IF;",
        ]
    )


def begin_revision(
    version_table: str,
    schema: str | None,
    *,
    current: str,
    lock_wait: timedelta,
    shards: int | None,
) -> str:
    """Refuse tables at another revision than `current`, or made for another number of `shards`."""
    own = qualified(version_table, schema)
    lines = [
        f"PERFORM set_config('lock_timeout', '{int(lock_wait.total_seconds() * 1000)}ms', true);",
        f"IF to_regclass({_found_by(version_table, schema)}) IS NULL THEN",
        "    RAISE EXCEPTION 'there are no tables of shieldtx here';",
        "END IF;",
        f"IF (SELECT version_num FROM {own}) IS DISTINCT FROM '{current}' THEN",
        f"    RAISE EXCEPTION 'the tables are at revision %, not at {current}',",
        f"        (SELECT version_num FROM {own})",
        "        USING HINT = 'shieldtx db upgrade REVISION:head --sql prints the SQL from there';",
        "END IF;",
    ]
    if shards is not None:
        count = f"(SELECT count(*) FROM {qualified('shield_shard', schema)})"
        lines += [
            f"IF {count} <> {shards} THEN",
            f"    RAISE EXCEPTION 'the tables were made for % shards, not for {shards}', {count};",
            "END IF;",
        ]
    return _block([*_alone(schema), *lines])


def require_server(major: int) -> str:
    """Refuse a server of another major version than the SQL was printed for."""
    found = "current_setting('server_version_num')::int / 10000"
    return _block(
        [
            f"IF {found} <> {major} THEN",
            f"    RAISE EXCEPTION 'this SQL is for PostgreSQL {major}, and this is %', {found};",
            "END IF;",
        ]
    )


def from_server(major: int, statement: str) -> str:
    """Run a statement on a server of this major version or a later one."""
    return _block(
        [
            f"IF current_setting('server_version_num')::int >= {major}0000 THEN",
            f"    {statement};",
            "END IF;",
        ]
    )


def session_without_timeouts() -> str:
    """Disable all timeouts for the statements outside of transactions, which wait for others."""
    return _block(
        [
            "PERFORM set_config(name, '0', false) FROM pg_settings",
            f"    WHERE name IN ({_NAMES}, 'lock_timeout');",
        ]
    )


def _alone(schema: str | None) -> list[str]:
    """Lock out other migrations, with the lock of `try_migration_lock`, and disable timeouts."""
    name = "current_schema()" if schema is None else f"'{schema}'"
    digest = f"sha256(convert_to('shieldtx migrates ' || {name}, 'UTF8'))"
    key = f"('x' || left(encode({digest}, 'hex'), 16))::bit(64)::bigint"
    return [
        f"IF NOT pg_try_advisory_xact_lock({key}) THEN",
        "    RAISE EXCEPTION 'another migration of these tables is running'",
        "        USING HINT = 'Run this again when it has ended.';",
        "END IF;",
        f"PERFORM set_config(name, '0', true) FROM pg_settings WHERE name IN ({_NAMES});",
    ]


def _found_by(table: str, schema: str | None) -> str:
    if schema is None:
        return f"quote_ident(current_schema()) || '.{table}'"
    return f"'{schema}.{table}'"


def _block(lines: list[str]) -> str:
    return "\n".join(["DO $$", "BEGIN", *(f"    {line}" for line in lines), "END", "$$"])
