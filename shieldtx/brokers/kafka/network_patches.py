"""kafka-python's network client, repaired where it leaves sockets open or waits without limit.

The client leaves the socket of a failed connection to the garbage collector, which may run minutes
later: while Kafka is unreachable, a process would lose a descriptor with each attempt. The client
also waits without limit for a server that accepts a connection and never completes the TLS
handshake (kafka-python 3.0.12).
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
    """A network client that has no open socket after it is closed."""

    def __init__(self, **configs: Any) -> None:
        net = NetworkSelector(**configs)  # type: ignore[no-untyped-call]
        self._connections = _Connections(net, **configs)
        super().__init__(net, self._connections)  # type: ignore[no-untyped-call]
        # By default, brokers create each topic that a client asks for, and the option of that name
        # of producers and consumers has no effect here (kafka-python 3.0.12).
        self.cluster.config["allow_auto_create_topics"] = False

    @property
    def failure(self) -> Exception | None:
        """Error of the last attempt to connect; None after a success."""
        return self._connections.failure

    def close(self, node_id: Any = None) -> None:
        """Close a connection, or all connections with their unsent bytes."""
        if node_id is None:
            self._connections.close()  # type: ignore[no-untyped-call]
            self._net.stop()
            self._connections.close_sockets()
        super().close(node_id)  # type: ignore[no-untyped-call]


class _Connections(KafkaConnectionManager):
    """Connects as the client does, and closes the socket of a failed attempt."""

    def __init__(self, net: NetworkSelector, **configs: Any) -> None:
        # The client selects the factory of its sockets by the scheme of a proxy.
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
        """Close all open sockets; the client keeps a connection until its bytes are sent."""
        for transport in list(self._transports):
            transport._close()  # type: ignore[no-untyped-call]  # noqa: SLF001


class _TLSTransport(KafkaSSLTransport):
    """A connection that limits its wait for the other side of the TLS handshake."""

    timeout_at: float | None = None
    """By time.monotonic(); None for no limit."""

    async def handshake(self) -> None:
        """Do the TLS handshake; raises KafkaTimeoutError, or OSError (SSLError) for a refusal."""
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
    """Creates sockets, and closes a socket that cannot connect."""

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
