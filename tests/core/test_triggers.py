"""Whether a message is meant for the bot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hayate_matrix.core.ids import UserId
from hayate_matrix.core.triggers import Address, Speaker, Trigger, decide_trigger, is_quick_exchange, strip_mention

BOT = UserId("@bot:example.org")
OTHER = UserId("@other:example.org")
SPEAKER = Speaker(user_id=BOT, names=("Hayate Matrix",))
PILL = '<a href="https://matrix.to/#/@bot:example.org">Hayate Matrix</a>'


@pytest.mark.requirement("ROOM-5")
@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (Address(body="hello"), (False, False, True)),
        (Address(body="hello", is_direct=True), (True, True, True)),
        (Address(body="hello", is_reply_to_bot=True), (True, True, True)),
        (Address(body="hello", is_in_addressed_thread=True), (False, True, True)),
        (Address(body="hello", mentions=(BOT,)), (True, True, True)),
        (Address(body="hello", mentions=(OTHER, BOT)), (True, True, True)),
        (Address(body="bot: hello", mentions=()), (False, False, True)),
        (Address(body="hello", mentions=(), pills=(BOT,)), (False, False, True)),
        (Address(body="hello", pills=(BOT,)), (True, True, True)),
        (Address(body="hello", pills=(OTHER,)), (False, False, True)),
    ],
)
def test_what_triggers(address: Address, expected: tuple[bool, bool, bool]) -> None:
    """`m.mentions` come first where the sender wrote them; then pills, then names; replies and threads as the setting says."""
    settings: list[Trigger] = ["mention", "thread", "always"]
    assert tuple(decide_trigger(address, SPEAKER, setting) for setting in settings) == expected


@pytest.mark.requirement("ROOM-5")
@pytest.mark.parametrize(
    ("body", "is_called"),
    [
        ("bot: hello", True),
        ("Bot, hello", True),
        ("@bot hello", True),
        ("@bot", True),
        ("  @bot: hello", True),
        ("@bot:example.org hello", True),
        ("@bot:example.org: hello", True),
        ("Hayate Matrix: hello", True),
        ("@Hayate Matrix hello", True),
        ("bot hello", False),
        ("bots: hello", False),
        ("@bots hello", False),
        ("@bot:elsewhere.org hello", False),
        ("@bot:example.orgs hello", False),
        ("hello bot: are you there", False),
        ("hello @bot", False),
        ("", False),
    ],
)
def test_a_name_at_the_start_calls_the_bot(body: str, *, is_called: bool) -> None:
    """`@name` and `name:` at the start call it; the same name inside, a longer one, or an account of another server does not."""
    assert decide_trigger(Address(body=body), SPEAKER, "mention") is is_called


@pytest.mark.requirement("IN-8")
@pytest.mark.parametrize(
    ("body", "formatted", "text"),
    [
        ("  hello ", None, "hello "),
        ("bot: hello", None, "hello"),
        ("@bot   hello", None, "hello"),
        ("@bot:example.org: hello", None, "hello"),
        ("Hayate Matrix: !stop", f"{PILL}: !stop", "!stop"),
        ("Hayate Matrix !stop", f"{PILL} !stop", "!stop"),
        ("Some Nick hello", f"<p>{PILL.replace('Hayate Matrix', 'Some Nick')} hello</p>", "hello"),
        ("@bot:example.org hello", PILL.replace("@", "%40", 1).replace("bot:", "bot%3A") + " hello", "hello"),
        ("Hayate Matrix !stop", "<b>Hayate Matrix</b> !stop", "Hayate Matrix !stop"),
        ("Some One hello", PILL.replace("@bot", "@one").replace("Hayate Matrix", "Some One") + " hello", "Some One hello"),
        ("bother: hello", None, "bother: hello"),
        ("@bot\nhello", None, "hello"),
    ],
)
def test_the_leading_mention_is_removed(body: str, formatted: str | None, text: str) -> None:
    """Leading blanks and the pill, `@name` or `name:` that calls the bot go; another's mention stays."""
    assert strip_mention(body, formatted, SPEAKER) == text


@pytest.mark.requirement("SEC-2")
@pytest.mark.parametrize(
    "formatted", ['<a href="https://matrix.to/#/' + "a" * 65_000, '<a href="https://matrix.to/#/a" ' * 2_000, " " * 65_000, "<p>" * 20_000]
)
def test_a_hostile_formatted_body_costs_no_time(formatted: str) -> None:
    """A body made to keep the search busy is looked at in part only."""
    assert strip_mention("bot: hello", formatted, SPEAKER) == "hello"


@given(st.text(), st.none() | st.text())
def test_no_text_breaks_them(body: str, formatted: str | None) -> None:
    """Any text is decided, and what is left of it ends like it."""
    decide_trigger(Address(body=body, formatted_body=formatted), SPEAKER, "mention")
    assert body.endswith(strip_mention(body, formatted, SPEAKER))


@pytest.mark.requirement("IN-9")
@pytest.mark.parametrize(
    ("text", "received", "answered", "expected"),
    [
        ("ok", 20_000, 19_500, True),
        ("ok", 20_000, 18_000, False),
        ("x" * 100, 20_000, 13_000, True),
        ("x" * 100, 20_000, 12_000, False),
        ("x" * 5000, 20_000, 10_001, True),
        ("x" * 5000, 20_000, 9_999, False),
        ("ok", 20_000, None, False),
        ("ok", 9_000, 15_000, False),
    ],
)
def test_a_quick_exchange_is_sooner_than_a_person_types(text: str, received: int, answered: int | None, *, expected: bool) -> None:
    """What a person could have read and typed meanwhile does not count; a clock that was set back makes nobody a program."""
    assert is_quick_exchange(text, received, answered) is expected
