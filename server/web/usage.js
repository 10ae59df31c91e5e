// Usage: tokens, calls, time and cost of model calls, by day, model and conversation.

import { h, svg, clear, words, number, plural, short, day, iconButton, button, state as notice } from "./dom.js";
import { get, memory } from "./api.js";
import { nameOf } from "./list.js";

const COLOURS = ["s-tail", "s-recalled", "s-state", "s-facts", "s-input", "s-digests", "s-system"];
const MEASURES = {
  tokens: ["Tokens", (one) => one.prompt + one.completion, short],
  calls: ["Calls", (one) => one.calls, short],
  time: ["Time", (one) => one.ms / 1000, (seconds) => duration(seconds * 1000)],
  cost: ["Cost", (one) => one.cost ?? 0, (value) => money(value)],
};
/** The most days that the API counts, ten years. */
const ALL = 3660;
const RANGES = [[7, "7 days"], [30, "30 days"], [90, "90 days"], [365, "1 year"], [ALL, "All time"]];

const money = (value) => (value === null || value === undefined ? "" : value && value < 0.01 ? "< 0.01" : value.toFixed(2));
const duration = (ms) => {
  const seconds = Math.round(ms / 1000);
  return !ms ? "" : seconds < 1 ? "< 1 s" : seconds < 120 ? seconds + " s" : seconds < 7200 ? Math.round(seconds / 60) + " min" : Math.round(seconds / 3600) + " h";
};
const modelOf = (one) => one.model ?? "unknown";
const sum = (rows) => rows.reduce((all, one) => ({ calls: all.calls + one.calls, prompt: all.prompt + one.prompt, completion: all.completion + one.completion, ms: all.ms + one.ms, cost: one.cost === null ? all.cost : (all.cost ?? 0) + one.cost }), { calls: 0, prompt: 0, completion: 0, ms: 0, cost: null });

/** Draws the usage of all conversations, or of one, with its controls. */
export async function plot(into, { conversation } = {}) {
  let { days = 30, measure = "tokens" } = memory.get("usage", {}), usage, earlier;
  const chips = (label, all, chosen, choose) => h("div.chips", { role: "group", "aria-label": label }, all.map(([value, text]) => h("button.chip", { type: "button", "aria-pressed": String(value === chosen), onclick: () => choose(value) }, text)));
  const read = async () => {
    try {
      usage = await get("/usage/tokens", { days, conversation });
      earlier = usage.days.length || days === ALL ? null : (await get("/usage/tokens", { days: ALL, conversation })).days.at(-1);
      draw();
    } catch (error) {
      clear(into, notice("The usage cannot be read", error.message));
    }
  };
  const keep = () => memory.set("usage", { days, measure });
  const choose = (value) => ((days = value), keep(), read());
  const none = () => (earlier ? notice("No model calls in this time", `The last one was on ${day(earlier.day)}.`, button("Show all time", () => choose(ALL))) : notice("No model calls yet", "Counts come from what providers report for each answer."));

  function draw() {
    const models = new Map();
    for (const row of usage.days) models.set(modelOf(row), [...(models.get(modelOf(row)) ?? []), row]);
    const totals = [...models].map(([name, rows]) => [name, sum(rows)]).sort(([, a], [, b]) => b.prompt + b.completion - a.prompt - a.completion);
    const colour = (name) => COLOURS[totals.findIndex(([one]) => one === name) % COLOURS.length];
    const priced = usage.prices.length > 0;
    const all = sum(usage.days), timed = all.ms > 0;
    const measures = Object.entries(MEASURES).filter(([name]) => (name !== "cost" || priced) && (name !== "time" || timed));
    if (!measures.some(([name]) => name === measure)) measure = "tokens";
    const table = (label, heads, rows) => h("div.table.counts-table", { tabIndex: 0, role: "region", "aria-label": label }, h("table", null, h("thead", null, h("tr", null, heads.map((text, n) => h("th", { scope: "col", class: n ? "right" : "" }, text)))), h("tbody", null, rows)));
    const cells = (one) => [number(one.calls), number(one.prompt), number(one.completion), ...(timed ? [duration(one.ms)] : []), ...(priced ? [money(one.cost)] : [])].map((value, n) => h("td.right", { data: { label: heads[n] } }, value));
    const heads = ["Calls", "Tokens in", "Tokens out", ...(timed ? ["Time"] : []), ...(priced ? ["Cost"] : [])];
    clear(into, h("section.panel", null,
      h("div.row.spread", null, chips("Measure", measures.map(([name, [label]]) => [name, label]), measure, (value) => ((measure = value), keep(), draw())), h("span.grow"),
        chips("Period", RANGES, days, choose)),
      usage.days.length ? [
        h("div.legend", null, totals.map(([name]) => h("span", null, h("i", { class: colour(name) }), words(name)))),
        bars(usage, measure, totals.map(([name]) => name), colour, roomIn(into), days === ALL)] : none()),
    usage.days.length ? [
      h("section.panel", null, h("h2", null, "By model"), table("By model", ["Model", ...heads], [totals.map(([name, one]) => h("tr", null, h("td", null, h("i.key", { class: colour(name) }), words(name)), cells(one))), totals.length > 1 ? h("tr.total", null, h("td", null, "Total"), cells(all)) : null]),
        priced || conversation ? null : h("p.dim", null, "For costs, give the server the prices of a million tokens in and out: ", h("code", null, `prices = ["${totals[0][0]} IN OUT"]`))),
      conversation ? null : h("section.panel", null, h("h2", null, "By conversation"), table("By conversation", ["Conversation", ...heads], usage.conversations.map((one) => h("tr", null, h("td", null, h("a", { href: `#/c/${one.conversation}` }, words(one.title ? nameOf(one) : (one.conversation.slice(0, 4) + "…" + one.conversation.slice(-8))))), cells(one))))),
    ] : null);
  }

  clear(into, notice("Counting…"));
  await read();
}

export function view() {
  const numbers = h("div.numbers"), body = h("div");
  get("/usage").then((usage) => clear(numbers, [["Conversations", number(usage.conversations)], ["Turns", number(usage.turns)], ["Text", bytes(usage.bytes)], ["Files", number(usage.assets), usage.assets && bytes(usage.asset_bytes)]].map(([label, value, size]) => h("div.meter", null, h("span.dim", null, label), h("span.row", null, h("b", null, value), size ? h("span.dim", null, size) : null)))), () => {});
  plot(body);
  return { el: h("div.scroll", null, h("div.row", null, iconButton("back", "Back to the list", () => (location.hash = "#/"), { class: "only-narrow" }), h("h1.title", null, "Usage")), numbers, body) };
}

const bytes = (n) => (n < 10_000 ? `${number(n)} B` : n < 1e7 ? `${number(Math.round(n / 1000))} KB` : `${number(Math.round(n / 1e6))} MB`);

/** Width of a drawing: all that is available, so that its text keeps its size, up to that of a panel. */
export const roomIn = (el) => Math.max(300, Math.min(820, el.clientWidth || 720));

const DAY_MS = 86_400_000;
const MONTH = new Intl.DateTimeFormat(undefined, { month: "short", year: "numeric", timeZone: "UTC" });
const dayOf = (ms) => new Date(ms).toISOString().slice(0, 10);

/** Days, weeks or months from one day through another, as many as can be told apart: their unit, the beginning of each, the one of a day, and their names. */
function periods(from, through) {
  const start = Date.parse(from), count = (Date.parse(through) - start) / DAY_MS + 1, all = [];
  if (count > 800) {
    for (let at = from.slice(0, 7); at <= through; at = dayOf(Date.parse(at + "-01") + 32 * DAY_MS).slice(0, 7)) all.push(at);
    return { unit: "month", all, of: (key) => key.slice(0, 7), name: (key) => MONTH.format(new Date(key)) };
  }
  const length = (count > 100 ? 7 : 1) * DAY_MS;
  for (let at = start; at <= Date.parse(through); at += length) all.push(dayOf(at));
  return { unit: count > 100 ? "week" : "day", all, of: (key) => dayOf(start + Math.floor((Date.parse(key) - start) / length) * length), name: count > 100 ? (key) => "week of " + day(key) : day };
}

/** Stacked bars by time and model: the whole time that was asked for, or from the first call on. */
function bars(usage, measure, names, colour, width, fromFirst) {
  const [label, value, format] = MEASURES[measure];
  const { unit, all, of, name } = periods(fromFirst ? usage.days[0].day : usage.from, usage.through), byTime = new Map(all.map((key) => [key, new Map()]));
  for (const row of usage.days) {
    const rows = byTime.get(of(row.day));
    rows.set(modelOf(row), sum([...(rows.has(modelOf(row)) ? [rows.get(modelOf(row))] : []), row]));
  }
  const total = (rows) => [...rows.values()].reduce((all, row) => all + value(row), 0);
  const height = 180, left = 52, labels = Math.floor(width / 90), most = Math.max(...[...byTime.values()].map(total)) || 1, step = (width - left) / all.length, wide = Math.min(step * 0.72, 46);
  // Small sums have as many decimals as half of the largest needs.
  const decimals = Math.max(2, Math.min(8, Math.ceil(-Math.log10(most / 2)) + 1));
  const line = (part) => height - part * (height - 12);
  const shapes = all.flatMap((key, n) => {
    let y = height;
    const middle = left + (n + 0.5) * step, rows = [...byTime.get(key)].sort(([a], [b]) => names.indexOf(a) - names.indexOf(b));
    return [...rows.filter(([, row]) => value(row) > 0).map(([model, row]) => {
      const size = Math.max(1, (value(row) / most) * (height - 12));
      y -= size;
      return svg("rect", { x: middle - wide / 2, y, width: wide, height: size, class: "f-" + colour(model) }, svg("title", {}, `${name(key)}, ${model}: ${number(row.prompt)} tokens in, ${number(row.completion)} out, ${plural(row.calls, "call")}${row.cost === null ? "" : ", " + money(row.cost)}`));
    }), n % Math.ceil(all.length / labels) === 0 ? svg("text", { x: middle > width - 36 ? width : middle, y: height + 17, "text-anchor": middle > width - 36 ? "end" : "middle" }, unit === "month" ? name(key) : day(key)) : null];
  });
  return h("figure.plot", null, svg("svg", { viewBox: `0 0 ${width} ${height + 24}`, role: "img", "aria-label": `${label} by ${unit}, ${plural(all.length, unit)}, at most ${format(most)}` },
    [0, 0.5, 1].map((part) => [svg("line", { x1: left, x2: width, y1: line(part), y2: line(part), class: "grid" }), svg("text", { x: left - 6, y: line(part) + 4, "text-anchor": "end" }, part ? (measure === "cost" ? (most * part).toFixed(decimals) : format(measure === "time" ? most * part : Math.round(most * part))) : "0")]), shapes),
    unit === "day" ? null : h("figcaption.dim", null, `One bar for each ${unit}.`));
}
