// Says why a file is not read, puts the parts of an answer on the page, and gives its fields names and focus. They are elements that the server made, with all text from data
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

// What Dash's elements lack for keyboards and screen readers: names, states, and what a slider stands at.
const name = (field) => field?.closest("label")?.querySelector(".head > span")?.textContent ?? "";
const set = (one, key, value) => one.getAttribute(key) === value || one.setAttribute(key, value);
const drop = (one, ...keys) => keys.forEach((key) => one.removeAttribute(key));
const amend = () => {
  document.querySelectorAll("input[type=range]").forEach((one) => {
    set(one, "aria-valuetext", one.closest("label").querySelector(".head > :last-child").textContent.trim());
  });
  document.querySelectorAll("#asks > [role=group] button").forEach((one) => {
    set(one, "aria-pressed", String(one.className === "chosen"));
  });
  document.querySelectorAll(".dash-dropdown-focus-target").forEach((one) => set(one, "tabindex", "-1"));
  document.querySelectorAll("button.dash-dropdown").forEach((one) => {
    set(one, "tabindex", "0");
    drop(one, "aria-labelledby");
    set(one, "aria-label", `${name(one)}: ${one.textContent}`);
  });
  document.querySelectorAll("#upload input").forEach((one) => set(one, "aria-label", "a file from this machine"));
  document.querySelectorAll(".dash-options-list").forEach((one) => {
    set(one, "role", "radiogroup");
    set(one, "aria-label", one.id === "basket" ? "variants" : "values");
    one.querySelectorAll("label[role]").forEach((option) => drop(option, "role", "aria-selected"));
  });
  document.querySelectorAll(".dash-dropdown-content").forEach((one) => set(one, "aria-label", "values"));
  document.querySelectorAll(".dash-dropdown-search").forEach((one) => set(one, "aria-label", "part of a value"));
};

// The focus goes back to the field from which it was taken when the form was made again.
let last = "";
document.addEventListener("focusin", ({ target }) => { last = target.closest("[id^='{']")?.id ?? ""; });
const refocus = () => {
  if (last && document.activeElement === document.body) {
    document.getElementById(last)?.focus({ preventScroll: true });
  }
};

// Dash puts the caret back a moment after each key, which is too late where the next key has come: letters change places.
const setSelection = HTMLInputElement.prototype.setSelectionRange;
HTMLInputElement.prototype.setSelectionRange = function (...range) {
  if (!this.classList.contains("dash-input-element")) {
    setSelection.apply(this, range);
  }
};

// What is typed in an open list looks for a value, before Dash moves the focus there and where an option that had it is gone.
document.addEventListener("keydown", (event) => {
  const open = event.target === document.body || event.target.closest?.(".dash-dropdown-content, .dash-dropdown[aria-expanded=true]");
  const search = open && document.querySelector(".dash-dropdown-search");
  if (search && event.target !== search && event.key.length === 1 && event.key !== " " && !event.ctrlKey && !event.metaKey) {
    search.focus();
  }
}, true);

document.addEventListener("click", async ({ target }) => {
  const text = { "copy-command": () => document.querySelector("#details code").textContent, "copy-link": () => location.href }[target.id];
  if (text) {
    const before = target.textContent;
    target.textContent = await navigator.clipboard.writeText(text()).then(() => "Copied", () => text());
    setTimeout(() => { target.textContent = before; }, 2000);
  }
});

let due = 0;
new MutationObserver((changes) => {
  for (const { type, target, addedNodes } of changes) {
    const added = [...addedNodes].filter((node) => node instanceof HTMLElement);
    const places = added.flatMap((node) => [node, ...node.querySelectorAll("[data-drawn]")]);
    (type === "attributes" ? [target] : places.filter((one) => one.dataset.drawn)).forEach(draw);
  }
  cancelAnimationFrame(due);
  due = requestAnimationFrame(() => { amend(); refocus(); });
}).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-drawn"] });
