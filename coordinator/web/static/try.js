// Trying the model: the text appears word by word, as the coordinator sends it.
"use strict";

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let { value, done } = await reader.read(); !done; { value, done } = await reader.read()) {
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").find((line) => line.startsWith("data: "));
      if (data) yield JSON.parse(data.slice(6));
    }
  }
}

async function go(form, said) {
  const button = form.querySelector("button");
  const prompt = form.elements["prompt"].value;
  said.hidden = false;
  said.className = "said soft";
  said.textContent = "Starting …";
  button.disabled = true;
  try {
    const answer = await fetch(form.dataset.try, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ prompt }),
    });
    if (!answer.ok) throw new Error((await answer.json()).detail);
    for await (const piece of events(answer)) {
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
  button.disabled = false;
}

document.addEventListener("submit", (event) => {
  const form = event.target.closest("[data-try]"); // It may have come with a later part of the page.
  if (!form) return;
  event.preventDefault();
  go(form, document.getElementById("said"));
});
