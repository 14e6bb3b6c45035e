// Puts the parts of an answer on the page. They are elements that the server made, with all text from data
// escaped. What was unfolded stays so, and the focus stays where it was.
"use strict";

const draw = (place) => {
  const before = [...place.querySelectorAll("details")];
  const focused = before.findIndex((one) => one.firstElementChild === document.activeElement);
  place.innerHTML = place.dataset.drawn;
  const after = [...place.querySelectorAll("details")];
  before.forEach((one, at) => after[at]?.toggleAttribute("open", one.open));
  after[focused]?.firstElementChild.focus();
};

new MutationObserver((changes) => {
  for (const { type, target, addedNodes } of changes) {
    const added = [...addedNodes].filter((node) => node instanceof HTMLElement);
    const places = added.flatMap((node) => [node, ...node.querySelectorAll("[data-drawn]")]);
    (type === "attributes" ? [target] : places.filter((one) => one.dataset.drawn)).forEach(draw);
  }
}).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-drawn"] });
