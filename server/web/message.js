// Reads messages of every provider's shape into a list of parts.
//
//   {kind: "text" | "thinking" | "refusal", text}   {kind: "call", id, name, input}   {kind: "result", id, name, parts, failed}
//   {kind: "image" | "file", asset, data, mime, url, name}   {kind: "other", value}   {kind: "notice", name, text}

const parsed = (text) => {
  if (typeof text !== "string") return text;
  try { return JSON.parse(text); } catch { return text; }
};

const isText = (value) => typeof value === "string";

/** The parts of a turn, or of a message in a prompt. A message of unknown shape is shown as JSON. */
export function parts(turn) {
  try { return read(turn); } catch { return [{ kind: "other", value: turn?.message ?? turn?.content ?? turn }]; }
}

/** The same with the texts split by speaker, where a program wrote some of what a person sent. */
export function shownParts(turn) {
  const list = parts(turn), first = list.findIndex((part) => part.kind === "text");
  if (!turn.spoken || first < 0) return list;
  const split = turn.spoken.map(({ notice, text }) => (notice ? { kind: "notice", name: notice, text } : { kind: "text", text }));
  return list.flatMap((part, n) => (n === first ? split : part.kind === "text" ? [] : [part]));
}

function read(turn) {
  const whole = turn.message && typeof turn.message === "object" ? turn.message : turn;
  const role = turn.role ?? whole.role;
  if (role === "tool" || role === "tool_result" || role === "function") {
    const inner = content(whole.content ?? turn.content);
    if (inner.some((part) => part.kind === "result")) return inner;
    // Its `id` is its own, not that of the call.
    return [result({ ...whole, content: whole.content ?? turn.content, id: undefined, tool_call_id: whole.tool_call_id ?? turn.tool_call_id })];
  }
  const out = [];
  for (const [field, kind] of [["reasoning_content", "thinking"], ["reasoning", "thinking"]]) {
    if (isText(whole[field]) && whole[field]) out.push({ kind, text: whole[field] });
  }
  // A Responses item is itself a block.
  if (whole.type && whole.type !== "message" && whole.content === undefined) out.push(...block(whole));
  else out.push(...content(whole.content ?? turn.content ?? whole.parts));
  if (isText(whole.refusal)) out.push({ kind: "refusal", text: whole.refusal });
  const calls = whole.tool_calls ?? turn.tool_calls;
  if (Array.isArray(calls)) {
    for (const call of calls) {
      if (!call || typeof call !== "object") {
        out.push({ kind: "other", value: call });
        continue;
      }
      const id = call.id ?? call.call_id;
      if (out.some((part) => part.kind === "call" && part.id === id && id)) continue;
      out.push(...called(call));
    }
  }
  const results = whole.tool_results ?? turn.tool_results;
  if (Array.isArray(results) && !out.some((part) => part.kind === "result")) for (const one of results) out.push(...block({ type: "tool_result", ...one }));
  if (whole.function_call?.name) out.push(...called(whole.function_call));
  return out;
}

function content(value) {
  if (value === null || value === undefined) return [];
  if (isText(value)) return value ? [{ kind: "text", text: value }] : [];
  if (Array.isArray(value)) return value.flatMap(block);
  return block(value);
}

function failed(message, inner) {
  const flag = message.is_error ?? message.error;
  if (flag === true || flag === false) return flag;
  if (/^(error|failed|rejected|exception|denied)$/i.test(message.status ?? "")) return true;
  return /^(error:|tool error|failed:)/i.test(inner[0]?.text ?? "");
}

/** The call in a block or item of any provider, and its result if it carries one. */
function called(b) {
  const inner = b.function ?? b.custom ?? b, id = b.call_id ?? b.id ?? b.tool_call_id;
  const name = inner.name ?? inner.tool_name ?? b.name ?? HOSTED[b.type] ?? String(b.type ?? "tool").replace(/_call$/, "");
  const call = { kind: "call", id, name, input: parsed(inner.arguments ?? inner.input ?? inner.args ?? b.action) };
  if (b.type === "image_generation_call") return [call, ...(isText(b.result) ? block({ type: "image", data: b.result }) : [])];
  return b.output ?? b.result ?? b.error ? [call, result({ ...b, tool_use_id: id })] : [call];
}
const HOSTED = { local_shell_call: "shell", tool_use: "tool", function: "tool" };

/** The result in a block, an item or a message of the role `tool`. */
function result(b) {
  const inner = content(parsedOutput(b.content ?? b.output ?? b.result ?? (isText(b.error) ? b.error : null))).map((part) => (part.kind === "text" ? { ...part, text: unwrapped(part.text) } : part));
  return { kind: "result", id: b.tool_use_id ?? b.tool_call_id ?? b.call_id ?? b.id, name: b.name ?? b.tool_name, parts: inner, failed: failed(b, inner) };
}

/** The output in a text of a result. Codex wraps that of a command in JSON. */
function unwrapped(text) {
  if (!/^\s*\{/.test(text)) return text;
  const value = parsed(text);
  return isText(value?.output) && Object.keys(value).every((name) => name === "output" || name === "metadata") ? value.output : text;
}

const media = (kind, more) => [{ kind, ...more }];

function block(b) {
  if (isText(b)) return [{ kind: "text", text: b }];
  if (!b || typeof b !== "object") return [{ kind: "other", value: b }];
  const asset = b.asset_id;
  switch (b.type) {
    case "text": case "input_text": case "output_text":
      return isText(b.text) ? (b.text ? [{ kind: "text", text: b.text }] : []) : [{ kind: "other", value: b }];
    case "refusal":
      return [{ kind: "refusal", text: String(b.refusal ?? b.text ?? "") }];
    case "thinking": case "reasoning": case "think": {
      const text = b.thinking ?? b.think ?? b.text ?? [b.summary, b.content].flat().filter(Boolean).map((s) => s.text ?? s).filter(isText).join("\n\n");
      return [{ kind: "thinking", text: isText(text) ? text : "", signed: !!(b.signature ?? b.encrypted_content), hidden: !text }];
    }
    case "redacted_thinking":
      return [{ kind: "thinking", text: "", signed: true, hidden: true }];
    case "tool_use": case "server_tool_use": case "mcp_tool_use":
      return called(b);
    case "tool_result": case "mcp_tool_result": case "web_search_tool_result":
      return [result(b)];
    case "image": case "input_image": case "image_url": {
      const source = b.source ?? {}, url = isText(b.image_url) ? b.image_url : b.image_url?.url ?? source.url ?? b.url;
      const inlined = /^data:(image\/[\w.+-]+);base64,(.*)$/s.exec(url ?? "");
      const data = isText(source.data) ? source.data : isText(b.data) ? b.data : inlined?.[2];
      const stored = asset ?? /^asset:(.+)$/.exec(data ?? url ?? "")?.[1];
      return media("image", { asset: stored, data: stored ? undefined : data, mime: source.media_type ?? b.mimeType ?? b.mime_type ?? inlined?.[1], url: inlined || stored ? undefined : url, name: b.name ?? b.alt });
    }
    case "document": case "file": case "input_file": case "input_audio": case "audio": case "video":
      return media("file", { asset, mime: b.source?.media_type ?? b.mime_type, name: b.name ?? b.title ?? b.filename ?? b.file?.filename ?? b.type, url: b.source?.url ?? b.file_url });
    default:
  }
  if (/_call_output$/.test(b.type)) return [result(b)];
  if (/_call$/.test(b.type)) return called(b);
  if (asset) return media(/^image/.test(b.mime_type ?? b.inlineData?.mimeType ?? "") ? "image" : "file", { asset, name: b.name, mime: b.mime_type });
  // Gemini's parts have no type.
  const asked = b.functionCall ?? b.function_call, answered = b.functionResponse ?? b.function_response;
  if (asked) return called(asked);
  if (answered) return [{ ...result({ ...answered, content: answered.response?.output ?? answered.response }), failed: !!answered.response?.error }];
  if (isText(b.text) && b.thought) return [{ kind: "thinking", text: b.text }];
  if (isText(b.text)) return [{ kind: "text", text: b.text }];
  return [{ kind: "other", value: b }];
}

function parsedOutput(value) {
  if (!value || typeof value !== "object" || Array.isArray(value) || value.type) return value;
  // An MCP server wraps its blocks.
  if (Array.isArray(value.content) && value.content.length && value.content.every((one) => isText(one?.type))) return value.content;
  return isText(value.output) ? value.output : JSON.stringify(value, null, 2);
}

/** Names of the tools that messages call, by the ids of the calls. Most results do not name their tool. */
export const toolNames = (messages) => new Map(messages.flatMap((one) => parts(one)).filter((part) => part.kind === "call" && part.id).map((part) => [part.id, part.name]));

/** The speaker of a turn of results only: its tool, or `tool` if that is unknown or there are several. */
export function toolOf(list, names) {
  if (!list.length || !list.every((part) => part.kind === "result")) return null;
  const [first, ...others] = new Set(list.map((part) => names.get(part.id) ?? part.name ?? "tool"));
  return others.length ? "tool" : first;
}

/** Whether a person wrote a turn, and not a program or a tool in their name. */
export const isPrompt = (turn) => turn.role === "user" && !turn.speaker && parts(turn).some((part) => part.kind === "text");

/** Whether a turn that supersedes another was generated by a model. */
export const isRegenerated = (turn) => !!turn.metadata?.generation;

/** Plain text of parts, for previews and copying. */
export const plainText = (list) => list.map((part) => part.text ?? (part.parts ? plainText(part.parts) : part.kind === "call" ? `${part.name} ${gist(part.input)}` : part.kind === "image" ? "[picture]" : "")).filter(Boolean).join("\n");

/** The content of a turn as a request that repeats it. */
export const said = ({ message, content, tool_calls }) => (message ? { message } : { content, tool_calls });

/** The same with another text. Everything in it that is not text stays. */
export function reworded(turn, text) {
  const asked = said(turn), whole = asked.message ?? asked, field = whole.content === undefined && whole.parts ? "parts" : "content";
  const reworded = { ...whole, [field]: withText(whole[field], text) };
  return asked.message ? { message: reworded } : reworded;
}

function withText(value, text) {
  if (value === null || value === undefined || isText(value)) return text;
  const blocks = [value].flat(), isSaid = (b) => block(b).some((part) => part.kind === "text"), first = blocks.findIndex(isSaid);
  const type = blocks.some((b) => /^input_/.test(b?.type)) ? "input_text" : "text";
  if (first < 0) return [{ type, text }, ...blocks];
  return blocks.map((b, n) => (n === first ? (isText(b) ? text : { ...b, text }) : b)).filter((b, n) => n === first || !isSaid(b));
}

/** One-line summary of the arguments of a call. */
export function gist(input) {
  if (input === null || input === undefined) return "";
  const patched = [...(isText(input) ? input : isText(input.input) ? input.input : "").matchAll(/^\*\*\* (?:Add|Update|Delete) File: (.+)$/gm)].map((found) => found[1]);
  if (patched.length) return patched.join(", ").slice(0, 200);
  if (isText(input)) return input.split("\n")[0].slice(0, 200);
  const tasks = todo(input);
  if (tasks) return `${tasks.length} tasks, ${tasks.filter(([, status]) => status === "completed").length} done`;
  const fields = ["command", "cmd", "pattern", "query", "file_path", "path", "url", "description", "prompt", "name"];
  for (const field of fields) {
    const value = input[field];
    if (isText(value) && value) return value.split("\n")[0].slice(0, 200) + (field === "pattern" && isText(input.path) ? " in " + input.path : "");
    if (Array.isArray(value) && value.every(isText)) return value.join(" ").slice(0, 200);
  }
  const texts = Object.entries(input).map(([key, value]) => `${key}: ${isText(value) ? value : JSON.stringify(value)}`);
  return texts.join(", ").split("\n")[0].slice(0, 200);
}

/** Items of a to-do list, if the call writes one: `[text, status]`. */
export function todo(input) {
  const list = input?.todos ?? input?.plan;
  if (!Array.isArray(list) || !list.length || !list.every((one) => isText(one?.content ?? one?.step))) return null;
  return list.map((one) => [one.content ?? one.step, isText(one.status) ? one.status : "pending"]);
}

/** Replacements, if the call edits a file. */
export function edits(input) {
  if (!input || typeof input !== "object") return [];
  const path = input.file_path ?? input.path ?? input.filename ?? "";
  const one = (e) => {
    const before = e.old_string ?? e.old_str ?? e.old_text, after = e.new_string ?? e.new_str ?? e.new_text;
    return isText(before) && isText(after) ? [{ path: e.file_path ?? path, before, after }] : [];
  };
  return [...one(input), ...(Array.isArray(input.edits) ? input.edits.flatMap(one) : [])];
}

const LANGUAGES = { rs: "rust", py: "python", js: "js", ts: "ts", tsx: "tsx", jsx: "jsx", go: "go", java: "java", c: "c", h: "c", cpp: "cpp", sh: "sh", sql: "sql", json: "json", toml: "toml", yaml: "yaml", yml: "yaml", html: "html", css: "css", rb: "ruby", md: "" };
export const languageOf = (path) => LANGUAGES[/\.(\w+)$/.exec(path ?? "")?.[1]] ?? "";
