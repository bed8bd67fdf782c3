"""The peer of the bench: the plainest echo bot on matrix-nio's own loop and stock store, run as a process of its own.

    python -m tests.bench.bare_echo NOTES URL USER_ID DEVICE_ID TOKEN STORE_FOLDER fresh|again

It does what the bot does for one message (decrypt, answer as a reply) and nothing that keeps it alive after a fault. `again` is a start
with a stored position: nio needs the full state then, or it knows no rooms.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from nio import AsyncClient, AsyncClientConfig, InviteMemberEvent, MatrixRoom, RoomMessageText

from tests.bench.watching import watch_loop
from tests.support.crashing import end_with_parent
from tests.support.identity import cross_sign


async def main(notes: str, url: str, user_id: str, device_id: str, token: str, folder: str, mode: str) -> None:
    """Sync for ever and echo."""
    watching = asyncio.create_task(watch_loop(notes))
    logging.disable(logging.ERROR)
    config = AsyncClientConfig(encryption_enabled=True, store_sync_tokens=True)
    client = AsyncClient(url, user_id, device_id, store_path=folder, config=config)
    client.restore_login(user_id, device_id, token)
    if mode == "fresh":
        await client.keys_upload()
        await asyncio.to_thread(cross_sign, url, token, user_id, device_id)

    async def invited(room: MatrixRoom, event: InviteMemberEvent) -> None:
        if event.state_key == user_id:
            await client.join(room.room_id)

    async def heard(room: MatrixRoom, event: RoomMessageText) -> None:
        if event.sender == user_id:
            return
        content = {
            "msgtype": "m.text",
            "body": event.body.removeprefix("echo "),
            "m.mentions": {"user_ids": [event.sender]},
            "m.relates_to": {"m.in_reply_to": {"event_id": event.event_id}},
        }
        await client.room_send(room.room_id, "m.room.message", content, ignore_unverified_devices=True)

    client.add_event_callback(invited, InviteMemberEvent)
    if mode == "fresh":
        await client.sync(timeout=0, full_state=True)
    client.add_event_callback(heard, RoomMessageText)
    print("ready", flush=True)
    await client.sync_forever(timeout=30_000, full_state=mode == "again")
    watching.cancel()


if __name__ == "__main__":
    end_with_parent()
    asyncio.run(main(*sys.argv[1:8]))
