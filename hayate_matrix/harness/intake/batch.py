"""What each fact of a batch asks for, and the rows that say so.

How: everything is written within the caller's transaction; what the rest of the harness must do about it is collected in `Accepted`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hayate_matrix.core.allowlist import decide_person
from hayate_matrix.core.commands import COMMANDS, parse_command
from hayate_matrix.core.facts import Edit, Membership, Message, Redaction, Skipped
from hayate_matrix.core.ids import MAIN_FOCUS, EventId, Focus
from hayate_matrix.core.transcript import Request
from hayate_matrix.core.triggers import Address, decide_trigger, is_quick_exchange, strip_mention
from hayate_matrix.harness.endings import stop_tasks
from hayate_matrix.harness.intake.versions import clean, edit_content, find_first_tags, find_tags, keep_tags, take_back
from hayate_matrix.harness.lanes import Work
from hayate_matrix.store.conversations import ensure_conversation, set_presence, set_streak
from hayate_matrix.store.inbox import InboxRow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from hayate_matrix.core.facts import AnyFact
    from hayate_matrix.core.ids import ConversationId, RoomId, SessionId
    from hayate_matrix.harness.limits import Limiter
    from hayate_matrix.harness.rules import Rules
    from hayate_matrix.store.conversations import Conversation
    from hayate_matrix.store.database import Connection
    from hayate_matrix.store.inbox import InboxKind
    from hayate_matrix.store.stores import Stores

_LATEST_MS = 2**53
"""The largest integer of Matrix's canonical JSON; what a server claims beyond it fits no column."""

_SKIPPED = {
    "gap": "I skipped {count} earlier messages of this room: more came at once than I fetch. Please repeat what still matters.",
    "age": "While I was away {count} messages came that are too old to be answered now. Please repeat what still matters.",
}
_OUTDATED = "A message of this room was removed meanwhile: please ask again."
_BEHIND = "That comes right after the answer that I am working on. `!stop` ends it."
_LOOP = (
    "We answer each other faster than people type, so I leave this message unanswered, and those that follow as fast. "
    "A pause of ten seconds, or a message by somebody else, lets me go on: please send it again then."
)


@dataclass(slots=True)
class Accepted:
    """What a batch of facts asks the rest of the harness to do, now that it is durable."""

    work: list[Work] = field(default_factory=list)
    commands: list[tuple[ConversationId, EventId]] = field(default_factory=list)
    owed: set[ConversationId] = field(default_factory=set)
    stopped: list[EventId] = field(default_factory=list)
    """Requests whose running turn has ended as stopped."""
    changed: set[SessionId] = field(default_factory=set)
    """Sessions whose stored text changed."""
    read: dict[RoomId, EventId] = field(default_factory=dict)
    """The last request of each room, for its receipt."""


class Batch:
    """Takes the facts of one transaction."""

    def __init__(
        self, stores: Stores, rules: Rules, limiter: Limiter, connection: Connection, now: datetime, targets: set[EventId]
    ) -> None:
        """Begin a batch; `targets` are the events of it that rows taken before are about."""
        self.accepted = Accepted()
        self._stores = stores
        self._inbox = stores.inbox
        self._rules = rules
        self._limiter = limiter
        self._speaker = rules.speaker
        self._connection = connection
        self._now = now
        self._now_ms = int(now.timestamp() * 1000)
        self._targets = targets
        self._conversations: dict[RoomId, Conversation] = {}

    def take(self, fact: AnyFact) -> None:
        """Write down one fact that is not known yet, and what it asks for."""
        conversation = self._get_conversation(fact.room_id)
        match fact:
            case Message():
                self._take_message(fact, conversation)
            case Edit():
                self._take_edit(fact, conversation)
            case Redaction():
                self._note(fact, conversation, "redaction", target=fact.target)
                self._remove(fact.target, conversation)
            case Membership(is_own=True):
                self._note(fact, conversation, "other")
                self._change_presence(fact, conversation)
            case Skipped():
                self._note(fact, conversation, "other")
                if conversation.is_present:
                    self._owe_notice(conversation, _SKIPPED[fact.reason].format(count=fact.count))
            case _:
                self._note(fact, conversation, "other")

    def _take_message(self, fact: Message, conversation: Conversation) -> None:
        focus = Focus(fact.thread) if fact.thread else MAIN_FOCUS
        if not conversation.is_present or fact.loop_marker or not decide_person(self._rules.policy, fact.sender):
            self._note(fact, conversation, "other", focus=focus)
            return
        about = self._find_about(conversation, fact.event_id)
        if any(row.kind == "redaction" for row in about):
            self._note(fact, conversation, "other", focus=focus)
            return
        text = strip_mention(clean(fact.body), fact.formatted_body, self._speaker)
        content = Request(sender=fact.sender, text=text, file_name=clean(fact.file_name) if fact.file_name else None)
        command = parse_command(text)
        if command is not None:
            self._put_command(fact, conversation, focus, content, is_ordered=COMMANDS[command.name].is_ordered)
            return
        if conversation.is_paused or not self._is_addressed(fact, conversation):
            self._reset_streak(fact, conversation)
            self._note(fact, conversation, "other", focus=focus)
            return
        if self._breaks_loop(fact, conversation):
            self._note(fact, conversation, "other", focus=focus)
            return
        edit = next((row for row in reversed(about) if row.kind == "edit" and row.sender == fact.sender and row.content is not None), None)
        tags = find_tags(fact.body, text)
        if edit is not None and edit.content is not None:
            content = edit_content(content, fact.event_id, edit.event_id, edit.content.text)
            self._inbox.remove_text(self._connection, [edit.event_id])  # the request has it now
            tags = keep_tags(tags, content.text)
        self._put_request(fact, conversation, focus, content, answers=fact.event_id, reply_to=fact.reply_to, tags=tags)

    def _take_edit(self, fact: Edit, conversation: Conversation) -> None:
        content = Request(sender=fact.sender, text=strip_mention(clean(fact.body), fact.formatted_body, self._speaker))
        row = self._inbox.find(self._connection, fact.target)
        is_welcome = conversation.is_present and not conversation.is_paused and bool(decide_person(self._rules.policy, fact.sender))
        if row is None:
            self._note(fact, conversation, "edit", target=fact.target, content=content if is_welcome else None)
            return
        is_theirs = row.sender == fact.sender and row.conversation_id == conversation.id
        about = self._inbox.find_about(self._connection, conversation.id, fact.target)
        # The edit itself may have been removed before it came.
        removals = (other for other in (*about, *self._find_about(conversation, fact.event_id)) if other.kind == "redaction")
        if not is_theirs or not is_welcome or any(removals):
            self._note(fact, conversation, "edit", target=fact.target)
            return
        # The newest request that this message led to: itself, or the follow-up of an earlier edit.
        newest = next((other for other in (*reversed(about), row) if other.kind == "request"), None)
        if newest is None:
            address = Address(body=fact.body, formatted_body=fact.formatted_body, mentions=fact.mentions, pills=fact.pills)
            if row.kind == "other" and decide_trigger(address, self._speaker, "mention"):
                self._put_request(fact, conversation, row.focus, content, answers=row.event_id, target=row.event_id)
            else:
                self._note(fact, conversation, "edit", target=fact.target)
            return
        if newest.content is None or newest.state == "dropped" or newest.content.text == content.text:
            self._note(fact, conversation, "edit", target=fact.target)
        elif newest.state == "queued":
            fresh = edit_content(newest.content, newest.event_id, fact.event_id, content.text)
            self._inbox.replace(self._connection, newest, fresh, keep_tags(newest.tags, content.text))
            self._note(fact, conversation, "edit", target=fact.target)
        else:
            follow_up = replace(content, is_edit=True)
            self._put_request(fact, conversation, row.focus, follow_up, answers=row.event_id, target=row.event_id)

    def _remove(self, target: EventId, conversation: Conversation) -> None:
        """Take the text of a message, and of its edits, out of everything that holds it (IN-5)."""
        meant = self._inbox.find(self._connection, target)
        found = (*([] if meant is None else [meant]), *self._inbox.find_about(self._connection, conversation.id, target))
        rows = [row for row in found if row.conversation_id == conversation.id and row.kind != "redaction"]
        for row in rows:
            if row.state == "queued":
                self._inbox.move(self._connection, row, "dropped")
            elif row.state == "running":
                self._stop(conversation, "its message was removed", request=row.event_id)
        event_ids = [row.event_id for row in rows]
        edited = self._find_edited(meant, conversation, event_ids)
        self._inbox.remove_text(self._connection, [*event_ids, *edited])
        if edited or any(row.kind == "request" for row in rows):
            self._stores.outbox.replace_listings(self._connection, conversation.id, _OUTDATED)
        sessions = self._stores.sessions
        self.accepted.changed.update(sessions.remove_text(self._connection, [*event_ids, *edited]))
        replies = self._inbox.find_replies(self._connection, conversation.id, target)
        self.accepted.changed.update(sessions.remove_references(self._connection, replies))

    def _find_edited(self, row: InboxRow | None, conversation: Conversation, known: Sequence[EventId]) -> list[EventId]:
        """Return the request that was taken up with the text of a removed edit; one that still waits gets its text of before back."""
        if row is None or row.kind != "edit" or row.target is None:
            return []
        edit, original = row.event_id, self._inbox.find(self._connection, row.target)
        content = original.content if original is not None and original.conversation_id == conversation.id else None
        if original is None or content is None or original.event_id in known:
            return []
        restored = take_back(content, edit)
        if restored is None:
            return []
        if original.state == "queued":
            tags = find_first_tags(restored) if len(restored.versions) == 1 else original.tags
            self._inbox.replace(self._connection, original, restored, keep_tags(tags, restored.text))
            return []
        if content.versions[-1][0] != edit:
            return []
        if original.state == "running":
            self._stop(conversation, "its message was removed", request=original.event_id)
        return [original.event_id]

    def _change_presence(self, fact: Membership, conversation: Conversation) -> None:
        """Begin or end the work for a room that the bot came into or had to leave (ROOM-10)."""
        if fact.membership == "join":
            self._set_presence(conversation, is_present=True)
            if self._stores.outbox.release(self._connection, conversation.id):
                self.accepted.owed.add(conversation.id)
        elif fact.membership in {"leave", "ban"}:
            self._set_presence(conversation, is_present=False)
            self._stop(conversation, "the bot is no longer in the room")
            for row in self._inbox.list_open(self._connection, conversation.id):
                if row.state == "queued":
                    self._inbox.move(self._connection, row, "dropped")
            self._stores.outbox.hold(self._connection, conversation.id)

    def _stop(self, conversation: Conversation, why: str, *, request: EventId | None = None) -> None:
        tasks = self._stores.tasks.find_open(self._connection, conversation.id)
        found = [task for task in tasks if request is None or task.request == request]
        told = self.accepted
        stop_tasks(self._stores, self._connection, found, why, self._now, stopped=told.stopped, changed=told.changed)

    def _is_addressed(self, fact: Message, conversation: Conversation) -> bool:
        trigger = self._rules.room_triggers.get(fact.room_id, self._rules.trigger)
        address = Address(
            body=fact.body,
            formatted_body=fact.formatted_body,
            mentions=fact.mentions,
            pills=fact.pills,
            is_direct=fact.is_direct,
            is_reply_to_bot=self._is_reply_to_bot(fact, conversation),
            is_in_addressed_thread=fact.thread is not None and self._is_in_thread(fact.thread, conversation),
        )
        return decide_trigger(address, self._speaker, trigger)

    def _is_reply_to_bot(self, fact: Message, conversation: Conversation) -> bool:
        return fact.reply_to is not None and self._stores.outbox.is_sent_event(self._connection, conversation.id, fact.reply_to)

    def _is_in_thread(self, thread: EventId, conversation: Conversation) -> bool:
        if self._inbox.is_addressed(self._connection, conversation.id, thread):
            return True
        return self._stores.outbox.is_sent_event(self._connection, conversation.id, thread)

    def _breaks_loop(self, fact: Message, conversation: Conversation) -> bool:
        """Count quick exchanges with one account, and tell whether there were too many of them in a row (IN-9)."""
        is_quick = is_quick_exchange(fact.body, self._now_ms, conversation.answered_at_ms) and not self._inbox.has_work(
            self._connection, conversation.id
        )
        streak = conversation.streak + 1 if is_quick and conversation.streak_sender == fact.sender else 0
        if (streak, fact.sender) != (conversation.streak, conversation.streak_sender):
            self._set_streak(conversation, streak, fact)
        if streak == self._rules.loop_breaker:
            self._owe_notice(conversation, _LOOP, fact, focus=Focus(fact.thread) if fact.thread else MAIN_FOCUS)
        return streak >= self._rules.loop_breaker

    def _reset_streak(self, fact: Message, conversation: Conversation) -> None:
        """End the streak of another account: a second person speaks here."""
        if conversation.streak and conversation.streak_sender != fact.sender:
            self._set_streak(conversation, 0, fact)

    def _set_streak(self, conversation: Conversation, streak: int, fact: Message) -> None:
        set_streak(self._connection, conversation.id, streak, fact.sender)
        self._conversations[conversation.room_id] = replace(conversation, streak=streak, streak_sender=fact.sender)

    def _set_presence(self, conversation: Conversation, *, is_present: bool) -> None:
        set_presence(self._connection, conversation.id, is_present=is_present)
        self._conversations[conversation.room_id] = replace(conversation, is_present=is_present)

    def _find_about(self, conversation: Conversation, event_id: EventId) -> list[InboxRow]:
        """Return what came before its message: sync and gaps can turn the order round."""
        return self._inbox.find_about(self._connection, conversation.id, event_id) if event_id in self._targets else []

    def _get_conversation(self, room_id: RoomId) -> Conversation:
        found = self._conversations.get(room_id)
        if found is None:
            found = self._conversations[room_id] = ensure_conversation(self._connection, room_id, self._now)
        return found

    def _owe_notice(
        self,
        conversation: Conversation,
        text: str,
        fact: Message | Edit | None = None,
        *,
        focus: Focus = MAIN_FOCUS,
        tags: Sequence[str] = (),
    ) -> None:
        """Owe the room a notice, about a message if one is given: to whoever wrote it, where it was written."""
        self._stores.outbox.add(
            self._connection,
            conversation.id,
            "notice",
            text,
            self._now,
            request=None if fact is None else fact.target if isinstance(fact, Edit) else fact.event_id,
            thread=EventId(focus) if focus else None,
            mention=None if fact is None else fact.sender,
            tags=tags,
        )
        self.accepted.owed.add(conversation.id)

    def _put_request(
        self,
        fact: Message | Edit,
        conversation: Conversation,
        focus: Focus,
        content: Request,
        *,
        answers: EventId,
        target: EventId | None = None,
        reply_to: EventId | None = None,
        tags: Sequence[str] = (),
    ) -> None:
        """Queue a request, unless a limit is reached; only of a fresh message are there `tags` (SRC-1)."""
        refusal = self._limiter.refuse(self._connection, conversation.id, fact.sender, self._now)
        if refusal is not None:
            self._note(fact, conversation, "edit" if isinstance(fact, Edit) else "other", focus=focus, target=target)
            if refusal.sentence is not None:
                self._owe_notice(conversation, refusal.sentence, fact, focus=focus, tags=tags)
            return
        self._put(fact, conversation, "request", focus, content, answers=answers, target=target, reply_to=reply_to, tags=tags)
        self.accepted.work.append(
            Work(conversation_id=conversation.id, room_id=conversation.room_id, focus=focus, event_id=fact.event_id, reply_to=reply_to)
        )
        self.accepted.read[conversation.room_id] = fact.event_id

    def _put_command(self, fact: Message, conversation: Conversation, focus: Focus, content: Request, *, is_ordered: bool) -> None:
        if not is_ordered:
            self._put(fact, conversation, "command", focus, content)
            self.accepted.commands.append((conversation.id, fact.event_id))
            return
        is_behind = any(row.focus == focus and row.state == "running" for row in self._inbox.list_open(self._connection, conversation.id))
        self._put(fact, conversation, "ordered", focus, content)
        if is_behind:
            self._owe_notice(conversation, _BEHIND, fact, focus=focus)
        work = Work(conversation_id=conversation.id, room_id=conversation.room_id, focus=focus, event_id=fact.event_id, is_command=True)
        self.accepted.work.append(work)

    def _note(
        self,
        fact: AnyFact,
        conversation: Conversation,
        kind: InboxKind,
        *,
        focus: Focus = MAIN_FOCUS,
        target: EventId | None = None,
        content: Request | None = None,
    ) -> None:
        self._put(fact, conversation, kind, focus, content, target=target)

    def _put(  # noqa: PLR0913 - a row has these parts
        self,
        fact: AnyFact,
        conversation: Conversation,
        kind: InboxKind,
        focus: Focus,
        content: Request | None,
        *,
        answers: EventId | None = None,
        target: EventId | None = None,
        reply_to: EventId | None = None,
        tags: Sequence[str] = (),
    ) -> None:
        row = InboxRow(
            event_id=fact.event_id,
            conversation_id=conversation.id,
            kind=kind,
            state="queued" if kind in {"request", "command", "ordered"} else "noted",
            focus=focus,
            sender=fact.sender,
            answers=answers or fact.event_id,
            target=target,
            reply_to=reply_to,
            sent_at_ms=max(-_LATEST_MS, min(fact.sent_at_ms, _LATEST_MS)),
            received_at_ms=self._now_ms,
            content=content,
            tags=tuple(tags),
        )
        self._inbox.put(self._connection, row)
        if target is not None:
            self._targets.add(target)
