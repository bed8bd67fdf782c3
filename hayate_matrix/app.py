"""The only place where parts meet: builds them, starts them, stops them in reverse.

Promise: the home has one owner at a time; what stops the bot is one sentence with an exit code; SIGTERM and Ctrl-C end in order.
How: settings → home lock → harness's database → key store → edge → harness; a fault in one ends all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from hayate_matrix import log
from hayate_matrix.core.allowlist import describe_rooms
from hayate_matrix.core.status import FILE_NAME as STATUS_FILE
from hayate_matrix.core.status import Status, Trouble, dump_status
from hayate_matrix.errors import AccountError, HayateError, StoreError
from hayate_matrix.harness.harness import Harness
from hayate_matrix.harness.rules import Limits, Rules, Senses
from hayate_matrix.matrix.account import Account, load_credentials
from hayate_matrix.matrix.client import Edge, EdgeOptions
from hayate_matrix.matrix.http import Http
from hayate_matrix.matrix.keystore import KeyStore
from hayate_matrix.runtime.scripted import ScriptedRuntime
from hayate_matrix.settings.restored import check_restored
from hayate_matrix.settings.sources import read_secret
from hayate_matrix.store.database import open_database
from hayate_matrix.store.database.locks import Ownership, own
from hayate_matrix.store.sealing import Sealer, load_key

if TYPE_CHECKING:
    from pathlib import Path

    from hayate_matrix.core.clock import Clock
    from hayate_matrix.matrix.account import Credentials
    from hayate_matrix.settings.model import Limits as LimitSettings
    from hayate_matrix.settings.model import Settings
    from hayate_matrix.settings.sources import Loaded
    from hayate_matrix.store.database import Database

_log = log.get_logger(__name__)

HOME_LOCK = "home.lock"
_STATUS_EVERY_S = 5.0
"""The status file is written this often; `doctor` takes one that is six times as old for a bot that hangs."""
_TURNS_SHARE = 2
_POSITION_SHARE = 4
"""Below `store.low_water_bytes` media is refused, below a half of it new turns; below a quarter nothing is taken from the server."""


class SystemClock:
    """The real clock."""

    def now(self) -> datetime:
        """Return the present as an aware UTC time."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds that never run backwards."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        await asyncio.sleep(seconds)


def _make_limits(settings: LimitSettings, whose: Literal["person", "room"]) -> Limits:
    return Limits(**{name: getattr(settings, f"{whose}_{name}") for name in ("queue", "requests_hour", "tokens_day", "money_day")})


def own_home(home: Path) -> Ownership:
    """Make the home where it is missing (0700) and own it.

    Raises:
        HomeBusyError: another process owns it.
        StoreError: it can't be made or written.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.chmod(0o700)
        (home / "secrets").mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"The home {home} can't be used: {error.strerror}.", remedy="Let the bot's user own it, or name another with --home."
        ) from error
    return own(home / HOME_LOCK, what=f"the home {home}")


def has_databases(home: Path) -> bool:
    """Whether something was stored in this home: a sealing key is made only where nothing was."""
    return any((home / name).exists() for name in ("matrix.db", "hayate.db"))


async def run(loaded: Loaded) -> None:
    """Run the bot until SIGTERM or SIGINT.

    Raises:
        StopError: it can't start, or can't go on; the text says what to do.
    """
    os.umask(0o077)
    settings = loaded.settings
    log.configure(settings.log.level, settings.log.format)
    check_restored(loaded)
    _load_credentials(loaded.home)  # before a home is made that nobody meant
    with own_home(loaded.home):
        await App(settings, loaded.home, SystemClock(), were_set=tuple(loaded.places)).run()


def _load_credentials(home: Path) -> Credentials:
    credentials = load_credentials(home / "secrets")
    if credentials is None:
        remedy = "Run: hayate-matrix login --homeserver URL --user @bot:example.org, or name another home: --home DIR"
        raise AccountError(f"Nobody has logged in to the home {home}.", remedy=remedy)
    return credentials


class App:
    """One bot: its parts and their order."""

    def __init__(self, settings: Settings, home: Path, clock: Clock, *, were_set: tuple[str, ...] = ()) -> None:
        self._settings = settings
        self._were_set = were_set
        self._home = home
        self._clock = clock
        self._started_at = clock.now()
        self._ended_by: Trouble | None = None
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End in order; `run` returns when it is done."""
        self._stopping.set()

    async def run(self) -> None:
        """Build, start, wait, stop."""
        matrix = self._settings.matrix
        credentials = _load_credentials(self._home)
        key = load_key(self._home / "secrets", self._settings.store.key_file, may_make=not has_databases(self._home))
        sealer = Sealer(key, is_on=self._settings.store.seal)
        database = open_database(self._settings.store.url or self._home / "hayate.db", key_id=sealer.key_id, clock=self._clock)
        http = Http(credentials.homeserver, self._clock)
        password = read_secret(matrix.password, matrix.password_file, name="matrix.password_file")
        account = Account(http, self._home / "secrets", credentials, read_password=lambda: password, device_name=matrix.device_name)
        options = EdgeOptions(
            policy=matrix.make_policy(credentials.user_id),
            devices=matrix.devices,
            is_encryption_on=matrix.encryption == "on",
            leave_denied=matrix.leave_denied,
            backfill_limit=matrix.backfill_limit,
            backlog_age_s=matrix.backlog_age_s,
            password=password,
        )
        keystore = KeyStore(self._home / "matrix.db", sealer, self._clock)
        edge = Edge(keystore, http, account, self._clock, options, may_take=lambda: not self._is_low(_POSITION_SHARE))
        _log.info("starting", user=credentials.user_id, homeserver=credentials.homeserver)
        try:
            await database.own_account(credentials.user_id)
            await edge.open()
            await self._serve(edge, database, sealer, http, options)
        finally:
            await edge.stop()
            database.close()

    async def _serve(self, edge: Edge, database: Database, sealer: Sealer, http: Http, options: EdgeOptions) -> None:
        matrix = self._settings.matrix
        rules = Rules(
            policy=options.policy,
            find_names=lambda: edge.display_names,
            parallel_turns=self._settings.harness.parallel_turns,
            turn_retries=self._settings.harness.turn_retries,
            trigger=matrix.trigger,
            room_triggers=matrix.room_triggers,
            loop_breaker=matrix.loop_breaker,
            typing=matrix.typing,
            receipts=matrix.receipts,
            ack=matrix.ack,
            idle_s=self._settings.sessions.idle_s,
            keep_days=self._settings.sessions.keep_days,
            command_power=self._settings.commands.power,
            person_limits=_make_limits(self._settings.limits, "person"),
            room_limits=_make_limits(self._settings.limits, "room"),
        )
        senses = Senses(
            is_disk_low=lambda: self._is_low(_TURNS_SHARE),
            is_served=edge.is_served,
            read_power=edge.read_power,
            find_reference=edge.find_reference,
        )
        harness = Harness(
            database, sealer, clock=self._clock, runtime=ScriptedRuntime(self._clock), gateway=edge.gateway, rules=rules, senses=senses
        )
        edge.set_on_reopened(harness.release)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        waits: list[asyncio.Task[None]] = []
        try:
            start = asyncio.create_task(edge.start(harness.sink), name="edge.start")
            waits = [
                asyncio.create_task(self._until_stopped(), name="stop"),
                asyncio.create_task(self._write_status(edge, http), name="status"),
                start,
            ]
            await asyncio.wait({start, waits[0]}, return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                start.result()
                await harness.start()
                _log.info("ready", user=options.policy.own_user_id)
                waits += [asyncio.create_task(edge.watch(), name="edge"), asyncio.create_task(harness.watch(), name="harness")]
                done, _ = await asyncio.wait(set(waits) - {start}, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        except Exception as error:
            code = error.code if isinstance(error, HayateError) else "fault"
            self._ended_by = Trouble(code=code, text=log.redact(str(error)), at=self._clock.now())
            raise
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            await harness.stop()
            with contextlib.suppress(OSError):
                await self._write_once(edge, http, is_stopped=True)

    async def _until_stopped(self) -> None:
        await self._stopping.wait()
        _log.info("stopping")

    async def _write_status(self, edge: Edge, http: Http) -> None:
        while True:
            try:
                await self._write_once(edge, http, is_stopped=False)
            except OSError as error:
                _log.warning("the status file can't be written", error=error.strerror)
            await self._clock.sleep(_STATUS_EVERY_S)

    async def _write_once(self, edge: Edge, http: Http, *, is_stopped: bool) -> None:
        counts = await edge.read_counts()
        health = http.health
        trouble = None
        if health.last_error_at is not None:
            trouble = Trouble(code=health.last_code, text=log.redact(health.last_error), at=health.last_error_at)
        status = Status(
            pid=os.getpid(),
            started_at=self._started_at,
            written_at=self._clock.now(),
            is_stopped=is_stopped,
            ended_by=self._ended_by,
            user_id=edge.user_id,
            device_id=edge.device_id,
            last_sync_at=edge.sync.last_applied_at,
            failures=health.failures,
            trouble=trouble,
            is_limited=http.was_limited,
            is_cross_signed=edge.is_cross_signed,
            allowlist=describe_rooms(self._settings.matrix.rooms),
            rooms=None if self._settings.matrix.rooms is None else list(self._settings.matrix.rooms),
            settings=sorted(self._were_set),
            aliases=await edge.list_alias_troubles(),
            unsigned_senders=await edge.list_unsigned_senders(),
            rooms_served=counts.pop("rooms.served", 0),
            rooms_denied=counts.pop("rooms.denied", 0),
            counts=counts,
        )
        draft = self._home / f".{STATUS_FILE}"
        await asyncio.to_thread(draft.write_text, dump_status(status), "utf-8")
        draft.replace(self._home / STATUS_FILE)

    def _is_low(self, share: int) -> bool:
        return shutil.disk_usage(self._home).free < self._settings.store.low_water_bytes // share
