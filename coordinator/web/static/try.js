// Trying the model: the text appears word by word, as the coordinator sends it.
"use strict";

async function say(url, asked, said, prompt) {
  said.hidden = false;
  said.className = "said soft";
  said.textContent = "Starting …";
  try {
    const answer = await fetch(url, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(asked),
    });
    if (!answer.ok) throw new Error((await answer.json()).detail);
    for await (const data of eventData(answer)) {
      const piece = JSON.parse(data);
      if (piece.error) throw new Error(piece.error.detail);
      if (piece.waiting) said.textContent = `${piece.waiting} before you …`;
      if (piece.checkpoint !== undefined) said.textContent = "The model is being loaded …";
      if (piece.text !== undefined) {
        if (said.classList.contains("soft")) [said.className, said.textContent] = ["said", prompt];
        said.append(piece.text);
      }
    }
  } catch (error) {
    said.className = "said error";
    said.textContent = error.message || "The coordinator does not answer.";
  }
}

async function go(form) {
  const button = form.querySelector("button");
  const asked = { prompt: form.elements["prompt"].value };
  if (form.elements["chat"]?.checked) asked.chat = true;
  const shown = asked.chat ? "" : asked.prompt;
  const compared = form.elements["start"]?.checked ?? false;
  const [now, before] = ["said", "before"].map((id) => document.getElementById(id));
  for (const one of [now, before]) one.previousElementSibling.hidden = !compared;
  before.hidden = true;
  button.disabled = true;
  await say(form.dataset.try, asked, now, shown);
  if (compared) await say(form.dataset.try, { ...asked, start: true }, before, shown);
  button.disabled = false;
}

document.addEventListener("submit", (event) => {
  const form = event.target.closest("[data-try]"); // It may have come with a later part of the page.
  if (!form) return;
  event.preventDefault();
  go(form);
});
