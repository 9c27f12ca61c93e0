// Keeps a page true: when the coordinator says that something changed, fetch the page again and swap its live parts.
"use strict";

const GAP_MS = 1000; // Between two refreshes, however often something changes.
const POLL_MS = 10000; // Where no stream is open.

function localise(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const date = new Date(time.dateTime);
    const today = date.toDateString() === new Date().toDateString();
    const clock = { hour: "2-digit", minute: "2-digit", second: "2-digit" };
    time.textContent = today
      ? date.toLocaleTimeString([], clock)
      : date.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  }
}

function swap(page) {
  for (const fresh of page.querySelectorAll("[data-live]")) {
    const old = document.querySelector(`[data-live="${fresh.dataset.live}"]`);
    localise(fresh);
    for (const token of fresh.querySelectorAll("input[name=csrf]")) token.value = document.body.dataset.csrf;
    if (!old || old.innerHTML === fresh.innerHTML) continue;
    if (old.dataset.until && old.querySelector(old.dataset.until)) continue; // From then on it is the reader's.
    const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
    const open = new Set([...old.querySelectorAll("details[open]")].map((one) => one.dataset.name));
    const typed = [...old.querySelectorAll("input[id], textarea[id], select[id]")].map((one) => [one.id, one.value, one.checked]);
    const scrolled = [...old.querySelectorAll(".scroll, .events")].map((one) => [one.scrollLeft, one.scrollTop]);
    old.replaceChildren(...fresh.childNodes);
    for (const one of old.querySelectorAll("details")) one.open = one.open || open.has(one.dataset.name);
    for (const [id, value, checked] of typed) {
      const one = document.getElementById(id);
      if (one) [one.value, one.checked] = [value, checked];
    }
    [...old.querySelectorAll(".scroll, .events")].forEach((one, index) => {
      if (scrolled[index]) [one.scrollLeft, one.scrollTop] = scrolled[index];
    });
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }
  document.dispatchEvent(new CustomEvent("swapped"));
}

let due = null;
let busy = false;
let again = false;

async function refresh() {
  due = null;
  if (busy) {
    again = true;
    return;
  }
  busy = true;
  try {
    const answer = await fetch(location.pathname + location.search, { headers: { Accept: "text/html", "X-Cottage-Live": "1" } });
    if (answer.ok) swap(new DOMParser().parseFromString(await answer.text(), "text/html"));
    document.documentElement.dataset.offline = answer.ok ? "" : "1";
  } catch {
    document.documentElement.dataset.offline = "1";
  }
  busy = false;
  if (again) {
    again = false;
    schedule();
  }
}

function schedule() {
  due ??= setTimeout(refresh, GAP_MS);
}

function listen(address) {
  const source = new EventSource(address);
  for (const kind of ["job", "metrics", "events", "network"]) source.addEventListener(kind, schedule);
  source.addEventListener("end", () => {
    source.close();
    schedule();
  });
  window.addEventListener("pagehide", () => source.close());
}

localise(document);
if (document.body.dataset.stream) listen(document.body.dataset.stream);
else if (document.querySelector("[data-live]") && document.body.dataset.poll) setInterval(schedule, POLL_MS);
