"""Former defects of the reconciliation, put back: histories have to show each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest.mock import patch

from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.reconcile import basis, earlier_runs, mistyped_names, restored_copies, routes
from shieldtx.reconcile.facts import Fact
from shieldtx.reconcile.observed import Past
from shieldtx.reconcile.rules import PAIRS, Rule, RuleSet
from shieldtx.reconcile.verdicts import Verdict
from tests.verification.oracle import broken, damaged, facts
from tests.verification.oracle.generate import Story
from tests.verification.oracle.own_groups import OWN, OWN_IN_ORDER
from tests.verification.oracle.restores import database_is_restored
from tests.verification.oracle.unhandled import UNHANDLED

Rules = Callable[[Rule], Rule | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """A defect, and the histories in which it is searched."""

    name: str
    applied: Callable[[], AbstractContextManager[Any]]
    """Puts the defect in while the context is open."""
    stories: Sequence[Story] = ()
    """The stories that show a rare defect; empty: all."""


def rules_of(book: RuleSet, change: Rules) -> Callable[[], AbstractContextManager[Any]]:
    """Return a context in which a changed book of rules replaces this one."""
    changed = tuple(rule for each in book.rules if (rule := change(each)) is not None)
    mutant = RuleSet(facts=book.facts, rules=changed)

    def judge(rules: RuleSet, facts: Any) -> Verdict:
        return _judge(mutant if rules is book else rules, facts)

    def applied() -> AbstractContextManager[Any]:
        return patch.object(RuleSet, "judge", judge)

    return applied


_judge = RuleSet.judge


def without(rule: Rule, *facts: Fact) -> Rule:
    """Return a rule that ignores some facts."""
    kept = {fact: values for fact, values in rule.when.items() if fact not in facts}
    return replace(rule, when=kept)


def _open_and_arrived_disagrees(rule: Rule) -> Rule | None:
    upstream = rule.when.get(Fact.UPSTREAM, frozenset())
    is_it = rule.verdict is Verdict.STUCK and OutboxStatus.INIT in upstream
    return None if is_it and Fact.DOWNSTREAM not in rule.when else rule


def _accused_however_old(rule: Rule) -> Rule | None:
    is_it = rule.verdict is Verdict.EFFECT_DESPITE_ROLLBACK
    return without(rule, Fact.KEPT) if is_it else rule


def _any_tombstone_is_refused(rule: Rule) -> Rule | None:
    return without(rule, Fact.OVERTAKEN) if rule.verdict is Verdict.REFUSED else rule


def _envelopes_are_not_compared(rule: Rule) -> Rule | None:
    return None if rule.verdict is Verdict.ENVELOPE_DIFFERS else rule


def _left_alone_when_purged_upstream(rule: Rule) -> Rule | None:
    is_it = rule.verdict in {Verdict.STUCK, Verdict.PARKED} and None in rule.when.get(
        Fact.UPSTREAM, frozenset()
    )
    return None if is_it else rule


def _effects_may_follow_compensations(rule: Rule) -> Rule | None:
    return None if Fact.UNDONE_FIRST in rule.when else rule


def _tombstones_are_as_old_as_their_events(rule: Rule) -> Rule | None:
    is_it = rule.verdict is Verdict.TOO_OLD and Fact.OVERTAKEN in rule.when
    return None if is_it else rule


def instead(of: Any, name: str, mutant: Any) -> Callable[[], AbstractContextManager[Any]]:
    """Return a context in which a mutant replaces an attribute of a module or a class."""
    return lambda: patch.object(of, name, mutant)


def _any_settled_rollback_has_compensated(rule: Rule) -> Rule | None:
    return without(rule, Fact.OWES)


def _without_a_row_is_without_an_effect(rule: Rule) -> Rule | None:
    owes = rule.when.get(Fact.OWES)
    if owes != frozenset({False}):
        return rule
    return replace(rule, when={**rule.when, Fact.OWES: frozenset({False, None})})


def _owed_if_sent(rule: Rule) -> Rule | None:
    if rule.verdict is not Verdict.NEITHER_EFFECT_NOR_COMPENSATION:
        return rule
    return replace(rule, when={**rule.when, Fact.UPSTREAM: frozenset({OutboxStatus.PROCESSED})})


def _owed_since_it_came(received: Any, kept_since: float) -> bool | None:
    if received is None or received["status"] is not InboxStatus.MAX_RECONSUMED:
        return None
    return True if received["received_at"] >= kept_since else None


def _since_it_was_written(sent: Any, received: Any) -> float:
    trace = sent["created_at"] if received is None else received["event_time"]
    return float(trace)


_declared = routes._declared


def _from_is_for_rollbacks_too(member: Any, group: Any, arriving: Any) -> Iterator[Any]:
    for route in _declared(member, group, arriving):
        is_left_out = group.kind is TxKind.ROLLBACK and (
            group.upstreams and route.stream.upstream not in group.upstreams
        )
        if not is_left_out:
            yield route


_unreceived = routes._unreceived


def _a_received_topic_is_received_whole(members: Any, sent: Any, of: Any) -> Iterator[Any]:
    all_ = list(of)
    awaited = {(each.stream.upstream, each.topic) for each in all_ if each.expected}
    others = [what for what in sent if (what.upstream, what.topic) not in awaited]
    yield from _unreceived(members, others, all_)


_undeclared = routes._undeclared


def _seen_is_as_good_as_expected(
    member: Any, arriving: Any, awaited: Any, mine: Any
) -> Iterator[Any]:
    seen = routes._seen(mine, expected=False)
    yield from _undeclared(member, arriving, [*awaited, *seen], mine)


_of_others = routes._of_others


def _former_groups_compensate_nothing(*given: Any) -> Iterator[Any]:
    yield from (route for route in _of_others(*given) if not route.if_applied)


def _former_groups_compensate_all(*given: Any) -> Iterator[Any]:
    yield from (replace(route, if_applied=False) for route in _of_others(*given))


def _rollbacks_of_seen_types_are_expected_nowhere() -> AbstractContextManager[Any]:
    return patch.multiple(
        routes, _undeclared=_seen_is_as_good_as_expected, _unassigned=lambda *_: iter(())
    )


BY_RULES: Final = (
    Mutant(
        name="N1 watermarks of another configuration",
        applied=instead(basis, "changes", lambda *_: []),
    ),
    Mutant(
        name="N2 a mistyped name goes unnoticed",
        applied=instead(mistyped_names, "mistyped_names", lambda *_: iter(())),
    ),
    Mutant(
        name="a type that no group should receive goes unnoticed next to another of its topic",
        applied=instead(routes, "_unreceived", _a_received_topic_is_received_whole),
        stories=UNHANDLED,
    ),
    Mutant(
        name="a rollback is not missed once an undeclared group has received one of its type",
        applied=_rollbacks_of_seen_types_are_expected_nowhere,
        stories=(broken.rollback_is_lost,),
    ),
    Mutant(
        name="what a group has received is forgotten with the purge of its inbox",
        applied=instead(earlier_runs, "past_of", lambda *_: Past()),
    ),
    Mutant(
        name="a run of an earlier release ends what later ones remember",
        applied=instead(earlier_runs, "CARRIED_ON_SINCE", 0),
    ),
    Mutant(
        name="what a restored copy lacks counts as judged",
        applied=instead(restored_copies, "as_restored", lambda runs, *_, **__: iter(runs)),
        stories=(database_is_restored,),
    ),
    Mutant(
        name="N7 open and arrived is a contradiction",
        applied=rules_of(PAIRS, _open_and_arrived_disagrees),
    ),
    Mutant(
        name="N11 a server of another past goes unnoticed",
        applied=instead(basis, "losses", lambda *_: []),
        stories=(database_is_restored,),
    ),
    Mutant(
        name="N14 accused though the reason may be purged",
        applied=rules_of(PAIRS, _accused_however_old),
        stories=(broken.rollback_is_stuck, broken.rollback_is_refused),
    ),
    Mutant(
        name="a delayed event is as old as its writing",
        applied=instead(facts, "first_trace", _since_it_was_written),
        stories=(damaged.is_taken_back_days_later,),
    ),
    Mutant(
        name="a rollback is due as long as the upstream keeps its event",
        applied=rules_of(PAIRS, _owed_if_sent),
        stories=(damaged.rollback_row_is_lost,),
    ),
    Mutant(
        name="a rollback is due since its event came",
        applied=instead(facts, "owes_rollback", _owed_since_it_came),
        stories=(damaged.rollback_row_is_lost,),
    ),
    Mutant(
        name="applied when an earlier row may be purged, and the run is good",
        applied=instead(facts, "came_again", lambda *_, **__: False),
        stories=(broken.is_applied_twice,),
    ),
    Mutant(
        name="N15 `from` filters rollbacks too",
        applied=instead(routes, "_declared", _from_is_for_rollbacks_too),
        stories=(broken.rollback_is_lost,),
    ),
    Mutant(
        name="N16 any tombstone counts as refused",
        applied=rules_of(PAIRS, _any_tombstone_is_refused),
    ),
    Mutant(
        name="N17 payloads alone are compared", applied=rules_of(PAIRS, _envelopes_are_not_compared)
    ),
    Mutant(
        name="rollbacks are not expected of groups of other services",
        applied=instead(routes, "_of_others", lambda *_: iter(())),
    ),
    Mutant(
        name="a former group need not compensate what it has applied",
        applied=instead(routes, "_of_others", _former_groups_compensate_nothing),
        stories=(broken.rollback_is_lost,),
    ),
    Mutant(
        name="a former group is to compensate what it has not applied",
        applied=instead(routes, "_of_others", _former_groups_compensate_all),
        stories=(broken.rollback_is_lost,),
    ),
    Mutant(
        name="what another service's group has settled counts as compensated",
        applied=rules_of(PAIRS, _any_settled_rollback_has_compensated),
    ),
    Mutant(
        name="a group that has purged its row of the event had no effect",
        applied=rules_of(PAIRS, _without_a_row_is_without_an_effect),
        stories=(damaged.effect_is_not_taken_back,),
    ),
    Mutant(
        name="open and too old upstream is in order",
        applied=rules_of(PAIRS, _left_alone_when_purged_upstream),
        stories=(broken.nobody_handles, broken.nobody_compensates, broken.compensation_fails),
    ),
    Mutant(
        name="an effect may follow its compensation",
        applied=rules_of(PAIRS, _effects_may_follow_compensations),
        stories=OWN,
    ),
    Mutant(
        name="a tombstone is accused whose event was purged",
        applied=rules_of(PAIRS, _tombstones_are_as_old_as_their_events),
        stories=OWN_IN_ORDER,
    ),
)
