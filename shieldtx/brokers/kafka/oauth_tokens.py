"""Tokens for OAUTHBEARER: of the application, or of an OpenID Connect provider."""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from kafka.errors import KafkaConnectionError
from kafka.net.sasl.oauth import AbstractTokenProvider

from shieldtx.brokers.kafka.client_logging import hide, show_again

TokenSource: TypeAlias = Callable[[], tuple[str, float]]
"""Returns a token, and the Unix time in seconds at which it expires."""

_TIMEOUT_S: Final = 5.0
_ANSWER_BYTES: Final = 1_000_000
_MARGIN_S: Final = 30.0
"""A token that expires earlier is replaced: a connection must be able to use it."""


class Tokens(AbstractTokenProvider):
    """Keeps the token of a source until it expires, for all connections of a client."""

    def __init__(self, source: TokenSource) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._source = source
        self._lock = threading.Lock()
        self._kept: tuple[str, float] | None = None

    def current(self) -> tuple[str, float]:
        """Return a token and its expiry; raises KafkaConnectionError if the source raises."""
        with self._lock:
            if self._kept is None or self._kept[1] - time.time() < _MARGIN_S:
                try:
                    token, expires_at = self._source()
                    fresh = str(token), float(expires_at)
                except Exception as error:
                    raise KafkaConnectionError(f"no token for OAUTHBEARER: {error}") from error
                if self._kept is not None:
                    show_again(self._kept[0])
                hide(fresh[0])
                self._kept = fresh
            return self._kept

    def token(self) -> str:
        """Return a token, for kafka-python."""
        return self.current()[0]

    def for_librdkafka(self, _: str) -> tuple[str, float]:
        """Return a token and its expiry, for librdkafka."""
        return self.current()


def client_credentials(
    *, url: str, client_id: str, client_secret: str, scope: str | None
) -> TokenSource:
    """Return a source that gets tokens by client credentials (RFC 6749, section 4.4)."""
    form = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})
    # Section 2.3.1: both parts are form-encoded first.
    account = ":".join(urllib.parse.quote_plus(part) for part in (client_id, client_secret))
    headers = {"Authorization": f"Basic {base64.b64encode(account.encode()).decode()}"}

    def fetch() -> tuple[str, float]:
        data = urllib.parse.urlencode(form).encode()
        request = urllib.request.Request(url, data=data, headers=headers)  # noqa: S310  checked in KafkaConnection
        began = time.time()
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310  as above
                answer: Any = json.loads(response.read(_ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{url} responded with status {error.code}") from error
        try:
            return answer["access_token"], began + float(answer["expires_in"])
        except (KeyError, TypeError, ValueError):
            raise RuntimeError(
                f"the response of {url} has no access_token with expires_in"
            ) from None

    return fetch
