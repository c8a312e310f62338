"use strict";
// One state for all charts and tables: the sparsity, the methods that are switched off, whether tables show every
// sparsity, and the column that each is sorted by. It is kept in the address, so that a page that reloads, or a link to it, shows the same.
const data = JSON.parse(document.getElementById("data").textContent);
const slider = document.getElementById("sparsity");
const every = document.getElementById("every");
const boxes = [...document.querySelectorAll("input[data-series]")];
const views = [];

function restore() {
  const kept = new URLSearchParams(location.hash.slice(1));
  const place = data.sparsities.indexOf(kept.get("sparsity"));
  if (slider && place >= 0) slider.value = place;
  if (every) every.checked = kept.get("every") === "1";
  const off = kept.getAll("off");
  for (const box of boxes) box.checked = !off.includes(box.dataset.series);
  for (const sorted of kept.getAll("sort")) {
    const [table, column, order] = sorted.split(" ");
    const button = document.getElementById(table)?.querySelector(`button[data-column="${Number(column)}"]`);
    if (button) sortBy(button, order);
  }
}

function state() {
  return {
    sparsity: slider ? data.sparsities[slider.value] : "",
    every: !every || every.checked,
    hidden: boxes.filter((box) => !box.checked).map((box) => box.dataset.series),
  };
}

function keep({ sparsity, every, hidden }) {
  const kept = new URLSearchParams();
  if (sparsity) kept.set("sparsity", sparsity);
  if (every) kept.set("every", "1");
  for (const name of hidden) kept.append("off", name);
  for (const head of document.querySelectorAll("th[aria-sort]")) {
    const column = head.querySelector("button").dataset.column;
    kept.append("sort", [head.closest("article").id, column, head.getAttribute("aria-sort")].join(" "));
  }
  history.replaceState(null, "", "#" + kept);
}

function show() {
  const now = state();
  if (slider) {
    const title = data.titles[slider.value];
    document.getElementById("sparsity-shown").textContent = title;
    slider.setAttribute("aria-valuetext", title);
  }
  for (const part of document.querySelectorAll(".summary[data-wished]")) {
    part.hidden = part.dataset.wished !== now.sparsity || now.hidden.includes(part.dataset.series);
  }
  let appeared = false;
  for (const panel of document.querySelectorAll(".panel[data-series]")) {
    const hidden = now.hidden.includes(panel.dataset.series);
    appeared ||= panel.hidden && !hidden;
    panel.hidden = hidden;
  }
  if (appeared) window.dispatchEvent(new Event("resize")); // a chart that was hidden had no width
  for (const panel of document.querySelectorAll(".panel[data-wishes]")) {
    panel.querySelector(".absent").hidden = panel.dataset.wishes.split(" ").includes(now.sparsity);
  }
  for (const row of document.querySelectorAll("tbody tr[data-series]")) {
    const other = row.dataset.wished && row.dataset.wished !== now.sparsity;
    row.hidden = now.hidden.includes(row.dataset.series) || (other && !now.every);
  }
  for (const view of views) {
    view.signal("sparsity", now.sparsity).signal("hidden", now.hidden).runAsync();
  }
}

function changed() {
  keep(state());
  show();
}

function sortBy(button, order) {
  const head = button.closest("th");
  const body = head.closest("table").tBodies[0];
  const place = Number(button.dataset.column);
  const down = order ? order === "descending" : head.getAttribute("aria-sort") !== "descending";
  for (const other of head.closest("thead").querySelectorAll("th")) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const key = (row) => row.cells[place].dataset.value;
  const rows = [...body.rows].sort((one, other) => {
    const [a, b] = [key(one), key(other)];
    if (a === "" || b === "") return (a === "") - (b === ""); // what is missing comes last, either way
    const [x, y] = [Number(a), Number(b)];
    const words = Number.isNaN(x) - Number.isNaN(y); // numbers before words
    const rank = words || (Number.isNaN(x) ? a.localeCompare(b) : x - y);
    return down ? -rank : rank;
  });
  body.append(...rows);
}

async function draw() {
  const options = { actions: false, renderer: "svg", ast: true }; // interpreted: the page allows no eval
  for (const [id, spec] of Object.entries(data.charts)) {
    const { view } = await vegaEmbed("#" + id, spec, options);
    views.push(view);
  }
  show();
  document.body.dataset.ready = "yes";
}

restore();
show();
window.addEventListener("hashchange", () => {
  restore();
  show();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address holds the state
  document.getElementById("summary").focus();
});
if (slider) slider.addEventListener("input", changed);
if (every) every.addEventListener("change", changed);
for (const box of boxes) box.addEventListener("change", changed);
for (const button of document.querySelectorAll("thead button")) {
  button.addEventListener("click", () => {
    sortBy(button);
    keep(state());
  });
}
draw();
