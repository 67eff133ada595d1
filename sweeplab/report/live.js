"use strict";
// Shows the server's events on the page: each has the state of the study, and its new runs and points of curves.
const at = (id) => document.getElementById(id);
const runs = new Map(), curves = new Map();
let study = new URLSearchParams(location.search).get("study"), source = null, drawn = 0, waiting = null;

const url = (path) => `${path}?study=${encodeURIComponent(study)}`;
const loss = (value) => (value === null || value === undefined ? "–" : value.toFixed(4));
const short = (value) => (typeof value === "number" ? String(+value.toPrecision(3)) : JSON.stringify(value));
const values = (sampled) => Object.entries(sampled).map(([name, value]) => `${name} ${short(value)}`).join(", ");

// Text only: a study's names are never interpreted as HTML.
function fill(table, heads, rows) {
  const row = (cells, tag) => {
    const made = document.createElement("tr");
    for (const each of cells) {
      const cell = document.createElement(tag);
      each instanceof Node ? cell.append(each) : (cell.textContent = each);
      made.append(cell);
    }
    return made;
  };
  table.replaceChildren(row(heads, "th"), ...rows.map((each) => row(each, "td")));
}

async function post(path, content) {
  const answer = await fetch(url(path), { method: "POST", body: JSON.stringify(content) });
  const said = await answer.json().catch(() => ({ error: `${answer.status}` }));
  at("said").textContent = said.error || said.done || said.what || "";
  if (said.undo && said.undo.length) at("said").textContent += ` — undo: ${said.undo.join("; ")}`;
  return said;
}

function stopButton(run) {
  const button = document.createElement("button");
  button.textContent = "stop";
  button.onclick = () => post("order", { order: "stop trial", trial: run.trial, cell: run.cell });
  return button;
}

function show(said) {
  if (said.error) { at("said").textContent = said.error; return; }
  for (const run of said.runs) runs.set(run.key, run);
  for (const [key, points] of Object.entries(said.points)) curves.set(key, [...(curves.get(key) || []), ...points]);
  document.title = `${said.study}: ${said.state}`;
  at("name").textContent = said.study;
  at("phase").textContent = said.state;
  at("bar").hidden = said.total === null;
  if (said.total !== null) [at("bar").max, at("bar").value] = [said.total, Math.min(said.total, said.counted)];
  const trials = said.total ?? said.counted, part = said.total === null ? "" : `${said.counted} of `;
  at("counted").textContent = `${part}${trials} ${trials === 1 ? "trial" : "trials"}`;
  at("left").textContent = said.left && `${said.left} left`;
  at("states").textContent = Object.entries(said.states).map(([state, count]) => `${count} ${state}`).join(", ");
  const { running, slots } = said.occupancy;
  at("occupancy").textContent = slots ? `${running} of ${slots} stack slots are in use` : "no stack is training";
  at("optuna").textContent = said.optuna;
  at("best").replaceChildren();
  if (said.best) {
    const line = document.createElement("span");
    line.className = "best";
    line.textContent = `best ${said.metric} ${loss(said.best.value)} ${said.measured_on}`;
    const use = document.createElement("code");
    use.textContent = said.best.commands.generate;
    at("best").append(line, ` by trial ${said.best.trial} in ${said.best.cell}: ${values(said.best.sampled)} · `, use);
  }
  for (const button of document.querySelectorAll("button[data-order]")) {
    const order = button.dataset.order;
    button.disabled = order === "resume" ? ["running", "queued"].includes(said.state) : !said.is_run;
  }
  const live = [...runs.values()].filter((run) => run.state === "running");
  fill(at("running"), ["cell", "trial", "iteration", "loss", "best", "values", ""], live.map((run) => [
    run.cell, `#${run.trial}`, `${run.iteration}/${run.max_iters}`, loss(run.loss), loss(run.best), values(run.sampled), stopButton(run)]));
  fill(at("cells"), ["cell", "parameters", "done", "best"], said.cells.map((cell) => [
    cell.cell, cell.n_params.toLocaleString("en"), cell.done, loss(cell.best)]));
  clearTimeout(waiting);
  waiting = setTimeout(() => draw(said), Math.max(0, drawn + 1000 - Date.now()));
}

function draw(said) {
  drawn = Date.now();
  const style = getComputedStyle(document.body), best = said.best && said.best.key;
  const layout = (x, y, log) => ({
    margin: { l: 56, r: 12, t: 8, b: 44 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest",
    font: { color: style.color }, showlegend: false, uirevision: study,
    xaxis: { title: { text: x }, rangemode: "tozero", gridcolor: "rgba(128,128,128,.2)" },
    yaxis: { title: { text: y }, gridcolor: "rgba(128,128,128,.2)", type: log ? "log" : "linear" } });
  const color = style.getPropertyValue("--best").trim();
  // The first loss is about the same for all runs, and would squeeze the rest of the curves.
  const traces = [...curves].sort(([a], [b]) => (a === best) - (b === best)).map(([key, points]) => {
    const run = runs.get(key), later = points.length > 2 ? points.slice(1) : points;
    const line = key === best ? { color, width: 3 } : { color: run.state === "running" ? "#3b82c4" : "#9aa4ae", width: 1 };
    return { x: later.map(([x]) => x), y: later.map(([, y]) => y), mode: later.length > 1 ? "lines" : "markers", line, marker: line, name: key,
      opacity: key === best || run.state === "running" ? 1 : 0.5, text: values(run.sampled),
      hovertemplate: `${key}<br>%{text}<br>iteration %{x}: %{y:.4f}<extra></extra>` };
  });
  Plotly.react("curves", traces, layout("iteration", `validation loss (${said.unit})`), { responsive: true, displayModeBar: false });
  const ended = [...runs.values()].filter((run) => run.ended !== null && run.value !== null && ["complete", "stopped"].includes(run.outcome));
  const trials = [...new Map(ended.sort((a, b) => a.ended - b.ended).map((run) => [`${run.cell}#${run.trial}`, run])).values()];
  let low = Infinity;
  const lows = trials.map((run) => (low = Math.min(low, run.value)));
  const numbers = trials.map((_, index) => index + 1);
  Plotly.react("progress", [
    { x: numbers, y: trials.map((run) => run.value), mode: "markers", marker: { color: "#9aa4ae", size: 6 }, text: trials.map((run) => `${run.cell} #${run.trial}`), hovertemplate: "%{text}: %{y:.4f}<extra></extra>" },
    { x: numbers, y: lows, mode: "lines", line: { shape: "hv", color, width: 2 }, hoverinfo: "skip" },
  ], layout("completed trials", said.metric), { responsive: true, displayModeBar: false });
}

function follow() {
  if (source) source.close();
  runs.clear();
  curves.clear();
  source = new EventSource(url("events"));
  source.onopen = () => { runs.clear(); curves.clear(); };  // after a reconnect the server sends everything again
  source.onmessage = (event) => show(JSON.parse(event.data));
  source.onerror = () => { at("phase").textContent = "no answer: sweeplab dashboard has ended or is restarting"; };
}

for (const button of document.querySelectorAll("button[data-order]")) button.onclick = () => post("order", { order: button.dataset.order });
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
  at("studies").onchange = () => { study = at("studies").value; follow(); };
  follow();
});
