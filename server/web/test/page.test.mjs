// The page in a real browser, as people use it.

import { after, before, test } from "node:test";
import assert from "node:assert/strict";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { Server, start, folder, model, open, quiet, accessible, shot, close } from "./harness.mjs";

let demo, ids;
const talk = (name) => `${demo}/#/c/${ids[name]}`;
/** Opens a fold; what is in it is drawn a moment later. */
const unfold = async (details) => {
  await details.locator("summary").first().click();
  await details.locator(".inside").first().waitFor();
};
/** Goes to a view of a conversation, and waits until everything in it is drawn. */
const goToView = async (page, conversation, view) => {
  await page.goto(conversation + (view && "/" + view));
  await page.waitForFunction((view) => document.querySelector(".tabs [aria-current]")?.dataset.view === view && !/Loading…|verifies the chain…/.test(document.querySelector("main").textContent) && (view || document.querySelector(".turn")), view);
};
/** Waits until what was changed is laid out, and what that set off is done. */
const laidOut = (page) => page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
const text = (page, selector) => page.locator(selector).first().innerText();

before(async () => {
  demo = (await start(["demo", "--no-open", "--listen", "127.0.0.1:0"], /conversations is at (http:\S+)/)).url;
  const { data } = await (await fetch(demo + "/api/v1/conversations")).json();
  ids = Object.fromEntries(data.map((one) => [one.title, one.id]));
});
after(close);

const LOGIN = "Logins time out on staging", PORT = "Move the importer to Rust", QUEUE = "Which queue for the mailer?", NIGHT = "Nightly clean-up of previews", STORY = "A bedtime story for Nora", OFFSITE = "Offsite in September";

// ---------------------------------------------------------------------------------------------------- how it is served

test("the files have a strict policy, a version, and are small", async () => {
  const answer = await fetch(demo + "/");
  const policy = answer.headers.get("content-security-policy");
  assert.match(policy, /default-src 'none'/);
  assert.doesNotMatch(policy, /unsafe|\*|data:|https?:/);
  assert.match(policy, /require-trusted-types-for 'script'/);
  assert.equal(answer.headers.get("x-content-type-options"), "nosniff");
  const again = await fetch(demo + "/", { headers: { "If-None-Match": answer.headers.get("etag") } });
  assert.equal(again.status, 304);
  const html = await answer.text();
  assert.doesNotMatch(html, /<script(?![^>]*src)|style=|onclick/);
});

test("the first view takes less than 50 KB, the whole page with every view less than 150 KB", async () => {
  // Until a page is there, and until the list can be read, in the same browser; times of a test are told, and not judged.
  const until = async (url, selector) => {
    const began = performance.now(), page = await open(url);
    await page.waitForSelector(selector);
    const took = performance.now() - began;
    await page.context().close();
    return took;
  };
  await until(demo + "/healthz", "body");
  const times = [];
  for (let round = 0; round < 5; round++) times.push([await until(demo + "/healthz", "body"), await until(demo, ".entry .title")]);
  const [floor, list] = [0, 1].map((n) => times.map((one) => one[n]).sort((a, b) => a - b)[2]);
  console.log(`the list can be read after ${Math.round(list)} ms, ${Math.round(list - floor)} ms more than an empty page (${Math.round(floor)} ms, ${(list / floor).toFixed(1)} times)`);
  const page = await open(demo);
  await page.waitForSelector(".entry .title");
  const sent = () => page.evaluate(() => performance.getEntries().filter((one) => one.entryType === "navigation" || /\/web\//.test(one.name)).reduce((sum, one) => ({ wire: sum.wire + one.transferSize, whole: sum.whole + one.decodedBodySize }), { wire: 0, whole: 0 }));
  const first = await sent();
  assert.ok(first.wire < 50 * 1024, `${first.wire} bytes for the list`);
  // First view within 300 ms: no more than the files of the list in parallel, then the list itself.
  const requests = await page.evaluate(() => performance.getEntriesByType("resource").map(({ name, startTime, responseEnd }) => ({ name: new URL(name).pathname, startTime, responseEnd })));
  const files = requests.filter((one) => one.name.startsWith("/web/"));
  assert.deepEqual([...new Set(files.map((one) => one.name))].sort(), ["api.js", "app.js", "dom.js", "icon.svg", "list.js", "style.css"].map((name) => "/web/" + name));
  const listed = requests.find((one) => one.name === "/api/v1/conversations"), asked = requests.filter((one) => one.responseEnd <= listed.startTime && !one.name.startsWith("/web/"));
  assert.deepEqual(asked.map((one) => one.name), [], "requests that the list waits for");
  await page.goto(talk(LOGIN));
  await page.waitForSelector(".turn");
  const paint = await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0].startTime);
  for (const view of ["projected", "calls", "state", "proof"]) {
    await goToView(page, talk(LOGIN), view);
  }
  await page.keyboard.press("Control+k");
  await page.waitForSelector(".palette");
  await page.keyboard.press("Escape");
  await page.goto(talk(LOGIN));
  await page.getByRole("button", { name: "More", exact: true }).click();
  await page.waitForSelector('[role="menu"]');
  await page.goto(demo + "/#/usage");
  await page.waitForSelector(".plot");
  // All files of the page have been sent.
  const names = await page.evaluate(() => [...new Set(performance.getEntriesByType("resource").map((one) => new URL(one.name).pathname).filter((name) => name.startsWith("/web/")))]);
  const inFolder = readdirSync(new URL("..", import.meta.url)).filter((name) => /\.(js|css|svg)$/.test(name)).map((name) => "/web/" + name);
  assert.deepEqual(names.sort(), inFolder.sort());
  const all = await sent(), kb = (n) => Math.round(n / 1024);
  console.log(`first paint after ${Math.round(paint)} ms; on the wire ${kb(first.wire)} KB for the list, ${kb(all.wire)} KB for everything (${kb(all.whole)} KB before compression)`);
  assert.ok(all.wire < 150 * 1024, `${all.wire} bytes`);
  assert.ok(all.wire < all.whole / 2, "it is compressed");
  await quiet(page);
});

// ---------------------------------------------------------------------------------------------------- the list

test("the list shows what changed last, with people and turns", async () => {
  const page = await open(demo);
  await page.waitForSelector(".entry .title");
  assert.equal(await page.locator(".entry").count(), 10);
  await page.waitForSelector('.amount:has-text("40k tokens")');
  assert.match(await text(page, `.entry:has-text("${LOGIN}") .meta >> nth=0`), /alice, claude, tools\s+2[5-9] turns\s+40k tokens/);
  const cut = await page.locator(".entry .people").evaluateAll((all) => all.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent));
  assert.deepEqual(cut, [], "names that are cut");
  // Tokens are there as a whole, or not at all.
  const tokens = await page.locator(".spent").evaluateAll((all) => all.map((one) => { const box = one.getBoundingClientRect(), own = one.firstChild.getBoundingClientRect(); return own.top >= box.bottom - 1 ? "absent" : own.right <= box.right + 1 ? "whole" : "cut"; }));
  assert.ok(tokens.includes("whole") && !tokens.includes("cut"), tokens.join());
  await page.waitForFunction(() => document.querySelector(".count").textContent.includes("10"));
  assert.deepEqual(await accessible(page), []);
  await shot(page, "list");
  await quiet(page);
});

test("the list shows what was chosen last, whichever answer comes last", async () => {
  const server = await Server.new();
  const old = await server.talk("Put away", "one");
  await server.talk("Still here", "two");
  await server.api("PATCH", `/conversations/${old}`, { state: "archived" });
  const page = await open(server.url);
  await page.waitForSelector('.entry:has-text("Still here")');
  const answered = Promise.withResolvers();
  await page.route(/\/conversations\?.*state=archived/, (route) => answered.promise.then(() => route.continue()));
  await page.getByRole("button", { name: "Archived" }).click();
  await page.getByRole("button", { name: "Active" }).click();
  await page.waitForSelector('.entry:has-text("Still here")');
  const late = page.waitForResponse(/state=archived/);
  answered.resolve();
  await (await late).finished();
  await laidOut(page);
  assert.equal(await page.locator('.entry:has-text("Put away")').count(), 0);
  await quiet(page);
  await server.end();
});

test("search as you type finds words in any conversation and goes to the place", async () => {
  const page = await open(demo);
  await page.waitForSelector(".entry .title");
  await page.getByRole("searchbox", { name: "Search everything" }).pressSequentially("redis answers", { delay: 20 });
  await page.waitForSelector(".hit mark");
  await shot(page, "search");
  assert.deepEqual(await accessible(page), []);
  await page.locator(".hit", { hasText: "Every login gives up" }).first().click();
  await page.waitForSelector(".turn.current");
  assert.match(await text(page, ".turn.current"), /400 ms/);
  await quiet(page);
});

test("a search without a result says so, and Escape brings the list back", async () => {
  const page = await open(demo);
  const field = page.getByRole("searchbox", { name: "Search everything" });
  await field.fill("zzyzx-unheard-of");
  await page.waitForSelector(".entries .empty");
  await field.press("Escape");
  await page.waitForSelector(".entry .title");
  await quiet(page);
});

test("nothing archived, and nothing at all, are states of their own", async () => {
  const server = await Server.new();
  const page = await open(server.url);
  await page.waitForSelector(".entries .empty");
  assert.match(await text(page, ".entries .empty"), /No conversations yet/);
  assert.match(await text(page, ".home"), /Nothing is stored here yet\. In a terminal, everturn import takes over the sessions/);
  assert.doesNotMatch(await text(page, ".home"), /Choose a conversation/);
  assert.deepEqual(await accessible(page), []);
  await shot(page, "empty");
  await page.getByRole("button", { name: "Archived" }).click();
  await page.waitForFunction(() => document.querySelector(".entries .empty")?.textContent.includes("Nothing archived"));
  await quiet(page);
  await server.end();
});

test("files are imported from the empty list", async () => {
  const server = await Server.new();
  const page = await open(server.url);
  const choose = async (...files) => {
    const [chooser] = await Promise.all([page.waitForEvent("filechooser"), page.getByRole("button", { name: "Import files" }).click()]);
    await chooser.setFiles(files);
  };
  await choose({ name: "notes.txt", mimeType: "text/plain", buffer: Buffer.from("no session at all\n") });
  await page.waitForSelector('.toast.bad:has-text("notes.txt: ")');
  const messages = [{ role: "user", content: "Where is the quagga?" }, { role: "assistant", content: "In the museum." }];
  await choose({ name: "chat.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(messages)) });
  await page.waitForSelector('.turn:has-text("In the museum.")');
  await page.waitForSelector('.toast:has-text("Imported 2 turns")');
  await quiet(page);
  await server.end();
});

test("errors have no words of the command line or of REST", async () => {
  const server = await Server.new();
  const id = await server.talk("Pins", "one");
  await server.api("PUT", `/conversations/${id}/pins/goal`, { value: "ship it" });
  const page = await open(`${server.url}/#/c/${id}/state`);
  // Somebody else is first, and the page does not hear of it in time.
  await page.route(/\/pins\/goal/, async (route) => {
    if (!page.raced) {
      page.raced = true;
      await server.api("DELETE", `/conversations/${id}/pins/goal`);
    }
    await route.continue();
  });
  await page.getByRole("button", { name: "Unpin goal" }).click();
  await page.waitForSelector(".toast.bad");
  assert.match(await text(page, ".toast.bad"), /^Nothing is pinned as "goal"\s*$/);
  const plain = await page.evaluate(async (texts) => texts.map((await import("/web/api.js")).plain), [
    "no turn t here; `GET /api/v1/conversations/{conversation}/turns` shows what there is",
    "it is archived; set its state to active first (`PATCH /api/v1/conversations/{conversation}`)",
    "it differs; `everturn doctor --rebuild` makes it again",
    "`limit` must be a whole number, not a string",
  ]);
  assert.deepEqual(plain, ["no turn t here", "it is archived; set its state to active first", "it differs", "`limit` must be a whole number, not a string"]);
  await quiet(page);
  await server.end();
});

test("a conversation without a title is called by its first words; tokens of long ago count", async () => {
  const server = await Server.new();
  const { id } = await server.post("/conversations", {});
  await server.say(id, "<command-name>/clear</command-name>", { role: "user", content: "Where do the wombats live?", occurred_at: "2025-01-02T10:00:00Z" }, { role: "assistant", content: "In burrows.", model: "small", tokens: { prompt: 2000, completion: 400 }, occurred_at: "2025-01-02T10:01:00Z" });
  const page = await open(server.url);
  await page.waitForSelector('.entry .title:text-is("Where do the wombats live?")');
  await page.waitForSelector('.entry .amount:has-text("2.4k tokens")');
  await page.locator(".entry").click();
  await page.waitForSelector('h1:text-is("Where do the wombats live?")');
  assert.equal(await page.title(), "Where do the wombats live? · Everturn");
  await page.keyboard.press("Control+k");
  await page.waitForSelector('.option:has-text("Where do the wombats live?")');
  await quiet(page);
  await server.end();
});

test("new conversations, and new titles, appear by themselves", async () => {
  const server = await Server.new();
  const page = await open(server.url);
  await page.waitForSelector(".entries .empty");
  const id = await server.talk("From somewhere else", "hello");
  await page.waitForSelector('.entry:has-text("From somewhere else")');
  assert.match(await text(page, ".home"), /Choose a conversation/);
  await server.api("PATCH", `/conversations/${id}`, { title: "Called differently" });
  await page.waitForSelector('.entry:has-text("Called differently")');
  await quiet(page);
  await server.end();
});

// ---------------------------------------------------------------------------------------------------- one conversation

test("a conversation opens at its end", async () => {
  const page = await open(talk(LOGIN));
  await page.waitForSelector('.turn:has-text("Nothing has to be changed")');
  await page.waitForFunction(() => { const s = document.querySelector(".scroller"); return s.scrollHeight - s.scrollTop - s.clientHeight < 2; });
  assert.deepEqual(await accessible(page), []);
  await shot(page, "conversation");
  await quiet(page);
});

test("a call is folded with its result and shows both when opened", async () => {
  const page = await open(talk(LOGIN) + "@4");
  const call = page.locator('details.call:has-text("grep")').first();
  await call.waitFor();
  assert.equal(await call.evaluate((el) => el.open), false);
  await unfold(call);
  assert.match(await call.innerText(), /session_timeout[^]*Result #5[^]*const SESSION_TIMEOUT/);
  assert.equal(await page.locator('[data-seq="5"]').count(), 0, "the result has no row of its own");
  await quiet(page);
});

test("failed calls are marked", async () => {
  const page = await open(talk(LOGIN) + "@6");
  const call = page.locator('details.call:has-text("sesion.rs")');
  await call.waitFor();
  assert.match(await call.innerText(), /failed/);
  assert.equal(await call.getByRole("img", { name: "failed" }).count(), 1);
  await quiet(page);
});

test("an edit is shown as a difference", async () => {
  const page = await open(talk(LOGIN) + "@14");
  const call = page.locator('details.call:has-text("edit_file")').first();
  await unfold(call);
  assert.ok((await call.locator(".added").count()) >= 2);
  assert.ok((await call.locator(".removed").count()) >= 2);
  await shot(page, "edit");
  await quiet(page);
});

test("thinking is folded; t shows it", async () => {
  const page = await open(talk(LOGIN) + "@4");
  await page.waitForSelector("details.thought");
  assert.equal(await page.locator("details.thought[open]").count(), 0);
  await page.keyboard.press("t");
  await page.waitForSelector('details.thought[open]:has-text("Start with what changed")');
  await page.keyboard.press("t");
  await page.waitForFunction(() => !document.querySelector("details.thought[open]"));
  await quiet(page);
});

test("pictures come from assets", async () => {
  const page = await open(talk(LOGIN));
  await page.waitForFunction(() => document.querySelector(".image img")?.naturalWidth > 100);
  assert.match(await page.locator(".image img").getAttribute("src"), /^blob:/);
  await page.getByRole("button", { name: "Enlarge the image" }).click();
  await page.waitForSelector("dialog img.large");
  await page.keyboard.press("Escape");
  await quiet(page);
});

test("tables, code and patches are shown as such", async () => {
  const page = await open(talk(QUEUE));
  await page.waitForSelector(".md table");
  assert.equal(await page.locator(".md table th").count(), 4);
  assert.ok((await page.locator(".code .hl-k").count()) > 3);
  assert.equal(await page.locator(".code .added").count(), 2);
  await shot(page, "markdown");
  assert.deepEqual(await accessible(page), []);
  await quiet(page);
});

test("an edit is read in the place of the turn that it replaces; broken-off turns stay where they were", async () => {
  const page = await open(talk(QUEUE));
  const edited = page.locator(".turn", { has: page.locator(".badge:has-text('edited')") });
  await edited.waitFor();
  assert.match(await edited.innerText(), /See below for the numbers[^]*1 earlier version/);
  assert.equal(await page.locator('.turn:has-text("See below for the numbers")').count(), 1, "it is there once");
  const order = await page.locator(".turn.user").allInnerTexts();
  assert.match(order[0], /See below/);
  assert.match(order[1], /bursts of up to 50,000/);
  await unfold(edited.locator("details.versions"));
  assert.equal(await edited.locator(".removed").count(), 1);
  // The number is that of the version that is shown, as its time is.
  assert.equal(await edited.locator(".place").first().textContent(), "#4");
  assert.match(await edited.innerText(), /#2, (\d+ \w+, )?\d\d:\d\d; replaced by #4/);
  assert.match(await text(page, ".turn.broken"), /three things[^]*broken off\s+model.overloaded/);
  await shot(page, "versions");
  await page.keyboard.press("e");
  await page.waitForSelector('.note:has-text("an edit, read at #2")');
  await quiet(page);
});

test("a link to an edit leads to its place, and an edit by somebody else appears there", async () => {
  const server = await Server.new();
  const id = await server.talk("Edited", "first", ...Array.from({ length: 120 }, (_, n) => `Line ${n + 1} of many`));
  const [first] = (await server.get(`/conversations/${id}/turns?limit=1`)).data;
  const page = await open(`${server.url}/#/c/${id}@2`);
  await page.waitForSelector('.turn.current:has-text("first")');
  const { turns: [second] } = await server.post(`/turns/${first.id}/supersede`, { role: "user", content: "second", actor: "bob" });
  await page.waitForSelector('[data-seq="2"]:has-text("second")');
  const { turns: [third] } = await server.post(`/turns/${second.id}/supersede`, { role: "user", content: "third", actor: "bob" });
  await page.waitForSelector('[data-seq="2"]:has-text("third"):has-text("2 earlier versions")');
  await page.goto(`${server.url}/#/c/${id}@60`);
  await page.waitForSelector('[data-seq="60"].current');
  await page.goto(`${server.url}/#/c/${id}@${third.seq}`);
  await page.waitForSelector('[data-seq="2"].current:has-text("third")');
  await quiet(page);
  await server.end();
});

test("calls that were given up, and private turns, are marked", async () => {
  const page = await open(talk(OFFSITE));
  const call = page.locator('details.call:has-text("book_room")');
  await call.waitFor();
  assert.match(await call.innerText(), /given up/);
  await unfold(call);
  assert.match(await call.innerText(), /did not answer within an hour/);
  assert.match(await text(page, ".turn.private"), /private, for lee[^]*Between the two of us/);
  assert.deepEqual(await accessible(page), []);
  await shot(page, "private");
  await quiet(page);
});

test("a checkpoint is drawn where it was made, and opens", async () => {
  const page = await open(talk(PORT));
  const boundary = page.locator(".boundary").last();
  await boundary.waitFor();
  await boundary.scrollIntoViewIfNeeded();
  assert.match(await boundary.innerText(), /covers #\d+–#\d+, 18 turns[^]*tokens/);
  await unfold(boundary);
  assert.match(await boundary.innerText(), /Goal:/);
  await quiet(page);
});

test("a checkpoint is shown as the model reads it: with constraints, files and all else", async () => {
  const get = async (place) => (await fetch(`${demo}/api/v1/conversations/${ids[LOGIN]}${place}`)).json();
  const { checkpoint } = await get("/state");
  assert.ok(checkpoint.user_constraints.length && checkpoint.relevant_files.length);
  const [{ seq }] = (await get("/events?kinds=context.receipt&order=desc&limit=1")).data;
  const prompt = JSON.stringify((await get(`/contexts/${seq}`)).system);
  const page = await open(talk(LOGIN) + "/state");
  const drawn = page.locator('section:has(> h2:text-is("Checkpoint")) .md');
  await drawn.waitFor();
  const written = await page.evaluate(async (one) => (await import("/web/text.js")).checkpointText(one), checkpoint);
  assert.ok(prompt.includes(JSON.stringify(written).slice(1, -1)), `in the prompt:\n${written}`);
  const whole = (await drawn.innerText()).replace(/\s+/g, " ");
  for (const part of ["User constraints", ...checkpoint.user_constraints, "Files", ...checkpoint.relevant_files]) assert.ok(whole.includes(part.replaceAll("`", "")), part);
  await page.goto(talk(LOGIN));
  const boundary = page.locator(".boundary").last();
  await unfold(boundary);
  assert.match(await boundary.innerText(), /User constraints[^]*Files/);
  // What the note contains is there once.
  const other = await page.evaluate(async () => (await import("/web/text.js")).checkpointText({ goal: "Ship it", user_constraints: ["No rush"], decisions: ["Use tea"], critical_identifiers: ["ab-1", "b-1"], relevant_files: [], handoff_md: "Ship it. Use tea, see ab-1." }));
  assert.equal(other, "Ship it. Use tea, see ab-1.\n\n**User constraints**\n\n- No rush\n\n**Identifiers**\n\nb-1");
  await quiet(page);
});

test("an imported checkpoint shows the tokens that are known", async () => {
  const server = await Server.new();
  const value = { _type: "transcript", version: 2, id: "tr_1", state: "active", summary: "Ten turns about the port.", metadata: {}, messages: [{ role: "user", content: "And now?" }], events: [], assets: [] };
  const { conversation } = await server.post("/import", value);
  const page = await open(`${server.url}/#/c/${conversation.id}`);
  await page.waitForSelector(".boundary");
  assert.match(await text(page, ".boundary"), /Checkpoint of earlier turns\s*\d+ tokens · transcript/);
  await page.goto(`${server.url}/#/c/${conversation.id}/state`);
  await page.waitForSelector(".lineage text");
  assert.match(await text(page, ".lineage"), /#\d+: \d+ tokens/);
  await quiet(page);
  await server.end();
});

test("j and k go from turn to turn, J and K from prompt to prompt", async () => {
  const page = await open(talk(PORT) + "@10");
  await page.waitForSelector('[data-seq="10"].current');
  await page.keyboard.press("j");
  const seq = async () => Number(await page.locator(".current").getAttribute("data-seq"));
  assert.ok((await seq()) > 10);
  await page.keyboard.press("k");
  assert.equal(await seq(), 10);
  await page.keyboard.press("J");
  await page.waitForFunction(() => Number(document.querySelector(".current")?.dataset.seq) > 10);
  assert.match(await text(page, ".current"), /Next: the/);
  await quiet(page);
});

test("g and G select the first and the last turn, and j and k go on from there", async () => {
  const server = await Server.new();
  const id = await server.talk("Steps", ...Array.from({ length: 300 }, (_, n) => `Line ${n + 1} of many`));
  const page = await open(`${server.url}/#/c/${id}@100`);
  await page.waitForSelector('[data-seq="100"].current');
  const press = async (keys) => { for (const key of keys) await page.keyboard.press(key); };
  const at = async (seq) => {
    await page.waitForSelector(`[data-seq="${seq}"].current`);
    assert.equal(await page.locator(".current").count(), 1);
    const [row, view] = await Promise.all([page.locator(".current"), page.locator(".scroller")].map((one) => one.boundingBox()));
    assert.ok(row.y + row.height > view.y && row.y < view.y + view.height, `#${seq} is in view`);
  };
  await press("gjjGk");
  await at(300);
  await press("K");
  await at(299);
  await press("gjjj");
  await at(5);
  await press("g");
  await at(2);
  await press("Gj");
  await at(301);
  await server.say(id, "Line 301 of many");
  await page.waitForSelector('.turn:has-text("Line 301 of many")');
  await press("j");
  await at(302);
  await quiet(page);
  await server.end();
});

test("find inside one conversation", async () => {
  const page = await open(talk(PORT));
  await page.waitForSelector(".turn");
  await page.keyboard.press("/");
  await page.getByRole("searchbox", { name: "Find in this conversation" }).fill("rounding half");
  await page.waitForSelector(".found .hit");
  await shot(page, "find");
  await page.keyboard.press("Enter");
  await page.waitForSelector('.turn.current:has-text("rounding half")');
  await page.keyboard.press("Escape");
  await page.waitForSelector(".finder", { state: "hidden" });
  assert.equal(await page.locator(".turn.current").count(), 1, "the place stays selected");
  await quiet(page);
});

test("the words that were found are visible, however far into a text they are", async () => {
  const server = await Server.new();
  const id = await server.talk("Deep", "The parser reads the file again and finds the line with the quote. ".repeat(9) + "Then the xylophone plays for the quagga.");
  const page = await open(`${server.url}/#/c/${id}`);
  await page.waitForSelector(".turn");
  const visible = () => page.locator(".hit mark").evaluateAll((all) => all.map((mark) => { const box = mark.closest(".snippet").getBoundingClientRect(), own = mark.getBoundingClientRect(); return own.bottom <= box.bottom + 1 && own.top >= box.top - 1; }));
  await page.keyboard.press("/");
  await page.getByRole("searchbox", { name: "Find in this conversation" }).fill("xylophone quagga");
  await page.waitForSelector(".found .hit mark");
  assert.ok((await visible()).every(Boolean), `in find: ${await visible()}`);
  await page.keyboard.press("Escape");
  await page.getByRole("searchbox", { name: "Search everything" }).fill("xylophone quagga");
  await page.waitForSelector(".entries .hit mark");
  assert.ok((await visible()).every(Boolean), `in the list: ${await visible()}`);
  await quiet(page);
  await server.end();
});

test("a hit is opened where it is, and its words are marked", async () => {
  const page = await open(demo);
  await page.waitForSelector(".entry .title");
  const field = page.getByRole("searchbox", { name: "Search everything" });
  const marked = () => page.locator(".timeline mark").evaluateAll((all) => all.map((one) => one.textContent.toLowerCase()));
  const inView = () => page.locator(".timeline .inside mark, .timeline .md mark").first().evaluate((mark) => { const view = document.querySelector(".scroller").getBoundingClientRect(), own = mark.getBoundingClientRect(); return own.top >= view.top && own.bottom <= view.bottom; });
  // In the output of a tool.
  await field.fill("b3310fe");
  await page.locator(".hit").first().click();
  await page.waitForSelector(".turn.current details.call[open] .inside mark");
  assert.equal(await page.locator(".turn.current details.call").count(), 2);
  assert.equal(await page.locator("details.call[open]").count(), 1);
  assert.deepEqual([...new Set(await marked())], ["b3310fe"]);
  assert.ok(await inView());
  // The same again, after it was folded.
  await page.locator("details.call[open] > summary").click();
  await page.waitForSelector("details.call[open]", { state: "detached" });
  await page.locator(".hit").first().click();
  await page.waitForSelector(".turn.current details.call[open] .inside mark");
  // In prose.
  await field.fill("every login gives up");
  await page.locator(".hit", { hasText: "Every login gives up" }).first().click();
  await page.waitForSelector(".turn.current .md mark");
  assert.ok((await marked()).includes("gives"));
  assert.equal(await page.locator("mark:text-is('b3310fe')").count(), 0, "marks of before are gone");
  assert.deepEqual(await accessible(page), []);
  // With find, and in the palette.
  await page.keyboard.press("Escape");
  await page.locator(".scroller").focus();
  await page.keyboard.press("/");
  await page.getByRole("searchbox", { name: "Find in this conversation" }).fill("b3310fe");
  await page.waitForSelector(".found .hit");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".turn.current details.call[open] .inside mark:text-is('b3310fe')");
  await page.goto(demo);
  await page.keyboard.press("Control+k");
  await page.getByRole("combobox", { name: "Go anywhere" }).fill("b3310fe");
  await page.waitForSelector('.option[aria-selected="true"] mark');
  await page.keyboard.press("Enter");
  await page.waitForSelector(".turn.current details.call[open] .inside mark:text-is('b3310fe')");
  await quiet(page);
  // Far down in a long output, in long text, in an edited turn.
  const server = await Server.new();
  const lines = Array.from({ length: 400 }, (_, n) => (n === 300 ? "the quagga is here" : `line ${n}`)).join("\n");
  const id = await server.talk("Deep", "Read both", { role: "assistant", content: [{ type: "tool_use", id: "a", name: "read", input: { path: "a.txt" } }, { type: "tool_use", id: "b", name: "read", input: { path: "b.txt" } }] }, { role: "user", content: [{ type: "tool_result", tool_use_id: "a", content: "nothing" }, { type: "tool_result", tool_use_id: "b", content: lines }] },
    "Reading is slow. ".repeat(500) + "The xylophone is in tune.", "first");
  const last = (await server.get(`/conversations/${id}/turns?order=desc&limit=1`)).data[0];
  await server.say(id, ...Array.from({ length: 60 }, (_, n) => `Line ${n}`));
  await server.post(`/turns/${last.id}/supersede`, { role: "user", content: "the okapi (c++) at last", actor: "bob" });
  const other = await open(`${server.url}/#/c/${id}`);
  await other.waitForSelector(".turn");
  for (const [word, where] of [["quagga", "details.call[open]:has-text('b.txt') .code"], ["xylophone", ".md"], ["okapi", ".md"]]) {
    await other.keyboard.press("/");
    await other.getByRole("searchbox", { name: "Find in this conversation" }).fill(word);
    await other.waitForSelector(`.found mark:text-is("${word}")`);
    await other.keyboard.press("Enter");
    await other.waitForSelector(`.turn.current ${where} mark:text-is("${word}")`);
    const seen = await other.locator(".timeline mark").first().evaluate((mark) => { const view = document.querySelector(".scroller").getBoundingClientRect(), own = mark.getBoundingClientRect(); return own.top >= view.top && own.bottom <= view.bottom; });
    assert.ok(seen, `${word} is in view`);
    await other.keyboard.press("Escape");
  }
  await quiet(other);
  await server.end();
});

test("a hit is opened where it is, however late heights are known", async () => {
  const server = await Server.new();
  const lines = Array.from({ length: 400 }, (_, n) => (n === 300 ? "the quagga is here" : `line ${n}`)).join("\n");
  const id = await server.talk("Slow", "Read it", { role: "assistant", content: [{ type: "tool_use", id: "a", name: "read", input: { path: "a.txt" } }] }, { role: "user", content: [{ type: "tool_result", tool_use_id: "a", content: lines }] },
    ...Array.from({ length: 60 }, (_, n) => `Line ${n}`));
  // As in a browser that has much else to do.
  const page = await open(`${server.url}/#/c/${id}`, { before: () => {
    const Real = ResizeObserver;
    window.ResizeObserver = class extends Real { constructor(told) { super((...all) => setTimeout(told, 300, ...all)); } };
  } });
  await page.waitForSelector(".turn");
  await page.keyboard.press("/");
  await page.getByRole("searchbox", { name: "Find in this conversation" }).fill("quagga");
  await page.waitForSelector(".found mark");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".turn.current details.call[open] mark:text-is('quagga')");
  // And it stays there once they are.
  await page.evaluate(() => new Promise((resolve) => setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(resolve)), 400)));
  assert.ok(await page.locator(".timeline mark").first().evaluate((mark) => { const view = document.querySelector(".scroller").getBoundingClientRect(), own = mark.getBoundingClientRect(); return own.top >= view.top && own.bottom <= view.bottom; }));
  await quiet(page);
  await server.end();
});

test("what was erased is gone from the page, also if an older answer arrives late", async () => {
  const server = await Server.new();
  const id = await server.talk("Late answers", "first");
  const [first] = (await server.get(`/conversations/${id}/turns`)).data;
  const { turns: [edited] } = await server.post(`/turns/${first.id}/supersede`, { role: "user", content: "a secret", actor: "alice" });
  const page = await open(`${server.url}/#/c/${id}`);
  await page.waitForSelector('.turn:has-text("a secret")');
  // The first answer is of before the erasure, and arrives once the page knows of it.
  let isFirst = true;
  await page.route("**/turns?*", async (route) => {
    const response = await route.fetch();
    if (isFirst) {
      isFirst = false;
      const informed = page.waitForRequest(/\/state$/);
      await server.post(`/turns/${edited.id}/erase`, { reason: "on request" });
      await informed;
    }
    await route.fulfill({ response });
  });
  await server.say(id, "second");
  await page.waitForSelector('.turn:has-text("was erased")');
  assert.equal(await page.locator('.turn:has-text("a secret")').count(), 0);
  await quiet(page);
  await server.end();
});

test("a turn is selected however late it is loaded", async () => {
  const server = await Server.new();
  const id = await server.talk("Late", "Read it", { role: "assistant", content: [{ type: "tool_use", id: "a", name: "read", input: { path: "a.txt" } }] }, { role: "user", content: [{ type: "tool_result", tool_use_id: "a", content: "nothing" }] },
    ...Array.from({ length: 100 }, (_, n) => `Line ${n}`));
  const page = await open(`${server.url}/#/c/${id}`);
  await page.waitForSelector(".turn:has-text('Line 99')");
  await page.route("**/turns?*", async (route) => {
    await new Promise((resolve) => setTimeout(resolve, 4000));
    await route.continue();
  });
  // The result is shown in its call.
  await page.goto(`${server.url}/#/c/${id}@4`);
  await page.waitForSelector('.turn.current[data-seq="3"]');
  await server.end();
});

test("what was said a moment ago is found as soon as it is indexed", async () => {
  const server = await Server.new();
  const id = await server.talk("Fresh", "The quagga is here");
  const page = await open(`${server.url}/#/c/${id}`);
  await page.waitForSelector(".turn");
  // As it is answered while the index is behind: that one event was not searched.
  const asked = [];
  await page.route("**/recall", async (route) => {
    asked.push(route.request().url());
    if (asked.length > 2) return route.continue();
    await route.fulfill({ json: { mode: "lexical", behind: { events: 1, vectors: 0 }, data: [] } });
  });
  await page.keyboard.press("/");
  await page.getByRole("searchbox", { name: "Find in this conversation" }).fill("quagga");
  await page.waitForSelector(".found:has-text('1 event not indexed yet')");
  await page.waitForSelector(".found .hit mark");
  assert.equal(await text(page, ".found p"), "1 place");
  asked.length = 0;
  await page.getByRole("searchbox", { name: "Search everything" }).fill("quagga");
  await page.waitForSelector(".entries .note:has-text('1 event not indexed yet')");
  await page.waitForSelector(".entries .hit mark");
  asked.length = 0;
  await page.keyboard.press("Control+k");
  await page.getByRole("combobox", { name: "Go anywhere" }).fill("quagga");
  await page.waitForSelector('.palette:has-text("Nothing matches")');
  await page.waitForSelector('.option:has-text("quagga") mark');
  await server.end();
});

test("Ctrl+K goes to conversations, to places and does things", async () => {
  const page = await open(demo);
  await page.waitForSelector(".entry .title");
  await page.keyboard.press("Control+k");
  await page.getByRole("combobox", { name: "Go anywhere" }).fill("importer");
  await page.waitForSelector('.option[aria-selected="true"]:has-text("Move the importer")');
  assert.deepEqual(await accessible(page), []);
  await shot(page, "palette");
  await page.keyboard.press("Enter");
  await page.waitForSelector(`h1:has-text("${PORT}")`);
  await page.keyboard.press("Control+k");
  await page.getByRole("combobox", { name: "Go anywhere" }).fill("#12");
  await page.waitForSelector('.option[aria-selected="true"]:has-text("Turn #12")');
  await page.keyboard.press("Enter");
  await page.waitForSelector(".current");
  await page.keyboard.press("Control+k");
  await page.getByRole("combobox", { name: "Go anywhere" }).fill("zzyzx-unheard-of");
  await page.waitForSelector('.palette:has-text("Nothing matches “zzyzx-unheard-of”.")');
  assert.deepEqual(await accessible(page), []);
  await page.getByRole("combobox", { name: "Go anywhere" }).fill("proof");
  await page.waitForSelector('.option[aria-selected="true"]:has-text("Proof")');
  await page.keyboard.press("Enter");
  await page.waitForSelector(".verdict");
  await quiet(page);
});

test("Ctrl+K finds things before the list is there", async () => {
  const server = await Server.new();
  await server.talk("Early", "the quagga is here");
  const page = await open(server.url);
  const answered = Promise.withResolvers();
  await page.route(/\/whoami/, (route) => answered.promise.then(() => route.continue()));
  await page.reload();
  await page.keyboard.press("/");
  await page.keyboard.press("Control+k");
  await page.getByRole("combobox", { name: "Go anywhere" }).fill("quagga");
  await page.waitForSelector('.option:has-text("quagga") mark');
  answered.resolve();
  await page.waitForSelector(".entry .title");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".turn.current mark");
  await quiet(page);
  await server.end();
});

test("what is new since you looked is marked", async () => {
  const server = await Server.new();
  const id = await server.talk("Watched", "one", "two");
  const page = await open(`${server.url}/#/c/${id}`);
  await page.waitForSelector('.turn:has-text("two")');
  await page.evaluate(() => (location.hash = "#/"));
  await server.say(id, "three", "four");
  await page.waitForSelector(".entry.news");
  await page.locator(".entry").click();
  await page.waitForSelector('.turn:has(.new-from):has-text("three")');
  assert.equal(await page.locator(".new-from").count(), 1);
  await quiet(page);
  await server.end();
});

test("100,000 turns open at their end, scroll, and jump", async () => {
  const server = await Server.new();
  const id = await server.talk("A year of work");
  for (let n = 0; n < 100_000; n += 1000) {
    await server.say(id, ...Array.from({ length: 1000 }, (_, m) => ({ role: (n + m) % 3 ? "assistant" : "user", actor: (n + m) % 3 ? "claude" : "alice", content: `**Turn ${n + m + 1}.** ` + "The parser reads the file again and finds the line with the quote. ".repeat(1 + ((n + m) % 5)) })));
  }
  const page = await open(`${server.url}/#/c/${id}`);
  await page.waitForSelector('.turn:has-text("Turn 100000.")');
  await shot(page, "turns-100000");
  assert.ok((await page.locator("*").count()) < 4000, "only what is near the view has elements");
  const frames = await page.evaluate(async () => {
    const s = document.querySelector(".scroller"), times = [];
    let last = performance.now(), blank = 0;
    for (let n = 0; n < 150; n++) {
      s.scrollTop -= 70;
      await new Promise(requestAnimationFrame);
      times.push(performance.now() - last);
      last = performance.now();
      const box = s.getBoundingClientRect();
      if (document.elementFromPoint(box.left + 300, box.top + 300)?.closest(".loading")) blank++;
    }
    times.sort((a, b) => a - b);
    return { median: times[75], p95: times[142], blank };
  });
  console.log(`frames while scrolling: median ${frames.median.toFixed(1)} ms, 95 % ${frames.p95.toFixed(1)} ms, ${frames.blank} blank`);
  // Dragging the scrollbar to the middle.
  await page.evaluate(() => { const s = document.querySelector(".scroller"); s.scrollTop = s.scrollHeight / 2; });
  await page.waitForFunction(() => { const seq = Number(document.elementFromPoint(800, 400)?.closest("[data-seq]")?.dataset.seq); return seq > 40_000 && seq < 60_000; });
  await page.keyboard.press("g");
  await page.waitForSelector('.turn:has-text("Turn 1.")');
  await page.keyboard.press("G");
  await page.waitForSelector('.turn:has-text("Turn 100000.")');
  await page.goto(`${server.url}/#/c/${id}@31416`);
  await page.waitForSelector('[data-seq="31416"].current');
  const top = await page.locator('[data-seq="31416"]').evaluate((el) => el.getBoundingClientRect().top);
  assert.ok(top > 60 && top < 700, `in view: ${top}`);
  await quiet(page);
  await server.end();
});

// ---------------------------------------------------------------------------------------------------- sessions of agents

/** A session of Claude Code, from `[type, content, further fields]`, a minute apart. */
const claude = (...said) => said.map(([type, content, more], n) => ({ type, uuid: `u${n}`, parentUuid: n ? `u${n - 1}` : null, sessionId: "s1", cwd: "/home/me/proj", version: "2.1.0", timestamp: new Date(Date.UTC(2026, 1, 1, 0, n)).toISOString(), message: { id: `m${n}`, role: type, content }, ...more }));
/** A session of Codex, from its items. */
const codex = (...items) => [{ type: "session_meta", payload: { id: "cdx-1", cwd: "/home/me/proj", originator: "codex_cli_rs", cli_version: "0.46.0" } }, ...items.map((payload) => ({ type: "response_item", payload }))].map((line, n) => ({ timestamp: new Date(Date.UTC(2026, 1, 1, 0, n)).toISOString(), ...line }));

test("what a program wrote in the name of a person is folded and named, and is no prompt", async () => {
  const server = await Server.new();
  const id = await server.import(...claude(
    ["user", "Which parser is it?"],
    ["assistant", [{ type: "text", text: "The old one." }]],
    ["user", "<command-name>/clear</command-name>\n<command-message>clear</command-message>"],
    ["user", "<local-command-stdout>cleared kiwi</local-command-stdout>"],
    ["user", "Caveat: The messages below were generated by the user while running local commands.", { isMeta: true }],
    ["user", [{ type: "text", text: "<system-reminder>be nice, okapi</system-reminder>" }, { type: "text", text: "What does the parser do?\n<ide_opened_file>src/parse.rs</ide_opened_file>" }]],
    ["assistant", [{ type: "tool_use", id: "t1", name: "Skill", input: { skill: "pdf" } }]],
    ["user", [{ type: "tool_result", tool_use_id: "t1", content: "Launching skill: pdf" }, { type: "text", text: "[Request interrupted by user for tool use]" }]],
    ["user", [{ type: "text", text: "Base directory for this skill: /skills/pdf\n\nzebra instructions" }], { isMeta: true }],
    ["user", "A hook of mine wrote this.", { isMeta: true }],
    ["assistant", [{ type: "text", text: "It parses things." }]]));
  const page = await open(`${server.url}/#/c/${id}`);
  await page.waitForSelector('.turn:has-text("It parses things.")');
  const notices = await page.locator("details.notice > summary").allInnerTexts();
  assert.deepEqual(notices.map((one) => one.split("\n")[0]), ["command", "command output", "command", "reminder", "editor state", "notice", "skill", "program text"]);
  assert.match(notices[1], /cleared kiwi/);
  assert.equal(await page.locator(".turn.user:not(.tool)").count(), 2, "speech bubbles");
  const bubble = page.locator('.turn.user:has-text("What does the parser do?")');
  assert.equal((await bubble.locator(".md").innerText()).trim(), "What does the parser do?");
  assert.match(await bubble.locator("details.notice > summary").first().innerText(), /^reminder\s+be nice, okapi$/);
  // The edit dialog has the whole text: what is sent again is what the model read.
  await bubble.hover();
  await bubble.getByRole("button", { name: /^More about turn/ }).click();
  await page.getByRole("menuitem", { name: "Edit in place…" }).click();
  assert.match(await page.locator("dialog textarea").inputValue(), /^<system-reminder>be nice, okapi<\/system-reminder>\nWhat does/);
  await page.keyboard.press("Escape");
  await unfold(page.locator('details.notice:has-text("skill")'));
  assert.match(await text(page, 'details.notice:has-text("zebra") .inside'), /^Base directory for this skill: \/skills\/pdf\s+zebra instructions$/);
  assert.deepEqual(await accessible(page), []);
  await page.keyboard.press("G");
  await page.keyboard.press("K");
  await page.waitForSelector('.current:has-text("What does the parser do?")');
  await page.keyboard.press("K");
  await page.waitForSelector('.current:has-text("Which parser is it?")');
  await page.keyboard.press("J");
  await page.waitForSelector('.current:has-text("What does the parser do?")');
  await shot(page, "notices");
  await quiet(page);
  await server.end();
});

test("calls of Codex are folded with their results, which are shown as text", async () => {
  const server = await Server.new();
  const id = await server.import(...codex(
    { type: "message", role: "user", content: [{ type: "input_text", text: "<environment_context>\n<cwd>/home/me/proj</cwd>\n</environment_context>" }] },
    { type: "message", role: "user", content: [{ type: "input_text", text: "List the yaml files" }] },
    { type: "function_call", name: "shell", arguments: '{"command":["ls"]}', call_id: "call_1" },
    { type: "function_call_output", call_id: "call_1", output: '{"output": "alpha.txt\\nwombat.yaml\\n", "metadata": {"exit_code": 0}}' },
    { type: "custom_tool_call", name: "apply_patch", call_id: "call_2", status: "completed", input: "*** Begin Patch\n*** Update File: a.rs\n@@\n-a\n+b\n*** End Patch" },
    { type: "custom_tool_call_output", call_id: "call_2", output: "Success" },
    { type: "web_search_call", status: "completed", action: { type: "search", query: "wombats" } },
    { type: "message", role: "assistant", content: [{ type: "output_text", text: "There is one: wombat.yaml" }] }));
  const page = await open(`${server.url}/#/c/${id}`);
  await page.waitForSelector('.turn:has-text("There is one")');
  assert.deepEqual(await page.locator(".call .tool-name").allInnerTexts(), ["environment", "shell", "apply_patch", "web_search"]);
  assert.equal(await page.locator('.call [aria-label="done"]').count(), 2);
  const call = page.locator('details.call:has-text("shell")');
  await unfold(call);
  assert.match(await call.innerText(), /Result #\d+\s+Copy\s+alpha\.txt\nwombat\.yaml/);
  assert.doesNotMatch(await page.locator(".scroller").innerText(), /metadata|Unknown block/);
  await quiet(page);
  await server.end();
});

test("calls of every shape are calls, and results say whose they are", async () => {
  const server = await Server.new();
  const call = (id, name) => ({ type: "tool_call", id, name, arguments: { path: "src" } });
  const id = await server.talk("Shapes", "go",
    { role: "assistant", content: [call("n1", "list_files"), { type: "tool_search_call", call_id: "s1", action: { query: "maps" } }, { type: "mcp_call", id: "m1", name: "weather", arguments: '{"city":"Oslo"}', output: "cold" }] },
    { message: { role: "tool", tool_call_id: "n1", content: "a.rs" } },
    { message: { role: "user", parts: [{ functionResponse: { name: "glob", response: { output: "b.rs" } } }] } },
    { role: "user", content: [{ type: "tool_result", tool_use_id: "absent", content: "ok" }] });
  const page = await open(`${server.url}/#/c/${id}`);
  await page.waitForSelector('.turn:has-text("b.rs")');
  const calls = page.locator("details.call");
  await calls.locator('[aria-label="waiting"]').waitFor();
  assert.deepEqual(await page.locator(".call .tool-name").allInnerTexts(), ["list_files", "tool_search", "weather", "glob", "Result"]);
  assert.deepEqual(await calls.locator(".status").evaluateAll((all) => all.map((one) => one.getAttribute("aria-label"))), ["done", "waiting", "done", "result", "result"]);
  assert.deepEqual(await page.locator(".turn:has(.call) .name").allInnerTexts(), ["assistant", "glob", "tool"], "who speaks");
  assert.equal(await page.locator("text=Unknown block").count(), 0);
  await page.goto(`${server.url}/#/c/${id}/projected`);
  await page.waitForSelector(".pair .msg");
  const heads = await page.locator(".pair > .msg:first-child .msg-head b").allInnerTexts();
  assert.deepEqual(heads, ["user", "assistant", "list_files", "glob", "tool"]);
  await quiet(page);
  await server.end();
});

// ---------------------------------------------------------------------------------------------------- live

test("an answer appears as it is written, across a restart, and no word twice", async () => {
  const server = await Server.new();
  const id = await server.talk("Live", "Tell me");
  const page = await open(`${server.url}/#/c/${id}`);
  await page.waitForSelector(".turn");
  const write = async (turn, from, to) => {
    for (let n = from; n <= to; n++) {
      await server.post(`/turns/${turn}/chunks`, { delta: `word${n} ` });
      await new Promise((resolve) => setTimeout(resolve, 12));
    }
  };
  const first = await server.post(`/conversations/${id}/turns/open`, { actor: "claude" });
  await write(first.id, 1, 20);
  await page.waitForSelector('.turn.writing:has-text("word20")');
  await server.end();
  await page.waitForSelector(".connection:has-text('Reconnecting')");
  await server.again();
  await page.waitForSelector('.turn.broken:has-text("word20")');
  const second = await server.post(`/conversations/${id}/turns/open`, { actor: "claude" });
  await write(second.id, 21, 60);
  await server.post(`/turns/${second.id}/commit`, {});
  await page.waitForFunction(() => !document.querySelector(".turn.writing") && document.querySelector(".scroller").innerText.includes("word60"));
  const all = await page.locator(".scroller").innerText();
  for (let n = 1; n <= 60; n++) assert.equal(all.match(new RegExp(`\\bword${n}\\b`, "g"))?.length, 1, `word${n}`);
  await page.waitForFunction(() => !document.querySelector(".connection").textContent);
  await quiet(page);
  await server.end();
});

test("a page that is opened in the middle of an answer shows all of it once", async () => {
  const server = await Server.new();
  const id = await server.talk("Late", "Tell me");
  const turn = await server.post(`/conversations/${id}/turns/open`, { actor: "claude" });
  for (let n = 1; n <= 15; n++) await server.post(`/turns/${turn.id}/chunks`, { delta: `süß${n} ` });
  const page = await open(`${server.url}/#/c/${id}`);
  await page.waitForSelector('.writing:has-text("süß15")');
  for (let n = 16; n <= 30; n++) await server.post(`/turns/${turn.id}/chunks`, { delta: `süß${n} ` });
  await page.waitForSelector('.writing:has-text("süß30")');
  const said = await text(page, ".writing .said");
  assert.deepEqual(said.trim().split(/\s+/), Array.from({ length: 30 }, (_, n) => `süß${n + 1}`));
  await quiet(page);
  await server.end();
});

test("what others say appears; who reads further up is not moved", async () => {
  const server = await Server.new();
  const id = await server.talk("Shared", ...Array.from({ length: 60 }, (_, n) => `Line ${n + 1} of many`));
  const page = await open(`${server.url}/#/c/${id}`);
  await page.waitForSelector('.turn:has-text("Line 60 of many")');
  await server.say(id, "Line 61 of many");
  await page.waitForSelector('.turn:has-text("Line 61 of many")');
  await page.evaluate(() => { const s = document.querySelector(".scroller"); s.dispatchEvent(new Event("wheel")); s.scrollTop = 400; });
  await page.waitForFunction(() => document.querySelector('[data-seq="12"]') && !document.querySelector(".page.loading"));
  await laidOut(page);
  const top = () => page.evaluate(() => document.querySelector('[data-seq="12"]').getBoundingClientRect().top);
  const before = await top();
  await server.say(id, "Line 62 of many");
  await page.waitForSelector(".to-end.news");
  assert.ok(Math.abs((await top()) - before) < 2);
  await page.locator(".to-end").click();
  await page.waitForSelector('.turn:has-text("Line 62 of many")');
  await quiet(page);
  await server.end();
});

test("a conversation in which something is said all the time is shown meanwhile, also over a slow line", async () => {
  const server = await Server.new();
  const id = await server.talk("Busy", "begin");
  const page = await open(`${server.url}/#/c/${id}`);
  await page.waitForSelector(".turn");
  await page.route(/\/turns\?|\/conversations\/conv_\w+$/, async (route) => {
    await new Promise((resolve) => setTimeout(resolve, 300));
    await route.continue();
  });
  let isOver = false;
  const said = (async () => {
    for (let n = 0; !isOver; n++) await server.say(id, `Line ${n}`);
  })();
  await page.waitForSelector(".turn:has-text('Line 9')");
  await page.waitForFunction(() => Number(/(\d+) turns/.exec(document.querySelector(".facts").textContent)?.[1]) > 9);
  isOver = true;
  await said;
  await quiet(page);
  await server.end();
});

test("a server that is gone is said so, and the page goes on when it is back", async () => {
  const server = await Server.new();
  const id = await server.talk("Patient", "still here");
  const page = await open(`${server.url}/#/c/${id}`);
  await page.waitForSelector(".turn");
  await server.end();
  await page.waitForSelector(".banner:not([hidden])");
  assert.match(await text(page, ".turn"), /still here/);
  await shot(page, "offline");
  await server.again();
  await page.waitForSelector(".banner", { state: "hidden" });
  await server.say(id, "and again");
  await page.waitForSelector('.turn:has-text("and again")');
  await quiet(page);
  await server.end();
});

test("a server that answers with errors is said so, and the page goes on when it recovers", async () => {
  const server = await Server.new();
  const id = await server.talk("Broken", "still here");
  const page = await open(server.url);
  await page.waitForSelector(".entry .title");
  const fail = (route) => route.fulfill({ status: 500, contentType: "application/problem+json", body: JSON.stringify({ code: "store.io", detail: "the disk cannot be read; see the log of the server" }) });
  await page.route(/\/(turns|events|project)(\?|$)/, fail);
  await page.goto(`${server.url}/#/c/${id}`);
  await page.waitForSelector('.trouble:has-text("the disk cannot be read")');
  await page.waitForSelector('.connection:has-text("the disk cannot be read")');
  assert.deepEqual(await accessible(page), []);
  await shot(page, "trouble");
  await page.goto(`${server.url}/#/c/${id}/projected`);
  await page.waitForSelector('.pairs:has-text("the disk cannot be read")');
  await page.unroute(/\/(turns|events|project)(\?|$)/);
  await page.getByRole("button", { name: "Try again" }).click();
  await page.waitForSelector('.pair:has-text("still here")');
  await page.goto(`${server.url}/#/c/${id}`);
  await page.waitForSelector('.turn:has-text("still here")');
  await page.waitForSelector(".trouble", { state: "hidden" });
  await page.waitForFunction(() => !document.querySelector(".connection").textContent);
  await quiet(page);
  await server.end();
});

test("whatever takes long says that it is loading", async () => {
  const server = await Server.new();
  const id = await server.talk("Slow", "still here");
  const page = await open(server.url);
  let answered;
  await page.route(/\/(whoami|project)(\?|$)/, (route) => answered.promise.then(() => route.continue()));
  answered = Promise.withResolvers();
  await page.reload();
  await page.waitForSelector('.main:has-text("Loading")');
  answered.resolve();
  await page.waitForSelector(".entry .title");
  answered = Promise.withResolvers();
  await page.goto(`${server.url}/#/c/${id}/projected`);
  await page.waitForSelector('.pairs:has-text("Loading")');
  answered.resolve();
  await page.waitForSelector('.pair:has-text("still here")');
  await quiet(page);
  await server.end();
});

// ---------------------------------------------------------------------------------------------------- the other views

test("raw beside projected: what is hidden, why, and what it saves", async () => {
  const page = await open(talk(LOGIN) + "/projected");
  await page.waitForSelector(".pair");
  assert.equal(await page.locator(".gone-pair").count(), 2);
  assert.match(await text(page, ".gone-pair .hole"), /hidden by clean_tool_repair, about \d+ tokens/);
  assert.match(await text(page, ".numbers"), /2 hidden/);
  const { checkpoint } = await (await fetch(`${demo}/api/v1/conversations/${ids[LOGIN]}`)).json();
  assert.match(await text(page, ".covered"), new RegExp(`checkpoint stands for the turns through #${checkpoint.through_seq}\\b`));
  assert.match(await text(page, ".numbers"), /estimated[^]*messages after #/);
  assert.doesNotMatch(await text(page, ".numbers"), /reclaimed|reason|clean_tool_repair/);
  const places = await page.locator(".pair > .msg:first-child .msg-head a").allInnerTexts();
  assert.equal(places.length, await page.locator(".pair:not(.heads)").count());
  assert.deepEqual(places.map((one) => Number(one.slice(1))), places.map((one) => Number(one.slice(1))).sort((a, b) => a - b));
  assert.equal(places[0], "#" + (checkpoint.through_seq + 1));
  assert.deepEqual(await accessible(page), []);
  await shot(page, "projected");
  await page.getByLabel("Policy").selectOption("summary_prefix");
  await page.waitForSelector('.msg:has-text("added by the policy")');
  await page.getByLabel("Further options").fill('{"keep_last": ');
  await page.waitForSelector("text=The options are not valid JSON");
  await page.getByLabel("Further options").fill('{"keep_last": -1}');
  await page.waitForSelector("text=The projection failed");
  await page.getByLabel("Policy").selectOption("reachability_gc");
  await page.waitForSelector("text=Shortens results");
  await page.getByLabel("Policy").selectOption("raw");
  await page.waitForSelector("text=covers everything");
  const last = page.locator(".pair > .msg:first-child").last(), words = (await last.locator(".md").innerText()).slice(0, 30);
  await last.locator(".msg-head a").click();
  await page.waitForSelector(`.turn.current:has-text("${words}")`);
  await quiet(page);
});

test("a policy that would break signed reasoning is blocked, and the page says so", async () => {
  const server = await Server.new();
  const call = (id, name, thinking) => ({ role: "assistant", content: [...(thinking ? [{ type: "thinking", thinking, signature: "c2ln" }] : []), { type: "tool_use", id, name, input: {} }] });
  const result = (id, text, is_error) => ({ role: "user", content: [{ type: "tool_result", tool_use_id: id, content: text, is_error }] });
  const id = await server.talk("Signed", "go", call("a", "run", "hm"), result("a", "no", true), call("b", "run"), result("b", "yes", false));
  const page = await open(`${server.url}/#/c/${id}/projected`);
  await page.waitForSelector(".pair");
  await page.getByLabel("Signed reasoning").selectOption("true");
  await page.waitForSelector(".blocked");
  await quiet(page);
  await server.end();
});

test("what the model saw: sections, what changed since the call before, the prompt itself", async () => {
  const page = await open(talk(LOGIN) + "/calls");
  await page.waitForSelector(".call-entry");
  assert.equal(await page.locator(".call-entry").count(), 3);
  await page.waitForSelector("h3:has-text('Compared with the previous call')");
  assert.match(await text(page, ".call-detail"), /state[^]*tail[^]*input[^]*frame/);
  const counts = (await page.locator(".call-detail table").first().locator("tbody tr td:nth-child(2)").allInnerTexts()).map((one) => Number(one.replace(/,/g, "")));
  assert.equal(counts.slice(0, -1).reduce((all, one) => all + one), counts.at(-1), "sections add up to the total");
  const chosen = /#(\d+)/.exec(await text(page, ".call-detail h2"))[1];
  const { tokens } = await (await fetch(`${demo}/api/v1/conversations/${ids[LOGIN]}/contexts/${chosen}`)).json();
  const names = await page.locator(".call-detail table").first().locator("tbody tr td:nth-child(1)").allInnerTexts();
  assert.deepEqual(Object.fromEntries(names.map((name, n) => [name, counts[n]]).slice(0, -2)), tokens.by_section, "the numbers of `everturn context --replay`");
  assert.match(await text(page, ".call-detail"), new RegExp(`^[^]*${counts.at(-1).toLocaleString("en")} of 6,000 tokens`));
  const { data: receipts } = await (await fetch(`${demo}/api/v1/conversations/${ids[LOGIN]}/events?kinds=context.receipt&limit=100`)).json();
  const present = new Set(receipts.flatMap((event) => event.body.blocks.map((one) => one.section)));
  assert.ok(present.size < 7, "some sections are absent");
  assert.deepEqual(await page.locator(".legend span").allInnerTexts(), [...["system", "state", "facts", "recalled", "digests", "tail", "input"].filter((name) => present.has(name)), "frame"], "sections that are there");
  assert.doesNotMatch(await text(page, ".call-detail"), /\d %|first 1 block/);
  await page.waitForSelector("h3:has-text('Left out')");
  assert.deepEqual(await accessible(page), []);
  await shot(page, "calls");
  await page.getByRole("button", { name: "Show the prompt" }).click();
  await page.waitForSelector('.msg:has-text("two sentences")');
  await page.getByRole("button", { name: "Compare with the previous prompt" }).click();
  await page.waitForSelector('.diff .added:has-text("two sentences")');
  await page.waitForSelector(".diff .place:has-text('lines are the same')");
  await page.locator(".call-entry").last().click();
  await page.waitForSelector("text=nothing to compare it with");
  await quiet(page);
});

test("from a receipt in the timeline to its call, and from a block to its turn", async () => {
  const page = await open(talk(LOGIN));
  await page.locator("a.receipt").last().click();
  await page.waitForSelector(".call-entry[aria-current]");
  await page.locator('.blocks a:has-text("#31")').click();
  await page.waitForSelector('[data-seq="31"].current');
  await quiet(page);
});

test("state: checkpoints as a line of time, pins with undo, facts, forks", async () => {
  const page = await open(talk(PORT) + "/state");
  await page.waitForSelector(".lineage rect.covers");
  assert.equal(await page.locator(".lineage rect.covers").count(), 3);
  assert.equal(await page.locator(".lineage rect.inherited").count(), 2, "the first one has none before it");
  assert.match(await text(page, ".lineage figcaption"), /^Each checkpoint extends the one before/);
  assert.deepEqual(await accessible(page), []);
  await shot(page, "state");
  await page.getByRole("button", { name: "Add a pin…" }).click();
  await page.getByLabel("Name").fill("owner");
  await page.getByLabel("Value").fill("jonas");
  await page.getByRole("button", { name: "Pin", exact: true }).click();
  await page.waitForSelector('.pins dt:has-text("owner")');
  await page.getByRole("button", { name: "Undo" }).click();
  await page.waitForFunction(() => !document.querySelector(".pins")?.innerText.includes("owner"));
  assert.match(await page.locator(".state").innerText(), /Scratchpads[^]*"next":"command_line"[^]*Policies[^]*projection\s+clean_tool_repair/);
  assert.match(await page.locator('section:has-text("Policies")').last().innerText(), /compaction\s+auto\s+off/);
  await page.goto(talk(QUEUE) + "/state");
  await page.waitForSelector('.tree .edit:has-text("#2 edited by lee")');
  await page.goto(talk("Logins time out: what if we roll back?") + "/state");
  await page.waitForSelector('.tree li li:has([aria-current]):has-text("forked at #13") .edit:has-text("edited by alice")');
  for (const close of await page.getByRole("button", { name: "Dismiss" }).all()) await close.click();
  await page.locator(".tree").evaluate((tree) => tree.scrollIntoView({ block: "center" }));
  await shot(page, "tree");
  await page.goto(talk(LOGIN) + "/state");
  await page.waitForSelector('.tree:has-text("what if we roll back")');
  assert.match(await text(page, ".lineage figcaption"), /^Solid: turns that it covers; dotted/);
  assert.match(await text(page, ".state table"), /Redis on staging/);
  await quiet(page);
});

test("an approval is answered on the page", async () => {
  const server = await Server.new();
  const id = await server.talk("Ask", "Delete it", { role: "assistant", content: null, tool_calls: [{ id: "c1", type: "function", function: { name: "rm", arguments: "{}" } }] });
  await server.post(`/conversations/${id}/approvals`, { approval_id: "a1", tool_call_id: "c1", tool_name: "rm", question: "Really delete?" });
  const page = await open(`${server.url}/#/c/${id}`);
  await page.waitForSelector(".approval.pending");
  assert.match(await text(page, ".alert-line"), /Really delete\?/);
  await page.getByRole("button", { name: "Approve" }).click();
  await page.waitForSelector('.note:has-text("“Really delete?” was approved")');
  await page.waitForFunction(() => !document.querySelector(".approval.pending"));
  assert.deepEqual((await server.get(`/conversations/${id}/state`)).pending_approvals, []);
  await quiet(page);
  await server.end();
});

test("of two answers to an approval one counts, and the other is told who was first", async () => {
  const server = await Server.new();
  const id = await server.talk("Race", "Delete it");
  const ask = (name) => server.post(`/conversations/${id}/approvals`, { approval_id: name, question: `Really ${name}?` });
  await ask("one");
  await ask("two");
  const page = await open(`${server.url}/#/c/${id}`);
  await page.waitForSelector(".approval.pending");
  // The page does not hear of it in time.
  await page.route(/\/(resolve|state)$/, async (route) => {
    if (route.request().method() === "POST" && !page.raced) {
      page.raced = true;
      await server.post(`/conversations/${id}/approvals/one/resolve`, { state: "denied", actor: "bob", reason: "not today" });
    }
    await route.continue();
  });
  await page.locator('.approval:has-text("Really one?")').getByRole("button", { name: "Approve" }).click();
  await page.waitForSelector('.toast.bad:has-text("was denied by bob")');
  assert.match(await text(page, ".toast.bad > span"), /^“Really one\?” was denied by bob at \d\d:\d\d \(not today\); nothing was changed$/);
  await page.waitForSelector('.note:has-text("“Really one?” was denied by bob")');
  await page.waitForSelector('.approval:not(.pending):has-text("Denied by bob"):has-text("not today")');
  assert.deepEqual(await accessible(page), []);
  await shot(page, "approval-race");
  await page.goto(`${server.url}/#/c/${id}/state`);
  await page.waitForSelector('.approval.pending:has-text("Really two?")');
  await server.post(`/conversations/${id}/approvals/two/resolve`, { state: "approved", actor: "ana" });
  await page.waitForSelector("text=Nothing is pending");
  await quiet(page);
  await server.end();
});

test("a call that waits can be given up", async () => {
  const server = await Server.new();
  const id = await server.talk("Waiting", "Run it", { role: "assistant", content: null, tool_calls: [{ id: "c1", type: "function", function: { name: "run", arguments: "{}" } }] });
  const page = await open(`${server.url}/#/c/${id}/state`);
  await page.getByRole("button", { name: "Give up run" }).click();
  await page.locator("dialog").getByRole("button", { name: "Give up" }).click();
  await page.waitForSelector("text=Nothing is pending");
  await page.goto(`${server.url}/#/c/${id}`);
  await page.waitForSelector('details.call:has-text("given up")');
  await quiet(page);
  await server.end();
});

test("proof: the server's verdict, the links followed here, and a file that verifies", async () => {
  const page = await open(talk(LOGIN) + "/proof");
  await page.waitForSelector(".big.good:has-text('Unchanged since it was written')");
  await page.getByRole("button", { name: "Check the chain in this browser" }).click();
  await page.waitForSelector("text=Every link holds");
  assert.deepEqual(await accessible(page), []);
  await shot(page, "proof");
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download as jsonl" }).click()]);
  const lines = readFileSync(await download.path(), "utf8").trim().split("\n");
  assert.ok(lines.length > 40);
  lines.forEach((line) => JSON.parse(line));
  await quiet(page);
});

test("an export with secrets and addresses masked", async () => {
  const server = await Server.new();
  const id = await server.talk("Contacts", "Write to zoe@example.org, +49 30 901820");
  const page = await open(`${server.url}/#/c/${id}/proof`);
  await page.getByRole("checkbox", { name: /Mask secrets/ }).check();
  assert.equal(await page.getByRole("button", { name: "Download as jsonl" }).isDisabled(), true);
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download as markdown" }).click()]);
  assert.match(download.suggestedFilename(), /\.redacted\.md$/);
  const file = readFileSync(await download.path(), "utf8");
  assert.match(file, /Write to ‹email›, ‹phone›/);
  assert.deepEqual(await accessible(page), []);
  await quiet(page);
  await server.end();
});

test("the exported page has the same looks, light and dark, without a script", async () => {
  const file = await (await fetch(`${demo}/api/v1/conversations/${ids[LOGIN]}/export?format=html`)).text();
  assert.doesNotMatch(file, /<script/i);
  const path = `${folder()}/talk.html`;
  writeFileSync(path, file);
  const page = await open("file://" + path);
  await page.waitForSelector("text=Logins time out on staging");
  assert.deepEqual(await accessible(page), []);
  await shot(page, "exported");
  await page.context().close();
});

test("usage: tokens, calls, time and costs by day, model and conversation", async () => {
  const page = await open(demo + "/#/usage");
  await page.waitForSelector(".plot rect");
  assert.deepEqual(await accessible(page), []);
  assert.match(await text(page, 'tr:has-text("claude-opus-4-1")'), /36\s+277,620\s+5,256[^]*4\.56/);
  assert.match(await text(page, 'tr:has-text("Move the importer to Rust")'), /4\.56/);
  await shot(page, "usage");
  await page.getByRole("button", { name: "Cost", exact: true }).click();
  await page.waitForSelector('.plot svg[aria-label^="Cost by day"]');
  await page.getByRole("button", { name: "7 days" }).click();
  await page.waitForSelector(".plot rect");
  await page.reload();
  await page.waitForSelector('.plot svg[aria-label^="Cost by day"]');
  await quiet(page);
  const server = await Server.new();
  await server.talk("Unpriced", { role: "assistant", content: "Yes.", model: "small", tokens: { prompt: 1000, completion: 10 } });
  const { id } = await server.post("/conversations", {});
  await server.say(id, "Tell me something about **lighthouses**.", { role: "assistant", content: "No.", model: "small", tokens: { prompt: 1000, completion: 10 } });
  const other = await open(server.url + "/#/usage");
  await other.waitForSelector(".plot rect");
  assert.equal(await other.getByRole("button", { name: "Cost", exact: true }).count(), 0);
  await other.waitForSelector("text=prices = [");
  await other.waitForSelector('td a:text-is("Tell me something about lighthouses.")');
  await other.waitForSelector('.entry .title:text-is("Tell me something about lighthouses.")');
  await quiet(other);
  await server.end();
});

test("costs below a cent have an axis", async () => {
  const server = await Server.new(`prices = ["small 1 1"]\n`);
  await server.talk("Cheap", { role: "assistant", content: "Yes.", model: "small", tokens: { prompt: 4000, completion: 0 } });
  const page = await open(server.url + "/#/usage");
  await page.getByRole("button", { name: "Cost", exact: true }).click();
  await page.waitForSelector('.plot svg[aria-label^="Cost by day"]');
  const labels = await page.locator('.plot text[text-anchor="end"]').allTextContents();
  assert.deepEqual(labels.slice(0, 3), ["0", "0.0020", "0.0040"]);
  await quiet(page);
  await server.end();
});

test("usage of years ago is in all time, and an empty time says when the last call was", async () => {
  const server = await Server.new();
  const call = (day, model) => ({ role: "assistant", content: "Yes.", model, tokens: { prompt: 1000, completion: 10 }, occurred_at: day + "T10:00:00Z" });
  const id = await server.talk("Long ago", call("2022-03-04", "first"), call("2022-03-05", "first"), call("2025-06-14", "second"));
  const page = await open(server.url + "/#/usage");
  await page.waitForSelector("text=The last one was on 14 Jun 2025.");
  assert.deepEqual(await accessible(page), []);
  await page.getByRole("button", { name: "Show all time" }).click();
  await page.waitForSelector('.plot svg[aria-label^="Tokens by month"]');
  assert.equal(await page.getByRole("button", { name: "All time" }).getAttribute("aria-pressed"), "true");
  const bars = await page.locator(".plot rect title").allTextContents();
  assert.deepEqual(bars, ["Mar 2022, first: 2,000 tokens in, 20 out, 2 calls", "Jun 2025, second: 1,000 tokens in, 10 out, 1 call"]);
  assert.match(await text(page, "tr.total"), /3\s+3,000\s+30/);
  assert.match(await text(page, ".numbers"), /Files\s+0\s*$/);
  assert.match(await text(page, "code"), /^prices = \["first IN OUT"\]$/);
  await page.goto(`${server.url}/#/c/${id}/state`);
  await page.waitForSelector('.state .plot svg[aria-label^="Tokens by month"]');
  await quiet(page);
  await server.end();
});

test("a plot shows the whole time that was chosen", async () => {
  const server = await Server.new();
  const day = (ago) => new Date(Date.now() - ago * 86_400_000).toISOString();
  await server.talk("Lately", ...[0, 1, 40, 200].map((ago) => ({ role: "assistant", content: "Yes.", model: "small", tokens: { prompt: 1000, completion: 10 }, occurred_at: day(ago) })));
  const page = await open(server.url + "/#/usage");
  for (const [name, label, bars] of [["7 days", "by day, 7 days", 2], ["30 days", "by day, 30 days", 2], ["90 days", "by day, 90 days", 3], ["1 year", "by week, 53 weeks"], ["All time", "by week, 29 weeks"]]) {
    await page.getByRole("button", { name, exact: true }).click();
    await page.waitForSelector(`.plot svg[aria-label*="${label}"]`);
    if (bars) assert.equal(await page.locator(".plot rect").count(), bars, name);
  }
  assert.match(await text(page, "tr:has(td)"), /small\s+4\s+4,000\s+40/);
  await quiet(page);
  await server.end();
});

// ---------------------------------------------------------------------------------------------------- acting

test("a new conversation is a draft until its first message; leaving it leaves nothing behind", async () => {
  const server = await Server.new();
  const page = await open(server.url);
  const count = async () => [(await server.get("/conversations")).data.length, (await server.get("/usage")).conversations];
  await page.getByRole("button", { name: "New conversation" }).first().click();
  await page.waitForURL(/#\/new$/);
  const field = page.getByRole("textbox", { name: "Write a message" });
  await field.waitFor();
  assert.ok(await field.evaluate((one) => one === document.activeElement), "one can type at once");
  await page.waitForSelector("text=Nothing is stored yet");
  assert.deepEqual(await accessible(page), []);
  await shot(page, "draft");
  await page.keyboard.press("Control+Enter");
  await field.fill("Half a thought");
  await page.evaluate(() => (location.hash = "#/usage"));
  await page.waitForSelector("text=No model calls yet");
  assert.deepEqual(await count(), [0, 0]);
  await page.goBack();
  await page.waitForSelector("text=Nothing is stored yet");
  assert.equal(await field.inputValue(), "Half a thought", "the words are still there");
  await field.fill("A whole thought 🐨\nand more");
  await page.getByRole("button", { name: "Send" }).dblclick();
  await page.waitForSelector('.turn:has-text("A whole thought")');
  await page.waitForSelector('.entry[aria-current]:has-text("A whole thought 🐨")');
  await page.waitForFunction(() => document.activeElement?.matches(".composer textarea"));
  assert.deepEqual(await count(), [1, 1]);
  const [{ id, title, turns }] = (await server.get("/conversations")).data;
  assert.deepEqual([title, turns], ["A whole thought 🐨", 1]);
  assert.ok(page.url().endsWith(id));
  await page.keyboard.press("Escape");
  await page.keyboard.press("Control+k");
  await page.getByRole("combobox", { name: "Go anywhere" }).fill("new conversation");
  await page.waitForSelector('.option[aria-selected="true"]:has-text("New conversation")');
  await page.keyboard.press("Enter");
  await page.waitForSelector("text=Nothing is stored yet");
  assert.equal(await field.inputValue(), "", "what was sent is not there again");
  assert.deepEqual(await count(), [1, 1]);
  await quiet(page);
  await server.end();
});

test("the first message of a draft can ask a model", async () => {
  const fake = await model(["Gate ", "B3."]);
  const server = await Server.new(`[models.default]\nbase_url = "${fake.url}"\nmodel = "small"\n`);
  const page = await open(server.url + "/#/new");
  await page.getByRole("button", { name: "Ask" }).waitFor();
  await page.getByRole("textbox", { name: "Write a message" }).fill("Which gate?");
  await page.keyboard.press("Control+Enter");
  await page.waitForSelector('.turn.assistant:not(.writing):has-text("Gate B3.")');
  await page.waitForSelector('h1:text-is("Which gate?")');
  assert.equal((await server.get("/conversations")).data.length, 1);
  assert.equal(fake.state.asked.length, 1);
  await quiet(page);
  await server.end();
  fake.close();
});

test("what cannot be sent stays in the draft, and goes into one conversation later", async () => {
  const server = await Server.new();
  const page = await open(server.url + "/#/new");
  const field = page.getByRole("textbox", { name: "Write a message" });
  await page.route(/\/turns$/, (route) => route.fulfill({ status: 413, contentType: "application/problem+json", body: JSON.stringify({ code: "turn.too_large", detail: "the turn is too large" }) }));
  await field.fill("Too much");
  await page.getByRole("button", { name: "Send" }).click();
  await page.waitForSelector('.toast.bad:has-text("the turn is too large")');
  assert.equal(await field.inputValue(), "Too much");
  // Whoever gives up leaves nothing.
  await page.evaluate(() => (location.hash = "#/"));
  await page.waitForSelector(".entries .empty");
  await page.waitForFunction(async () => (await (await fetch("/api/v1/usage")).json()).conversations === 0);
  await page.goBack();
  await page.getByRole("button", { name: "Dismiss" }).click();
  await page.getByRole("button", { name: "Send" }).click();
  await page.waitForSelector('.toast.bad:has-text("the turn is too large")');
  await page.unroute(/\/turns$/);
  await page.getByRole("button", { name: "Send" }).click();
  await page.waitForSelector('.turn:has-text("Too much")');
  assert.equal((await server.get("/conversations")).data.length, 1);
  await quiet(page);
  await server.end();
});

test("without a model the composer says that nobody answers", async () => {
  const server = await Server.new();
  const id = await server.talk("Alone", "hello");
  const page = await open(`${server.url}/#/c/${id}`);
  await page.waitForSelector("text=No model is configured on this server: a message is stored, not answered.");
  const field = page.getByRole("textbox", { name: "Write a message" });
  assert.match(await field.evaluate((one) => document.getElementById(one.getAttribute("aria-describedby")).textContent), /No model is configured/);
  await page.setViewportSize({ width: 390, height: 844 });
  assert.ok(await page.locator(".unanswered").isVisible());
  assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= 390);
  assert.deepEqual(await accessible(page), []);
  await quiet(page);
  // Where the models cannot be listed, nothing is said of them.
  const other = await open(server.url);
  await other.route(/\/models$/, (route) => route.fulfill({ status: 500, contentType: "application/problem+json", body: "{}" }));
  await other.goto(`${server.url}/#/c/${id}`);
  await other.waitForSelector(".turn");
  assert.equal(await other.locator(".unanswered").isVisible(), false);
  await quiet(other);
  await server.end();
  const fake = await model(["Yes."]);
  const answers = await Server.new(`[models.default]\nbase_url = "${fake.url}"\nmodel = "small"\n`);
  const asked = await open(answers.url + "/#/new");
  await asked.getByRole("button", { name: "Ask" }).waitFor();
  assert.equal(await asked.locator(".unanswered").isVisible(), false);
  await quiet(asked);
  await answers.end();
  fake.close();
});

test("notices replace each other, cover nothing, and are reached with the keyboard", async () => {
  const server = await Server.new();
  const id = await server.talk("Noticed", ...Array.from({ length: 30 }, (_, n) => `Line ${n + 1} of many`));
  const page = await open(`${server.url}/#/c/${id}`);
  await page.waitForSelector('.turn:has-text("Line 30 of many")');
  const notices = () => page.locator(".toast > span").allInnerTexts();
  /** What is under a notice: everything else that can be used is seen where it is. */
  const covered = () => page.evaluate(() => {
    const boxes = [...document.querySelectorAll(".toast")].map((one) => one.getBoundingClientRect());
    return [...document.querySelectorAll("button, textarea, select, input, a")].filter((one) => !one.closest(".toast") && one.checkVisibility()).filter((one) => {
      const own = one.getBoundingClientRect(), view = one.closest(".scroll, .scroller, .entries, dialog")?.getBoundingClientRect() ?? { top: 0, bottom: innerHeight };
      const [top, bottom] = [Math.max(own.top, view.top), Math.min(own.bottom, view.bottom)];
      return top < bottom && boxes.some((box) => box.left < own.right && own.left < box.right && box.top < bottom && top < box.bottom);
    }).map((one) => one.outerHTML.slice(0, 80));
  });
  const say = (...texts) => page.evaluate(async (texts) => { const { toast } = await import("/web/dom.js"); texts.forEach((one) => toast(...[one].flat())); }, texts);
  // What a key does is said beside the title, and takes no room of the view.
  for (const [key, told] of [["e", "All events are shown"], ["e", "Only turns and key events are shown"], ["t", "Thinking expanded"], ["t", "Thinking collapsed"]]) {
    await page.keyboard.press(key);
    assert.equal(await text(page, '.top [role="status"]'), told);
  }
  assert.deepEqual(await notices(), []);
  await page.waitForFunction(() => !document.querySelector(".spoken").textContent);
  await say("Saved", ["Copied", { about: "copy" }], ["Copied again", { about: "copy" }]);
  assert.deepEqual(await notices(), ["Saved", "Copied again"]);
  await page.waitForFunction(() => { const s = document.querySelector(".scroller"); return s.scrollHeight - s.scrollTop - s.clientHeight < 2; });
  assert.deepEqual(await covered(), []);
  const [notice, field] = await Promise.all([".toasts", ".composer"].map((one) => page.locator(one).boundingBox()));
  assert.ok(notice.y + notice.height <= field.y + 1, "above the composer");
  assert.equal(await page.locator(".toasts").getAttribute("aria-live"), "polite");
  assert.deepEqual(await accessible(page), []);
  await shot(page, "notices-of-the-page");
  // With the keyboard: to the newest, away with Escape, and back to where one was.
  await page.keyboard.press("j");
  const at = await page.evaluate(() => document.activeElement.dataset.seq);
  await page.keyboard.press("n");
  assert.ok(await page.evaluate(() => document.activeElement.closest(".toast")?.textContent.includes("Copied again")));
  await page.keyboard.press("Escape");
  await page.keyboard.press("Escape");
  assert.deepEqual(await notices(), []);
  assert.equal(await page.evaluate(() => document.activeElement.dataset.seq), at);
  // At most three; what can be undone stays longest.
  await page.getByRole("button", { name: "More", exact: true }).click();
  await page.getByRole("menuitem", { name: "Archive" }).click();
  await page.waitForSelector('.toast:has-text("Archived")');
  await page.goto(`${server.url}/#/c/${id}@2`);
  await page.waitForSelector('[data-seq="2"].current');
  await say("One", "Two", "Three");
  assert.deepEqual(await notices(), ["Archived", "Two", "Three"]);
  await page.keyboard.press("K");
  await page.waitForSelector('.spoken:has-text("No prompt before this one")');
  const views = { [`#/c/${id}/proof`]: ".formats", [`#/c/${id}/state`]: ".tree, .state section", "#/usage": ".numbers b", "#/": ".home", "#/new": ".composer" };
  for (const [view, there] of Object.entries(views)) {
    await page.goto(`${server.url}/${view}`);
    await page.waitForSelector(there);
    await say("One thing", "Another thing", "And a last one");
    assert.equal(await page.locator(".toast:has-text('And a last one')").isVisible(), true, view);
    for (const top of [0, 250, 5000]) {
      await page.locator("main .scroll").evaluateAll((all, top) => all.forEach((one) => (one.scrollTop = top)), top);
      assert.deepEqual(await covered(), [], `${view}, scrolled to ${top}`);
    }
  }
  await quiet(page);
  // On a phone, where the list has the whole screen.
  const phone = await open(`${server.url}/#/c/${id}`, { width: 390, height: 844 });
  await phone.waitForSelector(".turn");
  await phone.getByRole("button", { name: "More", exact: true }).click();
  await phone.getByRole("menuitem", { name: "Unarchive" }).click();
  await phone.waitForSelector('.toast:has-text("Unarchived")');
  await phone.getByRole("button", { name: "Back to the list" }).click();
  await phone.waitForSelector(".sidebar .toast");
  assert.ok(await phone.getByRole("button", { name: "Undo" }).isVisible());
  // However much there is to say, the view keeps most of the room.
  await phone.goto(`${server.url}/#/c/${id}`);
  await phone.waitForSelector(".turn");
  await phone.evaluate(async () => { const { toast } = await import("/web/dom.js"); for (const word of ["one", "two", "three"]) toast((word + " ").repeat(400), { error: true }); });
  assert.ok((await phone.locator(".toasts").boundingBox()).height <= 844 * 0.4 + 1);
  assert.ok(await phone.getByRole("button", { name: "Send" }).isVisible());
  assert.deepEqual(await accessible(phone), []);
  await quiet(phone);
  await server.end();
});

test("a notice about something in a dialog is in the dialog, beside its buttons", async () => {
  const server = await Server.new();
  const id = await server.talk("Copied", "hello");
  const page = await open(`${server.url}/#/c/${id}`);
  await page.waitForSelector(".turn");
  await page.getByRole("button", { name: /More about turn/ }).click();
  await page.getByRole("menuitem", { name: "Show as JSON" }).click();
  await page.locator("dialog").getByRole("button", { name: "Copy" }).click();
  await page.waitForSelector("dialog .toast");
  const [notice, close] = await Promise.all([page.locator("dialog .toast").boundingBox(), page.locator("dialog").getByRole("button", { name: "Close" }).boundingBox()]);
  assert.ok(notice.y + notice.height <= close.y, "above its buttons");
  assert.deepEqual(await accessible(page), []);
  await page.locator("dialog").getByRole("button", { name: "Close" }).click();
  await page.waitForSelector("main .toast");
  await quiet(page);
  await server.end();
});

test("say something, edit it, undo, and erase it", async () => {
  const server = await Server.new();
  const id = await server.talk("Acting");
  const page = await open(`${server.url}/#/c/${id}`);
  await page.getByRole("textbox", { name: "Write a message" }).fill("Hello <b>you</b>");
  await page.keyboard.press("Control+Enter");
  await page.waitForSelector('.turn:has-text("Hello <b>you</b>")');
  await page.getByRole("button", { name: /More about turn/ }).click();
  await page.getByRole("menuitem", { name: "Edit in place…" }).click();
  const [above, below] = await Promise.all(["dialog p", "dialog textarea"].map((one) => page.locator(one).boundingBox()));
  assert.ok(below.y - above.y - above.height >= 8, "the explanation has room");
  await page.getByRole("textbox", { name: "New text" }).fill("Good morning");
  await page.keyboard.press("Control+Enter");
  await page.waitForSelector('.turn:has-text("Good morning"):has-text("1 earlier version")');
  assert.equal(await page.locator(".turn").count(), 1);
  await page.getByRole("button", { name: "Undo" }).click();
  await page.waitForSelector('.turn:has-text("Hello <b>you</b>"):has-text("2 earlier versions")');
  await page.getByRole("button", { name: /More about turn/ }).click();
  await page.getByRole("menuitem", { name: "Erase content…" }).click();
  await page.getByRole("button", { name: "Erase" }).click();
  await page.waitForSelector('.turn:has-text("was erased")');
  await quiet(page);
  await server.end();
});

test("ask a model, see the answer come, and stop one", async () => {
  const words = Array.from({ length: 12 }, (_, n) => `part${n} `);
  const fake = await model(words);
  const server = await Server.new(`[models.default]\nbase_url = "${fake.url}"\nmodel = "small"\n`);
  const id = await server.talk("Asking");
  const page = await open(`${server.url}/#/c/${id}`);
  const field = page.getByRole("textbox", { name: "Write a message" });
  await page.getByRole("button", { name: "Ask" }).waitFor();
  await field.fill("Which gate?");
  await page.getByRole("button", { name: "Ask" }).click();
  await page.waitForSelector('.turn.assistant:not(.writing):has-text("part11")');
  assert.match(await text(page, ".turn.assistant"), /12 → 12/);
  await page.waitForSelector("a.receipt");
  let go;
  fake.state.hold = new Promise((resolve) => (go = resolve));
  await field.fill("And now?");
  await page.getByRole("button", { name: "Ask" }).click();
  await page.waitForSelector('.turn.writing:has-text("part1")');
  await page.getByRole("button", { name: "Stop" }).click();
  await page.waitForSelector('.turn.broken:has-text("stopped")');
  go();
  // A moment too late.
  fake.state.hold = new Promise((resolve) => (go = resolve));
  await field.fill("And at last?");
  await page.getByRole("button", { name: "Ask" }).click();
  await page.waitForSelector('.turn.writing:has-text("part1")');
  await page.route(/\/stop$/, async (route) => {
    go();
    await page.waitForSelector('.turn.assistant:not(.writing, .broken):has-text("part11") >> nth=1');
    await route.continue();
  });
  await page.getByRole("button", { name: "Stop" }).click();
  await page.waitForSelector('.toast:not(.bad):has-text("It had ended already")');
  assert.equal(await page.locator(".toast.bad").count(), 0);
  await quiet(page);
  await server.end();
  fake.close();
});

test("of several models the one called default is asked", async () => {
  const fake = await model(["Yes ", "indeed."]);
  const named = (name) => `[models.${name}]\nbase_url = "${fake.url}"\nmodel = "${name}-1"\n`;
  const server = await Server.new(named("anthropic") + named("default") + named("zeta"));
  const id = await server.talk("Choice");
  const page = await open(`${server.url}/#/c/${id}`);
  const select = page.getByRole("combobox", { name: "Model" });
  await select.waitFor();
  assert.equal(await select.inputValue(), "default");
  await page.getByRole("textbox", { name: "Write a message" }).fill("Really?");
  await page.keyboard.press("Control+Enter");
  await page.waitForSelector('.turn.assistant:not(.writing):has-text("Yes indeed.")');
  assert.equal(fake.state.asked[0].model, "default-1");
  await quiet(page);
  await server.end();
  fake.close();
});

test("while an approval is pending the model is not asked, and the page says so", async () => {
  const fake = await model(["Gladly ", "done."]);
  const server = await Server.new(`[models.default]\nbase_url = "${fake.url}"\nmodel = "small"\n`);
  const id = await server.talk("Careful", "hello");
  await server.post(`/conversations/${id}/approvals`, { approval_id: "a1", question: "May I?" });
  const page = await open(`${server.url}/#/c/${id}`);
  await page.getByRole("button", { name: "Ask" }).waitFor();
  await page.getByRole("textbox", { name: "Write a message" }).fill("Do it");
  await page.getByRole("button", { name: "Ask" }).click();
  await page.waitForSelector('.toast:has-text("once the approval is resolved")');
  assert.equal(fake.state.asked.length, 0);
  await page.getByRole("button", { name: "Approve" }).click();
  await page.waitForSelector('.turn.assistant:not(.writing):has-text("Gladly done.")');
  await quiet(page);
  await server.end();
  fake.close();
});

test("an answer is generated anew in its place, and in a fork", async () => {
  const fake = await model(["Fresh ", "answer."]);
  const server = await Server.new(`[models.default]\nbase_url = "${fake.url}"\nmodel = "small"\n`);
  const id = await server.talk("Again", "one", { role: "assistant", actor: "claude", content: "Stale answer." }, "two", { role: "assistant", actor: "claude", content: "Last answer." });
  const page = await open(`${server.url}/#/c/${id}`);
  const choose = async (name) => {
    const answer = page.locator('.turn.assistant:has-text("answer.")').first();
    await answer.hover();
    await answer.getByRole("button", { name: /More about turn/ }).click();
    await page.getByRole("menuitem", { name }).click();
  };
  await page.getByRole("button", { name: "Ask" }).waitFor();
  await choose("Regenerate in place");
  await page.waitForSelector('[data-seq="3"]:has-text("Fresh answer."):has-text("1 earlier version"):has(.badge:text-is("regenerated"))');
  assert.match((await page.locator(".turn").allInnerTexts()).join("\n"), /one[^]*Fresh answer[^]*two[^]*Last answer/);
  await choose("Regenerate in a fork");
  await page.waitForSelector(".facts:has-text('forked from')");
  await page.waitForSelector('.turn.assistant:has-text("Fresh answer.")');
  assert.equal(await page.locator('.turn:has-text("Last answer.")').count(), 0);
  assert.equal((await server.get(`/conversations?forked_from=${id}`)).data.length, 1);
  await quiet(page);
  await server.end();
  fake.close();
});

test("fork from a turn, and undo it", async () => {
  const server = await Server.new();
  const id = await server.talk("Trunk", "one", "two", "three");
  const page = await open(`${server.url}/#/c/${id}`);
  const two = page.locator('.turn:has-text("two")');
  await two.hover();
  await two.getByRole("button", { name: /More about turn/ }).click();
  await page.getByRole("menuitem", { name: "Fork from here" }).click();
  await page.waitForSelector(".facts:has-text('forked from')");
  assert.equal(await page.locator('.turn:has-text("three")').count(), 0);
  await page.getByRole("button", { name: "Undo" }).click();
  await page.waitForSelector('.turn:has-text("three")');
  assert.equal((await server.get("/conversations")).data.length, 1);
  await quiet(page);
  await server.end();
});

test("ask something else in a fork; the conversation stays as it is", async () => {
  const server = await Server.new();
  const id = await server.talk("Trunk", "one", { role: "assistant", actor: "claude", content: "first answer" }, "two", { role: "assistant", actor: "claude", content: "second answer" });
  const page = await open(`${server.url}/#/c/${id}`);
  const two = page.locator('.turn.user:has-text("two")');
  await two.hover();
  await two.getByRole("button", { name: /More about turn/ }).click();
  await page.getByRole("menuitem", { name: "Edit in a fork…" }).click();
  await page.getByRole("textbox", { name: "Text in the fork" }).fill("three instead");
  await page.getByRole("button", { name: "Fork", exact: true }).click();
  await page.waitForSelector('.turn:has-text("three instead")');
  await page.waitForSelector(".divider.fork-from");
  await page.waitForSelector('.toast:has-text("Forked at #3")');
  await page.waitForSelector('.facts:has-text("forked from “Trunk” at #3")');
  assert.equal(await page.locator('.turn:has-text("second answer")').count(), 0);
  assert.equal((await server.get(`/conversations/${id}`)).turns, 4);
  await quiet(page);
  await server.end();
});

test("days, lists of tasks and long texts", async () => {
  const server = await Server.new();
  const id = await server.talk("Layout",
    { role: "user", actor: "ana", content: "Long ago", occurred_at: "2026-03-01T10:00:00Z" },
    { role: "user", actor: "ana", content: "A day later", occurred_at: "2026-03-02T10:00:00Z" },
    { role: "system", content: "Rule. ".repeat(400) },
    { role: "assistant", actor: "claude", content: [{ type: "tool_use", id: "t", name: "TodoWrite", input: { todos: [{ content: "Read", status: "completed" }, { content: "Write", status: "in_progress" }] } }] });
  const page = await open(`${server.url}/#/c/${id}`);
  await page.waitForSelector('.turn:has-text("A day later") .divider.day:has-text("2 March 2026")');
  const more = page.getByRole("button", { name: /Show all 2,400 characters/ });
  await more.click();
  await more.waitFor({ state: "detached" });
  await unfold(page.locator("details.call"));
  assert.match(await text(page, "details.call"), /2 tasks, 1 done/);
  assert.equal(await page.locator(".tasks li.completed").count(), 1);
  await quiet(page);
  await server.end();
});

test("compact with a preview, and take it back", async () => {
  const server = await Server.new();
  const id = await server.talk("Long", ...Array.from({ length: 20 }, (_, n) => `Step ${n} is done, see report-${n}.md. We decided to keep it. Never touch the archive of ${1990 + n}.`));
  const page = await open(`${server.url}/#/c/${id}`);
  await page.waitForSelector(".turn");
  await page.getByRole("button", { name: "More", exact: true }).click();
  await page.getByRole("menuitem", { name: "Compact…" }).click();
  await page.getByRole("button", { name: "Preview" }).click();
  await page.waitForSelector("dialog .preview");
  assert.match(await text(page, "dialog"), /16 turns[^]*User constraints[^]*archive of 2001/);
  assert.equal((await server.get(`/conversations/${id}`)).checkpoint, undefined, "nothing is written yet");
  await page.getByRole("button", { name: "Compact", exact: true }).click();
  await page.waitForSelector(".boundary");
  await page.getByRole("button", { name: "Undo" }).click();
  await page.waitForFunction(async () => document.querySelector(".toasts").innerText.includes("Compaction reverted"));
  await page.waitForSelector('.note:has-text("The compaction of #1–#17 was taken back here.")');
  await page.waitForSelector('.boundary:has-text("taken back")');
  assert.equal(await page.locator(".boundary").count(), 1);
  await page.reload();
  await page.waitForSelector('.boundary:has-text("taken back")');
  await server.say(id, "One more. ".repeat(40));
  await server.post(`/conversations/${id}/compact`, { keep_last: 4 });
  await page.waitForFunction(() => document.querySelectorAll(".boundary").length === 2);
  assert.deepEqual((await page.locator(".boundary").allInnerTexts()).map((one) => /taken back/.test(one)), [true, false]);
  // A notice is about one conversation, and does not follow to another.
  const other = await server.talk("Another", "hello");
  await page.evaluate(async () => { const { toast } = await import("/web/dom.js"); toast("Compaction reverted"); });
  await page.goto(`${server.url}/#/c/${id}/state`);
  assert.equal(await page.locator(".toast").count(), 1);
  await page.goto(`${server.url}/#/c/${other}`);
  await page.waitForSelector('.turn:has-text("hello")');
  assert.equal(await page.locator(".toast").count(), 0);
  await quiet(page);
  await server.end();
});

test("rename with Enter, archive with undo; deleting asks first", async () => {
  const server = await Server.new();
  const id = await server.talk("Old", "one");
  const page = await open(`${server.url}/#/c/${id}`);
  await page.waitForSelector(".turn");
  const choose = async (name) => {
    await page.getByRole("button", { name: "More", exact: true }).click();
    await page.getByRole("menuitem", { name }).click();
  };
  await choose("Rename…");
  await page.getByRole("textbox", { name: "Title" }).fill("Older");
  await page.keyboard.press("Enter");
  await page.waitForSelector('h1:text-is("Older")');
  await choose("Archive");
  await page.waitForSelector(".entries .empty");
  await page.getByRole("button", { name: "Undo" }).click();
  await page.waitForSelector('.entry:has-text("Older")');
  await choose("Delete…");
  await page.getByRole("button", { name: "Cancel" }).click();
  assert.equal((await server.get("/conversations")).data.length, 1);
  await choose("Delete…");
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await page.waitForSelector(".entries .empty");
  assert.equal((await server.get("/conversations")).data.length, 0);
  await quiet(page);
  await server.end();
});

// ---------------------------------------------------------------------------------------------------- who may see what

test("with keys the page asks for one and keeps it in the tab only", async () => {
  const server = await Server.new();
  const id = await server.talk("Secret", "nobody else reads this");
  const { secret } = await server.post("/keys", { role: "admin", label: "me" });
  const page = await open(`${server.url}/#/c/${id}`);
  await page.waitForSelector(".sign-in");
  assert.doesNotMatch(await page.locator("body").innerText(), /nobody else/);
  assert.deepEqual(await accessible(page), []);
  await shot(page, "sign-in");
  await page.getByLabel("Key", { exact: true }).fill("et_wrong_key");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.waitForFunction(() => !/requires a key/.test(document.querySelector("#key-text").textContent));
  assert.match(await text(page, "#key-text.wrong[role=alert]"), /^[A-Z]/);
  assert.deepEqual(await accessible(page), []);
  await page.getByLabel("Key", { exact: true }).fill(secret);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.waitForSelector('.turn:has-text("nobody else")');
  assert.deepEqual(await page.evaluate(() => Object.values({ ...localStorage })), []);
  await page.reload();
  await page.waitForSelector('.turn:has-text("nobody else")');
  const other = await page.context().newPage();
  await other.goto(server.url);
  await other.waitForSelector(".sign-in");
  await page.keyboard.press("Control+k");
  await page.getByRole("combobox", { name: "Go anywhere" }).fill("sign out");
  await page.waitForSelector('.option[aria-selected="true"]:has-text("Sign out")');
  await page.keyboard.press("Enter");
  await page.waitForSelector(".sign-in");
  await page.getByLabel("Key", { exact: true }).fill(secret);
  await page.getByLabel("Remember the key").check();
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.waitForSelector('.turn:has-text("nobody else")');
  await page.evaluate(() => (location.hash = "#/"));
  await page.waitForFunction(() => Object.keys(localStorage).some((name) => name.startsWith("everturn.seen")));
  await page.keyboard.press("?");
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.waitForSelector(".sign-in");
  assert.deepEqual(await page.evaluate(() => Object.keys({ ...localStorage })), []);
  await quiet(page);
  await server.end();
});

test("a key of one actor sees what is private to others as such, and writes in its own name", async () => {
  const server = await Server.new();
  const id = await server.talk("Shared", "for everyone",
    { role: "user", actor: "bob", content: "between bob and ana", visibility: "private", audience: ["ana"] },
    { role: "user", actor: "bob", content: "bob alone", visibility: "private" });
  const admin = (await server.post("/keys", { role: "admin" })).secret;
  const { secret } = await server.post("/keys", { role: "writer", actors: ["ana"] }, admin);
  const page = await open(`${server.url}/#/c/${id}`);
  await page.getByLabel("Key", { exact: true }).fill(secret);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.waitForSelector('.turn.private:has-text("between bob and ana")');
  await page.waitForSelector('.turn:has-text("This turn is private, and not for you.")');
  assert.doesNotMatch(await page.content(), /bob alone/);
  await page.getByRole("textbox", { name: "Write a message" }).fill("hello from me");
  await page.getByRole("button", { name: "Send" }).click();
  await page.waitForSelector('.turn:has-text("hello from me"):has(b.name:text-is("ana"))');
  assert.deepEqual(await accessible(page), []);
  await quiet(page);
  await server.end();
});

test("a key that may only read is offered nothing to write", async () => {
  const server = await Server.new();
  const id = await server.talk("Readable", "one");
  const admin = (await server.post("/keys", { role: "admin" })).secret;
  const { secret } = await server.post("/keys", { role: "reader" }, admin);
  const page = await open(`${server.url}/#/c/${id}`);
  await page.getByLabel("Key", { exact: true }).fill(secret);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.waitForSelector('.turn:has-text("one")');
  assert.equal(await page.locator(".composer").isVisible(), false);
  assert.equal(await page.getByRole("button", { name: "New conversation" }).count(), 0);
  await page.getByRole("button", { name: "More", exact: true }).click();
  assert.deepEqual(await page.getByRole("menuitem").allInnerTexts(), ["Show or fold thinking (t)", "Show or hide all events (e)", "Verify and export"]);
  await page.keyboard.press("Escape");
  await page.keyboard.press("?");
  await page.waitForSelector("dialog:has-text('reader of the tenant default')");
  await page.keyboard.press("Escape");
  await page.goto(`${server.url}/#/c/${id}/state`);
  await page.waitForSelector("text=Nothing is pending");
  assert.equal(await page.locator(".state .button, .state .quiet").count(), 0);
  await page.goto(server.url + "/#/new");
  await page.waitForSelector(".home");
  await quiet(page);
  await server.end();
});

test("a key that may see numbers but no words gets the numbers", async () => {
  const server = await Server.new();
  const id = await server.talk("Xylophone lessons", { role: "user", actor: "xenia", content: "xylophone" }, { role: "assistant", actor: "claude", content: "xylophone", model: "small", tokens: { prompt: 700, completion: 70 } });
  const admin = (await server.post("/keys", { role: "admin" })).secret;
  const { secret } = await server.post("/keys", { role: "counter" }, admin);
  const page = await open(`${server.url}/#/c/${id}`);
  await page.getByLabel("Key", { exact: true }).fill(secret);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.waitForSelector("text=This key can see counts, not content");
  await page.waitForSelector(".plot rect");
  assert.match(await text(page, ".numbers"), /Turns\s+2/);
  assert.deepEqual(await accessible(page), []);
  await shot(page, "numbers-only");
  for (const [place, there] of [["#/", ".home"], ["#/usage", "main > :not(.home) .plot"], [`#/c/${id}`, ".counter-note"], [`#/c/${id}/state`, ".counter-note"]]) {
    await page.goto(server.url + "/" + place);
    await page.waitForSelector(there);
    await page.keyboard.press("Control+k");
    assert.equal(await page.locator(".palette").count(), 0);
    assert.doesNotMatch(await page.content(), /xylophone|xenia/i);
  }
  await quiet(page);
  await server.end();
});

test("agent, project, branch and subagents are shown, and a project is listed alone", async () => {
  const server = await Server.new();
  const from = (more) => ({ metadata: { import: { format: "claude-code", cwd: "/work/harbour", git_branch: "tides", ...more } } });
  const { id } = await server.post("/conversations", { title: "Fix the tide table", ...from() });
  await server.say(id, "The table is an hour late.");
  const helper = await server.post("/conversations", { title: "Look for time zones", ...from({ parent: id }) });
  await server.say(helper.id, "Where are time zones used?");
  await server.talk("Something else", "hello");
  const page = await open(`${server.url}/#/c/${helper.id}`);
  await page.waitForSelector('.entry:has-text("Fix the tide table") .people:has-text("claude-code · harbour")');
  await page.waitForSelector('.entry:has-text("Look for time zones") .badge:has-text("subagent")');
  await page.waitForSelector('.facts:has-text("claude-code · branch tides · harbour · worked for “Fix the tide table”")');
  await page.getByRole("button", { name: "harbour" }).first().click();
  await page.waitForFunction(() => document.querySelectorAll("a.entry").length === 2);
  await page.waitForSelector('.entry:has-text("Something else")', { state: "detached" });
  assert.deepEqual(await accessible(page), []);
  await page.getByRole("button", { name: "harbour ×" }).click();
  await page.waitForSelector('.entry:has-text("Something else")');
  await page.getByRole("link", { name: "worked for “Fix the tide table”" }).click();
  await page.waitForSelector('h1:has-text("Fix the tide table")');
  await quiet(page);
  await server.end();
});

test("hostile content is shown as text and does nothing", async () => {
  const server = await Server.new();
  const evil = [
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>",
    "<svg onload=alert(1)><a href=javascript:alert(2)>x</a></svg><iframe srcdoc='<script>parent.hacked=3</script>'></iframe>",
    "[click](javascript:alert(3)) [data](data:text/html,<script>alert(4)</script>) [vb](vbscript:x) [ok](https://example.org/a)",
    "[https://bank.example](https://evil.example/steal) ![track](https://evil.example/pixel.png)",
    "user\u202Egnp.exe \u2066hidden\u2069 zero\u200Bwidth \u{E0041}tag",
    "```html\n<script>window.hacked = 5</script>\n```\n\n| <b>a</b> | <script>1</script> |\n|---|---|\n| <img src=x onerror=alert(1)> | x |",
    "*".repeat(20000) + "[".repeat(5000) + "`".repeat(5000) + "> ".repeat(3000),
    "{{constructor.constructor('alert(1)')()}} ${alert(1)} <style>body{display:none}</style>",
    // Slow for careless regular expressions, or too much for a table.
    "~".repeat(4000) + "`", "`".repeat(4000) + " `", "# a" + " ".repeat(40000) + "x", "# " + "#".repeat(40000) + "x", "a | b\n" + " ".repeat(40000) + "x",
    "```rust\n" + "#".repeat(40000) + "\n```", "[a".repeat(9000), "` `` ".repeat(4000), "|".repeat(3000) + "\n" + "-|".repeat(3000) + "\n" + "|\n".repeat(3000),
  ];
  const image = (type, data) => ({ role: "user", actor: "<b>mallory</b>", content: [{ type: "image", source: { type: "base64", media_type: type, data: Buffer.from(data).toString("base64") } }] });
  const id = await server.talk("<img src=x onerror=alert(1)> title", ...evil,
    image("image/svg+xml", "<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>"),
    { role: "user", content: [{ type: "image", source: { type: "url", url: "https://evil.example/x.png" } }] },
    { role: "assistant", content: [{ type: "tool_use", id: "t", name: "<script>alert(1)</script>", input: { command: "<img src=x onerror=alert(1)>" } }] },
    { role: "user", content: [{ type: "tool_result", tool_use_id: "t", content: [{ type: "text", text: "<script>alert(1)</script>" }, { type: "image", source: { type: "url", url: "https://evil.example/y.png" } }] }] },
    { message: { role: "assistant", content: "bare", tool_calls: [{ id: "n", type: "function", function: { name: "now" } }] } },
    { message: { type: "web_search_call", id: "ws", status: "completed" } },
    { message: { role: "assistant", content: "odd calls", tool_calls: [null, 7, { type: 5, id: {} }] } },
    { message: { role: "user", content: [null, 7, { type: 5 }, { type: "tool_result", content: 7 }, { type: "text", text: {} }, "odd blocks"] } },
    { role: "assistant", content: [{ type: "thinking", thinking: "<script>alert(1)</script>" }, { type: "whatever", html: "<script>alert(1)</script>" }] });
  await server.api("PUT", `/conversations/${id}/pins/x`, { value: "<script>alert(1)</script>" });
  const page = await open(`${server.url}/#/c/${id}`);
  await page.waitForSelector(".turn");
  for (const view of ["", "projected", "calls", "state", "proof"]) {
    await goToView(page, `${server.url}/#/c/${id}`, view);
    await page.evaluate(() => document.querySelectorAll("details").forEach((one) => (one.open = true)));
    await laidOut(page);
    assert.equal(await page.evaluate(() => window.hacked), undefined);
    assert.equal(await page.locator("main script, main iframe, main style, main object, main embed").count(), 0);
    const links = await page.locator("main a").evaluateAll((all) => all.map((one) => one.getAttribute("href")).filter((href) => !/^(https?:\/\/|mailto:|#)/.test(href)));
    assert.deepEqual(links, []);
    if (view === "projected") await page.waitForSelector('.msg:has-text("bare")');
  }
  await page.goto(`${server.url}/#/c/${id}`);
  await page.waitForSelector('.turn:has-text("odd blocks")');
  await page.waitForSelector('.turn .md:has-text("odd calls")');
  await page.goto(`${server.url}/#/c/${id}@2`);
  await page.waitForSelector('.turn:has-text("window.hacked = 1")');
  await page.keyboard.press("g");
  await page.waitForSelector(".trick:has-text('U+202E')");
  await page.waitForSelector(".host:has-text('evil.example')");
  await shot(page, "hostile");
  await server.api("PATCH", `/conversations/${id}`, { title: "safe\u202Egnp.exe\u200B" });
  await page.waitForFunction(() => document.title === "safeU+202Egnp.exeU+200B · Everturn");
  await page.getByRole("searchbox", { name: "Search everything" }).fill("hacked");
  await page.waitForSelector(".hit");
  await quiet(page);
  await server.end();
});

// ---------------------------------------------------------------------------------------------------- for everybody

test("everything with the keyboard only, and the focus is always visible", async () => {
  const page = await open(demo);
  await page.waitForSelector(".entry .title");
  await page.keyboard.press("Tab");
  assert.match(await page.evaluate(() => document.activeElement.textContent), /Skip/);
  await page.keyboard.press("/");
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("ArrowDown");
  const title = await page.evaluate(() => document.activeElement.querySelector(".title").textContent);
  assert.ok(await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle === "solid"));
  await page.keyboard.press("Enter");
  await page.waitForSelector(`h1:has-text("${title}")`);
  await page.waitForSelector(".turn");
  await page.keyboard.press("k");
  await page.waitForSelector(".turn:focus, .event:focus");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Tab");
  assert.ok(await page.evaluate(() => document.activeElement.closest(".turn, .event, .composer, .timeline")));
  await page.keyboard.press("Escape");
  await page.keyboard.press("?");
  await page.waitForSelector("dialog .keys");
  assert.match(await text(page, "dialog"), /This server asks for no key\. You are admin of the tenant default\./);
  const tight = await page.locator(".keys > div").evaluateAll((all) => all.filter((one) => one.querySelector("dt").lastChild.getBoundingClientRect().right + 4 > one.querySelector("dd").getBoundingClientRect().left).map((one) => one.textContent));
  assert.deepEqual(tight, [], "keys that touch their words");
  assert.deepEqual(await accessible(page), []);
  await shot(page, "keyboard");
  await page.keyboard.press("Escape");
  await quiet(page);
});

test("on a phone: the list, a conversation, and back", async () => {
  const page = await open(demo, { width: 390, height: 844 });
  await page.waitForSelector(".entry .title");
  assert.equal(await page.locator(".main").isVisible(), false);
  await shot(page, "phone-list");
  await page.locator(`.entry:has-text("${LOGIN}")`).click();
  await page.waitForSelector(".turn");
  assert.equal(await page.locator(".sidebar").isVisible(), false);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(wide <= 390, `${wide} wide`);
  assert.deepEqual(await accessible(page), []);
  assert.equal(await page.locator(".tabs.more-after:not(.more-before)").count(), 1, "tabs go on");
  assert.ok(await page.locator(".turn .tokens").last().isVisible());
  await shot(page, "phone-conversation");
  for (const view of ["projected", "calls", "state", "proof"]) {
    await goToView(page, talk(LOGIN), view);
    assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= 390, view);
    if (view === "projected") {
      const shown = (pair) => page.locator(`${pair} > *`).evaluateAll((all) => all.filter((one) => one.offsetHeight).map((one) => one.textContent));
      const { length } = await page.locator(".same-pair").all();
      assert.deepEqual((await shown(".same-pair")).map((head) => head.slice(0, 17)), Array(length).fill("Raw and projected"), "the same is there once");
      const gone = await shown(".gone-pair");
      assert.match(gone[0], /^Raw/);
      assert.match(gone[1], /^hidden by/, "below what is hidden");
      await page.locator(".pairs").evaluate((pairs) => pairs.scrollIntoView());
    }
    await page.mouse.move(1, 1);
    await shot(page, "phone-" + view);
  }
  await page.goto(demo + "/#/usage");
  await page.waitForSelector(".plot rect");
  assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= 390, "usage");
  const hidden = await page.locator(".counts-table").evaluateAll((all) => all.filter((one) => one.scrollWidth > one.clientWidth).length);
  assert.equal(hidden, 0, "tables with columns out of sight");
  assert.ok(await page.locator('tr:has-text("claude-opus-4-1") td:has-text("4.56")').isVisible());
  assert.deepEqual(await accessible(page), []);
  await shot(page, "phone-usage");
  await page.goto(talk(LOGIN));
  await page.waitForSelector(".turn");
  await page.getByRole("button", { name: "Back to the list" }).click();
  await page.waitForSelector(".entry");
  assert.equal(await page.locator(".sidebar").isVisible(), true);
  await quiet(page);
});

test("every view in the dark, readable", async () => {
  const page = await open(talk(LOGIN) + "@14", { scheme: "dark" });
  await page.waitForSelector(".turn.current");
  const background = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  assert.ok(background.match(/\d+/g).slice(0, 3).every((part) => Number(part) < 60), background);
  await unfold(page.locator("details.call").first());
  assert.deepEqual(await accessible(page), []);
  for (const view of ["projected", "calls", "state", "proof"]) {
    await goToView(page, talk(view === "state" ? PORT : LOGIN), view);
    assert.deepEqual(await accessible(page), [], view);
  }
  await page.goto(talk(QUEUE));
  await page.waitForSelector(".md table");
  assert.deepEqual(await accessible(page), []);
  await page.goto(talk(NIGHT));
  await page.waitForSelector(".approval.pending");
  assert.deepEqual(await accessible(page), []);
  await page.goto(demo + "/#/usage");
  await page.waitForSelector(".plot rect");
  assert.deepEqual(await accessible(page), []);
  await page.goto(demo + "/#/");
  await page.waitForSelector(".home");
  await page.keyboard.press("Control+k");
  await page.waitForSelector(".option");
  await quiet(page);
});

test("the demo shows an answer being written and an approval that waits", async () => {
  const page = await open(talk(STORY));
  await page.waitForSelector(".turn.writing .md:has-text(' ')");
  await shot(page, "live");
  await page.goto(talk(NIGHT));
  await page.waitForSelector(".approval.pending");
  assert.match(await text(page, ".approval.pending"), /with their databases/);
  assert.deepEqual(await accessible(page), []);
  await shot(page, "approval");
  await quiet(page);
});

test("a conversation that is not there, and one that is deleted while it is read", async () => {
  const server = await Server.new();
  const page = await open(server.url + "/#/c/conv_01M7M8VB7NCZY3Q8CZNGPZG2ER");
  await page.waitForSelector("text=There is no such conversation");
  assert.deepEqual(await accessible(page), []);
  await page.getByRole("link", { name: "Back to the list" }).click();
  await page.waitForSelector(".home");
  for (const address of ["#/c/%", "#/search/%E0%A4%A", "#/c/conv_01M7M8VB7NCZY3Q8CZNGPZG2ER/nonsense"]) {
    await page.goto(server.url + "/" + address);
    await page.waitForSelector("text=There is nothing at this address");
    await page.getByRole("link", { name: "Back to the list" }).click();
    await page.waitForSelector(".home");
  }
  const id = await server.talk("Going", "one");
  // A view whose file comes late does not replace the one that was chosen after it.
  await page.route(/usage\.js$/, async (route) => (await new Promise((resolve) => setTimeout(resolve, 500)), route.continue()));
  const late = page.waitForResponse(/usage\.js$/);
  await page.evaluate(() => (location.hash = "#/usage"));
  await page.evaluate((id) => (location.hash = `#/c/${id}`), id);
  await page.waitForSelector(".turn");
  await (await late).finished();
  await page.evaluate(() => import("/web/usage.js"));
  await laidOut(page);
  assert.equal(await page.locator(".turn").count(), 1);
  await server.api("DELETE", `/conversations/${id}?reason=test`);
  await page.waitForSelector("text=This conversation was deleted");
  await quiet(page);
  await server.end();
});

// ---------------------------------------------------------------------------------------------------- nothing typed is lost

test("words that cannot be sent stay in the field, also on another page and after a reload", async () => {
  const fake = await model(["Yes."]);
  const server = await Server.new(`[models.default]\nbase_url = "${fake.url}"\nmodel = "small"\n`);
  const id = await server.talk("Here", "one"), other = await server.talk("There", "two");
  const page = await open(`${server.url}/#/c/${id}`);
  const field = page.getByRole("textbox", { name: "Write a message" }), ask = page.getByRole("button", { name: "Ask" });
  await ask.waitFor();
  await field.fill("A long thought");
  await server.end();
  await ask.click();
  await page.waitForSelector('.toast.bad:has-text("not responding")');
  assert.equal(await field.inputValue(), "A long thought");
  await server.again();
  await page.waitForSelector(".banner", { state: "hidden" });
  await page.goto(`${server.url}/#/c/${other}`);
  await page.waitForSelector('h1:text-is("There")');
  assert.equal(await field.inputValue(), "");
  await page.goBack();
  await page.waitForSelector('h1:text-is("Here")');
  assert.equal(await field.inputValue(), "A long thought");
  await page.reload();
  await page.waitForSelector('h1:text-is("Here")');
  assert.equal(await field.inputValue(), "A long thought");
  await ask.click();
  await page.waitForSelector('.turn.assistant:has-text("Yes.")');
  await page.waitForFunction(() => document.querySelector(".composer textarea").value === "");
  // A double click sends once.
  await field.fill("Twice?");
  await page.getByRole("button", { name: "Send" }).dblclick();
  await page.waitForSelector('.turn:has-text("Twice?")');
  assert.equal((await server.get(`/conversations/${id}/turns`)).data.filter((turn) => turn.content === "Twice?").length, 1);
  // Where nothing can be written, the field says so.
  await server.api("PATCH", `/conversations/${id}`, { state: "archived" });
  await page.waitForSelector('textarea[placeholder^="Archived"]:disabled');
  assert.ok(await ask.isDisabled());
  await quiet(page);
  await server.end();
  fake.close();
});

test("an edit changes the text and keeps pictures and tool calls", async () => {
  const server = await Server.new();
  const picture = { type: "image", source: { type: "base64", media_type: "image/png", data: "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==" } };
  const call = { type: "tool_use", id: "t1", name: "look", input: { at: "sky" } };
  const id = await server.talk("Parts", { role: "user", content: [{ type: "text", text: "What is this?" }, picture] }, { role: "assistant", content: [{ type: "text", text: "I will look" }, call] },
    { message: { role: "user", content: [{ type: "tool_result", tool_use_id: "t1", content: "blue" }] } }, { role: "assistant", content: null, tool_calls: [{ id: "t2", type: "function", function: { name: "look", arguments: "{}" } }] });
  const page = await open(`${server.url}/#/c/${id}`);
  const edit = async (nth, text) => {
    await page.getByRole("button", { name: /More about turn/ }).nth(nth).click();
    await page.getByRole("menuitem", { name: "Edit in place…" }).click();
    await page.waitForSelector('dialog:has-text("Pictures, tool calls and everything else in it stay.")');
    await page.getByRole("textbox", { name: "New text" }).fill(text);
    await page.getByRole("button", { name: "Replace" }).click();
    await page.waitForSelector(`.turn:has-text("${text}"):has-text("1 earlier version")`);
  };
  await edit(0, "What is that?");
  await edit(1, "Let me look");
  const said = (await server.get(`/conversations/${id}/turns`)).data.map((turn) => turn.content);
  assert.equal(said[0][0].text, "What is that?");
  assert.equal(said[0][1].type, "image");
  assert.deepEqual(said[1], [{ type: "text", text: "Let me look" }, call]);
  // The edit can be undone, with everything.
  await page.getByRole("button", { name: "Undo" }).last().click();
  await page.waitForSelector('.turn:has-text("I will look"):has-text("2 earlier versions")');
  assert.deepEqual((await server.get(`/conversations/${id}/turns`)).data[1].content, [{ type: "text", text: "I will look" }, call]);
  await quiet(page);
  await server.end();
});

test("what was typed in a dialog is not lost when the server refuses it, or by going elsewhere", async () => {
  const server = await Server.new();
  const id = await server.talk("Two tabs", "first");
  const [one, two] = [await open(`${server.url}/#/c/${id}`), await open(`${server.url}/#/c/${id}`)];
  for (const page of [one, two]) {
    await page.getByRole("button", { name: /More about turn/ }).click();
    await page.getByRole("menuitem", { name: "Edit in place…" }).click();
    await page.getByRole("textbox", { name: "New text" }).fill(page === one ? "mine" : "yours, and much longer");
  }
  await one.getByRole("button", { name: "Replace" }).click();
  await one.waitForSelector('.turn:has-text("mine")');
  const field = two.getByRole("textbox", { name: "New text" });
  await two.getByRole("button", { name: "Replace" }).click();
  await two.waitForSelector('dialog:has-text("This turn was edited meanwhile")');
  assert.equal(await field.inputValue(), "yours, and much longer");
  assert.deepEqual(await accessible(two), []);
  await field.press("Escape");
  await two.waitForSelector("dialog", { state: "detached" });
  // Going elsewhere closes a dialog; what was typed is there again.
  const open2 = async () => {
    await two.getByRole("button", { name: /More about turn/ }).click();
    await two.getByRole("menuitem", { name: "Edit in place…" }).click();
  };
  await open2();
  await field.fill("a third version");
  await two.evaluate(() => (location.hash = "#/usage"));
  await two.waitForSelector("dialog", { state: "detached" });
  await two.goBack();
  await open2();
  assert.equal(await field.inputValue(), "a third version");
  await two.getByRole("button", { name: "Cancel" }).click();
  await open2();
  assert.equal(await field.inputValue(), "mine", "cancelled is forgotten");
  await two.getByRole("button", { name: "Cancel" }).click();
  // A pin that is too long.
  await two.getByRole("button", { name: "More", exact: true }).click();
  await two.getByRole("menuitem", { name: "Add a pin…" }).click();
  await two.getByRole("textbox", { name: "Name" }).fill("rule");
  await two.getByRole("textbox", { name: "Value" }).fill("x".repeat(5000));
  await two.getByRole("button", { name: "Pin", exact: true }).click();
  await two.waitForSelector("dialog .problem:not(:empty)");
  assert.equal((await two.getByRole("textbox", { name: "Value" }).inputValue()).length, 5000);
  for (const page of [one, two]) {
    await quiet(page);
  }
  await server.end();
});
