"""Waits for changes: PostgreSQL notifies when a writer commits; SQLite is polled."""

import asyncio
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

CHANNEL = "deepskills_changes"
"""The channel that writers notify on PostgreSQL."""

QUIET_SECONDS = 30.0
"""How often PostgreSQL is polled even without a notification: a connection may have died unnoticed."""


class Notices:
    """Waits for changes to a store, as an async context manager."""

    def __init__(self, session: AsyncSession, interval: float) -> None:
        bind = session.get_bind()
        self._engine: Engine = bind.engine
        self._interval = interval
        self._heard = asyncio.Event()
        self._connection: AsyncConnection | None = None
        self._driver: Any = None

    async def __aenter__(self) -> Self:
        if self._engine.dialect.name == "postgresql" and self._engine.dialect.driver == "asyncpg":
            # Its own connection: one from the pool would lose its listener when it is returned.
            self._connection = await AsyncEngine(self._engine).connect()
            self._driver = (await self._connection.get_raw_connection()).driver_connection
            await self._driver.add_listener(CHANNEL, self._hear)
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            if not self._driver.is_closed():
                await self._driver.remove_listener(CHANNEL, self._hear)
            await self._connection.close()

    async def wait(self) -> None:
        """Wait until something may have changed."""
        # A lost connection is not an error: from then on the store is polled, as on SQLite.
        is_told = self._driver is not None and not self._driver.is_closed()
        try:
            await asyncio.wait_for(self._heard.wait(), QUIET_SECONDS if is_told else self._interval)
        except TimeoutError:
            return
        finally:
            self._heard.clear()

    def _hear(self, *_what: object) -> None:
        self._heard.set()
