// The list of runs, the leaderboard and the page of a run, from the server's JSON; asked again while
// something runs. `#run=ID` is the page of a run.
"use strict";

const QUICK = 2000, SLOW = 15000; // milliseconds between two questions: while something runs, else
const COLORS = 10;
const byId = (id) => document.getElementById(id);
const state = { runs: [], text: "", order: "began", ascending: false, layer: "", detail: "", curves: new Map(), comparisons: [], meanings: {} };

async function ask(path, method = "GET") {
  const reply = await fetch(path, { method, headers: { Accept: "application/json" } });
  const text = await reply.text();
  let found;
  try { found = JSON.parse(text); } catch { throw new Error(text || reply.statusText); }
  if (!reply.ok) throw new Error(found.error || reply.statusText);
  return { found, text };
}

const tuners = () => [...new Set(state.runs.map((run) => run.tuner))].sort();
const colorOf = (tuner) => `var(--c${tuners().indexOf(tuner) % COLORS})`;
const date = (run) => new Date(run.began.replace(" ", "T"));
const day = (run) => date(run).toLocaleString("sv").slice(0, 16); // 2026-11-25 17:02, the reader's time
const ms = (value) => (value === null ? "" : figure(value));
const room = () => Math.min(600, document.documentElement.clientWidth - 28);
const gain = (value) => (value === null ? "" : `${value.toFixed(2)}×`);
const percent = (share) => `${(100 * share).toFixed(Math.abs(share) < 0.0995 ? 1 : 0)} %`;
const runLink = (run, text) => el("a", { href: `#run=${encodeURIComponent(run.id)}` }, text);
const dot = (tuner) => { const mark = el("i"); mark.style.background = colorOf(tuner); return mark; };

// Links name this machine; a reader elsewhere came by another name of it.
function reachable(address) {
  if (!address) return null;
  const url = new URL(address);
  if (!/^https?:$/.test(url.protocol)) return null;
  if (url.hostname === "127.0.0.1" || url.hostname === "localhost") url.hostname = location.hostname;
  return url.href;
}
function links(run) {
  const found = [["MLflow", run.mlflow], ["Prefect", run.prefect]].filter(([, address]) => reachable(address));
  return found.flatMap(([name, address]) => [el("a", { href: reachable(address), "aria-label": `${name}: ${run.network}, ${run.tuner}, seed ${run.seed}` }, name), " "]);
}

// The four latencies of a run or a layer, and what was gained: the same names and order everywhere.
const MEANING = {
  fallback: "Latency of the stock compiler's schedule for layers without a published schedule",
  rule: "Latency of the schedule that Tilewright uses without a trial",
  tuned: "Latency of the schedule that tuning chose",
  bound: "Lower bound of the latency",
};
const FIGURES = [
  ...Object.entries(MEANING).map(([name, note]) => ({ key: `${name}_ms`, head: `${name[0].toUpperCase()}${name.slice(1)} ms`, note, cell: (row) => [ms(row[`${name}_ms`])] })),
  { key: "gain", head: "Over rule", note: "Speedup over the rule schedule", cell: (row) => [gain(row.gain)] },
  { key: "gain_over_fallback", head: "Over fallback", note: "Speedup over the fallback schedule", cell: (row) => [gain(row.gain_over_fallback)] },
  { key: "above", head: "Above bound", note: "By how much the tuned latency exceeds the bound: the most that better schedules could save", cell: (row) => [above(row)] },
];
const above = (row) => (row.above === null || row.above === undefined ? "" : percent(row.above));
const withAbove = (row) => ({ ...row, above: row.tuned_ms && row.bound_ms ? row.tuned_ms / row.bound_ms - 1 : null });

// What the columns mean, for those who cannot point at a heading.
function legendOfFigures() {
  return el("details", { class: "meanings" }, el("summary", {}, "What the figures mean"),
    el("dl", {}, ...FIGURES.flatMap(({ head, note }) => [el("dt", {}, head), el("dd", {}, note)])));
}

// `failed` and `crashed` as in Prefect; a run that is slower than the last one like it says so.
function stateOf(run) {
  const slower = run.watch === "worse" ? [" ", el("span", { class: "state failed", title: "Slower than the previous run of this network, target and tuner" }, "slower")] : [];
  return [el("span", { class: `state ${run.state}`, title: run.message || "" }, run.state), ...slower];
}

// What went wrong since yesterday: a card for each failed run, with the reason.
function drawFailures() {
  const failed = state.runs.filter((run) => ["failed", "crashed"].includes(run.state) && Date.now() - date(run) < 864e5);
  byId("failures").hidden = !failed.length;
  document.querySelector("#failures .cards").replaceChildren(...failed.map((run) => el("div", { class: "card" },
    el("h3", {}, runLink(run, run.question)),
    el("p", { class: "note" }, ...stateOf(run), ` ${run.tuner}, seed ${run.seed}, ${day(run)} `, ...links(run)),
    el("p", { class: "reason" }, run.message || "See the log of the run in Prefect."))));
}

// Runs of one command, such as nightly runs, are a row: the latest, with those before it.
function folded(runs) {
  const groups = new Map();
  for (const run of runs) { // the latest first, as they come
    const key = JSON.stringify([run.question, run.tuner, run.seed, run.trials, run.settings]);
    groups.set(key, [...(groups.get(key) || []), run]);
  }
  return [...groups.values()].map((group) => ({ ...group[0], earlier: group.slice(1) }));
}
function history({ earlier }) {
  if (!earlier?.length) return [];
  const lines = earlier.map((run) => el("div", {}, runLink(run, day(run)), ` ${ms(run.tuned_ms)} ms `, ...stateOf(run)));
  return [el("details", {}, el("summary", {}, `${earlier.length} earlier`), ...lines)];
}

const COLUMNS = [
  { key: "network", head: "Network", text: true, cell: (run) => [runLink(run, run.network), ...history(run)] },
  { key: "target", head: "Target", text: true, cell: (run) => [run.target] },
  { key: "tuner", head: "Tuner", text: true, cell: (run) => [dot(run.tuner), run.tuner] },
  { key: "seed", head: "Seed", cell: (run) => [String(run.seed)] },
  { key: "trials", head: "Trials", cell: (run) => [run.trials.toLocaleString("en")] },
  ...FIGURES,
  { key: "began", head: "Begun", cell: (run) => [day(run)] },
  { key: "state", head: "State", text: true, cell: (run) => stateOf(run) },
  { key: "links", head: "Pages", text: true, cell: links },
];

function table(node, columns, rows) {
  const body = el("tbody");
  for (const row of rows) {
    const line = el("tr");
    for (const { head, text, cell } of columns) {
      const content = cell(row).filter((each) => each !== "");
      line.append(el("td", { class: (text ? "text" : "") + (content.length ? "" : " none"), "data-label": head }, el("span", {}, ...content)));
    }
    body.append(line);
  }
  const heads = columns.map(({ key, head, text, note, sortable }) => {
    const made = el("th", { scope: "col", class: text ? "text" : "", title: note || "" });
    if (!sortable) made.append(head);
    else {
      const button = el("button", { type: "button" }, head);
      button.addEventListener("click", () => sortBy(key));
      if (state.order === key) made.setAttribute("aria-sort", state.ascending ? "ascending" : "descending");
      made.append(button);
      button.dataset.key = key;
    }
    return made;
  });
  node.replaceChildren(el("thead", {}, el("tr", {}, ...heads)), body);
}

function sortBy(key) {
  const upwards = ["network", "target", "tuner", "state", "fallback_ms", "rule_ms", "tuned_ms", "bound_ms", "above"].includes(key);
  state.ascending = state.order === key ? !state.ascending : upwards;
  state.order = key;
  byId("order").value = key;
  drawList();
  document.querySelector(`#runs button[data-key="${key}"]`)?.focus();
}

function sorted(runs) {
  const sign = state.ascending ? 1 : -1, key = state.order;
  return [...runs].sort((a, b) => {
    const [one, other] = [a[key], b[key]];
    if (one === null || other === null) return (one === null) - (other === null); // unknown last
    return sign * (typeof one === "number" ? one - other : String(one).localeCompare(String(other)));
  });
}

function filtered() {
  const words = byId("words").value.toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = [...document.querySelectorAll("#filters select[name]")].filter((each) => each.value);
  const days = Number(byId("since").value), since = Date.now() - days * 864e5;
  return state.runs.filter((run) => {
    const text = JSON.stringify(run).toLowerCase();
    return wanted.every((each) => run[each.name] === each.value) && words.every((word) => text.includes(word))
      && (!days || date(run) >= since);
  });
}

function options(select, values, all) {
  const before = select.value;
  select.replaceChildren(...(all ? [el("option", { value: "" }, all)] : []),
    ...values.map((value) => el("option", { value }, value)));
  if (values.includes(before)) select.value = before;
}

function drawList() {
  const found = filtered(), shown = sorted(folded(found));
  table(byId("runs"), COLUMNS.map((column) => ({ ...column, sortable: column.key !== "links" })), shown);
  byId("count").textContent = found.length === state.runs.length ? `${found.length}` : `${found.length} of ${state.runs.length}`;
}

// -- the leaderboard ---------------------------------------------------------------------------

const median = (values) => {
  const order = [...values].sort((a, b) => a - b), half = order.length >> 1;
  return order.length % 2 ? order[half] : (order[half - 1] + order[half]) / 2;
};

// A row a tuner and number of trials: what more trials find is no merit of a tuner.
function standings(runs) {
  const groups = new Map();
  for (const run of runs.filter((each) => (each.state === "finished" || each.watch) && each.tuned_ms !== null)) {
    const key = `${run.tuner}\n${run.trials}`;
    groups.set(key, [...(groups.get(key) || []), run]); // the latest first, as they come
  }
  const rows = [...groups.values()].map((group) => ({
    tuner: group[0].tuner, trials: group[0].trials, runs: group.length, last: group[0], before: group[1],
    best: group.reduce((a, b) => (b.tuned_ms < a.tuned_ms ? b : a)), median: median(group.map((run) => run.tuned_ms)),
  }));
  return rows.sort((a, b) => a.median - b.median || a.trials - b.trials);
}

const LEADERS = [
  { head: "Tuner", text: true, cell: (row) => [dot(row.tuner), row.tuner] },
  { head: "Trials", cell: (row) => [row.trials.toLocaleString("en")] },
  { head: "Runs", cell: (row) => [String(row.runs)] },
  { head: "Median ms", cell: (row) => [ms(row.median)] },
  { head: "Above bound", note: "Of the best run", cell: (row) => [above(withAbove(row.best))] },
  { head: "Best ms", cell: (row) => [runLink(row.best, ms(row.best.tuned_ms)), " ", el("small", {}, gain(row.best.gain))] },
  { head: "Last ms", cell: (row) => [runLink(row.last, ms(row.last.tuned_ms)), " ", el("small", {}, day(row.last).slice(5, 10) + change(row))] },
];
// Who won, among the tuners with the most trials that more than one of them had.
function verdict(rows) {
  const counts = [...new Set(rows.map((row) => row.trials))].sort((a, b) => b - a);
  const same = counts.map((trials) => rows.filter((row) => row.trials === trials)).find((group) => group.length > 1);
  if (!same) return rows.length ? `${rows[0].tuner} is ${distance(rows[0])}. Run another tuner with as many trials to compare the two.` : "";
  const [first, second] = same, ahead = second.median / first.median - 1;
  const runs = Math.min(first.runs, second.runs);
  const sure = runs < 3 ? ` With ${runs} run${runs === 1 ? "" : "s"} each, the order may be chance.` : "";
  const won = ahead ? `${first.tuner} wins with ${first.trials} trials per layer: ${percent(ahead)} faster than ${second.tuner}` : `${first.tuner} and ${second.tuner} are equally fast with ${first.trials} trials per layer`;
  return `${won}, and ${distance(first)}.${sure}`;
}
function distance(row) {
  const { above: share } = withAbove(row.best);
  return share === null ? `${ms(row.best.tuned_ms)} ms at best` : `${percent(share)} above the bound at best`;
}
function change({ last, before }) {
  if (!before) return "";
  const share = (100 * (last.tuned_ms - before.tuned_ms)) / before.tuned_ms;
  return `, ${share > 0 ? "+" : ""}${share.toFixed(1)} %`;
}

async function drawCompare() {
  const question = byId("question").value;
  const runs = state.runs.filter((run) => run.question === question);
  const rows = standings(runs);
  table(byId("leaders"), LEADERS, rows);
  byId("winner").textContent = verdict(rows);
  if (!rows.length) byId("leaders").replaceChildren(el("caption", { class: "note" }, "No run of this network and target has finished yet."));
  const some = runs.slice(0, 40);
  await readCurves(some);
  if (byId("question").value !== question) return;
  const series = some.map((run) => ({ run, found: state.curves.get(run.id) })).filter(({ found }) => found?.network)
    .map(({ run, found }) => ({ name: `${run.tuner}, seed ${run.seed}, ${run.trials} trials`, color: colorOf(run.tuner), points: found.network, thin: some.length > 12 }));
  const first = runs.find((run) => run.bound_ms !== null);
  const levels = first ? [{ name: "bound", color: "var(--muted)", value: first.bound_ms }] : [];
  const names = [...new Set(some.map((run) => run.tuner))].sort();
  byId("convergence").replaceChildren(
    el("figcaption", {}, "Best so far over all trials of the network"),
    legend([...names.map((name) => ({ name, color: colorOf(name) })), ...levels.map((each) => ({ ...each, name: "bound (dashed)" }))]),
    lineChart({ series, levels, width: room(), x: "trials", y: "ms per inference", label: `Best latency over trials, ${question}: ${rows.map((row) => `${row.tuner} ${ms(row.best.tuned_ms)} ms`).join(", ")}` }));
}

async function readCurves(runs) {
  const missing = runs.filter((run) => run.state === "running" || !state.curves.has(run.id));
  for (let k = 0; k < missing.length; k += 20) {
    const query = missing.slice(k, k + 20).map((run) => `id=${encodeURIComponent(run.id)}`).join("&");
    for (const [id, curve] of Object.entries((await ask(`api/curves?${query}`)).found)) state.curves.set(id, curve);
  }
}

// -- comparisons of tuners: what `tilewright compare` wrote ------------------------------------

async function readComparisons() {
  state.comparisons = (await ask("api/comparisons")).found.comparisons;
  byId("compared").hidden = !state.comparisons.length;
  options(byId("comparison"), state.comparisons.map((each, k) => `${k + 1}: ${each.network} on ${each.target} (${each.name})`), "");
  drawComparison();
}

function drawComparison() {
  const board = state.comparisons[byId("comparison").selectedIndex];
  if (!board) return;
  // the server writes the cells, as it does for the terminal and MLflow
  const heads = Object.keys(board.rows[0]).filter((head) => head);
  const columns = heads.map((head) => ({
    head: head[0].toUpperCase() + head.slice(1), text: head === "tuner",
    cell: (row) => (head === "tuner" ? [dot(row.tuner), row.tuner] : [row[head]]),
  }));
  table(byId("standings"), columns, board.rows);
  byId("verdict").textContent = board.verdict;
}

// -- runs in progress --------------------------------------------------------------------------

async function drawLive() {
  const running = state.runs.filter((run) => run.state === "running");
  byId("live").hidden = !running.length;
  if (!running.length) return;
  await readCurves(running);
  document.querySelector("#live .cards").replaceChildren(...running.map((run) => {
    const found = state.curves.get(run.id) || {};
    const card = el("div", { class: "card" }, el("h3", {}, runLink(run, run.question)),
      el("p", { class: "note" }, `${run.tuner}, seed ${run.seed}, since ${day(run)}`));
    if (found.error) return card.append(el("p", { class: "note" }, found.error)), card;
    card.append(el("progress", { max: found.of, value: found.trials, "aria-label": "trials" }),
      el("p", { class: "note" }, `${found.trials} of ${found.of} trials`), relative(found.layers));
    return card;
  }));
}

// Layers differ by orders of magnitude: each over its own first valid trial.
function relative(layers) {
  const begun = layers.filter((each) => each.points.length);
  const series = begun.map((each, k) => ({ name: each.name, color: `var(--c${k % COLORS})`, points: each.points.map(([at, value]) => [at, (100 * value) / each.points[0][1]]) }));
  return lineChart({ series, width: Math.min(380, room()), x: "trials per layer", y: "% of the first valid trial", label: `Best so far of ${begun.length} layers` });
}

// -- a run -------------------------------------------------------------------------------------

async function drawRun(id) {
  const run = state.runs.find((each) => each.id === id);
  if (!run) return byId("run").replaceChildren(el("h2", {}, "This run does not exist"), el("p", {}, el("a", { href: "#" }, "All runs")));
  if (!state.curves.has(id)) byId("run").replaceChildren(el("p", { class: "note", role: "status" }, "Reading the trials of this run …"));
  await readCurves([run]);
  const found = state.curves.get(id) || {};
  const layers = found.layers || [];
  if (!layers.some((each) => each.id === state.layer))
    state.layer = [...layers].sort((a, b) => weight(b) - weight(a))[0]?.id || "";
  let knobs = null;
  if (state.layer) {
    const asked = `api/knobs?id=${encodeURIComponent(id)}&layer=${encodeURIComponent(state.layer)}`;
    knobs = await ask(asked).then((reply) => reply.found, (error) => ({ error: error.message }));
  }
  const detail = JSON.stringify([run, found, knobs, state.layer]);
  if (current() !== id || detail === state.detail) return;
  state.detail = detail;
  const fact = (name, value, note = "") => (value ? [el("div", { title: note }, name, el("b", {}, value))] : []);
  const content = [
    el("p", {}, el("a", { href: "#" }, "← All runs")),
    el("h2", {}, `${run.question}: ${run.tuner}, seed ${run.seed}`),
    el("p", {}, ...stateOf(run), ` ${day(run)} `, ...links(run)),
    ...(run.message ? [el("p", { class: "reason" }, run.message)] : []),
    el("div", { class: "facts" }, ...FIGURES.flatMap(({ head, note, cell }) => fact(head.toLowerCase(), cell(run)[0], note)),
      ...fact("trials", found.of ? `${found.trials.toLocaleString("en")} of ${found.of.toLocaleString("en")}` : "")),
  ];
  content.push(legendOfFigures());
  if (run.command) content.push(el("h3", {}, "Repeat this run"), el("pre", {}, el("code", {}, run.command)));
  if (found.error) content.push(el("p", { class: "note" }, `Trials: ${found.error}`));
  if (found.network?.length) content.push(networkCurve(run, found));
  if (layers.length) content.push(...layerView(layers, knobs));
  const settings = Object.entries(run.settings).filter(([name]) => !(name in run)); // others stand above
  if (settings.length) content.push(el("h3", {}, "Settings"), el("dl", {}, ...settings.flatMap(([name, value]) => [el("dt", { title: state.meanings[name] || "" }, name), el("dd", {}, String(value))])));
  if (run.state !== "running") {
    const button = el("button", { type: "button", class: "danger" }, "Delete this run …");
    button.addEventListener("click", () => confirmDeletion(run));
    content.push(el("p", { class: "delete" }, button));
  }
  const focused = document.activeElement?.id;
  byId("run").replaceChildren(...content);
  if (focused === "layer") byId("layer")?.focus();
}

// The server says what a deletion includes; nothing is deleted before the answer in the dialog.
async function confirmDeletion(run) {
  const address = `api/deletion?id=${encodeURIComponent(run.id)}`;
  const told = (texts) => byId("confirm-what").replaceChildren(...texts.map((text) => el("p", {}, text)));
  const answer = (method) => ask(address, method).then((reply) => reply.found, (error) => ({ error: error.message }));
  const what = await answer("GET");
  const title = `${run.question}: ${run.tuner}, seed ${run.seed}, ${day(run)}`;
  told([title, ...(what.error ? [`It cannot be deleted: ${what.error}`] : [...what.sentences, "This cannot be undone here."])]);
  byId("confirm-yes").hidden = Boolean(what.error);
  byId("confirm-yes").disabled = false;
  byId("confirm-yes").onclick = async () => {
    byId("confirm-yes").disabled = true;
    const done = await answer("DELETE");
    if (done.error) return told([`It was not deleted: ${done.error}`]);
    state.runs = state.runs.filter((each) => each.id !== run.id);
    state.text = "";
    byId("confirm").close();
    location.hash = "";
    return drawAll();
  };
  byId("confirm").showModal();
  byId("confirm-no").focus();
}
byId("confirm-no").addEventListener("click", () => byId("confirm").close());

// While a run goes on, what its best trial takes stands in for the tuned schedule.
const tunedMs = (layer) => layer.tuned_ms ?? layer.points.at(-1)?.[1] ?? null;
const weight = (each) => (tunedMs(each) ?? 0) * each.count;
const LAYERS = [
  { head: "Layer", text: true, cell: (each) => [each.name] },
  { head: "Calls", cell: (each) => [String(each.count)] },
  ...FIGURES,
  { head: "Share", note: "Share of the latency of an inference", cell: (each) => [each.share === null ? "" : percent(each.share)] },
  { head: "Trials", cell: (each) => [each.trials.toLocaleString("en")] },
  { head: "Valid", cell: (each) => [each.valid.toLocaleString("en")] },
];

// The layer at which most could be saved: the one whose calls are farthest above their bound.
function whereToWork(layers) {
  const total = layers.reduce((sum, each) => sum + weight(each), 0);
  const known = layers.filter((each) => each.bound_ms && tunedMs(each));
  const saved = (each) => weight(each) - each.bound_ms * each.count;
  const most = known.reduce((a, b) => (a && saved(a) >= saved(b) ? a : b), null);
  if (!most || saved(most) <= 0 || layers.length < 2) return [];
  const far = percent(tunedMs(most) / most.bound_ms - 1);
  return [el("p", {}, "Most can be saved at ", el("b", {}, most.name),
    `: it takes ${percent(weight(most) / total)} of an inference and is ${far} above its bound. At its bound, an inference would take ${percent(saved(most) / total)} less.`)];
}

// The levels beside a curve. A fallback that is far above the rule would leave no room for the curve.
function levelsOf(row) {
  const known = [["fallback", "var(--c3)"], ["rule", "var(--c1)"], ["bound", "var(--muted)"]].map(([name, color]) => ({ name, color, value: row[`${name}_ms`] }));
  return known.filter(({ name, value }) => value && (name !== "fallback" || value < 2 * (row.rule_ms ?? 0)));
}

// The curve of the whole network, as the terminal, Prefect and MLflow show it.
function networkCurve(run, found) {
  const levels = levelsOf(run);
  return el("figure", {}, el("figcaption", {}, "Best so far over all trials of the network"),
    legend([{ name: "best so far", color: "var(--c0)" }, ...levels.map((each) => ({ ...each, name: `${each.name} (dashed)` }))]),
    lineChart({ series: [{ name: run.tuner, color: "var(--c0)", points: found.network }], levels, width: room(), x: "trials", y: "ms per inference", label: `Best latency of ${run.network} over trials` }));
}

function layerView(layers, knobs) {
  const rows = el("table", { class: "stack" });
  const total = layers.reduce((sum, each) => sum + weight(each), 0);
  table(rows, LAYERS, layers.map((each) => withAbove({ ...each, tuned_ms: tunedMs(each), share: total ? weight(each) / total : null })));
  const choice = el("select", { id: "layer" }, ...layers.map((each) => el("option", { value: each.id }, each.name)));
  choice.value = state.layer;
  choice.addEventListener("change", () => { state.layer = choice.value; refresh(); });
  const layer = layers.find((each) => each.id === state.layer);
  const levels = levelsOf(layer);
  const chart = el("figure", {}, el("figcaption", {}, "Best so far"),
    legend([{ name: "best so far", color: "var(--c0)" }, ...levels.map((each) => ({ ...each, name: `${each.name} (dashed)` }))]),
    lineChart({ series: [{ name: layer.name, color: "var(--c0)", points: layer.points }], levels, width: room(), x: "trials", y: "ms per call", label: `Best latency of ${layer.name} over trials` }));
  const shown = [el("h3", {}, "Layers"), ...whereToWork(layers), el("div", { class: "scroll" }, rows), el("div", { class: "head" }, el("h3", {}, "Trials"), el("label", {}, "Layer ", choice)), el("div", { class: "pair" }, chart, importance(knobs))];
  if (knobs?.rows) {
    const part = knobs.rows.length < knobs.trials ? `, ${knobs.rows.length} of ${knobs.trials} trials` : "";
    shown.push(el("figure", {}, el("figcaption", {}, `Knobs of every trial: green is fast, red is slow, grey is invalid${part}`),
      el("div", { class: "scroll", tabIndex: 0, role: "group", "aria-label": "Knobs of every trial" }, parallelCoordinates(knobs.knobs, knobs.rows, `Knobs of ${knobs.rows.length} trials of ${layer.name}; the fastest has ${fastest(knobs)}`, room()))));
  }
  return shown;
}

function fastest({ knobs, rows }) {
  const valid = rows.filter((row) => row[1] !== null);
  if (!valid.length) return "no valid trial";
  const best = valid.reduce((a, b) => (b[1] < a[1] ? b : a));
  return knobs.map((name, k) => `${name} ${best[k + 4]}`).join(", ");
}

function importance(knobs) {
  const box = el("figure", {}, el("figcaption", {}, "How much each knob affects the latency (fANOVA)"));
  if (!knobs || knobs.error) return box.append(el("p", { class: "note" }, knobs?.error || "")), box;
  const shares = Object.entries(knobs.importance || {}).slice(0, 10);
  const why = knobs.importance ? "Too few valid trials, or all have the same latency." : "Shown when the run has ended.";
  if (!shares.length) return box.append(el("p", { class: "note" }, why)), box;
  const bars = el("div", { class: "bars" });
  for (const [name, share] of shares)
    bars.append(el("span", {}, name), el("meter", { min: 0, max: 1, value: share, "aria-label": name }), el("span", {}, `${(100 * share).toFixed(0)} %`));
  box.append(bars);
  return box;
}

// -- the page ----------------------------------------------------------------------------------

const current = () => new URLSearchParams(location.hash.slice(1)).get("run");

async function refresh() {
  const run = current();
  byId("overview").hidden = Boolean(run) || !state.runs.length;
  byId("run").hidden = !run;
  byId("empty").hidden = Boolean(run) || Boolean(state.runs.length);
  document.title = `${run ? "Run" : "Runs"} · Tilewright`;
  if (run) return drawRun(run);
  state.detail = "";
  await drawLive();
  return undefined;
}

function drawAll() {
  for (const select of document.querySelectorAll("#filters select[name]"))
    options(select, [...new Set(state.runs.map((run) => run[select.name]))].sort(), "all");
  const ended = state.runs.filter((run) => run.state === "finished"); // the latest first, before all others
  const questions = [...new Set([...ended, ...state.runs].map((run) => run.question))];
  options(byId("question"), questions, "");
  drawList();
  drawFailures();
  return state.runs.length ? drawCompare() : undefined;
}

async function poll() {
  let wait = SLOW;
  try {
    const { found, text } = await ask("api/runs");
    const changed = text !== state.text;
    if (changed) {
      for (const run of found.runs) // its last trials came after they were asked for
        if (run.state !== state.runs.find((each) => each.id === run.id)?.state) state.curves.delete(run.id);
      [state.runs, state.text, state.meanings] = [found.runs.map(withAbove), text, found.meanings];
      byId("workspace").textContent = found.workspace.split("/").slice(-2).join("/");
      byId("workspace").title = found.workspace;
      const pages = Object.entries(found.pages).filter(([, address]) => reachable(address));
      document.querySelector("nav").replaceChildren(...pages.map(([name, address]) => el("a", { href: reachable(address) }, name)));
    }
    await refresh();
    const running = found.runs.filter((run) => run.state === "running");
    if (running.length) wait = QUICK;
    if (changed) await Promise.all([drawAll(), readComparisons()]);
    else if (!current() && running.some((run) => run.question === byId("question").value)) await drawCompare();
    byId("status").className = "";
    byId("status").textContent = `as of ${new Date().toLocaleTimeString("sv")}`;
  } catch (error) {
    byId("status").className = "bad";
    byId("status").textContent = `not up to date: ${error.message}`;
  }
  setTimeout(poll, document.hidden ? SLOW : wait);
}

byId("meanings").append(legendOfFigures());
byId("filters").addEventListener("input", drawList);
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("question").addEventListener("change", drawCompare);
byId("comparison").addEventListener("change", drawComparison);
byId("order").append(...COLUMNS.slice(0, -1).map(({ key, head }) => el("option", { value: key }, head)));
byId("order").value = state.order;
byId("order").addEventListener("change", (event) => { event.stopPropagation(); state.order = ""; sortBy(event.target.value); });
window.addEventListener("hashchange", () => { state.layer = ""; refresh(); window.scrollTo(0, 0); byId("content").focus(); });
poll();
