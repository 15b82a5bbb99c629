"""Alembic's environment for developers who write a migration; operators use `shieldtx db`.

alembic -x url=postgresql+psycopg://... revision --autogenerate --rev-id 0099 -m "what changes"
"""

from __future__ import annotations

from alembic import context
from alembic.operations import Operations
from alembic.util import CommandError
from sqlalchemy import create_engine
from sqlalchemy.schema import SchemaItem

from shieldtx.store.migrations import OWN_TABLES, VERSION_TABLE, Migrations
from shieldtx.store.schema_settings import DEFAULT_SHARDS, schema_name
from shieldtx.store.tables import tables


def is_ours(
    item: SchemaItem,  # noqa: ARG001  Alembic's signature
    name: str | None,
    type_: str,
    reflected: bool,  # noqa: ARG001, FBT001  Alembic's signature
    compare_to: SchemaItem | None,  # noqa: ARG001  Alembic's signature
) -> bool:
    """Return whether an item is shieldtx's: the schema may contain the service's own tables."""
    return type_ != "table" or name in OWN_TABLES


def migrate() -> None:
    """Run the command on the database that `-x url=` names."""
    given = context.get_x_argument(as_dictionary=True)
    if context.is_offline_mode() or not given.get("url"):
        raise CommandError("name a database: alembic -x url=postgresql+psycopg://... COMMAND")
    schema = schema_name(given.get("schema"), setting="-x schema")
    engine = create_engine(given["url"])
    with engine.begin() as connection:
        migrations = Migrations(connection, schema)
        migrations.begin()
        migrations.make_schema()
        context.configure(
            connection=connection,
            target_metadata=tables(schema).metadata,
            version_table=VERSION_TABLE,
            version_table_schema=schema,
            include_schemas=schema is not None,
            include_object=is_ours,
            # Without the plugin that hides these tables from other services' autogenerate.
            autogenerate_plugins=["alembic.autogenerate.*", "~alembic.autogenerate.shieldtx"],
            on_version_apply=lambda step, **_: migrations.complete(step),
        )
        context.run_migrations(
            op=Operations(context.get_context()), schema=schema, shards=DEFAULT_SHARDS
        )
    engine.dispose()


migrate()
