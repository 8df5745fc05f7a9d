// The runs of a study: a table with the params that differ, the best run first, and the curves of the best ones.

class StudyView {
  constructor(page) {
    this.page = page;
    this.title = h("h1", {}, "Study");
    this.problems = h("div", { hidden: true });
    this.comparison = h("div", {});
    this.table = h("div", {});
    this.curves = new CompareView(page, "div");
    this.element = h("main", {}, h("header", { className: "run" }, this.title), this.problems, this.comparison, this.table, this.curves.element);
    this.curves.element.className = "inner";
  }

  // data: the study, and in `compared` what is gathered of its best runs.
  async update(data) {
    this.title.replaceChildren(`Study ${data.study} `, h("span", { className: "hint" }, data.metric ? `${data.metric}, ${data.mode === "max" ? "highest" : "lowest"} first` : ""));
    this.problems.hidden = !data.problems.length;
    this.problems.replaceChildren(...[problemList(data.problems)].filter(Boolean));
    this.comparison.replaceChildren(...this.compared(data.comparison));
    const headers = ["", "run", "state", ...data.params, data.metric || "best", "steps", "duration"];
    const rows = data.runs.map((run, place) => [
      place + 1, h("a", { href: this.page.link("run", [run.run]) }, run.run), stateBadge(run.state),
      ...data.params.map((name) => (typeof run.params[name] === "number" ? formatNumber(run.params[name]) : formatAny(run.params[name]))),
      formatNumber(run.value), formatNumber(run.steps), formatSeconds(run.duration_s),
    ]);
    const numeric = headers.map((name, place) => place).filter((place) => place > 2);
    this.table.replaceChildren(section("Runs", "", table(headers, rows, numeric)));
    await this.curves.update(data.compared);
    document.title = `${data.study} - raydist`;
  }

  // told: what `raydist compare` has found, or null.
  compared(told) {
    if (!told) return [];
    const numeric = told.headers.map((name, place) => place).slice(1);
    const source = `data:image/svg+xml,${encodeURIComponent(told.picture)}`;
    return [section("Comparison", told.sentence || "",
      table(told.headers, told.cells.map((row) => row.map(formatNumber)), numeric),
      h("img", { src: source, alt: "what the table says, drawn", className: "picture" }))];
  }

  close() {
    this.curves.close();
  }
}
