// State: pending approvals and tools, pins, checkpoints, facts, forks.

import { h, svg, clear, icon, words, when, number, plural, shrunk, button, toast, state as notice, dialog, confirm } from "./dom.js";
import { get, post, put, del, oneAtATime } from "./api.js";
import { nameOf } from "./list.js";
import { checkpoint as shownCheckpoint } from "./text.js";
import { parts, plainText, isRegenerated } from "./message.js";

export function view(frame) {
  const el = h("div.scroll.state"), abort = new AbortController(), { id } = frame;
  const read = (path, query) => get(path, query, abort.signal);

  /** Checkpoints, newest first; each names its predecessor. */
  async function lineage() {
    const found = [];
    let seq = frame.conversation.checkpoint?.seq;
    while (seq && found.length < 60) {
      const { data: [event] } = await read(`/conversations/${id}/events`, { from: seq, limit: 1 });
      if (!event?.body?.covers) break;
      found.push(event);
      seq = event.body.previous?.seq;
    }
    return found;
  }

  /** The tree of forks, from the first ancestor on, and the edits of this conversation. */
  async function family() {
    let root = frame.conversation, left = 200;
    while (root.parent) {
      const parent = await read(`/conversations/${root.parent.conversation}`).catch(() => null);
      if (!parent) break;
      root = parent;
    }
    const tree = async (one) => {
      const { data } = left-- > 0 ? await read("/conversations", { forked_from: one.id, limit: 100 }) : { data: [] };
      const forks = await Promise.all(data.map(tree));
      const own = one.id === id ? await edits() : [];
      return { one, children: [...forks, ...own].sort((a, b) => placeOf(a) - placeOf(b)) };
    };
    const placeOf = ({ one, edit }) => edit?.place ?? one.parent.at_seq;
    return tree(root);
  }

  /** Edits, newest last; a turn that was edited twice is there once. */
  async function edits() {
    const { data } = await read(`/conversations/${id}/events`, { kinds: "turn.superseded", order: "desc", limit: 50 });
    const turns = await Promise.all([...new Set(data.map((event) => event.body?.by ?? event.turn))].map((turn) => read(`/turns/${turn}`, { conversation: id }).catch(() => null)));
    const found = new Map();
    for (const turn of turns) if (turn?.place && !turn.superseded_by) found.set(turn.place, { edit: turn });
    return [...found.values()];
  }

  const show = oneAtATime(async () => {
    try {
      frame.conversation.checkpoint = (await read(`/conversations/${id}`)).checkpoint;
      const [state, facts, chain, relatives] = await Promise.all([read(`/conversations/${id}/state`), read(`/conversations/${id}/facts`, { limit: 200 }), lineage(), family()]);
      const open = await Promise.all(state.open_turns.map((turn) => read(`/turns/${turn}`, { conversation: id })));
      draw(state, open, facts.data, chain, relatives);
    } catch (error) {
      if (error.name !== "AbortError") clear(el, notice("The state cannot be read", error.message, button("Try again", show)));
    }
  });

  const usage = h("div.state-usage");
  import("./usage.js").then(({ plot }) => plot(usage, { conversation: id }));

  const section = (title, ...inside) => h("section.panel", null, h("h2", null, title), inside);
  const act = async (work, text, undo, about) => {
    try {
      await work();
      toast(text, { about, action: undo && ["Undo", () => act(undo, "Undone")] });
      show();
    } catch (error) {
      toast(error.message, { error: true });
      // It may have been answered already.
      if (error.status === 409) show();
    }
  };
  const giveUp = async (call) => {
    if (await confirm("Give up this call?", `Prompts say that ${call.tool_name} gave no result. A result that still comes is taken.`, "Give up")) act(() => post(`/conversations/${id}/tool-calls/${encodeURIComponent(call.tool_call_id ?? call.tool_name)}/abandon`, { reason: "given up on the page" }), "Given up");
  };
  const clip = (text) => (text.length > 90 ? text.slice(0, 90).replace(/\s+\S*$/, "") + "…" : text);
  const shortly = (value) => words(typeof value === "string" ? value : JSON.stringify(value));

  /** A setting for people: a table, line by line. */
  const setting = (value) => (Array.isArray(value) ? words(value.map((one) => (typeof one === "object" ? JSON.stringify(one) : one)).join(", ")) : value && typeof value === "object" ? h("dl.settings", null, Object.entries(value).map(([name, inner]) => h("div", null, h("dt", null, words(name.replaceAll("_", " "))), h("dd", null, setting(inner))))) : words(value === null ? "none" : value === true ? "on" : value === false ? "off" : typeof value === "number" ? number(value) : value));

  function draw(state, open, facts, chain, relatives) {
    const { checkpoint } = state, pins = Object.entries(state.pins), pads = Object.entries(state.scratchpads ?? {}), writes = frame.may("writer");
    const policy = Object.entries(frame.conversation.policy ?? {});
    const path = (name) => `/conversations/${id}/pins/${encodeURIComponent(name)}`;
    clear(el,
      section("Waiting",
        state.pending_approvals.map((one) => h("div.approval.pending", null, h("div.grow", null, h("span.label", null, "Approval", one.requested_by ? [" requested by ", words(one.requested_by)] : ""), h("p", null, words(one.question ?? one.tool_name ?? one.approval_id)), h("a.dim", { href: `#/c/${id}@${one.requested_seq}` }, `asked at #${one.requested_seq}`), one.deadline ? h("span.dim", null, ", expires ", when(one.deadline)) : null),
          writes ? h("div.row", null, ["denied", "approved"].map((answer) => button(answer === "approved" ? "Approve" : "Deny", () => act(() => frame.resolveApproval(one, answer), answer === "approved" ? "Approved" : "Denied"), { class: answer === "approved" ? "primary" : "" }))) : null)),
        state.pending_tools.map((one) => h("div.waiting-call", null, h("b", null, words(one.tool_name)), h("span.gist", null, words(one.summary)), h("a", { href: `#/c/${id}@${one.since_seq}` }, `since #${one.since_seq}`), h("span.grow"), writes ? h("button.quiet", { type: "button", "aria-label": "Give up " + one.tool_name, onclick: () => giveUp(one) }, "Give up") : null)),
        open.map((turn) => h("p.note", null, h("a", { href: `#/c/${id}@${turn.seq}` }, "#" + turn.seq), h("span", null, words(turn.actor ?? turn.role), " is writing, ", plural(turn.partial?.text?.split(/\s+/).filter(Boolean).length ?? 0, "word"), " so far"))),
        !state.pending_approvals.length && !state.pending_tools.length && !state.open_turns.length ? h("p.dim", null, "Nothing is pending.") : null),
      section("Pins", h("p.dim", null, "Part of every prompt, whatever is summarized."),
        h("dl.pins", null, pins.map(([name, pin]) => h("div", null, h("dt", null, words(name)), h("dd", null, shortly(pin.value), " ", h("a.dim", { href: `#/c/${id}@${pin.seq}` }, "#" + pin.seq), !writes ? null : h("button.quiet", { type: "button", "aria-label": "Unpin " + name, onclick: () => act(() => del(path(name)), "Unpinned", () => put(path(name), { value: pin.value }), path(name)) }, "Unpin"))))),
        writes ? button("Add a pin…", async () => (await frame.pin(), show())) : null),
      pads.length ? section("Scratchpads", h("p.dim", null, "Working memory of agents."), h("dl.pins", null, pads.map(([name, pad]) => h("div", null, h("dt", null, words(name)), h("dd", null, h("span.pad", null, shortly(pad.value)), " ", h("a.dim", { href: `#/c/${id}@${pad.seq}` }, "#" + pad.seq)))))) : null,
      policy.length ? section("Policies", h("p.dim", null, "Defaults of this conversation, for projection, compaction and the like."), h("dl.pins", null, policy.map(([name, value]) => h("div", null, h("dt", null, words(name.replaceAll("_", " "))), h("dd", null, setting(value)))))) : null,
      section("Checkpoint", drawn(chain, frame.conversation, Math.max(300, Math.min(820, el.clientWidth - 28))),
        checkpoint ? shownCheckpoint(checkpoint) : h("p.dim", null, "No turn is summarized yet."),
        !writes ? null : h("div.row", null, button("Compact…", async () => (await frame.compact(), show())), chain.length ? button("Revert the last compaction", () => act(() => post(`/conversations/${id}/compact/revert`), "Compaction reverted")) : null)),
      section("Facts", facts.length ? h("div.table", { tabIndex: 0, role: "region", "aria-label": "Facts" }, h("table", null, h("thead", null, h("tr", null, ["About", "", "What", "Sure", "Source", ""].map((text) => h("th", { scope: "col" }, text)))), h("tbody", null, facts.map((one) => h("tr", null, h("td", null, words(one.subject)), h("td.dim", null, words(one.predicate)), h("td", null, words(one.object)), h("td.right", null, Math.round(one.confidence * 100) + "%"),
          h("td", null, one.sources.length ? one.sources.map((source) => (source.seq ? h("a", { href: `#/c/${id}@${source.seq}`, title: source.quote ?? "" }, "#" + source.seq) : "a turn")) : h("span.dim", null, "by ", words(one.by ?? "hand"))),
          h("td", null, !writes ? null : h("button.quiet", { type: "button", "aria-label": `Retract: ${one.subject} ${one.predicate} ${one.object}`, onclick: () => act(() => del(`/facts/${one.id}`, { reason: "retracted on the page", conversation: id }), "Retracted; it stays readable") }, "Retract"))))))) : h("p.dim", null, "No facts yet."),
        !writes ? null : button("Add a fact…", async () => {
          const fields = ["Subject", "Predicate", "Object"].map((label) => [label, h("input", { type: "text" })]);
          const fact = await dialog("Add a fact", h("div.fields", null, fields.map(([label, field]) => h("label", null, label, field))), [["Cancel", null], ["Add", () => (fields.every(([, field]) => field.value.trim()) ? Object.fromEntries(fields.map(([label, field]) => [label.toLowerCase(), field.value.trim()])) : undefined), "primary"]]);
          if (fact) act(() => post(`/conversations/${id}/facts`, fact), "Added");
        })),
      section("Forks and edits", relatives.children.length || relatives.one.id !== id ? h("ul.tree", null, branch(relatives)) : h("p.dim", null, "No forks, and no edits.")),
      h("section.panel", null, h("h2", null, "Model calls"), usage));
  }

  const branch = ({ one, children, edit }) => edit ? h("li.edit", null, icon("edit"), h("span", null, h("a", { href: `#/c/${id}@${edit.place}` }, "#" + edit.place), isRegenerated(edit) ? " regenerated" : " edited", edit.actor ? [" by ", words(edit.actor)] : "", ", ", when(edit.created), h("span.dim", null, ": ", words(clip(plainText(parts(edit))))))) : h("li", null, icon(one.parent ? "fork" : "talk"), h("span", null, h("a", { href: `#/c/${one.id}`, "aria-current": one.id === id ? "page" : null }, words(nameOf(one))), h("span.dim", null, ` ${plural(one.turns, "turn")}`, one.parent ? `, forked at #${one.parent.at_seq}` : "")), children.length ? h("ul", null, children.map(branch)) : null);

  clear(el, notice("Loading…"));
  show();
  let timer;
  return { el, destroy: () => abort.abort(), update() {}, changed: () => (timer ??= setTimeout(() => ((timer = undefined), show()), 400)) };
}

/** A time line of the log with the range covered by each checkpoint. */
function drawn(chain, conversation, width) {
  if (!chain.length) return null;
  // If there is no room beside a bar, its text is above it.
  const narrow = width < 560, row = narrow ? 46 : 26, above = narrow ? 20 : 0;
  const head = Math.max(1, conversation.head.seq), left = 4, x = (seq) => left + (seq / head) * (width - (narrow ? 0 : 190) - 2 * left);
  const old = [...chain].reverse(), height = old.length * row + 44;
  const shapes = old.flatMap((event, n) => {
    const { covers, summarized, tokens_before: before, tokens_after: after } = event.body, y = n * row + 6 + above, to = summarized?.through_seq ?? covers.to_seq;
    const isLast = n === old.length - 1;
    return [
      n ? svg("rect", { x: x(0), y, width: Math.max(3, x(covers.from_seq - 1) - x(0)), height: 16, rx: 3, class: "inherited" }) : null,
      svg("rect", { x: x(covers.from_seq - 1), y, width: Math.max(4, x(to) - x(covers.from_seq - 1)), height: 16, rx: 3, class: isLast ? "covers now" : "covers" }, svg("title", {}, `Checkpoint at #${event.seq}: turns #${covers.from_seq} to #${covers.to_seq}, ${shrunk(before, after)}`)),
      svg("line", { x1: x(event.seq), x2: x(event.seq), y1: y, y2: height - 26, class: "tick" }),
      svg("text", narrow ? { x: x(0), y: y - 6 } : { x: width, y: y + 12, "text-anchor": "end" }, `#${event.seq}: ${shrunk(before, after)}`),
    ];
  });
  const axis = height - 26;
  return h("figure.lineage", null, svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${plural(chain.length, "checkpoint")}; the newest covers everything through #${chain[0].body.covers.to_seq} of ${head}` },
    shapes, svg("line", { x1: x(0), x2: x(head), y1: axis, y2: axis, class: "axis" }), svg("text", { x: x(0), y: axis + 17 }, "#1"), svg("text", { x: x(head), y: axis + 17, "text-anchor": "end" }, "#" + head)),
    h("figcaption.dim", null, chain.length > 1 ? "Each checkpoint extends the one before. Solid: turns that it adds; pale: turns of those before; dotted: where it was made." : "Solid: turns that it covers; dotted: where it was made."));
}
