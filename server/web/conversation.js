// The frame of a conversation: header, tabs, composer.

import { h, MOD, clear, plainly, icon, iconButton, button, words, when, number, plural, short, toast, placeNotices, dialog, confirm, state as notice } from "./dom.js";
import { get, post, put, patch, del, oneAtATime, generate, unsent } from "./api.js";
import { Timeline, waits, failed } from "./timeline.js";
import { menu } from "./menu.js";
import { hit, chosenWords, nameOf, origin, LOOK_AGAIN } from "./list.js";

const VIEWS = [["", "Timeline"], ["projected", "Raw and projected"], ["calls", "What the model saw"], ["state", "State"], ["proof", "Proof"]];

export class ConversationPage {
  constructor(id, page) {
    this.id = id;
    this.page = page;
    this.el = h("div.conversation");
    this.view = null;
    this.gone = false;
    /** Names of the conversations that this one comes from, once they are known. */
    this.relatives = new Map();
  }

  async start() {
    const late = setTimeout(() => clear(this.el, notice("Loading…")), 400);
    try {
      this.conversation = await get(`/conversations/${this.id}`);
    } catch (error) {
      clearTimeout(late);
      const text = error.status === 404 ? "It was deleted, or the address is not quite right." : error.message;
      return void clear(this.el, notice(error.status === 404 ? "There is no such conversation" : "The conversation cannot be read", text, error.status === 404 ? h("a", { href: "#/" }, "Back to the list") : button("Try again", () => this.page.route())));
    }
    clearTimeout(late);
    if (this.gone) return;
    const { conversation: one } = this;
    if (!this.may("reader")) return this.counts();
    this.title = h("h1.title", { tabIndex: -1 });
    this.facts = h("p.facts");
    this.status = h("span.connection", { role: "status" });
    this.spoken = h("span.spoken.dim", { role: "status" });
    this.tabs = h("nav.tabs", { "aria-label": "Views" }, VIEWS.map(([name, label]) => h("a", { href: `#/c/${this.id}${name && "/" + name}`, data: { view: name } }, label)));
    this.finder = this.find();
    this.alert = h("div.alert", { hidden: true });
    this.header = h("header.top", null,
      h("div.row", null, iconButton("back", "Back to the list", () => (location.hash = "#/"), { class: "only-narrow" }),
        h("div.grow.names", null, this.title, this.facts), this.spoken, this.status,
        iconButton("search", "Find in this conversation (/)", () => this.openFind()), iconButton("more", "More", (event) => this.more(event.currentTarget), { "aria-haspopup": "menu" })),
      this.tabs, this.finder);
    // If there are more tabs than fit, they fade out at the edge.
    const fade = () => {
      const { scrollLeft: left, scrollWidth, clientWidth } = this.tabs;
      this.tabs.classList.toggle("more-before", left > 4);
      this.tabs.classList.toggle("more-after", left + clientWidth < scrollWidth - 4);
    };
    this.tabs.addEventListener("scroll", fade, { passive: true });
    new ResizeObserver(fade).observe(this.tabs);
    this.body = h("div.view");
    this.composer = this.compose();
    clear(this.el, this.header, this.alert, this.body, this.composer);
    this.write(unsent.get(this.id));
    placeNotices();
    this.describe();
    get("/usage/tokens", { conversation: this.id, days: 3660 }).then(({ conversations: [usage] }) => usage && ((this.tokens = usage.prompt + usage.completion), this.describe()), () => {});
    for (const id of [one.parent?.conversation, origin(one).parent].filter(Boolean)) get(`/conversations/${id}`).then((other) => (this.relatives.set(id, nameOf(other)), this.describe()), () => {});
    // Created even if another view is shown: its live stream serves all views.
    this.timeline = new Timeline(one, this);
  }

  /** The view for a key that may see numbers only. */
  async counts() {
    const { conversation: one } = this;
    const { plot } = await import("./usage.js");
    this.told = true;
    this.title = h("h1.title", { tabIndex: -1 }, h("code", null, one.id));
    const body = h("div");
    clear(this.el, h("div.scroll", null,
      h("div.row", null, iconButton("back", "Back to the list", () => (location.hash = "#/"), { class: "only-narrow" }), this.title),
      h("p.counter-note", null, "This key can see counts, not content."),
      h("div.numbers", null, [["Turns", number(one.turns)], ["Events", number(one.head.seq)], ["State", one.state], ["Created", when(one.created)], ["Last change", when(one.updated)], ["Summarized through", one.checkpoint ? "#" + one.checkpoint.through_seq : "nothing"]].map(([label, value]) => h("div.meter", null, h("span.dim", null, label), h("b", null, value)))), body));
    document.title = one.id + " · Everturn";
    await plot(body, { conversation: this.id });
  }

  destroy() {
    this.gone = true;
    this.view?.destroy?.();
    this.timeline?.destroy();
  }

  describe() {
    if (this.gone) return;
    const one = this.conversation;
    for (const control of [this.field, this.sendButton, this.askButton]) control.disabled = one.state !== "active";
    this.field.placeholder = one.state === "active" ? "Write a message" : one.state === "archived" ? "Archived: unarchive it (More) to write" : `Nothing can be written here: this conversation is ${one.state}`;
    clear(this.title, words(nameOf(one)));
    document.title = plainly(nameOf(one)) + " · Everturn";
    const named = (id) => (this.relatives.has(id) ? ["“", words(this.relatives.get(id)), "”"] : "another conversation");
    const people = one.participants?.slice(0, 5).join(", "), { agent, folder, project, branch, parent } = origin(one);
    clear(this.facts, words([people, plural(one.turns, "turn"), this.tokens && short(this.tokens) + " tokens", one.state !== "active" && one.state, one.checkpoint && `checkpoint through #${one.checkpoint.through_seq}`].filter(Boolean).join(" · ")),
      words([agent, branch && `branch ${branch}`].filter(Boolean).map((text) => " · " + text).join("")),
      folder ? [" · ", h("button.plain", { type: "button", title: `${folder}: list the conversations of this project`, onclick: () => this.page.list.only(folder, project) }, words(project))] : null,
      parent ? [" · ", h("a", { href: `#/c/${parent}` }, "worked for ", named(parent))] : null,
      one.parent ? [" · ", h("a", { href: `#/c/${one.parent.conversation}@${one.parent.at_seq}` }, "forked from ", named(one.parent.conversation), ` at #${one.parent.at_seq}`)] : null);
  }

  /** Whether the key has a role. */
  may(role) { return this.page.may(role); }

  /** Answers an approval. If it was answered already, the error has the question instead of the id. */
  async resolveApproval({ approval_id: id, question }, state) {
    try {
      return await post(`/conversations/${this.id}/approvals/${encodeURIComponent(id)}/resolve`, { state, actor: this.page.actor });
    } catch (error) {
      if (error.code === "approval.resolved") error.message = error.message.replace(/^approval "(?:[^"\\]|\\.)*"/i, question ? `“${question}”` : "The approval").replace(/, seq \d+/, "");
      throw error;
    }
  }

  /** Shows the effect of a shortcut beside the title, where it takes no room of the view. */
  say(text) {
    clearTimeout(this.silence);
    clear(this.spoken, words(text));
    this.silence = setTimeout(() => clear(this.spoken), 2500);
  }

  /** Shows a view; `at` is a seq to scroll to or select. */
  async show(name, at) {
    if (!this.conversation || this.gone || this.told) return;
    for (const tab of this.tabs.children) {
      if (tab.dataset.view === name) tab.setAttribute("aria-current", "page"), tab.scrollIntoView({ block: "nearest", inline: "center" });
      else tab.removeAttribute("aria-current");
    }
    if (name === "") {
      this.view?.destroy?.();
      this.view = null;
      if (this.body.firstChild !== this.timeline.el) clear(this.body, this.timeline.el), this.timeline.scroller.settle(), this.timeline.scroller.soon();
      this.composer.hidden = !this.may("writer");
      if (at) this.timeline.show(at, chosenWords(this.id, at));
      if (this.page.typeSoon) this.page.typeSoon = false, this.field.focus();
      return;
    }
    this.composer.hidden = true;
    if (this.name === name && this.view?.update) return this.view.update(at);
    this.view?.destroy?.();
    clear(this.body, h("div.scroll", null, notice("Loading…")));
    const module = await import(`./${name}.js`);
    if (this.gone) return;
    this.name = name;
    this.view = module.view(this, at);
    clear(this.body, this.view.el);
  }

  // ------------------------------------------------------------------------------------------------ callbacks of the timeline

  connected(is, error) {
    if (this.told) return;
    clear(this.status, is ? null : error ? h("span", { title: plainly(error.message) }, words(error.message)) : [h("span.dot"), "Reconnecting…"]);
    this.status.classList.toggle("bad", !is);
  }
  deleted() { clear(this.el, notice("This conversation was deleted", "A tombstone remains for audit.")); }
  wordless(error) {
    if (this.told) return;
    this.told = true;
    this.timeline?.destroy();
    this.counts();
  }
  reload() { this.page.list.refresh(); }

  changed(event) {
    this.rereading ??= setTimeout(() => ((this.rereading = undefined), this.reread()), 300);
    this.view?.changed?.(event);
  }
  reread = oneAtATime(async () => {
    try {
      const read = await get(`/conversations/${this.id}`);
      Object.assign(this.conversation, read, { head: this.conversation.head });
      this.describe();
    } catch { /* the list says so */ }
  });

  stateChanged(state) {
    const open = state.open_turns.length > 0;
    this.stopButton.hidden = !open || !this.may("writer");
    const waiting = state.pending_approvals.length;
    this.alert.hidden = !waiting || this.told;
    if (waiting && !this.told) {
      const one = state.pending_approvals[0];
      clear(this.alert, h("button.alert-line", { type: "button", onclick: () => (location.hash = `#/c/${this.id}@${one.requested_seq}`) }, icon("clock"), h("span", null, waiting === 1 ? words(one.question ?? "An approval is waiting") : `${waiting} approvals are waiting`), h("span.dim", null, "Show")));
    }
  }

  // ------------------------------------------------------------------------------------------------ find

  find() {
    this.findField = h("input.search", { type: "search", placeholder: "Find in this conversation", "aria-label": "Find in this conversation", autocomplete: "off", spellcheck: false });
    this.found = h("div.found", { "aria-live": "polite" });
    this.count = h("p.dim");
    let timer, asking, hits;
    const look = async (query) => {
      asking = new AbortController();
      try {
        const { data, behind } = await post(`/conversations/${this.id}/recall`, { query, limit: 40, mode: "lexical", kinds: ["turn"] }, asking.signal);
        const had = hits?.map((one) => one.seq).join();
        hits = data.sort((a, b) => a.seq - b.seq);
        clear(this.count, [data.length ? plural(data.length, "place") : "Nothing found", behind?.events && `${plural(behind.events, "event")} not indexed yet`].filter(Boolean).join("; "));
        // If nothing new was found, the hits stay as they are, with the focus.
        if (hits.map((one) => one.seq).join() !== had) clear(this.found, this.count, hits.map((one) => {
          const el = hit({ ...one, conversation: this.id });
          el.lastChild.textContent = "#" + one.seq;
          // On a phone the panel covers everything.
          el.addEventListener("click", () => innerWidth <= 760 && this.closeFind());
          return el;
        }));
        if (behind?.events) timer = setTimeout(() => this.finder.isConnected && !this.finder.hidden && look(query), LOOK_AGAIN);
      } catch (error) {
        if (error.name !== "AbortError") hits = undefined, clear(this.found, h("p.dim", null, words(error.message)));
      }
    };
    this.findField.addEventListener("input", () => {
      clearTimeout(timer);
      asking?.abort();
      const query = this.findField.value.trim();
      hits = undefined;
      if (!query) return void clear(this.found);
      timer = setTimeout(look, 90, query);
    });
    const el = h("div.finder", { hidden: true, role: "search" }, h("div.row", null, h("div.search-box", null, icon("search"), this.findField), iconButton("close", "Close", () => this.closeFind())), this.found);
    el.addEventListener("keydown", (event) => {
      const all = [...this.found.querySelectorAll("a")], at = all.indexOf(document.activeElement);
      if (event.key === "Escape") this.closeFind();
      else if (event.key === "ArrowDown") all[Math.min(at + 1, all.length - 1)]?.focus();
      else if (event.key === "ArrowUp") (at > 0 ? all[at - 1] : this.findField).focus();
      else if (event.key === "Enter" && at < 0) all[0]?.click();
      else return;
      event.stopPropagation();
      event.preventDefault();
    });
    return el;
  }
  openFind() {
    this.finder.hidden = false;
    this.findField.focus();
    this.findField.select();
  }
  closeFind() {
    const had = this.finder.contains(document.activeElement);
    this.finder.hidden = true;
    if (had) this.timeline?.scroller.el.focus();
  }

  // ------------------------------------------------------------------------------------------------ composer

  compose() {
    this.field = h("textarea", { rows: 1, placeholder: "Write a message", "aria-label": "Write a message" });
    const grow = () => {
      this.field.style.height = "auto";
      this.field.style.height = Math.min(this.field.scrollHeight, innerHeight / 3) + "px";
    };
    this.field.addEventListener("input", () => (grow(), unsent.set(this.field.value, this.id)));
    this.field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.metaKey || event.ctrlKey)) event.preventDefault(), this.models?.length ? this.generate() : this.send();
      if (event.key === "Escape") this.field.blur();
    });
    this.model = h("select", { "aria-label": "Model", hidden: true });
    this.sendButton = button("Send", () => this.send(), { title: "Send without asking a model" });
    this.askButton = button("Ask", () => this.generate(), { class: "primary", hidden: true, title: "Send, and have the model answer" });
    this.stopButton = h("button.button.stop", { type: "button", hidden: true, onclick: () => this.stop() }, icon("stop"), "Stop");
    const unanswered = h("span.dim.unanswered", { id: "unanswered", hidden: true }, "No model is configured on this server: a message is stored, not answered.");
    this.page.models().then((models) => {
      this.models = models ?? [];
      this.askButton.hidden = !this.models.length;
      this.sendButton.classList.toggle("primary", !this.models.length);
      this.model.hidden = this.models.length < 2;
      clear(this.model, this.models.map((one) => h("option", { value: one.name, selected: one.name === "default" }, one.name)));
      unanswered.hidden = models?.length !== 0;
      if (!unanswered.hidden) this.field.setAttribute("aria-describedby", unanswered.id);
    });
    return h("form.composer", { onsubmit: (event) => event.preventDefault() }, this.field, h("div.row", null, this.model, unanswered, h("span.grow"), h("span.dim.hint", null, `${MOD} Enter`), this.stopButton, this.sendButton, this.askButton));
  }

  said() {
    const text = this.field.value.trim();
    if (!text) this.field.focus();
    return text && { role: "user", content: text, actor: this.page.actor };
  }
  write(text) {
    this.field.value = text;
    this.field.dispatchEvent(new Event("input"));
  }
  /** Empties the field once its words are stored, unless others were typed meanwhile. */
  stored(turn) {
    if (turn && this.field.value.trim() === turn.content) this.write("");
    this.timeline?.scroller.toEnd();
  }

  async send() {
    const turn = this.said();
    if (!turn || this.isBusy) return;
    this.isBusy = true;
    try {
      const { turns: [made] } = await post(`/conversations/${this.id}/turns`, { turns: [turn] });
      this.stored(turn);
      if (!this.conversation.title && this.conversation.turns === 0) this.rename(titleOf(turn));
      return made;
    } catch (error) {
      toast(error.message, { error: true });
    } finally {
      this.isBusy = false;
    }
  }

  async generate(input) {
    const turn = input === undefined ? this.said() : null;
    if ((input === undefined && !turn) || this.isBusy) return;
    this.isBusy = true;
    const { seq } = this.conversation.head, begun = () => ((this.isBusy = false), this.stored(turn));
    try {
      await generate(this.id, { input: turn ? [turn] : [], model: this.model.value || undefined }, { waits, begun });
    } catch (error) {
      if (error.code !== "generation.stopped") toast(error.message, { error: true });
      // A model that cannot be asked may have left the words in the log.
      if (this.isBusy && turn && (await get(`/conversations/${this.id}/turns`, { order: "desc", limit: 5 }).catch(() => ({ data: [] }))).data.some((one) => one.seq > seq && one.content === turn.content)) this.stored(turn);
    }
    this.isBusy = false;
  }

  async stop() {
    try {
      const { data } = await get(`/conversations/${this.id}/generations`);
      const running = data.filter((one) => ["running", "waiting"].includes(one.state));
      for (const one of running) await post(`/generations/${one.id}/stop`);
      if (!running.length) {
        const state = await get(`/conversations/${this.id}/state`);
        for (const turn of state.open_turns) await post(`/turns/${turn}/abort`, { reason: "stopped" });
      }
      toast("Stopped", { about: "stop" });
    } catch (error) {
      failed(error);
    }
  }

  // ------------------------------------------------------------------------------------------------ actions

  async act(work, done, about) {
    try {
      const answer = await work();
      if (done) toast(done, { about });
      this.page.list.refresh();
      return answer;
    } catch (error) {
      toast(error.message, { error: true });
    }
  }

  async named(title) {
    Object.assign(this.conversation, await patch(`/conversations/${this.id}`, { title }), { head: this.conversation.head });
    this.describe();
    this.page.list.refresh();
    return title;
  }
  rename(title) { return this.act(() => this.named(title)); }

  /** Actions on the conversation, for the menu and the palette. */
  commands() {
    const { conversation: one } = this, at = (view) => () => (location.hash = `#/c/${this.id}${view}`);
    const writes = this.may("writer");
    return [
      writes && ["Rename…", async () => {
        const field = h("input", { type: "text", value: one.title ?? "", "aria-label": "Title" });
        await dialog("Rename", field, [["Cancel", null], ["Rename", () => (field.value.trim() ? this.named(field.value.trim()) : undefined), "primary"]]);
      }],
      writes && ["Add a pin…", () => this.pin()],
      writes && ["Compact…", () => this.compact()],
      writes && this.models?.length ? ["Generate without new input", () => this.generate(null)] : null,
      writes && ["Fork at the end", () => this.timeline?.fork(one.head.seq)],
      ["Show or fold thinking (t)", () => this.timeline?.toggleThinking()],
      ["Show or hide all events (e)", () => this.timeline?.toggleEvents()],
      ["Verify and export", at("/proof")],
      writes && [one.state === "archived" ? "Unarchive" : "Archive", async () => {
        const state = one.state === "archived" ? "active" : "archived", before = one.state;
        const change = (to) => this.act(async () => { Object.assign(one, await patch(`/conversations/${this.id}`, { state: to }), { head: one.head }); this.describe(); });
        await change(state);
        toast(state === "archived" ? "Archived" : "Unarchived", { about: "archive", action: ["Undo", () => change(before)] });
      }],
      this.may("admin") && ["Delete…", async () => {
        if (!(await confirm("Delete this conversation?", `${plural(one.turns, "turn")} will be deleted permanently. A tombstone remains for audit.`, "Delete"))) return;
        await this.act(() => del(`/conversations/${this.id}`, { reason: "deleted on the page" }), "Deleted");
        location.hash = "#/";
      }],
    ].filter(Boolean);
  }
  more(anchor) { menu(anchor, plural(this.conversation.turns, "turn"), this.commands()); }

  async pin() {
    const name = h("input", { type: "text", placeholder: "branch", required: true }), value = h("input", { type: "text", placeholder: "main", required: true });
    const path = () => `/conversations/${this.id}/pins/${encodeURIComponent(name.value.trim())}`;
    const pinned = await dialog("Add a pin", h("div.fields", null, h("p.dim", null, "Every prompt contains it until it is unpinned, whatever is summarized."), h("label", null, "Name", name), h("label", null, "Value", value)),
      [["Cancel", null], ["Pin", () => (name.value.trim() && value.value.trim() ? put(path(), { value: value.value.trim() }) : undefined), "primary"]]);
    if (pinned) toast("Pinned", { about: path(), action: ["Undo", () => this.act(() => del(path()), "Unpinned", path())] });
  }

  /** Previews a compaction, then runs it. */
  async compact() {
    const keep = h("input", { type: "number", min: 0, value: 4 });
    const chosen = await dialog("Compact", h("div.fields", null, h("p.dim", null, "In prompts, a checkpoint stands in for the oldest turns. Nothing is removed, and you can revert it."), h("label", null, "Recent turns to keep as they are", keep)), [["Cancel", null], ["Preview", () => ({ keep_last: Number(keep.value) }), "primary"]]);
    if (!chosen) return;
    const preview = await this.act(() => post(`/conversations/${this.id}/compact`, { ...chosen, dry_run: true }));
    if (!preview) return;
    const { checkpoint } = await import("./text.js");
    const go = await dialog("Preview of the checkpoint", h("div", null, h("p", null, `It covers #${preview.covers.from_seq}–#${preview.covers.to_seq} (${plural(preview.covers.turns, "turn")}): ${short(preview.tokens_before)} tokens become ${short(preview.tokens_after)}.`), h("div.preview", { tabIndex: 0 }, checkpoint(preview.checkpoint))), [["Cancel", null], ["Compact", true, "primary"]]);
    if (!go) return;
    if (await this.act(() => post(`/conversations/${this.id}/compact`, chosen))) toast("Compacted", { about: "compact", action: ["Undo", () => this.act(() => post(`/conversations/${this.id}/compact/revert`), "Compaction reverted", "compact")] });
  }

  key(event) {
    const { timeline } = this;
    if (event.key === "Escape" && this.finder && !this.finder.hidden) return this.closeFind(), true;
    if (!timeline || this.body.firstChild !== timeline.el) return false;
    switch (event.key) {
      case "j": timeline.step(1); break;
      case "k": timeline.step(-1); break;
      case "J": case "]": timeline.prompt(1); break;
      case "K": case "[": timeline.prompt(-1); break;
      case "g": timeline.toEdge(false); break;
      case "G": timeline.toEdge(true); break;
      case "t": timeline.toggleThinking(); break;
      case "e": timeline.toggleEvents(); break;
      case "/": this.openFind(); break;
      case "o": case "Enter": {
        const details = document.activeElement?.matches?.(".turn, .event") && document.activeElement.querySelector("details");
        if (!details) return false;
        details.open = !details.open;
        break;
      }
      case "c": this.field.focus(); break;
      default: return false;
    }
    return true;
  }
}

/** Title for a conversation that begins with this turn: its first line, cut between characters. */
const titleOf = ({ content }) => [...content.split("\n")[0]].slice(0, 60).join("");

/** A conversation that is created with its first message: until then nothing is stored. */
export class Draft extends ConversationPage {
  constructor(page) {
    super(undefined, page);
    this.isDraft = true;
  }

  start() {
    this.title = h("h1.title", { tabIndex: -1 }, "New conversation");
    const body = h("div.view", null, h("section.timeline", null, notice("Nothing is stored yet", "The conversation is created with your first message.")));
    this.composer = this.compose();
    clear(this.el, h("header.top.alone", null, h("div.row", null, iconButton("back", "Back to the list", () => (location.hash = "#/"), { class: "only-narrow" }), this.title)), body, this.composer);
    document.title = "New conversation · Everturn";
    this.write(unsent.get());
    this.field.focus();
  }

  destroy() {
    super.destroy();
    if (this.made && !this.isSaid && !this.isBusy && this.may("admin")) del(`/conversations/${this.made}`, { reason: "a draft that was left" }).catch(() => {});
  }

  send() { return this.first(); }
  generate() { return this.first({ model: this.model.value || undefined }); }

  /** Creates the conversation, says the first words in it, asks a model if told to, and goes there. What fails keeps the words here; the next attempt is in the same conversation. */
  async first(ask) {
    const turn = this.said();
    if (!turn || this.isBusy) return;
    this.isBusy = true;
    const begun = () => {
      this.isSaid = true;
      unsent.set("");
      if (this.gone) return;
      this.page.typeSoon = true;
      location.replace(`#/c/${this.made}`);
    };
    try {
      this.made ??= (await post("/conversations", { title: titleOf(turn) })).id;
      if (ask) await generate(this.made, { ...ask, input: [turn] }, { waits, begun });
      else await post(`/conversations/${this.made}/turns`, { turns: [turn] }), begun();
    } catch (error) {
      if (error.code !== "generation.stopped") toast(error.message, { error: true });
      // A model that cannot be asked may have left the words in the log.
      if (ask && this.made && !this.isSaid && (await get(`/conversations/${this.made}`).catch(() => null))?.turns) begun();
    }
    this.isBusy = false;
  }

  key(event) {
    if (event.key !== "c") return false;
    this.field.focus();
    return true;
  }
}
