// Renders Markdown, code and diffs. All input ends up in text nodes; HTML in it is shown as text.

import { h, add, words, icon, button, copy } from "./dom.js";

// ---------------------------------------------------------------------------------------------------- inline

const INLINE = new RegExp([
  "(?<esc>\\\\[\\\\`*_{}\\[\\]()#+\\-.!|<>~])",
  "(?<!`)(?<tick>`+)(?!`)(?<code>[^]{0,2000}?[^`])\\k<tick>(?!`)",
  "!\\[(?<alt>[^\\]\\n]{0,300})\\]\\((?<src>[^)\\s]{1,2000})[^)\\n]{0,300}\\)",
  "\\[(?<label>(?:[^\\[\\]\\n]|\\[[^\\[\\]\\n]{0,200}\\]){1,500})\\]\\((?<href>(?:[^()\\s]|\\([^()\\s]{0,200}\\)){1,2000})(?:\\s+\"[^\"\\n]{0,300}\")?\\)",
  "(?<![\\w*])(?<b>\\*\\*|__)(?=\\S)(?<bold>(?:(?!\\k<b>)[^]){1,2000}?\\S)\\k<b>(?![\\w])",
  "(?<![\\w*\\\\])(?<i>[*_])(?=[^\\s*_])(?<italic>(?:(?!\\k<i>)[^\\n]){0,1000}?[^\\s\\\\])\\k<i>(?![\\w*])",
  "~~(?=\\S)(?<del>[^\\n]{1,1000}?\\S)~~",
  "(?<url>https?:\\/\\/[^\\s<>\"'`\\u0000-\\u001f]{1,2000})",
].join("|"), "g");

const SAFE = /^(https?:\/\/|mailto:)/i;

/** A link. Only http, https and mailto are allowed; other schemes stay text. */
function link(href, label) {
  if (!SAFE.test(href)) return [...label, document.createTextNode(" (" + href + ")")];
  let host = "";
  try { host = new URL(href).host; } catch { return label; }
  const text = label.map((node) => node.textContent).join("");
  const a = h("a", { href, target: "_blank", rel: "noopener noreferrer nofollow", title: href }, label);
  // The label looks like another address: show the real host.
  const misleads = /[\w-]\.[a-z]{2,}/i.test(text) && host && !text.includes(host);
  return misleads ? [a, h("span.host", null, " (" + host + ")")] : [a];
}

function inline(text, depth = 0) {
  if (depth > 6 || text.length > PARAGRAPH) return words(text);
  const nodes = [];
  let from = 0;
  for (const found of text.matchAll(INLINE)) {
    const g = found.groups;
    let end = found.index + found[0].length, made;
    if (g.esc) made = words(g.esc[1]);
    else if (g.code !== undefined) made = [h("code", null, words(g.code.replace(/^ (.*) $/s, "$1")))];
    else if (g.src !== undefined) made = [h("span.remote", { title: "Images from other addresses are not loaded" }, "image: ", link(g.src, words(g.alt || g.src)))];
    else if (g.href !== undefined) made = link(g.href, inline(g.label, depth + 1));
    else if (g.bold !== undefined) made = [h("strong", null, inline(g.bold, depth + 1))];
    else if (g.italic !== undefined) made = [h("em", null, inline(g.italic, depth + 1))];
    else if (g.del !== undefined) made = [h("del", null, inline(g.del, depth + 1))];
    else {
      const url = g.url.replace(/[.,;:!?)\]*_]+$/, "");
      end = found.index + url.length;
      made = link(url, words(url));
    }
    if (found.index < from) continue;
    if (found.index > from) nodes.push(...words(text.slice(from, found.index)));
    nodes.push(...made);
    from = end;
  }
  if (from < text.length) nodes.push(...words(text.slice(from)));
  return nodes;
}

// ---------------------------------------------------------------------------------------------------- blocks

// Each takes time linear in the length of a line, whatever the line is.
const FENCE = /^( {0,3})(`{3,}(?!`)|~{3,}(?!~))[ \t]*([^\s`]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}>\s?(.*)$/;
const DELIMITER = /^\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?$/;
/** Most columns of a table, and most characters of a paragraph with markup. */
const COLUMNS = 100, PARAGRAPH = 20_000;

export function markdown(text) {
  const root = document.createDocumentFragment();
  // Very long text is data, not prose, and slow to parse.
  if (text.length > 200_000) return add(root, [plain(text)]);
  blocks(text.replace(/\r\n?/g, "\n").split("\n"), root, 0);
  return root;
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));

/** The beginning of a code block. Text after backticks may contain none: that would be inline code. */
function fence(line) {
  const found = FENCE.exec(line);
  return found && !(found[2][0] === "`" && line.includes("`", found[1].length + found[2].length)) ? found : null;
}

/** A heading without the signs at its end. */
function unmarked(text) {
  let end = text.trimEnd().length;
  while (text[end - 1] === "#") end--;
  return text.slice(0, end).trimEnd();
}

function blocks(lines, into, depth) {
  let at = 0;
  const paragraph = [];
  const flush = () => {
    if (!paragraph.length) return;
    // Line breaks are kept (`white-space: pre-wrap`): messages are rarely wrapped by hand.
    into.append(h("p", null, inline(paragraph.map((line) => line.replace(/\\$/, "").trim()).join("\n"))));
    paragraph.length = 0;
  };
  while (at < lines.length) {
    const line = lines[at];
    let found;
    if ((found = fence(line))) {
      flush();
      const [, indent, mark, language] = found, body = [];
      const closes = new RegExp(`^ {0,3}${mark[0]}{${mark.length},}\\s*$`);
      for (at++; at < lines.length && !closes.test(lines[at]); at++) body.push(lines[at].startsWith(indent) ? lines[at].slice(indent.length) : lines[at].trimStart());
      at++;
      into.append(code(body.join("\n"), language));
    } else if (!line.trim()) {
      flush();
      at++;
    } else if ((found = HEADING.exec(line))) {
      flush();
      // Levels 1 and 2 belong to the page.
      into.append(h("h" + Math.min(6, found[1].length + 2), { class: "md-h" + found[1].length }, inline(unmarked(found[2]))));
      at++;
    } else if (RULE.test(line)) {
      flush();
      into.append(h("hr"));
      at++;
    } else if (QUOTE.test(line) && depth < 8) {
      flush();
      const body = [];
      for (; at < lines.length && (found = QUOTE.exec(lines[at])); at++) body.push(found[1]);
      const quote = h("blockquote");
      blocks(body, quote, depth + 1);
      into.append(quote);
    } else if (line.includes("|") && at + 1 < lines.length && DELIMITER.test(lines[at + 1].trim()) && cells(line).length <= COLUMNS) {
      flush();
      at = table(lines, at, into);
    } else if (ITEM.test(line) && depth < 8) {
      flush();
      at = list(lines, at, into, depth);
    } else {
      paragraph.push(line);
      at++;
    }
  }
  flush();
}

function table(lines, at, into) {
  const head = cells(lines[at]);
  const sides = cells(lines[at + 1]).map((cell) => (/^:-+:$/.test(cell) ? "center" : /-:$/.test(cell) ? "right" : ""));
  const cell = (tag, text, n) => h(tag, { class: sides[n] ?? "", scope: tag === "th" ? "col" : null }, inline(text));
  const body = h("tbody");
  for (at += 2; at < lines.length && lines[at].includes("|") && lines[at].trim(); at++) {
    const row = cells(lines[at]);
    body.append(h("tr", null, head.map((_, n) => cell("td", row[n] ?? "", n))));
  }
  into.append(h("div.table", { tabIndex: 0, role: "region", "aria-label": "Table" }, h("table", null, h("thead", null, h("tr", null, head.map((text, n) => cell("th", text, n)))), body)));
  return at;
}

function list(lines, at, into, depth) {
  const [, indent, mark] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(mark);
  const el = h(ordered ? "ol" : "ul", ordered && parseInt(mark) !== 1 ? { start: parseInt(mark) } : null);
  while (at < lines.length) {
    const found = ITEM.exec(lines[at]);
    if (!found || found[1].length < indent.length || found[1].length > indent.length + 1 || /\d/.test(found[2]) !== ordered) break;
    const inner = found[1].length + found[2].length + 1;
    const body = [found[3]];
    for (at++; at < lines.length; at++) {
      const blank = !lines[at].trim();
      const deeper = /^\s*/.exec(lines[at])[0].length > indent.length;
      if (blank ? !(lines[at + 1] && /^\s/.test(lines[at + 1]) && /^\s*/.exec(lines[at + 1])[0].length > indent.length) : !deeper && (ITEM.test(lines[at]) || HEADING.test(lines[at]) || fence(lines[at]) || body.at(-1) === "")) break;
      body.push(lines[at].slice(Math.min(inner, /^\s*/.exec(lines[at])[0].length)));
    }
    const li = h("li");
    const task = /^\[([ xX])\]\s+/.exec(body[0]);
    if (task) {
      li.className = "task";
      li.append(h("span.box", { role: "img", "aria-label": task[1] === " " ? "open" : "done" }, task[1] === " " ? "" : "✓"));
      body[0] = body[0].slice(task[0].length);
    }
    blocks(body, li, depth + 1);
    // Tight list items have no paragraph.
    const only = li.querySelector(":scope > p");
    if (only && li.querySelectorAll(":scope > p").length === 1) only.replaceWith(...only.childNodes);
    el.append(li);
    while (at < lines.length && !lines[at].trim() && ITEM.test(lines[at + 1] ?? "")) at++;
  }
  into.append(el);
  return at;
}

// ---------------------------------------------------------------------------------------------------- checkpoints

const LISTS = [["User constraints", "user_constraints"], ["Decisions", "decisions"], ["Discoveries", "discoveries"], ["Completed work", "completed_work"], ["Pending work", "pending_work"], ["Unresolved questions", "unresolved_questions"]];

/** A checkpoint in Markdown, as prompts have it: the note, then whatever the note does not contain. */
export function checkpointText(checkpoint) {
  const note = checkpoint.handoff_md?.trim() ?? "", { goal, critical_identifiers: names = [], relevant_files: files = [] } = checkpoint;
  let out = goal && !note.includes(goal) ? `**Goal:** ${goal}\n\n${note}`.trimEnd() : note;
  for (const [title, field] of LISTS) {
    const unsaid = (checkpoint[field] ?? []).filter((entry) => !note.includes(entry));
    if (unsaid.length) out += `\n\n**${title}**\n${unsaid.map((entry) => "\n- " + entry).join("")}`;
  }
  const said = out;
  for (const [title, list] of [["Identifiers", names.filter((name) => !whole([name], "_\\-/").test(said))], ["Files", files]]) if (list.length) out += `\n\n**${title}**\n\n${list.join(", ")}`;
  return out.trimStart();
}

export const checkpoint = (one) => h("div.md", { dir: "auto" }, markdown(checkpointText(one)));

// ---------------------------------------------------------------------------------------------------- words that were looked for

/** A pattern for texts that are not part of a longer word. `joints` are further characters of words. */
const whole = (texts, joints = "", flags = "u") => {
  const inside = `[\\p{Alphabetic}\\p{N}${joints}]`, any = texts.map((text) => text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")).join("|");
  return new RegExp(`(?<!${inside})(?:${any})(?!${inside})`, flags);
};

/** Whether a text contains one of some words, in any case. */
export const contains = (text, found) => found.length > 0 && whole(found, "", "iu").test(text);

/** Marks words in what is shown, and shows the rest of a long text if they are there. */
export function markWords(el, found) {
  if (!found.length) return;
  for (const box of [...el.querySelectorAll(".code-box")].filter((one) => one.rest && contains(one.rest, found))) box.querySelector(".more")?.click();
  const walker = document.createTreeWalker(el, NodeFilter.SHOW_TEXT), nodes = [];
  while (walker.nextNode()) if (!walker.currentNode.parentElement.closest("button, .code-bar")) nodes.push(walker.currentNode);
  for (const node of nodes) {
    const pieces = [], text = node.data;
    let from = 0;
    for (const { index, 0: word } of text.matchAll(whole(found, "", "giu"))) {
      pieces.push(text.slice(from, index), h("mark", null, word));
      from = index + word.length;
    }
    if (from) node.replaceWith(...pieces, text.slice(from));
  }
}

// ---------------------------------------------------------------------------------------------------- code

const WORDS = {
  c: "auto bool break case catch char class const constexpr continue default defer delete do double else enum export extends extern final finally float for foreach func function goto go if implements import in instanceof int interface internal let long map namespace new null nullptr object of operator override package private protected public range readonly return select short sizeof static string struct super switch template this throw throws try type typedef typeof undefined union unsigned using var virtual void volatile while with yield async await true false nil chan",
  rust: "as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while",
  python: "and as assert async await break class continue def del elif else except False finally for from global if import in is lambda match None nonlocal not or pass raise return self True try while with yield",
  shell: "if then else elif fi for while until do done case esac function in return export local set unset sudo cd echo exit source",
  sql: "select from where group by order having limit offset insert into values update set delete create table index view drop alter add primary key foreign references join left right inner outer full on and or not null is in like between as distinct union all exists case when then else end with returning begin commit rollback true false default extension using for skip locked desc asc",
  data: "true false null yes no on off",
};
const FAMILY = {
  js: "c", javascript: "c", ts: "c", typescript: "c", tsx: "c", jsx: "c", java: "c", c: "c", cpp: "c", "c++": "c", cs: "c", csharp: "c", go: "c", swift: "c", kotlin: "c", php: "c", scala: "c", dart: "c", zig: "c",
  rust: "rust", rs: "rust", python: "python", py: "python", sh: "shell", bash: "shell", zsh: "shell", shell: "shell", console: "shell", ruby: "python", rb: "python", dockerfile: "shell", make: "shell",
  sql: "sql", json: "data", jsonl: "data", yaml: "data", yml: "data", toml: "data", ini: "data", html: "mark", xml: "mark", svg: "mark", css: "c", scss: "c",
};
const SYNTAX = {
  c: ["\\/\\/[^\\n]*|\\/\\*[^]*?(?:\\*\\/|$)", "\"(?:\\\\.|[^\"\\\\\\n])*\"?|'(?:\\\\.|[^'\\\\\\n])*'?|`(?:\\\\.|[^`\\\\])*`?"],
  rust: ["\\/\\/[^\\n]*|\\/\\*[^]*?(?:\\*\\/|$)", "b?r?#{0,9}\"(?:\\\\.|[^\"\\\\])*\"#*|'(?:\\\\.|[^'\\\\\\n])'"],
  python: ["#[^\\n]*", "[rbfRBF]{0,2}(?:\"\"\"[^]*?(?:\"\"\"|$)|'''[^]*?(?:'''|$)|\"(?:\\\\.|[^\"\\\\\\n])*\"?|'(?:\\\\.|[^'\\\\\\n])*'?)"],
  shell: ["(?<![\\w$])#[^\\n]*", "\"(?:\\\\.|[^\"\\\\])*\"?|'[^']*'?"],
  sql: ["--[^\\n]*|\\/\\*[^]*?(?:\\*\\/|$)", "'(?:''|[^'])*'?"],
  data: ["(?<![\\w\"])#[^\\n]*|\\/\\/[^\\n]*", "\"(?:\\\\.|[^\"\\\\\\n])*\"?(?=\\s*:)|\"(?:\\\\.|[^\"\\\\\\n])*\"?|'[^'\\n]*'?"],
  mark: ["<!--[^]*?(?:-->|$)", "\"[^\"]*\"|'[^']*'"],
};
const RULES = {};
function rules(family) {
  return (RULES[family] ??= new RegExp(`(?<c>${SYNTAX[family][0]})|(?<s>${SYNTAX[family][1]})|(?<n>\\b(?:0[xob][\\da-f_]+|\\d[\\d_]*(?:\\.\\d+)?(?:e[+-]?\\d+)?)\\b)|(?<f>[A-Za-z_]\\w*(?=\\())|(?<w>${family === "mark" ? "<\\/?[\\w:-]+|\\/?>" : "[A-Za-z_]\\w*"})`, family === "sql" ? "gi" : "g"));
}

/** Syntax highlighting. */
function highlight(text, language) {
  const family = FAMILY[language?.toLowerCase()];
  if (!family || text.length > 60_000) return words(text);
  const known = new Set((WORDS[family] ?? "").split(" "));
  const nodes = [];
  let from = 0;
  for (const found of text.matchAll(rules(family))) {
    const { c, s, n, f, w } = found.groups;
    const word = w ?? f;
    const kind = c ? "c" : s ? (family === "data" && /^\s*[:=]/.test(text.slice(found.index + s.length, found.index + s.length + 4)) ? "f" : "s") : n ? "n"
      : family === "mark" ? "k" : known.has(family === "sql" ? word.toLowerCase() : word) ? "k" : f ? "f" : /^[A-Z]\w*[a-z]/.test(word) ? "t" : "";
    if (!kind) continue;
    if (found.index > from) nodes.push(...words(text.slice(from, found.index)));
    nodes.push(h("span." + "hl-" + kind, null, words(found[0])));
    from = found.index + found[0].length;
  }
  if (from < text.length) nodes.push(...words(text.slice(from)));
  return nodes;
}

const LONG = 40;

/** A code block with a copy button, cut if it is long. */
export function code(text, language = "", wraps = false) {
  const isPatch = language === "diff" || language === "patch" || (!language && /^(@@ |diff --git |--- a\/)/m.test(text) && /^[-+]/m.test(text));
  const make = (part) => (isPatch ? patchLines(part) : highlight(part, language));
  return long(text, (part) => h("pre.code", { tabIndex: 0, class: wraps ? "wraps" : "" }, h("code", null, make(part))), language);
}

/** Preformatted text. */
const plain = (text, label) => long(text, (part) => h("pre.code", { tabIndex: 0 }, h("code", null, words(part))), label);

/** Shows only the beginning of long text, with a button for the rest. */
function long(text, make, label) {
  const lines = text.split("\n");
  const isLong = lines.length > LONG + 10 || text.length > 12_000;
  const part = isLong ? lines.slice(0, LONG).join("\n").slice(0, 10_000) : text;
  const box = h("div.code-box", null, h("div.code-bar", null, h("span", null, label ?? ""), h("button.quiet", { type: "button", onclick: () => copy(text) }, icon("copy"), "Copy")), make(part));
  if (isLong) {
    box.rest = text.slice(part.length);
    const more = button(`Show all ${lines.length.toLocaleString("en")} lines`, () => {
      box.querySelector("pre").replaceWith(make(text.length > 2_000_000 ? text.slice(0, 2_000_000) : text));
      more.remove();
    }, { class: "more" });
    box.append(more);
  }
  return box;
}

const mark = (sign, text) => h("span.line", { class: sign === "+" ? "added" : sign === "-" ? "removed" : sign === "@" ? "place" : "" }, words(text), "\n");

const patchLines = (text) => text.split("\n").map((line) => mark(/^(---|\+\+\+|diff |index )/.test(line) ? "@" : line[0], line));

/** A line diff of two texts. */
export function diff(before, after, label) {
  const a = before === "" ? [] : before.split("\n"), b = after === "" ? [] : after.split("\n");
  const all = [...changes(a, b)], lines = [];
  // In long diffs, show only the lines near a change.
  const near = all.map(() => all.length <= 60);
  if (all.length > 60) all.forEach(([sign], n) => sign !== " " && near.fill(true, Math.max(0, n - 3), n + 4));
  for (let n = 0; n < all.length; n++) {
    if (near[n]) {
      lines.push(mark(all[n][0], all[n].join(" ")));
      continue;
    }
    let end = n;
    while (end < all.length && !near[end]) end++;
    lines.push(mark("@", `… ${end - n} lines are the same`));
    n = end - 1;
  }
  return h("div.code-box", null, h("div.code-bar", null, h("span", null, label ?? ""), h("span.counts", null, h("b.plus", null, "+" + lines.filter((l) => l.classList.contains("added")).length), " ", h("b.minus", null, "−" + lines.filter((l) => l.classList.contains("removed")).length))),
    h("pre.code.diff", { tabIndex: 0 }, h("code", null, lines)));
}

function* changes(a, b) {
  let start = 0, endA = a.length, endB = b.length;
  while (start < endA && start < endB && a[start] === b[start]) start++;
  while (endA > start && endB > start && a[endA - 1] === b[endB - 1]) endA--, endB--;
  for (let n = 0; n < start; n++) yield [" ", a[n]];
  const n = endA - start, m = endB - start;
  if (n * m > 400_000) {
    for (let x = start; x < endA; x++) yield ["-", a[x]];
    for (let y = start; y < endB; y++) yield ["+", b[y]];
  } else {
    // Longest common subsequence.
    const rows = Array.from({ length: n + 1 }, () => new Uint32Array(m + 1));
    for (let x = n - 1; x >= 0; x--) for (let y = m - 1; y >= 0; y--) rows[x][y] = a[start + x] === b[start + y] ? rows[x + 1][y + 1] + 1 : Math.max(rows[x + 1][y], rows[x][y + 1]);
    let x = 0, y = 0;
    while (x < n || y < m) {
      if (x < n && y < m && a[start + x] === b[start + y]) yield [" ", a[start + x]], x++, y++;
      else if (x < n && (y === m || rows[x + 1][y] >= rows[x][y + 1])) yield ["-", a[start + x++]];
      else yield ["+", b[start + y++]];
    }
  }
  for (let k = endA; k < a.length; k++) yield [" ", a[k]];
}
