// Charts as SVG elements. All text is set as text: names in records were chosen by others.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// An HTML element; properties by name, `data-`, `aria-` and `class` as attributes.
function el(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (/^(data-|aria-|class$|for$|role$)/.test(key)) made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children);
  return made;
}

// Three significant digits or all digits before the point: 0.0417, 71.4, 1,234.
function figure(value) {
  if (value === null || value === undefined) return "";
  const digits = value === 0 ? 0 : Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

// Round values from `low` to `high`, each with its text: no two read the same.
function ticks(low, high, log) {
  const named = (values, text) => values.map((value) => ({ value, text: text(value) }));
  if (log) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
      for (const step of [1, 2, 5]) found.push(step * 10 ** power);
    const inside = found.filter((each) => each >= low && each <= high);
    if (inside.length > 2) return named(inside, (value) => String(Number(value.toPrecision(1))));
  }
  const rough = (high - low || 1) / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((each) => each * power >= rough);
  const digits = Math.max(0, -Math.floor(Math.log10(step * 1.001)));
  const count = Math.floor(high / step + 1e-9) - Math.ceil(low / step) + 1;
  const values = Array.from({ length: count }, (_, k) => (Math.ceil(low / step) + k) * step);
  return named(values, (value) => value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
}

// Steps of `series` ({name, color, points: [[x, y]], thin}) and `levels` ({name, color, value}).
function lineChart({ series, levels = [], x, y, label, width = 600 }) {
  const shown = series.filter((each) => each.points.length);
  const points = shown.flatMap((each) => each.points);
  const known = levels.filter((each) => each.value);
  if (!points.length) return el("p", { class: "note" }, "Not every layer has a valid trial yet.");
  const values = [...points.map((each) => each[1]), ...known.map((each) => each.value)];
  const low = Math.min(...values), high = Math.max(...values);
  const log = low > 0 && high / low > 3;
  const last = Math.max(...points.map((each) => each[0]));
  const height = 280, left = 76, right = 10, top = 8, bottom = 38;
  const pad = log ? 1.04 : (high - low || high) * 0.04;
  const from = log ? low / pad : low - pad, to = log ? high * pad : high + pad;
  const scale = (value) => (log ? Math.log(value) : value);
  const px = (value) => left + (value / last) * (width - left - right);
  const py = (value) => top + (1 - (scale(value) - scale(from)) / (scale(to) - scale(from) || 1)) * (height - top - bottom);
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (const { value, text } of ticks(from, to, log)) {
    chart.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: py(value), y2: py(value) }));
    chart.append(svg("text", { x: left - 6, y: py(value) + 4, "text-anchor": "end" }, text));
  }
  for (const { value, text } of ticks(0, last, false).filter((each) => Number.isInteger(each.value)))
    chart.append(svg("text", { x: px(value), y: height - 20, "text-anchor": "middle" }, text));
  chart.append(svg("text", { x: (left + width) / 2, y: height - 3, "text-anchor": "middle" }, x));
  chart.append(svg("text", { transform: `translate(11 ${(height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, y));
  for (const each of known) {
    const at = py(each.value);
    chart.append(svg("path", { class: "level", stroke: each.color, d: `M${left} ${at}H${width - right}` }));
  }
  for (const each of shown) {
    const [first, ...rest] = each.points;
    const d = `M${px(first[0])} ${py(first[1])}` + rest.map(([a, b]) => `H${px(a)}V${py(b)}`).join("");
    const line = svg("path", { d, stroke: each.color, class: each.thin ? "thin" : "" });
    line.append(svg("title", {}, `${each.name}: ${figure(each.points.at(-1)[1])}`));
    const end = each.points.at(-1);
    chart.append(line, svg("circle", { cx: px(end[0]), cy: py(end[1]), r: each.thin ? 1.5 : 3, fill: each.color }));
  }
  return chart;
}

function legend(entries) {
  const box = el("div", { class: "legend" });
  for (const { name, color } of entries) {
    const mark = el("i");
    mark.style.background = color;
    box.append(el("span", {}, mark, name));
  }
  return box;
}

// A line a trial over one axis a knob; colour by latency from fast to slow, grey where not valid.
// Those of one value lie beside each other, the fastest on top.
function parallelCoordinates(names, rows, label, room) {
  const width = Math.max(room >= 600 ? 1230 : room, names.length * 88), height = 320, top = 46, bottom = 24, band = 24;
  const chart = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, class: "wide" });
  const column = (k) => 40 + (k * (width - 80)) / Math.max(names.length - 1, 1);
  const axes = names.map((name, k) => {
    const values = [...new Set(rows.map((row) => row[k + 4]).filter((each) => each !== null))];
    values.sort((a, b) => a - b);
    const place = new Map(values.map((value, j) => [value,
      height - bottom - (values.length > 1 ? (j * (height - top - bottom)) / (values.length - 1) : (height - top - bottom) / 2)]));
    return { name, values, place, x: column(k) };
  });
  const ordered = [...rows].sort((a, b) => (b[1] ?? Infinity) - (a[1] ?? Infinity));
  const valid = rows.filter((row) => row[1] !== null).length;
  for (const [k, row] of ordered.entries()) {
    const share = row[1] === null ? 1 : (rows.length - 1 - k) / Math.max(valid - 1, 1); // by rank
    const aside = (share - 0.5) * band;
    const d = axes.flatMap((axis, k) => (row[k + 4] === null ? [] : [`${axis.x} ${axis.place.get(row[k + 4]) + aside}`])).join("L");
    if (!d) continue;
    const line = svg("path", { d: "M" + d });
    if (row[1] === null) line.setAttribute("class", "invalid");
    else line.setAttribute("stroke", `hsl(${155 - 145 * share} 70% ${42 + 6 * share}%)`);
    const what = row[1] === null ? `${row[2]}: ${row[3]}` : `${figure(row[1])} ms`;
    line.append(svg("title", {}, `trial ${row[0]}: ${what}`));
    chart.append(line);
  }
  for (const axis of axes) {
    chart.append(svg("line", { class: "grid", x1: axis.x, x2: axis.x, y1: top, y2: height - bottom }));
    chart.append(svg("text", { x: axis.x, y: 16, "text-anchor": "middle" }, axis.name));
    const every = Math.ceil(axis.values.length / 9);
    axis.values.forEach((value, j) => {
      if (j % every === 0) chart.append(svg("text", { x: axis.x + 5, y: axis.place.get(value) + 4, class: "value" }, value.toLocaleString("en")));
    });
  }
  return chart;
}
