// Element builders and small widgets. Content only ever becomes text nodes; nothing in the page parses text as HTML.

/** Creates an element: `h("a.link", {href, onclick}, "text", node)`. */
export function h(tag, props, ...children) {
  const [name, ...classes] = tag.split(".");
  const el = document.createElement(name || "div");
  if (classes.length) el.className = classes.join(" ");
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) el.addEventListener(key.slice(2), value);
    else if (key === "data") Object.assign(el.dataset, value);
    else if (key === "vars") for (const [k, v] of Object.entries(value)) el.style.setProperty(k, v);
    else if (key === "class") el.classList.add(...value.split(" ").filter(Boolean));
    else if (key in el && !key.startsWith("aria") && key !== "role" && key !== "list") el[key] = value;
    else el.setAttribute(key, value === true ? "" : value);
  }
  add(el, children);
  return el;
}

export function add(el, children) {
  for (const child of children.flat(9)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    el.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return el;
}

export const clear = (el, ...children) => (el.replaceChildren(), add(el, children));

/** The key of shortcuts. */
export const MOD = /Mac/.test(navigator.platform) ? "⌘" : "Ctrl";

const SVG = "http://www.w3.org/2000/svg";
export function svg(tag, attributes, ...children) {
  const el = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes ?? {})) el.setAttribute(key, value);
  return add(el, children);
}

const ICONS = {
  search: "M11 11l4 4M7 12.5a5.5 5.5 0 1 1 0-11 5.5 5.5 0 0 1 0 11z",
  talk: "M2.5 3h11v7.5h-6L4.5 13v-2.5h-2z",
  back: "M10 3L5 8l5 5",
  more: "M3 8h.01M8 8h.01M13 8h.01",
  plus: "M8 3v10M3 8h10",
  close: "M4 4l8 8M12 4l-8 8",
  send: "M8 13V3M3.5 7.5L8 3l4.5 4.5",
  stop: "M4.5 4.5h7v7h-7z",
  down: "M8 3v10M3.5 8.5L8 13l4.5-4.5",
  last: "M8 2v8M4.5 7L8 10.5 11.5 7M4 13.5h8",
  up: "M8 13V3M3.5 7.5L8 3l4.5 4.5",
  pin: "M8 10v4.5M4.5 10h7L10 7V2.5H6V7z",
  fork: "M4 2v12M4 9c6 0 8-1 8-6M9.5 5L12 2.5 14.5 5",
  check: "M3 8.5l3.5 3.5L13 4.5",
  cross: "M4 4l8 8M12 4l-8 8",
  tool: "M2.5 13.5l5-5M9 3a4 4 0 0 0 4.5 5.2L9.8 12 4 6.2 7.8 2.5z",
  clock: "M8 4v4l2.5 2M8 14.5a6.5 6.5 0 1 1 0-13 6.5 6.5 0 0 1 0 13z",
  eye: "M1.5 8S4 3.5 8 3.5 14.5 8 14.5 8 12 12.5 8 12.5 1.5 8 1.5 8zM8 10a2 2 0 1 0 0-4 2 2 0 0 0 0 4z",
  fold: "M4 6l4 4 4-4",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
  edit: "M10.5 2.5l3 3-8 8H2.5v-3z",
  chart: "M2.5 13.5V8M6.5 13.5v-11M10.5 13.5V6M14 13.5v-3",
  bolt: "M9 1.5L3 9h4.5L7 14.5 13 7H8.5z",
};
export const icon = (name) =>
  svg("svg", { viewBox: "0 0 16 16", class: "icon i-" + name, "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));

/** A button with an icon and an accessible name. */
export const iconButton = (name, label, onclick, props) =>
  h("button.icon-button", { type: "button", title: label, "aria-label": label, onclick, ...props }, icon(name));

export const button = (label, onclick, props) => h("button.button", { type: "button", onclick, ...props }, label);

// Invisible and bidirectional control characters are shown as code points.
const TRICKS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu;
// Zero-width joiners are legitimate in emoji and in several scripts.
const JOINED = /[\p{Extended_Pictographic}\p{M}\p{L}\ufe0f]/u;

/** Pieces of a string: text, or `{code}` for a misleading character. */
function pieces(text) {
  text = String(text);
  const found = [];
  let from = 0;
  for (const { index: at, 0: char } of text.matchAll(TRICKS)) {
    if (char === "\r") continue;
    if ((char === "\u200d" || char === "\u200c") && JOINED.test(text[at - 1] ?? "") && /[^\x00-\x7f]/.test(text[at - 1] ?? "")) continue;
    if (at > from) found.push(text.slice(from, at));
    found.push({ code: "U+" + char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0") });
    from = at + char.length;
  }
  if (from < text.length) found.push(text.slice(from));
  return found;
}

/** Text nodes for a string, with misleading characters made visible. */
export const words = (text) => pieces(text).map((one) => (one.code ? h("span.trick", { title: "Invisible or bidirectional control character" }, one.code) : document.createTextNode(one)));

/** The same as a string, where elements are not possible. */
export const plainly = (text) => pieces(text).map((one) => one.code ?? one).join("");

const NUMBER = new Intl.NumberFormat("en");
export const number = (n) => NUMBER.format(n);
export const plural = (n, one, many = one + "s") => `${number(n)} ${n === 1 ? one : many}`;
/** Tokens before and after a checkpoint; those before may be unknown for an import. */
export const shrunk = (before, after) => `${before ? number(before) + " → " : ""}${plural(after, "token")}`;
export const short = (n) => (n < 1000 ? String(n) : n < 10_000 ? (n / 1000).toFixed(1).replace(".0", "") + "k" : n < 1e6 ? Math.round(n / 1000) + "k" : (n / 1e6).toFixed(1) + "M");

const RELATIVE = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "narrow" });
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const YEAR = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", year: "numeric" });
const WHOLE = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "medium" });

/** Time of a conversation in lists: its latest turn, or its creation. */
export const said = (one) => one.last_said ?? one.created;

/** Relative time. */
export function ago(time, now = Date.now()) {
  const seconds = (new Date(time) - now) / 1000;
  if (seconds > -50) return "now";
  if (seconds > -3600) return RELATIVE.format(Math.round(seconds / 60), "minute");
  if (seconds > -86400) return RELATIVE.format(Math.round(seconds / 3600), "hour");
  if (seconds > -7 * 86400) return RELATIVE.format(Math.round(seconds / 86400), "day");
  return day(time);
}
/** The same for narrow places: `5m`, `3h`, `2d`. */
export function brief(time, now = Date.now()) {
  const minutes = Math.round((now - new Date(time)) / 60_000);
  return minutes < 1 ? "now" : minutes < 60 ? minutes + "m" : minutes < 1440 ? Math.round(minutes / 60) + "h" : minutes < 7 * 1440 ? Math.round(minutes / 1440) + "d" : day(time);
}
export const day = (time) => (new Date(time).getFullYear() === new Date().getFullYear() ? DAY : YEAR).format(new Date(time));

/** A `<time>`: only the clock time if it is today. */
export function when(time) {
  const date = new Date(time), today = date.toDateString() === new Date().toDateString();
  return h("time", { dateTime: time, title: WHOLE.format(date) }, (today ? "" : day(time) + ", ") + CLOCK.format(date));
}

/** Number of notices shown at once. */
const NOTICES_MAX = 3;
const notices = h("section.toasts", { "aria-label": "Notices", "aria-live": "polite" }), shown = new Map();
let focusedBefore;
notices.addEventListener("focusin", ({ relatedTarget: from }) => from && !notices.contains(from) && (focusedBefore = from));

/** The conversation or other view that is shown. */
const shownPlace = () => /^#\/(?:c\/)?(\w*)/.exec(location.hash)?.[1] ?? "";

/** Removes the notices about another conversation or view. The list has none of its own. */
export function forgetNotices() {
  const here = shownPlace();
  for (const one of [...shown.values()]) if (here && one.place !== here) one.gone();
}

/** Moves the notices to where they cover nothing: into the open dialog, above the composer, or to the end of the view. */
export function placeNotices() {
  const modal = document.querySelector("dialog:modal"), main = document.querySelector("main");
  const room = modal ?? (main?.checkVisibility() ? main : document.querySelector(".sidebar") ?? document.body);
  const next = modal ? modal.querySelector("h2")?.nextSibling : room.querySelector(".composer");
  if (next === notices || (next ? next.previousSibling : room.lastChild) === notices) return;
  if (next) next.before(notices);
  else room.append(notices);
}

/** Moves the focus to the newest notice, and returns whether there is one. */
export function focusNotice() {
  const first = notices.lastElementChild?.querySelector("button");
  first?.focus();
  return !!first;
}

/**
 * Shows a notice, also to screen readers. `action` is `[label, function]`, such as undo. A notice replaces the one with the same
 * `about`. Times in it are shown as people write them.
 */
export function toast(text, { error = false, action, about = text } = {}) {
  text = text.replace(/\b\d{4}-\d\d-\d\dT[\d:.]+Z/g, (time) => when(time).textContent);
  shown.get(about)?.gone();
  placeNotices();
  const el = h("div.toast", { class: error ? "bad" : "" }, h("span", null, words(text)));
  const gone = () => {
    const had = el.contains(document.activeElement);
    clearTimeout(timer);
    shown.delete(about);
    el.remove();
    if (had && !focusNotice()) focusedBefore?.focus?.({ preventScroll: true });
  };
  // It stays while it is pointed at or has the focus.
  const expire = () => (el.matches(":hover, :focus-within") ? (timer = setTimeout(expire, 2000)) : gone());
  let timer = setTimeout(expire, error || action ? 12_000 : 6000);
  if (action) el.append(button(action[0], () => (gone(), action[1]())));
  el.append(iconButton("close", "Dismiss", gone));
  el.addEventListener("keydown", (event) => event.key === "Escape" && (event.preventDefault(), event.stopPropagation(), gone()));
  const others = [...shown.values()];
  if (others.length === NOTICES_MAX) (others.find((one) => !one.matters) ?? others[0]).gone();
  shown.set(about, { gone, matters: error || action, place: shownPlace() });
  notices.append(el);
}

/** A modal dialog; resolves with the value of the chosen button, or with nothing if it is dismissed. */
export function dialog(title, body, buttons) {
  return new Promise((resolve) => {
    const from = document.activeElement;
    let busy = false;
    const problem = h("div.problem", { role: "alert" });
    const el = h("dialog.dialog", { "aria-label": title },
      h("form", { method: "dialog" }, h("h2", null, title), body, problem,
        h("div.row.end", null, buttons.map(([label, value, kind], n) =>
          // Enter in a field is the last button, which is the only one that submits.
          h("button.button", { type: n === buttons.length - 1 ? "submit" : "button", class: kind ?? "", value: label, onclick: async (event) => {
            event.preventDefault();
            if (busy && value !== null) return;
            busy = true;
            clear(problem);
            try {
              const answer = await (typeof value === "function" ? value() : value);
              if (answer === undefined && value !== undefined) return;
              el.answer = answer;
              el.close();
            } catch (error) {
              clear(problem, words(error.message));
            } finally {
              busy = false;
            }
          } }, label)))));
    el.addEventListener("close", () => (el.remove(), placeNotices(), from?.focus?.(), resolve(el.answer)));
    el.addEventListener("keydown", (event) => event.key === "Enter" && (event.metaKey || event.ctrlKey) && (event.preventDefault(), el.querySelector(".end").lastChild.click()));
    el.addEventListener("click", (event) => event.target === el && el.close());
    // It belongs to the view that it was opened in.
    addEventListener("hashchange", () => el.close(), { once: true });
    document.body.append(el);
    el.showModal();
  });
}

export const confirm = (title, text, label, kind = "danger") =>
  dialog(title, h("p", null, words(text)), [["Cancel", null], [label, true, kind]]);

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied", { about: "copy" });
  } catch {
    toast("The browser does not allow copying here", { error: true, about: "copy" });
  }
}

/** An empty, loading or error state. */
export const state = (title, text, ...actions) =>
  h("div.empty", { role: "status" }, h("h2", null, title), text && h("p", null, words(text)), actions.length ? h("div.row", null, actions) : null);
