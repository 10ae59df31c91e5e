// An MCP client with the official SDK: `mcp_client.mjs stdio COMMAND…` or `mcp_client.mjs http URL`. Prints what it got,
// one JSON object a line, and at the end how long a call takes in the middle.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [how, ...words] = process.argv.slice(2);
const transport =
  how === "http"
    ? new StreamableHTTPClientTransport(new URL(words[0]))
    : new StdioClientTransport({ command: words[0], args: words.slice(1), env: process.env, stderr: "inherit" });
const client = new Client({ name: "tester", version: "3.1" });
await client.connect(transport);
const print = (value) => console.log(JSON.stringify(value));
print({ server: client.getServerVersion()?.name });
print({ tools: (await client.listTools()).tools.length > 3 });
print(await client.callTool({ name: "echo", arguments: { message: "häl\n\"lo\"" } }));
print(await client.callTool({ name: "get-sum", arguments: { a: 1.5, b: 2 } }));
print(await client.callTool({ name: "echo", arguments: {} }).catch((error) => ({ refused: error.code })));
print(await client.callTool({ name: "no-such-tool", arguments: {} }).catch((error) => ({ refused: error.code })));
print({ prompts: (await client.listPrompts()).prompts.length > 0 });
const all = [];
for (let n = 0; n < Number(process.env.CALLS ?? 0); n++) {
  const before = performance.now();
  await client.callTool({ name: "echo", arguments: { message: `call ${n}` } });
  all.push(performance.now() - before);
}
if (all.length > 0) print({ median_ms: all.sort((a, b) => a - b)[all.length >> 1] });
await client.close();
