"""Text at rest: every word that a person or a model wrote is sealed before it becomes a column (STO-8).

Promise: a copied database alone tells nothing, and a sealed text opens only in the row and for the field that it was sealed for.
How: AES-256-GCM with a fresh nonce each; logical field, row id and key id are bound in as associated data. The field is a logical
     name (`inbox.content`), not a column, so that migrations may rename tables.
Not here: where sealed columns live (`schema`) and which texts are sealed (each store module does it on its way in and out).
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from hayate_matrix.errors import StoreError
from hayate_matrix.log import get_logger

if TYPE_CHECKING:
    from pathlib import Path

_log = get_logger(__name__)

KEY_BYTES = 32
"""AES-256."""
_KEY_FILE_NAME = "store.key"
_KEYRING = "keyring:"
_SERVICE = "hayate-matrix"
"""Name under which entries of the system's keyring stand."""

_PLAIN = b"\x00"
_SEALED = b"\x01"
_KEY_ID_BYTES = 4
_NONCE_BYTES = 12
"""96 bits: the nonce length that GCM is made for (NIST SP 800-38D, 8.2)."""
_HEADER_BYTES = len(_SEALED) + _KEY_ID_BYTES
_OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Sealer:
    """Seals and opens texts with one key."""

    def __init__(self, key: bytes, *, is_on: bool = True) -> None:
        if len(key) != KEY_BYTES:
            problem = f"The sealing key has {len(key)} bytes."
            raise StoreError(problem, allowed=f"It has {KEY_BYTES} bytes.")
        self._key = key
        self._cipher = AESGCM(key)
        self._key_id = hashlib.sha256(key).digest()[:_KEY_ID_BYTES]
        self.key_id = self._key_id.hex()
        """First 8 hexadecimal digits of the key's SHA-256: names a key without telling it."""
        self.is_on = is_on

    def seal(self, field: str, row_id: str, text: str) -> bytes:
        """Return `text` as bytes that only `open` with the same field and row id reads; plain bytes where sealing is off."""
        data = text.encode("utf-8", "surrogatepass")
        if not self.is_on:
            return _PLAIN + data
        nonce = os.urandom(_NONCE_BYTES)
        return _SEALED + self._key_id + nonce + self._cipher.encrypt(nonce, data, self._bind(field, row_id))

    def open(self, field: str, row_id: str, sealed: bytes) -> str:
        """Return the text that `seal` was given; rows written plain (sealing off) are read too.

        Raises:
            StoreError: another key, another row, or damage; the text names field and row id, never content.
        """
        sealed = bytes(sealed)
        if sealed[:1] == _PLAIN:
            return sealed[1:].decode("utf-8", "surrogatepass")
        if sealed[:1] != _SEALED or len(sealed) < _HEADER_BYTES + _NONCE_BYTES:
            problem = f"The text {field} of row {row_id} is no sealed text."
            raise StoreError(problem, remedy="The database is damaged: restore a backup.")
        key_id = sealed[1:_HEADER_BYTES]
        if key_id != self._key_id:
            problem = f"The text {field} of row {row_id} was sealed with the key {key_id.hex()}; the key here is {self.key_id}."
            raise StoreError(problem, remedy="Put the store.key back that belongs to this database.")
        nonce = sealed[_HEADER_BYTES : _HEADER_BYTES + _NONCE_BYTES]
        try:
            data = self._cipher.decrypt(nonce, sealed[_HEADER_BYTES + _NONCE_BYTES :], self._bind(field, row_id))
        except InvalidTag:
            problem = f"The text {field} of row {row_id} does not open: it was changed, or it belongs to another row."
            raise StoreError(problem, remedy="The database is damaged: restore a backup.") from None
        return data.decode("utf-8", "surrogatepass")

    def try_open(self, field: str, row_id: str, sealed: bytes) -> str | None:
        """Return the text, or None for a damaged one, which is logged: one damaged row is set aside, not the end."""
        try:
            return self.open(field, row_id, sealed)
        except StoreError as error:
            _log.error("a damaged text is left out", field=field, row=row_id, problem=error.problem)
            return None

    def derive(self, purpose: str) -> bytes:
        """Return 32 bytes for `purpose`, the same for the same key and purpose, that tell nothing of either key."""
        return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=purpose.encode()).derive(self._key)

    def _bind(self, field: str, row_id: str) -> bytes:
        return f"{field}|{row_id}|{self.key_id}".encode()


def load_key(secrets_dir: Path, key_file: Path | None = None, *, may_make: bool = True) -> bytes:
    """Return the sealing key of `key_file`, else of `secrets_dir/store.key`, which the first start makes (0600).

    The file holds 64 hexadecimal digits, so that it can be copied by hand. A name `keyring:NAME` is an entry of the system's keyring
    instead of a file; its first use makes it.

    `may_make` is False where something was stored already: a key made then would stand in the place of the one that is needed.

    Raises:
        StoreError: the key is missing and not to be made, a change of it was cut off, its file is open to others or holds no key, or the
            keyring can't be used; nothing was changed.
    """
    path = find_key_place(secrets_dir, key_file)
    if has_key(find_next_key(path)):
        problem = f"A change of the sealing key {path} was cut off."
        raise StoreError(problem, remedy="Run `hayate-matrix reseal`, which goes on with it.")
    is_ours = key_file is None or _find_entry(path) is not None
    if is_ours and not may_make and not has_key(path):
        problem = f"The sealing key {path} is gone, and what is stored was sealed with it."
        raise StoreError(problem, remedy="Put it back from where you keep its copy; a new key can't open what is stored.")
    return read_key(path, may_make=is_ours)


def find_key_place(secrets_dir: Path, key_file: Path | None) -> Path:
    """Return where the sealing key lies, or will: `key_file` where it is named, else `secrets_dir/store.key`."""
    return key_file or secrets_dir / _KEY_FILE_NAME


def find_next_key(path: Path) -> Path:
    """Return where the next sealing key lies while texts are sealed anew."""
    return path.with_name(f"{path.name}.next")


def has_key(path: Path) -> bool:
    """Whether there is a key at this place, a file or an entry of the keyring."""
    entry = _find_entry(path)
    return path.exists() if entry is None else _ask_keyring("get_password", entry) is not None


def promote_next_key(path: Path) -> None:
    """Put the next key into the place of the present one, durably."""
    following = find_next_key(path)
    entry = _find_entry(path)
    if entry is not None:
        _ask_keyring("set_password", entry, read_key(following, may_make=False).hex())
        _ask_keyring("delete_password", f"{entry}.next")
        return
    following.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Bring the folder's names to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _find_entry(path: Path) -> str | None:
    """Return the entry of the system's keyring that `keyring:NAME` names; None for a file."""
    return path.name.removeprefix(_KEYRING) if path.name.startswith(_KEYRING) else None


def _ask_keyring(what: str, *arguments: str) -> str | None:
    try:
        import keyring  # noqa: PLC0415 - an optional dependency
        import keyring.errors  # noqa: PLC0415 - as above
    except ImportError:
        problem = "store.key_file names an entry of the system's keyring, and the package that reads it is not installed."
        raise StoreError(problem, remedy="pip install 'hayate-matrix[keyring]', or name a file.") from None
    try:
        answer: str | None = getattr(keyring, what)(_SERVICE, *arguments)
    except keyring.errors.KeyringError as error:
        problem = f"The system's keyring can't be used: {type(error).__name__}."
        raise StoreError(problem, remedy="Unlock it for the bot's user, or name a file in store.key_file.") from error
    return answer


def read_key(path: Path, *, may_make: bool) -> bytes:
    """Return the key at this place, made where it is missing and may be; see `load_key`."""
    entry = _find_entry(path)
    if entry is not None:
        found = _ask_keyring("get_password", entry)
        if found is None:
            found = secrets.token_hex(KEY_BYTES)
            _ask_keyring("set_password", entry, found)
        return _parse_key(path, found.strip())
    try:
        details = path.stat()
        content = path.read_text("ascii", "replace").strip() if stat.S_ISREG(details.st_mode) else ""
    except FileNotFoundError:
        if not may_make:
            problem = f"The sealing key {path} is not there."
            remedy = f"Put it back, or for a new store: (umask 077; openssl rand -hex {KEY_BYTES} > {path})"
            raise StoreError(problem, remedy=remedy) from None
        return _make_key(path)
    except OSError as error:
        problem = f"The sealing key {path} can't be read: {error.strerror}."
        raise StoreError(problem, remedy=f"Let the bot's user alone read it: chmod 600 {path}") from error
    if details.st_mode & _OPEN_TO_OTHERS:
        problem = f"The sealing key {path} has the permissions {stat.S_IMODE(details.st_mode):04o}: others may read or change it."
        raise StoreError(problem, allowed="Allowed: 0600 or 0400.", remedy=f"chmod 600 {path}")
    return _parse_key(path, content)


def _parse_key(path: Path, content: str) -> bytes:
    try:
        key = bytes.fromhex(content)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        problem = f"The sealing key {path} does not hold a key ({len(content)} characters)."
        raise StoreError(
            problem,
            allowed=f"It holds {KEY_BYTES * 2} hexadecimal digits.",
            remedy="Put the right file back; a new key can't open what is stored.",
        )
    return key


def _make_key(path: Path) -> bytes:
    """Write a fresh key durably: whole or not at all, and never over one that somebody else just made."""
    key = secrets.token_bytes(KEY_BYTES)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(handle, key.hex().encode() + b"\n")
            os.fsync(handle)
        finally:
            os.close(handle)
        try:
            os.link(draft, path)
        except FileExistsError:
            return read_key(path, may_make=False)
        finally:
            draft.unlink()
        sync_folder(path.parent)
    except OSError as error:
        problem = f"The sealing key {path} can't be made: {error.strerror}."
        raise StoreError(problem, remedy=f"Let the bot's user write in {path.parent}.") from error
    return key
