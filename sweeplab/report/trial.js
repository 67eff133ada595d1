// A trial's dialog: its state, values, curves, notes, checkpoints and the commands about it.
const element = (tag, text = "", more = {}) => Object.assign(document.createElement(tag), { textContent: text }, more);
const dialog = document.getElementById("trial");
const quoted = (word) => word === "&&" || /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\"'\"'")}'`;
function open_trial(trial, about) {
  const close = element("button", "Close", { type: "button", onclick: () => dialog.close() });
  const list = element("dl");
  const said = (what, ...parts) => { const words = element("dd"); words.append(...parts); list.append(element("dt", what), words); };
  const of = trial.runs.length > 1 ? " (of the mean curve of its seeds)" : "";
  said("State", `${trial.state}${trial.loss === null ? "" : `, ${about.loss} ${trial.loss.toFixed(4)}${of}`}`);
  for (const [name, value] of Object.entries({ ...trial.cell_values, ...trial.values })) said(name, value);
  if (trial.note) said("Note", trial.note);
  if (trial.tags?.length) said("Tags", trial.tags.join(", "));
  for (const run of trial.runs) {
    said(`Seed ${run.seed}`, run.checkpoint ? element("code", run.checkpoint) : "no checkpoint was kept");
    if (run.mlflow) {
      const link = element("a", "in MLflow", { href: run.mlflow, target: "_blank", rel: "noopener" });
      said("", link, about.servers[trial.study] ? ` while ${about.servers[trial.study]} runs` : "");
    }
  }
  const seed = trial.runs[0]?.seed ?? 0, is_kept = trial.runs.some((run) => run.checkpoint);
  for (const [what, words] of Object.entries(about.commands[trial.study] ?? {})) {
    if (what === "generate" && !is_kept) continue;
    const filled = words.map((word) => word.replace("{cell}", () => trial.cell).replace("{trial}", trial.trial).replace("{seed}", seed));
    said(what, element("code", filled.map(quoted).join(" ")));
  }
  const curve = element("div", "", { className: "curve" });
  dialog.replaceChildren(close, element("h2", `Trial ${trial.trial} in cell ${trial.cell.replaceAll(",", ", ")}${about.several ? ` of ${trial.study}` : ""}`), curve, list);
  if (about.note) dialog.append(about.note(trial));
  dialog.showModal();
  const lines = trial.runs.filter((run) => run.curve[0].length)
    .map((run) => ({ x: run.curve[0], y: run.curve[1], mode: "lines+markers", name: `seed ${run.seed}`, hovertemplate: "%{x}: %{y:.4f}<extra></extra>" }));
  const layout = { height: 220, margin: { l: 56, r: 8, t: 8, b: 40 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { size: 12 },
    xaxis: { title: { text: "iteration" }, zeroline: false, rangemode: "tozero" }, yaxis: { title: { text: "validation loss" }, zeroline: false }, showlegend: lines.length > 1 };
  // As on the page: the start of a run is far above the rest of its curve.
  const later = lines.flatMap((line) => line.y.slice(1)), all = lines.flatMap((line) => line.y);
  if (later.length) { const low = Math.min(...all), high = Math.max(...later), room = 0.08 * (high - low || 1); layout.yaxis.range = [low - room, high + room]; }
  if (lines.length) Plotly.newPlot(curve, lines, layout, { displayModeBar: false }); else curve.remove();
}
dialog?.addEventListener("click", ({ target }) => { if (target === dialog) dialog.close(); });
