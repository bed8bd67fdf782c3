"""What `doctor` asks the homeserver itself: whether it answers, whom it knows, and what it shows others of the bot's device."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hayate_matrix.cli.doctor import Finding
from hayate_matrix.cli.progress import patiently
from hayate_matrix.errors import HayateError, MatrixError, StopError

if TYPE_CHECKING:
    from hayate_matrix.matrix.account import Credentials
    from hayate_matrix.matrix.http import Http
    from hayate_matrix.settings.sources import Loaded

_PATIENCE_S = 10.0
_OLDEST_VERSION = (1, 11)
"""The specification's version that the bot is written for (ACC-3)."""


async def check_homeserver(loaded: Loaded) -> list[Finding]:
    """Return what the homeserver says; of an unreachable one only that."""
    from hayate_matrix.app import SystemClock
    from hayate_matrix.matrix.account import load_credentials
    from hayate_matrix.matrix.http import Http

    try:
        credentials = load_credentials(loaded.home / "secrets")
    except StopError as error:
        return [Finding("fault", "account", error.problem, error.remedy)]
    homeserver = credentials.homeserver if credentials else loaded.settings.matrix.homeserver
    if homeserver is None:
        return [Finding("fault", "account", "nobody has logged in", "Run: hayate-matrix login --homeserver URL --user @bot:example.org")]
    http = Http(homeserver, SystemClock(), access_token=credentials.access_token if credentials else "")
    try:
        findings = [await patiently(homeserver, _check_versions(http))]
        if findings[0].level == "ok":
            findings += await patiently(homeserver, _check_account(http, credentials))
    finally:
        await http.close()
    return findings


async def _check_versions(http: Http) -> Finding:
    started = time.monotonic()
    anonymous = http.make_anonymous()  # a token that is refused is the account's trouble, not the homeserver's
    try:
        answer = await anonymous.request("doctor.versions", "GET", "/_matrix/client/versions", retry=False, timeout_s=_PATIENCE_S)
    except HayateError as error:
        remedy = error.remedy or "Wait for it to let up; its administrator can raise the limit."
        named = "" if http.homeserver in error.problem else f"{http.homeserver}: "
        return Finding("fault", "homeserver", named + error.problem, remedy)
    finally:
        await anonymous.close()
    found = [text for text in answer.get("versions", []) if isinstance(text, str)]
    newest = max((_read_version(text) for text in found), default=(0, 0))
    text = f"{http.homeserver} answers after {(time.monotonic() - started) * 1000:.0f} ms, and speaks up to v{newest[0]}.{newest[1]}"
    if newest < _OLDEST_VERSION:
        return Finding("fault", "homeserver", text, f"v{_OLDEST_VERSION[0]}.{_OLDEST_VERSION[1]} is needed: update the homeserver.")
    return Finding("ok", "homeserver", text)


def _read_version(text: str) -> tuple[int, int]:
    major, _, minor = text.removeprefix("v").partition(".")
    return (int(major), int(minor)) if text.startswith("v") and major.isdigit() and minor.isdigit() else (0, 0)


async def _check_account(http: Http, credentials: Credentials | None) -> list[Finding]:
    if credentials is None:
        return [Finding("fault", "account", "nobody has logged in", "Run: hayate-matrix login")]
    try:
        answer = await http.request("doctor.whoami", "GET", "/_matrix/client/v3/account/whoami", retry=False, timeout_s=_PATIENCE_S)
    except MatrixError as error:
        return [
            Finding(
                "fault", "account", f"the access token is refused ({error.errcode})", "Run `hayate-matrix login` after stopping the bot."
            )
        ]
    except HayateError as error:
        return [Finding("fault", "account", error.problem, error.remedy)]
    wanted = (credentials.user_id, credentials.device_id)
    found = (answer.get("user_id"), answer.get("device_id"))
    if found != wanted:
        text = f"the token belongs to {found[0]}, device {found[1]}; the home belongs to {wanted[0]}, device {wanted[1]}"
        return [Finding("fault", "account", text, "Put the right credentials back, or log in in another home.")]
    return [Finding("ok", "account", f"{wanted[0]}, device {wanted[1]}"), await _check_device(http, credentials)]


async def _check_device(http: Http, credentials: Credentials) -> Finding:
    """Look at the keys that others see: a device that its owner has not signed gets no messages from strict clients."""
    user, device = credentials.user_id, credentials.device_id
    try:
        body = {"device_keys": {user: [device]}}
        answer = await http.request("doctor.keys", "POST", "/_matrix/client/v3/keys/query", body=body, retry=False, timeout_s=_PATIENCE_S)
    except HayateError as error:
        return Finding("fault", "device", error.problem, error.remedy)
    keys = _dig(answer, "device_keys", user, device)
    if not keys:
        return Finding("note", "device", "has no encryption keys on the server", "`hayate-matrix run` uploads them.")
    own_key = _dig(keys, "keys").get(f"ed25519:{device}")
    master, self_signing = (_find_key(_dig(answer, name, user)) for name in ("master_keys", "self_signing_keys"))
    if master is None or self_signing is None:
        return Finding("fault", "device", f"the account has no cross-signing identity; strict clients will not talk to {device}", _SIGN)
    from hayate_matrix.matrix.keys.signing import is_signed_by

    chain = ((_dig(answer, "self_signing_keys", user), master), (keys, self_signing))
    if not all(is_signed_by(signed, user, by, by) for signed, by in chain):
        return Finding("fault", "device", f"{device} is not signed by the account's identity; strict clients will not talk to it", _SIGN)
    return Finding("ok", "device", f"{device} has keys (fingerprint {own_key}) and is signed by the account's identity")


_SIGN = "Start the bot and see its log: it signs its device where the account has no identity that was made elsewhere."


def _dig(tree: Any, *path: str) -> dict[str, Any]:  # noqa: ANN401  an answer that others made
    for part in path:
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree if isinstance(tree, dict) else {}


def _find_key(key: dict[str, Any]) -> str | None:
    return next((str(value) for value in _dig(key, "keys").values()), None)
