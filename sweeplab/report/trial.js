// A trial's dialog: its state, values, curves, notes, checkpoints and the commands about it.
const element = (tag, text = "", more = {}) => Object.assign(document.createElement(tag), { textContent: text }, more);
const dialog = document.getElementById("trial");
const quoted = (word) => word === "&&" || /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\"'\"'")}'`;
let beside = null;  // the trial that the next one is compared with
function open_trial(trial, about) {
  if (beside) { compare(beside, trial, about); beside = null; return; }
  const close = element("button", "Close", { type: "button", onclick: () => dialog.close() });
  const compares = element("button", "Compare with the next one opened", { type: "button", onclick: () => { beside = trial; dialog.close(); } });
  const list = element("dl");
  const said = (what, ...parts) => { const words = element("dd"); words.append(...parts); list.append(element("dt", what), words); };
  const of = trial.runs.length > 1 ? " (of the mean curve of its seeds)" : "";
  said("State", `${trial.state}${trial.loss === null ? "" : `, ${about.loss} ${trial.loss.toFixed(4)}${of}`}`);
  for (const [name, value] of Object.entries({ ...trial.cell_values, ...trial.values })) said(name, value);
  if (trial.note) said("Note", trial.note);
  for (const run of trial.runs) {
    said(`Seed ${run.seed}`, run.checkpoint ? element("code", run.checkpoint) : "no checkpoint was kept");
    if (run.mlflow) {
      const link = element("a", "in MLflow", { href: run.mlflow, target: "_blank", rel: "noopener" });
      said("", link);
    }
  }
  const seed = trial.runs[0]?.seed ?? 0, is_kept = trial.runs.some((run) => run.checkpoint);
  for (const [what, words] of Object.entries(about.commands[trial.study] ?? {})) {
    if (what === "generate" && !is_kept) continue;
    const filled = words.map((word) => word.replace("{cell}", () => trial.cell).replace("{trial}", trial.trial).replace("{seed}", seed));
    said(what, element("code", filled.map(quoted).join(" ")));
  }
  const curve = element("div", "", { className: "curve" });
  dialog.replaceChildren(close, compares, element("h2", `Trial ${trial.trial} in cell ${trial.cell.replaceAll(",", ", ")}${about.several ? ` of ${trial.study}` : ""}`), curve, list);
  if (about.note) dialog.append(about.note(trial));
  dialog.showModal();
  draw_curves(curve, lines_of(trial));
}

// Two trials: their curves in one figure, and what differs between them.
function compare(first, second, about) {
  const close = element("button", "Close", { type: "button", onclick: () => dialog.close() });
  const name = (trial) => `trial ${trial.trial} in ${trial.cell.replaceAll(",", ", ")}${about.several ? ` of ${trial.study}` : ""}`;
  const facts = (trial) => ({ state: trial.state, [about.loss]: trial.loss === null ? "–" : trial.loss.toFixed(4), ...trial.cell_values, ...trial.values, note: trial.note || "–" });
  const [ours, theirs] = [first, second].map(facts), table = element("table"), head = element("tr");
  head.append(...["", name(first), name(second)].map((text) => element("th", text)));
  table.append(head);
  for (const key of Object.keys({ ...ours, ...theirs })) {
    if (ours[key] === theirs[key]) continue;
    const row = element("tr");
    row.append(...[key, ours[key] ?? "–", theirs[key] ?? "–"].map((text) => element("td", text)));
    table.append(row);
  }
  const curve = element("div", "", { className: "curve" });
  dialog.replaceChildren(close, element("h2", "Two trials"), curve, table);
  dialog.showModal();
  draw_curves(curve, [first, second].flatMap((trial) => lines_of(trial).map((line) => ({ ...line, name: name(trial), line: { color: trial === first ? "#485cd6" : "#de6e1e" } }))));
}

function lines_of(trial) {
  return trial.runs.filter((run) => run.curve[0].length)
    .map((run) => ({ x: run.curve[0], y: run.curve[1], mode: "lines+markers", name: `seed ${run.seed}`, hovertemplate: "%{x}: %{y:.4f}<extra></extra>" }));
}

function draw_curves(curve, lines) {
  const layout = { height: 220, margin: { l: 56, r: 8, t: 8, b: 40 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { size: 12 },
    xaxis: { title: { text: "iteration" }, zeroline: false, rangemode: "tozero" }, yaxis: { title: { text: "validation loss" }, zeroline: false }, showlegend: lines.length > 1, legend: { orientation: "h", y: 1.02, yanchor: "bottom" } };
  // As on the page: the start of a run is far above the rest of its curve.
  const later = lines.flatMap((line) => line.y.slice(1)), all = lines.flatMap((line) => line.y);
  if (later.length) { const low = Math.min(...all), high = Math.max(...later), room = 0.08 * (high - low || 1); layout.yaxis.range = [low - room, high + room]; }
  if (lines.length) Plotly.newPlot(curve, lines, layout, { displayModeBar: false }); else curve.remove();
}
dialog?.addEventListener("click", ({ target }) => { if (target === dialog) dialog.close(); });
