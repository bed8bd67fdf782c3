"""Texts at rest."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import keyring
import keyring.backend
import keyring.backends.fail
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hayate_matrix.errors import StoreError
from hayate_matrix.store.sealing import Sealer, find_next_key, load_key, promote_next_key, read_key

if TYPE_CHECKING:
    from pathlib import Path

KEY = bytes(range(32))


@pytest.mark.requirement("STO-8")
@given(text=st.text(), field=st.text(), row=st.text())
def test_a_sealed_text_opens_to_the_same_text(text: str, field: str, row: str) -> None:
    """Whatever a person wrote comes back as it was."""
    sealer = Sealer(KEY)
    assert sealer.open(field, row, sealer.seal(field, row, text)) == text


@pytest.mark.requirement("STO-8")
def test_a_lone_surrogate_survives() -> None:
    """A text that is no valid Unicode is kept, not refused: it may come in a room."""
    sealer = Sealer(KEY)
    assert sealer.open("f", "r", sealer.seal("f", "r", "a\ud800b")) == "a\ud800b"


@pytest.mark.requirement("STO-8", "SEC-4")
def test_every_sealing_is_different_and_holds_no_plain_text() -> None:
    """The same text twice gives two different rows, so that a copied database does not even tell what repeats."""
    sealer = Sealer(KEY)
    first, second = (sealer.seal("inbox.content", "$1", "a secret plan") for _ in range(2))
    assert first != second
    assert b"secret" not in first


@pytest.mark.requirement("STO-8")
@pytest.mark.parametrize(("field", "row"), [("inbox.content", "$2"), ("outbox.text", "$1")], ids=["another row", "another field"])
def test_a_text_moved_elsewhere_does_not_open(field: str, row: str) -> None:
    """A sealed text that somebody copied into another row or field is refused, by its place and without its text."""
    sealer = Sealer(KEY)
    sealed = sealer.seal("inbox.content", "$1", "a secret plan")
    with pytest.raises(StoreError) as caught:
        sealer.open(field, row, sealed)
    assert field in str(caught.value)
    assert row in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.requirement("STO-8")
def test_damage_is_refused() -> None:
    """A changed byte anywhere is refused, never read as another text."""
    sealer = Sealer(KEY)
    sealed = sealer.seal("f", "r", "text")
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 0x40
        with pytest.raises(StoreError):
            sealer.open("f", "r", bytes(changed))
    with pytest.raises(StoreError):
        sealer.open("f", "r", sealed[:10])


@pytest.mark.requirement("STO-8")
def test_another_key_is_named() -> None:
    """A row of another key says which key it wants."""
    first, second = Sealer(KEY), Sealer(bytes(32))
    with pytest.raises(StoreError, match=f"{first.key_id}.*{second.key_id}"):
        second.open("f", "r", first.seal("f", "r", "text"))


@pytest.mark.requirement("STO-8")
def test_plain_rows_are_told_apart() -> None:
    """With sealing off rows are plain, and both kinds are read whatever the setting is now."""
    sealing, plain = Sealer(KEY), Sealer(KEY, is_on=False)
    assert b"text" in plain.seal("f", "r", "text")
    assert sealing.open("f", "r", plain.seal("f", "r", "text")) == "text"
    assert plain.open("f", "r", sealing.seal("f", "r", "text")) == "text"


def test_derived_keys_differ_by_purpose() -> None:
    """Each purpose has a key of its own, the same after a restart."""
    assert Sealer(KEY).derive("pickle") == Sealer(KEY).derive("pickle")
    assert Sealer(KEY).derive("pickle") != Sealer(KEY).derive("other")
    assert len(Sealer(KEY).derive("pickle")) == 32


@pytest.mark.requirement("STO-8", "STO-1")
def test_the_first_start_makes_a_key_that_stays(tmp_path: Path) -> None:
    """The key is made once, in a file that nobody else may read."""
    key = load_key(tmp_path / "secrets")
    assert load_key(tmp_path / "secrets") == key
    assert len(key) == 32
    assert stat.S_IMODE((tmp_path / "secrets" / "store.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    assert [path.name for path in (tmp_path / "secrets").iterdir()] == ["store.key"]


@pytest.mark.requirement("STO-8")
@pytest.mark.parametrize(("mode", "content"), [(0o640, "ab" * 32), (0o600, "ab" * 31), (0o600, "zz" * 32), (0o600, "")])
def test_a_key_that_cannot_be_right_is_refused(tmp_path: Path, mode: int, content: str) -> None:
    """A key file that others may read, or that holds no key, stops the start with what to do, and stays as it is."""
    path = tmp_path / "store.key"
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(StoreError) as caught:
        load_key(tmp_path)
    assert str(path) in str(caught.value)
    assert caught.value.remedy
    assert path.read_text() == content


@pytest.mark.requirement("STO-8")
def test_a_missing_key_of_the_operator_is_not_made(tmp_path: Path) -> None:
    """A file that the operator named is never made in silence: a wrong path would seal with a key that nobody keeps."""
    with pytest.raises(StoreError, match="openssl rand"):
        load_key(tmp_path, tmp_path / "elsewhere.key")
    assert list(tmp_path.iterdir()) == []


class _MemoryRing(keyring.backend.KeyringBackend):
    """A keyring of this process, as a backend of the keyring package."""

    priority = 1

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.entries: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.entries.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.entries[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self.entries[service, username]


@pytest.mark.requirement("STO-8", "SEC-4")
def test_key_may_lie_in_the_systems_keyring(tmp_path: Path) -> None:
    """`keyring:NAME` is made at the first use, read after that, and changed like a file; no file is written."""
    before = keyring.get_keyring()
    ring = _MemoryRing()
    keyring.set_keyring(ring)
    try:
        place = tmp_path / "keyring:bot"
        with pytest.raises(StoreError, match="Put it back"):
            load_key(tmp_path, place, may_make=False)
        assert ring.entries == {}
        key = load_key(tmp_path, place)
        assert load_key(tmp_path, place) == key
        following = read_key(find_next_key(place), may_make=True)
        with pytest.raises(StoreError, match="reseal"):
            load_key(tmp_path, place)
        promote_next_key(place)
        assert load_key(tmp_path, place) == following != key
        assert list(ring.entries) == [("hayate-matrix", "bot")]
        ring.set_password("hayate-matrix", "bot", "nonsense")
        with pytest.raises(StoreError, match="64 hexadecimal"):
            load_key(tmp_path, place)
        keyring.set_keyring(keyring.backends.fail.Keyring())  # type: ignore[no-untyped-call]
        with pytest.raises(StoreError, match="Unlock it"):
            load_key(tmp_path, place)
    finally:
        keyring.set_keyring(before)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.requirement("STO-8", "REL-4")
def test_key_that_is_gone_is_not_replaced_by_a_new_one(tmp_path: Path) -> None:
    """Where something was stored already, a missing key is told and none is made in its place."""
    with pytest.raises(StoreError, match="Put it back"):
        load_key(tmp_path, may_make=False)
    assert list(tmp_path.iterdir()) == []
    key = load_key(tmp_path)
    assert load_key(tmp_path, may_make=False) == key
