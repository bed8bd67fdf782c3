"""A PostgreSQL server of the tests' own: Debian's program, a throw-away folder, a Unix socket, no port."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.support.missing import stop_without

if TYPE_CHECKING:
    from collections.abc import Iterator

HOW_TO_GET_IT = "PostgreSQL 15 or later is not installed: apt-get install postgresql (Debian), its server need not run"
_USER = "postgres"
_DEADLINE_S = 60.0


def find_binaries() -> Path | None:
    """Return the folder of the newest server that is installed, or None."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if found and int(found[-1].parts[-3]) >= 15:
        return found[-1].parent
    program = shutil.which("postgres")
    return Path(program).parent if program else None


class Postgres:
    """A running server; `make_database` gives the address of a fresh, empty database."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count(1)

    def make_database(self) -> str:
        name = f"test{next(self._numbers)}"
        with self.connect("postgres") as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.get_url(name)

    def get_url(self, name: str) -> str:
        return f"postgresql://{_USER}@/{name}?host={self._folder}"

    def connect(self, name: str) -> psycopg.Connection:
        return psycopg.connect(dbname=name, user=_USER, host=str(self._folder), autocommit=True)


@contextlib.contextmanager
def run_postgres(*, is_durable: bool = False) -> Iterator[Postgres]:
    """Start a server and end it again; the server refuses root, so root starts it as the user of Debian's package.

    Unless `is_durable` it never waits for the disk: the tests show what the program does, not what this disk does.
    """
    binaries = find_binaries()
    if binaries is None:
        raise RuntimeError(HOW_TO_GET_IT)
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    as_user: list[str] = []
    if os.geteuid() == 0:
        shutil.chown(folder, _USER, _USER)
        as_user = ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups"]
    folder.chmod(0o755)
    log = folder / "log"
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    try:
        subprocess.run(
            [*as_user, binaries / "initdb", "-D", folder / "data", "-U", _USER, "-A", "trust", "-E", "UTF8", "--no-sync"],
            check=True,
            capture_output=True,
            cwd=folder,
            env=environment,
            timeout=_DEADLINE_S,
        )
        fsync = "fsync=on" if is_durable else "fsync=off"
        command = [str(binaries / "postgres"), "-D", str(folder / "data"), "-k", str(folder), "-c", "listen_addresses=", "-c", fsync]
        with log.open("wb") as output:
            server = subprocess.Popen([*as_user, *command], stdout=output, stderr=output, cwd=folder, env=environment)
        try:
            running = Postgres(folder)
            deadline = time.monotonic() + _DEADLINE_S
            while True:
                try:
                    running.connect("postgres").close()
                    break
                except psycopg.OperationalError:
                    if server.poll() is not None or time.monotonic() > deadline:
                        raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text()}") from None
                    time.sleep(0.05)
            yield running
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(timeout=_DEADLINE_S)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server, shared by the session: each test makes a database of its own in it."""
    if find_binaries() is None:
        stop_without(HOW_TO_GET_IT)
    with run_postgres() as running:
        yield running
