// State: pending approvals and tools, pins, checkpoints, facts, forks.

import { h, svg, clear, words, number, plural, button, toast, state as notice, dialog } from "./dom.js";
import { get, post, put, del } from "./api.js";
import { markdown } from "./text.js";

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

  /** The tree of forks. The API cannot list the forks of a conversation, so only the newest 1,000 are considered. */
  async function family() {
    const all = new Map();
    let after;
    for (let n = 0; n < 5; n++) {
      const page = await read("/conversations", { limit: 200, after });
      for (const one of page.data) all.set(one.id, one);
      if (!page.next || page.data.length < 200) break;
      after = page.next;
    }
    all.set(id, frame.conversation);
    let root = frame.conversation;
    while (root.parent && all.has(root.parent.conversation)) root = all.get(root.parent.conversation);
    const tree = (one) => ({ one, children: [...all.values()].filter((other) => other.parent?.conversation === one.id).sort((a, b) => a.parent.at_seq - b.parent.at_seq).map(tree) });
    return tree(root);
  }

  async function show() {
    try {
      frame.conversation.checkpoint = (await read(`/conversations/${id}`)).checkpoint;
      const [state, facts, chain, relatives] = await Promise.all([read(`/conversations/${id}/state`), read(`/conversations/${id}/facts`, { limit: 200 }), lineage(), family()]);
      draw(state, facts.data, chain, relatives);
    } catch (error) {
      if (error.name !== "AbortError") clear(el, notice("The state cannot be read", error.message, button("Try again", show)));
    }
  }

  const section = (title, ...inside) => h("section.panel", null, h("h2", null, title), inside);
  const act = async (work, text, undo) => {
    try {
      await work();
      toast(text, undo ? { action: ["Undo", () => act(undo, "Undone")] } : {});
      show();
    } catch (error) {
      toast(error.message, { error: true });
    }
  };

  function draw(state, facts, chain, relatives) {
    const { checkpoint } = state, pins = Object.entries(state.pins);
    const path = (name) => `/conversations/${id}/pins/${encodeURIComponent(name)}`;
    clear(el,
      section("Waiting",
        state.pending_approvals.map((one) => h("div.approval.pending", null, h("div.grow", null, h("span.label", null, "Approval"), h("p", null, words(one.question ?? one.tool_name ?? one.approval_id)), h("a.dim", { href: `#/c/${id}@${one.requested_seq}` }, `asked at #${one.requested_seq}`)),
          h("div.row", null, ["denied", "approved"].map((answer) => button(answer === "approved" ? "Approve" : "Deny", () => act(() => post(`/conversations/${id}/approvals/${encodeURIComponent(one.approval_id)}/resolve`, { state: answer }), answer === "approved" ? "Approved" : "Denied"), { class: answer === "approved" ? "primary" : "" }))))),
        state.pending_tools.map((one) => h("p.note", null, h("b", null, words(one.tool_name)), h("span.gist", null, words(one.summary)), h("a", { href: `#/c/${id}@${one.since_seq}` }, `since #${one.since_seq}`))),
        state.open_turns.length ? h("p.note", null, plural(state.open_turns.length, "answer"), " being written") : null,
        !state.pending_approvals.length && !state.pending_tools.length && !state.open_turns.length ? h("p.dim", null, "Nothing is pending.") : null),
      section("Pins", h("p.dim", null, "Part of every prompt, whatever is summarized."),
        h("dl.pins", null, pins.map(([name, pin]) => h("div", null, h("dt", null, words(name)), h("dd", null, words(typeof pin.value === "string" ? pin.value : JSON.stringify(pin.value)), " ", h("a.dim", { href: `#/c/${id}@${pin.seq}` }, "#" + pin.seq), h("button.quiet", { type: "button", "aria-label": "Unpin " + name, onclick: () => act(() => del(path(name)), "Unpinned", () => put(path(name), { value: pin.value })) }, "Unpin"))))),
        button("Add a pin…", async () => (await frame.pin(), show()))),
      section("Checkpoint", drawn(chain, frame.conversation),
        checkpoint ? h("div.md", null, markdown(checkpoint.handoff_md)) : h("p.dim", null, "No turn is summarized yet."),
        h("div.row", null, button("Compact…", async () => (await frame.compact(), show())), chain.length ? button("Revert the last compaction", () => act(() => post(`/conversations/${id}/compact/revert`), "Compaction reverted")) : null)),
      section("Facts", facts.length ? h("div.table", { tabIndex: 0, role: "region", "aria-label": "Facts" }, h("table", null, h("thead", null, h("tr", null, ["About", "", "What", "Sure", "Source", ""].map((text) => h("th", { scope: "col" }, text)))), h("tbody", null, facts.map((one) => h("tr", null, h("td", null, words(one.subject)), h("td.dim", null, words(one.predicate)), h("td", null, words(one.object)), h("td.right", null, Math.round(one.confidence * 100) + " %"),
          h("td", null, one.sources.length ? one.sources.map((source) => (source.seq ? h("a", { href: `#/c/${id}@${source.seq}`, title: source.quote ?? "" }, "#" + source.seq) : "a turn")) : h("span.dim", null, "by ", words(one.by ?? "hand"))),
          h("td", null, h("button.quiet", { type: "button", "aria-label": `Retract: ${one.subject} ${one.predicate} ${one.object}`, onclick: () => act(() => del(`/facts/${one.id}`, { reason: "retracted on the page", conversation: id }), "Retracted; it stays readable") }, "Retract"))))))) : h("p.dim", null, "No facts yet."),
        button("Add a fact…", async () => {
          const fields = ["Subject", "Predicate", "Object"].map((label) => [label, h("input", { type: "text" })]);
          const fact = await dialog("Add a fact", h("div.fields", null, fields.map(([label, field]) => h("label", null, label, field))), [["Cancel", null], ["Add", () => (fields.every(([, field]) => field.value.trim()) ? Object.fromEntries(fields.map(([label, field]) => [label.toLowerCase(), field.value.trim()])) : undefined), "primary"]]);
          if (fact) act(() => post(`/conversations/${id}/facts`, fact), "Added");
        })),
      section("Forks", relatives.children.length || relatives.one.id !== id ? h("ul.tree", null, branch(relatives)) : h("p.dim", null, "No forks.")));
  }

  const branch = ({ one, children }) => h("li", null, h("a", { href: `#/c/${one.id}`, "aria-current": one.id === id ? "page" : null }, words(one.title || "Untitled")), h("span.dim", null, ` ${plural(one.turns, "turn")}`, one.parent ? `, left at #${one.parent.at_seq}` : ""), children.length ? h("ul", null, children.map(branch)) : null);

  clear(el, notice("Loading…"));
  show();
  let timer;
  return { el, destroy: () => abort.abort(), update() {}, changed: () => (clearTimeout(timer), (timer = setTimeout(show, 400))) };
}

/** A time line of the log with the range covered by each checkpoint. */
function drawn(chain, conversation) {
  if (!chain.length) return null;
  const head = Math.max(1, conversation.head.seq), width = 720, row = 26, left = 4, x = (seq) => left + (seq / head) * (width - 190 - 2 * left);
  const old = [...chain].reverse(), height = old.length * row + 44;
  const shapes = old.flatMap((event, n) => {
    const { covers, summarized, tokens_before: before, tokens_after: after } = event.body, y = n * row + 6, to = summarized?.through_seq ?? covers.to_seq;
    const isLast = n === old.length - 1;
    return [
      svg("rect", { x: x(0), y, width: Math.max(3, x(covers.from_seq - 1) - x(0)), height: 16, rx: 3, class: "inherited" }),
      svg("rect", { x: x(covers.from_seq - 1), y, width: Math.max(4, x(to) - x(covers.from_seq - 1)), height: 16, rx: 3, class: isLast ? "covers now" : "covers" }, svg("title", {}, `Checkpoint at #${event.seq}: turns #${covers.from_seq} to #${covers.to_seq}, ${before} tokens become ${after}`)),
      svg("line", { x1: x(event.seq), x2: x(event.seq), y1: y, y2: height - 26, class: "tick" }),
      svg("text", { x: width, y: y + 12, "text-anchor": "end" }, `#${event.seq}: ${number(before)} → ${number(after)} tokens`),
    ];
  });
  const axis = height - 26;
  return h("figure.lineage", null, svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${plural(chain.length, "checkpoint")}; the newest covers everything through #${chain[0].body.covers.to_seq} of ${head}` },
    shapes, svg("line", { x1: x(0), x2: x(head), y1: axis, y2: axis, class: "axis" }), svg("text", { x: x(0), y: axis + 17 }, "#1"), svg("text", { x: x(head), y: axis + 17, "text-anchor": "end" }, "#" + head)),
    h("figcaption.dim", null, "Each checkpoint extends the previous one. Solid: turns added by it; pale: turns inherited."));
}
