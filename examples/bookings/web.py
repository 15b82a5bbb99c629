"""What both web services share: a session for each request, and 503 while the outbox is full."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)

from shieldtx import BacklogExceeded, Settings, ShieldTx


def async_engine_of(settings: Settings) -> AsyncEngine:
    """Return an engine with asyncpg on the service's database."""
    return create_async_engine(settings.url.set(drivername="postgresql+asyncpg"))


def sessions(engine: AsyncEngine) -> Callable[[], AsyncIterator[AsyncSession]]:
    """Return a dependency that gives a request a session in a transaction.

    Depend on it with `scope="function"`: FastAPI then commits before it answers. By default it
    answers first, and a client would hear of a booking that a failing COMMIT takes back.
    """
    make_session = async_sessionmaker(engine, expire_on_commit=False)

    async def session() -> AsyncIterator[AsyncSession]:
        async with make_session.begin() as opened:
            yield opened

    return session


def web_service(shield: ShieldTx, engine: AsyncEngine) -> FastAPI:
    """Return the web application of a service, which closes its connections at the end."""
    api = FastAPI(lifespan=_closing(shield, engine))
    api.exception_handler(BacklogExceeded)(_busy)
    return api


def _closing(
    shield: ShieldTx, engine: AsyncEngine
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await engine.dispose()
        shield.close()

    return lifespan


async def _busy(_request: Request, error: Any) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, status_code=503, headers={"Retry-After": "1"})
