"""The routes of the fabricated homeserver: what its small model answers where nothing is scripted."""

from __future__ import annotations

import inspect
import json
import secrets
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hayate_matrix.demo.homeserver import Login
    from tests.support.fabricated.server import FabricatedHomeserver, FabricatedRoom

    JSON = dict[str, Any]
    Route = Callable[["Call"], Awaitable[JSON]]

VERSIONS = [f"v1.{number}" for number in range(1, 17)]


class Refusal(Exception):
    """A Matrix error."""

    def __init__(self, status: int, errcode: str, **more: Any) -> None:
        super().__init__(errcode)
        self.status = status
        self.body = {"errcode": errcode, "error": errcode, **more}


class Call:
    """One request, taken apart."""

    def __init__(self, server: FabricatedHomeserver, request: web.Request, body: Any, login: Login | None) -> None:
        self.server = server
        self.body = body
        self.query = dict(request.query)
        self.at = request.match_info
        self.token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self._login = login

    @property
    def login(self) -> Login:
        """Who asks."""
        if self._login is None:
            raise Refusal(401, "M_UNKNOWN_TOKEN", soft_logout=False)
        return self._login

    @property
    def room(self) -> FabricatedRoom:
        """The room in the path, which the asker is in."""
        room = self.server.rooms.get(self.at["room"])
        if room is None or self.login.user_id not in room.joined_at:
            raise Refusal(403, "M_FORBIDDEN")
        return room


async def versions(_: Call) -> JSON:
    return {"versions": VERSIONS, "unstable_features": {}}


async def capabilities(_: Call) -> JSON:
    return {"capabilities": {"m.room_versions": {"default": "12", "available": {"12": "stable", "11": "stable"}}}}


async def login_flows(_: Call) -> JSON:
    return {"flows": [{"type": "m.login.password"}, {"type": "m.login.token"}]}


async def log_in(call: Call) -> JSON:
    name = call.body.get("identifier", {}).get("user", call.body.get("user", ""))
    user_id = name if name.startswith("@") else f"@{name}:{call.server.name}"
    if call.server.passwords.get(user_id) != call.body.get("password"):
        raise Refusal(403, "M_FORBIDDEN")
    device_id = call.body.get("device_id") or secrets.token_hex(5).upper()
    for token, known in list(call.server.logins.items()):
        if (known.user_id, known.device_id) == (user_id, device_id):
            del call.server.logins[token]
    made = call.server.login(user_id, device_id, password=call.body["password"])
    return {"user_id": made.user_id, "device_id": made.device_id, "access_token": made.access_token}


async def log_out(call: Call) -> JSON:
    call.server.logins.pop(call.token, None)
    return {}


async def whoami(call: Call) -> JSON:
    return {"user_id": call.login.user_id, "device_id": call.login.device_id, "is_guest": False}


async def sync(call: Call) -> JSON:
    return await call.server.sync(call.login, call.query)


async def make_filter(call: Call) -> JSON:
    call.server.filters.append(call.body)
    return {"filter_id": str(len(call.server.filters) - 1)}


async def keys_upload(call: Call) -> JSON:
    server, key = call.server, (call.login.user_id, call.login.device_id)
    if call.body.get("device_keys"):
        server.device_keys.setdefault(key[0], {})[key[1]] = call.body["device_keys"]
        server.marks_changed(key[0])
    known = server.one_time_keys.setdefault(key, {})
    for name, value in (call.body.get("one_time_keys") or {}).items():
        if name in known and known[name] != value:
            raise Refusal(400, "M_UNKNOWN", error=f"One time key {name} already exists")
        known[name] = value
    if call.body.get("fallback_keys"):
        server.fallback_keys[key] = call.body["fallback_keys"]
        server.used_fallbacks.discard(key)
    return {"one_time_key_counts": {"signed_curve25519": len(known)}}


async def keys_query(call: Call) -> JSON:
    server = call.server
    asked = call.body["device_keys"]
    answer: JSON = {"device_keys": {}, "failures": {}, "master_keys": {}, "self_signing_keys": {}, "user_signing_keys": {}}
    for user_id, wanted in asked.items():
        devices = server.device_keys.get(user_id, {})
        answer["device_keys"][user_id] = {name: keys for name, keys in devices.items() if not wanted or name in wanted}
        for usage in ("master", "self_signing", "user_signing"):
            made = server.cross_signing.get(user_id, {}).get(f"{usage}_key")
            if made is not None and (usage != "user_signing" or user_id == call.login.user_id):
                answer[f"{usage}_keys"][user_id] = made
    return answer


async def keys_claim(call: Call) -> JSON:
    found: JSON = {}
    for user_id, devices in call.body["one_time_keys"].items():
        for device_id in devices:
            claimed = call.server.claim(user_id, device_id)
            if claimed:
                found.setdefault(user_id, {})[device_id] = claimed
    return {"one_time_keys": found, "failures": {}}


async def device_signing(call: Call) -> JSON:
    server, user_id = call.server, call.login.user_id
    known = server.cross_signing.get(user_id)
    new = {name: key for name, key in call.body.items() if name != "auth"}
    if known is not None and known != new and "auth" not in call.body:
        raise Refusal(401, "M_FORBIDDEN", flows=[{"stages": ["m.login.password"]}], params={}, session="uia")
    server.cross_signing[user_id] = new
    server.marks_changed(user_id)
    return {}


async def signatures_upload(call: Call) -> JSON:
    server = call.server
    for user_id, signed in call.body.items():
        for name, content in signed.items():
            target = server.device_keys.get(user_id, {}).get(name)
            if target is None:
                keys = server.cross_signing.get(user_id, {}).values()
                target = next((key for key in keys if name in {one.split(":", 1)[1] for one in key["keys"]}), None)
            if target is not None:
                for signer, made in content.get("signatures", {}).items():
                    target.setdefault("signatures", {}).setdefault(signer, {}).update(made)
                server.marks_changed(user_id)
    return {"failures": {}}


async def send_to_device(call: Call) -> JSON:
    server = call.server
    done = (call.login.access_token, call.at["txn"])
    if done in server.transactions:
        return {}
    server.transactions[done] = {}
    server.outgoing_to_device.append({"type": call.at["type"], **call.body})
    for user_id, devices in call.body["messages"].items():
        for device_id, content in devices.items():
            names = server.device_keys.get(user_id, {}) if device_id == "*" else [device_id]
            for name in names:
                server.sends_to_device(user_id, name, {"type": call.at["type"], "sender": call.login.user_id, "content": content})
    return {}


async def send_event(call: Call) -> JSON:
    server, room = call.server, call.room
    done = (call.login.device_id, f"{call.at['room']}|{call.at['txn']}")
    if done in server.transactions:
        return server.transactions[done]
    event = room.has(call.login.user_id, call.at["type"], call.body, unsigned={"transaction_id": call.at["txn"]})
    server.sent.append({"room_id": room.room_id, "txn": call.at["txn"], **event})
    server.transactions[done] = {"event_id": event["event_id"]}
    return server.transactions[done]


async def redact(call: Call) -> JSON:
    target = call.at["event"]
    event = call.room.has(call.login.user_id, "m.room.redaction", {"redacts": target}, redacts=target)
    return {"event_id": event["event_id"]}


async def put_state(call: Call) -> JSON:
    event = call.room.has(call.login.user_id, call.at["type"], call.body, state_key=call.at.get("key", ""))
    return {"event_id": event["event_id"]}


async def get_state(call: Call) -> JSON:
    event = call.room.state.get((call.at["type"], call.at.get("key", "")))
    if event is None:
        raise Refusal(404, "M_NOT_FOUND")
    return dict(event["content"])


async def get_all_state(call: Call) -> Any:
    return list(call.room.state.values())


async def joined_members(call: Call) -> JSON:
    room = call.room
    return {"joined": {name: {"display_name": room.state["m.room.member", name]["content"].get("displayname")} for name in room.members}}


async def members(call: Call) -> JSON:
    return {"chunk": [event for (kind, _), event in call.room.state.items() if kind == "m.room.member"]}


async def joined_rooms(call: Call) -> JSON:
    return {"joined_rooms": [room.room_id for room in call.server.rooms.values() if call.login.user_id in room.joined_at]}


async def messages(call: Call) -> JSON:
    room = call.room
    start = int(call.query["from"][1:]) if "from" in call.query else call.server.position + 1
    stop = int(call.query["to"][1:]) if "to" in call.query else 0
    chunk, more = room.page_back(start, stop, int(call.query.get("limit", "10")))
    answer: JSON = {"start": f"t{start}", "chunk": [{**event, "room_id": room.room_id} for event in chunk]}
    return answer if more is None else {**answer, "end": f"t{more}"}


async def get_event(call: Call) -> JSON:
    room = call.room
    for _, event in room.timeline:
        if event.get("event_id") == call.at["event"]:
            return {**event, "room_id": room.room_id}
    raise Refusal(404, "M_NOT_FOUND")


async def join(call: Call) -> JSON:
    room = call.server.rooms.get(call.at["room"])
    user_id = call.login.user_id
    if room is None or (user_id not in room.invited and user_id not in room.joined_at):
        raise Refusal(403, "M_FORBIDDEN")
    if user_id not in room.joined_at:
        room.member(user_id)
    return {"room_id": room.room_id}


async def leave(call: Call) -> JSON:
    room = call.server.rooms.get(call.at["room"])
    if room is not None:
        room.member(call.login.user_id, "leave")
    return {}


async def get_account_data(call: Call) -> JSON:
    found = call.server.account_data.get(call.login.user_id, {}).get(call.at["type"])
    if found is None:
        raise Refusal(404, "M_NOT_FOUND")
    return found


async def put_account_data(call: Call) -> JSON:
    call.server.account_data.setdefault(call.login.user_id, {})[call.at["type"]] = call.body
    return {}


async def nothing(call: Call) -> JSON:
    _ = call.login  # refuses an unknown token
    return {}


_C = "/_matrix/client/{version:v3|v1|r0}"
_ROOM = f"{_C}/rooms/{{room}}"
ROUTES: list[tuple[str, str, Route]] = [
    ("GET", "/_matrix/client/versions", versions),
    ("GET", f"{_C}/capabilities", capabilities),
    ("GET", f"{_C}/login", login_flows),
    ("POST", f"{_C}/login", log_in),
    ("POST", f"{_C}/logout", log_out),
    ("GET", f"{_C}/account/whoami", whoami),
    ("GET", f"{_C}/sync", sync),
    ("POST", f"{_C}/user/{{user}}/filter", make_filter),
    ("POST", f"{_C}/keys/upload", keys_upload),
    ("POST", f"{_C}/keys/query", keys_query),
    ("POST", f"{_C}/keys/claim", keys_claim),
    ("POST", f"{_C}/keys/device_signing/upload", device_signing),
    ("POST", f"{_C}/keys/signatures/upload", signatures_upload),
    ("PUT", f"{_C}/sendToDevice/{{type}}/{{txn}}", send_to_device),
    ("PUT", f"{_ROOM}/send/{{type}}/{{txn}}", send_event),
    ("PUT", f"{_ROOM}/redact/{{event}}/{{txn}}", redact),
    ("GET", f"{_ROOM}/state", get_all_state),
    ("GET", f"{_ROOM}/state/{{type}}", get_state),
    ("GET", f"{_ROOM}/state/{{type}}/{{key:.*}}", get_state),
    ("PUT", f"{_ROOM}/state/{{type}}", put_state),
    ("PUT", f"{_ROOM}/state/{{type}}/{{key:.*}}", put_state),
    ("GET", f"{_ROOM}/joined_members", joined_members),
    ("GET", f"{_ROOM}/members", members),
    ("GET", f"{_C}/joined_rooms", joined_rooms),
    ("GET", f"{_ROOM}/messages", messages),
    ("GET", f"{_ROOM}/event/{{event}}", get_event),
    ("POST", f"{_C}/join/{{room}}", join),
    ("POST", f"{_ROOM}/join", join),
    ("POST", f"{_ROOM}/leave", leave),
    ("GET", f"{_C}/user/{{user}}/account_data/{{type}}", get_account_data),
    ("PUT", f"{_C}/user/{{user}}/account_data/{{type}}", put_account_data),
    ("PUT", f"{_ROOM}/typing/{{user}}", nothing),
    ("POST", f"{_ROOM}/receipt/{{kind}}/{{event}}", nothing),
    ("POST", f"{_ROOM}/read_markers", nothing),
]


def make_application(server: FabricatedHomeserver) -> web.Application:
    """Return the application that answers for `server`."""
    application = web.Application(client_max_size=1 << 28)

    def routed(route: Route | None) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            text = await request.read()
            try:
                body = json.loads(text) if text else {}
            except ValueError:
                body = text
            login = server.logins.get(request.headers.get("Authorization", "").removeprefix("Bearer "))
            server.note(request, body, login.user_id if login else None)
            scripted = server.find_answer(request.method, request.path)
            if scripted is not None:
                made = scripted.reply(request, body)
                if inspect.isawaitable(made):
                    made = await made
                if made is not None:
                    assert isinstance(made, web.StreamResponse)
                    return made
            try:
                if route is None:
                    raise Refusal(404, "M_UNRECOGNIZED")
                return web.json_response(await route(Call(server, request, body, login)))
            except Refusal as refusal:
                return web.json_response(refusal.body, status=refusal.status)

        return handle

    for method, path, route in ROUTES:
        application.router.add_route(method, path, routed(route))
    application.router.add_route("*", "/{path:.*}", routed(None))
    return application
