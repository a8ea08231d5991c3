// A session's copy button copies its commands: no prompts, no output.
for (const code of document.querySelectorAll(".language-console code")) {
  const copy = code.cloneNode(true);
  copy.querySelectorAll(".gp, .go").forEach((part) => part.remove());
  const lines = copy.textContent.split("\n").filter((line) => line.trim());
  code.parentElement.dataset.copy = lines.join("\n");
}

// A table that is wider than the window becomes a list: a block for each row, with its column's
// name before each cell.
const fit = () => {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap")) {
    const table = box.querySelector("table");
    delete table.dataset.rows;
    if (box.scrollWidth <= box.clientWidth + 1 || window.innerWidth >= 960) continue;
    const names = [...table.querySelectorAll("th")].map((cell) => cell.textContent);
    for (const row of table.querySelectorAll("tbody tr")) {
      [...row.cells].forEach((cell, column) => (cell.dataset.name = names[column]));
    }
    table.dataset.rows = "";
  }
};
window.addEventListener("load", fit);
window.addEventListener("resize", fit);
