"""Rules between durations among the settings: a service that breaks one does not start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shieldtx.brokers.client_options import ClientOptions


def broken_rules(given: Mapping[str, Any]) -> Iterator[str]:
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
    if given["consumer_heartbeat_interval"] > given["consumer_session_timeout"] / 3:
        yield (
            f"{named('consumer_heartbeat_interval')} must be at most a third of "
            f"{named('consumer_session_timeout')}: one lost heartbeat must not end the membership"
        )
    yield from _broken_by_requests(given)
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


def _broken_by_requests(given: Mapping[str, Any]) -> Iterator[str]:
    yield from ClientOptions(
        common=given["kafka_options"],
        producer=given["kafka_producer_options"],
        consumer=given["kafka_consumer_options"],
        admin=given["kafka_admin_options"],
    ).conflicts()
    options = {**given["kafka_options"], **given["kafka_producer_options"]}
    request, batch = options.get("request.timeout.ms"), given["relay_send_timeout"]
    if request is not None and request > batch.total_seconds() * 1000:
        yield (
            f"request.timeout.ms of producers ({request}) must not be above "
            f"SHIELDTX_RELAY_SEND_TIMEOUT ({batch}): a request has to end within its batch"
        )
