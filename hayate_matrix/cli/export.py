"""`hayate-matrix export`: sessions, their entries and the index of hashtags as JSON Lines (SES-4)."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hayate_matrix import __version__
from hayate_matrix.cli.options import Config, Home, Set, read_settings, require_stored
from hayate_matrix.cli.progress import Progress
from hayate_matrix.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

_FORMAT = 1


def export(
    room: Annotated[str | None, typer.Option(metavar="ROOM", help="The id of one room, e.g. '!abc:example.org'; else all.")] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Where it goes (0600); it must not exist. Else printed.")] = None,
    home: Home = None,
    config: Config = None,
    sets: Set = None,
) -> None:
    """Write sessions, their entries and the index of hashtags as JSON Lines, also while the bot runs.

    The texts are readable in it, unlike in a backup: keep it as safe as the rooms. Nothing is removed, and no key or token is in it.

    Examples:

        hayate-matrix export --output sessions.jsonl

        hayate-matrix export --room '!abc:example.org'
    """
    loaded = read_settings(home, config, sets)
    require_stored(loaded)
    from hayate_matrix.store.database.look import look_into
    from hayate_matrix.store.export import Export
    from hayate_matrix.store.sealing import Sealer, load_key

    sealer = Sealer(load_key(loaded.home / "secrets", loaded.settings.store.key_file, may_make=False))
    with look_into(loaded.settings.store.url or loaded.home / "hayate.db") as connection, _open(output) as lines:
        records = Export(connection, sealer, room_id=room)
        progress = Progress("exporting")
        try:
            _write(lines, {"type": "export", "format": _FORMAT, "program": __version__, "made_at": _now()})
            for done, record in enumerate(records, 1):
                _write(lines, record)
                progress(done, records.total)
            lines.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read it has enough: what is left has nowhere to go
            raise typer.Exit(1) from None
    if output is not None:
        print(f"Wrote {records.total + 1} lines to {output} ({output.stat().st_size / 1e6:.1f} MB). The texts in it are readable.")
    if records.damaged:
        are = "text is" if records.damaged == 1 else "texts are"
        print(f"{records.damaged} {are} damaged and left out; the log names each row.", file=sys.stderr)


@contextlib.contextmanager
def _open(output: Path | None) -> Iterator[BinaryIO]:
    """Lend the file, which is there once it is whole, or standard output."""
    if output is None:
        yield sys.stdout.buffer
        return
    if output.exists():
        raise StoreError(f"{output} exists.", remedy="Name another file; exports are never written over.")
    draft = output.with_name(f".{output.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.rename(output)
    except OSError as error:
        raise StoreError(f"{output} can't be written: {error.strerror}.", remedy="See to the disk, or name another file.") from error
    finally:
        draft.unlink(missing_ok=True)


def _write(lines: BinaryIO, record: dict[str, Any]) -> None:
    line = json.dumps(record, ensure_ascii=False)
    lines.write(line.encode("utf-8", "replace") + b"\n")  # half a character that a model said has no bytes


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
