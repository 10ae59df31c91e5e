"""The official anthropic package against Everturn: python anthropic_client.py http://127.0.0.1:PORT"""

import sys

import anthropic
import openai

url = sys.argv[1]
client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
conversations = openai.OpenAI(base_url=f"{url}/v1", api_key="none").conversations
WEATHER = {
    "name": "weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def raises(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def talk(model):
    hello = [{"role": "user", "content": "Hello"}]
    answer = client.messages.create(model=model, max_tokens=100, system="Be brief.", messages=hello)
    assert answer.content[0].text == "Heard 1: Hello" and answer.stop_reason == "end_turn", answer
    assert answer.usage.input_tokens == 11 and answer.usage.output_tokens == 7, answer.usage

    events = list(client.messages.create(model=model, max_tokens=100, messages=hello, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"], kinds
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"], kinds
    assert set(kinds[2:-3]) == {"content_block_delta"}, kinds

    conversation = conversations.create()
    recorded = {"extra_headers": {"Everturn-Conversation": conversation.id}}
    with client.messages.stream(model=model, max_tokens=100, messages=hello, tools=[WEATHER], **recorded) as stream:
        asked = stream.get_final_message()
    call = asked.content[-1]
    assert asked.stop_reason == "tool_use" and call.name == "weather" and call.input == {"city": "Paris"}, asked
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "wind"}
    messages = hello + [
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in asked.content]},
        {"role": "user", "content": [result]},
    ]
    answer = client.messages.create(model=model, max_tokens=100, messages=messages, tools=[WEATHER], **recorded)
    assert answer.content[0].text == "The tool says: wind", answer
    kinds = [item.type for item in conversations.items.list(conversation.id, order="asc") if item.type != "reasoning"]
    assert kinds == ["message", "function_call", "function_call_output", "message"], kinds
    conversations.delete(conversation.id)


def run_tools(model):
    """The runner asks the server to keep the conversation, and goes on by itself where it does not."""
    asked = []

    @anthropic.beta_tool
    def weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return "wind"

    messages = [{"role": "user", "content": "Hello"}]
    runner = client.beta.messages.tool_runner(model=model, max_tokens=100, messages=messages, tools=[weather])
    answer = runner.until_done()
    assert asked == ["Paris"], asked
    assert answer.content[-1].text == "The tool says: wind", answer


for name in ["claude", "chat", "responses"]:
    talk(name)
    run_tools(name)
error = raises(anthropic.BadRequestError, lambda: client.messages.create(model="claude", max_tokens=1, messages=[]))
assert error.body["error"]["type"] == "invalid_request_error", error.body
thinking = [{"role": "user", "content": "think"}]
for streams in [False, True]:
    if streams:
        with client.messages.stream(model="claude", max_tokens=100, messages=thinking) as stream:
            answer = stream.get_final_message()
    else:
        answer = client.messages.create(model="claude", max_tokens=100, messages=thinking)
    assert [block.type for block in answer.content] == ["thinking", "text"], answer
    assert answer.content[0].thinking == "Let me see." and answer.content[0].signature == "c2lnbmVk", answer
    assert answer.content[1].text == "Heard 1: think", answer
few = client.messages.count_tokens(model="claude", messages=[{"role": "user", "content": "Hello"}])
many = client.messages.count_tokens(model="claude", messages=[{"role": "user", "content": "Hello " * 100}], tools=[WEATHER])
assert 0 < few.input_tokens < 100 < many.input_tokens, (few, many)
error = raises(anthropic.NotFoundError, lambda: client.messages.create(model="nobody", max_tokens=1, messages=[]))
assert error.body["error"]["type"] == "not_found_error", error.body
refuse = [{"role": "user", "content": "refuse"}]
for stream in [False, True]:
    error = raises(anthropic.BadRequestError, lambda: client.messages.create(model="claude", max_tokens=1, messages=refuse, stream=stream))
    assert error.body["type"] == "error" and error.body["error"]["type"] == "invalid_request_error", error.body
print("ok")
