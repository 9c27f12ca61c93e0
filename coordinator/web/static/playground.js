// The playground: words go to a model, or to two of them, and what they say appears as it comes. All of it is only ever text.
"use strict";

const LOADING_MS = 2500; // A model that is there has its first word by then.
const at = (id) => document.getElementById(id);
const [play, talk, words, spoken, form] = ["play", "talk", "words", "spoken", "say"].map(at);
const LONGEST = Number(at("max_tokens").max);
const settings = ["temperature", "top_p", "max_tokens", "seed"].map(at);
const labels = new Map(); // What people call a model, by its name at /v1.
let turns = [];
let running = null; // What ends the answers that are under way.

// What a model cannot do, or why there is no answer. `code`: for programs.
class Fault extends Error {
  constructor({ message, code = null }) {
    super(message || "The coordinator does not answer as it should: try again.");
    this.code = code;
  }
}

async function asked(address, more = {}) {
  let answer;
  try {
    answer = await fetch(address, more);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Fault({ message: "The coordinator does not answer: it may be restarting, or the network is away." });
  }
  if (answer.ok) return answer;
  if (answer.status === 401) throw new Fault({ message: "You are not signed in any more: reload the page." });
  throw new Fault((await answer.json().catch(() => ({}))).error ?? {});
}

// What a stream says, piece by piece, until it says that it is done.
async function* events(response) {
  for await (const data of eventData(response)) {
    if (data === "[DONE]") return;
    const piece = JSON.parse(data);
    if (piece.error) throw new Fault(piece.error);
    yield piece;
  }
  throw new Fault({ message: "The line was cut before the answer's end." });
}

// --- what is asked ----------------------------------------------------------------------------------------------------------

const kind = () => document.querySelector("[name=kind]:checked").value;

// The conversation as the model in one place has it; what came beside it later takes over the other's answers.
function messages(turn, place) {
  const said = turn.system ? [{ role: "system", content: turn.system }] : [];
  for (const past of turns.slice(0, turns.indexOf(turn))) {
    const answer = (past.answers[place] ?? past.answers[0])?.text;
    if (past.kind === "chat" && answer) said.push({ role: "user", content: past.words }, { role: "assistant", content: answer });
  }
  return [...said, { role: "user", content: turn.words }];
}

function request(turn, place) {
  const what = turn.kind === "chat" ? { messages: messages(turn, place) } : { prompt: turn.words };
  const body = { model: turn.models[place], ...turn.sampling, ...what, stream: true, stream_options: { include_usage: true } };
  return { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal: running.signal };
}

// The same, past the coordinator: pieces as those of a stream.
async function* privatePieces(turn, place) {
  if (turn.kind === "chat" && play.dataset.texts.split(" ").includes(turn.models[place])) {
    throw new Fault({ message: "This model has no chat template: have it continue the text, without chat.", code: "no_chat_template" });
  }
  const what = turn.kind === "chat" ? { messages: messages(turn, place) } : { prompt: turn.words };
  const { max_tokens: tokens, seed = crypto.getRandomValues(new Uint32Array(1))[0], ...sampling } = turn.sampling;
  const [deployment] = turn.models[place].split(":");
  // Its node knows an adapter by its place among those of the deployment.
  const adapter = play.dataset.served.split(" ").filter((name) => name.startsWith(`${deployment}:`)).indexOf(turn.models[place]) + 1;
  const command = { ...what, sampling: { ...sampling, seed }, ...(tokens && { tokens }), ...(adapter && { adapter }) };
  for await (const piece of privately(deployment, command, running.signal)) {
    if (piece.text !== undefined) yield { choices: [{ text: piece.text }] };
    else yield { choices: [{ finish_reason: piece.reason }], usage: { completion_tokens: piece.tokens }, cottage: { nodes: piece.names } };
  }
}

// --- what is shown ----------------------------------------------------------------------------------------------------------

function say(text) {
  const line = document.createElement("p");
  line.textContent = text;
  spoken.append(line);
}

// Whatever grows at the page's end stays in sight of whoever is there.
function keepingEnd(change) {
  const page = document.documentElement;
  const stays = page.scrollHeight - page.scrollTop - page.clientHeight < 80;
  change();
  if (stays) page.scrollTop = page.scrollHeight;
}

// An answer: its place in the page, and what it has said so far.
class Answer {
  constructor(turn, place) {
    [this.turn, this.place, this.text, this.began] = [turn, place, "", performance.now()];
    this.name = labels.get(turn.models[place]) ?? turn.models[place];
    this.root = at("answer").content.firstElementChild.cloneNode(true);
    for (const part of ["says", "wait", "facts", "note"]) this[part] = this.root.querySelector(`.${part}`);
    this.root.querySelector("h3").textContent = this.name;
    this.root.setAttribute("aria-label", `Answer of ${this.name}`);
    this.copies = this.root.querySelector("[data-copy-answer]");
    this.copies.addEventListener("click", () => this.copy());
    if (turn.kind === "text") {
      const given = this.says.appendChild(document.createElement("span"));
      [given.className, given.textContent] = ["given", turn.words];
    }
    this.node = this.says.appendChild(document.createTextNode(""));
  }

  async go() {
    this.waits();
    const clock = setInterval(() => this.waits(), 500);
    try {
      const path = this.turn.kind === "chat" ? "/v1/chat/completions" : "/v1/completions";
      const pieces = this.turn.privately
        ? privatePieces(this.turn, this.place)
        : events(await asked(path, request(this.turn, this.place)));
      for await (const piece of pieces) this.took(piece);
      this.done();
    } catch (error) {
      if (error.name === "AbortError") this.done("stopped");
      else this.failed(error);
    } finally {
      clearInterval(clock);
      this.wait.hidden = true;
    }
  }

  waits() {
    if (this.first) {
      const silent = performance.now() - this.last; // In mid-answer: its node is gone, and another one is to go on.
      this.wait.textContent = `Waiting for a node … ${Math.round(silent / 1000)} s`;
      this.wait.hidden = silent < LOADING_MS;
      return;
    }
    const waited = performance.now() - this.began;
    const loading = waited > LOADING_MS;
    if (loading && !this.told) this.look();
    this.told = loading;
    const what = this.away ? "The model waits for nodes" : "The model is being loaded";
    this.wait.textContent = loading ? `${what} … ${Math.round(waited / 1000)} s` : "Waiting …";
    this.wait.hidden = false;
  }

  // Whether a deployment has no node that answers or loads: then it is not being loaded, either.
  async look() {
    const id = this.turn.models[this.place];
    if (play.dataset.served.split(" ").includes(id)) {
      const job = await asked(`/api/v1/jobs/${id.split(":")[0]}`).then((answer) => answer.json(), () => null);
      this.away = job?.serving?.ready === 0 && job.serving.loading === 0;
    }
    if (!this.first) say(this.away ? `${this.name} waits for nodes.` : `${this.name} is being loaded.`);
  }

  took(piece) {
    const choice = piece.choices?.[0];
    const text = choice?.delta?.content ?? choice?.text ?? "";
    if (text) {
      this.last = performance.now();
      this.first ??= this.last;
      this.text += text;
      keepingEnd(() => {
        [this.wait.hidden, this.says.hidden] = [true, false];
        this.node.appendData(this.turn.kind === "chat" && !this.node.length ? text.trimStart() : text);
      });
    }
    this.usage = piece.usage ?? this.usage;
    this.reason = choice?.finish_reason ?? this.reason;
    const nodes = piece.cottage?.nodes;
    if (Array.isArray(nodes)) this.nodes = nodes.filter((name) => typeof name === "string" && name);
  }

  done(ended = "") {
    const tokens = this.usage?.completion_tokens;
    const seconds = (this.last - this.first) / 1000;
    const facts = [ended];
    if (tokens !== undefined) facts.push(`${tokens.toLocaleString("en")} ${tokens === 1 ? "token" : "tokens"}`);
    if (tokens > 1 && seconds > 0.05) facts.push(`${((tokens - 1) / seconds).toFixed(1)} tokens a second`);
    if (this.first) facts.push(`the first after ${((this.first - this.began) / 1000).toFixed(1)} s`);
    if (this.reason === "length") facts.push("cut off: it may have no more tokens");
    if (this.nodes?.length) facts.push(`answered by ${this.nodes.join(", ")}`);
    if (this.turn.privately) facts.push("private: the coordinator saw counts only");
    if (!this.text && !ended) facts.unshift("it said nothing");
    keepingEnd(() => {
      this.facts.textContent = facts.filter(Boolean).join(" · ");
      this.copies.hidden = !this.text || !navigator.clipboard;
    });
    say(`${this.name}: ${this.text || (ended || "it said nothing")}`);
  }

  failed(error) {
    keepingEnd(() => {
      this.note.firstElementChild.textContent = error.message;
      this.note.hidden = false;
      if (this.turn.kind === "chat" && error.code === "no_chat_template") this.note.append(this.other());
    });
    say(`${this.name}: ${error.message}`);
  }

  // Offered where a model has no chat template.
  other() {
    const button = document.createElement("button");
    [button.type, button.className, button.textContent] = ["button", "button small", "Go on with these words as a text"];
    button.addEventListener("click", () => {
      if (running) return;
      document.querySelector("[name=kind][value=text]").checked = true;
      chosen();
      begin(this.turn.words);
    });
    return button;
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(this.text);
      this.copies.textContent = "Copied";
      say("Copied");
    } catch {
      getSelection().selectAllChildren(this.says);
      this.copies.textContent = "Press Ctrl+C";
    }
  }
}

function underWay(answers) {
  running = answers ? new AbortController() : null;
  [at("send").hidden, at("stop").hidden] = [answers, !answers];
  talk.setAttribute("aria-busy", String(answers));
}

async function begin(text) {
  const sampling = Object.fromEntries(settings.filter((one) => one.value !== "").map((one) => [one.name, Number(one.value)]));
  const models = [at("model").value, at("beside").value].filter(Boolean);
  const turn = { words: text, kind: kind(), system: at("system").value.trim(), models, sampling };
  turn.privately = at("private").checked && !at("private-field").hidden;
  turn.answers = models.map((_, place) => new Answer(turn, place));
  turns.push(turn);
  const shown = at("turn").content.firstElementChild.cloneNode(true);
  const [asks, answers] = [".asked", ".answers"].map((part) => shown.querySelector(part));
  asks.textContent = text;
  if (turn.kind === "text") asks.previousElementSibling.hidden = asks.hidden = true; // It stands before each answer.
  answers.classList.toggle("two", models.length > 1);
  answers.append(...turn.answers.map((answer) => answer.root));
  at("nothing").hidden = true;
  spoken.replaceChildren();
  underWay(true);
  const mine = running;
  talk.append(shown);
  document.documentElement.scrollTop = document.documentElement.scrollHeight;
  await Promise.all(turn.answers.map((answer) => answer.go()));
  if (running === mine) underWay(false);
}

// --- what people do ---------------------------------------------------------------------------------------------------------

// Models that are known to have no chat template go on with a text; what people choose stays until they choose another model.
let plain = false;
function fit() {
  const texts = new Set(play.dataset.texts.split(" "));
  const plainNow = ["model", "beside"].some((list) => texts.has(at(list).value.split("@")[0] || "none"));
  if (plainNow !== plain) document.querySelector(`[name=kind][value=${plainNow ? "text" : "chat"}]`).checked = true;
  plain = plainNow;
  const contexts = new Map(play.dataset.contexts.split(" ").map((one) => one.split("=")));
  const most = ["model", "beside"].map((list) => Number(contexts.get(at(list).value.split(":")[0])) || Infinity);
  const room = at("max_tokens"); // More than a model reads is refused.
  [room.max, room.value] = [Math.min(LONGEST, ...most), room.value && Math.min(room.value, ...most)];
  const served = new Set(play.dataset.served.split(" "));
  at("private-field").hidden = !["model", "beside"].every((list) => !at(list).value || served.has(at(list).value));
}

function chosen() {
  const chat = kind() === "chat";
  at("system-field").hidden = !chat;
  at("words-label").textContent = chat ? "What you say" : "A text to go on with";
  const beside = at("beside").value;
  const query = new URLSearchParams({ model: at("model").value, ...(beside && { beside }) });
  history.replaceState(null, "", `?${query}`);
}

function option(list, value, text) {
  labels.set(value, text);
  list.append(new Option(text, value));
}

// Models, and what tuned ones started from; those that an address names are there as well, such as a checkpoint.
function fill(models) {
  const tuned = new Set(play.dataset.tuned.split(" "));
  const named = new URLSearchParams(location.search);
  const names = models.map((model) => model.owned_by);
  const title = (model) => (names.indexOf(model.owned_by) === names.lastIndexOf(model.owned_by) ? model.owned_by : `${model.owned_by} (${model.id.split(":").pop().slice(0, 8)})`);
  const held = new Map(play.dataset.held.split(" ").map((one) => one.split("="))); // Deployments in fewer bits.
  const bits = (model) => held.get(model.id.split(":")[0]);
  const full = (model) => (bits(model) ? `${title(model)}, ${bits(model)}` : title(model));
  at("beside").append(new Option("nothing", ""));
  for (const [list, wanted] of [[at("model"), named.get("model")], [at("beside"), named.get("beside")]]) {
    for (const model of models) option(list, model.id, full(model));
    for (const model of models) if (tuned.has(model.id)) option(list, `${model.id}@start`, `${title(model)}, before its training`);
    if (!wanted) continue;
    const [id, round] = wanted.split("@");
    const model = models.find((one) => one.id === id);
    if (!labels.has(wanted)) labels.set(wanted, model ? `${title(model)}, after round ${round}` : wanted);
    if (![...list.options].some((one) => one.value === wanted)) list.append(new Option(labels.get(wanted), wanted));
    list.value = wanted;
  }
}

async function start() {
  try {
    const models = (await (await asked("/v1/models")).json()).data;
    if (!models.length && !location.search) {
      at("none").hidden = false;
      return;
    }
    fill(models);
    play.hidden = false;
    fit();
    chosen();
    words.focus();
  } catch (error) {
    at("failed").textContent = error.message;
    at("failed").hidden = false;
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = words.value;
  if (running || !text.trim()) return;
  words.value = "";
  words.focus();
  begin(text);
});
words.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!running) form.requestSubmit();
});
for (const one of settings) one.addEventListener("invalid", () => (at("settings").open = true));
document.addEventListener("change", (event) => {
  if (event.target.matches("select")) fit();
  if (event.target.matches("select, [name=kind]")) chosen();
});
at("stop").addEventListener("click", () => {
  running?.abort();
  words.focus();
});
at("clear").addEventListener("click", () => {
  running?.abort();
  underWay(false);
  turns = [];
  talk.replaceChildren();
  spoken.replaceChildren();
  at("nothing").hidden = false;
  words.focus();
});
start();
