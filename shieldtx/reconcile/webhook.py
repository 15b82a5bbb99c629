"""Posts the outcome of a run to a URL. A failure is logged, and changes nothing else."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from shieldtx.errors import ConfigurationError
from shieldtx.reconcile.notice import Notice, to_json

log = logging.getLogger(__name__)

PAUSES_S: Final = (1.0, 5.0)
"""The pauses between the attempts: one attempt more than pauses."""
ATTEMPT_S: Final = 10.0
"""The time limit of each step of an attempt: connect, send, receive."""
ALL_S: Final = 45.0
"""The time limit of all attempts. It also ends a slow name lookup or a response in small pieces,
which the limit of a step does not."""
_TRIED_AGAIN: Final = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}


@dataclass(frozen=True, kw_only=True, slots=True)
class Webhook:
    """The address that learns of a run; both values may be secret, and are in no message and log.

    Raises ConfigurationError for an invalid URL or token, and for `http` unless it is allowed.
    """

    url: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    """Sent as `Authorization: Bearer`."""
    allow_http: bool = False

    def __post_init__(self) -> None:
        for name, value in (("url", self.url), ("token", self.token)):
            if value is not None and not _is_plain(value):
                raise ConfigurationError(
                    f"webhook.{name}: the variable holds spaces, control characters or letters "
                    "outside of ASCII: see whether it ends with a line break"
                )
        try:
            parts = urlsplit(self.url)
            has_place = bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:
            has_place = False
        if not has_place or parts.scheme not in {"http", "https"}:
            raise ConfigurationError(
                "webhook.url: the variable does not hold a URL such as https://host/path"
            )
        if parts.username is not None or parts.password is not None:
            raise ConfigurationError(
                "webhook.url: the URL has an account before the host: use `token`"
            )
        if parts.scheme == "http" and not self.allow_http:
            raise ConfigurationError(
                "webhook.url: the URL begins with http, which encrypts nothing: use https, or set "
                "allow_http = true in [webhook]"
            )


def post(webhook: Webhook, notice: Notice) -> bool:
    """Post a notice, with retries and a time limit; return whether the webhook accepted it.

    Raises nothing: the outcome of the run does not depend on its notice. After a response that was
    lost, the webhook gets the notice again.
    """
    try:
        problem = _problem_of(_Attempts(webhook=webhook, content=to_json(notice)))
    except Exception as error:  # noqa: BLE001  as without a free thread
        problem = type(error).__name__
    if problem:
        log.error(
            "reconciliation webhook failed",
            extra={"action": "reconciliation_webhook_failed", **_run(notice), "error": problem},
        )
        return False
    log.info(
        "reconciliation webhook called",
        extra={"action": "reconciliation_webhook_called", **_run(notice)},
    )
    return True


def _problem_of(attempts: _Attempts) -> str:
    """Make the attempts, and return why they failed; empty after a success."""
    thread = threading.Thread(target=attempts.run, name="reconciliation webhook", daemon=True)
    thread.start()
    thread.join(ALL_S)
    return f"no response within {ALL_S:g} s" if thread.is_alive() else attempts.problem


def _run(notice: Notice) -> dict[str, object]:
    return {
        "configuration": notice.configuration,
        "run_id": notice.run_id,
        "outcome": notice.outcome.name,
    }


@dataclass(kw_only=True, slots=True)
class _Attempts:
    """The attempts to post one notice."""

    webhook: Webhook
    content: bytes
    problem: str = "no attempt was made"
    """Why the last attempt failed, without URL and token; empty after a success."""

    def run(self) -> None:
        for pause in (*PAUSES_S, None):
            may_retry = self._try()
            if not self.problem or not may_retry or pause is None:
                return
            time.sleep(pause)

    def _try(self) -> bool:
        """Post once, and note the problem; return whether another attempt may succeed."""
        try:
            with _opener().open(_request(self.webhook, self.content), timeout=ATTEMPT_S):
                self.problem = ""
                return False
        except HTTPError as error:
            error.close()
            self.problem = f"HTTP status {error.code}"
            return error.code in _TRIED_AGAIN or error.code >= HTTPStatus.INTERNAL_SERVER_ERROR
        except URLError as error:
            self.problem = _reason(error.reason)
        except OSError as error:
            self.problem = _reason(error)
        except Exception as error:  # noqa: BLE001  the texts of other errors may repeat the URL
            self.problem = type(error).__name__
        return True


def _reason(reason: str | BaseException) -> str:
    """Return the reason of a network error: it names at most the host."""
    if isinstance(reason, OSError):
        return f"{type(reason).__name__}: {reason.strerror or reason}"
    return type(reason).__name__ if isinstance(reason, BaseException) else "the request failed"


def _request(webhook: Webhook, content: bytes) -> Request:
    headers = {"Content-Type": "application/json", "User-Agent": "shieldtx"}
    if webhook.token is not None:
        headers["Authorization"] = f"Bearer {webhook.token}"
    return Request(webhook.url, data=content, headers=headers, method="POST")  # noqa: S310


def _opener() -> OpenerDirector:
    """Return a client for HTTP without redirects: one would send the token to another address."""
    opener = OpenerDirector()
    for handler in (
        ProxyHandler(),
        HTTPHandler(),
        HTTPSHandler(),
        HTTPDefaultErrorHandler(),
        HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _is_plain(value: str) -> bool:
    return value.isascii() and value.isprintable() and " " not in value
