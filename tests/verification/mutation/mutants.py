"""The mutants of some modules, and how to put a mutant into the functions of this process."""

from __future__ import annotations

import ast
import gc
import importlib.util
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType

from tests.verification.mutation.changes import Change, changes

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """A defect in one function of a module."""

    id: str
    """Constant while the function's text is: it contains no line numbers."""
    module: str
    function: str
    """Its qualified name."""
    line: int
    last_line: int
    path: Path
    change: Change
    tree: ast.Module

    def apply(self, objects: Iterable[object]) -> None:
        """Put the defect into each object that is this function; raises LookupError if none is.

        The code is exchanged in place, so that modules that imported the function have it too.
        """
        changed = self._code()
        found = [
            each
            for each in objects
            if isinstance(each, FunctionType)
            and each.__code__.co_filename == str(self.path)
            and self._is_it(each.__code__)
        ]
        if not found:
            raise LookupError(f"{self.module} has no function {self.function} in this process")
        for function in found:
            function.__code__ = changed

    def _code(self) -> CodeType:
        mutated = self.change.applied_to(self.tree)
        for _, node in _named_functions(mutated.body, ""):
            if _contains(node, self.line) and _refers_to(node, "super") is not self._calls_super:
                # A function without `super` has another closure, and no object accepts its code.
                node.body.insert(0, ast.parse("if False: super").body[0])
        ast.fix_missing_locations(mutated)
        code = compile(mutated, str(self.path), "exec", dont_inherit=True)
        [changed] = [each for each in _code_of_functions(code) if self._is_it(each)]
        return changed

    @property
    def _calls_super(self) -> bool:
        return any(
            _refers_to(node, "super")
            for _, node in _named_functions(self.tree.body, "")
            if _contains(node, self.line)
        )

    def _is_it(self, code: CodeType) -> bool:
        return code.co_qualname == self.function and code.co_firstlineno == self._first_line

    @property
    def _first_line(self) -> int:
        return next(
            first
            for name, node in _named_functions(self.tree.body, "")
            if name == self.function and _contains(node, self.line)
            for first in [min([node.lineno, *(d.lineno for d in node.decorator_list)])]
        )


def mutants_of(modules: Sequence[str]) -> list[Mutant]:
    """Return all mutants of the functions and methods of some modules."""
    return [mutant for module in modules for mutant in _of_module(module)]


def path_of(module: str) -> str:
    """Return the path of a module's file; raises ModuleNotFoundError where there is none."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"there is no module {module}")
    return spec.origin


def _of_module(module: str) -> Iterator[Mutant]:
    path = Path(path_of(module))
    tree = ast.parse(path.read_text())
    seen: Counter[str] = Counter()
    short = module.removeprefix("shieldtx.")
    for name, node in _named_functions(tree.body, ""):
        for change in changes(node):
            identity = f"{short}:{name}: {change.what}"
            seen[identity] += 1
            again = "" if seen[identity] == 1 else f" ({seen[identity]})"
            yield Mutant(
                id=identity + again,
                module=module,
                function=name,
                line=change.line,
                last_line=change.last_line,
                path=path,
                change=change,
                tree=tree,
            )


def _named_functions(body: Sequence[ast.stmt], prefix: str) -> Iterator[tuple[str, Function]]:
    """Yield functions and methods; nested functions are parts of them."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _named_functions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}", node


def _contains(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _refers_to(node: ast.stmt, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node))


def _code_of_functions(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _code_of_functions(constant)


def everything() -> list[object]:
    """Return all objects of this process, also those that the collector ignores."""
    gc.unfreeze()
    try:
        return gc.get_objects()
    finally:
        gc.freeze()
