// Command palette (Cmd+K): conversations, full-text search, actions.

import { h, clear, icon, words, ago, said } from "./dom.js";
import { get, post, session } from "./api.js";
import { snippet, nameOf, openHit, LOOK_AGAIN } from "./list.js";

export function palette(page) {
  if (document.querySelector(".palette")) return;
  const from = document.activeElement;
  const field = h("input", { type: "text", role: "combobox", placeholder: "Open a conversation, search, run a command", "aria-label": "Go anywhere", "aria-expanded": "true", "aria-controls": "palette-list", "aria-autocomplete": "list", autocomplete: "off", spellcheck: false });
  const list = h("div.options", { id: "palette-list", role: "listbox", "aria-label": "Results" });
  const none = h("p.dim.none", { role: "status" });
  const el = h("dialog.palette", { "aria-label": "Go anywhere" }, h("div.search-box", null, icon("search"), field), list, none);
  let options = [], at = 0, asking, timer;

  const commands = [
    ...(page.shown?.conversation ? page.shown.commands().map(([label, run]) => ({ label, run, kind: "do" })) : []),
    // The list comes a moment after the page.
    ...(page.list && page.may("writer") ? [{ label: "New conversation", run: () => page.list.create(), kind: "do" }, { label: "Import files", run: () => page.list.import(), kind: "do" }] : []),
    { label: "Usage", run: () => (location.hash = "#/usage"), kind: "view" },
    ...(page.shown?.conversation ? [["", "Timeline"], ["/projected", "Raw and projected"], ["/calls", "What the model saw"], ["/state", "State"], ["/proof", "Proof"]].map(([path, label]) => ({ label, run: () => (location.hash = `#/c/${page.shown.id}${path}`), kind: "view" })) : []),
    { label: "Keyboard shortcuts", run: () => page.help(), kind: "do" },
    ...(session.key ? [{ label: "Sign out", run: () => page.signOut(), kind: "do" }] : []),
  ];

  const close = () => el.close();
  const choose = (option) => (close(), option.run());
  const mark = () => {
    [...list.children].forEach((child, n) => child.setAttribute("aria-selected", String(n === at)));
    list.children[at]?.scrollIntoView({ block: "nearest" });
    if (options.length) field.setAttribute("aria-activedescendant", "option-" + at);
    else field.removeAttribute("aria-activedescendant");
  };
  const draw = (found) => {
    options = found;
    at = 0;
    clear(list, found.map((option, n) => h("div.option", { id: "option-" + n, role: "option", onclick: () => choose(option), onpointermove: () => at !== n && ((at = n), mark()) }, h("span.kind", null, option.kind), h("span.text", null, option.nodes ?? words(option.label)), option.note ? h("span.dim", null, words(option.note)) : null)));
    mark();
    clear(none);
  };
  const conversation = (one) => ({ kind: "open", label: nameOf(one), note: ago(said(one)), run: () => (location.hash = `#/c/${one.id}`) });

  const look = async (again) => {
    clearTimeout(timer);
    const query = field.value.trim().toLowerCase();
    const fits = commands.filter((one) => one.label.toLowerCase().includes(query));
    const known = (page.list?.items ?? []).filter((one) => nameOf(one).toLowerCase().includes(query)).slice(0, query ? 6 : 9).map(conversation);
    const place = /^#?(\d+)$/.exec(query);
    const places = place && page.shown ? [{ kind: "place", label: `Turn #${place[1]} of this conversation`, run: () => (location.hash = `#/c/${page.shown.id}@${place[1]}`) }] : [];
    if (!again) draw([...places, ...known, ...fits]);
    asking?.abort();
    if (query.length < 2) return;
    const { signal } = (asking = new AbortController());
    try {
      const [titles, { data, behind }] = await Promise.all([get("/conversations", { query, limit: 6 }, signal), post("/recall", { query, limit: 12 }, signal)]);
      if (signal.aborted) return;
      const hits = data.map((one) => ({ kind: "text", nodes: snippet(one.snippet, 16), note: one.title, run: () => openHit(one) }));
      draw([...places, ...titles.data.map(conversation), ...fits, ...hits]);
      // What was said a moment ago is found as soon as it is indexed, unless somebody has begun to choose.
      if (behind?.events) timer = setTimeout(() => at === 0 && look(true), LOOK_AGAIN);
      if (!options.length) clear(none, words(`Nothing matches “${field.value.trim()}”.`));
    } catch { /* the old results stay */ }
  };

  field.addEventListener("input", () => (clearTimeout(timer), (timer = setTimeout(look, 60))));
  el.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") at = Math.min(at + 1, options.length - 1);
    else if (event.key === "ArrowUp") at = Math.max(at - 1, 0);
    else if (event.key === "Enter") return event.preventDefault(), options[at] && choose(options[at]);
    else return;
    event.preventDefault();
    mark();
  });
  el.addEventListener("click", (event) => event.target === el && close());
  el.addEventListener("close", () => (clearTimeout(timer), asking?.abort(), el.remove(), from?.focus?.({ preventScroll: true })));
  document.body.append(el);
  el.showModal();
  field.focus();
  look();
}
