"""Converts the rules of `shieldtx.reconcile.rules` into column expressions."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  the usual name in PySpark programs

from shieldtx.reconcile.facts import Fact, Value
from shieldtx.reconcile.rules import RuleSet
from shieldtx.reconcile.verdicts import Verdict


def verdict_of(book: RuleSet) -> Column:
    """Return a rule set as one expression: the verdict of the first rule whose conditions hold.

    Its facts are columns of the same names. The expression is SQL text, which Spark parses in no
    time. Built of columns, it would take hundreds of calls to Java.
    """
    *conditional, last = book.rules
    cases = [
        f"WHEN {' AND '.join(_is_one_of(*one) for one in rule.when.items())} "
        f"THEN {_literal(rule.verdict)}"
        for rule in conditional
    ]
    return F.expr(f"CASE {' '.join(cases)} ELSE {_literal(last.verdict)} END")


def _is_one_of(fact: Fact, allowed: Iterable[Value]) -> str:
    """Return a condition for one fact; a comparison with NULL does not match, as in CASE."""
    values = list(allowed)
    present = ", ".join(_literal(value) for value in values if value is not None)
    conditions = [f"{fact} IN ({present})"] if present else []
    conditions += [f"{fact} IS NULL"] if None in values else []
    return f"({' OR '.join(conditions)})"


def _literal(value: Value | Verdict) -> str:
    return str(value).upper() if isinstance(value, bool) else f"'{value}'"
