"""A consistent copy of a SQLite database, also while others write it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import TYPE_CHECKING

from hayate_matrix.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_PAGES_A_STEP = 2_000
"""Pages copied between two words of progress: 8 MB."""


def copy_database(source: Path, target: Path, *, report: Callable[[int, int], None] | None = None) -> None:
    """Write a copy of `source` as it is at one moment to `target` (0600), which must not exist.

    Args:
        source: a SQLite database; its owner may go on writing.
        target: where the copy goes.
        report: told (pages done, pages in all) now and then.

    Raises:
        StoreError: the source can't be read; `target` is not left half written.
    """
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with (
            contextlib.closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as reader,
            contextlib.closing(sqlite3.connect(target)) as writer,
        ):
            reader.backup(
                writer,
                pages=_PAGES_A_STEP,
                progress=lambda _status, left, total: report(total - left, total) if report is not None else None,
            )
            # The copy is one file: no write-ahead log beside it.
            writer.execute("pragma journal_mode = delete")
            _check(writer, source)
    except (sqlite3.Error, OSError) as error:
        target.unlink(missing_ok=True)
        raise StoreError(
            f"{source} can't be copied: {error}.", remedy="See to the disk and the permissions; nothing was changed."
        ) from error
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _check(copy: sqlite3.Connection, source: Path) -> None:
    if copy.execute("pragma quick_check(1)").fetchone()[0] != "ok":
        raise StoreError(f"{source} is damaged, so no backup was made of it.", remedy="Restore an older backup.")
