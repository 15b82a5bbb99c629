"""Each log call has a constant message, an action and fields, as the table of log actions says."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.support.project import ROOT

LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
CALLS = {*LEVELS, "log", "warn", "fatal"}
MOST_WORDS = 6
FIELDS_MODULE = ROOT / "shieldtx/domain/log_fields.py"
"""Functions that several modules spread into `extra`; others are defined where they are used."""
OF_FORMATTER = {"WITH_TRACEBACK"}
"""Spread into `extra` for the formatter alone: it prints none of it."""
RESERVED = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})
OF_JSON = frozenset({"time", "level", "logger", "message", "traceback"})
"""Keys that the JSON formatter writes itself."""
EXEMPT = {
    ("shieldtx/brokers/kafka/confluent_producer.py", "log.debug(message, *args)"): (
        "forwards what librdkafka logs, whose messages are not ours"
    )
}


@dataclass(frozen=True, kw_only=True, slots=True)
class LogCall:
    """One call of a logger."""

    where: str
    level: str
    action: str | None
    message: str | None
    """None where it is not a literal."""
    fields: tuple[str, ...]
    has_error: bool
    """Whether an error is logged with it: its text, or its traceback."""


def sources() -> list[Path]:
    return sorted(p for folder in ("shieldtx", "spark") for p in (ROOT / folder).rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def loggers_of(tree: ast.Module) -> set[str]:
    """The names that a module gives to its loggers."""
    return {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and is_get_logger(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def is_get_logger(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in {
        "logging.getLogger",
        "getLogger",
    }


def method_calls(tree: ast.Module) -> Iterator[tuple[ast.Call, ast.expr, str]]:
    """The calls of methods that could log, with what they are called on."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node, node.func.value, node.func.attr


def log_calls() -> list[LogCall]:
    found = []
    for path in sources():
        tree, name = tree_of(path), path.relative_to(ROOT).as_posix()
        loggers = loggers_of(tree)
        for call, called_on, method in method_calls(tree):
            is_logger = isinstance(called_on, ast.Name) and called_on.id in loggers
            if not is_logger or method not in CALLS or (name, ast.unparse(call)) in EXEMPT:
                continue
            found.append(log_call(call, method, tree, f"{name}:{call.lineno}"))
    return found


def log_call(call: ast.Call, method: str, tree: ast.Module, where: str) -> LogCall:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    extra = given.get("extra")
    action, fields = None, []
    if isinstance(extra, ast.Dict):
        values = dict(zip(map(literal, extra.keys), extra.values, strict=True))
        action = literal(values.get("action"))
        fields = [field for field in fields_of(extra, tree) if field != "action"]
    return LogCall(
        where=where,
        level={"exception": "error"}.get(method, method),
        action=action,
        message=literal(call.args[0]) if len(call.args) == 1 else None,
        fields=tuple(fields),
        has_error=method == "exception" or "exc_info" in given,
    )


def literal(node: ast.expr | None) -> str | None:
    """The text of a string literal; None of anything else."""
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if is_text else None


def fields_of(mapping: ast.Dict, tree: ast.Module) -> Iterator[str]:
    """The keys of a dict literal, those of the functions that are spread into it among them."""
    for key, value in zip(mapping.keys, mapping.values, strict=True):
        name = literal(key)
        if name is not None:
            yield name
        elif key is None and isinstance(value, ast.Name) and value.id in OF_FORMATTER:
            continue
        elif key is None and isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            yield from fields_of_function(value.func.id, tree)
        else:
            yield f"not a literal: {ast.unparse(value)}"


def fields_of_function(name: str, tree: ast.Module) -> Iterator[str]:
    for module in (tree, tree_of(FIELDS_MODULE)):
        for node in module.body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                [returned] = [each for each in ast.walk(node) if isinstance(each, ast.Return)]
                assert isinstance(returned.value, ast.Dict), f"{name} returns no dict literal"
                yield from fields_of(returned.value, module)
                return
    yield f"not found: {name}"


LOG_CALLS = log_calls()
each_call = pytest.mark.parametrize("call", LOG_CALLS, ids=lambda call: call.where)


@each_call
def test_log_call_has_an_action_and_a_short_constant_message(call: LogCall):
    assert call.message is not None, "the message is one string literal, the variables are fields"
    assert "%" not in call.message
    assert len(call.message.split()) <= MOST_WORDS
    assert call.action is not None, 'write extra={"action": "snake_case", ...}'
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", call.action)
    assert call.level in LEVELS


@each_call
def test_fields_collide_with_nothing(call: LogCall):
    assert not [field for field in call.fields if not re.fullmatch(r"[a-z]+(_[a-z]+)*", field)]
    assert len(set(call.fields)) == len(call.fields)
    assert not set(call.fields) & (RESERVED | OF_JSON)
    # The formatters put the text of an error that needs no traceback there.
    assert not (call.has_error and "error" in call.fields)


def is_warning(called_on: ast.expr, method: str) -> bool:
    return ast.unparse(called_on) == "warnings" and method in {"warn", "warn_explicit"}


def is_deprecation(call: ast.Call) -> bool:
    """Whether a call of `warnings` concerns code, whose author has to see it, and no event."""
    return any(ast.unparse(each) == "DeprecationWarning" for each in call.args)


def test_log_records_are_written_by_loggers_of_modules_alone():
    bypasses = [
        f"{path.relative_to(ROOT)}:{call.lineno}: {ast.unparse(call.func)}"
        for path in sources()
        for call, called_on, method in method_calls(tree_of(path))
        if (ast.unparse(called_on) in {"logging", "logging.root"} and method in CALLS)
        or (is_get_logger(called_on) and method in CALLS)
        or (is_warning(called_on, method) and not is_deprecation(call))
    ]
    assert bypasses == []


def test_exemptions_are_still_in_the_code():
    for path, code in EXEMPT:
        assert code in (ROOT / path).read_text(encoding="utf-8")


def test_one_action_means_one_message_level_and_set_of_fields():
    meanings = {}
    for call in LOG_CALLS:
        meaning = (call.level, call.message, call.fields, call.has_error)
        assert meanings.setdefault(call.action, meaning) == meaning, call.where


# --- the documentation --------------------------------------------------------------------------

PAGE = (ROOT / "docs/reference/log-actions.md").read_text(encoding="utf-8")
SECTIONS = re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", PAGE, re.MULTILINE)
ROW = re.compile(r"^\| `([a-z_]+)` \| ([a-z]+) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
TABLES = [ROW.findall(text) for _, text in SECTIONS if ROW.search(text)]
ROWS = {row[0]: row for table in TABLES for row in table}


def test_documentation_lists_the_actions_of_the_code():
    assert sorted(ROWS) == sorted({str(call.action) for call in LOG_CALLS})


def test_documented_actions_are_sorted_and_listed_once():
    actions = [[row[0] for row in table] for table in TABLES]
    assert actions == [sorted(table) for table in actions]
    assert sum(map(len, actions)) == len(ROWS)


def test_search_for_an_operator_finds_each_error_with_a_remedy():
    searched = re.search(r" action=\(([a-z_|]+)\) ", PAGE)
    assert searched
    errors = {
        action
        for action, level, _, _, remedy in ROWS.values()
        if level in {"error", "critical"} and not remedy.startswith("Nothing")
    }
    assert errors | {"events_refused", "handler_paused", "partition_paused"} <= set(
        searched[1].split("|")
    )


@each_call
def test_documentation_has_the_level_and_the_fields_of_the_code(call: LogCall):
    _, level, _, fields, _ = ROWS[str(call.action)]
    in_code = [*call.fields, *(["traceback"] if call.has_error else [])]
    assert level == call.level
    assert re.findall(r"`(\w+)`", fields) == in_code
