// An agent with the official SDK. A prompt says what it does; what was said is kept in AGENT_HOME, for session/load.
import { agent, methods, ndJsonStream } from "@agentclientprotocol/sdk";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { Readable, Writable } from "node:stream";

const file = `${process.env.AGENT_HOME}/history.json`;
const history = existsSync(file) ? JSON.parse(readFileSync(file, "utf8")) : {};
const remember = (session, update) => {
  (history[session] ??= []).push(update);
  writeFileSync(file, JSON.stringify(history));
};
const cancelled = new Map();

const chunk = (kind, text, extra = {}) => ({ sessionUpdate: kind, content: { type: "text", text }, ...extra });

async function work(client, sessionId, text) {
  const say = async (update) => {
    remember(sessionId, update);
    await client.notify(methods.client.session.update, { sessionId, update });
  };
  if (text.startsWith("wait")) {
    await say(chunk("agent_message_chunk", "I will wait"));
    await say({ sessionUpdate: "tool_call", toolCallId: "slow", title: "Sleep", kind: "execute", status: "in_progress", rawInput: { seconds: 1000 } });
    await new Promise((resolve) => cancelled.set(sessionId, resolve));
    return { stopReason: "cancelled" };
  }
  if (text.startsWith("ponder")) {
    await say(chunk("agent_message_chunk", "half a sen"));
    await new Promise((resolve) => cancelled.set(sessionId, resolve));
    return { stopReason: "cancelled" };
  }
  if (text.startsWith("list")) {
    await say(chunk("agent_thought_chunk", "They want "));
    await say(chunk("agent_thought_chunk", "a listing."));
    await say(chunk("agent_message_chunk", "Let me "));
    await say(chunk("agent_message_chunk", "look."));
    await say({ sessionUpdate: "plan", entries: [{ content: "Look", priority: "high", status: "in_progress" }] });
    await say({ sessionUpdate: "tool_call", toolCallId: "ls-1", title: "List files", kind: "execute", status: "pending" });
    const answer = await client.request(methods.client.session.requestPermission, {
      sessionId,
      toolCall: { toolCallId: "ls-1", rawInput: { command: "ls" } },
      options: [
        { optionId: "yes", name: "Allow", kind: "allow_once" },
        { optionId: "no", name: "Reject", kind: "reject_once" },
      ],
    });
    if (answer.outcome.optionId === "yes") {
      await say({
        sessionUpdate: "tool_call_update",
        toolCallId: "ls-1",
        status: "completed",
        content: [{ type: "content", content: { type: "text", text: "README.md" } }],
        rawOutput: { code: 0 },
      });
      await say(chunk("agent_message_chunk", "There is one file."));
    } else {
      await say({ sessionUpdate: "tool_call_update", toolCallId: "ls-1", status: "failed" });
      await say(chunk("agent_message_chunk", "Then not."));
    }
    return { stopReason: "end_turn" };
  }
  await say(chunk("agent_message_chunk", `You said: ${text}`));
  return { stopReason: "end_turn" };
}

agent({ name: "scripted" })
  .onRequest(methods.agent.initialize, () => ({
    protocolVersion: 1,
    agentInfo: { name: "scripted", version: "1.0" },
    agentCapabilities: { loadSession: true, sessionCapabilities: { resume: {} } },
  }))
  .onRequest(methods.agent.session.new, async ({ client }) => {
    // The same id again, unless there is a history: agents may be that simple.
    const sessionId = `s${Object.keys(history).length}`;
    const update = { sessionUpdate: "available_commands_update", availableCommands: [] };
    await client.notify(methods.client.session.update, { sessionId, update });
    return { sessionId };
  })
  .onRequest(methods.agent.session.load, async ({ params, client }) => {
    for (const update of history[params.sessionId] ?? []) {
      await client.notify(methods.client.session.update, { sessionId: params.sessionId, update });
    }
    return {};
  })
  .onRequest(methods.agent.session.resume, () => ({}))
  .onRequest(methods.agent.session.prompt, ({ params, client }) => {
    const text = params.prompt.map((block) => block.text ?? block.uri ?? "").join("");
    remember(params.sessionId, chunk("user_message_chunk", text));
    return work(client, params.sessionId, text);
  })
  .onNotification(methods.agent.session.cancel, ({ params }) => cancelled.get(params.sessionId)?.())
  .connect(ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));
