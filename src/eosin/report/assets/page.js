"use strict";
// Text of a model is inserted by textContent only; the template escapes it in the tables.
const data = JSON.parse(document.getElementById("data").textContent);

function element(kind, properties = {}, ...children) {
  const made = Object.assign(document.createElement(kind), properties);
  made.append(...children);
  return made;
}

function readColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// plotly reads names and hover texts as HTML
function escapeHtml(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

const PHONE = 640; // pixels; narrower screens are phones
function applyTheme(layout, width, traces) {
  const axis = { gridcolor: readColour("--line"), zerolinecolor: readColour("--line"), linecolor: readColour("--line"), automargin: true };
  const axes = {};
  for (const name of ["xaxis", "yaxis", "yaxis2"]) {
    if (name !== "yaxis2" || layout.yaxis2) axes[name] = { ...axis, ...(layout[name] || {}) };
  }
  const narrow = width < PHONE;
  const below = { orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0 };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: readColour("--ink"), size: 12 },
    margin: { l: 50, r: 20, t: 36, b: 45 }, showlegend: traces > 1,
    modebar: { bgcolor: "rgba(0,0,0,0)", color: readColour("--soft") }, ...layout, ...axes,
    // on a phone the legend stands below the chart, which grows by its lines
    ...(narrow ? { legend: below, height: (layout.height || 340) + (traces > 1 ? 22 * traces : 0) } : {}),
  };
}

const drawn = new Map();
function draw(place, traces, layout) {
  drawn.set(place, [traces, layout]);
  const whole = applyTheme(layout, place.clientWidth, traces.length);
  if (whole.height) place.style.height = `${whole.height}px`;
  Plotly.react(place, traces, whole, { responsive: true, displaylogo: false, displayModeBar: place.clientWidth < PHONE ? false : "hover" });
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const [place, [traces, layout]] of drawn) draw(place, traces, layout);
});

// a chart is drawn when it comes into view
const waiting = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    waiting.unobserve(entry.target);
    const chart = data.charts[Number(entry.target.dataset.chart)];
    draw(entry.target, chart.traces, chart.layout);
  }
}, { rootMargin: "400px" });
document.querySelectorAll("[data-chart]").forEach((place) => waiting.observe(place));

function readValue(cell) {
  const number = Number(cell.dataset.value);
  return cell.dataset.value === "" || Number.isNaN(number) ? cell.textContent : number;
}

function sort(button) {
  const heading = button.closest("th"), table = button.closest("table"), body = table.tBodies[0];
  const descending = heading.getAttribute("aria-sort") === "ascending";
  table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
  heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const rows = [...body.rows];
  rows.sort((a, b) => {
    const x = readValue(a.cells[heading.cellIndex]), y = readValue(b.cells[heading.cellIndex]);
    // cells without a number come last in both orders
    if (typeof x !== typeof y) return typeof x === "number" ? -1 : 1;
    const order = typeof x === "number" ? x - y : x.localeCompare(y);
    return descending ? -order : order;
  });
  body.append(...rows);
}
document.querySelectorAll("th button").forEach((button) => button.addEventListener("click", () => sort(button)));

function fillOptions(select, names) {
  select.replaceChildren(...names.map((name, place) => element("option", { value: String(place), textContent: name })));
}

function buildCompletion(example) {
  const line = element("p");
  line.append(element("span", { className: "prefix", textContent: example.prefix }));
  const onset = example.loop ? example.loop.onset - 1 : Infinity;
  const before = example.steps.slice(0, onset).map((step) => step[0]).join("");
  const repeated = example.steps.slice(onset).map((step) => step[0]).join("");
  line.append(" ", element("span", { textContent: before }));
  if (repeated) line.append(element("mark", { textContent: repeated, title: `repeats with period ${example.loop.period}` }));
  return line;
}

function showTraces() {
  const picker = document.getElementById("context");
  if (!picker) return;
  const groups = [...new Set(data.examples.map((example) => example.group))];
  fillOptions(picker, groups);
  const show = () => {
    const chosen = data.examples.filter((example) => example.group === groups[Number(picker.value)]);
    const traces = chosen.map((example) => ({
      name: escapeHtml(`${example.run}, ${example.decoder}`), mode: "lines+markers", marker: { size: 4 },
      x: example.steps.map((_, place) => place + 1), y: example.steps.map((step) => Math.max(step[2], 1e-12)),
      text: example.steps.map(([token, probability, , rank, kept, removed]) =>
        `${escapeHtml(JSON.stringify(token))} p = ${probability.toPrecision(3)}<br>eos: rank ${rank}, ` +
        (removed ? `removed by ${escapeHtml(removed)}` : `kept, one of ${kept}`)),
      hovertemplate: "step %{x}: %{text}<br>p(eos) = %{y:.3g}<extra></extra>",
    }));
    const layout = { xaxis: { title: { text: "step" } }, yaxis: { type: "log", title: { text: "p(eos)" } } };
    draw(document.getElementById("trace"), traces, layout);
    document.getElementById("traced").replaceChildren(...chosen.map((example) => element("div", { className: "completion" },
      element("span", { className: "tag", textContent: `${example.run}, ${example.decoder}` }),
      element("span", { className: "tag", textContent: example.cause }), buildCompletion(example))));
  };
  picker.addEventListener("change", show);
  show();
}
showTraces();

function showCompletions() {
  const place = document.getElementById("completions");
  if (!place) return;
  const by = document.getElementById("completions-by"), cause = document.getElementById("completions-cause");
  const decoders = ["all decoders", ...new Set(data.completions.map((each) => each.by))];
  const causes = ["all endings", ...new Set(data.completions.map((each) => each.cause))];
  fillOptions(by, decoders);
  fillOptions(cause, causes);
  const show = () => {
    const wanted = data.completions.filter((each) =>
      (by.value === "0" || each.by === decoders[Number(by.value)]) &&
      (cause.value === "0" || each.cause === causes[Number(cause.value)]));
    document.getElementById("completions-count").textContent = `${wanted.length.toLocaleString("en")} shown`;
    place.replaceChildren(...wanted.map((each) => {
      const text = element("p", {}, element("span", { textContent: each.before }));
      if (each.repeated) text.append(element("mark", { textContent: each.repeated }));
      return element("div", { className: "completion" }, element("span", { className: "tag", textContent: each.by }),
        element("span", { className: "tag", textContent: `context ${each.context}` }),
        element("span", { className: "tag", textContent: `${each.cause}, step ${each.steps}` }), text);
    }));
  };
  by.addEventListener("change", show);
  cause.addEventListener("change", show);
  show();
}
showCompletions();
document.documentElement.dataset.ready = "yes";
