// Entry point: routing, keyboard shortcuts, sign-in.

import { h, clear, icon, words, dialog, placeNotices, forgetNotices, focusNotice, MOD, state as notice } from "./dom.js";
import { get, session, memory, onUnauthorized } from "./api.js";
import { List, firstPage } from "./list.js";

const ROLES = ["counter", "reader", "writer", "admin"];

const HELP = [["j  k", "next, previous turn"], ["J  K", "next, previous prompt"], ["g  G", "beginning, end"], ["/", "find in this conversation"], [`${MOD} K`, "go anywhere"], ["t", "show or fold thinking"], ["e", "show all events"], ["o", "open or fold a tool call"], ["c", "write a message"], [`${MOD} Enter`, "send"], ["n", "go to the notice"], ["?", "this list"]];

const keys = (list) => h("dl.keys", null, list.map(([key, text]) => h("div", null, h("dt", null, key.split("  ").map((one) => h("kbd", null, one))), h("dd", null, text))));

class Page {
  constructor() {
    this.main = h("main.main", { id: "main", tabIndex: -1 });
    this.banner = h("div.banner", { role: "alert", hidden: true });
    this.root = document.getElementById("app");
    session.listeners.add((online) => {
      this.banner.hidden = online;
      clear(this.banner, online ? null : "The server is not responding. This is what was loaded last; the page reconnects automatically.");
      if (!online) this.waitForServer();
      else this.list?.refresh();
    });
    onUnauthorized((detail) => this.signIn(detail));
    addEventListener("hashchange", () => this.route());
    addEventListener("keydown", (event) => this.key(event));
    addEventListener("pagehide", () => this.shown?.timeline?.remember());
    if (location.hash.startsWith("#/c/")) import("./conversation.js");
    this.build();
  }

  async build() {
    this.list?.destroy();
    const asked = firstPage({ state: "active" });
    asked.catch(() => { /* the list shows it */ });
    this.me = await get("/whoami").catch(() => ({}));
    if (this.signing) return;
    this.list = new List(this, asked);
    clear(this.root, this.banner, h("div.frame", null, this.list.el, this.main));
    this.route();
  }

  async waitForServer() {
    while (!session.online) {
      await new Promise((resolve) => setTimeout(resolve, 1000));
      await get("/usage").catch(() => {});
    }
  }

  /** Whether the key has a role. While that is unknown, everything is tried, and the server decides. */
  may(role) { return !this.me?.role || ROLES.indexOf(this.me.role) >= ROLES.indexOf(role); }

  /** Name in which the user writes: that of the key, or the one typed in. */
  get actor() { return this.me?.actors?.[0] ?? memory.get("name", undefined); }

  /** Configured models; nothing if they cannot be listed. */
  models() { return (this.modelList ??= get("/models").then(({ data }) => data, () => void (this.modelList = undefined))); }

  async route() {
    if (!this.list || location.hash === "#main") return;
    forgetNotices();
    await this.goTo(location.hash);
    placeNotices();
  }

  async goTo(address) {
    let hash = address;
    try { hash = decodeURIComponent(address); } catch { /* shown as unknown below */ }
    const found = /^#\/c\/(conv_\w+)(?:@(\d+))?(?:\/(projected|calls|state|proof)(?:\/(\d+))?)?$/.exec(hash);
    document.body.classList.toggle("has-main", hash.length > 2);
    if (found) {
      const [, id, place, view = "", inner] = found;
      if (this.shown?.id !== id || !this.shown.conversation) {
        this.leave();
        const { ConversationPage } = await import("./conversation.js");
        if (location.hash !== address) return;
        const shown = (this.shown = new ConversationPage(id, this));
        clear(this.main, shown.el);
        this.list.mark(id);
        await shown.start();
        if (this.shown !== shown) return;
        // Move focus to the conversation so that its shortcuts work, but never out of an input field.
        if (!document.activeElement?.matches("input, textarea")) shown.title?.focus({ preventScroll: true });
      }
      this.list.mark(id);
      return this.shown.show(view, Number(place ?? inner) || undefined);
    }
    if (hash === "#/new" && this.may("writer")) {
      if (this.shown?.isDraft) return this.shown.field.focus();
      this.leave();
      this.list.mark(null);
      const { Draft } = await import("./conversation.js");
      if (location.hash !== address) return;
      this.shown = new Draft(this);
      clear(this.main, this.shown.el);
      return this.shown.start();
    }
    this.leave();
    this.list.mark(null);
    document.title = "Everturn";
    if (hash === "#/usage") {
      const { view } = await import("./usage.js");
      if (location.hash !== address) return;
      return void clear(this.main, view().el);
    }
    if (hash.length > 2 && hash !== "#/new") return void clear(this.main, notice("There is nothing at this address", "It may have been cut off when it was copied.", h("a", { href: "#/" }, "Back to the list")));
    clear(this.main, h("section.home", null, h("h1", null, "Every word is kept"), h("p.dim.choose", null, this.may("reader") ? "Choose a conversation, or search everything." : "This key can see counts, not content. Choose a conversation, or look at the usage."),
      h("p.dim.begin", null, "Nothing is stored here yet. In a terminal, ", h("code", null, "everturn import"), " takes over the sessions that Claude Code, Codex and other agents left on that machine."),
      !this.may("reader") ? null : h("button.wide-search", { type: "button", onclick: () => this.palette() }, icon("search"), h("span.grow", null, "Open a conversation, search, run a command"), h("kbd", null, `${MOD} K`)),
      !this.may("reader") ? null : keys(HELP.filter(([key]) => !["c"].includes(key) && !key.startsWith(MOD)))));
  }

  leave() {
    this.shown?.destroy();
    this.shown = null;
  }

  // ------------------------------------------------------------------------------------------------ keys

  key(event) {
    if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === "k") return event.preventDefault(), this.palette();
    if (event.metaKey || event.ctrlKey || event.altKey || event.defaultPrevented) return;
    if (event.target.closest?.("input, textarea, select, dialog, .menu")) return;
    if (event.key === "?") return event.preventDefault(), this.help();
    if (event.target.closest?.("button, summary, a") && ["Enter", " "].includes(event.key)) return;
    if (event.key === "n" && focusNotice()) return event.preventDefault();
    if (this.shown?.key(event)) return event.preventDefault();
    if (event.key === "/") event.preventDefault(), this.list?.search.focus();
  }

  help() {
    const name = h("input", { type: "text", value: memory.get("name", ""), placeholder: "user", "aria-label": "Your name in conversations" });
    name.addEventListener("change", () => memory.set("name", name.value.trim() || undefined));
    const { tenant, role, actors = [], key } = this.me ?? {};
    const who = role && h("p.dim", null, key ? ["You are signed in with the key ", h("code", null, words(key)), ", "] : "This server asks for no key. You are ", `${role} of the tenant `, h("b", null, words(tenant)), actors.length ? [", acting as ", words(actors.join(", "))] : "", ".");
    dialog("Keyboard", h("div.fields", null, keys(HELP), actors.length ? null : h("label.row", null, "Your name in conversations", name), who), [...(session.key ? [["Sign out", () => (this.signOut(), null)]] : []), ["Close", null]]);
  }

  signOut() {
    this.leave();
    session.forget();
    location.reload();
  }

  async palette() {
    if (this.signing || !this.may("reader")) return;
    const { palette } = await import("./palette.js");
    palette(this);
  }

  // ------------------------------------------------------------------------------------------------ signing in

  signIn(detail) {
    if (this.signing) return;
    this.signing = true;
    this.list?.destroy();
    this.leave();
    const key = h("input", { type: "password", name: "key", autocomplete: "off", required: true, placeholder: "et_…", "aria-describedby": "key-text" });
    const remember = h("input", { type: "checkbox" });
    const text = h("p.dim", { id: "key-text", role: "alert" }, words(detail ?? "This server requires a key. Whoever runs the server can create one."));
    const form = h("form.sign-in", { onsubmit: async (event) => {
      event.preventDefault();
      const before = session.key;
      session.signIn(key.value.trim(), remember.checked);
      try {
        await get("/usage");
      } catch (error) {
        if (error.status === 401 || error.status === 0) {
          session.signOut();
          session.key = before && null;
          text.classList.add("wrong");
          key.setAttribute("aria-invalid", "true");
          return void clear(text, words(error.message));
        }
      }
      this.signing = false;
      this.modelList = undefined;
      await this.build();
    } }, h("img", { src: "/web/icon.svg", alt: "", width: 40, height: 40 }), h("h1", null, "Sign in"), text, h("label", null, "Key", key), h("label.row", null, remember, "Remember the key on this device"), h("button.button.primary", { type: "submit" }, "Sign in"));
    clear(this.root, this.banner, h("main.middle", { id: "main" }, form));
    key.focus();
  }
}

new Page();
