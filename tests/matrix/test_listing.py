"""Lists are shown exactly as they are, and their times lead to the very message in the room."""

from __future__ import annotations

import dataclasses
import html
import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from hayate_matrix.core.ids import EventId, RoomId
from hayate_matrix.matrix.render import MAX_PARTS, make_permalink, split_listing

if TYPE_CHECKING:
    from tests.support.edge import EdgeWorld
    from tests.support.fabricated import FabricatedHomeserver
    from tests.support.fabricated.devices import FabricatedUser

HOSTILE = '  <img src=x onerror=alert(1)> <b>&amp; **bold** [x](https://evil.test) @room "quoted" #'


def read_permalink(address: str) -> tuple[str, str, list[str]]:
    """Return room id, event id and servers of a matrix.to address, as a client reads it."""
    parts = urlsplit(address)
    assert (parts.scheme, parts.netloc, parts.path) == ("https", "matrix.to", "/")
    path, _, query = parts.fragment.partition("?")
    _, room_id, event_id = path.split("/")
    return unquote(room_id), unquote(event_id), parse_qs(query).get("via", [])


@pytest.mark.requirement("IDX-6")
@pytest.mark.parametrize("room_id", ["!room:example.org", "!31hneApxJ_1o-63DmFrpeqnkFfWppnzWso1JvH3ogLM"])
@pytest.mark.parametrize("event_id", ["$143273582443PhrSn:example.org", "$Rqnc-F-dvnEYJTyHq_iKxU2bZ1CI92-kuZq3a5lr5Zg", "$a/b?c#d"])
def test_a_permalink_names_room_event_and_servers(room_id: str, event_id: str) -> None:
    """Ids of every version, and ones with any character, come back as they were."""
    address = make_permalink(RoomId(room_id), EventId(event_id), ["one.org", "[::1]:8448"])
    assert read_permalink(address) == (room_id, event_id, ["one.org", "[::1]:8448"])


@pytest.mark.requirement("IDX-6", "SEC-2")
def test_the_lines_are_the_body_and_nothing_in_them_is_markup() -> None:
    """The plain body is the text; the HTML shows the same text, with links on the words that were named and nothing else."""
    text = f"12:00 · s1\n{HOSTILE}\n12:00 · s2\n  12:00 in a line of its own"
    links = [("12:00", ""), ("12:00", "https://matrix.to/#/!r/$e?via=a&via=b")]
    (shown,) = split_listing(text, links, max_bytes=40_000)
    assert shown.body == text
    assert shown.formatted_body is not None
    assert re.findall(r"<(?!br>|/a>)[^>]*>", shown.formatted_body) == ['<a href="https://matrix.to/#/!r/$e?via=a&amp;via=b">']
    third = shown.formatted_body.split("<br>")[2]
    assert third == '<a href="https://matrix.to/#/!r/$e?via=a&amp;via=b">12:00</a> · s2'
    plain = html.unescape(re.sub(r"</?a[^>]*>", "", shown.formatted_body.replace("<br>", "\n"))).replace("\xa0", " ")
    assert plain == text


def test_lines_without_links_or_indent_need_no_html() -> None:
    """A list of tags is plain text."""
    (shown,) = split_listing("#one\n#two", [], max_bytes=40_000)
    assert (shown.body, shown.formatted_body) == ("#one\n#two", None)


@pytest.mark.requirement("OUT-4")
def test_a_long_list_is_cut_between_lines() -> None:
    """At most five messages, each within its budget; beyond that four and the rest in a file."""
    lines = [f"#tag{number}" for number in range(300)]
    parts = split_listing("\n".join(lines), [], max_bytes=1500)
    assert 1 < len(parts) <= MAX_PARTS
    assert "\n".join(part.body for part in parts).split("\n") == lines
    assert all(len(part.body) < 1500 for part in parts)
    many = split_listing("\n".join(lines * 20), [], max_bytes=1500)
    assert len(many) == MAX_PARTS - 1
    assert many[-1].overflow is not None
    (first, *_) = split_listing("x" * 5000, [], max_bytes=1500)
    assert len(first.body) < 1500


@pytest.mark.requirement("IDX-6", "OUT-7")
async def test_a_listing_is_sent_as_a_notice_with_its_permalinks(
    world: EdgeWorld, server: FabricatedHomeserver, alice: FabricatedUser
) -> None:
    """The first words of a line lead to the event, through the servers that are in the room."""
    members = [alice.user_id, world.login.user_id, "@a:big.test", "@b:big.test", "@c:small.test"]
    room = server.room("!plain:fab.test", members=members)
    await world.open()
    await world.synced()
    links = (("12:00", EventId("$old:fab.test")),)
    delivery = dataclasses.replace(world.delivery(room.room_id, "12:00 · s1\n  words", kind="listing"), links=links)
    await world.edge.gateway.deliver(delivery)
    content = server.requests("PUT", "*/send/*")[-1].body
    assert (content["msgtype"], content["body"]) == ("m.notice", "12:00 · s1\n  words")
    (address,) = re.findall(r'<a href="([^"]*)">12:00</a>', content["formatted_body"])
    room_id, event_id, servers = read_permalink(html.unescape(address))
    assert (room_id, event_id) == (room.room_id, "$old:fab.test")
    assert len(servers) <= 3
    assert {"fab.test", "big.test"} <= set(servers)
