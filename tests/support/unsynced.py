"""A power cut for one bot: after a kill its home is put back to what had been synced, names and contents alike.

How: a library of our own (unsynced.c, compiled by the tests) is preloaded into the bot and copies what is synced when it is synced. A
name is there again only where its folder was synced after it was made, as POSIX says; SQLite's `-shm` files are rebuilt and never put back.
Not here: writes that reach the disk without having been synced, in whole or in part. Losing all of them is one of the ways it can go.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sqlite3
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_suffix(".c")
HOW_TO_GET_IT = "No C compiler, so nothing shows what is lost without fsync: apt-get install gcc libc6-dev (Debian)"


def find_compiler() -> str | None:
    """Return the C compiler, or None."""
    return shutil.which("cc") or shutil.which("gcc")


def compile_library(compiler: str, folder: Path) -> Path:
    """Compile the library into `folder` and return its path."""
    library = folder / "unsynced.so"
    command = [
        compiler,
        "-std=gnu11",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        "-o",
        str(library),
        str(SOURCE),
        "-ldl",
        "-pthread",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return library


@dataclass(frozen=True)
class Unsynced:
    """What a power cut would leave of `home`; `environment` makes a process keep it up to date."""

    library: Path
    home: Path
    kept: Path

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the process that works on the home."""
        return {"LD_PRELOAD": str(self.library), "UNSYNCED_HOME": str(self.home), "UNSYNCED_KEPT": str(self.kept)}

    def begin(self) -> None:
        """Take everything that is there now as synced."""
        shutil.rmtree(self.kept, ignore_errors=True)
        for name in ("data", "names"):
            (self.kept / name).mkdir(parents=True)
        keep = ctypes.CDLL(str(self.library)).unsynced_keep
        for path in (self.home, *self.home.rglob("*")):
            handle = os.open(path, os.O_RDONLY)
            keep(handle, os.fsencode(self.home), os.fsencode(self.kept))
            os.close(handle)
        (self.kept / "root").write_text(self._find_root())

    def cut_power(self) -> list[str]:
        """Put the home of a dead process back to what was synced, and return the names whose content or existence changed."""
        before = self._read()
        for path in self.home.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._restore((self.kept / "root").read_text(), self.home)
        after = self._read()
        self.begin()
        return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))

    def _find_root(self) -> str:
        listed = {line.partition(" ")[0] for path in (self.kept / "names").iterdir() for line in path.read_text().splitlines()}
        (root,) = {path.name for path in (self.kept / "names").iterdir()} - listed
        return root

    def _read(self) -> dict[str, bytes]:
        files = (path for path in self.home.rglob("*") if path.is_file() and not path.name.endswith("-shm"))
        return {str(path.relative_to(self.home)): path.read_bytes() for path in files}

    def _restore(self, key: str, folder: Path) -> None:
        names = self.kept / "names" / key
        for line in names.read_text().splitlines() if names.exists() else []:
            below, _, name = line.partition(" ")
            path = folder / name
            if below.startswith("d"):
                path.mkdir(mode=0o700)
                self._restore(below, path)
            elif not name.endswith("-shm"):
                data = self.kept / "data" / below
                path.touch(mode=0o600)
                path.write_bytes(data.read_bytes() if data.exists() else b"")


class _Careless(sqlite3.Connection):
    """A connection that never syncs, whatever it is told."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        super().execute("PRAGMA synchronous = OFF").close()

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        return super().execute(_drop_care(sql), *arguments)

    def cursor(self, *arguments: Any, **more: Any) -> Any:
        return super().cursor(_CarelessCursor)


class _CarelessCursor(sqlite3.Cursor):
    def execute(self, sql: str, *arguments: Any) -> Any:
        return super().execute(_drop_care(sql), *arguments)


def _drop_care(sql: str) -> str:
    return "PRAGMA synchronous = OFF" if sql.lower().startswith("pragma synchronous") else sql


def forget_to_sync() -> None:
    """Let every database of this process that is opened from now on commit without a sync."""
    connect = sqlite3.connect

    def connect_carelessly(*arguments: Any, **more: Any) -> sqlite3.Connection:
        return connect(*arguments, **{**more, "factory": _Careless})

    for module in (sqlite3, sqlite3.dbapi2):  # the second is where SQLAlchemy looks
        setattr(module, "connect", connect_carelessly)  # noqa: B010  an overloaded function takes no other one by assignment
