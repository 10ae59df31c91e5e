// Pop-up menus.

import { h } from "./dom.js";

/** Opens a menu below `anchor`. `items` are `[label, function, disabled]`. */
export function menu(anchor, title, items) {
  document.querySelector(".menu")?.remove();
  const close = () => {
    el.remove();
    anchor.setAttribute("aria-expanded", "false");
    document.removeEventListener("pointerdown", outside, true);
  };
  const outside = (event) => el.contains(event.target) || close();
  const el = h("div.menu", { role: "menu", "aria-label": title }, h("div.menu-title", { role: "presentation" }, title), items.filter(Boolean).map(([label, run, disabled]) =>
    h("button", { type: "button", role: "menuitem", tabIndex: -1, disabled: !!disabled, onclick: () => (close(), anchor.focus(), run()) }, label)));
  el.addEventListener("keydown", (event) => {
    const all = [...el.querySelectorAll("button:not(:disabled)")], at = all.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to !== undefined) all.at(to % all.length)?.focus();
    else if (event.key === "Escape" || event.key === "Tab") close(), anchor.focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  document.body.append(el);
  const box = anchor.getBoundingClientRect();
  el.style.top = Math.min(box.bottom + 4, innerHeight - el.offsetHeight - 8) + "px";
  el.style.left = Math.max(8, Math.min(box.right - el.offsetWidth, innerWidth - el.offsetWidth - 8)) + "px";
  anchor.setAttribute("aria-expanded", "true");
  el.querySelector("button:not(:disabled)")?.focus();
  document.addEventListener("pointerdown", outside, true);
}
