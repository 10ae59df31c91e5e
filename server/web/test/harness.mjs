// Servers, a browser and a fake model for the scenarios. They all end with the test program.

import { execFile, spawn } from "node:child_process";
import { promisify } from "node:util";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { mkdtempSync, readFileSync, rmSync, writeFileSync, mkdirSync } from "node:fs";
import { once } from "node:events";
import { tmpdir } from "node:os";
import path from "node:path";

const require = createRequire(path.join(process.env.EVERTURN_TEST_WEB_MODULES ?? process.cwd(), "_.js"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const BINARY = process.env.EVERTURN_TEST_BINARY;
const CHROMIUM = process.env.EVERTURN_TEST_CHROMIUM ?? "/usr/bin/chromium";
export const SHOTS = process.env.EVERTURN_SCREENSHOTS;

// Nothing of the settings of whoever runs the tests.
const own = { ...process.env, XDG_CONFIG_HOME: path.join(tmpdir(), "everturn-web-no-config") };
for (const name of Object.keys(own)) if (name.startsWith("EVERTURN_") && name !== "EVERTURN_WEB") delete own[name];

const children = new Set();
const folders = [];

export function folder() {
  const made = mkdtempSync(path.join(tmpdir(), "everturn-web-"));
  folders.push(made);
  return made;
}

/** Starts everturn and waits until it prints its address. */
export async function start(args, says = /listens on (http:\S+)/, env = {}) {
  const child = spawn(BINARY, args, { stdio: ["ignore", "ignore", "pipe"], env: { ...own, ...env } });
  children.add(child);
  let said = "";
  const url = await new Promise((resolve, reject) => {
    child.stderr.on("data", (text) => {
      said += text;
      const found = says.exec(said);
      if (found) resolve(found[1].replace(/,$/, ""));
    });
    child.once("exit", (code) => reject(new Error(`everturn ended with ${code}: ${said}`)));
  });
  return { child, url };
}

/** A server with its own store, which can be restarted on the same port. */
export class Server {
  static async new(config = "") {
    const server = new Server();
    server.folder = folder();
    writeFileSync(path.join(server.folder, "config.toml"), config);
    await server.begin("127.0.0.1:0");
    return server;
  }

  async begin(listen) {
    const { child, url } = await start(["serve", "--listen", listen, "--store", `sqlite:${this.folder}/store.db`, "--config", path.join(this.folder, "config.toml")]);
    this.child = child;
    this.url = url;
    return this;
  }

  async end(signal = "SIGTERM") {
    if (this.child.exitCode === null && this.child.signalCode === null) {
      this.child.kill(signal);
      await once(this.child, "exit");
    }
    children.delete(this.child);
  }

  again() { return this.begin(new URL(this.url).host); }

  async api(method, place, body, key) {
    const answer = await fetch(this.url + "/api/v1" + place, { method, headers: { "Content-Type": "application/json", ...(key && { Authorization: "Bearer " + key }) }, body: body === undefined ? undefined : JSON.stringify(body) });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${method} ${place}: ${text}`);
    return JSON.parse(text);
  }
  get(place, key) { return this.api("GET", place, undefined, key); }
  post(place, body = {}, key) { return this.api("POST", place, body, key); }

  async talk(title, ...turns) {
    const { id } = await this.post("/conversations", { title, policy: { compaction: { auto: false }, budget: { max_messages: null, max_events: null } } });
    if (turns.length) await this.say(id, ...turns);
    return id;
  }
  /** Imports a session of an agent, given by its lines, and returns the id of the conversation. */
  async import(...lines) {
    const file = path.join(folder(), "session.jsonl");
    writeFileSync(file, lines.map((line) => JSON.stringify(line) + "\n").join(""));
    await promisify(execFile)(BINARY, ["import", file, "--url", this.url], { env: own });
    return (await this.get("/conversations")).data.sort((a, b) => b.created.localeCompare(a.created))[0].id;
  }
  say(id, ...turns) {
    return this.post(`/conversations/${id}/turns`, { turns: turns.map((turn) => (typeof turn === "string" ? { role: "user", actor: "alice", content: turn } : turn)) });
  }
}

/** A fake model server that streams words, and pauses after the second one until `hold` resolves. */
export async function model(words) {
  const state = { asked: [], hold: null };
  const server = createServer(async (request, response) => {
    let body = "";
    for await (const piece of request) body += piece;
    state.asked.push(JSON.parse(body));
    response.writeHead(200, { "Content-Type": "text/event-stream" });
    for (const [n, word] of words.entries()) {
      response.write(`data: ${JSON.stringify({ id: "c1", object: "chat.completion.chunk", model: "small", choices: [{ index: 0, delta: { content: word }, finish_reason: null }] })}\n\n`);
      if (n === 1 && state.hold) await state.hold;
      if (response.destroyed) return;
      await new Promise((resolve) => setTimeout(resolve, 15));
    }
    response.write(`data: ${JSON.stringify({ id: "c1", object: "chat.completion.chunk", model: "small", choices: [{ index: 0, delta: {}, finish_reason: "stop" }], usage: { prompt_tokens: 12, completion_tokens: words.length } })}\n\n`);
    response.end("data: [DONE]\n\n");
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  server.unref();
  return { ...state, state, url: `http://127.0.0.1:${server.address().port}/v1`, close: () => server.close() };
}

let browser;
/** Opens a page in a browser of its own; `before` is run there before the scripts of the page. */
export async function open(url, { width = 1280, height = 860, scheme = "light", before } = {}) {
  browser ??= await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"] });
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: scheme, acceptDownloads: true, reducedMotion: "reduce", locale: "en-GB", timezoneId: "UTC" });
  const page = await context.newPage();
  page.setDefaultTimeout(15_000);
  page.problems = [];
  page.requested = [];
  page.on("pageerror", (error) => page.problems.push(error.stack));
  page.on("console", (message) => {
    const text = message.text();
    // The browser logs failed requests even if the page handles them.
    if (message.type() === "error" && !/Failed to load resource/.test(text)) page.problems.push(text);
  });
  page.on("dialog", (dialog) => (page.problems.push("a dialog: " + dialog.message()), dialog.dismiss()));
  page.on("request", (request) => page.requested.push(request.url()));
  if (before) await page.addInitScript(before);
  await page.goto(url);
  return page;
}

/** Asserts that the page logged no error and contacted no other host. */
export async function quiet(page) {
  const origin = new URL(page.url()).origin;
  const foreign = page.requested.filter((url) => !url.startsWith(origin) && !url.startsWith("blob:" + origin));
  const found = [...page.problems, ...foreign.map((url) => "a request to " + url)];
  await page.context().close();
  if (found.length) throw new Error(found.join("\n"));
}

/** Serious and critical findings of axe, in light and in dark. */
export async function accessible(page) {
  const found = [];
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    found.push(...(await findings(page)).map((text) => `${colorScheme}: ${text}`));
  }
  await page.emulateMedia({ colorScheme: null });
  return found;
}

async function findings(page) {
  // The policy of the page forbids scripts from elsewhere; the debugger may inject them.
  const results = await page.evaluate(async (source) => {
    if (!globalThis.axe) (0, Function)(source)();
    return globalThis.axe.run(document, { resultTypes: ["violations"] });
  }, axe).catch(async () => {
    const session = await page.context().newCDPSession(page);
    await session.send("Runtime.evaluate", { expression: axe });
    return page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  });
  return results.violations.filter((one) => ["serious", "critical"].includes(one.impact)).flatMap((one) => one.nodes.map((node) => `${one.id}: ${node.html.slice(0, 160)} ${node.failureSummary?.split("\n")[1] ?? ""}`));
}

/** Takes a picture in light and one in dark. */
export async function shot(page, name) {
  if (!SHOTS) return;
  mkdirSync(SHOTS, { recursive: true });
  for (const colorScheme of ["dark", "light"]) {
    await page.emulateMedia({ colorScheme });
    await page.waitForTimeout(250);
    await page.screenshot({ path: path.join(SHOTS, `${name}-${colorScheme}.png`) });
  }
}

export async function close() {
  await browser?.close();
  for (const child of children) child.kill("SIGKILL");
  for (const one of folders) rmSync(one, { recursive: true, force: true });
}
