"""Rooms as the bot knows them (`projection`), and how it comes into them and out of them (`membership`)."""

from hayate_matrix.matrix.rooms.projection import STATE_TYPES, Rooms, Rotation, read_event_id

__all__ = ["STATE_TYPES", "Rooms", "Rotation", "read_event_id"]
