// The timeline of a conversation, with live updates.

import { h, add, clear, icon, iconButton, button, words, when, number, plural, shrunk, short, toast, dialog, copy, state as notice } from "./dom.js";
import { get, post, del, oneAtATime, follow, generate, picture, shown, memory, unsent, Problem } from "./api.js";
import { markdown, checkpoint, code, diff, contains, markWords } from "./text.js";
import { parts, shownParts, plainText, said, reworded, gist, edits, todo, languageOf, isPrompt, isRegenerated, toolOf } from "./message.js";
import { Scroller, AROUND } from "./scroller.js";
import { menu } from "./menu.js";

/** Shows why something failed. A generation that ended before it could be stopped is not a failure. */
export const failed = (error) => (error.code === "generation.ended" ? toast("It had ended already", { about: "stop" }) : toast(error.message, { error: true }));

/** Tells the user that the model is called once approvals are answered. */
export const waits = (approvals) => toast(approvals.length === 1 ? "The model answers once the approval is resolved" : `The model answers once ${approvals.length} approvals are resolved`, { about: "waits" });

const bytesOf = (text) => new TextEncoder().encode(text).length;

/** Kinds of events rendered between turns; the others only on demand. */
const DRAWN = new Set(["conversation.created", "compaction", "context.receipt", "approval.requested", "approval.resolved", "state.pin", "state.unpin", "fact.added", "fact.retracted", "tool.abandoned", "transcript_budget"]);
export const SECTIONS = ["system", "state", "facts", "recalled", "digests", "tail", "input", "frame"];

export class Timeline {
  constructor(conversation, page) {
    this.conversation = conversation;
    this.page = page;
    this.id = conversation.id;
    this.rows = new Map();
    this.open = new Map();
    this.writing = new Map();
    this.approvals = new Map();
    this.turns = new Map();
    this.tools = new Map();
    this.within = new Map();
    this.abort = new AbortController();
    this.thinking = memory.get("thinking", false);
    this.everything = false;
    this.seen = memory.get("seen." + this.id, 0);
    this.firstHead = conversation.head.seq;
    this.scroller = new Scroller({
      label: "Conversation",
      head: conversation.head.seq,
      load: (from, to) => this.load(from, to),
      build: (entries, from, to) => this.build(entries, from, to),
      moved: (scroller) => this.moved(scroller),
      failed: (error) => this.cannotRead(error),
    });
    this.jumps = h("div.jumps", null, iconButton("up", "Previous prompt (K)", () => this.prompt(-1)), iconButton("down", "Next prompt (J)", () => this.prompt(1)));
    this.toEnd = h("button.to-end", { type: "button", hidden: true, onclick: () => this.toEdge(true) }, icon("last"), h("span", null, "To the end"));
    this.jumps.append(this.toEnd);
    this.empty = notice("No messages yet", "New messages appear here as they are written.");
    this.empty.hidden = true;
    this.trouble = h("div.trouble", { role: "alert", hidden: true });
    this.el = h("section.timeline", { "aria-label": "Timeline" }, this.scroller.el, this.empty, this.trouble, this.jumps);
    this.el.classList.toggle("show-thinking", this.thinking);
    this.readState();
    this.live();
  }

  /** Reads the state, and shows what depends on it. */
  readState = oneAtATime(() => this.newState());

  destroy() {
    this.remember();
    this.abort.abort();
    this.scroller.destroy();
  }

  remember() {
    if (this.scroller.stick || this.atEnd) memory.set("seen." + this.id, this.conversation.head.seq);
  }

  // ------------------------------------------------------------------------------------------------ loading

  async load(from, to) {
    const { turns } = this;
    const query = { after: from - 1, before: to + 1, limit: to - from + 1, include_events: true, include_superseded: true };
    try {
      const { data } = await get(`/conversations/${this.id}/turns`, query, this.abort.signal);
      await Promise.all(data.filter(isReplaced).map((turn) => this.follow(turn, data, turns)));
      for (const turn of data) if (turn.partial) this.resume(turn);
      return data;
    } catch (error) {
      if (error instanceof Problem && error.status === 403) this.page.wordless(error);
      throw error;
    }
  }

  /** Shows why turns cannot be read, until they can. An unreachable server is shown elsewhere. */
  cannotRead(error) {
    this.trouble.hidden = !error?.status;
    if (error?.status) clear(this.trouble, notice("The turns cannot be read", error.message, button("Try again", () => this.scroller.again())));
  }

  /** Finds what is read in the place of a replaced turn: `path` is the turn, its replacement, that one's replacement, and so on. */
  async follow(turn, nearby, turns) {
    const path = [turn];
    while (isReplaced(path.at(-1)) && path.length < 100) {
      const id = path.at(-1).superseded_by;
      if (!turns.has(id)) turns.set(id, nearby.find((one) => one.id === id) ?? get(`/turns/${id}`, { conversation: this.id }, this.abort.signal).catch(() => null));
      const next = await turns.get(id);
      if (!next) return;
      path.push(next);
    }
    turn.path = path;
  }

  /** The durable text of an open turn, where it is ahead of the chunks that arrived. */
  resume({ id, seq, partial }) {
    const now = this.writing.get(id);
    if (now && now.bytes >= partial.offset) return;
    const next = { text: partial.text, bytes: partial.offset, seq };
    this.writing.set(id, next);
    const row = this.rows.get(seq);
    if (row?.body && row.entry.status === "pending") this.soonWritten(row, next);
  }

  async newState() {
    try {
      const state = await get(`/conversations/${this.id}/state`, null, this.abort.signal);
      this.approvals = new Map(state.pending_approvals.map((one) => [one.approval_id, one]));
      this.state = state;
      this.page.stateChanged(state);
      this.scroller.redraw();
    } catch { /* shown without */ }
  }

  /** Ids of the compactions that were taken back. */
  readReverts() {
    this.reverts = get(`/conversations/${this.id}/events`, { kinds: "compaction", order: "desc", limit: 200 }, this.abort.signal).then(({ data }) => {
      this.reverted = new Set(data.map((event) => event.body?.reverts).filter(Boolean));
      if (this.reverted.size) this.scroller.redraw();
    }, () => { /* shown without */ });
  }

  live() {
    const from = this.conversation.head.seq + 1;
    follow(`/conversations/${this.id}/events`, { from }, {
      signal: this.abort.signal,
      status: (connected, error) => this.page.connected(connected, error),
      frame: ({ event, data }) => {
        if (event === "event") this.happened(data);
        else if (event === "chunk") this.chunk(data);
        else if (event === "deleted") return this.page.deleted(), false;
      },
      absent: (error) => error && this.page.connected(false, error),
    });
  }

  /** A new event: reload the page it is on, and the page of the turn it is about. */
  happened(event) {
    const head = this.conversation.head;
    if (event.seq > head.seq) {
      head.seq = event.seq;
      head.hash = event.hash;
      this.scroller.setHead(event.seq);
    }
    this.page.changed(event);
    if (event.kind === "compaction") this.readReverts();
    this.stale ??= new Set();
    this.stale.add(event.seq);
    // A load that is still under way keeps what it knows to itself: it may be of before the event.
    if (/^turn\.(superseded|committed|erased)/.test(event.kind)) this.turns = new Map();
    const about = event.turn && [...this.rows.values()].find((row) => row.entry.id === event.turn || row.entry.versions?.some((one) => one.id === event.turn));
    if (about) this.stale.add(about.entry.seq);
    if (/^(turn\.(committed|aborted|interrupted|erased)|message)/.test(event.kind) && event.turn) this.ended = (this.ended ?? new Set()).add(event.turn);
    if (/^(approval|state|compaction|tool|message|turn)/.test(event.kind)) this.stateIsStale = true;
    this.refreshing ??= setTimeout(() => {
      this.refreshing = undefined;
      for (const seq of this.stale) this.scroller.refresh(seq);
      this.stale = undefined;
      if (this.stateIsStale) this.readState();
      this.stateIsStale = false;
    }, 30);
    if (!this.scroller.stick) this.toEnd.classList.add("news");
  }

  /** A chunk of an open turn. Its byte offset tells which part is new, so that nothing is shown twice. */
  chunk({ turn, turn_seq: seq, offset, text }) {
    const now = this.writing.get(turn) ?? { text: "", bytes: 0, seq };
    const skip = now.bytes - offset;
    if (skip < 0) return this.scroller.refresh(seq);
    const bytes = bytesOf(text);
    if (skip >= bytes) return;
    now.text += skip ? new TextDecoder().decode(new TextEncoder().encode(text).slice(skip)) : text;
    now.bytes = offset + bytes;
    this.writing.set(turn, now);
    const row = this.rows.get(seq);
    if (row?.body && row.entry.status === "pending") this.soonWritten(row, now);
    else this.scroller.refresh(seq);
  }

  soonWritten(row, now) {
    now.timer ??= setTimeout(() => {
      now.timer = undefined;
      if (row.entry.status === "pending") written(row.body, now.text);
    }, 40);
  }

  // ------------------------------------------------------------------------------------------------ rows

  /** Entries in reading order: a turn stands in the place of the one that it supersedes. */
  inOrder(entries) {
    const versions = new Map();
    for (const { path } of entries) {
      if (!path) continue;
      const known = versions.get(path.at(-1).id) ?? versions.set(path.at(-1).id, new Map()).get(path.at(-1).id);
      for (const one of path.slice(0, -1)) known.set(one.seq, one);
    }
    return entries.flatMap((entry) => {
      const now = entry.path?.at(-1);
      if (now) return placeOf(now) === entry.seq ? [{ ...now, seq: entry.seq, written_seq: now.seq, versions: [...versions.get(now.id).values()].sort((a, b) => a.seq - b.seq) }] : [];
      if (entry.kind || placeOf(entry) === entry.seq) return [entry];
      return this.everything ? [{ kind: "edit", seq: entry.seq, at: entry.created, actor: entry.actor, body: { place: entry.place } }] : [];
    });
  }

  build(loaded, from, to) {
    const entries = this.inOrder(loaded), calls = new Map(), results = new Map(), given = new Map(), outcomes = new Map(), questions = new Map();
    for (const entry of entries) {
      if (entry.kind === "tool.abandoned") given.set(entry.body?.tool_call_id, entry);
      if (entry.kind === "approval.requested") questions.set(entry.body?.approval_id, entry.body?.question);
      if (entry.kind === "approval.resolved") outcomes.set(entry.body?.approval_id, entry);
      if (entry.kind) continue;
      entry.parts ??= shownParts(entry);
      for (const part of entry.parts) {
        if (part.kind === "call" && part.id) calls.set(part.id, entry), this.tools.set(part.id, part.name);
        if (part.kind === "result" && part.id && !results.has(part.id)) results.set(part.id, { entry, part });
      }
    }
    // A result is merged into its call if the distance is small enough for both pages to see both.
    const joined = (call, result) => call && result && result.entry.seq >= call.seq && result.entry.seq - call.seq <= AROUND && result.entry.status !== "pending" && !result.entry.superseded_by;
    const rows = [];
    let before = null, day = null, last = 0;
    const { parent } = this.conversation;
    // Dividers above a row: a new day, unread turns, the fork point.
    const dividers = (entry, time) => {
      const found = [], today = time.slice(0, 10);
      if (day && today !== day) found.push(["day", longDay(time)]);
      if (this.seen && this.firstHead > this.seen && entry.seq > this.seen && last <= this.seen) found.push(["new-from", "New since you looked"]);
      if (parent && entry.seq > parent.at_seq && last <= parent.at_seq) found.push(["fork-from", "Forked here: everything above is shared"]);
      day = today;
      last = entry.seq;
      return found;
    };
    for (const entry of entries) {
      if (entry.seq > to) break;
      const isHere = entry.seq >= from;
      if (entry.kind) {
        if (!DRAWN.has(entry.kind) && !this.everything) continue;
        // The call itself shows it.
        if (entry.kind === "tool.abandoned" && calls.has(entry.body?.tool_call_id) && !this.everything) continue;
        const outcome = entry.kind === "approval.requested" && outcomes.get(entry.body?.approval_id);
        if (entry.kind === "conversation.created" && !entry.body?.system_prompt && !this.everything) continue;
        if (entry.kind.startsWith("turn.") && !this.everything) continue;
        const between = dividers(entry, day ?? entry.occurred_at ?? entry.at);
        const question = questions.get(entry.body?.approval_id), isReverted = this.reverted?.has(entry.id);
        if (isHere) rows.push(this.row(entry, { key: [this.approvals.has(entry.body?.approval_id), outcome?.seq, question, isReverted].join(), outcome, question, isReverted, dividers: between }));
        if (entry.kind === "compaction" && !this.reverts) this.readReverts();
        if (entry.kind === "compaction") before = null;
        continue;
      }
      const own = entry.parts.filter((part) => !(part.kind === "result" && joined(calls.get(part.id), results.get(part.id))));
      if (entry.parts.length && !own.length) continue;
      const answers = new Map();
      for (const part of own) if (part.kind === "call" && joined(entry, results.get(part.id))) answers.set(part.id, results.get(part.id));
      const time = entry.occurred_at ?? entry.created;
      const between = dividers(entry, time);
      const isNotice = isNoticed(entry, own);
      const follows = !between.length && before && !isNotice && before.actor === entry.actor && before.role === entry.role && Math.abs(new Date(time) - new Date(before.time)) < 15 * 60_000 && !entry.superseded_by && !entry.versions && entry.visibility === before.visibility && entry.status !== "pending";
      if (isHere) {
        const abandoned = new Map(own.filter((part) => part.kind === "call" && given.has(part.id)).map((part) => [part.id, given.get(part.id)]));
        const sought = this.sought && [entry.seq, entry.written_seq, ...[...answers.values()].map((one) => one.entry.seq)].includes(this.sought.seq) ? this.sought : null;
        const key = [entry.id, sought?.turn, follows, [...answers.values()].map((one) => one.entry.seq), [...abandoned.keys()], own.map((part) => this.isPending(part)), entry.versions?.length, entry.status, entry.superseded_by, entry.erased, this.writing.has(entry.id), between].join();
        rows.push(this.row(entry, { own, answers, abandoned, follows, sought, key, dividers: between }));
      }
      before = { actor: entry.actor, role: entry.role, visibility: entry.visibility, time };
      if (entry.superseded_by || isNotice) before = null;
    }
    return rows;
  }

  /** The element of an entry, reused until the entry changes. */
  row(entry, how) {
    const known = this.rows.get(entry.seq);
    const version = JSON.stringify([entry.status, entry.superseded_by, entry.erased, how.key, entry.status === "pending" ? 0 : entry.content?.length]);
    if (known && known.version === version && known.everything === this.everything) {
      known.entry = entry;
      return known.el;
    }
    const row = { entry, version, everything: this.everything };
    this.rows.set(entry.seq, row);
    try {
      row.el = entry.kind ? this.event(entry, how) : this.turn(entry, how, row);
      if (how.sought) markWords(row.body, how.sought.words);
    } catch (error) {
      // A message that fails to render must not hide the others.
      console.warn(error);
      row.el = h("article.turn", { tabIndex: -1 }, h("p.gone", null, "This entry cannot be rendered; its JSON is below."), code(JSON.stringify({ ...entry, parts: undefined }, null, 2), "json"));
    }
    row.el.dataset.seq = entry.seq;
    row.el.setAttribute("aria-posinset", entry.seq);
    row.el.setAttribute("aria-setsize", this.conversation.head.seq);
    for (const [kind, text] of how.dividers ?? []) row.el.prepend(h("div.divider", { class: kind }, h(kind === "fork-from" ? "a" : "span", kind === "fork-from" ? { href: `#/c/${this.conversation.parent.conversation}@${this.conversation.parent.at_seq}` } : null, text)));
    if (this.current === entry.seq) row.el.classList.add("current");
    if (this.rows.size > 4000) for (const seq of this.rows.keys()) if (!this.scroller.rowOf(seq) && this.rows.size > 2000) this.rows.delete(seq);
    return row.el;
  }

  turn(entry, { own, answers, abandoned, follows, sought }, row) {
    for (const answer of answers.values()) this.within.set(answer.entry.seq, entry.seq);
    if (sought) this.reveal(entry, own, answers, sought);
    const tool = toolOf(own, this.tools), isNotice = isNoticed(entry, own);
    const name = isNotice ? noticeName(entry) : tool && (entry.role === "user" || !entry.actor) ? tool : entry.actor ?? entry.role;
    const time = entry.occurred_at ?? entry.created;
    const role = entry.speaker ? "tool" : entry.role;
    const el = h("article.turn", { tabIndex: -1, class: entry.role + (follows || isNotice ? " follows" : "") + (tool || entry.speaker ? " tool" : ""), "aria-label": [name, isNotice ? "notice" : role, `place ${entry.seq}`].join(", ") });
    const head = h("header.who", null,
      h("span.avatar", { "aria-hidden": "true", vars: { "--hue": hue(name) } }, [...name][0]?.toUpperCase() ?? "?"),
      h("b.name", null, words(name)),
      name !== role && role !== "user" && role !== "assistant" ? h("span.dim", null, role) : null,
      entry.model && h("span.dim.model", null, words(entry.model)),
      h("span.grow"),
      h("a.place.dim", { href: `#/c/${this.id}@${entry.seq}`, title: "Link to this turn" }, "#" + (entry.written_seq ?? entry.seq)),
      entry.tokens && (entry.tokens.prompt ?? entry.tokens.completion) != null ? h("span.dim.tokens", { title: `${number(entry.tokens.prompt ?? 0)} tokens in, ${number(entry.tokens.completion ?? 0)} out` }, `${short(entry.tokens.prompt ?? 0)} → ${short(entry.tokens.completion ?? 0)}`) : null,
      h("span.dim.time", null, when(time)),
      iconButton("more", "More about turn " + entry.seq, (event) => this.actions(event.currentTarget, entry), { "aria-haspopup": "menu" }));
    const body = h("div.said");
    row.body = body;
    el.append(head, body);
    if (entry.erased) {
      body.append(h("p.gone", null, "The content of this turn was erased. Its place in the hash chain remains."));
    } else if (entry.hidden && entry.content === undefined && !entry.message) {
      body.append(h("p.gone", null, "This turn is private, and not for you."));
    } else if (entry.status === "pending") {
      el.classList.add("writing");
      const now = this.writing.get(entry.id);
      written(body, now?.text ?? "");
      head.insertBefore(h("span.badge.live", null, "writing"), head.querySelector(".grow"));
    } else {
      clearTimeout(this.writing.get(entry.id)?.timer);
      this.writing.delete(entry.id);
      const shown = (part, n) => this.part(part, `${entry.id}:${n}`, { answers, abandoned }, entry);
      const inner = own.map((part, n) => (entry.speaker && part.kind === "text" ? this.notice(part, `${entry.id}:${n}`, noticeName(entry)) : shown(part, n)));
      if (entry.superseded_by) {
        el.classList.add("superseded");
        body.append(this.fold(entry.id + ":old", [isReplaced(entry) ? h("span.badge", null, "replaced") : null, h("span.dim.gist", null, words(plainText(own).slice(0, 140)))], () => inner));
      } else {
        add(body, inner);
        if (!own.length) body.append(h("p.gone", null, "Empty."));
      }
      if (entry.versions) el.append(this.fold(entry.id + ":versions", [h("span.dim", null, plural(entry.versions.length, "earlier version"))], () => this.versions(entry), { class: "versions" }));
      if (entry.status === "aborted" || entry.status === "interrupted") {
        el.classList.add("broken");
        body.append(h("p.reason", null, h("span.badge.bad", null, entry.status === "aborted" ? "broken off" : entry.status), words(entry.reason ?? "")));
      }
    }
    const badge = (text, title) => head.insertBefore(h("span.badge", { title }, words(text)), head.querySelector(".grow"));
    if (entry.versions) badge(isRegenerated(entry) ? "regenerated" : "edited", `Read in the place of #${entry.seq}`);
    if (entry.visibility === "private") {
      el.classList.add("private");
      badge(entry.audience?.length ? "private, for " + entry.audience.join(", ") : "private", "Only its actor and its audience see it");
    } else if (entry.hidden && !entry.erased) badge("partly hidden", "A private part of it is not for you");
    return el;
  }

  /** Opens what contains the words of a hit: a call or its result, thinking, a long text. Without words, the result that was found. */
  reveal(entry, own, answers, sought) {
    if (sought.isRevealed) return;
    sought.isRevealed = true;
    if (entry.superseded_by) this.open.set(entry.id + ":old", true);
    const texts = own.map((part) => {
      const answer = answers.get(part.id);
      return answer?.entry.seq === sought.seq ? plainText(answer.part.parts) : part.kind === "call" ? texted(part.input) : plainText([part]);
    });
    const isIt = texts.map((text) => contains(text, sought.words));
    own.forEach((part, n) => (isIt.includes(true) ? isIt[n] : answers.get(part.id)?.entry.seq === sought.seq) && this.open.set(`${entry.id}:${n}`, true));
  }

  /** Earlier versions of a turn, newest first, each with its difference to the next. */
  versions(entry) {
    const all = [...entry.versions, { ...entry, seq: entry.written_seq }];
    const text = (turn) => plainText((turn.parts ??= parts(turn)));
    return h("ol.version-list", null, entry.versions.map((turn, n) => {
      const next = all[n + 1];
      return h("li", null, h("p.dim", null, h("b", null, words(turn.actor ?? turn.role)), ` #${turn.seq}, `, when(turn.occurred_at ?? turn.created), `; replaced by #${next.seq}`),
        turn.erased ? h("p.gone", null, "Erased.") : turn.status === "aborted" ? h("p.gone", null, "Broken off.") : diff(text(turn), text(next), `#${turn.seq} and #${next.seq}`));
    }).reverse());
  }

  /** A `<details>` whose content is rendered when it is first opened; its state survives re-rendering. */
  fold(key, summary, inside, props) {
    const el = h("details", { ...props, open: this.open.get(key) ?? props?.open ?? false });
    const fill = () => {
      if (el.open && !el.filled) {
        el.filled = true;
        add(el, [h("div.inside", null, inside())]);
      }
    };
    el.append(h("summary", null, h("span.chevron", { "aria-hidden": "true" }, icon("fold")), summary));
    el.addEventListener("toggle", () => {
      if (el.isConnected) this.open.set(key, el.open);
      fill();
    });
    fill();
    return el;
  }

  part(part, key, around, entry) {
    switch (part.kind) {
      case "text": return this.prose(part.text, key, entry.role);
      case "notice": return this.notice(part, key, part.name);
      case "refusal": return h("div.md", null, h("span.badge.bad", null, "refused"), markdown(part.text));
      case "thinking": return this.thought(part, key);
      case "call": return this.call(part, key, around?.answers?.get(part.id), around?.abandoned?.get(part.id));
      case "result": return this.result(part, key);
      case "image": return this.image(part, entry);
      case "file": return h("p.file", null, h("span.badge", null, "file"), words(part.name ?? "without a name"), part.mime ? h("span.dim", null, " " + part.mime) : null);
      default: return this.fold(key, [h("span.dim", null, "Unknown block: "), h("code", null, String(part.value?.type ?? typeof part.value))], () => code(JSON.stringify(part.value, null, 2), "json"));
    }
  }

  /** What a program wrote in the name of a person. */
  notice(part, key, name) {
    const line = part.text.replace(/<[^<>]*>/g, " ").trim().split("\n")[0].slice(0, 160);
    return this.fold(key, [h("b.tool-name", null, words(name)), h("span.gist", null, words(line))], () => h("pre.wraps", { dir: "auto" }, words(part.text)), { class: "call notice" });
  }

  /** Markdown, cut if it is long: instructions, pasted files. */
  prose(text, key, role) {
    const el = h("div.md", { dir: "auto" }), most = role === "assistant" ? 20_000 : role === "user" ? 4000 : 700;
    if (text.length <= most * 1.3 || this.open.get(key)) return add(el, [markdown(text)]);
    const cut = text.slice(0, most).replace(/\s+\S*$/, "");
    return add(el, [markdown(cut), button(`Show all ${number(text.length)} characters`, () => (this.open.set(key, true), clear(el, markdown(text))), { class: "more" })]);
  }

  thought(part, key) {
    const count = part.text ? plural(part.text.split(/\s+/).filter(Boolean).length, "word") : "not disclosed by the provider";
    return this.fold(key, [h("span", null, "Thinking"), h("span.dim", null, count), part.signed ? h("span.badge", { title: "Signed by the provider" }, "signed") : null],
      () => (part.text ? h("div.md", { dir: "auto" }, markdown(part.text)) : h("p.dim", null, "The provider encrypts this part.")), { class: "thought", open: this.thinking && !!part.text });
  }

  /** Whether a call waits for its result. */
  isPending(part) { return part.kind === "call" && !!part.id && !!this.state?.pending_tools?.some((one) => one.tool_call_id === part.id); }

  call(part, key, answer, abandoned) {
    const pending = this.isPending(part);
    const status = answer ? (answer.part.failed ? "failed" : "done") : abandoned ? "given up" : pending ? "waiting" : "";
    const changed = edits(part.input);
    const images = answer?.part.parts.filter((one) => one.kind === "image") ?? [];
    const el = this.fold(key, [
      h("span.status", { class: status, role: "img", "aria-label": status || "no result nearby" }, status === "done" ? icon("check") : status === "failed" ? icon("cross") : status === "waiting" ? icon("clock") : icon("tool")),
      h("b.tool-name", null, words(part.name)), h("span.gist", null, words(gist(part.input))),
      changed.length ? h("span.badge", null, "edit") : null, status === "failed" ? h("span.badge.bad", null, "failed") : status === "waiting" ? h("span.badge.warn", null, "waiting") : status === "given up" ? h("span.badge", null, "given up") : null,
    ], () => [this.input(part, changed), status === "given up" ? h("p.dim", null, "Given up", abandoned.actor ? [" by ", words(abandoned.actor)] : "", abandoned.body?.reason ? [": ", words(abandoned.body.reason)] : ".") : null, answer ? [h("div.label", null, answer.part.failed ? "Failed with " : "Result ", h("a.dim", { href: `#/c/${this.id}@${answer.entry.seq}` }, "#" + answer.entry.seq)), this.output(answer.part, part, answer.entry)] : null], { class: "call" });
    return images.length ? [el, h("div.shown", null, images.map((one) => this.image(one, answer.entry)))] : el;
  }

  input(part, changed) {
    const { input } = part;
    if (changed.length) return changed.map((one) => diff(one.before, one.after, one.path));
    if (input === undefined || input === null) return null;
    if (typeof input === "string") return code(input, /\*\*\* (Begin|Update|Add)|^@@/m.test(input) ? "diff" : "");
    const keys = Object.keys(input), tasks = todo(input);
    if (tasks) return h("ul.tasks", null, tasks.map(([text, status]) => h("li", { class: status }, h("span.box", { role: "img", "aria-label": status }, status === "completed" ? "✓" : status === "in_progress" ? "…" : ""), words(text))));
    const command = input.command ?? input.cmd;
    if (command && keys.length <= 3) return code(Array.isArray(command) ? command.join(" ") : String(command), "sh");
    if (typeof input.content === "string" && (input.file_path ?? input.path)) return code(input.content, languageOf(input.file_path ?? input.path));
    if (typeof input.patch === "string") return code(input.patch, "diff");
    return keys.length ? code(JSON.stringify(input, null, 2), "json") : h("p.dim", null, "Without arguments.");
  }

  output(result, call, entry) {
    const text = result.parts.filter((one) => one.kind === "text").map((one) => one.text).join("\n");
    const others = result.parts.filter((one) => one.kind !== "text" && one.kind !== "image");
    const path = call?.input?.file_path ?? call?.input?.path;
    const value = /^\s*[[{]/.test(text) ? tidy(text) : null;
    const language = value ? "json" : /^(read|view|cat)/i.test(call?.name ?? "") ? languageOf(path) : "";
    return [text ? code(value ?? text, language, !language) : others.length ? null : h("p.dim", null, "No output."), others.map((one, n) => this.part(one, `${entry?.id}:r${n}`, null, entry))];
  }

  result(part, key) {
    return this.fold(key, [
      h("span.status", { class: part.failed ? "failed" : "done", role: "img", "aria-label": part.failed ? "failed" : "result" }, icon(part.failed ? "cross" : "check")),
      h("b.tool-name", null, words(part.name ?? this.tools.get(part.id) ?? "Result")), h("span.gist", null, words(plainText(part.parts).split("\n")[0].slice(0, 160))), part.failed ? h("span.badge.bad", null, "failed") : null,
    ], () => [this.output(part), part.parts.filter((one) => one.kind === "image").map((one) => this.image(one, { conversation: this.id }))], { class: "call" });
  }

  image(part, entry) {
    const figure = h("figure.image");
    const say = (text) => clear(figure, h("p.gone", null, words(text)));
    if (!part.asset && !part.data) return say(part.url ? `Image at ${part.url}, not loaded.` : "An image without data."), figure;
    const img = h("img", { alt: part.name ?? "Image in the conversation", loading: "lazy", decoding: "async" });
    const source = part.asset ? picture(part.asset, this.id) : inlined(part);
    source.then((url) => (img.src = url), (error) => say("The image cannot be shown. " + error.message));
    img.addEventListener("error", () => say("The image cannot be decoded."));
    figure.append(h("button.zoom", { type: "button", "aria-label": "Enlarge the image", onclick: () => zoom(img) }, img));
    return figure;
  }

  // ------------------------------------------------------------------------------------------------ events

  event(entry, { outcome, question, isReverted } = {}) {
    const body = entry.body ?? {};
    const line = (...inside) => h("article.event", { tabIndex: -1, "aria-label": `${entry.kind}, place ${entry.seq}` }, inside);
    switch (entry.kind) {
      case "conversation.created": {
        const prompt = body.system_prompt?.content;
        if (typeof prompt !== "string") break;
        return line(this.fold("e" + entry.seq, [h("b.tool-name", null, "System prompt"), h("span.gist", null, words(prompt.split("\n")[0].slice(0, 160)))], () => h("div.md", { dir: "auto" }, markdown(prompt)), { class: "system-prompt" }));
      }
      case "compaction": {
        const { covers, tokens_before: before, tokens_after: after } = body;
        if (!covers) break;
        if (body.reverts) return line(h("p.note", null, `The compaction of #${covers.from_seq}–#${covers.to_seq} was taken back here.`));
        return line(this.fold("e" + entry.seq, [
          h("span", null, h("b", null, "Checkpoint"), covers.turns ? ` covers #${covers.from_seq}–#${covers.to_seq}, ${plural(covers.turns, "turn")}` : " of earlier turns"),
          isReverted ? h("span.badge", null, "taken back") : null,
          h("span.dim", null, `${shrunk(before, after)} · ${body.summarizer}`)], () => (body.checkpoint ? checkpoint(body.checkpoint) : h("p.dim", null, "Erased.")), { class: isReverted ? "boundary reverted" : "boundary" }));
      }
      case "context.receipt": {
        const total = Math.max(1, body.used ?? 0), budget = body.policy?.token_budget;
        return line(h("a.note.receipt", { href: `#/c/${this.id}/calls/${entry.seq}` }, icon("eye"), h("span", null, `${body.model ?? "The model"} saw ${number(body.used)}${budget ? " of " + number(budget) : ""} tokens`), bar(sections(body), total)));
      }
      case "state.pin":
        return line(h("p.note", null, icon("pin"), h("span", null, "pinned ", h("b", null, words(body.name ?? "")), ": ", words(typeof body.value === "string" ? body.value : JSON.stringify(body.value)))));
      case "state.unpin":
        return line(h("p.note", null, icon("pin"), h("span", null, "unpinned ", h("b", null, words(body.name ?? "")))));
      case "fact.added":
        return line(h("p.note", null, icon("bolt"), h("span", null, "fact added: ", h("b", null, words(body.subject ?? "")), " ", words(body.predicate ?? ""), " ", words(body.object ?? ""))));
      case "fact.retracted":
        return line(h("p.note", null, icon("bolt"), "a fact was retracted"));
      case "tool.abandoned":
        return line(h("p.note", null, icon("clock"), h("span", null, "gave up on ", h("b", null, words(body.tool_name ?? body.tool_call_id ?? "a call")), body.reason ? [": ", words(body.reason)] : "")));
      case "edit":
        return line(h("p.note", null, icon("edit"), h("span", null, "an edit, read at ", h("a", { href: `#/c/${this.id}@${body.place}` }, "#" + body.place))));
      case "approval.requested": return line(this.approval(entry, outcome));
      case "approval.resolved":
        return line(h("p.note", null, icon(body.state === "approved" ? "check" : "cross"), h("span", null, question ? ["“", words(question), "”"] : words(body.approval_id ?? "An approval"), " was ", h("b", null, words(body.state ?? "")), entry.actor ? [" by ", words(entry.actor)] : "")));
      case "transcript_budget":
        return line(h("p.note", null, "The budget of messages was reached: ", words(String(body.action ?? body.recovery ?? "trimmed"))));
      default:
    }
    return line(this.fold("e" + entry.seq, [h("code", null, words(entry.kind)), h("span.dim", null, "#" + entry.seq, " ", when(entry.occurred_at ?? entry.at))], () => (entry.erased ? h("p.dim", null, "Erased.") : entry.hidden && entry.body === undefined ? h("p.dim", null, "Private, and not for you.") : code(JSON.stringify(body, null, 2), "json")), { class: "raw-event" }));
  }

  approval(entry, outcome) {
    const { approval_id: id, question, tool_name: tool, deadline } = entry.body ?? {};
    const pending = this.approvals.has(id) && !outcome;
    const resolve = async (decision) => {
      await this.act(() => this.page.resolveApproval(entry.body, decision), decision === "approved" ? "Approved" : "Denied");
      this.readState();
    };
    const decided = outcome?.body?.state;
    return h("div.approval", { class: pending ? "pending" : "" },
      h("div.grow", null, h("span.label", null, pending ? "Approval pending" : decided ? [words(decided[0].toUpperCase() + decided.slice(1)), outcome.actor ? [" by ", words(outcome.actor)] : "", ", ", when(outcome.at)] : "Approval requested"), h("p", null, words(question ?? tool ?? id)), tool && question ? h("p.dim", null, "Tool: ", h("code", null, words(tool))) : null,
        outcome?.body?.reason ? h("p.dim", null, words(outcome.body.reason)) : null, pending && deadline ? h("p.dim", null, "Expires ", when(deadline)) : null),
      pending && this.page.may("writer") ? h("div.row", null, button("Deny", () => resolve("denied")), button("Approve", () => resolve("approved"), { class: "primary" })) : null);
  }

  // ------------------------------------------------------------------------------------------------ actions

  async act(work, done) {
    try {
      const answer = await work();
      if (done) toast(done);
      return answer;
    } catch (error) {
      failed(error);
    }
  }

  actions(anchor, entry) {
    const text = plainText((entry.parts ?? []).filter((part) => part.kind !== "notice"));
    const { prompt, completion } = entry.tokens ?? {};
    const about = [`#${entry.written_seq ?? entry.seq}`, when(entry.occurred_at ?? entry.created).textContent, prompt != null || completion != null ? `${number(prompt ?? 0)} → ${number(completion ?? 0)} tokens` : null];
    const writes = this.page.may("writer"), fixed = entry.status === "pending" || entry.superseded_by || entry.erased || entry.hidden;
    const asks = writes && this.page.models?.length && entry.role === "assistant" && !fixed;
    menu(anchor, about.filter(Boolean).join(" · "), [
      ["Copy a link to this turn", () => copy(`${location.origin}/#/c/${this.id}@${entry.seq}`)],
      ["Copy text", () => copy(text)],
      writes ? ["Edit in place…", () => this.supersede(entry), fixed] : null,
      writes && entry.role === "user" ? ["Edit in a fork…", () => this.branch(entry), fixed] : null,
      asks ? ["Regenerate in place", () => this.regenerate(entry)] : null,
      asks ? ["Regenerate in a fork", () => this.again(entry)] : null,
      writes ? ["Fork from here", () => this.fork(entry.written_seq ?? entry.seq)] : null,
      ["Show as JSON", async () => dialog(`Turn #${entry.written_seq ?? entry.seq}`, code(JSON.stringify(await get(`/turns/${entry.id}`, { conversation: this.id }), null, 2), "json"), [["Close", null]])],
      entry.status === "pending" ? (writes ? ["Stop this answer", () => this.stop(entry)] : null) : this.page.may("admin") ? ["Erase content…", () => this.erase(entry), entry.erased] : null,
    ]);
  }

  async supersede(entry) {
    const field = editor(entry, "New text");
    const others = parts(entry).some((part) => part.kind !== "text") ? " Pictures, tool calls and everything else in it stay." : "";
    const replace = (id, said) => post(`/turns/${id}/supersede`, { conversation: this.id, role: entry.role, actor: entry.actor, ...said });
    const made = await dialog("Edit this turn", h("div.fields", null, h("p.dim", null, `The new text is read in this place, by people and models.${others} The old version stays in the log, and what follows stays as it is.`), field), [["Cancel", null], ["Replace", () => (field.value.trim() ? replace(entry.id, reworded(entry, field.value.trim())).catch(editedMeanwhile) : undefined), "primary"]]);
    if (made !== undefined) unsent.set("", entry.id);
    if (made) toast("Edited; the old version is still readable", { action: ["Undo", () => this.act(() => replace(made.turns[0].id, said(entry)))] });
  }

  /** Has the model answer anew; the new answer takes the place of this one once it is complete. */
  async regenerate(entry) {
    this.scroller.toEnd();
    const done = await this.act(() => generate(this.id, { regenerate: entry.id, model: this.page.model?.value || undefined }, { waits }), "Regenerated; the old answer is still readable");
    if (done) this.show(entry.seq);
  }

  /** Forks before a user turn and sends an edited version there. */
  async branch(entry) {
    const field = editor(entry, "Text in the fork");
    const made = await dialog("Edit in a fork", h("div.fields", null, h("p.dim", null, "The fork shares everything before this turn. This conversation stays as it is."), field), [["Cancel", null], ["Fork", () => (field.value.trim() ? this.branchAt(entry, reworded(entry, field.value.trim())) : undefined), "primary"]]);
    if (made !== undefined) unsent.set("", entry.id);
    if (made) await this.answered(entry, made);
  }

  /** Branches at the prompt of an answer, and generates another answer there. */
  async again(entry) {
    const { data } = await get(`/conversations/${this.id}/turns`, { before: entry.seq, order: "desc", limit: 200 }, this.abort.signal);
    const prompt = data.find(isPrompt);
    const made = prompt ? await this.act(() => this.branchAt(prompt, said(prompt))) : toast("There is no prompt before this answer", { error: true });
    if (made) await this.answered(prompt, made);
  }

  /** Makes a fork with everything before a turn, and another text instead of it. */
  branchAt(turn, said) { return post(`/turns/${turn.id}/branch`, { conversation: this.id, role: turn.role, actor: turn.actor, ...said }); }

  /** Opens such a fork, and has the model answer. */
  async answered(turn, made) {
    const { conversation } = made.turns[0];
    this.opened(conversation, placeOf(turn) - 1);
    if (this.page.models?.length) await this.act(() => generate(conversation, { input: [] }, { waits }));
  }

  async fork(seq) {
    const made = await this.act(() => post(`/conversations/${this.id}/fork`, { at_seq: seq }));
    if (made) this.opened(made.id, seq);
    return made;
  }

  /** Goes to a new fork, which can be undone. */
  opened(id, seq) {
    const undo = () => this.act(async () => {
      await del(`/conversations/${id}`, { reason: "undone" });
      location.hash = `#/c/${this.id}`;
      this.page.reload();
    }, "The fork is gone");
    this.page.reload();
    location.hash = `#/c/${id}`;
    toast(`Forked at #${seq}`, this.page.may("admin") ? { action: ["Undo", undo] } : {});
  }

  async erase(entry) {
    const reason = h("input", { type: "text", value: "on request", "aria-label": "Why" });
    const erased = await dialog("Erase the content of this turn?", h("div.fields", null, h("p", null, "This cannot be undone. The content is removed from every file of the store; the envelope and its hash remain, so the chain still verifies."), h("label", null, "Why", reason)), [["Cancel", null], ["Erase", () => (reason.value.trim() ? post(`/turns/${entry.id}/erase`, { reason: reason.value.trim() }) : undefined), "danger"]]);
    if (erased) toast("Erased");
  }

  async stop(entry) {
    await this.act(async () => {
      const { data } = await get(`/conversations/${this.id}/generations`);
      const one = data.find((generation) => generation.turn === entry.id || generation.state === "running");
      return one ? post(`/generations/${one.id}/stop`) : post(`/turns/${entry.id}/abort`, { reason: "stopped" });
    }, "Stopped");
  }

  // ------------------------------------------------------------------------------------------------ navigation

  moved(scroller) {
    const { scrollTop, scrollHeight, clientHeight } = scroller.el;
    this.atEnd = scrollHeight - scrollTop - clientHeight < 40;
    this.toEnd.hidden = this.atEnd;
    this.jumps.classList.toggle("at-end", this.atEnd);
    this.jumps.hidden = scrollHeight <= clientHeight;
    this.empty.hidden = this.conversation.turns > 0 || scroller.space.querySelector("article") || !scroller.data.size;
    if (this.atEnd) this.toEnd.classList.remove("news");
  }

  /** Makes a row the current one, where it is. */
  choose(row) {
    this.scroller.el.querySelector(".current")?.classList.remove("current");
    row.classList.add("current");
    this.current = Number(row.dataset.seq);
    row.focus({ preventScroll: true });
  }

  /** Selects a row, and scrolls to it if it is out of view. */
  select(row, { align } = {}) {
    this.choose(row);
    this.scroller.settle();
    this.scroller.target = null;
    const view = this.scroller.el.getBoundingClientRect(), box = row.getBoundingClientRect();
    if (align || box.top < view.top + 8 || box.top > view.bottom - 80) {
      this.scroller.stick = false;
      this.scroller.el.scrollTop += box.top - view.top - 24;
    }
  }

  /** Runs a shortcut once those before it are done: rows may have to be loaded first. */
  inTurn(work) {
    this.going = (this.going ?? Promise.resolve()).then(work).catch(() => {});
  }

  /** Goes to the beginning or to the end, and selects the row there. */
  toEdge(isEnd) {
    const { scroller } = this;
    this.inTurn(async () => {
      this.current = null;
      if (isEnd) scroller.toEnd();
      else scroller.jump(1, 0);
      for (let n = 0; n < 60 && this.current === null; n++) {
        scroller.update();
        const row = scroller.data.has(scroller.pageOf(isEnd ? scroller.head : 1)) && scroller.rows().at(isEnd ? -1 : 0);
        if (row) return this.choose(row);
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
    });
  }

  step(by) { this.inTurn(() => this.stepped(by)); }

  stepped(by) {
    const rows = this.scroller.rows();
    if (!rows.length) return;
    const at = rows.findIndex((row) => Number(row.dataset.seq) === this.current);
    if (at >= 0) return rows[at + by] && this.select(rows[at + by]);
    // Nothing is selected yet: begin with what is visible.
    const view = this.scroller.el.getBoundingClientRect();
    const visible = rows.filter((row) => row.getBoundingClientRect().bottom > view.top + 20 && row.getBoundingClientRect().top < view.bottom - 20);
    this.select(visible.at(by > 0 ? 0 : -1) ?? rows.at(by > 0 ? 0 : -1));
  }

  /** Selects the next or previous user message. */
  prompt(by) { this.inTurn(() => this.prompted(by)); }

  async prompted(by) {
    let seq = this.current ?? Number(this.scroller.rows().at(by > 0 ? 0 : -1)?.dataset.seq ?? this.conversation.head.seq);
    for (let tries = 0; tries < 20; tries++) {
      const query = by > 0 ? { after: seq, order: "asc", limit: 200 } : { before: seq, order: "desc", limit: 200 };
      const { data } = await get(`/conversations/${this.id}/turns`, query, this.abort.signal);
      const found = data.find(isPrompt);
      if (found) return this.show(placeOf(found));
      if (data.length < 200) break;
      seq = placeOf(data.at(-1));
    }
    this.page.say(by > 0 ? "No prompt after this one" : "No prompt before this one");
  }

  /** Scrolls to a seq and selects it; the words of a hit are marked there. */
  show(seq, words) {
    const had = this.sought;
    this.sought = words && { seq, words, turn: (this.shows = (this.shows ?? 0) + 1) };
    if (had || words) this.scroller.redraw();
    return this.goTo(seq);
  }

  async goTo(seq) {
    this.current = seq;
    this.scroller.jump(seq);
    // However long its page takes to load, unless the user goes elsewhere.
    for (let drawn = 0; drawn < 50; ) {
      await new Promise((resolve) => setTimeout(resolve, 50));
      if (this.abort.signal.aborted || this.current !== seq) return;
      // A result that is merged into its call has no row of its own.
      const row = this.scroller.rowOf(seq) ?? this.scroller.rowOf(this.within.get(seq));
      if (row) {
        this.choose(row);
        row.classList.add("flash");
        setTimeout(() => row.classList.remove("flash"), 1800);
        if (this.current !== seq) this.scroller.jump(this.current);
        return this.toWords(row);
      }
      const loaded = this.scroller.data.get(this.scroller.pageOf(seq));
      if (!loaded) continue;
      const moved = loaded.find((entry) => entry.seq === seq && entry.place && entry.place !== seq);
      if (moved) return this.goTo(moved.place);
      if (++drawn > 10) {
        const near = this.scroller.rows().filter((one) => Number(one.dataset.seq) <= seq).at(-1);
        if (near) return this.select(near, { align: true });
      }
    }
  }

  /** Scrolls to the first word that is marked in a row, if it is out of view. */
  toWords(row) {
    const { scroller } = this;
    // Pages drawn a moment ago are measured first: what is scrolled to stays only where the heights are known.
    scroller.settle();
    const view = scroller.el.getBoundingClientRect(), box = row.querySelector(".inside mark, .md mark")?.getBoundingClientRect();
    if (!box || (box.top > view.top && box.bottom < view.bottom - 20)) return;
    scroller.target = null;
    scroller.el.scrollTop += box.top - view.top - view.height / 3;
    scroller.anchor();
  }

  toggleThinking() {
    this.thinking = !this.thinking;
    memory.set("thinking", this.thinking);
    for (const key of [...this.open.keys()]) if (!key.startsWith("e")) this.open.delete(key);
    for (const el of this.scroller.el.querySelectorAll("details.thought")) el.open = this.thinking;
    this.rows.clear();
    this.scroller.redraw();
    this.page.say(this.thinking ? "Thinking expanded" : "Thinking collapsed");
  }

  toggleEvents() {
    this.everything = !this.everything;
    this.rows.clear();
    this.scroller.redraw();
    this.page.say(this.everything ? "All events are shown" : "Only turns and key events are shown");
  }
}

/** Whether a turn consists only of notices of a program. */
const isNoticed = (turn, own) => !!turn.speaker && own.every((part) => part.kind === "text");
/** Kind of a notice; unknown if it is beside results. */
const noticeName = (turn) => (turn.speaker === "tool" ? "notice" : turn.speaker);
const isReplaced = (turn) => !!turn.superseded_by?.startsWith("turn_");
/** Position of a turn in reading order. */
const placeOf = (turn) => turn.place ?? turn.seq;

/** Text of an open turn, with a caret at the end. */
function written(body, text) {
  clear(body, h("div.md", { dir: "auto" }, markdown(text)));
  let end = body.firstChild;
  while (end.lastElementChild && /^(P|UL|OL|LI|BLOCKQUOTE|H\d)$/.test(end.lastElementChild.tagName)) end = end.lastElementChild;
  end.append(h("span.caret", { "aria-hidden": "true" }));
}

const LONG_DAY = new Intl.DateTimeFormat(undefined, { weekday: "long", day: "numeric", month: "long", year: "numeric" });
const longDay = (time) => LONG_DAY.format(new Date(time));

/** The texts in the arguments of a call. */
const texted = (value) => (value && typeof value === "object" ? Object.values(value).map(texted).join("\n") : String(value ?? ""));

const tidy = (text) => {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return null; }
};

async function inlined(part) {
  const bytes = Uint8Array.from(atob(part.data), (char) => char.charCodeAt(0));
  return shown(new Blob([bytes], { type: part.mime ?? "image/png" }));
}

/** A field with the text of a turn, or with the unsent edit of it. */
function editor(turn, label) {
  const field = h("textarea", { value: unsent.get(turn.id) || plainText(parts(turn).filter((part) => part.kind === "text")), rows: 10, "aria-label": label });
  field.addEventListener("input", () => unsent.set(field.value, turn.id));
  return field;
}

const editedMeanwhile = (error) => {
  if (error.code === "turn.superseded") error.message = "This turn was edited meanwhile, perhaps in another tab. Copy your text, close this, and edit the new version.";
  throw error;
};

const zoom = (img) => dialog(img.alt, h("img.large", { src: img.src, alt: img.alt }), [["Close", null]]);

/** A stable hue for a name. */
function hue(name) {
  let sum = 7;
  for (const char of name) sum = (sum * 31 + char.codePointAt(0)) % 360;
  return sum;
}

/** Tokens of the blocks of a receipt by section, in the order of a prompt. What they leave of those used is around them: headings, roles, schemas of tools. */
export function sections({ blocks = [], used = 0 }) {
  const sums = Object.fromEntries(SECTIONS.map((name) => [name, 0]));
  for (const block of blocks) sums[block.section] = (sums[block.section] ?? 0) + block.tokens;
  sums.frame = used - Object.values(sums).reduce((all, tokens) => all + tokens, 0);
  return Object.entries(sums).filter(([, tokens]) => tokens > 0);
}

/** A stacked bar. */
export const bar = (pieces, total) => {
  const share = (tokens) => Math.round((tokens / total) * 100) + "%";
  return h("span.bar", { role: "img", "aria-label": pieces.map(([name, tokens]) => `${name} ${share(tokens)}`).join(", ") }, pieces.map(([name, tokens]) => h("i", { class: "s-" + name, title: `${name}: ${share(tokens)}`, vars: { width: (tokens / total) * 100 + "%" } })));
};
