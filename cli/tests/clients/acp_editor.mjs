// An editor with the official SDK: runs the agent that the arguments name, follows the steps that are in STEPS, and
// prints everything that reached it, one JSON object a line. What the SDK complains about is printed too.
import { client, methods, ndJsonStream } from "@agentclientprotocol/sdk";
import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";

const print = (value) => console.log(JSON.stringify(value));
console.error = (...words) => print({ complaint: words });

const [program, ...args] = process.argv.slice(2);
const child = spawn(program, args, { stdio: ["pipe", "pipe", "inherit"] });
const ended = new Promise((resolve) => child.on("exit", (code, signal) => resolve({ code, signal })));

const seen = [];
const waiting = [];
const saw = (value) => {
  print(value);
  seen.push(JSON.stringify(value));
  waiting.splice(0).forEach((wake) => wake());
};
const until = async (text) => {
  while (!seen.some((line) => line.includes(text))) await new Promise((wake) => waiting.push(wake));
};
const capabilities = process.env.CAPABILITIES ? JSON.parse(process.env.CAPABILITIES) : {};

await client({ name: "editor" })
  .onRequest(methods.client.session.requestPermission, ({ params }) => {
    saw({ permission: params });
    return { outcome: { outcome: "selected", optionId: process.env.ANSWER ?? "yes" } };
  })
  .onNotification(methods.client.session.update, ({ params }) => saw({ update: params.update }))
  .onNotification("_everturn/session_update", (params) => params, ({ params }) => saw({ extension: params }))
  .connectWith(ndJsonStream(Writable.toWeb(child.stdin), Readable.toWeb(child.stdout)), async (agent) => {
    await agent.request(methods.agent.initialize, {
      protocolVersion: 1,
      clientInfo: { name: "editor", version: "2.0" },
      clientCapabilities: capabilities,
    });
    let sessionId;
    const server = { name: "m", command: "/bin/true", args: [], env: [{ name: "KEY", value: "sk-secret" }] };
    const where = { cwd: "/work", mcpServers: [server] };
    for (const step of JSON.parse(process.env.STEPS)) {
      if (step.new) sessionId = (await agent.request(methods.agent.session.new, where)).sessionId;
      if (step.load) await agent.request(methods.agent.session.load, { ...where, sessionId: (sessionId = step.load) });
      if (step.resume) await agent.request(methods.agent.session.resume, { ...where, sessionId: (sessionId = step.resume) });
      if (step.prompt) {
        const prompt = typeof step.prompt === "string" ? [{ type: "text", text: step.prompt }] : step.prompt;
        const answer = agent.request(methods.agent.session.prompt, { sessionId, prompt });
        if (step.cancel_after) {
          await until(step.cancel_after);
          await agent.notify(methods.agent.session.cancel, { sessionId });
        }
        saw({ stopped: await answer });
      }
      if (step.post) {
        const answer = await fetch(step.post, { method: step.method ?? "POST", body: JSON.stringify(step.body), headers: { "content-type": "application/json" } });
        if (!answer.ok) throw new Error(await answer.text());
      }
      // The conversation of this session, once it has a text.
      if (step.find) {
        for (let found = false; !found; ) {
          const list = await (await fetch(`${step.find}/api/v1/conversations`)).json();
          const chat = list.data.find((chat) => chat.metadata?.acp?.session_id === sessionId);
          if (chat && chat.turns >= step.turns) {
            found = true;
            const url = `${step.find}/api/v1/conversations/${chat.id}`;
            for (const request of step.requests) {
              const answer = await fetch(url + request.path, { method: request.method ?? "POST", body: JSON.stringify(request.body), headers: { "content-type": "application/json" } });
              if (!answer.ok && !request.may_fail) throw new Error(await answer.text());
            }
          } else await new Promise((next) => setTimeout(next, 20));
        }
      }
      if (step.until) await until(step.until);
    }
  });
child.stdin.end();
print({ ended: await ended });
