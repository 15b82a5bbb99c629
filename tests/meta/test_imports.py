"""The imports of shieldtx match the dependencies in pyproject.toml.

A package that only a dependency needs is there by accident: its next release may drop it.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import packages_distributions
from typing import Any

from tests.support.project import ROOT

# The extras that shieldtx names where it imports their packages.
EXTRAS = ("cli", "kafka", "migrations", "binary", "spark", "embedded", "confluent", "metrics")
OWN = {"shieldtx", "spark", "migrations"}
# pydantic pins one exact release of pydantic_core, and documents its ValidationError and from_json.
PART_OF = {"pydantic_core": "pydantic"}
LOADED_BY = {("shieldtx/contrib/django.py", "django"), ("shieldtx/testing/plugin.py", "pytest")}
"""Modules that only the named package loads, so that it is there."""


def test_every_import_is_of_a_declared_dependency() -> None:
    declared = _declared()
    installed = packages_distributions()

    undeclared = {
        (str(path.relative_to(ROOT)), module)
        for folder in ("shieldtx", "spark", "migrations")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for module in _imported(ast.parse(path.read_text(encoding="utf-8")))
        if module not in OWN | sys.stdlib_module_names
        and declared.isdisjoint(_normal(name) for name in _distributions(module, installed))
    }

    assert undeclared == LOADED_BY


def _declared() -> set[str]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *(one for extra in EXTRAS for one in extras[extra])]
    return {_normal(re.split(r"[\[<>=~! ;]", one, maxsplit=1)[0]) for one in asked}


def _distributions(module: str, installed: Mapping[str, list[str]]) -> list[str]:
    return [PART_OF[module]] if module in PART_OF else installed.get(module, [module])


def _imported(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module.split(".")[0])
    return names


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
