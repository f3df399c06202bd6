"use strict";
// Text of a model is inserted by textContent only; the template escapes it everywhere else.
const traces = JSON.parse(document.getElementById("data").textContent);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

function readValue(cell) {
  const number = Number(cell.dataset.value);
  return cell.dataset.value === "" || Number.isNaN(number) ? cell.textContent : number;
}

function sort(button) {
  const heading = button.closest("th"), table = button.closest("table"), body = table.tBodies[0];
  const descending = heading.getAttribute("aria-sort") === "ascending";
  all("th", table).forEach((other) => other.removeAttribute("aria-sort"));
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
all("th button").forEach((button) => button.addEventListener("click", () => sort(button)));

const copy = document.getElementById("copy");
copy?.addEventListener("click", async () => {
  const fix = document.getElementById("fix");
  try {
    await navigator.clipboard.writeText(fix.textContent);
    copy.textContent = "Copied";
  } catch { // a browser may not allow it; then the lines are selected, to be copied by hand
    getSelection().selectAllChildren(fix);
    copy.textContent = "Selected";
  }
});

const context = document.getElementById("context");
function showTraces() {
  all(".traced").forEach((section) => { section.hidden = section.dataset.group !== context.value; });
}
context?.addEventListener("change", showTraces);
if (context) showTraces();

function readStep(slider) {
  const step = traces[Number(slider.dataset.trace)][Number(slider.value) - 1];
  if (!step) return;
  const [token, probability, eos, rank, kept, removed] = step;
  const fate = removed === null ? `kept, one of ${kept}` : `removed by ${removed}`;
  const text = `step ${slider.value}: ${JSON.stringify(token)} with p = ${probability.toPrecision(3)}; ` +
    `p(eos) = ${eos.toPrecision(3)}, rank ${rank}, ${fate}`;
  document.getElementById(`step-${slider.dataset.trace}`).textContent = text;
  slider.setAttribute("aria-valuetext", text);
}
all("[data-trace]").forEach((slider) => {
  slider.addEventListener("input", () => readStep(slider));
  readStep(slider);
});

const pickers = all("[data-pick]"), more = document.getElementById("more"), page = 20;
let most = page;
function showCards() {
  let found = 0;
  for (const card of all("#cards .card")) {
    const fits = pickers.every((picker) => !picker.value || card.dataset[picker.dataset.pick] === picker.value);
    if (fits) found += 1;
    card.hidden = !fits || found > most;
  }
  const shown = Math.min(found, most);
  document.getElementById("count").textContent = `${shown} of ${found} shown`;
  more.hidden = shown === found;
}
pickers.forEach((picker) => picker.addEventListener("change", () => { most = page; showCards(); }));
more?.addEventListener("click", () => { most += 5 * page; showCards(); });
if (more) showCards();

// what is folded away on the screen is printed
addEventListener("beforeprint", () => all("details").forEach((each) => { each.open = true; }));
document.documentElement.dataset.ready = "yes";
