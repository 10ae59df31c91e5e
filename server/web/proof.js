// Proof: verification and export.

import { h, clear, words, number, plural, button, copy, toast } from "./dom.js";
import { get, blob, plain } from "./api.js";

const FORMATS = [["jsonl", "Everything, with the chain; verifies offline and can be imported"], ["html", "A page to read, mail or print"], ["markdown", "Text for an issue or a note"], ["transcript", "One JSON value with the summary, messages, events and assets"], ["openai-chat", "Messages for chat completions"], ["openai-responses", "Items for Responses"], ["anthropic", "Messages for Anthropic"], ["gemini", "Contents for Gemini"]];
const ENDS = { jsonl: "jsonl", html: "html", markdown: "md" };

export function view(frame) {
  const { id } = frame, abort = new AbortController();
  const verdict = h("div.verdict", { "aria-live": "polite" }), here = h("div", { "aria-live": "polite" });

  const verify = async () => {
    clear(verdict, h("p.dim", null, "The server verifies the chain…"));
    try {
      const found = await get(`/conversations/${id}/verify`, null, abort.signal);
      clear(verdict, h("p.big", { class: found.ok ? "good" : "bad" }, found.ok ? "✓ Unchanged since it was written" : "✕ It was changed"),
        h("p", null, `${plural(found.events ?? 0, "event")} checked`, found.erased ? `, ${plural(found.erased, "body", "bodies")} erased on purpose` : "", "."),
        found.problems?.map((text) => h("p.bad", null, words(plain(text)))),
        found.head ? h("p.row", null, h("span.dim", null, `Head #${found.head.seq}`), h("code.hash", null, found.head.hash), h("button.quiet", { type: "button", onclick: () => copy(found.head.hash) }, "Copy")) : null);
    } catch (error) {
      clear(verdict, h("p.bad", null, words(error.message)));
    }
  };

  /** Checks in the browser that each event names the hash of the previous one. */
  const walk = async () => {
    let from = 1, before, count = 0;
    const bar = h("progress", { max: frame.conversation.head.seq, value: 0, "aria-label": "Events checked" });
    clear(here, bar);
    try {
      for (;;) {
        const { data, next } = await get(`/conversations/${id}/events`, { from, limit: 500 }, abort.signal);
        for (const event of data) {
          if (before && event.prev !== before.hash) return clear(here, h("p.big.bad", null, `✕ The link from #${before.seq} to #${event.seq} is broken`));
          before = event;
          count++;
        }
        bar.value = count;
        if (!next || !data.length) break;
        from = Number(next);
      }
      clear(here, h("p.big.good", null, "✓ Every link holds"), h("p", null, `${number(count)} events, each naming the hash of the one before, up to `, h("code.hash", null, before?.hash ?? "nothing"), "."));
    } catch (error) {
      clear(here, h("p.bad", null, words(error.message)));
    }
  };

  const redacted = h("input", { type: "checkbox" });
  const save = async (format) => {
    try {
      const masked = redacted.checked && format !== "jsonl";
      const bytes = await blob(`/conversations/${id}/export`, { format, redacted: masked || undefined });
      const url = URL.createObjectURL(bytes);
      h("a", { href: url, download: `${id}${masked ? ".redacted" : ""}.${ENDS[format] ?? format + ".json"}` }).click();
      setTimeout(() => URL.revokeObjectURL(url), 60_000);
    } catch (error) {
      toast(error.message, { error: true });
    }
  };

  const buttons = FORMATS.map(([format, text]) => [format, text, button("Download", () => save(format), { "aria-label": "Download as " + format })]);
  redacted.addEventListener("change", () => {
    // Its hashes are those of the original text.
    const [, , jsonl] = buttons[0];
    jsonl.disabled = redacted.checked;
    jsonl.title = redacted.checked ? "A masked file could not be verified" : "";
  });
  const el = h("div.scroll", null,
    h("section.panel", null, h("h2", null, "Verify"), h("p.dim", null, "Each event contains the hash of the previous one. Keep the head hash to prove later that nothing was changed."), verdict, h("div.row", null, button("Verify", verify, { class: "primary" }), button("Check the chain in this browser", walk)), here),
    h("section.panel", null, h("h2", null, "Export"), h("label.row.check", null, redacted, h("span", null, "Mask secrets and personal data", h("span.dim", null, ": keys, passwords, e-mail addresses, phone and card numbers; files and images are left out"))), h("ul.formats", null, buttons.map(([format, text, one]) => h("li", null, h("div.grow", null, h("b", null, format), h("p.dim", null, text)), one)))));
  verify();
  return { el, destroy: () => abort.abort(), update() {} };
}
