// Draws the charts of the page. They are elements that the server made, with all text from data escaped;
// React would take them as text.
"use strict";

const draw = (place) => {
  place.innerHTML = place.dataset.chart;
};

new MutationObserver((changes) => {
  for (const { type, target, addedNodes } of changes) {
    if (type === "attributes") {
      draw(target);
    }
    for (const node of addedNodes) {
      if (node instanceof HTMLElement) {
        [node, ...node.querySelectorAll("[data-chart]")].filter((one) => one.dataset.chart).forEach(draw);
      }
    }
  }
}).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-chart"] });
