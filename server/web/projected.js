// Raw beside projected: what a policy hides from the next request, and how many tokens that saves.

import { h, clear, words, number, plural, state as notice, button, copy } from "./dom.js";
import { get, post, memory, oneAtATime } from "./api.js";
import { markdown, code } from "./text.js";
import { parts, gist, plainText, toolNames, toolOf } from "./message.js";

const POLICIES = {
  raw: "Everything, as it was said.",
  clean_tool_repair: "Hides failed calls that a later call repaired.",
  squash_failed_calls: "Hides every failed call.",
  summary_prefix: "A summary instead of everything but the end.",
  reachability_gc: "Shortens results that nothing refers to any more.",
  clear_tool_uses: "Shortens the oldest results once the view is large.",
};
const START = { summary_prefix: { keep_last: 6 }, reachability_gc: { root_window: 8, min_chars: 200 }, clear_tool_uses: { trigger: 0, keep: 2, clear_at_least: 0 } };

/** Number of messages rendered at once. */
const MOST = 500;

export function view(frame) {
  const saved = memory.get("projection", { policy: "clean_tool_repair", signatures: "per_turn" });
  const policy = h("select", { id: "policy" }, Object.keys(POLICIES).map((name) => h("option", { value: name, selected: name === saved.policy }, name)));
  const signed = h("select", { id: "signed" }, [["true", "never touch the view"], ["per_turn", "keep signed turns"], ["false", "ignore signatures"]].map(([value, label]) => h("option", { value, selected: value === saved.signatures }, label)));
  const options = h("textarea.mono", { id: "options", rows: 2, spellcheck: false, value: JSON.stringify(START[saved.policy] ?? {}) });
  const text = h("p.dim");
  const numbers = h("div.numbers"), pairs = h("div.pairs");
  const el = h("div.scroll.projected", null,
    h("div.controls", null, h("label", { htmlFor: "policy" }, "Policy", policy), h("label", { htmlFor: "signed" }, "Signed reasoning", signed), h("label.grow", { htmlFor: "options" }, "Further options, as JSON", options)),
    text, numbers, pairs);

  let asking, failed = false, shownMost = MOST;
  async function show() {
    asking?.abort();
    const { signal } = (asking = new AbortController());
    memory.set("projection", { policy: policy.value, signatures: signed.value });
    text.textContent = POLICIES[policy.value];
    let more;
    try {
      more = JSON.parse(options.value || "{}");
      options.removeAttribute("aria-invalid");
    } catch {
      options.setAttribute("aria-invalid", "true");
      text.textContent = "The options are not valid JSON.";
      return;
    }
    if (!pairs.firstChild || failed) clear(numbers), clear(pairs, notice("Loading…"));
    failed = false;
    pairs.setAttribute("aria-busy", "true");
    const path = `/conversations/${frame.id}/project`;
    const respect = { true: true, false: false }[signed.value] ?? signed.value;
    try {
      const [raw, seen] = await Promise.all([post(path, { policy: "raw" }, signal), post(path, { ...more, policy: policy.value, respect_provider_signatures: respect }, signal)]);
      if (signal.aborted) return;
      await draw(raw, seen, signal);
    } catch (error) {
      if (error.name === "AbortError") return;
      failed = true;
      clear(numbers);
      clear(pairs, notice("The projection failed", error.message, button("Try again", show)));
    }
    pairs.removeAttribute("aria-busy");
  }

  /** Seqs of the last messages, by their index. A message that equals no turn has none. */
  async function placesOf(messages, through, signal) {
    const turns = new Map(), places = new Map(), from = Math.max(0, messages.length - shownMost);
    for (let before, left = messages.length - from; left > 0;) {
      const { data, next } = await get(`/conversations/${frame.id}/turns`, { after: through, before, order: "desc", limit: 1000 }, signal);
      for (const turn of data) {
        const key = JSON.stringify(parts(turn));
        turns.set(key, [...(turns.get(key) ?? []), turn.place ?? turn.seq]);
      }
      left -= data.length;
      before = next;
      if (!next) break;
    }
    for (let n = messages.length - 1; n >= from; n--) places.set(n, turns.get(JSON.stringify(parts(messages[n])))?.shift());
    return places;
  }

  async function draw(raw, seen, signal) {
    if (!raw.messages.length) return clear(numbers), clear(pairs, notice("Nothing to project", "Every turn is covered by the checkpoint, or there are no messages yet."));
    const names = toolNames(raw.messages), through = frame.conversation.checkpoint?.through_seq;
    const places = await placesOf(raw.messages, through, signal).catch((error) => { if (error.name === "AbortError") throw error; return new Map(); });
    const cost = (message) => Math.ceil(JSON.stringify(message).length / 4);
    const before = raw.messages.reduce((sum, one) => sum + cost(one), 0), after = seen.messages.reduce((sum, one) => sum + cost(one), 0);
    const cut = seen.first_changed_index ?? raw.messages.length;
    const covered = raw.messages.slice(0, cut).reduce((sum, one) => sum + cost(one), 0);
    const meter = (label, value, total, note) => h("div.meter", null, h("span.dim", null, label), h("b", null, number(value)), h("span.bar", { role: "img", "aria-label": `${label}: ${value} of ${total}` }, h("i.s-tail", { class: value ? "" : "none", vars: { width: (total ? value / total : 0) * 100 + "%" } })), h("span.dim", null, note));
    clear(numbers,
      meter("Tokens, raw, estimated", before, before, plural(raw.messages.length, "message") + (through ? ` after #${through}` : "")),
      meter("Tokens, projected, estimated", after, before, [`${seen.kept_count} kept`, seen.dropped_count && `${seen.dropped_count} hidden`, seen.redacted_count && `${seen.redacted_count} shortened`].filter(Boolean).join(", ")),
      meter("Prompt cache", covered, before, cut < raw.messages.length ? `covers ${cut} of ${plural(raw.messages.length, "message")}` : "covers everything"),
      h("div.meter", null, h("span.dim", null, "Prefix hash"), h("button.quiet.hash", { type: "button", title: "Copy", onclick: () => copy(seen.prefix_hash) }, seen.prefix_hash.slice(0, 23) + "…"), seen.reason === seen.policy || seen.provider_safety_blocked ? null : h("span.dim", null, words(seen.reason.replaceAll("_", " ")))));
    if (seen.provider_safety_blocked) numbers.append(h("p.blocked", null, "The policy would have broken signed reasoning, so the view is raw. Choose “keep signed turns” to apply it to the rest."));
    const shown = new Map(seen.source_indices.map((source, n) => [source, seen.messages[n]]));
    const gone = new Set(seen.dropped_indices);
    const pointers = new Map(seen.redaction_pointers.map((one) => [one.source_index, one]));
    const checkpoint = through ? h("p.covered", null, "A checkpoint stands for the turns through ", h("a", { href: `#/c/${frame.id}@${through}` }, "#" + through), " in every prompt; they are not among these messages. ", h("a", { href: `#/c/${frame.id}/state` }, "Show the checkpoint")) : null;
    const rows = [checkpoint, h("div.pair.heads", { "aria-hidden": "true" }, h("b", null, "Raw"), h("b", null, "Projected"))];
    seen.source_indices.forEach((source, n) => source === null && rows.push(h("div.pair", null, h("div.hole", null, "not in the log"), message(seen.messages[n], { note: "added by the policy", side: "Projected", names }))));
    const link = (n) => places.get(n) && h("a.dim", { href: `#/c/${frame.id}@${places.get(n)}` }, "#" + places.get(n));
    const from = Math.max(0, raw.messages.length - shownMost);
    if (from) rows.push(button(`Show ${number(Math.min(from, MOST))} earlier messages`, () => ((shownMost += MOST), show()), { class: "earlier" }));
    raw.messages.forEach((one, n) => {
      if (n < from) return;
      const isGone = gone.has(n) && !shown.has(n), pointer = pointers.get(n), other = shown.get(n);
      const changed = other && JSON.stringify(other) !== JSON.stringify(one);
      const why = isGone ? `hidden by ${seen.policy}, about ${plural(cost(one), "token")}` : pointer ? `${pointer.reason.replaceAll("_", " ")}: saves about ${plural(pointer.estimated_tokens_reclaimed, "token")}` : changed ? "a part of it is hidden" : null;
      const same = !isGone && !pointer && !changed;
      rows.push(h("div.pair", { class: isGone ? "gone-pair" : same ? "same-pair" : "changed-pair" }, message(one, { place: link(n), side: same ? "Raw and projected" : "Raw", names }), isGone ? h("div.hole", null, words(why)) : message(other, { place: link(n), note: why, side: "Projected", names })));
    });
    clear(pairs, rows);
  }

  policy.addEventListener("change", () => {
    options.value = JSON.stringify(START[policy.value] ?? {});
    show();
  });
  signed.addEventListener("change", show);
  const refresh = oneAtATime(show);
  let timer, refreshing;
  options.addEventListener("input", () => (clearTimeout(timer), (timer = setTimeout(show, 250))));
  show();
  return { el, destroy: () => asking?.abort(), changed: () => (refreshing ??= setTimeout(() => ((refreshing = undefined), refresh()), 600)), update() {} };
}

/** A compact view of a message: a link to its `place`, which `side` it is on, a `note`, the `names` of tools by the ids of their calls. */
export function message(one, { place, side, note, names }) {
  const list = parts(one), tool = toolOf(list, names);
  return h("div.msg", { class: one.role ?? "" },
    h("div.msg-head", null, side ? h("span.side", null, side) : null, h("b", null, words(tool ?? one.role ?? one.type ?? "message")), tool && tool !== "tool" ? h("span.dim", null, "tool") : null, place, note ? h("span.badge", null, words(note)) : null),
    list.map((part) => {
      if (part.kind === "text") return part.text.length > 900 ? h("details.md", null, h("summary", null, words(part.text.slice(0, 240) + "…")), markdown(part.text)) : h("div.md", null, markdown(part.text));
      if (part.kind === "thinking") return h("p.dim", null, "Thinking: ", words(part.text.slice(0, 160) || "encrypted"));
      if (part.kind === "call") return h("details", null, h("summary", null, h("b.tool-name", null, words(part.name)), h("span.gist", null, words(gist(part.input)))), code(typeof part.input === "string" ? part.input : JSON.stringify(part.input ?? {}, null, 2), "json"));
      if (part.kind === "result") {
        const text = plainText(part.parts);
        return h("details", null, h("summary", null, h("span.badge", { class: part.failed ? "bad" : "" }, part.failed ? "failed" : "result"), h("span.gist", null, words(text.split("\n")[0].slice(0, 160)))), code(text));
      }
      return h("p.dim", null, part.kind === "image" ? "Picture" : part.kind);
    }),
    list.length ? null : h("p.dim", null, "Empty."));
}
