(function () {
  "use strict";
  const PRINTED = 660; // px: what an A4 page has between its margins
  // There, one long name would put all names of a legend below each other, and cut off the last.
  const NARROW = { "legend.font.size": 8, "legend.entrywidth": 0.5, "legend.entrywidthmode": "fraction" };
  const WIDE = { "legend.font.size": null, "legend.entrywidth": null, "legend.entrywidthmode": "pixels" };
  const figures = JSON.parse(document.getElementById("figures").textContent);
  // plotly.js would offer to send a chart to its makers' server: no such button, no such address.
  const config = {
    displaylogo: false,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    plotlyServerURL: "",
    responsive: true,
    showSendToCloud: false,
  };
  const boxes = Array.from(document.querySelectorAll(".chart"));

  // A chart inside a closed fold is drawn when the fold opens: a long comparison appears at once.
  function draw() {
    for (const box of boxes) {
      if (!box.dataset.drawn && !box.closest("details:not([open])")) {
        const figure = figures[Number(box.dataset.figure)];
        const movable = figure.layout.xaxis.fixedrange === false;
        Plotly.newPlot(box, figure.data, figure.layout, { ...config, displayModeBar: movable });
        box.dataset.drawn = "yes";
      }
    }
  }

  function eachDrawn(change) {
    for (const box of boxes) {
      if (box.dataset.drawn) Plotly.relayout(box, change);
    }
  }

  // On paper the tables are unfolded; of the results of a comparison only those that the reader opened.
  const folds = Array.from(document.querySelectorAll("details"));
  let closed = [];
  for (const fold of folds) fold.addEventListener("toggle", draw);
  window.addEventListener("beforeprint", function () {
    closed = folds.filter((fold) => !fold.open && !fold.matches(".target"));
    for (const fold of closed) fold.open = true;
    draw();
    eachDrawn({ width: PRINTED, ...NARROW });
  });
  window.addEventListener("afterprint", function () {
    eachDrawn({ width: null, autosize: true, ...WIDE });
    for (const fold of closed) fold.open = false;
  });
  draw();
})();
