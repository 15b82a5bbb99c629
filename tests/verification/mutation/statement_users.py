"""Where a statement is run: every test that makes a store reaches the statement's own lines.

Stores build their statements when they are made, and keep them. So the tests of a mutant in a
statement are those that reach a line of a store that uses the statement.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from shieldtx import store

STORE = Path(store.__path__[0])
PACKAGE = "shieldtx.store.statements"


@dataclass
class _Statements:
    """The functions that build statements, by name: a function may use others."""

    parts: dict[str, set[str]] = field(default_factory=dict)
    """The names that a function refers to, by function."""

    def built_with(self, name: str) -> set[str]:
        """Return the functions that build their statements with this one, itself included."""
        found, waiting = {name}, [name]
        while waiting:
            part = waiting.pop()
            users = {user for user, names in self.parts.items() if part in names} - found
            found |= users
            waiting += users
        return found


def lines_that_run(function: str) -> list[tuple[str, int]]:
    """Return the lines, by path, that run a statement to which this function contributes."""
    names = _statements().built_with(function)
    return [
        (str(path), line)
        for path in sorted(STORE.glob("*.py"))
        for line in sorted(set(_used_in(ast.parse(path.read_text()), names)))
    ]


@cache
def _statements() -> _Statements:
    found = _Statements()
    for path in (STORE / "statements").glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                found.parts.setdefault(node.name, set()).update(_names(node))
    return found


def _used_in(tree: ast.Module, names: set[str]) -> Iterator[int]:
    aliases, functions = _imported(tree)
    attributes = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            if _mentions(node.value, names, aliases, functions):
                attributes.add(node.targets[0].attr)
        elif isinstance(node, ast.stmt) and not isinstance(
            node, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
        ):
            for each in _own_expressions(node):
                if _mentions(each, names, aliases, functions):
                    yield each.lineno
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        if node.attr in attributes and isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.lineno


def _imported(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Return a module's names for modules of statements, and for their functions."""
    modules, functions = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            known = {alias.asname or alias.name for alias in node.names}
            (modules if node.module == PACKAGE else functions).update(known)
    return modules, functions


def _own_expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, ast.withitem):
            yield child.context_expr


def _mentions(node: ast.expr, names: set[str], aliases: set[str], functions: set[str]) -> bool:
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
            if each.value.id in aliases and each.attr in names:
                return True
        elif isinstance(each, ast.Name) and each.id in functions & names:
            return True
    return False


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} | {
        each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)
    }
