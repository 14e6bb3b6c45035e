// Says why a file is not read, and puts the parts of an answer on the page. They are elements that the server made, with all text from data
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

// A file that is too large is not sent.
const measure = (event) => {
  const place = document.getElementById("too-large");
  const files = [...(event.dataTransfer ?? event.target).files ?? []];
  if (!files.length || !event.target.closest("#upload")) {
    return;
  }
  const large = files.find((one) => one.size > Number(place.dataset.most));
  place.textContent = large
    ? `${large.name} has ${(large.size / 1e6).toFixed(1)} MB and was not read: drop a scenario, a ` +
      `config.json or a list of prices, which has at most ${place.dataset.most / 1e6} MB; weights are not needed, and simoffload serve FILE.gguf begins with a GGUF file`
    : "";
};
["change", "drop"].forEach((kind) => document.addEventListener(kind, measure, true));

new MutationObserver((changes) => {
  for (const { type, target, addedNodes } of changes) {
    const added = [...addedNodes].filter((node) => node instanceof HTMLElement);
    const places = added.flatMap((node) => [node, ...node.querySelectorAll("[data-drawn]")]);
    (type === "attributes" ? [target] : places.filter((one) => one.dataset.drawn)).forEach(draw);
  }
}).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-drawn"] });
