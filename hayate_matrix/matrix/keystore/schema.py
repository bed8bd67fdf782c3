"""The tables of `matrix.db` that are ours; nio makes its own beside them.

Texts that people wrote, and contents on their way out, are sealed blobs; ids, times and states are readable. `major` and `minor` order
intake rows: a gap reserves its `major` before the newer events take theirs, so what fills it comes first.
"""

from __future__ import annotations

SCHEMA_VERSION = 1
"""Raised with every change of the tables; a newer database than the program's is refused."""

TABLES = (
    "create table if not exists meta (name text primary key, value text not null) without rowid",
    """create table if not exists rooms (
        room_id text primary key, membership text not null, version text, creators text not null default '[]', power text,
        encryption text, is_encrypted integer, history_visibility text, is_direct integer not null default 0, inviter text,
        name blob, canonical_alias text, members_known integer not null default 0, joined_event text, tombstone text,
        join_failures integer not null default 0, next_join_at_ms integer not null default 0, was_banned integer not null default 0
    ) without rowid""",
    """create table if not exists members (
        room_id text not null, user_id text not null, membership text not null, primary key (room_id, user_id)) without rowid""",
    "create table if not exists recent (seq integer primary key autoincrement, room_id text not null, event_id text not null)",
    "create unique index if not exists recent_by_event on recent (room_id, event_id)",
    """create table if not exists intake (
        major integer not null, minor integer not null, event_id text not null unique, room_id text not null, fact blob not null,
        passes_gap integer not null default 0, primary key (major, minor)) without rowid""",
    "create table if not exists sequence (id integer primary key check (id = 1), last integer not null)",
    "insert or ignore into sequence (id, last) values (1, 0)",
    """create table if not exists gaps (
        major integer primary key, room_id text not null, prev_batch text not null, border text, opened_at_ms integer not null,
        is_overdue integer not null default 0)""",
    "create index if not exists gaps_by_room on gaps (room_id)",
    """create table if not exists undecryptable (
        seq integer primary key autoincrement, event_id text not null unique, room_id text not null, room_key_id text not null,
        sender text not null, reason text not null, raw blob not null, arrived_at_ms integer not null, withheld text)""",
    "create index if not exists undecryptable_by_key on undecryptable (room_key_id)",
    "create index if not exists undecryptable_by_sender on undecryptable (sender)",
    """create table if not exists quarantine (
        id integer primary key autoincrement, kind text not null, room_id text, event_id text, sender text, reason text not null,
        raw blob not null, at_ms integer not null)""",
    "create table if not exists counters (name text primary key, value integer not null) without rowid",
    """create table if not exists to_device (
        seq integer primary key autoincrement, txn_id text not null unique, event_type text not null, messages blob not null)""",
    "create table if not exists uploads (id integer primary key autoincrement, kind text not null, body blob not null)",
    """create table if not exists room_keys_out (
        room_id text primary key, room_key_id text not null, pickle blob not null, made_at_ms integer not null,
        messages integer not null default 0, is_stale integer not null default 0) without rowid""",
    """create table if not exists shares (
        room_key_id text not null, user_id text not null, device_id text not null, curve25519 text not null, state text not null,
        primary key (room_key_id, user_id, device_id)) without rowid""",
    """create table if not exists message_index (
        room_key_id text not null, message_index integer not null, event_id text not null,
        primary key (room_key_id, message_index)) without rowid""",
    """create table if not exists users (
        user_id text primary key, is_outdated integer not null default 1, change integer not null default 0, master text,
        self_signing text, verified_master text, failures integer not null default 0, next_query_at_ms integer not null default 0
    ) without rowid""",
    "create index if not exists users_outdated on users (next_query_at_ms) where is_outdated = 1",
    """create table if not exists devices (
        user_id text not null, device_id text not null, ed25519 text not null, curve25519 text not null,
        is_deleted integer not null default 0, is_signed integer not null default 0, is_blacklisted integer not null default 0,
        claim_failures integer not null default 0, next_claim_at_ms integer not null default 0,
        primary key (user_id, device_id)) without rowid""",
    "create index if not exists devices_by_curve on devices (curve25519)",
    """create table if not exists sends (
        delivery_id text not null, part integer not null, txn_id text not null, room_id text not null, event_type text not null,
        content blob not null, is_encrypted integer not null, device_id text not null, made_at_ms integer not null,
        primary key (delivery_id, part)) without rowid""",
    "create table if not exists secrets (name text primary key, value blob not null) without rowid",
    "create table if not exists aliases (alias text primary key, room_id text, other_room_id text) without rowid",
)
