"""Probes: single attempts at events of a paused handler, which end its pause when they succeed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from shieldtx.consumer.event_processor import EventProcessor
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.consumer.lanes import Outcomes
from shieldtx.domain.events import Envelope
from shieldtx.ports.inbox import AttemptOutcome, InboxStore
from shieldtx.ports.lanes import Lanes
from shieldtx.ports.pauses import ProbeClaim


class Probes:
    """Makes the due probes of a group: one attempt at one event of each handler.

    A probe that fails is not counted, and neither is one that ends with its process. The next one
    takes another event, if there is any.
    """

    def __init__(
        self,
        *,
        group: ConsumerGroup,
        store: InboxStore,
        processor: EventProcessor,
        runner: Lanes,
        is_time_up: Callable[[], bool],
    ) -> None:
        """Find events in `store`; call `processor` where `runner` calls handlers.

        No probe begins when the time of the pass is up.
        """
        self._group = group
        self._store = store
        self._processor = processor
        self._breaker = processor.breaker
        self._runner = runner
        self._is_time_up = is_time_up

    def run_once(self) -> Outcomes:
        """Make the probes that are due, and that no other worker has claimed."""
        outcomes: Outcomes = Counter()
        if not self._breaker.has_pauses:
            return outcomes
        leases = [(key, handler.lease) for key, handler in self._group.declared()]
        for each in leases:
            # Before each claim: a claimed probe that is not made delays the next one.
            if self._is_time_up():
                break
            for claim in self._breaker.claim_probes([each]):
                outcome = self._probe(claim)
                if outcome is not None:
                    outcomes[outcome] += 1
        return outcomes

    def _event_for(self, claim: ProbeClaim) -> Envelope | None:
        """Return an event of the handler: for every second probe the newest one, if unattempted.

        Where the oldest events fail because of their data, a newer one shows whether the handler
        works.
        """
        handled, event = {claim.handler}, None
        if claim.number % 2 == 0:
            event = self._store.newest_unattempted(claim.group, handled=handled)
        return event or self._store.longest_due(claim.group, handled=handled)

    def _probe(self, claim: ProbeClaim) -> AttemptOutcome | None:
        event = self._event_for(claim)
        if event is None:
            self._breaker.keep_paused(claim, reason=None)
            return None
        attempt = partial(self._processor.process, event, is_probe=True)
        with self._breaker.probing(event) as answer:
            [outcome] = self._runner.run([attempt])
        if answer.handler_works:
            self._breaker.close(claim)
        else:
            self._breaker.keep_paused(claim, reason=answer.failure)
        return outcome
