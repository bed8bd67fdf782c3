"""The harness's database: one `transaction` call, on SQLite or PostgreSQL (STO-5).

Promise: what a transaction did is on disk when `transaction` returns, or nothing of it is. Two never run at once.
How: SQLAlchemy Core, synchronous, in one writer thread (`writer`), so nothing can be awaited while the write lock is held. SQLite runs in
     WAL with `synchronous = FULL` and `BEGIN IMMEDIATE`; readers have a connection and thread of their own. Migrations run whole, under a
     lock, before anything else (`opening`).
Not here: tables (`schema`), sealed texts (`sealing`), ownership of the home (`locks`).
"""

from hayate_matrix.store.database.opening import SCHEMA_REVISION, open_database, parse_url
from hayate_matrix.store.database.writer import Connection, Database

__all__ = ["SCHEMA_REVISION", "Connection", "Database", "open_database", "parse_url"]
