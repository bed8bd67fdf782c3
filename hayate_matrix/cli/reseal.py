"""`hayate-matrix reseal`: another sealing key (STO-8)."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from hayate_matrix.cli.options import Config, Home, Set, read_settings, require_stored
from hayate_matrix.cli.progress import patiently

if TYPE_CHECKING:
    from hayate_matrix.settings.sources import Loaded


def reseal(home: Home = None, config: Config = None, sets: Set = None) -> None:
    """Change the sealing key: every stored text and key is sealed anew. Stop the bot first.

    Cut off at any point, it goes on when it is run again; until then the bot does not start. Backups made before need the old key.

    Example:

        hayate-matrix reseal
    """
    loaded = read_settings(home, config, sets)
    require_stored(loaded)
    count, key_id = asyncio.run(_reseal(loaded))
    print(f"Sealed {count} texts and keys with the new key {key_id}. Keep a copy of it where the backups are not.")


async def _reseal(loaded: Loaded) -> tuple[int, str]:
    from hayate_matrix.app import own_home
    from hayate_matrix.matrix.keystore.resealing import reseal as reseal_keys
    from hayate_matrix.store.database import open_database
    from hayate_matrix.store.sealing import Sealer, find_key_place, find_next_key, promote_next_key, read_key
    from hayate_matrix.store.stores import reseal as reseal_harness

    path = find_key_place(loaded.home / "secrets", loaded.settings.store.key_file)
    with own_home(loaded.home):
        old = Sealer(read_key(path, may_make=False))
        # The next key is on disk before anything is sealed with it, and takes the old one's place when nothing needs that any more.
        new = Sealer(read_key(find_next_key(path), may_make=True), is_on=loaded.settings.store.seal)
        database = open_database(loaded.settings.store.url or loaded.home / "hayate.db")
        try:
            work = database.transaction("store.reseal", partial(reseal_harness, old=old, new=new))
            count = await patiently("the texts of sessions to be sealed", work)
        finally:
            database.close()
        if (loaded.home / "matrix.db").exists():
            keys = asyncio.to_thread(reseal_keys, loaded.home / "matrix.db", old, new)
            count += await patiently("the keys to be sealed", keys)
        promote_next_key(path)
    return count, new.key_id
