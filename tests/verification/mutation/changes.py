"""The changes that break a piece of code: drop, negate or swap a predicate, branch or call."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

NEGATED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OF_SQLALCHEMY: Final = {"and_": "or_", "or_": "and_", "true": "false", "false": "true"}
OF_PYTHON: Final = {"any": "all", "all": "any", "min": "max", "max": "min"}
SWAPPED_METHODS: Final = {
    "is_": "is_not",
    "is_not": "is_",
    "in_": "not_in",
    "not_in": "in_",
    "least": "greatest",
    "greatest": "least",
}
CONDITIONS: Final = {"where", "and_", "or_", "having", "filter"}
"""Calls whose arguments are predicates, each of which can be dropped."""
CLAUSES: Final = {
    "where",
    "having",
    "filter",
    "with_for_update",
    "order_by",
    "limit",
    "offset",
    "distinct",
    "on_conflict_do_nothing",
    "on_conflict_do_update",
}
"""Methods of a statement that are optional."""
ASSIGNING: Final = {"values", "with_for_update", "on_conflict_do_update"}
"""Calls whose keyword arguments can be dropped one by one."""
_SIMPLE: Final = (ast.Expr, ast.Raise, ast.Continue, ast.Break, ast.AugAssign, ast.Delete)


_NO_NUMBERS: Final = (ast.JoinedStr, ast.List, ast.ListComp, ast.Tuple)


@dataclass(frozen=True, slots=True)
class Change:
    """Nodes of a syntax tree, and the replacement of each."""

    what: str
    """A description of the change, for an operator."""
    replaced: tuple[tuple[ast.AST, ast.AST], ...]

    def applied_to(self, tree: ast.Module) -> ast.Module:
        """Return a copy of the tree with the change in it."""
        return copy.deepcopy(tree, {id(old): copy.deepcopy(new) for old, new in self.replaced})

    @property
    def line(self) -> int:
        """Return the first line of the changed code."""
        return self._first.lineno

    @property
    def last_line(self) -> int:
        """Return the last line of the changed code."""
        return self._first.end_lineno or self._first.lineno

    @property
    def _first(self) -> ast.expr | ast.stmt:
        old, _ = self.replaced[0]
        assert isinstance(old, ast.expr | ast.stmt)
        return old


def changes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Change]:
    """Yield every change of a function, in the order of its text."""
    makes = function.name in {"__init__", "__post_init__"}
    for statement in _statements(function.body):
        if _is_log(statement):
            continue
        if not (makes and isinstance(statement, ast.Assign)):
            yield from _of_statement(statement)
        for node in _expressions(statement):
            for what, new in _of_expression(node):
                yield Change(what, ((node, ast.copy_location(new, node)),))
    for block in _blocks(function):
        yield from _swapped(block)


def _of_statement(statement: ast.stmt) -> Iterator[Change]:
    if isinstance(statement, (ast.If, ast.While)) and not _is_negatable(statement.test):
        negated = ast.copy_location(ast.UnaryOp(ast.Not(), statement.test), statement.test)
        yield Change(f"negate {_text(statement.test)}", ((statement.test, negated),))
    is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    is_yield = isinstance(statement, ast.Expr) and isinstance(
        statement.value, (ast.Yield, ast.YieldFrom, ast.Await)
    )
    sets_a_field = isinstance(statement, ast.Assign) and isinstance(
        statement.targets[0], (ast.Attribute, ast.Subscript)
    )
    returns_early = isinstance(statement, ast.Return) and statement.value is None
    droppable = isinstance(statement, _SIMPLE) or sets_a_field or returns_early
    if droppable and not is_docstring and not is_yield:
        passed = ast.copy_location(ast.Pass(), statement)
        yield Change(f"drop {_text(statement)}", ((statement, passed),))


def _of_expression(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    text = _text(node)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        negated = NEGATED[type(node.ops[0])]()
        yield f"negate {text}", ast.Compare(node.left, [negated], node.comparators)
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield f"swap and, or in {text}", ast.BoolOp(other, node.values)
        for value in node.values:
            rest = [each for each in node.values if each is not value]
            kept = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
            yield f"drop {_text(value)} of {text}", kept
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield f"drop not of {text}", node.operand
    elif isinstance(node, ast.IfExp):
        yield f"swap branches of {text}", ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        if not any(isinstance(side, _NO_NUMBERS) for side in (node.left, node.right)):
            sign = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
            yield f"swap +, - in {text}", ast.BinOp(node.left, sign, node.right)
    elif isinstance(node, ast.Call):
        yield from _of_call(node, text)


def _of_call(node: ast.Call, text: str) -> Iterator[tuple[str, ast.expr]]:
    name = _name(node.func)
    if other := _other(node.func):
        swapped, func = other
        new = ast.Call(ast.copy_location(func, node.func), node.args, node.keywords)
        yield f"swap {name} for {swapped} in {text}", new
    if name == "not_" and len(node.args) == 1:
        yield f"drop not_ of {text}", node.args[0]
    if name in CONDITIONS and len(node.args) > 1:
        for argument in node.args:
            rest = [each for each in node.args if each is not argument]
            kept = ast.Call(node.func, rest, node.keywords)
            yield f"drop {_text(argument)} of {name}", kept
    if _is_clause(node):
        assert isinstance(node.func, ast.Attribute)
        short = _text(ast.Call(ast.Name(name), node.args, node.keywords))
        yield f"drop .{short}", node.func.value
    if name in ASSIGNING:
        for keyword in node.keywords:
            rest_of = [each for each in node.keywords if each is not keyword]
            if rest_of or name == "with_for_update":
                kept = ast.Call(node.func, node.args, rest_of)
                yield f"drop {_text(keyword)} of {name}", kept


def _swapped(block: list[ast.stmt]) -> Iterator[Change]:
    """Exchange two consecutive calls."""
    for first, second in pairwise(block):
        if _is_call(first) and _is_call(second) and not (_is_log(first) or _is_log(second)):
            name = f"swap {_text(first)} and {_text(second)}"
            yield Change(name, ((first, second), (second, first)))


def _statements(block: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in block:
        yield statement
        for inner in _inner_blocks(statement):
            yield from _statements(inner)


def _inner_blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        if inner := getattr(statement, name, None):
            yield inner
    for handler in getattr(statement, "handlers", ()):
        yield handler.body
    for case in getattr(statement, "cases", ()):
        yield case.body


def _blocks(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[list[ast.stmt]]:
    yield function.body
    for statement in _statements(function.body):
        yield from _inner_blocks(statement)


def _expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """Yield the expressions of a statement itself, not of the statements inside it."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return
    waiting: list[ast.AST] = [
        child for child in ast.iter_child_nodes(statement) if not isinstance(child, ast.stmt)
    ]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.ExceptHandler | ast.match_case):
            continue
        if isinstance(node, ast.expr):
            yield node
        waiting[:0] = [n for n in ast.iter_child_nodes(node) if not isinstance(n, ast.stmt)]


def _is_negatable(test: ast.expr) -> bool:
    """Return whether a change negates the expression."""
    is_not = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    return is_not or (isinstance(test, ast.Compare) and len(test.ops) == 1)


def _is_clause(node: ast.Call) -> bool:
    """Return whether a call adds a clause to a statement; its arguments are not dropped alone."""
    func = node.func
    if not isinstance(func, ast.Attribute) or func.attr not in CLAUSES:
        return False
    is_of_statement = isinstance(func.value, ast.Call | ast.Name)
    return is_of_statement and (func.attr not in CONDITIONS or len(node.args) == 1)


def _is_call(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)


def _is_log(statement: ast.stmt) -> bool:
    """Return whether a statement only writes to the log, which is not part of the promise."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    func = call.func if isinstance(call, ast.Call) else None
    return isinstance(func, ast.Attribute) and ast.unparse(func.value) in {"log", "self._log"}


def _other(func: ast.expr) -> tuple[str, ast.expr] | None:
    """Return the name and the function that replace this one; None for most."""
    if isinstance(func, ast.Attribute):
        is_sql = isinstance(func.value, ast.Name) and func.value.id == "func"
        known = SWAPPED_METHODS | OF_PYTHON if is_sql else SWAPPED_METHODS
        name = known.get(func.attr)
        return (name, ast.Attribute(func.value, name, ast.Load())) if name else None
    if not isinstance(func, ast.Name):
        return None
    if name := OF_PYTHON.get(func.id):
        return name, ast.Name(name, ast.Load())
    if name := OF_SQLALCHEMY.get(func.id):
        # The module may not have imported it.
        return name, ast.parse(f"__import__('sqlalchemy').{name}", mode="eval").body
    return None


def _name(func: ast.expr) -> str:
    if isinstance(func, ast.Name):
        return func.id
    return func.attr if isinstance(func, ast.Attribute) else ""


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 70 else f"{text[:67]}..."
