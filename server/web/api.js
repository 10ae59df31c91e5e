// Client of the public REST API and its live streams.

const BASE = "/api/v1";
const KEY = "everturn.key";

/** The text of a problem without routes and commands, which do not help users of the page. */
export function plain(detail = "") {
  const foreign = /`(everturn\b|(GET|POST|PUT|PATCH|DELETE) \/)/;
  const noted = detail.replace(/ \([^()]*\)/g, (note) => (foreign.test(note) ? "" : note));
  return noted.split(/(?<=[;.]) /).filter((part) => !foreign.test(part)).join(" ").replace(/;$/, "") || "The server refused this.";
}

/** An RFC 9457 problem. */
export class Problem extends Error {
  constructor(status, code, detail) {
    // A sentence of its own; an id or a name stays as it is.
    super(plain(detail).replace(/^[a-z]+(?=[ ,])/, (word) => word[0].toUpperCase() + word.slice(1)));
    Object.assign(this, { status, code });
  }
}

const kept = (storage) => {
  try { return storage.getItem(KEY); } catch { return null; }
};

export const session = {
  key: kept(sessionStorage) ?? kept(localStorage),
  online: true,
  listeners: new Set(),
  /** Stores the key for this tab, or on this device if asked to. */
  signIn(key, remember) {
    this.signOut();
    this.key = key;
    (remember ? localStorage : sessionStorage).setItem(KEY, key);
  },
  signOut() {
    this.key = null;
    sessionStorage.clear();
    localStorage.removeItem(KEY);
  },
  /** Signs out and forgets what this device kept: the name, what was read. */
  forget() {
    this.signOut();
    for (const name of Object.keys(localStorage)) if (name.startsWith("everturn.")) localStorage.removeItem(name);
  },
  set(online) {
    if (this.online !== online) {
      this.online = online;
      this.listeners.forEach((listener) => listener(online));
    }
  },
};

/** Settings: kept on this device if the server needs no key or the key may stay, else in this tab only. */
export const memory = {
  get storage() { return session.key && !kept(localStorage) ? sessionStorage : localStorage; },
  get(name, otherwise) {
    try { return JSON.parse(this.storage.getItem("everturn." + name)) ?? otherwise; } catch { return otherwise; }
  },
  set(name, value) {
    try { this.storage.setItem("everturn." + name, JSON.stringify(value)); } catch { /* private mode */ }
  },
};

/**
 * Runs `work` once at a time, and once more if it is asked for meanwhile: an older answer never replaces a newer one, and
 * however often it is asked for, answers arrive.
 */
export function oneAtATime(work) {
  let running, isAsked;
  const run = async () => {
    try {
      while (isAsked) {
        isAsked = false;
        await work();
      }
    } finally {
      running = undefined;
    }
  };
  return () => {
    isAsked = true;
    return (running ??= run());
  };
}

/** Unsent text by conversation: kept in this tab until its user signs out. */
export const unsent = {
  get(id = "new") {
    try { return sessionStorage.getItem("everturn.unsent." + id) ?? ""; } catch { return ""; }
  },
  set(text, id = "new") {
    try { text ? sessionStorage.setItem("everturn.unsent." + id, text) : sessionStorage.removeItem("everturn.unsent." + id); } catch { /* private mode */ }
  },
};

let askForKey = () => {};
export const onUnauthorized = (f) => (askForKey = f);

function headers(more) {
  return session.key ? { Authorization: "Bearer " + session.key, ...more } : { ...more };
}

async function ask(method, path, { query, body, file, signal, accept, more } = {}) {
  const url = new URL(BASE + path, location.origin);
  for (const [key, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(key, value);
  }
  const sent = { method, signal, headers: headers(more), cache: "no-store", credentials: "omit", referrerPolicy: "no-referrer" };
  if (accept) sent.headers.Accept = accept;
  if (body !== undefined) {
    sent.headers["Content-Type"] = "application/json";
    sent.body = JSON.stringify(body);
  }
  if (file) sent.body = file;
  let answer;
  try {
    answer = await fetch(url, sent);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    session.set(false);
    throw new Problem(0, "offline", "The server is not responding. The page reconnects automatically.");
  }
  session.set(true);
  if (answer.ok) return answer;
  let problem = {};
  try { problem = await answer.json(); } catch { /* not ours */ }
  if (answer.status === 401) askForKey(session.key && problem.detail ? plain(problem.detail) : null);
  throw new Problem(answer.status, problem.code ?? "http", problem.detail ?? `The server answered ${answer.status}.`);
}

const json = async (...request) => (await ask(...request)).json();

export const get = (path, query, signal) => json("GET", path, { query, signal });
export const post = (path, body = {}, signal) => json("POST", path, { body, signal });
export const put = (path, body) => json("PUT", path, { body });
export const patch = (path, body) => json("PATCH", path, { body });
export const del = (path, query) => json("DELETE", path, { query });
export const upload = (path, file) => json("POST", path, { file });
export const blob = async (path, query) => (await ask("GET", path, { query })).blob();

const images = new Map();
/** A blob URL for an image asset. Only types that cannot contain a script are allowed. */
export function picture(asset, conversation) {
  if (!images.has(asset)) {
    images.set(asset, blob(`/assets/${encodeURIComponent(asset)}/content`, { conversation }).then(shown, (error) => {
      images.delete(asset);
      throw error;
    }));
  }
  return images.get(asset);
}
export function shown(bytes) {
  if (!/^image\/(png|jpeg|gif|webp|avif|bmp)$/.test(bytes.type)) throw new Problem(0, "image", "This type of image is not shown.");
  return URL.createObjectURL(bytes);
}

/** Parses server-sent events into `{event, id, data}`. */
async function* frames(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", frame = { event: "message", data: [] };
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (frame.data.length) yield { event: frame.event, id: frame.id, data: JSON.parse(frame.data.join("\n")) };
        frame = { event: "message", data: [] };
      } else if (line[0] !== ":") {
        const colon = line.indexOf(":");
        const field = colon < 0 ? line : line.slice(0, colon);
        const text = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
        if (field === "data") frame.data.push(text);
        else if (field === "event") frame.event = text;
        else if (field === "id") frame.id = text;
      }
    }
  }
}

const wait = (ms, signal) => new Promise((resolve) => {
  const timer = setTimeout(resolve, ms);
  signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
});

/**
 * Follows a stream until `signal` is aborted. After a lost connection or a restart it resumes at `Last-Event-ID`, without gaps
 * or repeats. `status` is called with whether it is connected, and with what the server answers if it refuses.
 */
export async function follow(path, query, { frame, status, signal, absent }) {
  let last, pause = 250;
  while (!signal.aborted) {
    try {
      const more = last ? { "Last-Event-ID": last } : {};
      const answer = await ask("GET", path, { query, signal, accept: "text/event-stream", more });
      if (!answer.headers.get("content-type")?.startsWith("text/event-stream")) return absent?.();
      status?.(true);
      pause = 250;
      for await (const one of frames(answer)) {
        if (one.id) last = one.id;
        if (one.event === "lagged" || one.event === "stopping") break;
        if (frame(one) === false) return;
      }
      status?.(false);
    } catch (error) {
      if (signal.aborted) return;
      if ([400, 401, 403, 404, 405].includes(error.status)) return absent?.(error);
      status?.(false, error.status ? error : undefined);
    }
    await wait(pause, signal);
    pause = Math.min(pause * 2, 5000);
  }
}

/** Starts a generation and waits for its end; the timeline shows the answer as it is streamed. `begun` is called once the input is accepted, `waits` with the approvals that it waits for. */
export async function generate(conversation, body, { waits, begun }) {
  const answer = await ask("POST", `/conversations/${conversation}/generate`, { body: { ...body, stream: true }, accept: "text/event-stream" });
  begun?.();
  for await (const one of frames(answer)) {
    if (one.event === "waiting") waits(one.data.waits_for);
    if (one.event === "error") throw new Problem(one.data.status ?? 0, one.data.code, one.data.detail);
    if (one.event === "done") return one.data;
  }
}
