// One chart of some lines, and the board of all charts, which zoom together.

const CHART_HEIGHT = 210;
const MOST_LINES_SHOWN = 8;
const MOST_CHIPS = 200;

class Board {
  // axis: "step" or "time"; isLog: whether y is logarithmic; zoom: [min, max] of x, null for all; choices: by
  // chart and line, whether somebody chose to see it.
  constructor(originS) {
    Object.assign(this, { axis: "step", isLog: false, zoom: null, charts: [], originS, sync: uPlot.sync(`b${Board.made++}`) });
    this.choices = new Map();
    this.resizing = new ResizeObserver(() => this.charts.forEach((chart) => chart.fit()));
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.onScheme = () => this.redraw();
    this.scheme.addEventListener("change", this.onScheme);
  }

  // lines: [{label, one: unpacked curve, of: number of the line that it is an earlier attempt's part of}];
  // marks: {attempts, trainings, checkpoints}; format: of y.
  add(title, lines, { key = title, marks, format = formatNumber, formatAxis = shortNumber, hint = "" } = {}) {
    const chart = new Chart(this, title, lines, { key, marks, format, formatAxis, hint });
    this.charts.push(chart);
    this.resizing.observe(chart.plotHost);
    return chart.element;
  }

  toolbar() {
    const choice = (label, isOn, choose) => h("button", { type: "button", "aria-pressed": String(isOn), onclick: choose }, label);
    const bar = h("div", { className: "toolbar" });
    const step = (sign, name, factor, shift) => h("button", { type: "button", "aria-label": name, title: name, onclick: () => this.move(factor, shift) }, sign);
    const fill = () => redraw(bar, () => bar.replaceChildren(
      h("span", { className: "group", role: "group", "aria-label": "x axis" },
        choice("step", this.axis === "step", () => set({ axis: "step", zoom: null })),
        choice("time", this.axis === "time", () => set({ axis: "time", zoom: null }))),
      h("span", { className: "group" }, choice("log scale", this.isLog, () => set({ isLog: !this.isLog }))),
      h("span", { className: "group", role: "group", "aria-label": "what is shown" },
        step("←", "earlier", 1, -0.5), step("+", "zoom in", 0.5, 0), step("−", "zoom out", 2, 0), step("→", "later", 1, 0.5)),
      h("button", { type: "button", className: "reset", disabled: !this.zoom, onclick: () => this.zoomTo(null) }, "reset zoom"),
      h("span", { className: "hint drag" }, "drag to zoom, double-click to reset")));
    const set = (change) => { Object.assign(this, change); fill(); this.redraw(); };
    this.onZoom = fill;
    fill();
    return bar;
  }

  // Shows `factor` times as much of x, and moves by a share of it; all of x is the most that is shown.
  move(factor, shift) {
    const ends = this.charts.map(({ all }) => all).filter(Boolean);
    if (!ends.length) return;
    const [first, last] = [Math.min(...ends.map(([from]) => from)), Math.max(...ends.map(([, to]) => to))];
    const [min, max] = this.zoom || [first, last];
    const width = factor * (max - min);
    const from = Math.max(first, Math.min(last - width, (min + max - width) / 2 + shift * (max - min)));
    this.zoomTo(width < last - first ? [from, from + width] : null);
  }

  zoomTo(range) {
    this.zoom = range;
    if (this.onZoom) this.onZoom();
    this.charts.forEach((chart) => chart.show());
  }

  redraw() {
    this.charts.forEach((chart) => chart.draw());
  }

  // What was chosen on a board goes on with the one in its place.
  takeOver(before) {
    if (before) Object.assign(this, { axis: before.axis, isLog: before.isLog, zoom: before.zoom, choices: before.choices });
    return this;
  }

  close() {
    this.resizing.disconnect();
    this.scheme.removeEventListener("change", this.onScheme);
    this.charts.forEach((chart) => chart.close());
    this.charts = [];
  }
}
Board.made = 0;

class Chart {
  constructor(board, title, lines, { key, marks, format, formatAxis, hint }) {
    Object.assign(this, { board, lines, marks, format, formatAxis, plot: null, width: 0 });
    this.choiceOf = (number) => `${key} ${lines[number].label}`;
    this.chips = lines.slice(0, MOST_CHIPS).map((line, number) => this.chip(line, number));
    const odd = lines.reduce((sum, { one }) => sum + one.odd, 0);
    const note = odd ? `${formatNumber(odd)} values are NaN or infinite` : hint;
    this.where = h("span", { className: "where" });
    this.plotHost = h("div", { className: "plot" });
    this.element = h("figure", { className: "chart" },
      h("figcaption", {}, h("h3", {}, title), this.where, note ? h("span", { className: odd ? "hint warn" : "hint" }, note) : null),
      this.plotHost,
      h("div", { className: "chips" }, this.chips.map(({ element }) => element)));
  }

  isShown(number) {
    const [choice, { of }] = [this.board.choices.get(this.choiceOf(number)), this.lines[number]];
    if (choice !== undefined) return choice;
    return of === undefined ? number < MOST_LINES_SHOWN : this.isShown(of);
  }

  chip(line, number) {
    const value = h("span", { className: "value" });
    const toggle = () => {
      this.board.choices.set(this.choiceOf(number), !this.isShown(number));
      this.chips.forEach((one, other) => one.element.setAttribute("aria-pressed", String(this.isShown(other))));
      if (this.plot) this.lines.forEach((_, other) => this.plot.setSeries(other + 1, { show: this.isShown(other) }));
      this.show();
    };
    const swatch = h("i", { className: line.of === undefined ? "" : "repeated" });
    const element = h("button", { type: "button", className: "chip", onclick: toggle, "aria-pressed": String(this.isShown(number)) },
      swatch, h("span", {}, line.label), value);
    return { element, value, swatch };
  }

  // Charts are drawn once they have a width, and then again for another one.
  fit() {
    const width = Math.floor(this.plotHost.clientWidth);
    if (!width || width === this.width) return;
    this.width = width;
    if (this.plot) { this.plot.setSize({ width, height: CHART_HEIGHT }); this.show(); }
    else this.draw();
  }

  draw() {
    if (!this.width) return;
    if (this.plot) this.plot.destroy();
    const { axis, isLog, originS } = this.board;
    this.over = this.lines.map(({ one }) => lineOver(one, axis, originS));
    const ends = this.over.filter(({ x }) => x.length).map(({ x }) => [x[0], x[x.length - 1]]);
    this.all = [Math.min(...ends.map(([from]) => from)), Math.max(...ends.map(([, to]) => to))];
    if (this.all[0] === this.all[1]) this.all = [this.all[0] - 0.5, this.all[1] + 0.5];
    this.chips.forEach(({ swatch }, number) => { swatch.style.background = this.colorOf(number); });
    this.plot = new uPlot(this.options(axis, isLog), this.data(), this.plotHost);
  }

  colorOf(number) {
    const { of } = this.lines[number];
    return lineColor(of === undefined ? number : of);
  }

  data() {
    const [min, max] = this.board.zoom || this.all;
    const shown = this.over.map((line, number) => (this.isShown(number) ? line : null));
    return pointsInView(shown, min, max, Math.min(this.width, 1200), this.board.isLog);
  }

  show() {
    if (!this.plot) return;
    const [min, max] = this.board.zoom || this.all;
    this.plot.batch(() => { this.plot.setData(this.data(), false); this.plot.setScale("x", { min, max }); });
  }

  options(axis, isLog) {
    const grid = { stroke: color("grid"), width: 1 };
    const look = { stroke: color("muted"), grid, ticks: { ...grid, size: 4 }, font: "11px system-ui, sans-serif" };
    const x = axis === "step" ? (values) => values.map((v) => (v === null ? "" : shortNumber(v))) : (values) => values.map((v) => shortSeconds(v));
    const range = this.board.zoom || this.all;
    return {
      width: this.width, height: CHART_HEIGHT, padding: [8, 16, 0, 0], legend: { show: false },
      scales: {
        x: { time: false, auto: false, min: range[0], max: range[1] },
        y: { distr: isLog ? 3 : 1, log: 10, range: isLog ? logRange : linearRange },
      },
      axes: [
        { ...look, size: 26, gap: 4, space: 60, values: (_, splits) => x(splits) },
        { ...look, size: axisWidth, gap: 4, space: 30, values: (_, splits) => distinctLabels(splits, this.formatAxis) },
      ],
      cursor: {
        // Only the cursor is shared: a shared selection would be zoomed to once by each chart.
        sync: { key: this.board.sync.key, setSeries: false, filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
        drag: { x: true, y: false, setScale: false }, y: false,
        points: { size: 6 }, bind: { dblclick: () => () => this.board.zoomTo(null) },
      },
      series: [{}, ...this.lines.map((line, number) => ({
        label: line.label, show: this.isShown(number), stroke: this.colorOf(number), width: 1.4,
        ...(line.of === undefined ? {} : { dash: [5, 4], alpha: 0.55 }),
        points: { show: (plot, place) => plot.data[place].filter((v) => v !== undefined && v !== null).length < (line.of === undefined ? 40 : 2), size: 4 },
      }))],
      hooks: {
        setSelect: [(plot) => {
          if (plot.select.width < 4) return;
          const range = [plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")];
          plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          this.board.zoomTo(range);
        }],
        setCursor: [(plot) => this.tellValues(plot)],
        draw: [(plot) => this.drawMarks(plot)],
      },
    };
  }

  tellValues(plot) {
    const place = plot.cursor.idx;
    const isOn = place !== null && place !== undefined && plot.cursor.left >= 0;
    const at = isOn ? plot.data[0][place] : null;
    this.where.textContent = !isOn ? "" : this.board.axis === "step" ? `step ${formatNumber(Math.round(at))}` : `${formatSeconds(Math.max(0, at))}`;
    this.chips.forEach(({ value }, number) => {
      let i = isOn ? place : -1;
      const column = plot.data[number + 1];
      while (i >= 0 && column[i] === undefined) i--;
      value.textContent = i < 0 ? "" : this.format(column[i]);
    });
  }

  drawMarks(plot) {
    if (!this.marks) return;
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio;
    const along = (mark) => (this.board.axis === "step" ? mark.step : mark.at_s - this.board.originS);
    const inView = (mark) => Number.isFinite(along(mark)) && along(mark) >= plot.scales.x.min && along(mark) <= plot.scales.x.max;
    ctx.save();
    ctx.lineWidth = ratio;
    ctx.textAlign = "left";
    ctx.font = `${10 * ratio}px system-ui, sans-serif`;
    [["attempt", this.marks.attempts], ["fit", this.marks.trainings]].forEach(([kind, marks], row) => {
      ctx.strokeStyle = ctx.fillStyle = color(kind);
      ctx.setLineDash(kind === "fit" ? [] : [4 * ratio, 3 * ratio]);
      let free = -Infinity; // where the next name does not cover the one before
      for (const mark of (marks || []).filter(inView)) {
        const x = Math.round(plot.valToPos(along(mark), "x", true));
        ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
        if (x < free) continue;
        ctx.fillText(mark.name, x + 4 * ratio, bbox.top + (10 + 12 * row) * ratio);
        free = x + 8 * ratio + ctx.measureText(mark.name).width;
      }
    });
    ctx.setLineDash([]);
    ctx.fillStyle = color("checkpoint");
    for (const mark of (this.marks.checkpoints || []).filter(inView)) {
      const [x, y, size] = [plot.valToPos(along(mark), "x", true), bbox.top + bbox.height, 4 * ratio];
      ctx.beginPath(); ctx.moveTo(x - size, y); ctx.lineTo(x + size, y); ctx.lineTo(x, y - 1.6 * size); ctx.fill();
    }
    ctx.restore();
  }

  close() {
    if (this.plot) this.plot.destroy();
    this.plot = null;
  }
}

function linearRange(_plot, min, max) {
  if (min === null || min === undefined) return [0, 1];
  return uPlot.rangeNum(min, max, 0.08, true);
}

function logRange(_plot, min, max) {
  if (!(min > 0)) return [0.1, 1];
  return min === max ? [min / 2, max * 2] : [min / 1.15, max * 1.15];
}

// The ticks of an axis, with as many digits as they need to differ.
function distinctLabels(values, format) {
  let labels = [];
  for (let digits = 4; digits <= 9; digits++) {
    labels = values.map((value) => (value === null ? "" : format(value, digits)));
    const told = labels.filter(Boolean);
    if (new Set(told).size === told.length) break;
  }
  return labels;
}

function axisWidth(_plot, labels) {
  return Math.max(52, 16 + 6.2 * Math.max(...(labels || []).map((label) => label.length)));
}

function shortNumber(value, digits = 4) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(digits))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(digits))}k`;
  if (size !== 0 && size < 1e-3) return value.toExponential(digits - 4);
  return String(Number(value.toPrecision(digits)));
}

function shortSeconds(value, digits = 4) {
  if (value === null) return "";
  if (value >= 3600) return `${Number((value / 3600).toPrecision(digits - 1))} h`;
  if (value >= 120) return `${Number((value / 60).toPrecision(digits - 1))} min`;
  if (value !== 0 && Math.abs(value) < 1) return `${Number((value * 1000).toPrecision(digits - 1))} ms`;
  return `${Number(value.toPrecision(digits))} s`;
}
