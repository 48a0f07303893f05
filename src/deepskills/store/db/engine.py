"""Connections to the database: engines, event loops, notices of changes, and what failures mean.

Engines get timeouts, and are protected against use by a second event loop: database drivers tie a connection to the
event loop that opened it, and using it from another one hangs or crashes the driver. Here it raises an error that says
what to do.
"""

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self, TypeAlias

from sqlalchemy import URL, AsyncAdaptedQueuePool, Engine, NullPool, Pool, StaticPool, event, make_url
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection
from sqlalchemy.util import await_only
from sqlalchemy.util.queue import Empty

from deepskills._errors import SkillsError
from deepskills._io.bridge import bridge
from deepskills._skillmd.text import one_line
from deepskills.store.errors import SkillStoreUnavailableError

CONNECT_SECONDS = 5.0
"""How long opening a connection may take."""

STATEMENT_SECONDS = 15.0
"""How long a statement may take, and how long a writer to SQLite waits for other writers."""

POOL_SECONDS = 10.0
"""How long a session waits for a free connection."""

POOL_SIZE = 15
"""How many connections to PostgreSQL an engine keeps: a new one costs more than most requests."""

MAX_OVERFLOW = 0
"""How many more it opens for a moment. None: under load each request would open one, and close it again."""

IDLE_SECONDS = 60.0
"""How long a transaction may stay idle before PostgreSQL ends it, so that a dead client holds no lock."""

_GRACE_SECONDS = 2.0
"""How much longer the client waits than the server, because the server's message is better."""

_POLL_SECONDS = 0.002

SessionFactory: TypeAlias = Callable[[], AsyncSession]
"""Opens a session, as SQLAlchemy's `async_sessionmaker` does."""

_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}

_is_patient: ContextVar[bool] = ContextVar("deepskills_patient", default=False)
"""Whether connections opened now have no time limits, as migrations need."""

OTHER_LOOP = (
    "This engine serves another event loop, and database connections cannot move between event loops. "
    "Create one engine for each event loop, dispose of an engine before its event loop ends, "
    "or pass `poolclass=NullPool` to `create_store_engine`."
)


class OneLoopPool(AsyncAdaptedQueuePool):
    """A pool for the event loop that used it first; any other gets an error before it touches a connection."""

    _loop: "weakref.ref[asyncio.AbstractEventLoop] | None" = None

    def connect(self) -> PoolProxiedConnection:
        """Return a connection of the pool.

        Raises:
            SkillsError: If another event loop uses the pool.
        """
        running = asyncio.get_running_loop()
        # Weakly: an ended event loop must not be kept alive, and a dead reference counts as another loop.
        if self._loop is None:
            self._loop = weakref.ref(running)
        if self._loop() is not running:
            raise SkillsError(OTHER_LOOP)
        return super().connect()


_loops: "weakref.WeakKeyDictionary[Pool, weakref.ref[asyncio.AbstractEventLoop]]" = weakref.WeakKeyDictionary()
"""The event loop that used an application's own pool first."""

_loops_lock = threading.Lock()


def check_loop(engine: Engine) -> None:
    """Check that an engine which the application created serves only the running event loop.

    SQLite's driver works on any event loop, and a disposed engine has a new pool, which may serve another one.

    Raises:
        SkillsError: If another event loop uses it.
    """
    if engine.dialect.name == "sqlite" or may_be_shared(engine):
        return
    running = asyncio.get_running_loop()
    with _loops_lock:
        first = _loops.setdefault(engine.pool, weakref.ref(running))
    if first() is not running:
        raise SkillsError(OTHER_LOOP)


class OneConnectionPool(AsyncAdaptedQueuePool):
    """The pool of an in-memory database: one connection, which sessions of any event loop use in turn."""

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - SQLAlchemy's
        super().__init__(*arguments, **{**options, "pool_size": 1, "max_overflow": 0})
        self._turn = threading.Lock()

    def _do_get(self) -> ConnectionPoolEntry:
        deadline = time.monotonic() + self._timeout
        while time.monotonic() < deadline:
            # Waiting on a queue would be bound to one event loop; polling is not.
            with self._turn:
                try:
                    return self._pool.get(block=False)
                except Empty:
                    is_first = self._inc_overflow()
            if is_first:
                return self._first_connection()
            await_only(asyncio.sleep(_POLL_SECONDS))
        raise PoolTimeoutError(f"The in-memory database has one connection, which was in use for {self._timeout} s.")

    def _first_connection(self) -> ConnectionPoolEntry:
        try:
            return self._create_connection()
        except BaseException:
            self._dec_overflow()
            raise

    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        with self._turn:
            super()._do_return_conn(record)


def create_store_engine(
    url: str,
    *,
    connect_timeout: float = CONNECT_SECONDS,
    statement_timeout: float | None = STATEMENT_SECONDS,
    **options: Any,  # noqa: ANN401 - SQLAlchemy's options
) -> AsyncEngine:
    """Return an async engine for a database URL; `sqlite:` and `postgresql:` get their async drivers.

    On SQLite, foreign keys are enforced, readers do not wait for writers, and writers wait for each other. An in-memory
    database has a single connection, which sessions wait for: close one before the same task opens another.

    Args:
        url: Where the database is, such as `sqlite:///skills.db` or `postgresql://user:secret@host/name`.
        connect_timeout: Seconds that opening a connection to PostgreSQL may take.
        statement_timeout: Seconds that a statement may take on PostgreSQL, and that a writer to SQLite waits for the
            others. `None` for no limit, as PgBouncer needs.
        options: Passed on to SQLAlchemy's `create_async_engine`.

    Raises:
        SkillsError: If it is another kind of database.
    """
    target = make_url(url)
    # A URL that names a driver keeps it.
    target = target.set(drivername=_DRIVERS.get(target.drivername, target.drivername))
    if target.get_backend_name() not in ("sqlite", "postgresql"):
        raise SkillsError(
            f"The skill store runs on SQLite and PostgreSQL, not on {target.get_backend_name()}. "
            "Use a URL such as `sqlite:///skills.db` or `postgresql://user:secret@host/name`."
        )
    # Database errors are logged, and the values of a statement are people's private texts.
    options = {"hide_parameters": True, **options}
    has_pool = bool({"pool", "poolclass"} & options.keys())
    if target.get_backend_name() == "sqlite":
        return _sqlite_engine(target, statement_timeout, options, has_pool=has_pool)
    if target.drivername == "postgresql+asyncpg":
        options["connect_args"] = _postgres_arguments(connect_timeout, statement_timeout, options)
    if not has_pool:
        kept = {"pool_size": POOL_SIZE, "max_overflow": MAX_OVERFLOW, "pool_use_lifo": True}
        options = {"poolclass": OneLoopPool, "pool_timeout": POOL_SECONDS, **kept, **options}
    engine = create_async_engine(target, **options)
    event.listen(engine.sync_engine, "do_connect", _allow_time)
    return engine


def _sqlite_engine(
    target: URL, statement_timeout: float | None, options: dict[str, Any], *, has_pool: bool
) -> AsyncEngine:
    wait = statement_timeout if statement_timeout is not None else 365 * 24 * 3600.0
    options["connect_args"] = {"timeout": wait, **options.get("connect_args", {})}
    if not has_pool:
        pool = OneConnectionPool if _is_in_memory(target) else OneLoopPool
        # If all sessions shared one connection at once, one would commit or roll back the work of another.
        options = {"poolclass": pool, "pool_timeout": max(wait, POOL_SECONDS), **options}
    engine = create_async_engine(target, **options)
    event.listen(engine.sync_engine, "connect", _set_up_sqlite)
    return engine


def _postgres_arguments(connect: float, statement: float | None, options: dict[str, Any]) -> dict[str, Any]:
    given = options.get("connect_args", {})
    settings = {"application_name": "deepskills"}
    arguments: dict[str, Any] = {"timeout": connect}
    if statement is not None:
        # The server's own limit comes first, because its message is better; the client's is for a dead server.
        arguments["command_timeout"] = statement + _GRACE_SECONDS
        settings["statement_timeout"] = str(round(statement * 1000))
        settings["idle_in_transaction_session_timeout"] = str(round(IDLE_SECONDS * 1000))
    return {**arguments, **given, "server_settings": {**settings, **given.get("server_settings", {})}}


def _allow_time(_dialect: Any, _record: Any, _arguments: Any, options: dict[str, Any]) -> None:  # noqa: ANN401 - SQLAlchemy's
    """Lift the limits on statements for connections that migrate."""
    if _is_patient.get():
        options["command_timeout"] = None
        settings = options.get("server_settings", {})
        options["server_settings"] = {name: value for name, value in settings.items() if not name.endswith("_timeout")}


def may_be_shared(engine: Engine) -> bool:
    """Whether several event loops may use an engine: it keeps no connections, or has one that they use in turn."""
    return isinstance(engine.pool, NullPool | OneConnectionPool | StaticPool)


@contextmanager
def patient_twin(engine: AsyncEngine) -> Iterator[AsyncEngine]:
    """Give an engine on the same database without time limits and without a pool."""
    sync = engine.sync_engine
    token = _is_patient.set(True)
    try:
        if sync.dialect.name == "sqlite" and _is_in_memory(sync.url):
            yield engine
        else:
            # No pool: connections without limits must end with the migration.
            pool = NullPool(sync.pool._creator, dialect=sync.dialect, _dispatch=sync.pool.dispatch)  # noqa: SLF001 - as `recreate` does
            yield AsyncEngine(Engine(pool, sync.dialect, sync.url))
    finally:
        _is_patient.reset(token)


def _is_in_memory(url: URL) -> bool:
    return not url.database or ":memory:" in url.database or url.query.get("mode") == "memory"


def _set_up_sqlite(connection: Any, _record: Any) -> None:  # noqa: ANN401 - a driver's connection
    cursor = connection.cursor()
    # Off by default, and set per connection.
    cursor.execute("PRAGMA foreign_keys=ON")
    # In the older journal mode a writer would wait for every reader, and snapshots could not last.
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.close()


TABLES_MISSING = "the tables of the skill store are missing or old: run `migrations.upgrade` on the database first"
"""What to do if the tables do not exist."""

_MAX_REASON = 200
_UNDEFINED = frozenset({"42P01", "42703"})
"""PostgreSQL's codes for a missing table and a missing column."""
_UNDEFINED_WORDS = ("no such table", "no such column", "has no column")


def unavailable(error: BaseException) -> SkillStoreUnavailableError | None:
    """Return the error to raise if the database is unavailable; `None` for an error of another kind.

    Drivers raise various exceptions while they connect, so these count too. A value that the database rejects does not.
    """
    if isinstance(error, SkillStoreUnavailableError):
        return error
    if isinstance(error, IntegrityError | DataError):
        return None
    # By module name, because a driver that is not installed cannot be imported.
    from_driver = type(error).__module__.partition(".")[0] in {"asyncpg", "aiosqlite", "sqlite3"}
    if not from_driver and not isinstance(error, DBAPIError | PoolTimeoutError | OSError):
        return None
    if are_tables_missing(error):
        return SkillStoreUnavailableError(TABLES_MISSING)
    return SkillStoreUnavailableError(f"the skill database did not answer ({_reason(error)})")


def are_tables_missing(error: BaseException) -> bool:
    """Whether the database says that a table or column of the store is missing."""
    origin = _origin(error)
    text = str(origin).lower()
    is_undefined = getattr(origin, "sqlstate", None) in _UNDEFINED or any(words in text for words in _UNDEFINED_WORDS)
    return is_undefined and "deepskills_" in text


def _origin(error: BaseException) -> BaseException:
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


def _reason(error: BaseException) -> str:
    """Return the reason, without the statement and the values that SQLAlchemy adds."""
    origin = _origin(error)
    lines = str(origin).splitlines()
    return one_line(f"{type(origin).__name__}: {lines[0] if lines else ''}")[:_MAX_REASON]


# -- Sync callers ------------------------------------------------------------------------------------------------------
#
# Sync callers do their database work on the bridge's loop.
#
# Database drivers tie a connection to the event loop that opened it. With a loop that lives as long as the process,
# pooled connections stay usable from one sync call to the next.


class BridgedEngines:
    """Twins of the caller's engines, for sessions that are opened on the bridge's loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = 0
        self._engines: weakref.WeakKeyDictionary[Engine, AsyncEngine] = weakref.WeakKeyDictionary()
        self._of_parents: list[object] = []

    def adopt(self, session: AsyncSession) -> None:
        """Let a session that was opened on the bridge's loop use only connections of that loop.

        The session's own engine keeps serving its own event loop; a second engine, on the same database and with a pool
        of the same size, serves the bridge's loop and is disposed of with the first.
        """
        bind = session.sync_session.bind
        # A pool that keeps no connections, or lends its only one in turn, works on any loop.
        if bridge.is_current and isinstance(bind, Engine) and not may_be_shared(bind):
            session.sync_session.bind = self._twin(bind).sync_engine

    def _twin(self, engine: Engine) -> AsyncEngine:
        with self._lock:
            if self._process != os.getpid():
                self._process = os.getpid()
                # The parent process still uses its connections; closing them here would end them there.
                self._of_parents.append(self._engines)
                self._engines = weakref.WeakKeyDictionary()
            twin = self._engines.get(engine)
            if twin is None:
                twin = AsyncEngine(Engine(engine.pool.recreate(), engine.dialect, engine.url))
                self._engines[engine] = twin
                event.listen(engine, "engine_disposed", self._dispose_twin)
            return twin

    def _dispose_twin(self, engine: Engine) -> None:
        with self._lock:
            twin = self._engines.pop(engine, None)
        if twin is not None:
            bridge.run_anywhere(twin.dispose)


bridged_engines = BridgedEngines()
"""Those of the process."""


# -- Notices -----------------------------------------------------------------------------------------------------------
#
# Waits for changes: PostgreSQL notifies when a writer commits; SQLite is polled.

CHANNEL = "deepskills_changes"
"""The channel that writers notify on PostgreSQL."""

QUIET_SECONDS = 30.0
"""How often PostgreSQL is polled even without a notification: a connection may have died unnoticed."""


class Listener:
    """One connection that hears of changes for all who wait on an event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = asyncio.Lock()
        self._events: set[asyncio.Event] = set()
        self._connection: AsyncConnection | None = None
        self._driver: Any = None

    @property
    def is_alive(self) -> bool:
        """Whether it hears; a lost connection is not an error, from then on the store is polled."""
        return self._driver is not None and not self._driver.is_closed()

    async def join(self, event: asyncio.Event) -> None:
        """Set an event at each change from now on."""
        async with self._lock:
            self._events.add(event)
            if self._connection is None:
                # Its own connection: one from the pool would lose its listener when it is returned.
                self._connection = await AsyncEngine(self._engine).connect()
                self._driver = (await self._connection.get_raw_connection()).driver_connection
                await self._driver.add_listener(CHANNEL, self._hear)

    async def leave(self, event: asyncio.Event) -> None:
        """Set the event no more; the last one to leave closes the connection."""
        async with self._lock:
            self._events.discard(event)
            if self._events or self._connection is None:
                return
            connection, self._connection = self._connection, None
            if self.is_alive:
                await self._driver.remove_listener(CHANNEL, self._hear)
            await connection.close()

    def _hear(self, *_what: object) -> None:
        for waiting in self._events:
            waiting.set()


_listeners: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Engine, Listener]]" = weakref.WeakKeyDictionary()


class Notices:
    """Waits for changes to a store, as an async context manager."""

    def __init__(self, session: AsyncSession, interval: float) -> None:
        engine = session.get_bind().engine
        self._interval = interval
        self._heard = asyncio.Event()
        self._listener: Listener | None = None
        if engine.dialect.name == "postgresql" and engine.dialect.driver == "asyncpg":
            known = _listeners.setdefault(asyncio.get_running_loop(), {})
            self._listener = known.setdefault(engine, Listener(engine))

    async def __aenter__(self) -> Self:
        if self._listener is not None:
            await self._listener.join(self._heard)
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._listener is not None:
            await self._listener.leave(self._heard)

    async def wait(self) -> None:
        """Wait until something may have changed."""
        is_told = self._listener is not None and self._listener.is_alive
        try:
            await asyncio.wait_for(self._heard.wait(), QUIET_SECONDS if is_told else self._interval)
        except TimeoutError:
            return
        finally:
            self._heard.clear()
