"""The harness's durable things, side by side, as its parts are handed them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hayate_matrix.store.inbox import Inbox
from hayate_matrix.store.outbox import Outbox
from hayate_matrix.store.sessions import Sessions
from hayate_matrix.store.tasks import Tasks

if TYPE_CHECKING:
    from hayate_matrix.store.database import Database
    from hayate_matrix.store.sealing import Sealer


class Stores:
    """One database and what is kept in it."""

    def __init__(self, database: Database, sealer: Sealer) -> None:
        self.database = database
        self.inbox = Inbox(sealer)
        self.sessions = Sessions(sealer)
        self.tasks = Tasks()
        self.outbox = Outbox(sealer)
