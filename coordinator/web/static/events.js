// What a stream of Server-Sent Events says: the data of each event, as it comes. For the scripts of other pages.
"use strict";

async function* eventData(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let { value, done } = await reader.read(); !done; { value, done } = await reader.read()) {
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").find((line) => line.startsWith("data: "));
      if (data) yield data.slice(6);
    }
  }
}
