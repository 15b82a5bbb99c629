"""Alembic's plugin: autogenerate in a service's migrations ignores the tables of shieldtx.

Alembic finds it by an entry point wherever shieldtx is installed, so that no env.py has to name it.
`import alembic` imports this module in the middle of Alembic's own import. So this module imports
Alembic, and all that needs Alembic, only when it is called.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alembic.autogenerate.api import AutogenContext
    from alembic.operations.ops import UpgradeOps
    from alembic.runtime.plugins import Plugin
    from alembic.util import PriorityDispatchResult
    from sqlalchemy import Table


def setup(plugin: Plugin) -> None:
    """Register the filter, which runs before autogenerate compares the tables."""
    from alembic.util import DispatchPriority  # noqa: PLC0415  see the module's docstring

    plugin.add_autogenerate_comparator(
        ignore_own_tables, "schema", "shieldtx", priority=DispatchPriority.FIRST
    )


def ignore_own_tables(
    context: AutogenContext,
    upgrade_ops: UpgradeOps,  # noqa: ARG001  Alembic's signature
    schemas: Collection[str | None],  # noqa: ARG001  Alembic's signature
) -> PriorityDispatchResult:
    """Exclude the tables of shieldtx from a run of autogenerate, in addition to the host's filters.

    A table is excluded if shieldtx's version table is in its schema. So a host's own table of the
    same name in another schema is compared. A host whose `include_name` is that of shieldtx
    compares all tables in its metadata.
    """
    # See the module's docstring.
    from alembic.util import PriorityDispatchResult  # noqa: PLC0415

    from shieldtx.store.schema import include_name  # noqa: PLC0415

    if context.opts.get("include_name") is not include_name:
        _add_filters(context, _OwnTables(context))
    return PriorityDispatchResult.CONTINUE


def _add_filters(context: AutogenContext, own: _OwnTables) -> None:
    accepts_name, accepts_object = context.run_name_filters, context.run_object_filters

    def run_name_filters(name: str | None, type_: Any, parent_names: Any) -> bool:
        is_own = type_ == "table" and own.include(name, parent_names.get("schema_name"))
        return not is_own and accepts_name(name, type_, parent_names)

    def run_object_filters(
        object_: Any,
        name: Any,
        type_: Any,
        reflected: bool,  # noqa: FBT001  Alembic's signature
        compare_to: Any,
    ) -> bool:
        is_own = type_ == "table" and own.include_table(object_)
        return not is_own and accepts_object(object_, name, type_, reflected, compare_to)

    # The public methods of this run's context: the lists of filters that they read are private.
    context.run_name_filters = run_name_filters  # type: ignore[method-assign]
    context.run_object_filters = run_object_filters  # type: ignore[method-assign]


class _OwnTables:
    """The tables of shieldtx in the database of a run."""

    def __init__(self, context: AutogenContext) -> None:
        # See the module's docstring.
        from shieldtx.store.migrations import OWN_TABLES, VERSION_TABLE  # noqa: PLC0415
        from shieldtx.store.tables import OWNER  # noqa: PLC0415

        self._inspector = context.inspector
        self._default = context.dialect.default_schema_name
        self._names = OWN_TABLES
        self._version_table = VERSION_TABLE
        self._owner = OWNER

    def include(self, name: str | None, schema: str | None) -> bool:
        """Whether a table is one of them; a schema of None is the connection's default."""
        if name not in self._names:
            return False
        found = self._inspector.get_table_names(schema or self._default)
        if schema is None and name not in found:
            # Without a schema, autogenerate also finds the tables of others in the search_path.
            found = self._inspector.get_table_names()
        return self._version_table in found

    def include_table(self, table: Table) -> bool:
        """Whether a table is one of them, or will be one: `tables(metadata=...)` described it."""
        return self._owner in table.info or self.include(table.name, table.schema)


class _EntryPoint(ModuleType):
    """This module for Alembic, which before 1.20.1 iterates over what an entry point names."""

    setup = staticmethod(setup)

    def __iter__(self) -> Iterator[ModuleType]:
        yield self


entry_point = _EntryPoint(__name__)
