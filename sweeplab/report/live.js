"use strict";
// Shows the server's events on the page: each has the state of the study, and its new runs and points of curves.
const at = (id) => document.getElementById(id);
const runs = new Map(), curves = new Map();
const cells = {}, colors = {};
let latest = null, is_dead = false;
let study = new URLSearchParams(location.search).get("study"), source = null, drawn = 0, waiting = null;

const url = (path) => `${path}?study=${encodeURIComponent(study)}`;
const loss = (value) => (value === null || value === undefined ? "–" : value.toFixed(4));
const short = (value) => (typeof value === "number" ? String(+value.toPrecision(3)) : JSON.stringify(value));
const values = (sampled) => Object.entries(sampled).map(([name, value]) => `${name} ${short(value)}`).join(", ");

// Text only: a study's names are never interpreted as HTML. Narrow screens show a cell's name beside it.
function fill(table, heads, rows) {
  const head = table.createTHead(), body = table.tBodies[0] ?? table.createTBody(), line = element("tr");
  line.append(...heads.map((name) => element("th", name, { scope: "col", style: "padding: 0.3rem 0.7rem" })));
  head.replaceChildren(line);
  body.replaceChildren(...rows.map((cells) => {
    const row = element("tr");
    cells.forEach((each, place) => {
      const cell = element("td");
      cell.dataset.name = heads[place];
      cell.append(each);
      row.append(cell);
    });
    return row;
  }));
}

async function post(path, content) {
  const said = await fetch(url(path), { method: "POST", body: JSON.stringify(content) })
    .then((answer) => answer.json()).catch(() => ({ error: "not done: sweeplab dashboard does not answer" }));
  at("said").textContent = said.error || said.done || said.what || "";
  if (said.undo && said.undo.length) at("said").textContent += ` — undo: ${said.undo.join("; ")}`;
  return said;
}

function stopButton(run) {
  if (run.state !== "running") return "";
  return element("button", "stop", { onclick: () => post("order", { order: "stop trial", trial: run.trial, cell: run.cell }) });
}

// A cell's name behind its color.
function named(cell) {
  const name = element("span");
  name.append(element("span", "", { className: "swatch", style: `background: ${colors[cell]}` }), cell);
  return name;
}

// n_layer=2 compares a value, loss<3 a number; any other word is looked for in a trial's cell, values and note.
function is_shown(run) {
  const known = { ...cells[run.cell], ...run.sampled, state: run.outcome, loss: run.loss, best: run.best, value: run.value, iteration: run.iteration, trial: run.trial };
  return at("filter").value.trim().split(/\s+/).every((word) => {
    const [, name, sign, wanted] = word.match(/^(\w+)(<=|>=|<|>|=)(.+)$/) ?? [];
    if (!(name in known)) return `${run.cell} ${values(run.sampled)} ${run.note}`.includes(word);
    const value = known[name], number = Number(wanted);
    if (sign === "=") return typeof value === "number" ? value === number : String(value) === wanted;
    return value !== null && (sign[0] === "<" ? value < number : value > number) || (sign[1] === "=" && value === number);
  });
}

// The dialog of reports, with a form for a note.
function details(run) {
  const runs_of = [...runs.values()].filter((each) => each.cell === run.cell && each.trial === run.trial);
  const trial = { ...run, study: latest.study, state: run.outcome, loss: run.value ?? run.loss, cell_values: text_of(cells[run.cell]), values: text_of(run.sampled),
    runs: runs_of.map((each) => { const points = curves.get(each.key) ?? []; return { ...each, curve: [points.map(([x]) => x), points.map(([, y]) => y)] }; }) };
  open_trial(trial, { loss: latest.metric, several: false, commands: { [latest.study]: latest.commands }, note: () => noted(run) });
}
const text_of = (known) => Object.fromEntries(Object.entries(known ?? {}).map(([name, value]) => [name, short(value)]));
function noted(run) {
  const form = element("form"), text = element("textarea", "", { name: "text", rows: 3, placeholder: "a note", value: run.note });
  form.append(text, element("button", "keep the note"));
  form.onsubmit = (event) => {
    event.preventDefault();
    post("order", { order: "note", trial: run.trial, cell: run.cell, text: text.value }).then((said) => { if (!said.error) dialog.close(); });
  };
  return form;
}

// How many trials the values in the field would make: one in each cell that has them.
function counts_enqueued() {
  const asked = at("enqueue").form.elements.values.value.trim().split(/\s+/).map((word) => word.split("="));
  const fitting = Object.values(cells).filter((cell) => asked.every(([name, value]) => !(name in cell) || short(cell[name]) === value || String(cell[name]) === value));
  const is_given = asked.some(([, value]) => value);
  at("enqueue").textContent = is_given ? `enqueue ${fitting.length} ${fitting.length === 1 ? "trial" : "trials"}` : "enqueue";
}

function show(said) {
  if (said.error) { at("said").textContent = said.error; return; }
  latest = said;
  for (const run of said.runs) runs.set(run.key, run);
  for (const [key, points] of Object.entries(said.points)) curves.set(key, [...(curves.get(key) || []), ...points]);
  for (const cell of said.cells) [cells[cell.cell], colors[cell.cell]] = [cell.values, cell.color];
  document.title = `${said.study}: ${said.state}`;
  at("name").textContent = said.study;
  at("phase").textContent = said.state;
  const { study: name, ...lines } = said.headline, margin = Math.max(7, name.length + 2);
  at("headline").textContent = Object.entries(lines).filter(([, text]) => text)
    .map(([what, text]) => `${(what === "state" ? name : what).padEnd(margin)}${text}`).join("\n");
  at("states").textContent = Object.entries(said.states).map(([state, count]) => `${count} ${state}`).join(", ");
  able();
  counts_enqueued();
  list();
  clearTimeout(waiting);
  waiting = setTimeout(draw, Math.max(0, drawn + 1000 - Date.now()));
}

// Without an answer of the server nothing can be ordered.
function able() {
  for (const button of document.querySelectorAll("button")) {
    const order = button.dataset.order ?? button.closest("form")?.dataset.order;
    const is_run = latest?.is_run ?? false, state = latest?.state;
    const is_useless = { resume: ["running", "queued"].includes(state), pause: !is_run || state === "paused", stop: !is_run }[order];
    if (button.textContent !== "Close") button.disabled = is_dead || (is_useless ?? false);
  }
}

function list() {
  const order = (run) => [run.state === "running" ? 0 : 1, run.value ?? run.best ?? Infinity];
  const shown = [...runs.values()].filter(is_shown).sort((a, b) => order(a)[0] - order(b)[0] || order(a)[1] - order(b)[1]);
  const searched = [...new Set(shown.flatMap((run) => Object.keys(run.sampled)))];
  fill(at("trials"), [...searched, "loss", "lowest seen", "state", "iteration", "trial", "cell", "note", ""], shown.slice(0, 200).map((run) => [
    ...searched.map((name) => name in run.sampled ? short(run.sampled[name]) : "–"), loss(run.loss), loss(run.best), run.outcome, `${run.iteration}/${run.max_iters}`,
    element("button", `#${run.trial}${run.key === latest.best ? " best" : ""}`, { className: "plain", onclick: () => details(run) }), named(run.cell), run.note, stopButton(run)]));
  fill(at("cells"), ["cell", "parameters", "done", "lowest seen"], latest.cells.map((cell) => [
    named(cell.cell), cell.n_params.toLocaleString("en"), String(cell.done), loss(cell.lowest)]));
}

// An exponential moving average, its start at zero divided out; the loss before training would pull all others up.
function smoothed(losses) {
  const share = Number(at("smooth").value);
  let [sum, weight] = [0, 0];
  return losses.map((value, place) => {
    if (place === 0) return value;
    [sum, weight] = [share * sum + (1 - share) * value, share * weight + (1 - share)];
    return sum / weight;
  });
}

function draw() {
  drawn = Date.now();
  const said = latest, style = getComputedStyle(document.body), best = said.best;
  // Whole numbers only: up to ten one by one.
  const layout = (x, y, most) => ({
    margin: { l: 56, r: 12, t: 8, b: 44 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest",
    font: { color: style.color }, uirevision: study, showlegend: false,
    xaxis: { title: { text: x }, rangemode: "tozero", gridcolor: "rgba(128,128,128,.2)", tickformat: ",d", ...(most <= 10 ? { dtick: 1 } : {}) },
    yaxis: { title: { text: y }, gridcolor: "rgba(128,128,128,.2)" } });
  const shown = [...curves].filter(([key]) => is_shown(runs.get(key))).sort(([a], [b]) => (a === best) - (b === best));
  const traces = shown.map(([key, points]) => {
    const run = runs.get(key), line = { color: colors[run.cell], width: key === best ? 3.5 : 1.2 };
    return { x: points.map(([x]) => x), y: smoothed(points.map(([, y]) => y)), mode: points.length > 1 ? "lines" : "markers", line, marker: { color: colors[run.cell] }, name: run.cell, meta: key,
      opacity: key === best || run.state === "running" ? 1 : 0.5, text: values(run.sampled),
      hovertemplate: `${key}<br>%{text}<br>iteration %{x}: %{y:.4f}<extra></extra>` };
  });
  const of_curves = layout("iteration", `val_loss (${said.unit})`, Math.max(0, ...shown.map(([, points]) => points.at(-1)[0])));
  // Without the start of each run, and without the worst of what follows.
  const later = traces.flatMap((trace) => trace.y.slice(1)).filter(Number.isFinite).sort((a, b) => a - b), [low, high] = [later[0], later[Math.floor(0.95 * (later.length - 1))]];
  if (later.length) { const room = 0.05 * (high - low || 1); of_curves.yaxis.range = [low - room, high + room]; }
  const settings = { responsive: true, displayModeBar: false };
  // Instead of axes without anything between them.
  const nothing = (text) => ({ xaxis: { visible: false }, yaxis: { visible: false },
    annotations: [{ text, showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5, font: { color: style.color } }] });
  Object.assign(of_curves, traces.length ? {} : nothing(curves.size ? "no trial with an evaluation is shown" : said.is_run ? "Awaited: the first evaluation.<br>Workers start, read the text and compile." : "No trial has been evaluated."));
  Plotly.react("curves", traces, of_curves, settings).then(opens);
  const ended = [...runs.values()].filter((run) => run.ended !== null && run.value !== null && ["complete", "stopped"].includes(run.outcome) && is_shown(run));
  const trials = [...new Map(ended.sort((a, b) => a.ended - b.ended).map((run) => [`${run.cell}#${run.trial}`, run])).values()];
  const bests = said.cells.flatMap(({ cell }) => {
    const mine = trials.map((run, place) => [place + 1, run]).filter(([, run]) => run.cell === cell);
    let lowest = Infinity;
    const marks = { x: mine.map(([place]) => place), y: mine.map(([, run]) => run.value), mode: "markers", marker: { color: colors[cell], size: 6, opacity: 0.6 }, name: cell,
      meta: mine.map(([, run]) => run.key), text: mine.map(([, run]) => `#${run.trial} ${values(run.sampled)}`), hovertemplate: `${cell} %{text}: %{y:.4f}<extra></extra>` };
    const steps = mine.map(([, run]) => (lowest = Math.min(lowest, run.value)));
    return [marks, { x: [...marks.x, trials.length], y: [...steps, lowest], mode: "lines", line: { shape: "hv", color: colors[cell], width: 2 }, hoverinfo: "skip", name: cell }];
  }).filter((trace) => trace.x.length > 0 && Number.isFinite(trace.y.at(-1)));
  const of_bests = layout("completed trials", said.metric, trials.length);
  Object.assign(of_bests, bests.length ? {} : nothing(ended.length || !said.is_run ? "no completed trial is shown" : "Awaited: the first trial that ends."));
  Plotly.react("progress", bests, of_bests, settings).then(opens);
}

// A click on a curve or mark opens its trial.
function opens(place) {
  if (place.is_open_to_clicks) return;
  place.is_open_to_clicks = true;
  place.on("plotly_click", ({ points: [point] }) => {
    const { meta } = point.data, run = runs.get(Array.isArray(meta) ? meta[point.pointIndex] : meta);
    if (run) details(run);
  });
}

function follow() {
  if (source) source.close();
  runs.clear();
  curves.clear();
  for (const known of [cells, colors]) for (const name of Object.keys(known)) delete known[name];
  source = new EventSource(url("events"));
  source.onopen = () => { is_dead = false; runs.clear(); curves.clear(); };  // after a reconnect the server sends everything again
  source.onmessage = (event) => show(JSON.parse(event.data));
  source.onerror = () => {
    is_dead = true;
    able();
    at("phase").textContent = "no answer: sweeplab dashboard has ended or is restarting";
  };
}

for (const button of document.querySelectorAll("button[data-order]")) button.onclick = () => post("order", { order: button.dataset.order });
for (const name of ["filter", "smooth"]) at(name).oninput = () => { if (latest) { list(); draw(); } };
at("enqueue").form.oninput = counts_enqueued;
for (const form of document.querySelectorAll("form[data-order]")) {
  form.onsubmit = (event) => {
    event.preventDefault();
    post("order", { order: form.dataset.order, ...Object.fromEntries(new FormData(form)) });
  };
}
at("mlflow").onclick = async () => {
  at("said").textContent = "starting MLflow's pages …";
  const links = await post("mlflow", {});
  if (!links.charts) return;
  const link = document.createElement("a");
  [link.href, link.target, link.textContent] = [links.charts, "_blank", links.charts];
  at("said").replaceChildren(link);
};
fetch("studies").then((answer) => answer.json()).then((all) => {
  study = study || (all.find((each) => each.state) || all[0]).name;
  for (const each of all) at("studies").append(new Option(each.state ? `${each.name} (${each.state})` : each.name, each.name, false, each.name === study));
  at("studies").hidden = all.length < 2;
  at("studies").onchange = () => { study = at("studies").value; follow(); };
  follow();
});
