// A page's figures: drawn, fitted to the screen; a trial's values under the cursor and its run on a click.
const NARROW = 640, LEGEND_SHARE = 0.25;
const places = [...document.querySelectorAll("[data-figure]")];
const figures = window.Plotly ? places : [];
const trials = JSON.parse(document.getElementById("trials")?.textContent ?? "[]");
const about = JSON.parse(document.getElementById("about-trials")?.textContent ?? "{}");

// The page was moved without the plotly.js file that it shares with other pages.
for (const place of window.Plotly ? [] : places) {
  place.textContent = "Not drawn: the plotly.js file that the lab's pages share is missing. sweeplab report … --single-file writes a page to send.";
  place.className = "missing";
}

const clone = (value) => JSON.parse(JSON.stringify(value));
const axes = (layout, letter) => Object.keys(layout).filter((key) => new RegExp(`^${letter}axis\\d*$`).test(key));

// Narrow screens: fewer ticks, titles in two lines, small figures one below the other, as wide as it takes.
function narrowed(data, layout) {
  layout.margin = { ...layout.margin, r: data[0]?.type === "parcoords" ? 48 : 8 };
  const across = axes(layout, "x"), down = axes(layout, "y");
  if (across.length > 1 && across.length === down.length) {
    const gap = 0.3 / across.length;
    across.forEach((name, at) => {
      const [top, bottom] = [1 - at / across.length, 1 - (at + 1) / across.length + gap];
      Object.assign(layout[name], { domain: [0, 1], anchor: down[at].replace("axis", ""), showticklabels: true });
      Object.assign(layout[down[at]], { domain: [bottom, top], anchor: name.replace("axis", ""), showticklabels: true });
    });
    layout.height = 60 + 250 * across.length;
  }
  for (const name of across) {
    const axis = layout[name], step = Math.ceil((axis.tickvals?.length ?? 0) / 4);
    if (step > 1 && across.length === 1) for (const part of ["tickvals", "ticktext"]) axis[part] = axis[part].filter((_, at) => at % step === 0);
    const words = axis.title?.text?.split(" ") ?? [], half = Math.ceil(words.length / 2);
    if (words.join(" ").length > 36) axis.title.text = `${words.slice(0, half).join(" ")}<br>${words.slice(half).join(" ")}`;
  }
}

// Long names of rows in two lines.
function wrapped(layout) {
  for (const name of axes(layout, "y")) {
    layout[name].ticktext = layout[name].ticktext?.map((text) => {
      const parts = String(text).split(", "), half = Math.ceil(parts.length / 2);
      return text.length > 24 && half < parts.length ? `${parts.slice(0, half).join(", ")},<br>${parts.slice(half).join(", ")}` : text;
    });
    if (layout[name].ticktext?.some((text) => String(text).includes("<br>"))) {
      layout[name].tickfont = { size: 10 };
      layout.height *= 1.15;
    }
  }
}

function below(layout) {
  layout.legend = { ...layout.legend, orientation: "h", x: 0, xanchor: "left", yref: "container", y: 0, yanchor: "bottom" };
}

async function draw(place) {
  const { data, layout } = clone(place.source), width = place.clientWidth, is_parallel = data[0]?.type === "parcoords";
  const draws = () => Plotly.react(place, data, layout, { responsive: !is_parallel, displayModeBar: false });
  const is_narrow = width < NARROW;
  if (is_narrow) { narrowed(data, layout); wrapped(layout); }
  if (is_narrow && layout.showlegend !== false) below(layout);
  if (is_parallel) layout.width = Math.max(width, 110 * data[0].dimensions.length);
  place.style.overflowX = is_parallel && layout.width > width ? "auto" : "";
  place.wide = !is_narrow;
  await draws();
  const measured = () => place.querySelector(".legend")?.getBBox() ?? { width: 0, height: 0 };
  if (!is_narrow && layout.legend?.orientation !== "h" && measured().width > LEGEND_SHARE * width) {
    below(layout);
    await draws();
  }
  if (layout.legend?.yref !== "container" || !measured().height) return;
  // The legend gets its own space, so that the plot keeps its height.
  const taken = Math.min(measured().height, Math.max(0.3 * layout.height, 88)) + 6;
  layout.legend.maxheight = taken;
  layout.height += taken;
  layout.margin.b += taken;
  await draws();
}

// The searched values are stored once per trial, and shown for every mark of it.
function hovers(trace) {
  const own = trace.meta?.trials;
  if (!own || !trace.hovertemplate) return;
  trace.text = own.map((at) => trials[at] ? Object.entries(trials[at].values).map((each) => each.join(" ")).join("<br>") : "");
  trace.hovertemplate = trace.hovertemplate.replace("<extra>", "<br>%{text}<extra>");
}

// One trace has several runs with gaps between them: returns the run of a point.
function run_of(trace, point) {
  let [from, to] = [point, point];
  const is_there = (at) => trace.x[at] !== null && trace.x[at] !== undefined && !Number.isNaN(trace.x[at]);
  while (from > 0 && is_there(from - 1)) from -= 1;
  while (to + 1 < trace.x.length && is_there(to + 1)) to += 1;
  return [[...trace.x].slice(from, to + 1), [...trace.y].slice(from, to + 1)];
}

function listens(place) {
  const front = place.source.data.findIndex((trace) => trace.meta?.front);
  place.on("plotly_hover", ({ points: [at] }) => {
    if (front < 0 || !at.data.mode?.startsWith("lines") || at.curveNumber === front) return;
    const [x, y] = run_of(at.fullData, at.pointIndex);
    Plotly.restyle(place, { x: [x], y: [y] }, [front]);
  });
  place.on("plotly_unhover", () => { if (front >= 0) Plotly.restyle(place, { x: [[]], y: [[]] }, [front]); });
  place.on("plotly_click", ({ points }) => {
    const found = points.map((at) => trials[at.data.meta?.trials?.[at.pointIndex]]).find(Boolean);
    if (found) open_trial(found, about);
  });
}

for (const place of figures) {
  place.source = JSON.parse(document.getElementById(place.dataset.figure).textContent);
  place.source.data.forEach(hovers);
}
// A folded figure has no width: it is drawn when it is unfolded.
function begin() {
  for (const place of figures) {
    if (place.isBegun || place.closest("details:not([open])")) continue;
    place.isBegun = true;
    draw(place).then(() => { listens(place); place.isSettled = true; });
  }
}
begin();
document.addEventListener("toggle", begin, true);
addEventListener("resize", () => figures.forEach((place) => { if (place.isSettled && place.wide !== place.clientWidth >= NARROW) draw(place); }));

// Paper is narrower than the screen, and Plotly knows only the screen's width.
// In print the methods are unfolded.
const methods = [...document.querySelectorAll("details.method")];
let folded = [];
addEventListener("beforeprint", () => {
  figures.filter((place) => place.isSettled).forEach((place) => Plotly.relayout(place, { autosize: false, width: place.closest(".half") ? 330 : 690 }));
  folded = methods.filter((each) => !each.open);
  folded.forEach((each) => { each.open = true; });
});
addEventListener("afterprint", () => {
  figures.filter((place) => place.isSettled).forEach((place) => Plotly.relayout(place, { autosize: true, width: undefined }));
  folded.forEach((each) => { each.open = false; });
});
// A figure as a file: on white, in ink, as wide as it is on the page.
for (const button of document.querySelectorAll("[data-save]")) button.onclick = () => {
  const place = button.closest("section").querySelector("[data-figure]"), figure = clone({ data: place.data, layout: place.layout });
  const white = { paper_bgcolor: "#fff", plot_bgcolor: "#fff", font: { ...figure.layout.font, color: "#1c1f24" } };
  const filename = button.dataset.name.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-");
  Plotly.downloadImage({ data: figure.data, layout: { ...figure.layout, ...white } },
    { format: button.dataset.save, width: place.clientWidth, height: place.clientHeight, scale: 2, filename });
};
document.addEventListener("click", ({ target }) => {
  const heading = target.closest("th");
  if (!heading) return;
  const down = heading.getAttribute("aria-sort") === "ascending";
  for (const other of heading.parentNode.children) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  const key = (row) => {
    const cell = row.children[heading.cellIndex];
    return "value" in cell.dataset ? (cell.dataset.value === "" ? null : Number(cell.dataset.value)) : cell.textContent;
  };
  // Missing values stay last in either order.
  const order = (a, b) => a === null || b === null ? (a === null) - (b === null)
    : (down ? -1 : 1) * (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
  const body = heading.closest("table").tBodies[0];
  body.append(...[...body.rows].sort((a, b) => order(key(a), key(b))));
});
