// Some runs side by side: the curves of the whole run over each other, and what differs in their params.

class CompareView {
  // tag: "main", or "div" within another view.
  constructor(page, tag = "main") {
    Object.assign(this, { page, board: null, isWhole: tag === "main" });
    this.element = h(tag, {});
  }

  // runs: what is gathered of each, with the curves of the whole run.
  async update(runs) {
    document.title = "compare - raydist";
    const curves = await Promise.all(runs.map((data) => unpackCurves(data.curves)));
    const before = this.board;
    this.close();
    this.board = new Board(0).takeOver(before);
    const charts = [...groupsOf(runs, curves)].map(([name, lines]) => this.board.add(name, lines));
    this.element.replaceChildren(
      ...[this.isWhole ? h("header", { className: "run" }, h("h1", {}, `Compare ${runs.length} runs`)) : null,
        problemList(runs.flatMap((data) => data.problems))].filter(Boolean),
      section("Curves", !charts.length ? "none of them has metrics" : this.isWhole ? "" : `of the best ${runs.length} runs`, this.board.toolbar(), h("div", { className: "charts" }, charts)),
      this.differences(runs));
  }

  differences(runs) {
    const titles = runs.map((data) => h("a", { href: this.page.link("run", [data.run]) }, data.run));
    const rows = [
      ["state", runs.map((data) => data.record.state)],
      ["steps", runs.map((data) => data.record.steps)],
      ["duration", runs.map((data) => formatSeconds(data.record.timings.total))],
      ["attempts", runs.map((data) => data.record.attempts)],
      ["strategy", runs.map((data) => data.record.strategy)],
      ...valuesByName(runs.map((data) => data.record.metrics)),
      ...valuesByName(runs.map((data) => data.record.spec.params || {}), "param "),
    ];
    const body = rows.map(([name, values]) => {
      const differs = new Set(values.map((value) => JSON.stringify(value))).size > 1;
      return h("tr", { className: differs ? "differs" : "" }, h("th", {}, name), values.map((value) => h("td", {}, typeof value === "number" ? formatNumber(value) : formatAny(value))));
    });
    return section("Params and results", "what differs is marked", h("div", { className: "scroll" },
      h("table", { className: "compare" }, h("thead", {}, h("tr", {}, h("th", {}), titles.map((title) => h("th", {}, title)))), h("tbody", {}, body))));
  }

  close() {
    if (this.board) this.board.close();
  }
}

function valuesByName(all, prefix = "") {
  const names = [...new Set(all.flatMap((each) => Object.keys(each)))];
  return names.map((name) => [`${prefix}${name}`, all.map((each) => (name in each ? each[name] : null))]);
}

// The lines of each metric; time is counted from each run's own begin.
function groupsOf(runs, curves) {
  const groups = new Map();
  runs.forEach((data, number) => curves[number].filter((one) => one.scope === "global" && one.attempt === null).forEach((one) => {
    const shifted = { ...one, begunS: one.begunS - (data.timeline.begun_s || one.begunS) };
    if (!groups.has(one.name)) groups.set(one.name, []);
    groups.get(one.name).push({ label: data.run, one: shifted });
  }));
  return groups;
}
