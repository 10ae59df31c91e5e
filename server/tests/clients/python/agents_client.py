"""The official openai-agents package against Everturn: python agents_client.py http://127.0.0.1:PORT"""

import asyncio
import sys

from agents import Agent, OpenAIConversationsSession, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

url = sys.argv[1]
client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
set_tracing_disabled(True)
asked = []


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    asked.append(city)
    return f"sunny in {city}"


async def talk(name):
    model = OpenAIResponsesModel(model=name, openai_client=client)
    agent = Agent(name="Forecaster", instructions="Be brief.", tools=[weather], model=model)
    session = OpenAIConversationsSession(openai_client=client)

    result = await Runner.run(agent, "What is the weather?", session=session)
    assert result.final_output == "The tool says: sunny in Paris", result.final_output
    assert asked == ["Paris"], asked
    items = await session.get_items()
    kinds = [item["type"] for item in items if item["type"] != "reasoning"]
    assert kinds == ["message", "function_call", "function_call_output", "message"], kinds

    plain = Agent(name="Plain", instructions="Be brief.", model=model)
    result = await Runner.run(plain, "And tomorrow?", session=session)
    assert result.final_output == "Heard 2: And tomorrow?", result.final_output

    streamed = Runner.run_streamed(plain, "And then?", session=session)
    words = ""
    async for event in streamed.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            words += event.data.delta
    assert words == "Heard 3: And then?" == streamed.final_output, (words, streamed.final_output)

    last = await session.pop_item()
    assert last["role"] == "assistant", last
    assert len(await session.get_items(limit=1)) == 1
    await session.clear_session()

    # The server keeps the conversation, and the agent sends only what is new.
    conversation = await client.conversations.create()
    asked.clear()
    result = await Runner.run(agent, "What is the weather?", conversation_id=conversation.id)
    assert result.final_output == "The tool says: sunny in Paris", result.final_output
    result = await Runner.run(plain, "Thanks", conversation_id=conversation.id)
    assert result.final_output == "Heard 2: Thanks", result.final_output
    asked.clear()
    result = await Runner.run(plain, "Again", previous_response_id=result.last_response_id)
    assert result.final_output == "Heard 3: Again", result.final_output


async def main():
    for name in ["chat", "responses", "claude"]:
        asked.clear()
        await talk(name)


asyncio.run(main())
print("ok")
