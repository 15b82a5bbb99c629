"""Everything that PostgreSQL's catalog contains about the tables of a schema."""

from __future__ import annotations

from sqlalchemy import Connection, text

QUERIES = {
    "relations": """
        SELECT relname, relkind, relpersistence, reloptions
        FROM pg_class WHERE relnamespace = :schema ORDER BY relname
    """,
    "columns": """
        SELECT relname, attname, format_type(atttypid, atttypmod), attnotnull, attidentity,
               attgenerated, attstorage, attcollation, pg_get_expr(adbin, adrelid) AS standard
        FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
        LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE relnamespace = :schema AND relkind = 'r' AND attnum > 0 AND NOT attisdropped
        ORDER BY relname, attnum
    """,
    "constraints": """
        SELECT conrelid::regclass::text, conname, contype, convalidated, condeferrable,
               pg_get_constraintdef(oid)
        FROM pg_constraint WHERE connamespace = :schema ORDER BY 1, 2
    """,
    "indexes": """
        SELECT relname, pg_get_indexdef(indexrelid), indisunique, indisvalid,
               pg_get_expr(indpred, indrelid) AS predicate
        FROM pg_index JOIN pg_class ON indexrelid = pg_class.oid
        WHERE relnamespace = :schema ORDER BY relname
    """,
    "sequences": """
        SELECT relname, seqtypid::regtype, seqstart, seqincrement, seqmin, seqmax, seqcache,
               seqcycle
        FROM pg_sequence JOIN pg_class ON seqrelid = pg_class.oid
        WHERE relnamespace = :schema ORDER BY relname
    """,
    "triggers": """
        SELECT relname, tgname, pg_get_triggerdef(pg_trigger.oid)
        FROM pg_trigger JOIN pg_class ON tgrelid = pg_class.oid
        WHERE relnamespace = :schema AND NOT tgisinternal ORDER BY relname, tgname
    """,
}


def catalog_of(connection: Connection, schema: str) -> dict[str, list[str]]:
    """Return the lines of each query, without the name of the schema."""
    oid = connection.scalar(
        text("SELECT oid FROM pg_namespace WHERE nspname = :name"), {"name": schema}
    )
    return {
        subject: [
            line.replace(f"{schema}.", "").replace(f'"{schema}".', "")
            for line in map(str, connection.execute(text(query), {"schema": oid}))
        ]
        for subject, query in QUERIES.items()
    }
