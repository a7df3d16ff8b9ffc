"""What pydantic-ai promises of a conversation store, and what graphkeep adds, on every store."""

from __future__ import annotations

import pytest

pytest.importorskip('pydantic_ai.conversation_store')

from pydantic_ai import DeferredToolRequests
from pydantic_ai.conversation import Conversation, ConversationTypeAdapter
from pydantic_ai.conversation_store import ConversationConflict
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.usage import RunUsage

from graphkeep import Store
from graphkeep.agents import Conversations
from tests.classic.conftest import every_store

from .talking import ask, branches, conversation, ids, load, messages, new_id, turns

pytestmark = every_store


@pytest.fixture
def kept(store: Store) -> Conversations:
    return store.conversations


def approvals() -> tuple[ModelResponse, DeferredToolRequests]:
    call = ToolCallPart('pay', {'sum': 5}, tool_call_id='p')
    waiting = DeferredToolRequests(approvals=[call], metadata={'p': {'why': ['much']}})
    return ModelResponse(parts=[call]), waiting


# --- saving and loading ---------------------------------------------------------------------------


async def test_what_was_saved_is_loaded(kept: Conversations) -> None:
    response, waiting = approvals()
    talk = conversation(*turns(1), ask('pay!'), response)
    talk.usage = RunUsage(requests=3, input_tokens=7, details={'thinking': 2}, tool_calls=1)
    talk.deferred_tool_requests = waiting
    said = list(talk.messages)
    entries = await kept.save(talk, scope='ada')
    assert [entry.message for entry in entries] == said
    assert [entry.parent_id for entry in entries] == [None, *(e.id for e in entries[:-1])]
    loaded = await load(kept, talk.conversation_id)
    assert loaded == talk
    assert loaded.messages == said
    assert loaded.usage == talk.usage
    assert loaded.deferred_tool_requests == waiting
    assert loaded.revision == talk.revision is not None
    assert loaded.new_message_index == talk.new_message_index == 4
    assert await kept.load_entries(talk.conversation_id) == entries
    assert [await kept.read_entry(entry.id) for entry in entries] == entries


async def test_a_conversation_without_messages_is_one(kept: Conversations) -> None:
    talk = conversation()
    assert await kept.save(talk) == []
    assert await messages(kept, talk.conversation_id) == []
    assert await kept.load_entries(talk.conversation_id) == []
    talk.messages += turns(1)
    assert len(await kept.save(talk)) == 2


async def test_a_save_stores_only_what_is_new(kept: Conversations) -> None:
    talk = conversation(*turns(1))
    first = await kept.save(talk)
    before = talk.revision
    assert await kept.save(talk) == []
    assert talk.revision != before
    talk.messages += turns(2)
    second = await kept.save(talk)
    assert [entry.message for entry in second] == talk.messages[2:]
    assert second[0].parent_id == first[-1].id
    assert talk.new_message_index == 4
    assert await kept.load_entries(talk.conversation_id) == [*first, *second]


async def test_a_window_is_the_end_and_its_save_appends(kept: Conversations) -> None:
    talk = conversation(*turns(1, 2, 3))
    await kept.save(talk)
    name = talk.conversation_id
    for limit in (0, 1, 3, 6, 99):
        assert (await load(kept, name, limit)).messages == talk.messages[max(0, 6 - limit) :]
        entries = await kept.load_entries(name, limit=limit)
        assert [entry.message for entry in entries or ()] == talk.messages[max(0, 6 - limit) :]
    window = await load(kept, name, 1)
    assert window.new_message_index == 1
    assert window.usage == talk.usage
    more = turns(4)
    window.messages += more
    await kept.save(window)
    assert await messages(kept, name) == [*talk.messages, *more]
    assert await branches(kept, name) == []
    window = await load(kept, name, 0)
    window.messages += turns(5)
    await kept.save(window)
    assert len(await messages(kept, name)) == 10
    # Once serialised it is compared with as many of the last messages.
    window = ConversationTypeAdapter.validate_json(
        ConversationTypeAdapter.dump_json(await load(kept, name, 3))
    )
    window.messages += turns(6)
    assert len(await kept.save(window)) == 2
    assert len(await messages(kept, name)) == 12
    assert await branches(kept, name) == []


async def test_a_rewritten_history_branches_off_where_it_differs(kept: Conversations) -> None:
    talk = conversation(*turns(1, 2))
    old = await kept.save(talk)
    left = list(talk.messages)
    talk.messages[2:] = turns(7)
    new = await kept.save(talk)
    assert [entry.parent_id for entry in new] == [old[1].id, new[0].id]
    name = talk.conversation_id
    assert await messages(kept, name) == talk.messages
    assert await branches(kept, name) == [left]
    wholly = turns(8)
    talk.messages = list(wholly)
    assert (await kept.save(talk))[0].parent_id is None
    assert await messages(kept, name) == wholly
    assert await branches(kept, name) == [left, [*left[:2], *(e.message for e in new)]]


async def test_a_shortened_history_leaves_its_end_as_a_branch(kept: Conversations) -> None:
    talk = conversation(*turns(1, 2))
    await kept.save(talk)
    left = list(talk.messages)
    del talk.messages[1:]
    assert await kept.save(talk) == []
    assert await messages(kept, talk.conversation_id) == left[:1]
    assert await branches(kept, talk.conversation_id) == [left]


async def test_an_unmarked_history_is_compared(kept: Conversations) -> None:
    talk = conversation(*turns(1))
    await kept.save(talk)
    more = turns(2)
    again = Conversation(
        messages=[*talk.messages, *more],
        conversation_id=talk.conversation_id,
        revision=talk.revision,
    )
    assert [entry.message for entry in await kept.save(again)] == more


async def test_only_the_stored_revision_is_saved_over(kept: Conversations) -> None:
    talk = conversation(*turns(1))
    name = talk.conversation_id
    talk.revision = 'never stored'
    with pytest.raises(ConversationConflict) as caught:
        await kept.save(talk)
    assert caught.value.conversation_id == name
    assert await kept.load(name) is None
    talk.revision = None
    await kept.save(talk)
    stale = await load(kept, name)
    talk.messages += turns(2)
    await kept.save(talk)
    for late in (stale, conversation(*turns(3), name=name)):
        late.messages += turns(4)
        with pytest.raises(ConversationConflict):
            await kept.save(late)
    assert await messages(kept, name) == talk.messages


async def test_a_copy_from_before_a_deletion_is_not_saved_over_its_successor(
    kept: Conversations,
) -> None:
    old = conversation(*turns(1))
    name = old.conversation_id
    await kept.save(old)
    await kept.delete(name)
    with pytest.raises(ConversationConflict):
        await kept.save(old)
    new = conversation(*turns(2), name=name)
    await kept.save(new)
    with pytest.raises(ConversationConflict):
        await kept.save(old)
    with pytest.raises(ConversationConflict):
        await kept.branch(name, at=0, expected_revision=old.revision)
    assert await messages(kept, name) == new.messages


# --- branches and forks ---------------------------------------------------------------------------


async def test_a_conversation_branches_and_comes_back(kept: Conversations) -> None:
    talk = conversation(*turns(1, 2))
    name = talk.conversation_id
    entries = await kept.save(talk)
    branch = await kept.branch(name, at=2, expected_revision=talk.revision)
    assert branch.messages == talk.messages[:2]
    assert branch.usage == talk.usage
    assert branch == await load(kept, name)
    with pytest.raises(ConversationConflict):
        await kept.save(talk)
    branch.messages += turns(3)
    await kept.save(branch)
    assert await branches(kept, name) == [talk.messages]
    back = await kept.branch(name, from_entry=entries[-1].id, expected_revision=branch.revision)
    assert back.messages == talk.messages
    assert await ids(kept, name) == [entry.id for entry in entries]
    assert await branches(kept, name) == [branch.messages]
    middle = await kept.branch(name, from_entry=entries[0].id, expected_revision=back.revision)
    assert middle.messages == talk.messages[:1]
    nothing = await kept.branch(name, at=0, expected_revision=middle.revision)
    assert nothing.messages == []
    assert await branches(kept, name) == [
        branch.messages,
        talk.messages,
        talk.messages[:1],
    ]


async def test_a_branch_keeps_what_waits_only_at_the_same_end(kept: Conversations) -> None:
    response, waiting = approvals()
    talk = conversation(ask('pay!'), response)
    talk.deferred_tool_requests = waiting
    await kept.save(talk)
    name = talk.conversation_id
    same = await kept.branch(name, at=2, expected_revision=talk.revision)
    assert same.deferred_tool_requests == waiting
    assert await branches(kept, name) == []
    fork = await kept.fork(name)
    assert (fork.deferred_tool_requests, fork.usage) == (waiting, talk.usage)
    fork = await kept.fork(name, at=1)
    assert (fork.deferred_tool_requests, fork.usage) == (None, RunUsage())
    other = await kept.branch(name, at=1, expected_revision=same.revision)
    assert other.deferred_tool_requests is None
    assert other == await load(kept, name)


async def test_a_branch_refuses_what_is_not_there(kept: Conversations) -> None:
    talk, other = conversation(*turns(1)), conversation(*turns(2))
    name = talk.conversation_id
    await kept.save(talk, scope='ada')
    foreign = (await kept.save(other))[0].id
    now = talk.revision
    for options in (
        {'at': -1},
        {'at': 3},
        {},
        {'at': 1, 'from_entry': foreign},
        {'from_entry': foreign},
        {'from_entry': 'none such'},
        {'at': 1, 'scope': 'bob'},
    ):
        with pytest.raises(UserError) as caught:
            await kept.branch(name, expected_revision=now, **options)
        assert caught.type is UserError
    with pytest.raises(UserError) as caught:
        await kept.branch(new_id(), at=0, expected_revision=None)
    assert caught.type is UserError
    for revision in (None, 'stale'):
        with pytest.raises(ConversationConflict):
            await kept.branch(name, at=1, expected_revision=revision)
    assert await load(kept, name) == talk


async def test_a_fork_shares_the_entries(kept: Conversations) -> None:
    talk = conversation(*turns(1, 2))
    name = talk.conversation_id
    await kept.save(talk, scope='ada')
    here = await ids(kept, name)
    fork = await kept.fork(name)
    assert fork.messages == talk.messages
    assert fork.conversation_id != name
    assert await ids(kept, fork.conversation_id) == here
    assert fork == await load(kept, fork.conversation_id)
    part = await kept.fork(name, at=1, scope='bob', new_conversation_id=new_id())
    assert await ids(kept, part.conversation_id) == here[:1]
    entry = await kept.fork(name, from_entry=here[2])
    assert await ids(kept, entry.conversation_id) == here[:3]
    found = [await kept.read_record(each.conversation_id) for each in (fork, part, entry)]
    assert [(each.scope, each.forked_from, each.forked_at) for each in found if each] == [
        ('ada', name, here[3]),
        ('bob', name, here[0]),
        ('ada', name, here[2]),
    ]
    part.messages += turns(3)
    await kept.save(part)
    assert await messages(kept, part.conversation_id) == part.messages
    assert await messages(kept, name) == talk.messages
    again = await kept.read_record(part.conversation_id)
    assert again is not None
    assert (again.forked_from, again.forked_at) == (name, here[0])


async def test_a_fork_may_begin_in_a_branch_that_was_left(kept: Conversations) -> None:
    talk = conversation(*turns(1, 2))
    entries = await kept.save(talk)
    await kept.branch(talk.conversation_id, at=1, expected_revision=talk.revision)
    fork = await kept.fork(talk.conversation_id, from_entry=entries[2].id)
    assert fork.messages == talk.messages[:3]


async def test_a_fork_refuses_what_is_not_there(kept: Conversations) -> None:
    talk, other = conversation(*turns(1)), conversation(*turns(2))
    name = talk.conversation_id
    first = (await kept.save(talk, scope='ada'))[0].id
    await kept.save(other)
    for options in (
        {'at': -1},
        {'at': 3},
        {'at': 1, 'from_entry': first},
        {'from_entry': 'none such'},
        {'source_scope': 'bob'},
    ):
        with pytest.raises(UserError) as caught:
            await kept.fork(name, **options)
        assert caught.type is UserError
    with pytest.raises(UserError):
        await kept.fork(new_id())
    with pytest.raises(ConversationConflict) as caught:
        await kept.fork(name, new_conversation_id=other.conversation_id)
    assert caught.value.conversation_id == other.conversation_id
    with pytest.raises(ConversationConflict):
        await kept.fork(name, new_conversation_id=name)
    assert await load(kept, name) == talk
    assert await load(kept, other.conversation_id) == other


# --- scopes, lists --------------------------------------------------------------------------------


async def test_a_conversation_of_another_scope_is_not_there(kept: Conversations) -> None:
    talk = conversation(*turns(1))
    name = talk.conversation_id
    await kept.save(talk, scope='ada')
    before = await load(kept, name)
    assert await kept.load(name, scope='ada') == before
    assert await kept.load(name, scope='bob') is None
    assert await kept.load_entries(name, scope='bob') is None
    assert await kept.count(name, scope='bob') is None
    assert await kept.load_range(name, scope='bob') is None
    assert await kept.clear(name, scope='bob') is False
    assert await kept.discard(name, scope='bob') is False
    await kept.delete(name, scope='bob')
    before.messages += turns(2)
    with pytest.raises(ConversationConflict):
        await kept.save(before, scope='bob')
    assert await load(kept, name) == talk
    await kept.save(before)  # the scope stays
    found = await kept.read_record(name)
    assert found is not None
    assert found.scope == 'ada'
    plain = conversation(*turns(1))
    await kept.save(plain)
    with pytest.raises(ConversationConflict):
        await kept.save(plain, scope='ada')
    assert await kept.load(plain.conversation_id, scope='ada') is None
    await kept.delete(name, scope='ada')
    assert await kept.load(name) is None


async def test_lists_have_the_last_saved_first(kept: Conversations) -> None:
    scope = new_id()
    talks = [conversation(*turns(n)) for n in range(5)]
    for talk in talks:
        await kept.save(talk, scope=scope)
    await kept.save(conversation(), scope=new_id())
    talks[1].messages += turns(7)
    await kept.save(talks[1])
    names = [talks[n].conversation_id for n in (1, 4, 3, 2, 0)]
    listed = await kept.list_conversations(scope=scope)
    assert [record.conversation_id for record in listed] == names
    assert listed == [await kept.read_record(name) for name in names]
    for limit in (0, 1, 3, 99):
        assert await kept.list_conversations(scope=scope, limit=limit) == listed[:limit]
    paged = [*await kept.list_conversations(scope=scope, limit=2)]
    while page := await kept.list_conversations(scope=scope, limit=2, after=paged[-1]):
        paged += page
    assert paged == listed
    everywhere = await kept.list_conversations()
    assert [record for record in everywhere if record.scope == scope] == listed
    assert len(everywhere) > len(listed)


async def test_a_page_after_a_conversation_that_is_gone(kept: Conversations) -> None:
    scope = new_id()
    for n in range(4):
        await kept.save(conversation(*turns(n)), scope=scope)
    listed = await kept.list_conversations(scope=scope)
    await kept.delete(listed[1].conversation_id)
    assert await kept.list_conversations(scope=scope, after=listed[1]) == listed[2:]


# --- deleting -------------------------------------------------------------------------------------


async def test_what_a_deletion_leaves(kept: Conversations) -> None:
    talk = conversation(*turns(1, 2))
    name = talk.conversation_id
    entries = await kept.save(talk)
    left = await kept.branch(name, at=3, expected_revision=talk.revision)
    left.messages += turns(3)
    only = await kept.save(left)
    fork = await kept.fork(name, at=1)
    deep = await kept.fork(name, from_entry=entries[2].id)
    await kept.delete(name)
    await kept.delete(name)  # nothing to do
    assert await kept.load(name) is None
    assert await kept.load_entries(name) is None
    assert await messages(kept, fork.conversation_id) == talk.messages[:1]
    assert await messages(kept, deep.conversation_id) == talk.messages[:3]
    for gone in (entries[3], *only):
        with pytest.raises(LookupError):
            await kept.read_entry(gone.id)
    await kept.delete(deep.conversation_id)
    with pytest.raises(LookupError):
        await kept.read_entry(entries[1].id)
    assert await kept.read_entry(entries[0].id) == entries[0]
    await kept.delete(fork.conversation_id)
    with pytest.raises(LookupError):
        await kept.read_entry(entries[0].id)


async def test_only_the_stored_revision_is_deleted(kept: Conversations) -> None:
    talk = conversation(*turns(1))
    with pytest.raises(ConversationConflict):
        await kept.delete_record(talk.conversation_id, expected_revision='none')
    await kept.save(talk)
    with pytest.raises(ConversationConflict):
        await kept.delete_record(talk.conversation_id, expected_revision='stale')
    assert await load(kept, talk.conversation_id) == talk
