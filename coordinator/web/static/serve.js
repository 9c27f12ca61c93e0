// The form for a deployment: its price follows what is typed, once somebody looks at it.
"use strict";

const DELAY_MS = 350;
let pending = null;
let newest = 0;

async function price(form) {
  const mine = ++newest;
  const target = form.querySelector("#serve-quote");
  target.setAttribute("aria-busy", "true");
  let fresh = null;
  try {
    const answer = await fetch(form.dataset.serve, { method: "POST", body: new URLSearchParams(new FormData(form)) });
    fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("serve-quote");
  } catch {
    if (mine === newest) target.textContent = "The coordinator does not answer. The price comes back by itself.";
    if (mine === newest) soon(form, 3000);
  }
  if (mine !== newest) return;
  if (fresh) target.replaceChildren(...fresh.childNodes);
  for (const button of target.querySelectorAll("[data-budget]")) button.hidden = false;
  target.removeAttribute("aria-busy");
}

function soon(form, delay = DELAY_MS) {
  clearTimeout(pending);
  pending = setTimeout(price, delay, form);
}

const seen = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    seen.unobserve(target);
    price(target);
  }
});

function arm() {
  for (const form of document.querySelectorAll("[data-serve]:not([data-armed])")) {
    form.dataset.armed = "1";
    for (const part of form.querySelectorAll("[data-plain]")) part.hidden = true;
    seen.observe(form);
  }
}

document.addEventListener("input", (event) => {
  const form = event.target.closest("[data-serve]");
  if (form) soon(form);
});
document.addEventListener("click", (event) => {
  const form = event.target.closest("[data-serve]");
  const button = event.target.closest("[data-budget]");
  if (!form || !button) return;
  form.elements["budget"].value = button.dataset.budget;
  form.elements["budget"].focus();
  price(form);
});
document.addEventListener("swapped", arm); // The form may come with the first checkpoint.
arm();
