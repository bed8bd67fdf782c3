"""The store on both databases: what one test shows on SQLite it shows on PostgreSQL too."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from hayate_matrix.store.database import Database, open_database
from hayate_matrix.store.sealing import Sealer
from hayate_matrix.store.stores import Stores

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.postgres import Postgres


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'hayate.db'}"
    running: Postgres = request.getfixturevalue("postgres")
    return running.make_database()


@pytest.fixture
def sealer() -> Sealer:
    return Sealer(secrets.token_bytes(32))


@pytest.fixture
def database(url: str, sealer: Sealer) -> Iterator[Database]:
    opened = open_database(url, key_id=sealer.key_id)
    yield opened
    opened.close()


@pytest.fixture
def stores(database: Database, sealer: Sealer) -> Stores:
    return Stores(database, sealer)
