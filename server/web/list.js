// The sidebar: conversations, latest first, with live updates and search.

import { h, MOD, clear, icon, iconButton, words, ago, brief, said, plural, short, state as notice, button, toast } from "./dom.js";
import { get, post, upload, oneAtATime, follow, memory } from "./api.js";

const SIZE = 60;
/** Milliseconds until a search is repeated that did not cover all events. */
export const LOOK_AGAIN = 700;

/** The latest conversations of a filter. */
export const firstPage = (filter) => get("/conversations", { limit: SIZE, ...filter });

export class List {
  /** `asked` is a promise of the first page of the active conversations. */
  constructor(page, asked) {
    this.page = page;
    this.items = [];
    this.known = new Map();
    this.gone = new AbortController();
    this.filter = "active";
    this.search = h("input.search", { type: "search", placeholder: "Search everything", "aria-label": "Search everything", autocomplete: "off", spellcheck: false, oninput: () => this.typed() });
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown") this.el.querySelector(".entries a")?.focus(), event.preventDefault();
      if (event.key === "Escape" && this.search.value) this.search.value = "", this.typed(), event.preventDefault();
      if (event.key === "Enter") this.el.querySelector(".entries a")?.click();
    });
    this.filters = h("div.filters", { role: "group", "aria-label": "Which conversations" }, [["active", "Active"], ["archived", "Archived"], ["", "All"]].map(([value, label]) =>
      h("button.chip", { type: "button", "aria-pressed": String(value === this.filter), onclick: (event) => this.choose(value, event.currentTarget) }, label)), h("span.grow"), (this.count = h("span.dim.count")));
    this.projects = h("div.filters", { hidden: true });
    this.entries = h("div.entries", { onscroll: () => this.scrolled() });
    this.entries.addEventListener("keydown", (event) => this.key(event));
    this.reads = page.may("reader");
    this.el = h("nav.sidebar", { "aria-label": "Conversations" },
      h("header.brand", null, h("a.logo", { href: "#/", title: "Everturn" }, h("img", { src: "/web/icon.svg", alt: "", width: 24, height: 24 }), h("b", null, "Everturn")), h("span.grow"),
        iconButton("chart", "Usage", () => (location.hash = "#/usage")), page.may("writer") ? iconButton("plus", "New conversation", () => this.create()) : null),
      !this.reads ? null : h("div.search-box", null, icon("search"), this.search, h("kbd", { "aria-hidden": "true" }, `${MOD} K`)),
      this.filters, this.projects, this.entries);
    clear(this.entries, skeleton());
    this.tokens = new Map();
    this.asked = asked;
    this.beginAnew();
    this.refresh().then(() => this.readTokens());
    this.live();
    this.every(30_000, () => this.times());
    this.every(5000, () => this.readTokens());
  }

  /** A timer that ends with the list. */
  every(ms, work) {
    const timer = setInterval(work, ms);
    this.gone.signal.addEventListener("abort", () => clearInterval(timer));
  }
  destroy() { this.gone.abort(); }

  /** Opens a draft, which becomes a conversation with its first message. */
  create() {
    if (location.hash === "#/new") this.page.route();
    else location.hash = "#/new";
  }

  /** Imports files that are chosen in a dialog, and opens what the last one became. */
  import() {
    const field = h("input", { type: "file", multiple: true });
    field.addEventListener("change", async () => {
      let turns = 0, last;
      for (const file of field.files) {
        try {
          const imported = await upload("/import", file);
          turns += imported.turns;
          last = imported.conversation.id;
        } catch (error) {
          toast(`${file.name}: ${error.message}`, { error: true });
        }
      }
      if (!last) return;
      await this.refresh();
      location.hash = `#/c/${last}`;
      toast(`Imported ${plural(turns, "turn")}`);
    });
    field.click();
  }

  choose(value, chip) {
    this.filter = value;
    for (const one of this.filters.querySelectorAll(".chip")) one.setAttribute("aria-pressed", String(one === chip));
    this.reload();
  }

  /** Lists the conversations of one project, or of all. */
  only(folder, project) {
    this.project = folder;
    this.projects.hidden = !folder;
    clear(this.projects, folder ? h("button.chip", { type: "button", "aria-pressed": "true", title: "Show all projects", onclick: () => this.only() }, words(project), " ×") : null);
    this.reload();
  }

  reload() {
    this.items = [];
    this.beginAnew();
    clear(this.entries, skeleton());
    this.refresh().then(() => this.readTokens());
  }

  /** Drops the answers to what was asked before. */
  beginAnew() {
    const choice = (this.choice = {});
    this.refresh = oneAtATime(() => this.readFirst(choice));
  }

  /** Reloads the first page and keeps the pages loaded after it. */
  async readFirst(choice) {
    const { asked = firstPage({ state: this.filter, project: this.project }) } = this;
    this.asked = undefined;
    try {
      const { data, next } = await asked;
      if (this.choice !== choice) return;
      const ids = new Set(data.map((one) => one.id));
      const rest = this.items.filter((one) => !ids.has(one.id) && data.length === SIZE && said(one) < said(data.at(-1)));
      this.items = [...data, ...rest];
      if (!rest.length) this.next = next && data.length === SIZE ? next : null;
      this.failed = null;
    } catch (error) {
      if (this.choice !== choice) return;
      this.failed = error;
    }
    if (!this.query) this.draw();
    const newest = this.items.map((one) => one.updated).sort().at(-1) + this.items.length;
    if (newest !== this.counted) this.readUsage();
    this.counted = newest;
  }

  /** Tokens of the conversations in view, where something was said since they were counted. */
  async readTokens() {
    if (this.counting || this.query || document.hidden) return;
    const box = this.entries.getBoundingClientRect(), known = new Map(this.items.map((one) => [one.id, one]));
    const inView = [...this.entries.querySelectorAll("[data-id]")].filter((el) => el.getBoundingClientRect().bottom > box.top && el.getBoundingClientRect().top < box.bottom);
    const wanted = inView.map((el) => known.get(el.dataset.id)).filter((one) => one && this.tokens.get(one.id)?.updated !== one.updated);
    if (!wanted.length) return;
    this.counting = true;
    await Promise.all(wanted.map(async (one) => {
      const { conversations: [usage] } = await get("/usage/tokens", { conversation: one.id, days: 3660 }, this.gone.signal);
      this.tokens.set(one.id, { updated: one.updated, count: usage ? usage.prompt + usage.completion : 0 });
    })).catch(() => { /* shown without */ });
    this.counting = false;
    if (!this.query) this.draw();
  }

  async readUsage() {
    try {
      const usage = await get("/usage");
      this.count.textContent = usage.conversations ? plural(usage.conversations, "conversation") : "";
      this.count.title = plural(usage.turns, "turn");
    } catch { this.count.textContent = ""; }
  }

  async scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.entries;
    clearTimeout(this.stopped);
    this.stopped = setTimeout(() => this.readTokens(), 200);
    if (this.query || !this.next || this.more || scrollHeight - scrollTop - clientHeight > 600) return;
    this.more = true;
    const { choice } = this;
    try {
      const { data, next } = await get("/conversations", { limit: SIZE, state: this.filter, project: this.project, after: this.next });
      if (this.choice !== choice) return;
      this.items.push(...data);
      this.next = data.length === SIZE ? next : null;
      this.draw();
    } catch { /* tried again when scrolled on */ } finally {
      this.more = false;
    }
  }

  /** Follows the tenant's stream of changes. */
  live() {
    let timer;
    const soon = () => (timer ??= setTimeout(() => ((timer = undefined), this.refresh()), 250));
    follow("/events", {}, { signal: this.gone.signal, frame: () => void soon() });
  }

  // ------------------------------------------------------------------------------------------------ rendering

  draw() {
    const top = this.entries.scrollTop;
    document.body.classList.toggle("is-empty", !this.items.length && !this.failed && !this.project && this.filter !== "archived");
    if (this.failed && !this.items.length) {
      return void clear(this.entries, notice(this.failed.code === "offline" ? "No connection" : "The list cannot be read", this.failed.message, button("Try again", () => this.refresh())));
    }
    if (!this.items.length) {
      return void clear(this.entries, this.project ? notice("Nothing here", "No conversation of this project is listed here.") : this.filter === "archived" ? notice("Nothing archived", "Archived conversations are listed here.") : notice("No conversations yet", "Create one, or import files: sessions of agents and exported conversations.", ...(this.page.may("writer") ? [button("New conversation", () => this.create(), { class: "primary" }), button("Import files", () => this.import())] : [])));
    }
    let last;
    const children = [];
    for (const one of this.items) {
      const group = period(said(one));
      if (group !== last) children.push(this.group(group));
      last = group;
      children.push(this.item(one));
    }
    // Reuse unchanged elements to keep focus and hover.
    const old = [...this.entries.children];
    if (old.length !== children.length || old.some((el, n) => el !== children[n])) {
      const focused = document.activeElement?.dataset?.id;
      this.entries.replaceChildren(...children);
      if (focused) this.entries.querySelector(`[data-id="${focused}"]`)?.focus({ preventScroll: true });
    }
    this.entries.scrollTop = top;
    this.mark(this.current);
  }

  group(name) {
    this.groups ??= new Map();
    if (!this.groups.has(name)) this.groups.set(name, h("h2.group", null, name));
    return this.groups.get(name);
  }

  item(one) {
    const seen = memory.get("seen." + one.id, 0);
    const isNew = seen > 0 && one.head.seq > seen && one.id !== this.current;
    const tokens = this.tokens.get(one.id)?.count;
    const { agent, project, parent } = this.reads ? origin(one) : {};
    const about = [one.participants?.slice(0, 4).join(", "), agent, project].filter(Boolean).join(" · ");
    const version = [one.updated, one.title, one.preview, isNew, one.state, tokens].join();
    const known = this.known.get(one.id);
    if (known?.version === version) return known.el;
    const el = h("a.entry", { href: `#/c/${one.id}`, data: { id: one.id }, class: isNew ? "news" : "" },
      h("span.first", null, h("span.title", null, this.reads ? words(nameOf(one)) : h("code", null, one.id.slice(0, 4), "…", one.id.slice(-8))), h("time", { dateTime: said(one), title: ago(said(one)) }, brief(said(one)))),
      h("span.meta", null, about ? h("span.people", { title: about }, words(about)) : null, h("span.amount", null, plural(one.turns, "turn")), tokens ? h("span.amount.spent", null, h("span", null, short(tokens), " tokens")) : null, h("span.grow"), one.parent ? h("span.badge", null, "fork") : parent ? h("span.badge", null, "subagent") : null, one.state !== "active" ? h("span.badge", null, one.state) : null),
      isNew ? h("span.sr", null, ", new since you looked") : null);
    this.known.set(one.id, { version, el });
    return el;
  }

  times() {
    for (const time of this.entries.querySelectorAll("time")) time.textContent = brief(time.dateTime), time.title = ago(time.dateTime);
  }

  mark(id) {
    this.current = id;
    for (const el of this.entries.querySelectorAll(".entry")) {
      const isIt = el.dataset.id === id;
      if (isIt) el.setAttribute("aria-current", "page");
      else el.removeAttribute("aria-current");
      if (isIt) el.classList.remove("news");
    }
  }

  key(event) {
    const all = [...this.entries.querySelectorAll("a")], at = all.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, j: at + 1, k: at - 1 }[event.key];
    if (to === undefined || event.metaKey || event.ctrlKey) return;
    event.preventDefault();
    event.stopPropagation();
    if (to < 0) this.search.focus();
    else all[Math.min(to, all.length - 1)]?.focus();
  }

  // ------------------------------------------------------------------------------------------------ search

  get query() { return this.search.value.trim(); }

  typed() {
    clearTimeout(this.timer);
    this.asking?.abort();
    if (!this.query) return this.draw();
    this.timer = setTimeout(() => this.find(this.query), 90);
  }

  async find(query, isAgain) {
    const { signal } = (this.asking = new AbortController());
    this.entries.setAttribute("aria-busy", "true");
    try {
      const [titles, found] = await Promise.all([
        get("/conversations", { query, limit: 8 }, signal).catch((error) => { if (error.name === "AbortError") throw error; return { data: [] }; }),
        post("/recall", { query, limit: 30 }, signal),
      ]);
      if (this.query !== query) return;
      if (found.behind?.events) this.timer = setTimeout(() => this.query === query && this.find(query, true), LOOK_AGAIN);
      // A user who is reading the hits is not disturbed by more of them.
      if (isAgain && (this.entries.scrollTop || this.entries.contains(document.activeElement))) return;
      const children = [];
      if (titles.data.length) children.push(h("h2.group", null, "Titles"), titles.data.map((one) => this.item(one)));
      if (found.data.length) children.push(h("h2.group", null, "Messages"), found.data.map((one) => hit(one)));
      if (found.behind?.events) children.push(h("p.dim.note", null, `${plural(found.behind.events, "event")} not indexed yet`));
      clear(this.entries, children.length ? children : notice("Nothing found", `Nothing matches “${query}”. Try fewer or other words.`));
      this.entries.scrollTop = 0;
    } catch (error) {
      if (error.name !== "AbortError") clear(this.entries, notice("The search failed", error.message));
    } finally {
      if (!signal.aborted) this.entries.removeAttribute("aria-busy");
    }
  }
}

/** Title of a conversation: its own, or the beginning of what was said first, without marks of Markdown. */
export const nameOf = (one) => (one.title || one.preview || "Untitled").replace(/^#{1,6}\s+(?=\S)/, "").replace(/(?<![\w*])\*\*(?=\S)((?:(?!\*\*).)*\S)\*\*(?![\w*])/g, "$1");

/** The agent, project, branch and superior of a conversation, as its metadata has them. */
export function origin({ metadata = {} }) {
  const from = metadata.import ?? {}, text = (value) => (typeof value === "string" && value) || undefined;
  const folder = text(metadata.project) ?? text(from.cwd);
  return { agent: text(metadata.agent) ?? text(from.format), folder, project: folder?.split(/[\\/]/).filter(Boolean).at(-1) ?? folder, branch: text(from.git_branch), parent: text(from.parent) };
}

/** Number of characters of a snippet before its first match, and on either side of a longer gap between two. */
const BEFORE = 40, BETWEEN = 30;
const tail = (chars, most) => (chars.length > most ? "…" + chars.slice(-most).join("").replace(/^\S*\s/, "") : chars.join(""));
const gap = (chars) => (chars.length > 3 * BETWEEN ? chars.slice(0, BETWEEN).join("").replace(/\s\S*$/, "") + " " + tail(chars, BETWEEN) : chars.join(""));

/** A snippet with its matches marked; what is far from them is left out, so that they are seen where there is room for three lines. Offsets count Unicode scalar values, not UTF-16 units. */
export function snippet({ text, marks }, before = BEFORE) {
  const chars = [...text], nodes = [];
  let at = 0;
  for (const [from, to] of marks ?? []) {
    if (from > at) nodes.push(...words(at ? gap(chars.slice(at, from)) : tail(chars.slice(0, from), before)));
    nodes.push(h("mark", null, words(chars.slice(from, to).join(""))));
    at = to;
  }
  nodes.push(...words(chars.slice(at).join("")));
  return nodes;
}

let chosen;
const addressOf = (one) => `#/c/${one.conversation}@${one.seq}`;

/** Opens the turn of a hit. */
export function openHit(one) {
  chosen = one;
  // The turn may be the one that is shown.
  if (location.hash === addressOf(one)) dispatchEvent(new HashChangeEvent("hashchange"));
  else location.hash = addressOf(one);
}

/** The words of the hit that was opened last, once, for the view of its turn. */
export function chosenWords(conversation, seq) {
  const one = chosen;
  chosen = undefined;
  if (one?.conversation !== conversation || one.seq !== seq) return undefined;
  const chars = [...one.snippet.text];
  return [...new Set((one.snippet.marks ?? []).map(([from, to]) => chars.slice(from, to).join("").toLowerCase()))];
}

export const hit = (one) =>
  h("a.entry.hit", { href: addressOf(one), onclick: (event) => event.ctrlKey || event.metaKey || event.shiftKey || (event.preventDefault(), openHit(one)) },
    h("span.meta", null, h("b", null, words(one.actor ?? one.role ?? "fact")), h("span.grow"), h("time", { dateTime: one.at, title: ago(one.at) }, brief(one.at))),
    h("span.snippet", null, snippet(one.snippet)),
    h("span.people", null, words(nameOf(one)), " #" + one.seq));

function period(time) {
  const days = (new Date().setHours(0, 0, 0, 0) - new Date(time)) / 86_400_000;
  if (days < 0) return "Today";
  if (days < 1) return "Yesterday";
  if (days < 7) return "This week";
  if (days < 31) return "This month";
  return new Intl.DateTimeFormat(undefined, { month: "long", year: "numeric" }).format(new Date(time));
}

const skeleton = () => Array.from({ length: 8 }, () => h("div.entry.ghost", { "aria-hidden": "true" }, h("span.line"), h("span.line.half")));
