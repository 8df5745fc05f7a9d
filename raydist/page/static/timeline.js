// What each task did when: a row of bars for each.

const MOST_ROWS = 40;
const STAGES = ["waiting", "starting", "running", "lost", "replaced"];

function timelineView(timeline) {
  const [begunS, spanS] = [timeline.begun_s, Math.max(timeline.end_s - timeline.begun_s, 0.001)];
  const along = (atS) => `${(100 * Math.min(1, Math.max(0, (atS - begunS) / spanS))).toFixed(3)}%`;
  const rows = timeline.rows.map(({ task, bars }) => h("div", { className: "row" },
    h("span", { className: "task" }, task),
    h("div", { className: "bars" }, bars.map((bar) => barView(bar, along, begunS)))));
  const marks = timeline.marks.filter((mark) => mark.kind !== "note").map((mark) =>
    h("span", { className: `mark ${mark.kind}`, title: `${formatSeconds(mark.at_s - begunS)}: ${mark.text}`, style: { left: along(mark.at_s) } }));
  const attempts = timeline.attempts.map((one) =>
    h("span", { className: "attempt", title: `attempt ${one.attempt}`, style: { left: along(one.from_s) } }, `attempt ${one.attempt}`));
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) =>
    h("span", { style: { left: `${100 * share}%` } }, formatSeconds(share * spanS)));
  const body = h("div", { className: "rows" }, rows.slice(0, MOST_ROWS));
  const more = rows.length > MOST_ROWS ? h("button", { type: "button", onclick: () => { body.append(...rows.slice(MOST_ROWS)); more.remove(); } },
    `show all ${rows.length} tasks`) : null;
  return h("div", { className: "timeline" },
    h("div", { className: "legend" }, STAGES.map((stage) => h("span", {}, h("i", { className: stage }), stage))),
    h("div", { className: "row head" }, h("span", { className: "task" }), h("div", { className: "bars" }, attempts, marks)),
    body, more,
    h("div", { className: "row axis" }, h("span", { className: "task" }), h("div", { className: "bars" }, ticks)));
}

function barView(bar, along, begunS) {
  const where = bar.host ? ` on ${bar.host}` : "";
  const process = bar.incarnation ? `, process ${bar.incarnation + 1} of attempt ${bar.attempt}` : `, attempt ${bar.attempt}`;
  const ended = bar.end && bar.end !== "running" ? `, then ${bar.end}` : "";
  const title = `${bar.stage}${where}${process}: ${formatSeconds(bar.from_s - begunS)} to ${formatSeconds(bar.to_s - begunS)}${ended}`;
  const width = `calc(${along(bar.to_s)} - ${along(bar.from_s)})`;
  const names = ["bar", bar.stage, bar.end === "failed" ? "failed" : "", bar.incarnation && bar.stage === "waiting" ? "replacement" : ""];
  return h("span", { className: names.join(" "), title, style: { left: along(bar.from_s), width } });
}
