"use strict";
// Elements, and numbers as people read them. Text from a run only ever becomes a text node.

function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  for (const child of children.flat(3)) if (child !== null && child !== undefined) element.append(child);
  return element;
}

// Draws anew what is in an element; the button in it that has the focus, or one before it, keeps it.
function redraw(element, draw) {
  const buttons = () => [...element.querySelectorAll("button")];
  const place = buttons().indexOf(document.activeElement);
  draw();
  const usable = buttons().slice(0, place + 1).filter((one) => !one.disabled);
  if (usable.length) usable.at(-1).focus();
}

function formatNumber(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en-US").replaceAll(",", " ");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e7)) return value.toExponential(3);
  return String(Number(value.toPrecision(5)));
}

function formatSeconds(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${Number((seconds * 1e3).toPrecision(3))} ms`;
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  const whole = Math.round(seconds);
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (number) => String(number).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)} h` : `${minutes}:${two(rest)} min`;
}

function formatBytes(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  while (bytes >= 1000 && power < units.length - 1) [bytes, power] = [bytes / 1000, power + 1];
  return `${Number(bytes.toPrecision(3))} ${units[power]}`;
}

function formatTime(unixS) {
  if (!unixS) return "–";
  const date = new Date(unixS * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

function formatAny(value) {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : formatNumber(value);
  if (Array.isArray(value)) return value.length ? value.map(formatAny).join(", ") : "–";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

const NUM_COLORS = 8;
const lineColor = (index) => color(`line-${index % NUM_COLORS}`);

function stateBadge(state) {
  const known = { SUCCEEDED: "good", FAILED: "bad", CANCELLED: "idle" };
  return h("span", { className: `badge ${known[state] || (state ? "live" : "idle")}` }, state || "unknown");
}

function section(title, hint, ...content) {
  const heading = h("h2", {}, title, hint ? h("span", { className: "hint" }, hint) : null);
  return h("section", { id: title.toLowerCase().replaceAll(" ", "-") }, heading, ...content);
}

function facts(pairs) {
  return h("dl", { className: "facts" }, pairs.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function table(headers, rows, numeric = []) {
  const cell = (tag, value, place) => h(tag, { className: numeric.includes(place) ? "number" : "" }, value);
  return h("div", { className: "scroll" }, h("table", {},
    h("thead", {}, h("tr", {}, headers.map((name, place) => cell("th", name, place)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((value, place) => cell("td", value, place)))))));
}
