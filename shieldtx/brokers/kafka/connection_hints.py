"""Hints for connection errors: the possible causes that the client's errors do not name."""

from __future__ import annotations

import errno
import os
from typing import Final

from kafka.errors import IllegalSaslStateError

from shieldtx.brokers.kafka.network_patches import HANDSHAKE_FAILED

PROTOCOL_SETTING: Final = "SHIELDTX_KAFKA_SECURITY_PROTOCOL"
NO_DESCRIPTOR: Final = (
    "this process or its host can open no more files: find what holds them with `lsof -p`, or "
    "raise the limit with `ulimit -n`"
)
NONE_LEFT: Final = (errno.EMFILE, errno.ENFILE)
_HUNG_UP: Final = ("disconnected", "EOF occurred", os.strerror(errno.ECONNRESET))
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "timed out")


def hint_of_descriptors(error: Exception) -> str:
    """Return the remedy when no file can be opened any more; "" for other errors."""
    return NO_DESCRIPTOR if _shows(error, *map(os.strerror, NONE_LEFT)) else ""


def hint_of_protocol(error: Exception, protocol: str) -> str:
    """Return which setting may not fit the port, by the error of an attempt to connect.

    Empty where the error is precise enough. The client's errors have no code for most causes, so
    the function searches their texts (kafka-python 3.0.12, OpenSSL 3, confluent-kafka 2.16).
    """
    if _shows(error, HANDSHAKE_FAILED):
        return "does this port speak TLS?" if _shows(error, *_HUNG_UP, *_NO_TLS) else ""
    if isinstance(error, IllegalSaslStateError):
        return f"this port asks for no account: check {PROTOCOL_SETTING}"
    if not _shows(error, *_HUNG_UP):
        return ""
    # The client may notice the closed connection before it reads the reason.
    if protocol.startswith("SASL"):
        return "a broker that refuses an account hangs up: check username and password"
    return f"a port that expects TLS or an account hangs up too: {PROTOCOL_SETTING}"


def _shows(error: Exception, *signs: str) -> bool:
    text = str(error)
    return any(sign in text for sign in signs)
