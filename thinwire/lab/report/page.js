"use strict";

// Sort a table by the column whose heading is pressed: upwards, then downwards. What has no key stays last.
function sort(heading) {
  const table = heading.closest("table"), body = table.tBodies[0];
  const place = heading.cellIndex, number = heading.classList.contains("n");
  const up = heading.getAttribute("aria-sort") !== "ascending";
  const keyed = [...body.rows].map((row) => ({ row, key: row.cells[place].dataset.key }));
  const compare = (a, b) =>
    number ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true, sensitivity: "base" });
  keyed.sort((a, b) => {
    if (a.key === "" || b.key === "") return (a.key === "") - (b.key === "");
    return up ? compare(a.key, b.key) : compare(b.key, a.key);
  });
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", up ? "ascending" : "descending");
  body.append(...keyed.map((item) => item.row));
}

// Hide or show the lines of one method in the plots below its legend.
function toggle(entry) {
  const shown = entry.getAttribute("aria-pressed") !== "true";
  entry.setAttribute("aria-pressed", String(shown));
  for (const line of entry.closest(".block").querySelectorAll(`.line.${entry.dataset.series}`))
    line.classList.toggle("off", !shown);
}

for (const button of document.querySelectorAll("thead button"))
  button.addEventListener("click", () => sort(button.closest("th")));
for (const entry of document.querySelectorAll(".legend button"))
  entry.addEventListener("click", () => toggle(entry));
