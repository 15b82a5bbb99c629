"""Rules between durations among the settings: a service that breaks one does not start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta


def broken_rules(given: Mapping[str, timedelta]) -> Iterator[str]:
    """Yield a line about each rule that the settings break, by their field names."""

    def named(name: str) -> str:
        return f"SHIELDTX_{name.upper()} ({given[name]})"

    if given["relay_send_timeout"] >= given["relay_lease"] * 0.8:
        yield (
            f"{named('relay_send_timeout')} must be below 0.8 of {named('relay_lease')}: a batch "
            "has to end within its lease"
        )
    for shorter, longer in (
        ("half_check_timeout", "half_check_interval"),
        ("barrier_patience", "half_check_timeout"),
    ):
        if given[shorter] >= given[longer]:
            yield f"{named(shorter)} must be below {named(longer)}"
    if given["retention_barrier"] <= given["half_max_age"]:
        yield (
            f"{named('retention_barrier')} must be above {named('half_max_age')}: a check must "
            "still find the row"
        )
    if given["retention_inbox"] < given["retention_outbox"]:
        yield (
            f"{named('retention_inbox')} must not be below {named('retention_outbox')}: an event "
            "that is sent again must still be known"
        )
