// Heads of tables become buttons: up, down, as it was. Numbers go by their value, whatever unit they show.
(function () {
  "use strict";
  const words = new Intl.Collator("en", { numeric: true });
  const next = { none: "ascending", ascending: "descending", descending: "none" };

  function compare(one, other) {
    const [a, b] = [one.dataset.value, other.dataset.value];
    if (a !== undefined && b !== undefined) return Number(a) - Number(b);
    if (a !== undefined || b !== undefined) return a !== undefined ? -1 : 1;
    return words.compare(one.textContent, other.textContent);
  }

  function sort(table, rows, column, order) {
    const sorted = rows.slice();
    const sign = order === "descending" ? -1 : 1;
    if (order !== "none") {
      sorted.sort((one, other) => {
        const [a, b] = [one.cells[column], other.cells[column]];
        // Where nothing stands there is nothing to compare: such rows stay at the end.
        if (!a.textContent || !b.textContent) return !a.textContent - !b.textContent;
        return sign * compare(a, b);
      });
    }
    table.tBodies[0].append(...sorted);
  }

  for (const table of document.querySelectorAll("table")) {
    const rows = Array.from(table.tBodies[0].rows);
    const heads = Array.from(table.tHead.rows[0].cells);
    if (rows.length < 2) continue;
    heads.forEach(function (head, column) {
      if (!head.textContent) return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", function () {
        const order = next[head.getAttribute("aria-sort")];
        for (const other of heads) {
          if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
        }
        head.setAttribute("aria-sort", order);
        sort(table, rows, column, order);
      });
    });
  }
})();
