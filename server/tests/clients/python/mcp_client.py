"""Everturn through the official MCP client for Python, as somebody would use it.

    mcp_client.py http URL
    mcp_client.py stdio COMMAND ARGUMENT...

Runs in every way of connecting that the client has: with a session (`legacy`) and, where the server can, without one
(`auto`). The client itself checks each answer of a tool against the tool's output schema.
"""

import asyncio
import sys

from mcp import Client, MCPError, StdioServerParameters
from mcp.client.subscriptions import ResourcesListChanged, ResourceUpdated

TOOLS = [
    "list_conversations", "get_conversation", "list_turns", "get_state", "list_facts", "recall", "build_context",
    "project_conversation", "summarize", "export", "verify", "create_conversation", "change_conversation",
    "fork_conversation", "append_turns", "pin", "unpin", "add_fact", "compact", "import",
]


async def call(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    assert result.structured_content is not None, result
    return result.structured_content


async def say(client, conversation, text, role="user", actor=None, **more):
    turn = {"role": role, "content": text} | ({"actor": actor} if actor else {})
    return await call(client, "append_turns", conversation=conversation, turns=[turn], **more)


async def refused(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result
    return result.content[0].text


class News:
    """What the server told, without being asked."""

    def __init__(self):
        self.queue = asyncio.Queue()

    async def __call__(self, message):
        await self.queue.put(message)

    async def updated(self):
        while True:
            message = await asyncio.wait_for(self.queue.get(), 60)
            message = getattr(message, "root", message)
            if getattr(message, "method", None) == "notifications/resources/updated":
                return str(message.params.uri)


async def tools_and_prompts(client):
    tools = (await client.list_tools()).tools
    assert [tool.name for tool in tools] == TOOLS, tools
    assert all(tool.output_schema and tool.annotations for tool in tools)
    assert "append_turns" in client.instructions

    begun = await call(client, "create_conversation", title="Trip")
    conversation = begun["id"]
    await say(client, conversation, "Where to?", actor="mara")
    said = await say(client, conversation, "To Rome.", role="assistant")
    again = await say(client, conversation, "Why?", idempotency_key="k1")
    once = await say(client, conversation, "Why?", idempotency_key="k1")
    assert once["repeated"] and once["head"] == again["head"]
    history = await call(client, "list_turns", conversation=conversation)
    assert [turn["content"] for turn in history["data"]] == ["Where to?", "To Rome.", "Why?"], history
    everything = await call(client, "list_turns", conversation=conversation, include_events=True, include_superseded=True)
    assert len(everything["data"]) > 3
    # Found within a second of being said, in any conversation or in one. Another session may have said the same before.
    turn = said["turns"][0]["id"]
    for where in [{}, {"conversation": conversation}]:
        deadline = asyncio.get_running_loop().time() + 60
        found = None
        while found is None and asyncio.get_running_loop().time() < deadline:
            recalled = await call(client, "recall", query="Rome", limit=10, **where)
            found = next((hit for hit in recalled["data"] if hit.get("turn") == turn), None)
        assert found and found["snippet"]["text"] == "To Rome.", recalled
    assert "hybrid" in await refused(client, "recall", query="Rome", mode="guess")
    listed = await call(client, "list_conversations", limit=1)
    assert listed["data"][0]["id"] == conversation, listed
    await call(client, "pin", conversation=conversation, name="budget", value={"euro": 500})
    for provider in ["neutral", "openai-chat", "openai-responses", "anthropic", "gemini"]:
        context = await call(client, "build_context", conversation=conversation, token_budget=4000, provider=provider)
        assert "To Rome." in str(context) and context["tokens"]["used"] <= 4000, context
    fact = await call(client, "add_fact", conversation=conversation, subject="Mara", predicate="goes to", object="Rome")
    facts = await call(client, "list_facts", conversation=conversation)
    assert [known["id"] for known in facts["data"]] == [fact["id"]], facts
    for form in ["markdown", "html", "transcript", "jsonl", "openai-chat", "openai-responses", "anthropic", "gemini"]:
        written = await call(client, "export", conversation=conversation, format=form)
        assert "To Rome." in written["content"], written
    copied = await call(client, "import", content=written["content"], name=conversation)
    assert copied["turns"] == 3 and not copied["problems"], copied
    projected = await call(client, "project_conversation", conversation=conversation, policy="clean_tool_repair")
    assert len(projected["messages"]) == 3
    shown = await call(client, "compact", conversation=conversation, dry_run=True, keep_last=1)
    assert shown["event"] is None and shown["covers"]["turns"] == 2
    done = await call(client, "compact", conversation=conversation, keep_last=1)
    assert done["event"]
    verdict = await call(client, "verify", conversation=conversation, head=said["head"]["hash"])
    assert verdict["ok"] and verdict["contains_head"], verdict

    prompts = (await client.list_prompts()).prompts
    assert [prompt.name for prompt in prompts] == ["continue_conversation"]
    prompt = await client.get_prompt("continue_conversation", {"conversation": conversation[:20], "budget": "3000"})
    assert (prompt.messages[-1].role, prompt.messages[-1].content.text) == ("user", "Why?"), prompt
    return conversation


async def errors(client, conversation):
    late = [{"role": "user", "content": "late"}]
    stale = await refused(client, "append_turns", conversation=conversation, turns=late, expected_seq=1)
    assert stale.startswith("append.stale_seq: "), stale
    absent = await refused(client, "list_turns", conversation="conv_01JD0000000000000000000000")
    assert absent.startswith("conversation.absent: "), absent
    shape = await refused(client, "build_context", conversation=conversation, token_budget="much")
    assert shape.startswith("arguments.shape: "), shape
    for attempt in [
        lambda: client.read_resource("everturn://conversations/conv_01JD0000000000000000000000"),
        lambda: client.get_prompt("continue_conversation", {"conversation": "conv_x"}),
        lambda: client.call_tool("fly", {}),
    ]:
        try:
            await attempt()
        except MCPError:
            continue
        raise AssertionError("this should have failed")


async def resources(client, conversation):
    listed = (await client.list_resources()).resources
    uri = f"everturn://conversations/{conversation}"
    assert [resource.title for resource in listed if str(resource.uri) == uri] == ["Trip"], listed
    templates = (await client.list_resource_templates()).resource_templates
    assert templates[0].uri_template == "everturn://conversations/{id}"
    read = (await client.read_resource(uri)).contents[0]
    assert read.mime_type == "text/markdown" and "To Rome." in read.text, read
    return uri


async def with_session(server):
    news = News()
    async with Client(server(), mode="legacy", message_handler=news) as client:
        conversation = await tools_and_prompts(client)
        await errors(client, conversation)
        uri = await resources(client, conversation)
        await client.subscribe_resource(uri)
        await say(client, conversation, "And back?")
        assert await news.updated() == uri
        assert "And back?" in (await client.read_resource(uri)).contents[0].text
        await client.unsubscribe_resource(uri)
        return client.protocol_version


async def without_session(server):
    async with Client(server(), mode="auto") as client:
        conversation = await tools_and_prompts(client)
        await errors(client, conversation)
        uri = await resources(client, conversation)
        if client.protocol_version < "2026":
            return client.protocol_version
        async with client.listen(resource_subscriptions=[uri], resources_list_changed=True) as changes:
            # Each comes once at first: it may have changed while the stream was opened.
            first = [await asyncio.wait_for(anext(changes), 60) for _ in range(2)]
            assert set(first) == {ResourceUpdated(uri=uri), ResourcesListChanged()}, first
            await say(client, conversation, "And back?")
            change = await asyncio.wait_for(anext(changes), 60)
            assert change == ResourceUpdated(uri=uri), change
            await call(client, "create_conversation", title="Another.")
            change = await asyncio.wait_for(anext(changes), 60)
            assert change == ResourcesListChanged(), change
        return client.protocol_version


async def main():
    kind, *rest = sys.argv[1:]
    if kind == "http":
        server = lambda: rest[0]
    else:
        server = lambda: StdioServerParameters(command=rest[0], args=rest[1:])
    print("with a session:", await with_session(server))
    print("as it likes:", await without_session(server))


asyncio.run(main())
