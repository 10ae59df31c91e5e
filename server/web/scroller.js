// Virtual scrolling over a log of any length.
//
// The log is divided into pages of PAGE events by seq. Only pages near the viewport are loaded and rendered; the others are empty
// space of their last measured height, or of an estimate. When a page above the viewport turns out higher or lower than
// estimated, the scroll position is corrected so that the visible rows do not move.

import { h } from "./dom.js";

const PAGE = 40;
/** Events loaded beyond both ends of a page, so that a call and its result can be rendered together. */
export const AROUND = 16;
/** Browsers limit the height of an element; Firefox to about 17 million pixels. */
const HEIGHT_MAX = 12_000_000;
const KEPT_MAX = 80;
const REQUESTS_MAX = 5;

export class Scroller {
  /** `load(from, to)` fetches the entries of a seq range; `build(entries, from, to)` renders the rows of a page; `failed` is called with the error of a load, and with nothing once one succeeds. */
  constructor({ label, head, load, build, moved, failed }) {
    Object.assign(this, { load, build, moved, failed });
    this.space = h("div.space", { role: "presentation" });
    this.el = h("div.scroller", { tabIndex: 0, role: "region", "aria-label": label }, this.space);
    this.heights = [];
    this.tops = [0];
    this.measured = 0;
    this.sum = 0;
    this.guess = 90 * 20;
    this.pages = new Map();
    this.data = new Map();
    this.loading = new Set();
    this.stale = new Set();
    this.stick = true;
    this.target = null;
    this.sizes = new ResizeObserver((changes) => this.resized(changes));
    this.sizes.observe(this.el);
    this.el.addEventListener("scroll", () => this.scrolled(), { passive: true });
    for (const event of ["wheel", "touchmove", "pointerdown"]) this.el.addEventListener(event, () => (this.target = null), { passive: true });
    this.setHead(head);
  }

  destroy() {
    this.gone = true;
    this.sizes.disconnect();
    cancelAnimationFrame(this.frame);
  }

  get count() { return this.heights.length; }

  setHead(head) {
    this.head = head;
    const count = Math.max(1, Math.ceil(head / PAGE));
    while (this.heights.length < count) this.heights.push(-1);
    this.layout();
    this.soon();
  }

  pageOf(seq) { return Math.min(this.count - 1, Math.max(0, Math.floor((seq - 1) / PAGE))); }

  layout() {
    const guess = Math.min(this.guess, HEIGHT_MAX / this.count);
    const tops = this.tops;
    tops.length = this.count + 1;
    for (let n = 0; n < this.count; n++) tops[n + 1] = tops[n] + (this.heights[n] < 0 ? guess : this.heights[n]);
    this.space.style.height = tops[this.count] + "px";
    for (const [n, el] of this.pages) el.style.top = tops[n] + "px";
  }

  soon() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      if (!this.gone) this.update();
    });
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.el;
    // A change in the size of the view is not a scroll by the user.
    if (this.height !== clientHeight) return this.settle(), this.soon();
    if (!this.moving) this.stick = scrollHeight - scrollTop - clientHeight < 24;
    this.moving = false;
    this.anchor();
    this.soon();
  }

  /** Remembers the topmost visible row and its offset. */
  anchor() {
    const top = this.el.scrollTop;
    this.fixed = null;
    for (const [n, el] of this.pages) {
      if (this.tops[n + 1] <= top || this.tops[n] > top + this.el.clientHeight) continue;
      for (const row of el.children) {
        const y = this.tops[n] + row.offsetTop;
        if (y + row.offsetHeight > top && (!this.fixed || y < this.fixed.at)) {
          this.fixed = { row, n, at: y, y: y - top };
          break;
        }
      }
    }
    if (!this.fixed) {
      const n = this.pageAt(top);
      this.fixed = { n, y: this.tops[n] - top };
    }
  }

  pageAt(y) {
    let low = 0, high = this.count - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.tops[middle + 1] > y) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  move(y) {
    const limit = Math.max(0, this.el.scrollHeight - this.el.clientHeight);
    const to = Math.round(Math.min(limit, Math.max(0, y)));
    if (Math.abs(this.el.scrollTop - to) < 1) return;
    this.moving = true;
    this.el.scrollTop = to;
  }

  /** Restores the scroll position after heights changed: the jump target, the end, or the anchor row. */
  settle() {
    this.measure();
    this.layout();
    this.height = this.el.clientHeight;
    if (this.target) {
      const row = this.rowOf(this.target.seq), n = this.pageOf(this.target.seq);
      this.move(this.tops[n] + (row ? row.offsetTop : 0) - (this.target.above ?? this.el.clientHeight / 4));
    } else if (this.stick) this.move(Infinity);
    else if (this.fixed) {
      const { row, n, y } = this.fixed;
      this.move(this.tops[n] + (row?.isConnected ? row.offsetTop : 0) - y);
    }
  }

  /** Takes the heights of the rendered pages as they are now, and returns whether one changed. */
  measure() {
    // Hidden while another view is shown; all heights are 0 then.
    if (!this.el.clientHeight) return false;
    let changed = false;
    for (const [n, el] of this.pages) {
      const height = el.offsetHeight;
      if (!this.data.has(n) || this.heights[n] === height) continue;
      if (this.heights[n] < 0) {
        this.measured++;
        this.sum += height;
        // The estimate is frozen after a few pages, so that the scrollbar does not drift.
        if (this.measured <= 8) this.guess = Math.max(PAGE * 4, this.sum / this.measured);
      }
      this.heights[n] = height;
      changed = true;
    }
    return changed;
  }

  resized(changes) {
    if (!this.el.clientHeight) return;
    if (!this.measure() && !changes.some(({ target }) => target === this.el)) return;
    this.settle();
    this.soon();
  }

  update() {
    const view = this.el.clientHeight || 800;
    if (this.stick && !this.target) this.move(Infinity);
    const top = this.el.scrollTop;
    const first = this.pageAt(Math.max(0, top - view)), last = this.pageAt(top + 2 * view);
    for (const [n, el] of this.pages) {
      if (n >= first && n <= last) continue;
      if (el.contains(document.activeElement)) this.el.focus({ preventScroll: true });
      this.sizes.unobserve(el);
      el.remove();
      this.pages.delete(n);
    }
    for (let n = first; n <= last; n++) this.show(n);
    // Load the visible pages first.
    const wanted = [];
    for (let n = first; n <= last; n++) if (!this.data.has(n) && !this.loading.has(n)) wanted.push(n);
    const middle = this.pageAt(top + view / 2);
    wanted.sort((a, b) => Math.abs(a - middle) - Math.abs(b - middle));
    for (const n of wanted) if (this.loading.size < REQUESTS_MAX) this.fetch(n);
    if (this.data.size > KEPT_MAX) for (const n of this.data.keys()) if ((n < first - 8 || n > last + 8) && this.data.size > KEPT_MAX / 2) this.data.delete(n);
    // ARIA requires a feed to contain articles.
    this.el.setAttribute("role", this.space.querySelector("article") ? "feed" : "region");
    this.anchor();
    this.moved?.(this);
  }

  show(n) {
    let el = this.pages.get(n);
    if (!el) {
      el = h("div.page", { role: "presentation", data: { page: n } });
      el.style.top = this.tops[n] + "px";
      this.pages.set(n, el);
      // Keep DOM order equal to log order, for screen readers and Tab.
      const next = [...this.space.children].find((other) => Number(other.dataset.page) > n);
      this.space.insertBefore(el, next ?? null);
      this.sizes.observe(el);
      this.fill(n, el);
    }
  }

  fill(n, el) {
    const entries = this.data.get(n);
    if (entries) {
      el.classList.remove("loading");
      el.style.height = "";
      const rows = this.build(entries, n * PAGE + 1, (n + 1) * PAGE);
      // Unchanged rows stay in the DOM, so that focus, selection and open folds survive.
      let at = el.firstChild;
      for (const row of rows) {
        if (row === at) at = at.nextSibling;
        else el.insertBefore(row, at);
      }
      while (at) {
        const next = at.nextSibling;
        at.remove();
        at = next;
      }
    } else {
      el.classList.add("loading");
      el.style.height = (this.tops[n + 1] - this.tops[n]) + "px";
    }
  }

  /** Loads a page; if it is being loaded, then once more after that. */
  async fetch(n) {
    if (this.loading.has(n)) return void this.stale.add(n);
    this.loading.add(n);
    try {
      const entries = await this.load(Math.max(1, n * PAGE + 1 - AROUND), (n + 1) * PAGE + AROUND);
      if (this.gone) return;
      this.data.set(n, entries);
      this.failures = 0;
      this.failed?.(null);
      const el = this.pages.get(n);
      if (el) this.fill(n, el);
    } catch (error) {
      if (this.gone) return;
      this.failures = (this.failures ?? 0) + 1;
      this.failed?.(error);
      await new Promise((resolve) => {
        this.again = resolve;
        setTimeout(resolve, Math.min(5000, 300 * this.failures));
      });
    } finally {
      this.loading.delete(n);
      if (this.stale.delete(n) && !this.gone) this.fetch(n);
      this.soon();
    }
  }

  /** Tries at once what failed. */
  again() {}

  /** Reloads the page of a seq; the old rows stay until the answer arrives. */
  refresh(seq) {
    const n = this.pageOf(seq);
    const pages = [n];
    if ((seq - 1) % PAGE < AROUND && n > 0) pages.push(n - 1);
    for (const page of pages) if (this.pages.has(page) || this.data.has(page)) this.fetch(page);
    this.soon();
  }

  /** Renders the loaded pages again. */
  redraw() {
    for (const [n, el] of this.pages) this.fill(n, el);
  }

  rowOf(seq) { return this.pages.get(this.pageOf(seq))?.querySelector(`[data-seq="${seq}"]`); }

  /** Scrolls to a seq, and keeps it in place while the pages around it load. */
  jump(seq, above) {
    this.stick = false;
    this.target = { seq, above };
    this.settle();
    this.soon();
  }

  toEnd() {
    this.target = null;
    this.stick = true;
    this.settle();
    this.soon();
  }

  /** The rendered rows, in order. */
  rows() { return [...this.space.querySelectorAll("[data-seq]")]; }
}
