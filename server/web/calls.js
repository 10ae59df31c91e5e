// What the model saw: the receipt of each call by section, and the difference to the previous call.

import { h, clear, words, when, number, plural, button, state as notice } from "./dom.js";
import { get } from "./api.js";
import { bar, sections, SECTIONS } from "./timeline.js";
import { message } from "./projected.js";
import { markdown, diff } from "./text.js";
import { parts, plainText, toolNames } from "./message.js";

const systemTexts = (context) => [context.system].flat().filter(Boolean).map((one) => one.text ?? (typeof one === "string" ? one : JSON.stringify(one)));
/** A prompt as lines of text, for the diff. */
const flat = (context) => [...systemTexts(context), ...context.messages.map((one) => `${one.role}: ${plainText(parts(one))}`)].join("\n");

/** Tokens of a prompt by section, headings included, and those of the frame around the messages. */
function bySection({ by_section: counts, used }) {
  const found = SECTIONS.filter((name) => counts[name]).map((name) => [name, counts[name]]), frame = used - found.reduce((sum, [, tokens]) => sum + tokens, 0);
  return frame > 0 ? [...found, ["frame", frame]] : found;
}

/** What was left out, as a sentence. */
const leftOut = ({ turns, reason }) => (!turns ? reason : reason.startsWith("they do ") ? `${plural(turns, "turn")} ${turns === 1 ? "does" : "do"} ${reason.slice(8)}` : `${plural(turns, "turn")}: ${reason}`);

const share = (part, whole) => Math.round((part / whole) * 100) + "%";

export function view(frame, at) {
  const list = h("div.calls-list", { role: "list", "aria-label": "Model calls" }), detail = h("div.call-detail");
  const legend = h("div.legend", { "aria-hidden": "true" }), el = h("div.scroll.calls", null, legend, h("div.split", null, list, detail));
  const abort = new AbortController();
  let receipts = [], places = new Map(), chosen = at, largest = 1;
  // For a link to an old call, start shortly after it.
  let next = at ? at + 500 : undefined;

  /** Reads further receipts, newest first. */
  async function more() {
    const enough = receipts.length + 25;
    do {
      const page = await get(`/conversations/${frame.id}/events`, { kinds: "context.receipt", order: "desc", limit: 25, from: next }, abort.signal);
      receipts.push(...page.data.filter((event) => event.body));
      next = Number(page.next ?? 0);
    } while (next > 0 && receipts.length < enough);
    draw();
  }

  /** Finds the seqs of what a call contained, in the 2,000 events before it. */
  async function locate({ seq, body }) {
    const isKnown = () => body.blocks.every(({ source }) => typeof source === "string" || source.every((id) => id.startsWith("fact_") || places.has(id)));
    for (let to = seq; to > Math.max(0, seq - 2000) && !isKnown(); to -= 500) {
      const from = Math.max(1, to - 499);
      const { data } = await get(`/conversations/${frame.id}/events`, { from, limit: to - from + 1 }, abort.signal);
      for (const event of data) places.set(event.id, event.seq);
    }
  }

  function draw() {
    if (!receipts.length) return clear(el, notice("No model call is recorded", "A receipt is written whenever a model is asked here, or a context is recorded."));
    chosen ??= receipts[0].seq;
    largest = Math.max(1, ...receipts.map((one) => one.body.used));
    const present = new Set(receipts.flatMap((one) => sections(one.body).map(([name]) => name)));
    clear(legend, SECTIONS.filter((name) => present.has(name)).map((name) => h("span", null, h("i", { class: "s-" + name }), name)));
    clear(list, receipts.map((one) => {
      const { used, model, renderer } = one.body;
      return h("div", { role: "listitem" }, h("a.call-entry", { href: `#/c/${frame.id}/calls/${one.seq}`, "aria-current": one.seq === chosen ? "page" : null },
        h("span.row", null, h("b", null, words(model ?? renderer)), h("span.grow"), h("span.dim", null, when(one.at))),
        h("span.wide", { vars: { width: Math.max(8, (used / largest) * 100) + "%" } }, bar(sections(one.body), used)),
        h("span.dim", null, `#${one.seq} · ${number(used)} tokens`)));
    }), next > 0 ? button("Show earlier calls", () => more()) : null);
    const one = receipts.find((event) => event.seq === chosen);
    if (one) show(one);
    else clear(detail, notice("No receipt there", `Place #${chosen} is not a model call.`));
  }

  const replay = (seq) => get(`/conversations/${frame.id}/contexts/${seq}`, null, abort.signal).catch((error) => ({ error: error.message }));

  async function show(event) {
    const [context] = await Promise.all([replay(event.seq), locate(event).catch(() => {})]);
    if (chosen !== event.seq) return;
    const { body } = event, index = receipts.indexOf(event), before = receipts[index + 1];
    const { blocks, used, policy } = body;
    const sums = context.tokens ? bySection(context.tokens) : sections(body);
    const old = new Set(before?.body.blocks.map((one) => one.sha256)), now = new Set(blocks.map((one) => one.sha256));
    let same = 0, kept = 0;
    while (before && same < blocks.length && blocks[same].sha256 === before.body.blocks[same]?.sha256) kept += blocks[same++].tokens;
    const prompt = h("div");
    const link = (source) => (typeof source === "string" ? h("span.dim", null, source === "given" ? "handed in" : "made for this call") : source.map((id) => (places.has(id) ? [h("a", { href: `#/c/${frame.id}@${places.get(id)}` }, "#" + places.get(id)), " "] : [h("span.dim", null, id.startsWith("fact_") ? "fact" : "earlier"), " "])));
    clear(detail,
      h("h2", null, words(body.model ?? body.renderer), h("span.dim", null, ` #${event.seq}, `, when(event.at))),
      h("p", null, h("b", null, number(used)), ` of ${number(policy?.token_budget ?? used)} tokens`, h("span.dim", null, `, counted by ${body.tokenizer}, written for ${body.renderer}`, body.projection ? [", projected by ", h("code", null, words(body.projection.policy))] : "")),
      h("div.big-bar", null, bar(sums, Math.max(used, policy?.token_budget ?? used))),
      h("table.blocks", null, h("thead", null, h("tr", null, ["Section", "Tokens", "Share"].map((text, n) => h("th", { scope: "col", class: n ? "right" : "" }, text)))), h("tbody", null, sums.map(([name, tokens]) => h("tr", null, h("td", null, h("i.key", { class: "s-" + name }), name, name === "frame" ? h("span.dim", null, ": around the messages") : null), h("td.right", null, number(tokens)), h("td.right", null, share(tokens, used)))), h("tr.total", null, h("td", null, "Total"), h("td.right", null, number(used)), h("td.right", null, "100%")))),
      before ? h("section", null, h("h3", null, "Compared with the previous call"), h("p", null, !same ? "The first block is different already, so a prompt cache covers nothing of it." : [same === 1 ? "The first block is the same: " : `The first ${same} blocks are the same: `, h("b", null, number(kept)), ` tokens (${share(kept, used)}) that a prompt cache still covers.`]),
        h("div.big-bar", null, h("span.bar", { role: "img", "aria-label": `${kept} of ${used} tokens unchanged` }, h("i.s-state", { vars: { width: (kept / used) * 100 + "%" } })))) : h("p.dim", null, "This is the first recorded call; there is nothing to compare it with."),
      h("section", null, h("h3", null, "Included"), h("p.dim", null, "Tokens of the texts themselves; the headings of a section count in the table above."), h("div.table", { tabIndex: 0, role: "region", "aria-label": "Blocks" }, h("table.blocks", null, h("thead", null, h("tr", null, h("th", { scope: "col" }, "Section"), h("th", { scope: "col" }, "From"), h("th.right", { scope: "col" }, "Tokens"), h("th", { scope: "col" }, before ? "Change" : ""))),
        h("tbody", null, blocks.map((one) => h("tr", { class: before && !old.has(one.sha256) ? "is-new" : "" }, h("td", null, h("i.key", { class: "s-" + one.section }), one.section), h("td", null, link(one.source)), h("td.right", null, number(one.tokens)), h("td", null, before && !old.has(one.sha256) ? h("span.badge.live", null, "new") : ""))),
          before?.body.blocks.filter((one) => !now.has(one.sha256)).map((one) => h("tr.is-gone", null, h("td", null, h("i.key", { class: "s-" + one.section }), one.section), h("td", null, link(one.source)), h("td.right", null, number(one.tokens)), h("td", null, h("span.badge.bad", null, "gone")))))))),
      context.error ? h("p.dim", null, words(context.error)) : [h("h3", null, "Left out"), context.left_out?.length ? h("ul", null, context.left_out.map((one) => h("li", null, h("b", null, one.section), ": ", words(leftOut(one))))) : h("p.dim", null, "Nothing; everything fit.")],
      h("div.row", null, button("Show the prompt", (click) => {
        click.target.disabled = true;
        if (context.error) return clear(prompt, h("p", null, words(context.error)));
        const system = systemTexts(context);
        const names = toolNames(context.messages);
        clear(prompt, system.length ? h("div.msg.system", null, h("div.msg-head", null, h("b", null, "system")), system.map((text) => h("div.md", null, markdown(text)))) : null, context.messages.map((one) => message(one, { names })));
      }), before ? button("Compare with the previous prompt", async (click) => {
        click.target.disabled = true;
        const then = await replay(before.seq);
        clear(prompt, then.error || context.error ? h("p", null, words(then.error ?? context.error)) : diff(flat(then), flat(context), `#${before.seq} and #${event.seq}`));
        click.target.disabled = false;
      }) : null), prompt);
  }

  clear(detail, notice("Loading…"));
  more().catch((error) => error.name !== "AbortError" && clear(el, notice("The receipts cannot be read", error.message)));
  return { el, destroy: () => abort.abort(), update: (seq) => ((chosen = seq), draw()), changed(event) {
    if (event.kind !== "context.receipt") return;
    places.set(event.id, event.seq);
    receipts.unshift(event);
    draw();
  } };
}
