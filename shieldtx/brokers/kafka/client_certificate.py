"""The client's certificate and its private key, checked before a client needs them."""

from __future__ import annotations

import ssl


def problem_of(certificate: str, key: str | None, password: str | None) -> str | None:
    """Return why a certificate and its key, in files, cannot be used together; None if they can."""
    try:
        # An empty password, instead of none: OpenSSL would ask for one at the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, password or "")
    except (ssl.SSLError, OSError, ValueError) as error:
        return f"certificate and key do not fit, or the password of the key is wrong: {error}"
    return None
