// The page of one run, of what raydist.page.gathering gathers.

const TIMINGS = [["ray", "Ray"], ["placement", "placement"], ["tasks_ready", "tasks ready"], ["first_step", "first step"]];
const LEFT_OUT = new Set(["params", "param_types", "entry_point", "name", "args", "resources"]);

class RunView {
  constructor(page) {
    this.page = page;
    this.board = null;
    this.parts = new Map();
    this.element = h("main", {});
  }

  // Takes what is gathered; `curves` is absent where they are as they were.
  async update(data) {
    this.data = data;
    document.title = `${data.run} - raydist`;
    const curves = data.curves ? await unpackCurves(data.curves) : null;
    this.put("head", runHead(data));
    this.put("problems", problemList(data.problems));
    this.put("failures", failureList(data));
    if (curves && this.board && this.element.querySelector(".u-over:active")) this.page.curvesSeen = null; // not while dragging
    else if (curves) { this.curves = data.curves; this.drawCurves(data, curves); }
    this.put("timeline", data.timeline.rows.length ? section("Timeline", "", timelineView(data.timeline)) : null);
    this.put("workers", workerTable(data, this.curves.workers));
    this.put("launch", launchView(data.record.timings));
    this.put("facts", factsView(data));
    this.put("checkpoints", checkpointTable(data.checkpoints));
    this.put("foot", h("footer", {}, `made by raydist, ${formatTime(data.made_at_s)}`));
  }

  put(name, element) {
    const [shown, before] = [element || h("div", { hidden: true }), this.parts.get(name)];
    if (!before) this.element.append(shown);
    else if (before.isEqualNode(shown)) return; // what is selected or scrolled in it stays so
    else {
      const opened = new Set([...before.querySelectorAll("details[open]")].map((one) => one.firstChild.textContent));
      shown.querySelectorAll("details").forEach((one) => { one.open = one.open || opened.has(one.firstChild.textContent); });
      before.replaceWith(shown);
    }
    this.parts.set(name, shown);
  }

  drawCurves(data, curves) {
    const before = this.board;
    if (before) before.close();
    this.board = new Board(data.timeline.begun_s).takeOver(before);
    const chief = curves.find((one) => one.scope === "global") || curves[0];
    const attempts = data.curves.attempts.slice(1).map((mark) => ({ ...mark, name: `attempt ${mark.attempt}` }));
    const marks = { attempts, trainings: withTimes(data.trainings, chief), checkpoints: withTimes(data.checkpoints, chief) };
    const groups = chartsOf(curves);
    const charts = (scope) => groups.filter((group) => group.scope === scope).map((group) =>
      this.board.add(group.title, group.lines, { key: `${scope} ${group.title}`, marks, ...LOOKS[group.title] }));
    const [whole, own] = [charts("global"), charts("local")];
    const total = data.curves.points;
    const held = data.curves.series.reduce((sum, one) => sum + one.step.n, 0);
    const points = held < total ? `${formatNumber(total)} points, thinned to ${formatNumber(held)}; each peak is kept` : `${formatNumber(total)} points`;
    const leftOut = data.curves.tasks_left_out;
    const hint = leftOut ? `${points}; without those of ${formatNumber(leftOut)} more tasks` : points;
    this.put("curves", !curves.length ? section("Curves", "no metrics are stored yet") : section("Curves", hint, this.board.toolbar(),
      h("div", { className: "key" }, data.checkpoints.length ? h("span", {}, h("i", { className: "triangle" }), "checkpoint") : null,
        marks.attempts.length ? h("span", {}, h("i", { className: "dash" }), "a new attempt begins") : null,
        marks.trainings.length ? h("span", {}, h("i", { className: "dash training" }), "another training begins") : null,
        curves.some((one) => one.attempt !== null) ? h("span", {}, h("i", { className: "dash repeated" }), "repeated by a later attempt") : null),
      whole.length ? h("div", { className: "charts" }, whole) : null,
      own.length ? [h("h3", { className: "sub" }, "Each task"), h("div", { className: "charts" }, own)] : null));
  }

  close() {
    if (this.board) this.board.close();
  }
}

const formatShare = (value) => `${formatNumber(100 * value)} %`;
const shortShare = (value, digits) => `${shortNumber(100 * value, digits)} %`;
const LOOKS = {
  step_time: { format: formatSeconds, formatAxis: shortSeconds, hint: "seconds per step" },
  input_wait: { format: formatShare, formatAxis: shortShare, hint: "share of the time" },
  collective_wait: { format: formatShare, formatAxis: shortShare, hint: "share of the time" },
  examples_per_s: { hint: "examples per second" },
};
const ORDER = ["step_time", "input_wait", "collective_wait", "examples_per_s", "loss", "accuracy"];

// A chart for each metric; a metric and its `val_` counterpart share one. What a later attempt repeated of a line
// comes after all lines, with the number of its line.
function chartsOf(curves) {
  const groups = new Map();
  const numTasks = (scope, name) => new Set(curves.filter((one) => one.scope === scope && one.name === name).map((one) => one.task)).size;
  for (const one of curves) {
    const title = one.name.replace(/^val_/, "");
    const key = `${one.scope} ${title}`;
    if (!groups.has(key)) groups.set(key, { scope: one.scope, title, lines: [] });
    const label = one.scope === "local" ? one.task : numTasks("global", one.name) > 1 ? `${one.name} ${one.task}` : one.name;
    groups.get(key).lines.push({ label, one });
  }
  for (const group of groups.values()) {
    const whole = group.lines.filter(({ one }) => one.attempt === null);
    const repeated = group.lines.filter(({ one }) => one.attempt !== null).map(({ label, one }) =>
      ({ label: `${label}, attempt ${one.attempt}`, one, of: whole.findIndex((line) => line.label === label) }));
    group.lines = [...whole, ...repeated];
  }
  const place = ({ title }) => (ORDER.includes(title) ? ORDER.indexOf(title) : ORDER.length);
  return [...groups.values()].sort((a, b) => place(a) - place(b));
}

// Checkpoints with the time at which their step was reported.
function withTimes(checkpoints, one) {
  if (!one || !one.step.length) return checkpoints;
  return checkpoints.map((checkpoint) => {
    const place = Math.min(lowerBound(one.step, checkpoint.step), one.step.length - 1);
    return { ...checkpoint, at_s: one.begunS + one.time[place] / one.ticksPerS };
  });
}

function runHead(data) {
  const { record } = data;
  const endS = record.updated_at_s;
  const metrics = Object.entries(record.metrics || {}).slice(0, 6).map(([name, value]) => fact(name, formatNumber(value)));
  const age = !data.is_over && endS ? fact("as of", formatTime(endS)) : null;
  return h("header", { className: "run" },
    h("h1", {}, data.run, " ", stateBadge(record.state)),
    h("div", { className: "figures" },
      fact("steps", formatNumber(record.steps)), metrics,
      fact("duration", formatSeconds(record.timings && record.timings.total)),
      fact("attempts", formatNumber(record.attempts)),
      fact("strategy", record.strategy || "–"), fact("started", formatTime(record.created_at_s)), age));
}

const fact = (name, value) => h("div", { className: "figure" }, h("span", {}, name), h("b", {}, value));

function problemList(problems) {
  if (!problems.length) return null;
  return h("div", { className: "banner warn", role: "alert" }, h("b", {}, "Part of this run cannot be read"),
    h("ul", {}, problems.map((sentence) => h("li", {}, sentence))));
}

function failureList(data) {
  const causes = data.failures.filter((failure) => failure.is_cause).reverse();
  if (!causes.length) return null;
  const isFinal = data.record.state === "FAILED";
  return section("Failures", isFinal ? "" : "the run went on after each of them", causes.map((failure, number) => {
    const where = [failure.task, failure.attempt !== null && failure.attempt !== undefined ? `attempt ${failure.attempt}` : null,
      failure.step ? `step ${formatNumber(failure.step)}` : null].filter(Boolean).join(", ");
    const also = data.failures.filter((other) => !other.is_cause && other.attempt === failure.attempt).map((other) => other.task);
    return h("article", { className: "failure" },
      h("p", {}, h("b", {}, failure.type || "failed"), where ? h("span", { className: "hint" }, where) : null),
      h("p", {}, failure.message),
      also.length ? h("p", { className: "hint" }, `failed because of it: ${also.join(", ")}`) : null,
      failure.log_end ? h("details", { open: number === 0 && isFinal }, h("summary", {}, "end of its log"),
        h("pre", {}, failure.log_end)) : null);
  }));
}

const shareText = (share) => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(1)} %`);

function workerTable(data, measured) {
  // The coordinator of parameter servers measures the workers, which report no series themselves.
  const others = data.record.tasks.filter((task) => task.step_s && !measured.some((one) => one.task === task.task));
  const named = new Map((data.record.stragglers || []).filter((one) => !one.is_over && one.cause !== "network").map((one) => [one.task, one.times_slower]));
  const workers = [...measured, ...others.map((one) => ({ ...one, times_slower: named.get(one.task) || null }))];
  if (!workers.length) return null;
  const slow = workers.filter((one) => one.times_slower);
  const causes = new Map((data.record.stragglers || []).filter((one) => !one.is_over).map((one) => [one.task, one.cause]));
  const because = (task) => (causes.has(task) ? ` (likely cause: ${causes.get(task)})` : "");
  const told = slow.map((one) => `${one.task} is ${one.times_slower.toFixed(1)} times slower than the median${because(one.task)}`);
  const onSlowLinks = [...causes].filter(([, cause]) => cause === "network").map(([task]) => task);
  if (onSlowLinks.length) told.push(`the network of ${onSlowLinks.join(" and ")} is slow`);
  const hint = told.length ? told.join("; ") : workers.length > 1 ? "no task is 1.5 times slower than the median" : "";
  const places = new Map(data.record.tasks.map((task) => [task.task, task]));
  const rows = workers.slice(0, 200).map((one) => [h("span", { className: one.times_slower || onSlowLinks.includes(one.task) ? "slow" : "" }, one.task),
    (places.get(one.task) || {}).host || "–", formatSeconds(one.step_s),
    shareText(one.input_wait), shareText(one.collective_wait)]);
  return section("Workers", hint, table(["task", "host", "step time", "input wait", "collective wait"], rows, [2, 3, 4]));
}

function launchView(timings) {
  let before = 0;
  const phases = TIMINGS.filter(([key]) => timings && typeof timings[key] === "number").map(([key, name], number) => {
    const seconds = Math.max(0, timings[key] - before);
    before = Math.max(before, timings[key]);
    return { name, seconds, number };
  });
  if (!phases.length) return null;
  const told = phases.filter(({ seconds }) => seconds > 0);
  const bars = told.map(({ name, seconds, number }) => h("span", { className: `phase p${number}`, title: `${name}: ${formatSeconds(seconds)}`,
    style: { flexGrow: String(Math.max(seconds, before / 200)) } }));
  const reached = typeof timings.first_step === "number" ? "until the first step" : "without a step";
  return section("Launch", `${formatSeconds(before)} ${reached}`, h("div", { className: "phases" }, bars),
    h("div", { className: "legend" }, told.map(({ name, seconds, number }) => h("span", {}, h("i", { className: `phase p${number}` }), `${name} ${formatSeconds(seconds)}`))));
}

const MAIN_PACKAGES = ["python", "tensorflow", "keras", "tf-keras", "ray", "raydist"];

function factsView(data) {
  const { record } = data;
  const { plan, spec } = record;
  const params = Object.entries(spec.params || plan.params || {});
  const roles = (plan.roles || []).map((role) => `${role.num_tasks} ${role.task_type}${role.num_tasks > 1 && role.task_type !== "ps" ? "s" : ""} (${role.cpus} CPU${role.gpus ? `, ${role.gpus} GPU` : ""}${role.num_tasks > 1 ? " each" : ""})`).join(", ");
  const planned = [["job", plan.job || "–"], ["strategy", `${record.strategy || "–"}${plan.reason ? `: ${plan.reason}` : ""}`],
    ["keras", `${record.keras || "–"}${plan.keras_reason ? `: ${plan.keras_reason}` : ""}`], ["roles", roles || "–"],
    ["inventory", plan.inventory || "–"], ["devices per task", formatAny(plan.devices)], ["storage", record.storage],
    ["checkpoint", record.checkpoint || "–"]];
  if (spec.args && spec.args.length) planned.push(["args", spec.args.join(" ")]);
  const amounts = Object.entries(spec.resources || {}).flatMap(([role, own]) => Object.entries(own).map(([name, value]) => [`${role}.${name}`, formatAny(value)]));
  const options = [...Object.entries(spec).filter(([name]) => !LEFT_OUT.has(name)).map(([name, value]) => [name.replaceAll("_", "-"), formatAny(value)]), ...amounts];
  const driver = record.driver ? [["driver", `process ${record.driver.pid} on ${record.driver.host}`]] : [];
  const versions = record.versions || {};
  const code = Object.entries(record.code || {}).filter(([, value]) => value !== null && value.length !== 0);
  const known = MAIN_PACKAGES.filter((name) => versions[name]).map((name) => [name, versions[name]]);
  const environment = [...known, ...driver, ["page made by raydist", data.raydist]].filter(([, value]) => value);
  return h("div", { className: "columns" },
    section("Params", "", params.length ? facts(params.map(([name, value]) => [name, formatAny(value)])) : h("p", { className: "hint" }, "none")),
    section("Plan", "", facts(planned)),
    record.notes.length ? section("Notes", "", h("ul", { className: "notes" }, record.notes.map((note) => h("li", {}, note)))) : null,
    code.length ? section("Code", "", facts(code.map(([name, value]) => [name.replaceAll("_", " "), name === "num_bytes" ? formatBytes(value) : formatAny(value)]))) : null,
    section("Environment", "", facts(environment), hostFacts(record.environment),
      Object.keys(versions).length ? h("details", {}, h("summary", {}, "all packages"), facts(Object.entries(versions))) : null,
      record.tasks.length ? table(["task", "state", "steps", "host", "pid"], record.tasks.slice(0, 200).map((task) => [task.task, task.state, formatNumber(task.steps), task.host || "–", formatAny(task.pid)]), [2, 4]) : null,
      h("details", {}, h("summary", {}, "all options"), facts(options))));
}

function hostFacts(environment) {
  if (!environment || !environment.hosts.length) return null;
  return h("div", { className: "hosts" }, environment.hosts.map(({ machine, hosts }) => facts([
    ["hosts", Object.entries(hosts).map(([address, name]) => `${name} (${address})`).join(", ")], ["CPU", machine.cpu || "–"],
    ["CPUs", formatAny(machine.num_cpus)], ["memory", machine.memory_bytes === null ? "–" : formatBytes(machine.memory_bytes)],
    ["GPUs", machine.gpus.join(", ") || "none"], ["system", machine.system]])));
}

function checkpointTable(checkpoints) {
  if (!checkpoints.length) return null;
  return section("Checkpoints", "", table(["step", "epoch", "attempt", "size", "place"],
    [...checkpoints].reverse().map((one) => [formatNumber(one.step), formatAny(one.epoch), String(one.attempt), formatBytes(one.bytes), h("code", {}, one.uri)]), [0, 1, 2, 3]));
}
