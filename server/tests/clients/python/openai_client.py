"""The official openai package against Everturn: python openai_client.py http://127.0.0.1:PORT"""

import sys

import openai
from openai import OpenAI

url = sys.argv[1]
client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}


def raises(kind, call):
    try:
        call()
    except kind as error:
        assert type(error) is kind, error
        return error
    raise AssertionError(f"no {kind.__name__}")


def conversations():
    made = client.conversations.create(
        items=[
            {"type": "message", "role": "system", "content": "Be brief."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
        ],
        metadata={"topic": "demo", "lang": "en"},
    )
    assert made.id.startswith("conv_") and made.object == "conversation", made
    assert made.metadata == {"topic": "demo", "lang": "en"}, made
    assert client.conversations.retrieve(made.id) == made
    changed = client.conversations.update(made.id, metadata={"topic": "other"})
    assert changed.metadata == {"topic": "other"}, changed

    added = client.conversations.items.create(
        made.id,
        items=[
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Rome"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
            {"role": "assistant", "content": "It is sunny."},
        ],
    )
    kinds = [item.type for item in added.data]
    assert kinds == ["function_call", "function_call_output", "message"], kinds
    assert [item.id.split("_")[0] for item in added.data] == ["fc", "fco", "msg"]
    assert added.first_id == added.data[0].id and added.last_id == added.data[-1].id and added.has_more is False

    pages = client.conversations.items.list(made.id, order="asc", limit=2)
    assert [item.id for item in pages.data][0].startswith("msg_") and pages.has_more
    items = list(pages)
    assert len(items) == 5, items
    assert items[1].content[0].text == "Hello" and items[1].role == "user" and items[1].status == "completed"
    assert items[4].content[0].type == "output_text"
    backwards = [item.id for item in client.conversations.items.list(made.id, limit=2)]
    assert backwards == [item.id for item in reversed(items)], backwards
    rest = client.conversations.items.list(made.id, after=items[3].id, order="asc", include=["reasoning.encrypted_content"])
    assert [item.id for item in rest.data] == [items[4].id]

    one = client.conversations.items.retrieve(items[2].id, conversation_id=made.id)
    assert one.arguments == '{"city":"Rome"}' and one.call_id == "c1", one
    left = client.conversations.items.delete(items[4].id, conversation_id=made.id)
    assert left.id == made.id
    assert len(list(client.conversations.items.list(made.id))) == 4
    raises(openai.NotFoundError, lambda: client.conversations.items.retrieve(items[4].id, conversation_id=made.id))

    error = raises(
        openai.BadRequestError,
        lambda: client.conversations.items.create(made.id, items=[{"role": "user", "content": "x"}] * 21),
    )
    assert error.param == "items" and error.type == "invalid_request_error", error
    gone = client.conversations.delete(made.id)
    assert gone.deleted and gone.object == "conversation.deleted" and gone.id == made.id
    missing = raises(openai.NotFoundError, lambda: client.conversations.retrieve(made.id))
    assert missing.code == "conversation_not_found", missing.code


def plain(model):
    response = client.responses.create(model=model, input="Hello", instructions="Be brief.", metadata={"a": "b"}, temperature=0.5)
    assert response.id.startswith("resp_") and response.status == "completed", response
    assert response.output_text == "Heard 1: Hello", response.output_text
    assert response.usage.input_tokens == 11 and response.usage.output_tokens == 7 and response.usage.total_tokens == 18
    assert response.metadata == {"a": "b"} and response.instructions == "Be brief." and response.temperature == 0.5
    assert response.conversation is None and response.model == model
    again = client.responses.retrieve(response.id)
    with client.responses.retrieve(response.id, stream=True) as stream:
        shown = list(stream)
    assert shown[-1].type == "response.completed" and shown[-1].response == again
    assert "".join(event.delta for event in shown if event.type == "response.output_text.delta") == again.output_text
    assert again.output_text == response.output_text and again.output == response.output, (again, response)
    assert again.usage == response.usage and again.metadata == response.metadata
    given = client.responses.input_items.list(response.id).data
    assert len(given) == 1 and given[0].content[0].text == "Hello", given

    second = client.responses.create(model=model, input="And now?", previous_response_id=response.id)
    assert second.output_text == "Heard 2: And now?", second.output_text
    assert second.previous_response_id == response.id
    # A second continuation of the first is a branch of its own.
    branch = client.responses.create(model=model, input="Or else?", previous_response_id=response.id)
    assert branch.output_text == "Heard 2: Or else?", branch.output_text
    third = client.responses.create(model=model, input="Yes.", previous_response_id=second.id)
    assert third.output_text == "Heard 3: Yes.", third.output_text
    assert third.previous_response_id == second.id

    passing = client.responses.create(model=model, input="Forget it.", previous_response_id=third.id, store=False)
    assert passing.output_text == "Heard 4: Forget it." and passing.store is False, passing
    raises(openai.NotFoundError, lambda: client.responses.retrieve(passing.id))
    alone = client.responses.create(model=model, input=[{"role": "user", "content": "Alone"}], store=False)
    assert alone.output_text == "Heard 1: Alone"

    client.responses.delete(branch.id)
    raises(openai.NotFoundError, lambda: client.responses.retrieve(branch.id))
    client.responses.delete(third.id)
    raises(openai.NotFoundError, lambda: client.responses.retrieve(third.id))
    assert client.responses.retrieve(second.id).output_text == "Heard 2: And now?"
    # What only belongs to responses is not listed among the conversations.
    assert all(entry["id"] != second.id for entry in listed())


def listed():
    return client.get("/conversations", cast_to=dict)["data"]


def in_conversation(model):
    conversation = client.conversations.create()
    assert conversation.id in [entry["id"] for entry in listed()]
    first = client.responses.create(model=model, input="One", conversation=conversation.id)
    assert first.conversation.id == conversation.id
    second = client.responses.create(model=model, input="Two", conversation={"id": conversation.id})
    assert second.output_text == "Heard 2: Two", second.output_text
    items = [item for item in client.conversations.items.list(conversation.id, order="asc") if item.type == "message"]
    words = [(item.role, item.content[0].text) for item in items]
    assert words == [("user", "One"), ("assistant", "Heard 1: One"), ("user", "Two"), ("assistant", "Heard 2: Two")], words
    shown = [item.id for item in first.output if item.type == "message"]
    assert shown == [items[1].id], (shown, items)
    for item in first.output:
        assert client.conversations.items.retrieve(item.id, conversation_id=conversation.id).id == item.id
    error = raises(
        openai.BadRequestError,
        lambda: client.responses.create(model=model, input="x", conversation=conversation.id, previous_response_id=first.id),
    )
    assert error.param == "previous_response_id", error
    kept = raises(openai.BadRequestError, lambda: client.responses.delete(first.id))
    assert kept.code == "response_in_conversation", kept
    # Continuing a response does not change the conversation that it was said in.
    aside = client.responses.create(model=model, input="Aside", previous_response_id=first.id)
    assert aside.output_text == "Heard 2: Aside", aside.output_text
    assert len([i for i in client.conversations.items.list(conversation.id) if i.type == "message"]) == 4
    client.conversations.delete(conversation.id)


def streamed(model):
    conversation = client.conversations.create()
    events = list(client.responses.create(model=model, input="Hi", conversation=conversation.id, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"], kinds
    assert kinds[-1] == "response.completed", kinds
    assert [event.sequence_number for event in events] == list(range(len(events)))
    words = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert words == "Heard 1: Hi", words
    done = next(event for event in events if event.type == "response.output_text.done")
    assert done.text == words
    final = events[-1].response
    assert final.output_text == words and final.id == events[0].response.id
    assert done.item_id in [item.id for item in final.output]
    assert client.responses.retrieve(final.id).output == final.output
    with client.responses.stream(model=model, input="Again", conversation=conversation.id) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == "Heard 2: Again"
    client.conversations.delete(conversation.id)


def tools(model):
    conversation = client.conversations.create()
    asked = client.responses.create(model=model, input="Weather?", conversation=conversation.id, tools=[WEATHER])
    call = next(item for item in asked.output if item.type == "function_call")
    assert call.name == "weather" and call.arguments == '{"city": "Paris"}' and call.call_id, call
    answer = client.responses.create(
        model=model,
        conversation=conversation.id,
        tools=[WEATHER],
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}],
    )
    assert answer.output_text == "The tool says: rain", answer.output_text
    client.conversations.delete(conversation.id)

    # The same without a conversation, and streamed.
    events = list(client.responses.create(model=model, input="Weather?", tools=[WEATHER], tool_choice="auto", stream=True))
    kinds = [event.type for event in events]
    assert "response.function_call_arguments.delta" in kinds and "response.function_call_arguments.done" in kinds, kinds
    final = events[-1].response
    call = next(item for item in final.output if item.type == "function_call")
    assert call.arguments == '{"city": "Paris"}'
    answer = client.responses.create(
        model=model,
        previous_response_id=final.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "snow"}],
    )
    assert answer.output_text == "The tool says: snow", answer.output_text
    # And with everything sent by the client.
    own = client.responses.create(
        model=model,
        store=False,
        tools=[WEATHER],
        input=[
            {"role": "user", "content": "Weather?"},
            {"type": "function_call", "call_id": "c9", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c9", "output": "fog"},
        ],
    )
    assert own.output_text == "The tool says: fog", own.output_text


def background():
    running = client.responses.create(model="chat", input="forever", background=True)
    assert running.status in ("queued", "in_progress") and running.background, running
    assert client.responses.retrieve(running.id).status == "in_progress"
    stopped = client.responses.cancel(running.id)
    assert stopped.status == "cancelled", stopped
    assert client.responses.cancel(running.id).status == "cancelled"
    assert client.responses.retrieve(running.id).status == "cancelled"
    done = client.responses.create(model="chat", input="quick", background=True)
    while client.responses.retrieve(done.id).status == "in_progress":
        pass
    assert client.responses.retrieve(done.id).output_text == "Heard 1: quick"
    raises(openai.BadRequestError, lambda: client.responses.cancel(done.id))


def errors():
    unknown = raises(openai.NotFoundError, lambda: client.responses.create(model="nobody", input="x"))
    assert unknown.code == "model_not_found", unknown.code
    raises(openai.NotFoundError, lambda: client.responses.retrieve("resp_nothing"))
    raises(openai.NotFoundError, lambda: client.responses.create(model="chat", input="x", conversation="conv_nothing"))
    raises(openai.NotFoundError, lambda: client.responses.create(model="chat", input="x", previous_response_id="resp_nothing"))
    raises(openai.BadRequestError, lambda: client.responses.create(model="chat", input=7))
    hosted = raises(openai.BadRequestError, lambda: client.responses.create(model="chat", input="x", tools=[{"type": "web_search"}]))
    assert hosted.param == "tools" and "web_search" in hosted.message, hosted
    refused = raises(openai.BadRequestError, lambda: client.responses.create(model="chat", input="refuse"))
    assert "I will not" in refused.message, refused
    events = list(client.responses.create(model="chat", input="refuse", stream=True))
    assert events[-1].type == "response.failed" and events[-1].response.status == "failed", events
    raises(openai.BadRequestError, lambda: client.chat.completions.create(model="chat", messages=[{"role": "user", "content": "refuse"}]))
    raises(openai.NotFoundError, lambda: client.get("/nothing", cast_to=dict))

    # A client that tries again after a failure does not say everything twice.
    conversation = client.conversations.create()
    for _ in range(2):
        raises(openai.BadRequestError, lambda: client.responses.create(model="chat", input="refuse", conversation=conversation.id))
    assert len(list(client.conversations.items.list(conversation.id))) == 1
    client.conversations.delete(conversation.id)


def counting_and_compacting():
    short = client.responses.input_tokens.count(model="chat", input="Hello")
    long = client.responses.input_tokens.count(model="chat", input="Hello " * 100, instructions="Be brief.", tools=[WEATHER])
    assert short.object == "response.input_tokens" and 0 < short.input_tokens < 100 < long.input_tokens, (short, long)
    first = client.responses.create(model="chat", input="Hello " * 50)
    after = client.responses.input_tokens.count(model="chat", input="Hello", previous_response_id=first.id)
    assert after.input_tokens > short.input_tokens + 50, after

    compacted = client.responses.compact(
        model="chat",
        input=[
            {"role": "user", "content": "The launch code of project Heron is 4711. We decided to use PostgreSQL."},
            {"role": "assistant", "content": "Noted: PostgreSQL for Heron."},
        ],
    )
    assert compacted.object == "response.compaction", compacted
    assert [item.type for item in compacted.output] == ["message", "compaction"], compacted.output
    assert compacted.usage.total_tokens > 0
    again = client.responses.create(
        model="chat",
        input=[item.model_dump(exclude_none=True) for item in compacted.output] + [{"role": "user", "content": "Go on"}],
    )
    assert again.output_text.endswith(": Go on"), again.output_text


def chat(model):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    answer = client.chat.completions.create(model=model, messages=messages)
    assert answer.choices[0].message.content == "Heard 1: Hello" and answer.choices[0].finish_reason == "stop", answer
    assert answer.usage.total_tokens == 18

    chunks = list(client.chat.completions.create(model=model, messages=messages, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Heard 1: Hello"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens == 18, chunks[-1]
    without = list(client.chat.completions.create(model=model, messages=messages, stream=True))
    assert all(chunk.choices for chunk in without)

    function = {"type": "function", "function": {key: WEATHER[key] for key in ("name", "description", "parameters")}}
    conversation = client.conversations.create()
    recorded = {"extra_headers": {"Everturn-Conversation": conversation.id}}
    asked = client.chat.completions.create(model=model, messages=messages, tools=[function], **recorded)
    call = asked.choices[0].message.tool_calls[0]
    assert asked.choices[0].finish_reason == "tool_calls" and call.function.name == "weather", asked
    messages.append(asked.choices[0].message.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "hail"})
    answer = client.chat.completions.create(model=model, messages=messages, tools=[function], metadata={"conversation": conversation.id})
    assert answer.choices[0].message.content == "The tool says: hail", answer
    kinds = [item.type for item in client.conversations.items.list(conversation.id, order="asc") if item.type != "reasoning"]
    assert kinds == ["message", "message", "function_call", "function_call_output", "message"], kinds
    # What a chat recorded, a response continues.
    more = client.responses.create(model=model, input="Thanks", conversation=conversation.id)
    assert more.output_text == "Heard 2: Thanks", more.output_text
    client.conversations.delete(conversation.id)


def embeddings_and_models():
    vectors = client.embeddings.create(model="embed", input=["ab", "abcd"])
    assert [vector.embedding for vector in vectors.data] == [[2.0, 0.5, -1.0], [4.0, 0.5, -1.0]], vectors
    plain = client.embeddings.create(model="embed", input="abc", encoding_format="float")
    assert plain.data[0].embedding == [3.0, 0.5, -1.0] and plain.usage.total_tokens > 0
    raises(openai.NotFoundError, lambda: client.embeddings.create(model="nobody", input="x"))
    names = [model.id for model in client.models.list()]
    assert {"chat", "responses", "claude", "embed", "scripted-chat"} <= set(names), names
    assert client.models.retrieve("chat").id == "chat"
    raises(openai.NotFoundError, lambda: client.models.retrieve("nobody"))
    for name in ["scripted-chat", "chat/other"]:
        assert client.responses.create(model=name, input="Hello", store=False).output_text == "Heard 1: Hello"


conversations()
for name in ["chat", "responses", "claude"]:
    plain(name)
    in_conversation(name)
    streamed(name)
    tools(name)
    chat(name)
background()
errors()
counting_and_compacting()
embeddings_and_models()
print("ok")
