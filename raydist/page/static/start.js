// Shows the report that this file holds; or, served by `raydist ui`, what its address names, and keeps it new.

const POLL_MS = 2000;

class Page {
  constructor() {
    this.banner = h("div", { className: "banner bad", role: "alert", hidden: true });
    this.shown = h("div", {});
    this.number = 0;
    document.body.append(h("nav", {}, h("a", { href: "#", className: "brand" }, "raydist"), h("span", { id: "crumb", className: "hint" })), this.banner, this.shown);
    addEventListener("hashchange", () => this.open());
  }

  link(view, names) {
    return `#${view}=${names.map(encodeURIComponent).join(",")}`;
  }

  go(view, names) {
    location.hash = this.link(view, names);
  }

  async open() {
    const number = ++this.number;
    if (this.view) this.view.close();
    const [kind, names] = parseAddress(location.hash);
    this.view = shownRun = new ({ run: RunView, compare: CompareView, study: StudyView, runs: RunsView })[kind](this);
    const wait = h("p", { className: "hint wait" }, "reading …");
    this.shown.replaceChildren(wait, this.view.element);
    this.view.element.hidden = true;
    const load = { run: () => this.loadRun(names[0]), compare: () => this.loadCompared(names), study: () => this.loadStudy(names[0]), runs: () => this.ask("api/runs") }[kind];
    this.curvesSeen = null;
    while (number === this.number) {
      const begunMs = performance.now();
      const isOver = await this.refresh(load, number);
      // An answer that takes long is asked for less often.
      const pauseMs = Math.max(POLL_MS, 4 * (performance.now() - begunMs));
      if (isOver || number !== this.number) return;
      await new Promise((done) => setTimeout(done, pauseMs));
      while (document.hidden) await new Promise((done) => setTimeout(done, 500));
    }
  }

  // Returns whether there is nothing more to come.
  async refresh(load, number) {
    try {
      const data = await load();
      if (number !== this.number) return true;
      await keepingFocus(this.view.element, () => this.view.update(data));
      if (number !== this.number) return true;
      if (this.view.element.hidden) this.shown.firstChild.remove();
      document.body.dataset.ready = String(1 + Number(document.body.dataset.ready || 0));
      this.view.element.hidden = false;
      this.lastMs = Date.now();
      this.banner.hidden = true;
      return Boolean(data.is_over) && !data.problems.length;
    } catch (error) {
      if (number !== this.number) return true;
      const since = this.lastMs ? ` This is what was there at ${formatTime(this.lastMs / 1000)}.` : "";
      this.banner.replaceChildren(h("b", {}, error.message), h("span", {}, `${since} Trying again.`));
      this.banner.hidden = false;
      return false;
    }
  }

  async ask(path) {
    let response;
    try {
      response = await fetch(path, { cache: "no-store" });
    } catch {
      throw new Error("`raydist ui` does not answer; it may have been stopped.");
    }
    const data = await response.json();
    if (!response.ok) throw new Error(data.problem);
    return data;
  }

  async loadRun(name) {
    const have = this.curvesSeen ? `?have=${encodeURIComponent(this.curvesSeen)}` : "";
    const data = await this.ask(`api/run/${encodeURIComponent(name)}${have}`);
    this.curvesSeen = data.curves_version;
    return data;
  }

  async loadStudy(name) {
    const study = await this.ask(`api/study/${encodeURIComponent(name)}`);
    const compared = await this.loadCompared(study.runs.slice(0, MOST_COMPARED).map((run) => run.run));
    // Further runs may come, so nothing says that it is over.
    return { ...study, compared, is_over: false };
  }

  async loadCompared(names) {
    const runs = await Promise.all(names.map((name) => this.ask(`api/run/${encodeURIComponent(name)}?compared=1`)));
    return Object.assign(runs, { is_over: runs.every((data) => data.is_over), problems: runs.flatMap((data) => data.problems) });
  }
}

// What has the focus is drawn anew by an update: its successor gets it.
async function keepingFocus(element, update) {
  const before = element.contains(document.activeElement) ? document.activeElement : null;
  const nameOf = (one) => `${one.getAttribute("aria-label")} ${one.getAttribute("href")} ${one.textContent}`;
  const name = before && nameOf(before);
  await update();
  if (!before || before.isConnected) return;
  const after = [...element.querySelectorAll(before.tagName)].find((one) => nameOf(one) === name);
  if (after) after.focus({ preventScroll: true });
}

function parseAddress(hash) {
  const [kind, names] = hash.slice(1).split("=");
  const known = (names || "").split(",").filter(Boolean).map(decodeURIComponent);
  return ["run", "compare", "study"].includes(kind) && known.length ? [kind, known] : ["runs", []];
}

// What is on the page, for whoever looks at it from the console.
let shownRun = null;

(async () => {
  const stored = document.getElementById("data");
  if (!stored) { new Page().open(); return; }
  shownRun = new RunView(null);
  document.body.append(h("nav", {}, h("span", { className: "brand" }, "raydist")), shownRun.element);
  await shownRun.update(JSON.parse(stored.textContent));
  document.body.dataset.ready = "1";
})();
