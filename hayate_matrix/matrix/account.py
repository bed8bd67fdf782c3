"""The account: who the bot is on its homeserver, kept in one file that only its user can read (ACC-1).

Promise: the server makes the device id once and it is kept; a new login is for the same device; a new token is on disk before its use.
How: `credentials.json` in `secrets/` (0600), written by renaming; a login makes it, `Account.check` compares it with what the server says.
Not here: the requests' policy (matrix/http), the device's keys (matrix/keys).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hayate_matrix import log
from hayate_matrix.core.allowlist import parse_user
from hayate_matrix.core.ids import DeviceId, UserId
from hayate_matrix.errors import AccountError, InputError, MatrixError
from hayate_matrix.store.sealing import sync_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from hayate_matrix.matrix.http import Http

FILE_NAME = "credentials.json"
_OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_LOGIN_AGAIN = "Run `hayate-matrix login` to log the bot in again."
LOGGED_OUT = (
    "Stop the bot and run `hayate-matrix login`: it logs the same device in again, whose keys and identity are here. What was sent to it "
    "in between may stay unreadable."
)
_OTHER_DEVICE = "Another device needs another home and an account that has no identity yet: --home DIR"

_log = log.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a login gave."""

    homeserver: str
    user_id: UserId
    device_id: DeviceId
    access_token: str = dataclasses.field(repr=False)


def load_credentials(secrets_dir: Path) -> Credentials | None:
    """Return the credentials of `secrets_dir`, None where nobody has logged in yet.

    Raises:
        AccountError: the file is open to others, can't be read, or holds something else; it was left as it is.
    """
    path = secrets_dir / FILE_NAME
    try:
        mode = path.stat().st_mode
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise AccountError(f"The credentials {path} can't be read: {reason}.", remedy="Let the bot's user read them.") from error
    if mode & _OPEN_TO_OTHERS:
        problem = f"The credentials {path} have the permissions {stat.S_IMODE(mode):04o}: others may read or change them."
        raise AccountError(problem, allowed="Allowed: 0600.", remedy=f"chmod 600 {path}")
    try:
        fields = json.loads(text)
        credentials = Credentials(**{field.name: str(fields[field.name]) for field in dataclasses.fields(Credentials)})  # type: ignore[arg-type]
    except (ValueError, TypeError, KeyError):
        problem = f"The credentials {path} are not what `hayate-matrix login` writes."
        raise AccountError(
            problem, remedy="Put the file back, or move it away and log in with a token of the same device (--token)."
        ) from None
    log.hide(credentials.access_token)
    return credentials


def save_credentials(secrets_dir: Path, credentials: Credentials) -> None:
    """Write `credentials` (0600), whole or not at all, and return when they are on disk.

    Raises:
        AccountError: the file can't be written; an older one is still there.
    """
    log.hide(credentials.access_token)
    path = secrets_dir / FILE_NAME
    text = json.dumps(dataclasses.asdict(credentials), indent=1) + "\n"
    try:
        secrets_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=secrets_dir, prefix=f".{FILE_NAME}-")  # made 0600
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
        sync_folder(secrets_dir)
    except OSError as error:
        problem = f"The credentials {path} can't be written: {error.strerror}."
        raise AccountError(problem, remedy="See to the disk and the permissions of the home.") from error


async def log_in_with_password(
    http: Http,
    secrets_dir: Path,
    user: str,
    password: str,
    *,
    device_name: str,
    device_id: DeviceId | None = None,
    retry: bool = False,
) -> Credentials:
    """Log in by password, keep what the server gave, and return it; without `device_id` the server makes a new device.

    `http` takes the new token over once it is on disk; requests that are under way go on with the old one. `retry` waits a server that
    can't be reached out.

    Raises:
        AccountError: the server refused, or does not offer a login by password; the text says what to do.
        WaitError: no answer (HomeserverDown, RateLimited), without `retry`; nothing was changed.
    """
    log.hide(password)
    body: dict[str, Any] = {
        "type": "m.login.password",
        "identifier": {"type": "m.id.user", "user": user},
        "password": password,
        "initial_device_display_name": device_name,
    }
    if device_id is not None:
        body["device_id"] = device_id
    anonymous = http.make_anonymous()
    try:
        await _require_password_flow(anonymous, retry=retry)
        answer = await anonymous.request("account.login", "POST", "/_matrix/client/v3/login", body=body, retry=retry)
    except MatrixError as error:
        raise _refused_login(error, user) from error
    finally:
        await anonymous.close()
    credentials = _read_answer(http, answer, answer.get("access_token"))
    if device_id is not None and credentials.device_id != device_id:
        problem = f"The homeserver logged in the device {credentials.device_id} where {device_id} was asked for."
        raise AccountError(problem, remedy=_OTHER_DEVICE)
    save_credentials(secrets_dir, credentials)
    http.access_token = credentials.access_token
    return credentials


async def log_in_with_token(http: Http, secrets_dir: Path, access_token: str, *, expected: Credentials | None = None) -> Credentials:
    """Keep an access token that was made elsewhere, with the user and device that the server says it belongs to.

    Raises:
        AccountError: the server does not know the token, or it belongs to no device, or to another one than `expected`.
        WaitError: no answer (HomeserverDown, RateLimited); nothing was changed.
    """
    log.hide(access_token)
    http.access_token = access_token
    try:
        answer = await http.request("account.whoami", "GET", "/_matrix/client/v3/account/whoami", retry=False)
    except MatrixError as error:
        problem = f"The homeserver does not take this access token ({error.errcode})."
        raise AccountError(problem, remedy="Make a new one, or log in by password.") from error
    credentials = _read_answer(http, answer, access_token)
    if expected is not None and (credentials.user_id, credentials.device_id) != (expected.user_id, expected.device_id):
        problem = (
            f"The token is for {credentials.user_id}, device {credentials.device_id}; the home is {expected.user_id}, {expected.device_id}."
        )
        raise AccountError(problem, remedy=f"Use a token of that device. {_OTHER_DEVICE}")
    save_credentials(secrets_dir, credentials)
    return credentials


class Account:
    """The account of a running bot; its token may change, its user and device never do."""

    def __init__(
        self, http: Http, secrets_dir: Path, credentials: Credentials, *, read_password: Callable[[], str | None], device_name: str
    ) -> None:
        self.credentials = credentials
        self._http = http
        self._secrets_dir = secrets_dir
        self._read_password = read_password
        self._device_name = device_name
        http.access_token = credentials.access_token

    async def check(self) -> None:
        """Return when the server says that the token is this user's and this device's; waits out an unreachable server.

        Raises:
            AccountError: it is another's, or the token is no longer known and could not be replaced.
        """
        try:
            answer = await self._http.request("account.whoami", "GET", "/_matrix/client/v3/account/whoami")
        except MatrixError as error:
            await self.recover(error)
            return
        for name, stored in (("user_id", self.credentials.user_id), ("device_id", self.credentials.device_id)):
            if answer.get(name) != stored:
                problem = f"The access token belongs to {name} {answer.get(name)!r}, but the home belongs to {stored!r}."
                raise AccountError(problem, remedy=f"Put the right credentials back. {_LOGIN_AGAIN}")

    async def recover(self, error: MatrixError) -> None:
        """Return when the bot is logged in again after `error`; anything but an unknown token is raised as it is.

        A server that says `soft_logout` kept the device: the bot logs in for that same device, with the password of the settings.

        Raises:
            AccountError: the device is logged out, the password is missing or wrong, or the account is no more; the bot stops.
            MatrixError: `error`, where it says nothing about the token.
        """
        if error.errcode == "M_USER_DEACTIVATED":
            raise AccountError(f"The account {self.credentials.user_id} was deactivated.", remedy="Use another account.") from error
        if error.errcode not in {"M_UNKNOWN_TOKEN", "M_MISSING_TOKEN"}:
            raise error
        device = self.credentials.device_id
        if error.body.get("soft_logout") is not True:
            raise AccountError(f"The homeserver has logged the bot's device {device} out.", remedy=LOGGED_OUT) from error
        password = self._read_password()
        if password is None:
            problem = f"The homeserver asks the device {device} to log in again, and no password is set."
            raise AccountError(problem, remedy=f"Set matrix.password_file. {_LOGIN_AGAIN}") from error
        _log.warning("logging in again for the same device", device_id=device)
        user = self.credentials.user_id
        self.credentials = await log_in_with_password(
            self._http, self._secrets_dir, user, password, device_name=self._device_name, device_id=device, retry=True
        )


async def _require_password_flow(http: Http, *, retry: bool) -> None:
    answer = await http.request("account.flows", "GET", "/_matrix/client/v3/login", retry=retry)
    flows = answer.get("flows")
    found = [flow.get("type") for flow in flows if isinstance(flow, dict)] if isinstance(flows, list) else []
    if "m.login.password" not in found:
        problem = "The homeserver offers no login by password."
        raise AccountError(
            problem, allowed=f"It offers {', '.join(map(str, found)) or 'nothing'}.", remedy="Log in with an access token instead."
        )


def _refused_login(error: MatrixError, user: str) -> AccountError:
    if error.errcode == "M_FORBIDDEN":
        return AccountError(f"The homeserver refused user and password of {user}.", remedy="Check both.")
    if error.errcode == "M_USER_DEACTIVATED":
        return AccountError(f"The account {user} was deactivated.", remedy="Use another account.")
    return AccountError(f"The homeserver refused the login of {user} ({error.errcode}).", remedy="Ask its administrator.")


def _read_answer(http: Http, answer: dict[str, Any], access_token: object) -> Credentials:
    user_id, device_id = answer.get("user_id"), answer.get("device_id")
    if not isinstance(access_token, str) or not access_token or not isinstance(device_id, str) or not device_id:
        problem = "The homeserver's answer names no device, so nothing could be encrypted."
        raise AccountError(problem, remedy="Use a token that came from a login, or log in by password.")
    try:
        parse_user(str(user_id))
    except InputError:
        raise AccountError(f"The homeserver's answer names the user {user_id!r}, which is no user id.") from None
    return Credentials(homeserver=http.homeserver, user_id=UserId(str(user_id)), device_id=DeviceId(device_id), access_token=access_token)
