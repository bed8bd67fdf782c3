"""The fabricated homeserver is held to what the real one does: the same claims against Synapse and against it."""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import aiohttp
import pytest_asyncio
import vodozemac as v

from tests.support.fabricated import FabricatedDevice, FabricatedHomeserver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

    from hayate_matrix.demo.homeserver import Homeserver, Login

FILTER = json.dumps({"room": {"timeline": {"limit": 5}}})


class Device:
    """A logged-in device that asks in bare HTTP."""

    def __init__(self, http: aiohttp.ClientSession, url: str, login: Login) -> None:
        self._http = http
        self._url = url
        self.login = login

    async def ask(self, method: str, path: str, body: Any = None, **query: str) -> tuple[int, Any]:
        """Return status and body."""
        headers = {"Authorization": f"Bearer {self.login.access_token}"}
        async with self._http.request(method, self._url + "/_matrix/client/v3" + path, json=body, params=query, headers=headers) as answer:
            return answer.status, await answer.json()

    async def sync(self, since: str | None = None, timeout_ms: int = 0) -> Any:
        """Return one sync answer."""
        query = {"timeout": str(timeout_ms), "filter": FILTER, **({"since": since} if since else {})}
        status, answer = await self.ask("GET", "/sync", **query)
        assert status == 200, answer
        return answer

    async def say(self, room: str, text: str, txn: str) -> str:
        """Send a message and return its id."""
        status, answer = await self.ask("PUT", f"/rooms/{quote(room)}/send/m.room.message/{txn}", {"msgtype": "m.text", "body": text})
        assert status == 200, answer
        return str(answer["event_id"])


@pytest_asyncio.fixture(params=["synapse", "fabricated"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Device, Device, str]]:
    """Two devices in a room, on the real homeserver and on the fabricated one."""
    async with aiohttp.ClientSession() as http:
        if request.param == "synapse":
            real: Homeserver = request.getfixturevalue("homeserver")
            names = [f"{who}-{secrets.token_hex(4)}" for who in ("ann", "ben")]
            ann, ben = [Device(http, real.url, await asyncio.to_thread(real.register, name, "pw")) for name in names]
            _, made = await ann.ask("POST", "/createRoom", {"preset": "private_chat", "invite": [ben.login.user_id]})
            await ben.ask("POST", f"/join/{quote(made['room_id'])}", {})
            yield ann, ben, made["room_id"]
            return
        async with FabricatedHomeserver() as server:
            ann, ben = [Device(http, server.url, server.login(f"@{who}:fab.test", who.upper())) for who in ("ann", "ben")]
            server.room("!r:fab.test", members=[ann.login.user_id, ben.login.user_id])
            yield ann, ben, "!r:fab.test"


async def test_gap_is_limited_and_pages_lead_back_to_the_position(pair: tuple[Device, Device, str]) -> None:
    """More events than the filter's limit: the newest come, limited, and `/messages` gives the rest, newest first, down to the position."""
    ann, ben, room = pair
    since = (await ben.sync())["next_batch"]
    said = [await ann.say(room, str(number), f"t{number}") for number in range(13)]
    part = (await ben.sync(since))["rooms"]["join"][room]["timeline"]
    shown = [event["event_id"] for event in part["events"]]
    assert part["limited"]
    assert shown == said[-5:]
    found: list[str] = []
    start: str | None = part["prev_batch"]
    while start is not None:
        _, page = await ben.ask("GET", f"/rooms/{quote(room)}/messages", dir="b", limit="4", **{"from": start, "to": since})
        found += [event["event_id"] for event in page["chunk"]]
        start = page.get("end") if page["chunk"] else None
    assert found == said[:-5][::-1]


async def test_same_transaction_id_is_one_event(pair: tuple[Device, Device, str]) -> None:
    """A repeated send gives the first event's id, and the sender's sync shows the transaction id."""
    ann, _, room = pair
    since = (await ann.sync())["next_batch"]
    first = await ann.say(room, "once", "same")
    assert await ann.say(room, "once", "same") == first
    events = (await ann.sync(since))["rooms"]["join"][room]["timeline"]["events"]
    assert [(event["event_id"], event["unsigned"].get("transaction_id")) for event in events] == [(first, "same")]


async def test_to_device_events_come_until_the_position_passes_them(pair: tuple[Device, Device, str]) -> None:
    """The same position gives them again, the next one no more."""
    ann, ben, _ = pair
    since = (await ben.sync())["next_batch"]
    body = {"messages": {ben.login.user_id: {ben.login.device_id: {"n": 1}}}}
    assert (await ann.ask("PUT", "/sendToDevice/test.kind/t1", body))[0] == 200
    first, again = await ben.sync(since), await ben.sync(since)
    for answer in (first, again):
        assert [event["content"] for event in answer["to_device"]["events"]] == [{"n": 1}]
        assert answer["to_device"]["events"][0]["sender"] == ann.login.user_id
    assert not (await ben.sync(again["next_batch"])).get("to_device", {}).get("events")


async def test_keys_are_published_told_claimed_and_counted(pair: tuple[Device, Device, str]) -> None:
    """An upload tells those who share a room, a query returns the keys, each one-time key is given once, then the fallback key."""
    ann, ben, _ = pair
    since = (await ben.sync())["next_batch"]
    device = FabricatedDevice(FabricatedHomeserver(), ann.login.user_id, ann.login.device_id)  # it only signs here
    device.fills_pool()
    one_time = dict(device.pool)
    account: Any = v.Account()
    account.generate_fallback_key()
    name, key = next(iter(account.fallback_key.items()))
    fallback = {f"signed_curve25519:{name}": device.sign({"key": key.to_base64(), "fallback": True})}
    upload = {"device_keys": device.device_keys(), "one_time_keys": one_time, "fallback_keys": fallback}
    status, answer = await ann.ask("POST", "/keys/upload", upload)
    assert (status, answer["one_time_key_counts"]["signed_curve25519"]) == (200, len(one_time))
    assert ann.login.user_id in (await ben.sync(since))["device_lists"]["changed"]
    _, queried = await ben.ask("POST", "/keys/query", {"device_keys": {ann.login.user_id: []}})
    assert queried["device_keys"][ann.login.user_id][ann.login.device_id]["keys"] == device.device_keys()["keys"]
    claimed = []
    for _ in range(len(one_time) + 2):
        wanted = {ann.login.user_id: {ann.login.device_id: "signed_curve25519"}}
        _, given = await ben.ask("POST", "/keys/claim", {"one_time_keys": wanted})
        claimed += list(given["one_time_keys"][ann.login.user_id][ann.login.device_id])
    assert sorted(claimed[: len(one_time)]) == sorted(one_time)
    assert claimed[len(one_time) :] == list(fallback) * 2
    told = await ann.sync()
    assert told["device_one_time_keys_count"]["signed_curve25519"] == 0
    assert told["device_unused_fallback_key_types"] == []


async def test_refusals_carry_the_same_codes(pair: tuple[Device, Device, str]) -> None:
    """An unknown token, a room of others, state that is not there."""
    ann, _, room = pair
    assert (await ann.ask("GET", f"/rooms/{quote(room)}/state/m.room.encryption"))[1]["errcode"] == "M_NOT_FOUND"
    assert (await ann.ask("PUT", "/rooms/!nowhere:else.test/send/m.room.message/t1", {}))[0] == 403
    ann.login = type(ann.login)(ann.login.user_id, ann.login.device_id, "nonsense")
    status, answer = await ann.ask("GET", "/account/whoami")
    assert (status, answer["errcode"]) == (401, "M_UNKNOWN_TOKEN")
