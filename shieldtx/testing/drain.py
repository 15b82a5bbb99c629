"""Runs the workers of the services in a test until nothing is left to do."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from shieldtx.app.application import ShieldTx
from shieldtx.consumer.consumer import Consumer
from shieldtx.errors import BrokerUnavailable
from shieldtx.half_messages.check_back import CheckBack, Parking
from shieldtx.ports.inbox import AttemptOutcome
from shieldtx.relay.relay import Relay


class Workers:
    """The relay, the consumers and the checks of one service, for one drain.

    New workers each time: what a worker remembers by its own clock does not outlive a move of the
    database's clock.
    """

    def __init__(
        self,
        relay: Relay,
        consumers: Sequence[Consumer],
        checks: Sequence[CheckBack],
        park: Parking,
    ) -> None:
        self._relay = relay
        self._consumers = consumers
        self._checks = checks
        self._park = park
        self.published = 0
        self.checked = 0
        self.outcomes: Counter[AttemptOutcome] = Counter()
        self.outage = ""

    @classmethod
    @contextmanager
    def of(cls, shield: ShieldTx) -> Iterator[Workers]:
        """Build the workers of a service, and close them at the end of the block."""
        with ExitStack() as open_workers:
            relay = shield.build_relay()
            open_workers.callback(relay.close)
            consumers = []
            for name, group in shield.groups.items():
                if group.subscriptions():
                    consumers.append(shield.build_consumer(name))
                    open_workers.callback(consumers[-1].close)
            half_messages = shield.half_messages
            yield cls(relay, consumers, half_messages.check_backs(), half_messages.parking())

    def run_once(self) -> bool:
        """Make a pass of each worker; return whether there was anything to do."""
        had_work = [self._check(), self._publish(), *map(self._consume, self._consumers)]
        return any(had_work)

    def _check(self) -> bool:
        results = [check.run_once() for check in self._checks]
        checked = sum(result.checked for result in results)
        self.checked += checked
        return checked > 0 or self._park.run_once().parked > 0

    def _publish(self) -> bool:
        done = self._relay.run_once()
        self.published += done.published
        self.outage = self.outage or done.outage
        if done.slowed:
            time.sleep(done.slowed)
        return done.more

    def _consume(self, consumer: Consumer) -> bool:
        try:
            done = consumer.run_once()
        except BrokerUnavailable as error:
            self.outage = self.outage or str(error)
            return False
        self.outcomes.update(done.outcomes)
        return done.more
