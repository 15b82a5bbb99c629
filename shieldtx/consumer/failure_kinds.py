"""What kind of failure an error of a handler is: a refusal, final, or worth another attempt."""

from __future__ import annotations

from typing import Final

from shieldtx.consumer.handler import Handler
from shieldtx.consumer.handler_caller import UnfitPayload
from shieldtx.domain.error_groups import leaves_of, reason_with_leaves
from shieldtx.domain.events import LONGEST_REASON, storable
from shieldtx.domain.raise_site import raise_site_of
from shieldtx.domain.reasons import loggable
from shieldtx.errors import NothingToCompensate, Refused, UpcastFailed

DELIBERATE: Final = (Refused, NothingToCompensate)
"""Errors whose raising line tells an operator nothing."""

EXPECTED: Final = (Refused, UnfitPayload, NothingToCompensate)
"""Errors whose message is complete: a traceback would add nothing."""


def failure_reason(error: Exception, handler: Handler) -> str:
    """Return the text of an error for logs and the inbox, with the line that raised it."""
    reason = reason_with_leaves(error)
    site = "" if all_are(DELIBERATE, error) else site_of(error, handler)
    if not site:
        return storable(reason)
    # A long text is cut, and the line stays.
    named = storable(f" (raised at {site})")
    return storable(reason, LONGEST_REASON - len(named)) + named


def site_of(error: Exception, handler: Handler) -> str:
    """Return the line that raised an error; "" where none of the application's did."""
    if isinstance(error, UnfitPayload | UpcastFailed) and error.raised_by is not None:
        return raise_site_of(error.raised_by, handler.function)
    return raise_site_of(error, handler.function)


def traceback_of(error: Exception | None) -> BaseException | None:
    """Return the error for a log with its traceback; None where the message is complete."""
    return None if error is None or all_are(EXPECTED, error) else loggable(error)


def is_final(error: Exception, handler: Handler) -> bool:
    """Whether no further attempt would help; for a group of errors, with none of them."""
    return isinstance(error, NothingToCompensate) or is_refusal(error, handler)


def is_refusal(error: Exception, handler: Handler) -> bool:
    """Whether the handler refuses the event, by an error that its retry policy declares."""
    kinds = handler.retry.refuse_on
    return isinstance(error, kinds) or all_are(kinds, error)


def is_expected(error: Exception, handler: Handler) -> bool:
    """Whether an error, or each one of a group, is declared: it shows no defect of the handler."""
    retry = handler.retry
    kinds = (*retry.refuse_on, *retry.expected)
    return isinstance(error, kinds) or all_are(kinds, error)


def all_are(kinds: tuple[type[BaseException], ...], error: Exception) -> bool:
    """Whether an error, or each one of a group, is of these kinds."""
    return all(isinstance(leaf, kinds) for leaf in leaves_of(error))
