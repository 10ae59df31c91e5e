// Usage: tokens by day, model and conversation, and their cost at user-defined prices.

import { h, svg, clear, words, number, plural, short, day, iconButton, state as notice } from "./dom.js";
import { get, memory } from "./api.js";

const TURNS_MAX = 2000;

export function view(page) {
  const body = h("div.scroll"), days = new Map(), models = new Map(), talks = [];
  let prices = memory.get("prices", {});

  async function read() {
    const { data } = await get("/conversations", { limit: 40 });
    const usage = await get("/usage").catch(() => null);
    for (const [n, one] of data.entries()) {
      if (n % 5 === 4) clear(body, notice("Counting…", `${n + 1} of ${data.length} conversations`));
      const sum = { one, prompt: 0, completion: 0, by: {}, first: null, last: null };
      let before, seen = 0;
      while (seen < TURNS_MAX) {
        const { data: turns } = await get(`/conversations/${one.id}/turns`, { order: "desc", limit: 500, before });
        for (const turn of turns) {
          if (!turn.tokens || (one.parent && turn.seq <= one.parent.at_seq)) continue;
          const { prompt = 0, completion = 0 } = turn.tokens, when = (turn.occurred_at ?? turn.created).slice(0, 10), model = turn.model ?? "unknown";
          sum.prompt += prompt ?? 0;
          sum.completion += completion ?? 0;
          const mine = (sum.by[model] ??= { prompt: 0, completion: 0 });
          mine.prompt += prompt ?? 0;
          mine.completion += completion ?? 0;
          const time = turn.occurred_at ?? turn.created;
          sum.first = time;
          sum.last ??= time;
          for (const [map, key] of [[days, when], [models, model]]) {
            const now = map.get(key) ?? { prompt: 0, completion: 0, calls: 0, by: {} };
            now.prompt += prompt ?? 0;
            now.completion += completion ?? 0;
            now.calls++;
            now.by[model] = (now.by[model] ?? 0) + (prompt ?? 0) + (completion ?? 0);
            map.set(key, now);
          }
        }
        seen += turns.length;
        if (turns.length < 500) break;
        before = turns.at(-1).seq;
      }
      if (sum.prompt + sum.completion) talks.push(sum);
    }
    draw(data.length, usage);
  }

  const cost = (model, { prompt, completion }) => (prices[model] ? (prompt * prices[model].in + completion * prices[model].out) / 1e6 : null);
  const total = (sum) => Object.entries(sum.by).reduce((all, [model, part]) => (cost(model, part) === null ? all : (all ?? 0) + cost(model, part)), null);
  const money = (value) => (value === null ? "" : value.toFixed(2));

  function draw(count, usage) {
    const names = [...models.keys()].sort((a, b) => models.get(b).prompt - models.get(a).prompt);
    const colour = (name) => ["s-tail", "s-recalled", "s-state", "s-facts", "s-input", "s-digests", "s-system"][names.indexOf(name) % 7];
    const head = (...texts) => h("thead", null, h("tr", null, texts.map((text, n) => h("th", { scope: "col", class: n ? "right" : "" }, text))));
    clear(body,
      h("div.row", null, iconButton("back", "Back to the list", () => (location.hash = "#/"), { class: "only-narrow" }), h("h1.title", null, "Usage")),
      usage ? h("div.numbers", null, [["Conversations", usage.conversations], ["Turns", usage.turns], ["Bytes of events", usage.bytes], ["Assets", usage.assets]].map(([label, value]) => h("div.meter", null, h("span.dim", null, label), h("b", null, number(value))))) : null,
      days.size ? [
        h("section.panel", null, h("h2", null, "Tokens by day"), h("div.legend", null, names.map((name) => h("span", null, h("i", { class: colour(name) }), words(name)))), plot(days, colour)),
        h("section.panel", null, h("h2", null, "By model"), h("p.dim", null, "Prices are per million tokens, in any currency, and stay in this browser."), h("div.table", { tabIndex: 0, role: "region", "aria-label": "By model" }, h("table", null, head("Model", "Calls", "In", "Out", "Price in", "Price out", "Cost"), h("tbody", null, names.map((name) => {
          const sum = models.get(name), price = (side) => h("input.price", { type: "number", min: 0, step: "any", value: prices[name]?.[side] ?? "", "aria-label": `Price ${side} of ${name}`, onchange: (event) => {
            prices = { ...prices, [name]: { in: 0, out: 0, ...prices[name], [side]: Number(event.target.value) } };
            memory.set("prices", prices);
            draw(count, usage);
          } });
          return h("tr", null, h("td", null, h("i.key", { class: colour(name) }), words(name)), [sum.calls, sum.prompt, sum.completion].map((value) => h("td.right", null, number(value))), h("td", null, price("in")), h("td", null, price("out")), h("td.right", null, money(cost(name, sum))));
        }))))),
        h("section.panel", null, h("h2", null, "By conversation"), h("div.table", { tabIndex: 0, role: "region", "aria-label": "By conversation" }, h("table", null, head("Conversation", "Duration", "In", "Out", "Cost"),
          h("tbody", null, talks.sort((a, b) => b.prompt - a.prompt).map((sum) => h("tr", null, h("td", null, h("a", { href: `#/c/${sum.one.id}` }, words(sum.one.title || "Untitled"))), [span(sum.first, sum.last), number(sum.prompt), number(sum.completion), money(total(sum))].map((value) => h("td.right", null, value)))))))),
        h("p.dim", null, `From the ${plural(count, "conversation")} that changed last, up to ${number(TURNS_MAX)} turns of each.`),
      ] : notice("No token counts yet", "They come from what providers report for each answer."));
  }

  clear(body, notice("Counting…"));
  read().catch((error) => clear(body, notice("The usage cannot be read", error.message)));
  return { el: body };
}

/** Time between two answers, rounded. */
function span(from, to) {
  const minutes = Math.round((new Date(to) - new Date(from)) / 60_000);
  return minutes < 1 ? "" : minutes < 120 ? `${minutes} min` : minutes < 48 * 60 ? `${Math.round(minutes / 60)} h` : `${Math.round(minutes / 1440)} days`;
}

/** Stacked bars by day and model. */
function plot(days, colour) {
  const keys = [...days.keys()].sort(), first = new Date(keys[0]), last = new Date(keys.at(-1));
  const all = [];
  for (let at = new Date(Math.max(first, last - 59 * 86_400_000)); at <= last; at = new Date(+at + 86_400_000)) all.push(at.toISOString().slice(0, 10));
  const width = 720, height = 180, most = Math.max(...all.map((key) => (days.get(key) ? days.get(key).prompt + days.get(key).completion : 0)), 1), step = (width - 44) / all.length;
  return h("figure.plot", null, svg("svg", { viewBox: `0 0 ${width} ${height + 24}`, role: "img", "aria-label": `Tokens by day, ${all.length} days, at most ${number(most)}` },
    [0, 0.5, 1].map((part) => [svg("line", { x1: 44, x2: width, y1: height - part * (height - 12), y2: height - part * (height - 12), class: "grid" }), svg("text", { x: 38, y: height - part * (height - 12) + 4, "text-anchor": "end" }, short(Math.round(most * part)))]),
    all.flatMap((key, n) => {
      let y = height;
      return [...Object.entries(days.get(key)?.by ?? {}).map(([name, tokens]) => {
        const size = (tokens / most) * (height - 12);
        y -= size;
        return svg("rect", { x: 44 + n * step + step * 0.14, y, width: Math.min(step * 0.72, 46), height: Math.max(0.5, size), class: "f-" + colour(name) }, svg("title", {}, `${key}, ${name}: ${number(tokens)} tokens`));
      }), all.length <= 14 || n % Math.ceil(all.length / 10) === 0 ? svg("text", { x: 44 + n * step + Math.min(step * 0.5, 23 + step * 0.14), y: height + 17, "text-anchor": "middle" }, day(key)) : null];
    })));
}
