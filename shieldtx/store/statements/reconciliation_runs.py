"""The statements on the runs of the reconciliation."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from sqlalchemy import Delete, Select, Update, case, delete, func, select, update
from sqlalchemy.sql.dml import ReturningInsert

from shieldtx.store.dialects import Dialect
from shieldtx.store.tables import Tables


def begin(
    t: Tables,
    d: Dialect,
    *,
    run_id: str,
    scope: str,
    mode: str,
    who: str,
    folder: str,
    basis: str,
    lease: timedelta,
) -> ReturningInsert[Any]:
    """Record the start of a run, unless another run of its scope is in progress."""
    return (
        d.insert_new(t.reconcile_run)
        .values(
            run_id=run_id,
            scope=scope,
            mode=mode,
            who=who,
            folder=folder,
            basis=basis,
            started_at=d.now(),
            lease_until=d.later(lease),
        )
        .returning(t.reconcile_run.c.run_id)
    )


def set_right(t: Tables, d: Dialect, *, scope: str) -> Update:
    """Set the start of the runs of a scope that began in the future to just now.

    The clock was ahead when they began. They would be the latest runs until that time.
    """
    r = t.reconcile_run
    just_now = d.later(-timedelta(milliseconds=1))
    return (
        update(r)
        .where(r.c.scope == scope, r.c.started_at > d.now())
        .values(
            started_at=just_now,
            finished_at=case((r.c.finished_at > d.now(), just_now), else_=r.c.finished_at),
        )
    )


def shorten_leases(t: Tables, d: Dialect, *, scope: str, lease: timedelta) -> Update:
    """Shorten a run's lease, so that it ends no later than a lease that begins now.

    The clock was ahead when the lease was written. A live run extends its lease, but a dead run
    would block all others until that time.
    """
    r = t.reconcile_run
    return (
        update(r)
        .where(r.c.scope == scope, r.c.outcome.is_(None), r.c.lease_until > d.later(lease))
        .values(lease_until=d.later(lease))
    )


def give_up_dead(t: Tables, d: Dialect, *, scope: str, outcome: str, problem: str) -> Update:
    """End the run of a scope whose lease has run out."""
    r = t.reconcile_run
    return (
        update(r)
        .where(r.c.scope == scope, r.c.outcome.is_(None), r.c.lease_until <= d.now())
        .values(outcome=outcome, problem=problem, finished_at=d.now())
    )


def extend(t: Tables, d: Dialect, *, run_id: str, lease: timedelta) -> Update:
    """Extend the lease of a run."""
    r = t.reconcile_run
    return (
        update(r)
        .where(r.c.run_id == run_id, r.c.outcome.is_(None))
        .values(lease_until=d.later(lease))
    )


def judge(t: Tables, *, run_id: str, mode: str, basis: str) -> Update:
    """Record the mode and the basis of a run that has not ended."""
    r = t.reconcile_run
    return (
        update(r).where(r.c.run_id == run_id, r.c.outcome.is_(None)).values(mode=mode, basis=basis)
    )


def finish(
    t: Tables,
    d: Dialect,
    *,
    run_id: str,
    outcome: str,
    good: bool,
    watermarks: str,
    totals: str,
    problem: str,
) -> Update:
    """Record the outcome of a run that has not ended yet."""
    r = t.reconcile_run
    return (
        update(r)
        .where(r.c.run_id == run_id, r.c.outcome.is_(None))
        .values(
            outcome=outcome,
            good=good,
            watermarks=watermarks,
            totals=totals,
            problem=problem,
            finished_at=d.now(),
        )
    )


def old_good(t: Tables, d: Dialect, *, scope: str, older_than: timedelta) -> Select[Any]:
    """Select the old good runs of a scope, the latest first."""
    r = t.reconcile_run
    return (
        select(r.c.run_id, r.c.basis)
        .where(r.c.scope == scope, r.c.good, r.c.started_at < d.later(-older_than))
        .order_by(r.c.started_at.desc(), r.c.run_id.desc())
    )


def runs(t: Tables, d: Dialect, *, scope: str) -> Select[Any]:
    """Select the runs of a scope, the latest first; an unfinished run may be dead."""
    r = t.reconcile_run
    dead = r.c.outcome.is_(None) & (r.c.lease_until <= d.now())
    return (
        select(*r.c, d.now().label("at"), dead.label("dead"))
        .where(r.c.scope == scope)
        .order_by(r.c.started_at.desc(), r.c.run_id.desc())
    )


def scopes(t: Tables, *, without: str) -> Select[Any]:
    """Select the scopes with ended runs, except `without`; the scope of the latest run first."""
    r = t.reconcile_run
    return (
        select(r.c.scope)
        .where(r.c.outcome.is_not(None), r.c.scope != without)
        .group_by(r.c.scope)
        .order_by(func.max(r.c.started_at).desc(), r.c.scope)
    )


def forget_old(
    t: Tables, d: Dialect, *, scope: str, older_than: timedelta, kept: Collection[str]
) -> Delete:
    """Remove the old ended runs of a scope, except `kept`, from which a later run starts."""
    r = t.reconcile_run
    return delete(r).where(
        r.c.scope == scope,
        r.c.outcome.is_not(None),
        r.c.started_at < d.later(-older_than),
        r.c.run_id.not_in(kept),
    )
