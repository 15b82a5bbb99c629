"""The table of mutants: deliberate defects, each of which violates a named invariant."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest.mock import patch

from shieldtx.consumer import handler_caller, lanes
from shieldtx.consumer.attempt_recorder import AttemptRecorder
from shieldtx.consumer.batch_executor import BatchExecutor
from shieldtx.consumer.breaker import Breaker
from shieldtx.consumer.fetcher import BlockingFetcher, PrefetchingFetcher
from shieldtx.consumer.shared_transaction import SharedTransaction
from shieldtx.ports.broker import DeliveryOutcome
from shieldtx.relay.in_flight import InFlight
from shieldtx.relay.permanent_failure import PermanentFailures
from shieldtx.relay.relay import Relay
from shieldtx.store.shard_count import ShardCount
from tests.verification.simulation import mutant_code, retention
from tests.verification.simulation.database import Database
from tests.verification.simulation.half_messages import MemoryBarrier, MemoryHalfMessageStore
from tests.verification.simulation.inbox import MemoryInboxStore, MemorySavepoint
from tests.verification.simulation.outbox import MemoryLeaseStore, MemoryOutboxStore
from tests.verification.simulation.processes import Interrupted, InterruptedInbox
from tests.verification.simulation.retention import MemoryRetentionStore


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """A defect of one method or function, and the invariant that it has to violate."""

    name: str
    invariant: str
    of: type | ModuleType
    method: str
    defective: Callable[[Callable[..., Any]], Callable[..., Any]]
    """Makes the defective method from the correct one."""
    first: int
    """The seed of its first schedule: a special one where the usual takes thousands."""


MOST_SCHEDULES = 10_000
"""After this many schedules a mutant counts as alive."""

SEEDS_PER_RUN = 1_000_000
"""A run from the seed n begins with the schedule of this number, n times."""

RARE: Mapping[str, int] = {
    "withdraws-under-its-name": 1_000_745,
    "works-without-token": 1_001_018,
    "batch-settles-without-token": 1_003_441,
    "interrupted-batch-is-forgotten": 6_000_347,
}
"""First schedules for defects that need a rare coincidence.

`python -m tests.verification.simulation --mutant NAME` finds such a schedule, and names its seed.
They lose their property when the course of the schedules changes: then search for new ones.
"""


MUTANTS = {
    name: Mutant(
        name=name,
        invariant=invariant,
        of=of,
        method=method,
        defective=defective,
        first=RARE.get(name, SEEDS_PER_RUN),
    )
    for name, invariant, of, method, defective in (
        # The relay and its table.
        (
            "settles-without-token",
            "I9",
            MemoryOutboxStore,
            "_carrying",
            mutant_code.settles_without_token,
        ),
        (
            "outage-is-failure",
            "I2",
            Relay,
            "_record",
            mutant_code.taken_for(
                {DeliveryOutcome.UNSENT, DeliveryOutcome.UNCONFIRMED}, DeliveryOutcome.REFUSED
            ),
        ),
        (
            "unconfirmed-is-processed",
            "I2",
            Relay,
            "_record",
            mutant_code.taken_for({DeliveryOutcome.UNCONFIRMED}, DeliveryOutcome.ACKNOWLEDGED),
        ),
        (
            "claims-after-last-seen",
            "I2",
            MemoryOutboxStore,
            "_choose",
            mutant_code.claims_after_the_last_seen,
        ),
        (
            "claims-uncommitted",
            "I1",
            Database,
            "insert_outbox",
            mutant_code.shows_what_is_not_committed,
        ),
        (
            "writes-by-its-own-number",
            "I2",
            Database,
            "shard_of",
            mutant_code.writes_by_its_own_number,
        ),
        (
            "writes-by-a-smaller-number",
            "I4",
            Database,
            "shard_of",
            mutant_code.writes_by_a_number_of_each_writer,
        ),
        ("writes-by-its-setting", "I2", ShardCount, "of", mutant_code.believes_its_setting),
        ("retry-holds-nothing", "I4", MemoryOutboxStore, "_let_wait", mutant_code.holds_no_key),
        ("takeover-is-fresh", "I5", MemoryOutboxStore, "_take", mutant_code.forgets_the_one_before),
        ("sends-ahead-in-doubt", "I4", Relay, "_record", mutant_code.sends_ahead_whatever_happened),
        ("lost-claim-is-forgotten", "I4", InFlight, "withdraw", mutant_code.never_withdraws),
        (
            "interrupted-batch-is-forgotten",
            "I5",
            InFlight,
            "begin_send",
            mutant_code.forgets_what_may_be_sent,
        ),
        ("withdraws-under-its-name", "I4", InFlight, "withdraw", mutant_code.keeps_its_name),
        (
            "undoes-the-unconfirmed",
            "I5",
            PermanentFailures,
            "record",
            mutant_code.undoes_what_may_be_delivered,
        ),
        (
            "claims-every-source",
            "I2",
            MemoryOutboxStore,
            "_is_of_its_source",
            mutant_code.takes_every_source,
        ),
        ("fails-every-source", "I5", Relay, "__init__", mutant_code.fails_every_source),
        (
            "dead-shards-without-rows",
            "I4",
            MemoryLeaseStore,
            "_release_dead",
            mutant_code.releases_no_rows,
        ),
        # The consumer and its table.
        (
            "held-batch-is-forgotten",
            "I3",
            PrefetchingFetcher,
            "fetch",
            mutant_code.drops_its_batch_at_an_error,
        ),
        (
            "offset-before-receive",
            "I3",
            BlockingFetcher,
            "fetch",
            mutant_code.commits_offsets_first,
        ),
        ("no-dedupe", "I3", MemoryInboxStore, "receive", mutant_code.forgets_what_is_settled),
        (
            "effect-apart-from-status",
            "I3",
            InterruptedInbox,
            "effect",
            mutant_code.settles_apart_from_the_effect,
        ),
        (
            "rollback-apart-from-giving-up",
            "I5",
            InterruptedInbox,
            "give_up",
            mutant_code.writes_the_rollback_apart,
        ),
        (
            "parked-event-is-taken-back",
            "I5",
            AttemptRecorder,
            "_park",
            mutant_code.takes_a_parked_event_back,
        ),
        (
            "parked-event-survives-its-rollback",
            "I5",
            MemoryInboxStore,
            "fence_parked",
            mutant_code.leaves_a_parked_event_to_its_rollback,
        ),
        (
            "replay-keeps-the-attempts",
            "I8",
            MemoryInboxStore,
            "replay",
            mutant_code.replays_with_used_up_attempts,
        ),
        (
            "replay-asks-for-no-status",
            "I3",
            MemoryInboxStore,
            "replay",
            mutant_code.replays_whatever_was_listed,
        ),
        (
            "works-without-token",
            "I9",
            MemoryInboxStore,
            "_carrying",
            mutant_code.works_without_token,
        ),
        (
            "key-holds-nothing-back",
            "I4",
            MemoryInboxStore,
            "_is_blocked",
            mutant_code.waits_for_its_own_event_only,
        ),
        (
            "waits-in-a-circle",
            "I8",
            MemoryInboxStore,
            "_is_blocked",
            mutant_code.waits_in_a_circle,
        ),
        (
            "compensation-is-not-noted",
            "I3",
            MemoryInboxStore,
            "mark_compensated",
            mutant_code.notes_no_compensation,
        ),
        (
            "what-is-not-called-counts",
            "I5",
            handler_caller,
            "run_for_effect",
            mutant_code.believes_every_call,
        ),
        (
            "awaited-result-is-not-looked-at",
            "I5",
            handler_caller,
            "run_coroutine",
            mutant_code.awaits_and_believes,
        ),
        (
            "coroutine-is-not-awaited",
            "I5",
            handler_caller,
            "run_coroutine",
            mutant_code.awaits_nothing,
        ),
        ("lanes-divide-a-key", "I4", lanes, "_key", mutant_code.divides_a_key),
        (
            "due-counts-every-type",
            "I8",
            MemoryInboxStore,
            "due",
            mutant_code.counts_what_it_cannot_handle,
        ),
        # Its batches.
        (
            "neighbours-pay-for-a-crash",
            "I5",
            MemoryInboxStore,
            "_count",
            mutant_code.counts_again_what_died_in_a_batch,
        ),
        (
            "neighbours-pay-for-the-end",
            "I5",
            MemoryInboxStore,
            "_uncount",
            mutant_code.keeps_the_count,
        ),
        ("failed-key-goes-on", "I4", BatchExecutor, "_free", mutant_code.goes_on_with_the_key),
        (
            "batch-settles-without-token",
            "I9",
            MemoryInboxStore,
            "_all_carrying",
            mutant_code.settles_batches_without_token,
        ),
        (
            "failed-batch-commits",
            "I3",
            InterruptedInbox,
            "effects",
            mutant_code.commits_the_neighbours,
        ),
        # Its paused handlers.
        (
            "paused-handler-is-attempted",
            "I5",
            Breaker,
            "is_paused",
            mutant_code.attempts_whatever_is_paused,
        ),
        (
            "failed-probe-is-counted",
            "I5",
            Breaker,
            "takes_back",
            mutant_code.counts_failures_of_probes,
        ),
        ("any-probe-resumes", "I5", Breaker, "keep_paused", mutant_code.ends_the_pause_anyway),
        ("good-probe-resumes-nothing", "I8", Breaker, "close", mutant_code.keeps_the_pause),
        (
            "died-probe-is-counted",
            "I5",
            MemoryInboxStore,
            "start_attempt",
            mutant_code.counts_probes_that_die,
        ),
        (
            "refused-effect-stays",
            "I5",
            MemorySavepoint,
            "undo",
            mutant_code.undoes_nothing,
        ),
        (
            "refusal-undoes-the-savepoint-before",
            "I3",
            MemorySavepoint,
            "renew",
            mutant_code.renews_nothing,
        ),
        (
            "refusal-undoes-its-transaction",
            "I3",
            MemorySavepoint,
            "undo",
            mutant_code.undoes_everything,
        ),
        (
            "refused-in-a-batch-without-rollback",
            "I3",
            AttemptRecorder,
            "write_rollbacks",
            mutant_code.writes_no_rollbacks,
        ),
        (
            "refusal-takes-its-neighbours-along",
            "I3",
            SharedTransaction,
            "_goes_on_after",
            mutant_code.repeats_no_neighbour,
        ),
        # Half messages.
        (
            "commits-after-the-last-check",
            "I1",
            MemoryHalfMessageStore,
            "_park",
            mutant_code.commits_what_nobody_knows,
        ),
        ("check-only-looks", "I2", MemoryBarrier, "outcome_of", mutant_code.only_looks),
        # Releases, sizes, and internal errors.
        (
            "undecoded-batch-is-forgotten",
            "I3",
            BlockingFetcher,
            "_sorted",
            mutant_code.forgets_what_it_cannot_decode,
        ),
        (
            "read-ahead-is-rewound-last",
            "I3",
            PrefetchingFetcher,
            "_rewind",
            mutant_code.rewinds_twice,
        ),
        (
            "old-release-fails-new-events",
            "I5",
            PermanentFailures,
            "record",
            mutant_code.knows_every_type,
        ),
        (
            "leaves-out-what-is-too-large",
            "I8",
            MemoryOutboxStore,
            "_bounded",
            mutant_code.takes_only_what_fits,
        ),
        # Retention.
        ("purges-under-a-rollback", "I5", retention, "is_needed", mutant_code.needs_no_row),
        (
            "purges-whatever-is-old",
            "I9",
            MemoryRetentionStore,
            "_purge",
            mutant_code.purges_whatever_is_old,
        ),
    )
}


@contextmanager
def applied(name: str | None) -> Iterator[None]:
    """Apply the defect of this name during the block; None: no defect."""
    if name is None:
        yield
        return
    mutant = MUTANTS[name]
    # Only an Interrupted port has methods that its class does not name. Anywhere else, a name that
    # is not there any more would leave the mutant without a defect.
    forwards = isinstance(mutant.of, type) and issubclass(mutant.of, Interrupted)
    sound = getattr(mutant.of, mutant.method, None)
    defective = mutant.defective(sound)
    with patch.object(mutant.of, mutant.method, defective, create=forwards):
        yield
