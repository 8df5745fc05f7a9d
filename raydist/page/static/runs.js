// The list of runs: filter, sort, choose some to compare.

const MOST_COMPARED = 10;
const COLUMNS = [
  { name: "run", of: (run) => run.run },
  { name: "state", of: (run) => run.state },
  { name: "job", of: (run) => run.job || "", isMinor: true },
  { name: "steps", of: (run) => run.steps, isNumber: true },
  { name: "metrics", of: (run) => Object.values(run.metrics)[0] ?? null },
  { name: "best", of: (run) => (run.best ? run.best.value : null) },
  { name: "duration", of: (run) => run.duration_s, isNumber: true },
  { name: "strategy", of: (run) => run.strategy || "", isMinor: true },
  { name: "study", of: (run) => run.study || "" },
  { name: "started", of: (run) => run.created_at_s || 0, isNumber: true },
];

class RunsView {
  constructor(page) {
    Object.assign(this, { page, runs: [], chosen: new Set(), sort: { column: COLUMNS[9], isDown: true } });
    this.filter = h("input", { type: "search", placeholder: "filter: name, state, job, lr=0.01", "aria-label": "filter runs", oninput: () => this.show() });
    this.compare = h("button", { type: "button", className: "primary", onclick: () => page.go("compare", [...this.chosen]) });
    this.count = h("span", { className: "hint" });
    this.body = h("tbody", {});
    this.headers = h("tr", {});
    this.problems = h("div", { hidden: true });
    this.place = h("span", { className: "hint" });
    this.element = h("main", {},
      h("header", { className: "run" }, h("h1", {}, "Runs ", this.place)),
      this.problems,
      h("div", { className: "toolbar" }, this.filter, this.compare, this.count),
      h("div", { className: "scroll" }, h("table", { className: "runs" }, h("thead", {}, this.headers), this.body)));
  }

  async update(data) {
    document.title = "runs - raydist";
    this.runs = data.runs;
    this.place.textContent = data.storage;
    this.problems.hidden = !data.problems.length;
    this.problems.replaceChildren(...[problemList(data.problems)].filter(Boolean));
    this.show();
  }

  show() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const { column, isDown } = this.sort;
    const shown = this.runs.filter((run) => words.every((word) => run.words.includes(word)))
      .sort((a, b) => (isDown ? -1 : 1) * compareValues(column.of(a), column.of(b)));
    this.count.textContent = `${shown.length} of ${this.runs.length} runs`;
    this.hasStudies = this.runs.some((run) => run.study);
    const columns = COLUMNS.filter((one) => one.name !== "study" || this.hasStudies);
    redraw(this.headers, () => this.headers.replaceChildren(h("th", {}), ...columns.map((one) => h("th", { className: `${one.isNumber ? "number" : ""} ${one.isMinor ? "minor" : ""}` },
      h("button", { type: "button", "aria-pressed": String(one === column), onclick: () => this.sortBy(one) },
        one.name, one === column ? (isDown ? " ↓" : " ↑") : "")))));
    this.body.replaceChildren(...shown.map((run) => this.row(run)));
    this.tellChosen();
  }

  sortBy(column) {
    this.sort = { column, isDown: this.sort.column === column ? !this.sort.isDown : column.isNumber || false };
    this.show();
  }

  row(run) {
    const choose = h("input", { type: "checkbox", checked: this.chosen.has(run.run), "aria-label": `compare ${run.run}`, onchange: () => {
      if (choose.checked && this.chosen.size >= MOST_COMPARED) choose.checked = false;
      else if (choose.checked) this.chosen.add(run.run);
      else this.chosen.delete(run.run);
      this.tellChosen();
    } });
    const metric = (name, value) => h("span", { className: "metric" }, `${name} `, h("b", {}, formatNumber(value)));
    const metrics = Object.entries(run.metrics).slice(0, 3).flatMap(([name, value]) => [metric(name, value), " "]);
    return h("tr", {}, h("td", {}, choose),
      h("td", { className: "text" }, h("a", { href: this.page.link("run", [run.run]) }, run.run)),
      h("td", {}, stateBadge(run.state)), h("td", { className: "minor text" }, run.job || "–"),
      h("td", { className: "number" }, formatNumber(run.steps)), h("td", { className: "values" }, metrics),
      h("td", { className: "values" }, run.best ? metric(run.best.name, run.best.value) : "–"),
      h("td", { className: "number" }, formatSeconds(run.duration_s)), h("td", { className: "minor text" }, run.strategy || "–"),
      this.hasStudies ? h("td", { className: run.study ? "study" : "minor" }, run.study ? h("a", { href: this.page.link("study", [run.study]) }, run.study) : "–") : null,
      h("td", { className: "number" }, formatTime(run.created_at_s)));
  }

  tellChosen() {
    this.compare.disabled = this.chosen.size < 2;
    this.compare.textContent = this.chosen.size < 2 ? "compare: choose 2 to 10" : `compare ${this.chosen.size}`;
  }

  close() {}
}

function compareValues(a, b) {
  if (a === null || b === null) return a === b ? 0 : a === null ? -1 : 1;
  return typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}
