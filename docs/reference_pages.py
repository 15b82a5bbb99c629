"""Writes the generated pages of `docs/reference/` from the code: `make reference`.

The pages are committed, so that they can be read without a build. A test compares them.
"""

from __future__ import annotations

import ast
import inspect
import tomllib
from collections.abc import Callable, Iterator
from datetime import timedelta
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import typer
from pydantic.fields import FieldInfo
from sqlalchemy.dialects import postgresql
from typer.cli import get_docs_for_click

from shieldtx import errors
from shieldtx.cli.program import program
from shieldtx.domain import states
from shieldtx.domain.states import INBOX, OUTBOX, Lifecycle
from shieldtx.settings.environment import OTHER_VARIABLES
from shieldtx.settings.settings import Settings
from shieldtx.settings.shown import default_of, range_of
from shieldtx.store.tables import tables

DOCS: Final = Path(__file__).parent
COLUMNS: Final[dict[str, dict[str, str]]] = tomllib.loads((DOCS / "columns.toml").read_text())
NOTE: Final = "<!-- Written by `make reference` from the code. Changes are made there. -->\n"

SETTING_TOPICS: Final = {
    "Service and database": ("source", "database", "shards", "max_payload"),
    "Kafka": ("kafka", "signing", "topic"),
    "Backlog limit": ("backlog", "on_backlog"),
    "Relay": ("relay",),
    "Consumer": ("consumer",),
    "Half messages": ("half", "barrier"),
    "Worker processes": ("stop", "watchdog", "failure", "early", "http"),
    "Retention": ("retention",),
    "Tracing": ("trace",),
}
"""The first words of the settings of each section."""

COLOURS: Final = {
    "waiting": "fill:#e7f0ff,stroke:#3b6fb6",
    "active": "fill:#fff4d6,stroke:#b7860b",
    "done": "fill:#dff3e4,stroke:#2b8a3e",
    "operator": "fill:#fde4e1,stroke:#c0392b",
}
LIFECYCLES: Final[tuple[tuple[Lifecycle[Any], type[StrEnum]], ...]] = (
    (OUTBOX, states.OutboxStatus),
    (INBOX, states.InboxStatus),
)
WAITING: Final = {"INIT", "HALF"}
ACTIVE: Final = {"PROCESSING"}


def main() -> None:
    """Write all pages and the diagrams of the states."""
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(DOCS.parent))


def written() -> dict[Path, str]:
    """Return the text of each generated file, by its path."""
    pages: dict[str, Callable[[], str]] = {
        "settings": settings_page,
        "commands": commands_page,
        "errors": errors_page,
        "states": states_page,
        "tables": tables_page,
    }
    found = {DOCS / "reference" / f"{name}.md": page() for name, page in pages.items()}
    for lifecycle, _ in LIFECYCLES:
        path = DOCS / "diagrams" / f"{lifecycle.name}-states.mmd"
        found[path] = coloured(lifecycle)
    return found


def settings_page() -> str:
    """Return the page of all settings, by topic."""
    lines = [
        "# Settings\n",
        NOTE,
        (
            "Settings are read from environment variables when the application starts. A duration "
            "is a number of seconds, or has units, as `15 min`, or is in ISO 8601, as `PT1M30S`: "
            "above 0 unless the description allows 0, and at most a century. An unknown variable "
            "with the prefix `SHIELDTX_` is an error that names the nearest setting, if one is "
            "similar. So is a value that breaks a rule of its description: the process ends with "
            "exit status 2.\n"
        ),
    ]
    by_topic = {name: topic_of(name) for name in Settings.model_fields}
    for topic in SETTING_TOPICS:
        lines += [f"## {topic}\n", "| variable | default | description |", "|---|---|---|"]
        for name, setting in Settings.model_fields.items():
            if by_topic[name] == topic:
                limits = f" ({range_of(setting)})" if range_of(setting) else ""
                meaning = sentence_of(f"{setting.description}{limits}")
                default = cell_of_default(setting)
                lines.append(f"| `SHIELDTX_{name.upper()}` | {default} | {meaning} |")
        lines.append("")
    lines += ["## Other variables\n", "Commands and tools read these variables; no service does.\n"]
    lines += ["| variable | description |", "|---|---|"]
    lines += [f"| `{name}` | {sentence_of(text)} |" for name, text in OTHER_VARIABLES.items()]
    return "\n".join([*lines, ""])


def sentence_of(meaning: str) -> str:
    """Return what a variable means as a cell of a table."""
    return meaning[:1].upper() + meaning[1:].replace("|", "\\|")


def topic_of(name: str) -> str:
    """Return the section of a setting. Raises LookupError for one that has none."""
    fitting = {
        topic: max((len(word) for word in words if name.startswith(word)), default=0)
        for topic, words in SETTING_TOPICS.items()
    }
    topic = max(fitting, key=fitting.__getitem__)
    if not fitting[topic]:
        raise LookupError(f"setting {name} is in no section: add it to SETTING_TOPICS")
    return topic


def cell_of_default(setting: FieldInfo) -> str:
    """Return the default of a setting as a cell of a table: text that a variable may contain."""
    shown = default_of(setting)
    is_literal = shown and not setting.is_required() and not isinstance(setting.default, timedelta)
    return f"`{shown}`" if is_literal else shown


def commands_page() -> str:
    """Return the page of all commands, as Typer documents them."""
    command = typer.main.get_command(program)
    # The settings have a page of their own.
    command.epilog = "**Settings**: see [Settings](settings.md)."
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="shieldtx")
    title = "# Command line\n\n" + NOTE
    return (
        title
        + "\n"
        + text.replace("# `shieldtx`\n", "", 1).replace("\n\n\n", "\n\n").strip()
        + "\n"
    )


def errors_page() -> str:
    """Return the page of all errors: the tree, and what each one means."""
    tree = inspect.getdoc(errors) or ""
    drawn = "\n".join(line.removeprefix("    ") for line in tree.split("::\n", 1)[1].splitlines())
    lines = [
        "# Errors\n",
        NOTE,
        (
            "Every error that shieldtx raises on purpose is a `ShieldTxError`. `shieldtx.embedded` "
            "and `shieldtx.testing` have their own ([API](api.md)). Import the others from "
            "`shieldtx.errors`.\n"
        ),
        f"```text\n{drawn.strip()}\n```\n",
        "| error | meaning |",
        "|---|---|",
    ]
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.ShieldTxError):
            meaning = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
            lines.append(f"| `{name}` | {meaning} |")
    return "\n".join(lines) + "\n"


def states_page() -> str:
    """Return the page of both lifecycles: a diagram, each state, each arrow."""
    lines = [
        "# States\n",
        NOTE,
        (
            "A row changes its status only along these arrows. The same table guards each UPDATE "
            "and makes the CHECK constraint of the database: `shieldtx/domain/states.py`. Blue: "
            "waits. Yellow: in progress. Green: settled. Red: waits for an operator.\n"
        ),
    ]
    for lifecycle, statuses in LIFECYCLES:
        lines += [
            f"## {lifecycle.name.capitalize()} row\n",
            f"![States of an {lifecycle.name} row](../pictures/{lifecycle.name}-states.svg)\n",
            "| state | meaning | purged |",
            "|---|---|---|",
        ]
        for name, meaning in meanings(statuses):
            is_purged = "yes" if name in lifecycle.purgeable else "no"
            lines.append(f"| `{name}` | {meaning} | {is_purged} |")
        lines += ["", "| from | to | cause |", "|---|---|---|"]
        for arrow in lifecycle.transitions:
            source = f"`{arrow.source}`" if arrow.source else "(new row)"
            lines.append(f"| {source} | `{arrow.target}` | {arrow.cause} |")
        lines.append("")
    return "\n".join(lines)


def meanings(statuses: type[StrEnum]) -> Iterator[tuple[str, str]]:
    """Yield each status with the docstring below it."""
    (definition,) = ast.parse(inspect.getsource(statuses)).body
    assert isinstance(definition, ast.ClassDef)
    body = definition.body
    for assigned, text in pairwise(body):
        if isinstance(assigned, ast.Assign) and isinstance(text, ast.Expr):
            assert isinstance(text.value, ast.Constant)
            assert isinstance(assigned.targets[0], ast.Name)
            yield assigned.targets[0].id, " ".join(str(text.value.value).split())


def coloured(lifecycle: Lifecycle[Any]) -> str:
    """Return the diagram of a lifecycle in Mermaid's language, coloured by what comes next."""
    lines = [lifecycle.mermaid()]
    lines += [f"    classDef {name} {colours}" for name, colours in COLOURS.items()]
    lines += [f"    class {state} {colour_of(lifecycle, state)}" for state in lifecycle.states]
    return "\n".join(lines) + "\n"


def colour_of(lifecycle: Lifecycle[Any], state: str) -> str:
    """Return the class of a state in the diagram."""
    if state in WAITING:
        return "waiting"
    if state in ACTIVE:
        return "active"
    return "done" if state in lifecycle.purgeable else "operator"


def tables_page() -> str:
    """Return the page of all tables and their columns, with PostgreSQL's types."""
    lines = [
        "# Tables\n",
        NOTE,
        (
            "`shieldtx db upgrade` creates the tables below; the types are PostgreSQL's. "
            "Applications read them at most: a release may change the layout, with Alembic "
            "revisions.\n"
        ),
    ]
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    for table in tables().metadata.sorted_tables:
        lines += [f"## {table.name}\n", "| column | type | null | meaning |", "|---|---|---|---|"]
        for column in table.columns:
            kind = column.type.compile(dialect).lower()
            null = "yes" if column.nullable else "no"
            key = " (primary key)" if column.primary_key else ""
            meaning = meaning_of(table.name, column.name)
            lines.append(f"| `{column.name}` | {kind}{key} | {null} | {meaning} |")
        lines.append("")
    return "\n".join(lines)


def meaning_of(table: str, column: str) -> str:
    """Return what a column means. Raises LookupError where `columns.toml` does not explain it."""
    meaning = COLUMNS.get(table, {}).get(column) or COLUMNS["every"].get(column)
    if meaning is None:
        raise LookupError(f"{table}.{column} has no meaning: add it to docs/columns.toml")
    return meaning


if __name__ == "__main__":
    main()
