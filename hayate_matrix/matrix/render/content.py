"""What stands in an event around the text: mentions, the relation to the request, the mark that finds a delivery again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hayate_matrix.matrix.facts import DELIVERY_KEY

if TYPE_CHECKING:
    from hayate_matrix.core.deliveries import Delivery
    from hayate_matrix.matrix.render.pieces import Rendered


def make_content(delivery: Delivery, rendered: Rendered, part: int) -> dict[str, Any]:
    """Return the content of one message of a reply or notice."""
    content: dict[str, Any] = {
        "msgtype": "m.text" if delivery.kind == "reply" else "m.notice",
        "body": rendered.body,
        "m.mentions": {"user_ids": [delivery.mention]} if delivery.mention and part == 0 else {},
        DELIVERY_KEY: f"{delivery.id}/{part}",
    }
    if rendered.formatted_body:
        content["format"] = "org.matrix.custom.html"
        content["formatted_body"] = rendered.formatted_body
    return {**content, **make_relation(delivery, part)}


def make_relation(delivery: Delivery, part: int) -> dict[str, Any]:
    """Return how a part refers to its request: the first as a reply, all of them inside the thread."""
    reply = {"event_id": delivery.request} if delivery.request and part == 0 else None
    if delivery.thread:
        relation = {
            "rel_type": "m.thread",
            "event_id": delivery.thread,
            "is_falling_back": reply is None,
            "m.in_reply_to": reply or {"event_id": delivery.request or delivery.thread},
        }
        return {"m.relates_to": relation}
    return {"m.relates_to": {"m.in_reply_to": reply}} if reply else {}


def make_reaction(delivery: Delivery) -> dict[str, Any]:
    """Return the content of a reaction to the request."""
    relation = {"rel_type": "m.annotation", "event_id": delivery.request, "key": delivery.text}
    return {"m.relates_to": relation, DELIVERY_KEY: f"{delivery.id}/0"}
