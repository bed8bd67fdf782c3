"""The account: logins, the file that keeps them, and what happens when a token ends."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import stat
import time
from typing import TYPE_CHECKING

import pytest

from hayate_matrix.core.ids import DeviceId, UserId
from hayate_matrix.errors import AccountError, HomeserverDown, MatrixError
from hayate_matrix.matrix.account import (
    Account,
    Credentials,
    load_credentials,
    log_in_with_password,
    log_in_with_token,
    save_credentials,
)
from hayate_matrix.matrix.http import Http
from tests.support.fabricated import FabricatedHomeserver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aiohttp import web

BOT = "@bot:fab.test"
PASSWORD = "a password with blanks"


class Now:
    """The machine's clock."""

    def now(self) -> dt.datetime:
        return dt.datetime.now(dt.UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@pytest.fixture
async def server() -> AsyncIterator[FabricatedHomeserver]:
    async with FabricatedHomeserver() as running:
        running.passwords[BOT] = PASSWORD
        yield running


@pytest.fixture
async def http(server: FabricatedHomeserver) -> AsyncIterator[Http]:
    made = Http(server.url, Now())
    yield made
    await made.close()


async def log_in(http: Http, folder: Path, password: str = PASSWORD, device_id: DeviceId | None = None) -> Credentials:
    return await log_in_with_password(http, folder, BOT, password, device_name="Test", device_id=device_id)


def make_account(http: Http, folder: Path, credentials: Credentials, password: str | None = PASSWORD) -> Account:
    return Account(http, folder, credentials, read_password=lambda: password, device_name="Test")


@pytest.mark.requirement("ACC-1", "STO-1")
async def test_a_password_login_keeps_the_device_that_the_server_made(server: FabricatedHomeserver, http: Http, tmp_path: Path) -> None:
    """The server chooses the device id, and the file that keeps it is the bot's user's alone."""
    folder = tmp_path / "secrets"
    made = await log_in(http, folder)
    [asked] = server.requests("POST", "*/login")
    assert "device_id" not in asked.body
    assert asked.body["initial_device_display_name"] == "Test"
    path = folder / "credentials.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert load_credentials(folder) == made
    assert made.device_id in {login.device_id for login in server.logins.values()}
    assert list(folder.iterdir()) == [path]


@pytest.mark.requirement("ACC-1")
async def test_a_login_again_is_for_the_same_device(server: FabricatedHomeserver, http: Http, tmp_path: Path) -> None:
    """A second login names the device that is kept and gets a new token for it."""
    first = await log_in(http, tmp_path)
    second = await log_in(http, tmp_path, device_id=first.device_id)
    assert (second.device_id, second.user_id) == (first.device_id, first.user_id)
    assert second.access_token != first.access_token
    assert [login.device_id for login in server.logins.values()] == [first.device_id]


@pytest.mark.requirement("ACC-1", "SEC-3")
async def test_a_wrong_password_is_asked_once_and_never_shown(server: FabricatedHomeserver, http: Http, tmp_path: Path) -> None:
    """A refused login is not repeated, changes no file and shows no secret."""
    with pytest.raises(AccountError, match="refused user and password") as caught:
        await log_in(http, tmp_path, "wrong-password")
    assert "wrong-password" not in str(caught.value)
    assert caught.value.exit_code == 78
    assert len(server.requests("POST", "*/login")) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.requirement("ACC-1")
@pytest.mark.parametrize(("errcode", "told"), [("M_USER_DEACTIVATED", "was deactivated"), ("M_INVALID_USERNAME", "M_INVALID_USERNAME")])
async def test_another_refusal_is_told_by_its_reason(
    server: FabricatedHomeserver, http: Http, tmp_path: Path, errcode: str, told: str
) -> None:
    """An account that is no more is not taken for a wrong password."""
    server.answers("POST", "*/login", {"errcode": errcode, "error": ""}, status=403)
    with pytest.raises(AccountError, match=told):
        await log_in(http, tmp_path)


@pytest.mark.requirement("ACC-1")
async def test_a_server_without_password_logins_is_told_apart(server: FabricatedHomeserver, http: Http, tmp_path: Path) -> None:
    """Where the server offers other ways alone, the password is not even sent."""
    server.answers("GET", "*/login", {"flows": [{"type": "m.login.sso"}]})
    with pytest.raises(AccountError, match=r"m\.login\.sso.*access token"):
        await log_in(http, tmp_path)
    assert server.requests("POST", "*/login") == []


@pytest.mark.requirement("ACC-1", "E2E-8")
async def test_a_server_that_gives_another_device_is_refused(server: FabricatedHomeserver, http: Http, tmp_path: Path) -> None:
    """A login for a kept device that comes back as another one is not kept."""
    server.answers("POST", "*/login", {"user_id": BOT, "device_id": "OTHER", "access_token": "syt_x"})
    with pytest.raises(AccountError, match="OTHER"):
        await log_in(http, tmp_path, device_id=DeviceId("MINE"))
    assert load_credentials(tmp_path) is None


@pytest.mark.requirement("ACC-1")
@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"user_id": BOT, "access_token": "t"},
        {"user_id": BOT, "device_id": "D"},
        {"user_id": "bot", "device_id": "D", "access_token": "t"},
    ],
    ids=["nothing", "no device", "no token", "no user id"],
)
async def test_a_login_answer_that_lacks_something_is_refused(
    server: FabricatedHomeserver, http: Http, tmp_path: Path, answer: dict[str, str]
) -> None:
    """Half an answer is no login."""
    server.answers("POST", "*/login", answer)
    with pytest.raises(AccountError):
        await log_in(http, tmp_path)
    assert load_credentials(tmp_path) is None


@pytest.mark.requirement("ACC-1")
async def test_a_token_login_keeps_whom_the_server_names(server: FabricatedHomeserver, http: Http, tmp_path: Path) -> None:
    """User and device of a token come from the server."""
    made = server.login(BOT, "TOKENDEVICE")
    kept = await log_in_with_token(http, tmp_path, made.access_token)
    assert (kept.user_id, kept.device_id) == (BOT, "TOKENDEVICE")
    assert load_credentials(tmp_path) == kept


@pytest.mark.requirement("ACC-1", "E2E-8")
async def test_a_token_of_another_device_or_of_nobody_is_refused(server: FabricatedHomeserver, http: Http, tmp_path: Path) -> None:
    """A home that has a device takes no token of another one, and no home takes an unknown one."""
    kept = await log_in(http, tmp_path)
    other = server.login(BOT, "OTHER")
    with pytest.raises(AccountError, match="OTHER"):
        await log_in_with_token(http, tmp_path, other.access_token, expected=kept)
    with pytest.raises(AccountError, match="M_UNKNOWN_TOKEN"):
        await log_in_with_token(http, tmp_path, "syt_unknown_token")
    assert load_credentials(tmp_path) == kept


@pytest.mark.requirement("ACC-1")
async def test_an_unreachable_server_ends_a_login_without_a_trace(server: FabricatedHomeserver, http: Http, tmp_path: Path) -> None:
    """At a terminal nobody waits for ever: a login tries once and says so."""
    server.answers("*", "*", "<html>Bad gateway</html>", status=502)
    with pytest.raises(HomeserverDown):
        await log_in(http, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.requirement("ACC-1", "E2E-8")
@pytest.mark.parametrize(("user", "device"), [(BOT, "OTHER"), ("@other:fab.test", "MINE")])
async def test_a_token_that_became_anothers_stops_the_bot(
    server: FabricatedHomeserver, http: Http, tmp_path: Path, user: str, device: str
) -> None:
    """User and device of the token are compared with those that the home belongs to."""
    token = server.login(user, device).access_token
    credentials = Credentials(homeserver=server.url, user_id=UserId(BOT), device_id=DeviceId("MINE"), access_token=token)
    with pytest.raises(AccountError, match="belongs to") as caught:
        await make_account(http, tmp_path, credentials).check()
    assert caught.value.remedy


@pytest.mark.requirement("ACC-1")
async def test_a_good_token_passes_the_check_with_one_request(server: FabricatedHomeserver, http: Http, tmp_path: Path) -> None:
    """Nothing is logged in again where nothing is wrong."""
    kept = await log_in(http, tmp_path)
    server.asked.clear()
    await make_account(http, tmp_path, kept).check()
    assert [one.path for one in server.asked] == ["/_matrix/client/v3/account/whoami"]


@pytest.mark.requirement("ACC-1")
async def test_a_soft_logout_logs_the_same_device_in_again(server: FabricatedHomeserver, http: Http, tmp_path: Path) -> None:
    """The new token is of the same device and on disk before it is used."""
    kept = await log_in(http, tmp_path)
    server.answers("GET", "*/whoami", {"errcode": "M_UNKNOWN_TOKEN", "error": "", "soft_logout": True}, status=401, times=1)
    account = make_account(http, tmp_path, kept)
    await account.check()
    assert account.credentials.device_id == kept.device_id
    assert account.credentials.access_token != kept.access_token
    assert load_credentials(tmp_path) == account.credentials
    assert http.access_token == account.credentials.access_token
    await account.check()


@pytest.mark.requirement("ACC-1", "REL-3")
async def test_a_login_again_waits_an_unreachable_server_out_and_disturbs_no_other_request(
    server: FabricatedHomeserver, tmp_path: Path
) -> None:
    """While the bot logs in again no request loses its token, the login carries none, and a page in between changes nothing."""
    clock = Now()
    http = Http(server.url, clock, jitter=0)
    kept = await log_in(http, tmp_path)
    server.asked.clear()
    seen: list[str | None] = []

    def look(request: web.Request, _body: object) -> None:
        seen.append(request.headers.get("Authorization"))
        assert http.access_token == kept.access_token

    server.handles("*", "*/login", look)
    server.answers("POST", "*/login", "<html>Bad gateway</html>", status=502, times=1)
    account = make_account(http, tmp_path, kept)
    await account.recover(MatrixError("M_UNKNOWN_TOKEN", "", status=401, body={"soft_logout": True}))
    assert seen == [None, None]
    assert http.access_token == account.credentials.access_token != kept.access_token
    await http.close()


@pytest.mark.requirement("ACC-1")
@pytest.mark.parametrize(
    ("body", "password", "told"),
    [
        ({"errcode": "M_UNKNOWN_TOKEN"}, PASSWORD, "has logged the bot's device"),
        ({"errcode": "M_UNKNOWN_TOKEN", "soft_logout": "true"}, PASSWORD, "has logged the bot's device"),
        ({"errcode": "M_UNKNOWN_TOKEN", "soft_logout": True}, None, "no password is set"),
        ({"errcode": "M_UNKNOWN_TOKEN", "soft_logout": True}, "wrong", "refused user and password"),
        ({"errcode": "M_USER_DEACTIVATED"}, PASSWORD, "was deactivated"),
    ],
    ids=["hard", "no boolean", "no password", "wrong password", "deactivated"],
)
async def test_a_logout_that_cannot_be_mended_stops_with_78_and_a_sentence(
    server: FabricatedHomeserver, http: Http, tmp_path: Path, body: dict[str, object], password: str | None, told: str
) -> None:
    """The bot does not knock at a door that is closed: at most one login is tried, and the operator is told."""
    kept = await log_in(http, tmp_path)
    server.asked.clear()
    server.answers("GET", "*/whoami", {"error": "", **body}, status=401)
    with pytest.raises(AccountError, match=told) as caught:
        await make_account(http, tmp_path, kept, password).check()
    assert caught.value.exit_code == 78
    assert len(server.asked) <= 3
    assert load_credentials(tmp_path) == kept


@pytest.mark.requirement("ACC-1")
async def test_an_error_that_is_not_about_the_token_is_passed_on(http: Http, tmp_path: Path) -> None:
    """What is no logout is left to whoever asked."""
    credentials = Credentials(homeserver="http://x", user_id=UserId(BOT), device_id=DeviceId("D"), access_token="syt_x")
    for error in (MatrixError("M_FORBIDDEN", "no", status=403), MatrixError("M_FORBIDDEN", "no", status=401)):
        with pytest.raises(MatrixError) as caught:
            await make_account(http, tmp_path, credentials).recover(error)
        assert caught.value is error


@pytest.mark.requirement("ACC-1", "SEC-3", "STO-1")
def test_credentials_that_others_can_read_or_that_are_damaged_are_refused(tmp_path: Path) -> None:
    """The file is left as it is, and the text says what to do and holds no token."""
    credentials = Credentials(homeserver="https://x.org", user_id=UserId(BOT), device_id=DeviceId("D"), access_token="syt_secret_token")
    assert load_credentials(tmp_path) is None
    save_credentials(tmp_path, credentials)
    assert "syt_secret_token" not in repr(credentials)
    path = tmp_path / "credentials.json"
    before = path.read_text()
    path.chmod(0o640)
    with pytest.raises(AccountError, match="chmod 600"):
        load_credentials(tmp_path)
    path.chmod(0o600)
    for damage in (before[: len(before) // 2], "[]", json.dumps({"user_id": BOT})):
        path.write_text(damage)
        with pytest.raises(AccountError, match="not what `hayate-matrix login` writes"):
            load_credentials(tmp_path)
        assert path.read_text() == damage


@pytest.mark.requirement("ACC-1", "REL-4")
def test_a_failed_write_leaves_the_old_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk while a new token is saved loses neither the old file nor leaves half a new one."""
    old = Credentials(homeserver="https://x.org", user_id=UserId(BOT), device_id=DeviceId("D"), access_token="syt_old_token")
    save_credentials(tmp_path, old)

    left = [OSError(28, "No space left on device")]

    def fail_once(_handle: int) -> None:
        if left:
            raise left.pop()

    monkeypatch.setattr("os.fsync", fail_once)
    new = Credentials(homeserver="https://x.org", user_id=UserId(BOT), device_id=DeviceId("D"), access_token="syt_new_token")
    with pytest.raises(AccountError, match="No space left"):
        save_credentials(tmp_path, new)
    assert load_credentials(tmp_path) == old
    assert [path.name for path in tmp_path.iterdir()] == ["credentials.json"]
