// The points of curves: unpacked once, and thinned to the pixels of what is in view.

async function unpackCurves(curves) {
  const bytes = await inflate(curves.blob);
  const arrays = new Map();
  const read = ({ t, o, n }) => {
    const key = `${t}${o}`;
    if (!arrays.has(key)) arrays.set(key, readArray(bytes, t, o, n));
    return arrays.get(key);
  };
  return curves.series.map((one) => ({
    scope: one.scope, name: one.name, task: one.task, attempt: one.attempt, whole: one.whole, odd: one.odd,
    step: read(one.step), value: read(one.value),
    time: read(one.time), begunS: curves.begun_s, ticksPerS: curves.ticks_per_s,
  }));
}

async function inflate(text) {
  const packed = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text)
    : Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

function readArray(bytes, type, offset, length) {
  if (type === "f4") return new Float32Array(bytes, offset, length);
  if (type === "f8") return new Float64Array(bytes, offset, length);
  const differences = new Int32Array(bytes, offset, length);
  const numbers = new Float64Array(length);
  let sum = 0;
  for (let i = 0; i < length; i++) numbers[i] = sum += differences[i];
  return numbers;
}

// x and y of a curve over steps, or over seconds since `originS`; x ascends.
function lineOver(one, axis, originS) {
  if (axis === "step") return { x: one.step, y: one.value };
  const shift = one.begunS - originS;
  const order = Uint32Array.from(one.time.keys()).sort((a, b) => one.time[a] - one.time[b]);
  return {
    x: Float64Array.from(order, (i) => one.time[i] / one.ticksPerS + shift),
    y: Float64Array.from(order, (i) => one.value[i]),
  };
}

// The first place whose x is not below `least`.
function lowerBound(x, least) {
  let [low, high] = [0, x.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle] < least) low = middle + 1;
    else high = middle;
  }
  return low;
}

// uPlot's aligned data of the lines between two x: each point where there are few, else the lowest and highest
// of each bucket, so that a peak is never lost. undefined: no point here; null: a gap. A line that is null has none.
function pointsInView(lines, min, max, numBuckets, isLog) {
  const shown = (y) => (Number.isFinite(y) && (!isLog || y > 0) ? y : null);
  const ranges = lines.map((line) => (line === null ? [0, 0]
    : [Math.max(0, lowerBound(line.x, min) - 1), Math.min(line.x.length, lowerBound(line.x, max) + 2)]));
  const total = ranges.reduce((sum, [from, to]) => sum + Math.max(0, to - from), 0);
  if (total <= 4 * numBuckets) {
    const tables = lines.map((line, number) => {
      if (line === null) return [[], []];
      const [[from, to], { x, y }] = [ranges[number], line];
      return [Array.from(x.subarray(from, to)), Array.from(y.subarray(from, to), shown)];
    });
    const filled = tables.filter(([x]) => x.length);
    if (!filled.length) return [[], ...lines.map(() => [])];
    const joined = uPlot.join(filled);
    let next = 1;
    const blank = new Array(joined[0].length).fill(undefined);
    return [joined[0], ...tables.map(([x]) => (x.length ? joined[next++] : blank))];
  }
  const width = (max - min) / numBuckets || 1;
  const xs = new Array(2 * numBuckets);
  for (let b = 0; b < numBuckets; b++) {
    xs[2 * b] = min + (b + 0.25) * width;
    xs[2 * b + 1] = min + (b + 0.75) * width;
  }
  const blank = new Array(2 * numBuckets).fill(undefined);
  return [xs, ...lines.map((line, number) =>
    (line === null ? blank : extremes(line.x, line.y, ranges[number], { min, width, numBuckets, shown })))];
}

function extremes(x, y, [from, to], { min, width, numBuckets, shown }) {
  const kept = new Array(2 * numBuckets).fill(undefined);
  let i = from;
  while (i < to && x[i] < min) i++;
  for (let b = 0; b < numBuckets && i < to; b++) {
    const end = b === numBuckets - 1 ? Infinity : min + (b + 1) * width;
    let [low, high, hasPoint] = [-1, -1, false];
    for (; i < to && x[i] < end; i++) {
      hasPoint = true;
      if (shown(y[i]) === null) continue;
      if (low < 0 || y[i] < y[low]) low = i;
      if (high < 0 || y[i] > y[high]) high = i;
    }
    if (!hasPoint) continue;
    kept[2 * b] = low < 0 ? null : y[Math.min(low, high)];
    kept[2 * b + 1] = low < 0 ? null : y[Math.max(low, high)];
  }
  return kept;
}
