"""The one connection of `matrix.db`, in the one thread of the edge: nio's keys and our rows, one transaction for both.

Promise: what a sync response brought (keys, rooms, facts, position) is on disk together or not at all.
How: `KeyStore.transaction` runs synchronous work in the edge's thread inside `BEGIN IMMEDIATE`; whoever keeps rows in memory is a cache
that `on_rollback` empties, so after a failure memory is what the disk says.
Not here: what the rows mean. This package is the only place beside `store` that speaks SQL.
"""

from __future__ import annotations

from hayate_matrix.matrix.keystore.connection import KeyStore

__all__ = ["KeyStore"]
