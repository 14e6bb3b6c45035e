(function () {
  "use strict";
  const PRINTED = 680; // px: the width of an A4 page between its margins
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const config = {
    displaylogo: false,
    responsive: true,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
  };
  const boxes = Array.from(document.querySelectorAll(".chart"));

  // A chart inside a closed fold has no width yet: it is drawn when the fold opens.
  function draw() {
    for (const box of boxes) {
      if (!box.dataset.drawn && box.offsetWidth > 0) {
        const figure = figures[Number(box.dataset.figure)];
        Plotly.newPlot(box, figure.data, figure.layout, config);
        box.dataset.drawn = "yes";
      }
    }
  }

  function eachDrawn(change) {
    for (const box of boxes) {
      if (box.dataset.drawn) Plotly.relayout(box, change);
    }
  }

  const folds = Array.from(document.querySelectorAll("details"));
  let closed = [];
  for (const fold of folds) fold.addEventListener("toggle", draw);
  window.addEventListener("beforeprint", function () {
    closed = folds.filter((fold) => !fold.open);
    for (const fold of closed) fold.open = true;
    draw();
    eachDrawn({ width: PRINTED });
  });
  window.addEventListener("afterprint", function () {
    eachDrawn({ width: null, autosize: true });
    for (const fold of closed) fold.open = false;
  });
  draw();
})();
