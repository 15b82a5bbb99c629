"""kafka-python's network client, repaired where it leaves sockets open or waits without an end.

The client leaves the socket of a connection that failed to the garbage collector, which may come
after minutes: as long as Kafka is unreachable, a process would lose a descriptor with each attempt.
And it waits without an end for a server that takes a connection and never answers the TLS handshake
(kafka-python 3.0.12).
"""

from __future__ import annotations

import ssl
from typing import Any, Final
from weakref import WeakSet

from kafka.errors import KafkaConnectionError
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket, create_connection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport

HANDSHAKE_FAILED: Final = "Handshake failed"
_SCHEME: Final = "shieldtx"


class Network(KafkaNetClient):
    """A network client that has no socket open once it is closed."""

    def __init__(self, **configs: Any) -> None:
        net = NetworkSelector(**configs)  # type: ignore[no-untyped-call]
        self._connections = _Connections(net, **configs)
        super().__init__(net, self._connections)  # type: ignore[no-untyped-call]
        # Its default is to have brokers create each topic that a client asks for, and the option
        # of that name of producers and consumers does not get here (kafka-python 3.0.12).
        self.cluster.config["allow_auto_create_topics"] = False

    @property
    def failure(self) -> Exception | None:
        """Why the last attempt to connect failed; None once one has succeeded."""
        return self._connections.failure

    def close(self, node_id: Any = None) -> None:
        """Close a connection, or all of them with what is not sent yet."""
        if node_id is None:
            self._connections.close()  # type: ignore[no-untyped-call]
            self._net.stop()
            self._connections.close_sockets()
        super().close(node_id)  # type: ignore[no-untyped-call]


class _Connections(KafkaConnectionManager):
    """Connects as the client does, and closes the socket of an attempt that fails."""

    def __init__(self, net: NetworkSelector, **configs: Any) -> None:
        # The client chooses by the scheme of a proxy what makes its sockets.
        super().__init__(net, **{**configs, "proxy_url": f"{_SCHEME}:"})  # type: ignore[no-untyped-call]
        self.failure: Exception | None = None
        self._transports: WeakSet[KafkaTCPTransport] = WeakSet()

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        try:
            transport = await self._connected(node, timeout_at)
        except Exception as error:
            self.failure = error.with_traceback(None)
            raise
        self.failure = None
        self._transports.add(transport)
        return transport

    async def _connected(self, node: Any, timeout_at: float | None) -> KafkaTCPTransport:
        config = self.config
        connecting = create_connection(  # type: ignore[no-untyped-call]
            self._net,
            node.host,
            node.port,
            config["socket_options"],
            proxy_url=config["proxy_url"],
            timeout_at=timeout_at,
        )
        opened: Any = await connecting
        try:
            if self.ssl_enabled:
                options = {name: config[name] for name in config if name.startswith("ssl_")}
                opened = _TLSTransport(self._net, opened, host=node.host, **options)  # type: ignore[no-untyped-call]
                opened.timeout_at = timeout_at
            else:
                opened = KafkaTCPTransport(self._net, opened, host=node.host)  # type: ignore[no-untyped-call]
            await opened.handshake()
        except BaseException as error:
            opened.close()
            if isinstance(error, Exception):
                raise KafkaConnectionError(f"{HANDSHAKE_FAILED}: {error}") from error
            raise
        made: KafkaTCPTransport = opened
        return made

    def close_sockets(self) -> None:
        """Close what is open: a connection with bytes to send waits until they are sent."""
        for transport in list(self._transports):
            transport._close()  # type: ignore[no-untyped-call]  # noqa: SLF001


class _TLSTransport(KafkaSSLTransport):
    """A connection that waits for the other side's part in TLS only until a time."""

    timeout_at: float | None = None
    """By time.monotonic(); None for no limit."""

    async def handshake(self) -> None:
        """Agree on TLS; raises KafkaTimeoutError, or OSError (SSLError) for a refusal."""
        while True:
            try:
                self._sock.do_handshake()
            except ssl.SSLWantReadError:
                ready = self._net.wait_read(self._sock, timeout_at=self.timeout_at)
            except ssl.SSLWantWriteError:
                ready = self._net.wait_write(self._sock, timeout_at=self.timeout_at)
            else:
                return
            await ready


class _Sockets(KafkaNetSocket):
    """Makes sockets, and closes one that does not get connected."""

    SCHEMES = (_SCHEME,)

    async def sock_connect(
        self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None
    ) -> Any:
        connecting = super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)  # type: ignore[no-untyped-call]
        try:
            return await connecting
        except BaseException:
            sock.close()
            raise
