"""Turns the rules of `shieldtx.reconcile.rules` into column expressions."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  the name that PySpark programs give it

from shieldtx.reconcile.facts import Fact, Value
from shieldtx.reconcile.rules import RuleSet
from shieldtx.reconcile.verdicts import Verdict


def verdict_of(book: RuleSet) -> Column:
    """Turn a book into one expression: the verdict of the first rule whose conditions hold.

    Its facts are columns of their names. It is written as SQL, which Spark parses in no time: built
    of columns, each of hundreds of calls goes to Java and back.
    """
    *conditional, last = book.rules
    cases = [
        f"WHEN {' AND '.join(_is_one_of(*one) for one in rule.when.items())} "
        f"THEN {_literal(rule.verdict)}"
        for rule in conditional
    ]
    return F.expr(f"CASE {' '.join(cases)} ELSE {_literal(last.verdict)} END")


def _is_one_of(fact: Fact, allowed: Iterable[Value]) -> str:
    """A comparison with NULL is no match, as CASE has it."""
    values = list(allowed)
    present = ", ".join(_literal(value) for value in values if value is not None)
    conditions = [f"{fact} IN ({present})"] if present else []
    conditions += [f"{fact} IS NULL"] if None in values else []
    return f"({' OR '.join(conditions)})"


def _literal(value: Value | Verdict) -> str:
    return str(value).upper() if isinstance(value, bool) else f"'{value}'"
