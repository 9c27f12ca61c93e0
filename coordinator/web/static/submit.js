// The submit form: uploads that resume, a price that follows what is typed, and only the fields that matter now.
"use strict";

const PIECE = 4 << 20; // Bytes in one request: what a cut line costs at most.
const ATTEMPTS = 30;
const form = document.querySelector("form[data-submit]");
const busy = new Set(); // Uploads under way: the form waits for them.

const size = (bytes) => {
  const units = ["B", "kB", "MB", "GB"];
  let unit = 0;
  while (bytes >= 999.5 && unit < units.length - 1) (bytes /= 1000), unit++;
  return `${Number(bytes.toPrecision(3))} ${units[unit]}`;
};

// Fields that depend on others: data-when="dataset.format=jsonl parquet"
function arrange() {
  const data = new FormData(form);
  const holds = (rule) => rule.split("=")[1].split(" ").includes(data.get(rule.split("=")[0]));
  for (const part of form.querySelectorAll("[data-when]")) part.hidden = !holds(part.dataset.when);
  for (const part of form.querySelectorAll("[data-unless]")) part.hidden = holds(part.dataset.unless);
}

// Beside a model that has learnt already an adapter learns, unless somebody chose, or the form came with such a model.
let chosen = form.elements["model.weights"].value !== "" || form.elements["learns"].value === "lora";
function adapt() {
  const base = form.elements["model.weights"].value !== "";
  if (!chosen) form.elements["learns"].value = base ? "lora" : "model";
  document.getElementById("adapted").hidden = chosen || !base;
  arrange();
}

// Parts of the page that the coordinator draws anew: the quote, choices, the report on the data, the document.
const latest = {};
async function refresh(id, path) {
  const mine = (latest[id] = (latest[id] || 0) + 1);
  const data = new FormData(form);
  for (const [name, value] of [...data]) if (value instanceof File || name === "document") data.delete(name);
  const target = document.getElementById(id);
  target.setAttribute("aria-busy", "true");
  let fresh = null;
  try {
    const answer = await fetch(path, { method: "POST", body: data });
    fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(id);
  } catch {
    if (mine === latest[id] && id === "quote") {
      target.textContent = "The coordinator does not answer. The price comes back by itself.";
      setTimeout(quoteSoon, 3000);
    }
  }
  if (mine !== latest[id]) return false;
  if (fresh) {
    const open = [...target.querySelectorAll("details")].map((one) => one.open);
    target.replaceChildren(...fresh.childNodes);
    target.toggleAttribute("data-again", fresh.hasAttribute("data-again"));
    target.querySelectorAll("details").forEach((one, at) => (one.open = Boolean(open[at])));
    for (const button of target.querySelectorAll("[data-changes]")) button.hidden = false;
  }
  target.removeAttribute("aria-busy");
  return fresh !== null;
}

let pending = null;
let considered = null;
async function quote() {
  if (!(await refresh("quote", "/submit/quote"))) return;
  const shown = document.querySelector("#quote template[data-document]");
  const area = form.elements["document"];
  if (shown && document.activeElement !== area && !area.dataset.edited) area.value = shown.content.textContent;
  clearTimeout(considered);
  considered = setTimeout(() => refresh("choices", "/submit/choices"), 900);
}
function quoteSoon() {
  document.getElementById("choices").setAttribute("aria-busy", "true"); // What stands there is of another job now.
  clearTimeout(pending);
  pending = setTimeout(quote, 350);
}
let looking = null;
async function report() {
  clearTimeout(looking);
  if ((await refresh("report", "/submit/report")) && form.elements["dataset.artifact"].value) {
    // What stood beside the field was of the data as it was before: the report says what is wrong now.
    document.getElementById("error-dataset.artifact")?.remove();
    const bad = document.querySelector("#report > .error") !== null;
    document.getElementById("field-dataset.artifact").setAttribute("aria-invalid", String(bad));
  }
  if (document.getElementById("report").hasAttribute("data-again")) looking = setTimeout(report, 700);
  else quoteSoon();
}

// Uploads
async function call(method, address, headers, body, onProgress) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open(method, address);
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => onProgress && onProgress(event.loaded);
    request.onload = () => {
      let answer = {};
      try {
        answer = JSON.parse(request.responseText);
      } catch {
        answer = { detail: `the coordinator answered ${request.status}` };
      }
      resolve({ status: request.status, answer });
    };
    request.onerror = request.ontimeout = () => reject(new Error("line"));
    request.send(body);
  });
}

async function sha256(piece) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", await piece.arrayBuffer()));
  return btoa(String.fromCharCode(...digest));
}

class Upload {
  constructor(root) {
    this.root = root;
    this.file = root.querySelector("input[type=file]");
    this.hidden = root.querySelector("input[type=hidden]");
    this.bar = root.querySelector("progress");
    this.status = root.querySelector("[role=status]");
    this.run = 0;
    this.file.dataset.name = this.file.name;
    this.file.addEventListener("change", () => this.start());
  }

  describe(file) {
    return { length: file.size, name: file.name.slice(0, 200), purpose: this.root.dataset.upload };
  }

  tell(text, kind) {
    this.status.textContent = text;
    this.status.className = kind === "bad" ? "error" : "small soft";
    this.file.setAttribute("aria-invalid", kind === "bad" ? "true" : "false");
  }

  async start() {
    const run = ++this.run;
    const file = this.file.files[0];
    this.hidden.value = "";
    adapt();
    if (!file) {
      report();
      return this.tell("", "");
    }
    if (this.root.dataset.upload === "weights") for (const name of ["model.hub", "model.license"]) form.elements[name].value = "";
    const wanted = this.describe(file);
    if (file.size === 0) return this.tell(`${file.name} is empty: choose a file with something in it`, "bad");
    busy.add(this);
    this.bar.hidden = false;
    this.bar.max = file.size;
    try {
      await this.send(file, wanted, run);
    } finally {
      if (run === this.run) {
        busy.delete(this);
        this.bar.hidden = true;
        report();
      }
    }
  }

  async send(file, wanted, run) {
    const key = `upload ${JSON.stringify(wanted)} ${file.lastModified}`;
    let state = await this.resume(localStorage.getItem(key));
    let failures = 0;
    while (run === this.run && !(state && state.artifact)) {
      try {
        if (!state) {
          const made = await call("POST", "/api/v1/uploads", { "Content-Type": "application/json" }, JSON.stringify(wanted));
          if (made.status !== 201) return this.tell(made.answer.detail, "bad");
          state = made.answer;
          localStorage.setItem(key, state.id);
        }
        const from = state.offset;
        this.progress(from, file, from === file.size);
        const piece = file.slice(from, from + PIECE);
        const headers = { "Tus-Resumable": "1.0.0", "Upload-Offset": String(from), "Content-Type": "application/offset+octet-stream" };
        if (window.isSecureContext) headers["Upload-Checksum"] = `sha256 ${await sha256(piece)}`;
        const sent = await call(
          "PATCH", `/api/v1/uploads/${state.id}`, headers, piece, (bytes) => run === this.run && this.progress(from + bytes, file, from + bytes >= file.size),
        );
        if (sent.status === 422 || sent.status === 413) {
          localStorage.removeItem(key);
          return run === this.run && this.tell(sent.answer.detail, "bad");
        }
        if (sent.status !== 204) throw new Error("again");
        state = await this.resume(state.id);
        failures = 0;
      } catch {
        if (++failures > ATTEMPTS) return this.tell("The coordinator does not answer. Choose the file again to go on.", "bad");
        this.tell(`The line was cut at ${size(state ? state.offset : 0)}. Trying again by itself …`, "");
        await new Promise((wake) => setTimeout(wake, Math.min(8000, 250 * 2 ** failures)));
        state = await this.resume(state ? state.id : null);
      }
    }
    if (run === this.run) this.done(state, file);
  }

  async resume(id) {
    if (!id) return null;
    try {
      const found = await call("GET", `/api/v1/uploads/${id}`, {}, null);
      return found.status === 200 ? found.answer : null;
    } catch {
      return { id, offset: 0, artifact: null };
    }
  }

  progress(bytes, file, checking) {
    this.bar.value = bytes;
    this.tell(checking ? `${size(file.size)} sent, being checked …` : `${size(bytes)} of ${size(file.size)}`, "");
  }

  done(state, file) {
    this.hidden.value = state.artifact;
    this.file.removeAttribute("name"); // It is there already: the form need not bring it again.
    this.tell(`✓ ${file.name}, ${size(file.size)}`, "");
    adapt();
  }
}

// A model of the Hub: the coordinator looks it up and fetches it, for as long as this page asks it to go on.
class HubModel {
  constructor(root) {
    this.root = root;
    this.name = root.querySelector("input[type=text]");
    this.button = root.querySelector("button");
    this.bar = root.querySelector("progress");
    this.status = root.querySelector("[role=status]");
    root.hidden = false;
    this.button.addEventListener("click", () => this.start());
    this.name.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.start();
    });
  }

  tell(text, bad) {
    this.status.textContent = text;
    this.status.className = bad ? "error" : "small soft";
    this.name.setAttribute("aria-invalid", String(Boolean(bad)));
  }

  async ask(address, body) {
    for (let failures = 1; ; failures++) {
      try {
        const { status, answer } = await call("POST", address, { "Content-Type": "application/json" }, JSON.stringify(body));
        if (status < 300) return answer;
        if (status !== 503 || failures > 5) throw new Error(answer.detail);
      } catch (error) {
        if (error.message !== "line") throw error;
        if (failures > ATTEMPTS) throw new Error("The coordinator does not answer. Fetch it again to go on.");
      }
      await new Promise((wake) => setTimeout(wake, Math.min(8000, 250 * 2 ** failures)));
    }
  }

  async start() {
    if (busy.has(this) || !this.name.value.trim()) return;
    busy.add(this);
    this.button.disabled = true;
    this.tell("Being looked up …");
    try {
      await this.fetch();
    } catch (error) {
      this.tell(error.message, true);
    }
    busy.delete(this);
    this.bar.hidden = true;
    this.button.disabled = false;
    adapt();
    report();
  }

  async fetch() {
    const found = await this.ask("/api/v1/hub-models", { name: this.name.value.trim() });
    const licence = found.license ? `licence ${found.license}` : "no licence named";
    const whole = found.files.reduce((sum, file) => sum + file.size, 0);
    const digests = [];
    let held = 0;
    this.bar.hidden = false;
    this.bar.max = whole;
    for (const file of found.files) {
      let state = await this.ask("/api/v1/uploads", { length: file.size, name: file.path.slice(-200), purpose: "weights", sha256: file.sha256 });
      while (!state.artifact) {
        state = await this.ask(`/api/v1/uploads/${state.id}/pull`, { hub: found.model.hub, path: file.path });
        this.bar.value = held + state.offset;
        this.tell(`${found.repository}, ${licence}: ${size(held + state.offset)} of ${size(whole)}`);
      }
      held += file.size;
      digests.push(state.artifact);
    }
    fill(found.model, found.tokenizer, digests, found.repository);
    this.tell(`✓ ${found.repository} at commit ${found.commit.slice(0, 12)}, ${size(whole)}, ${licence}${found.terms && ` (${found.terms})`}`);
  }
}

// A model's folder, as save_pretrained or the Hub leaves it: what a job needs of it is read here, and its weights go one by one.
class ModelFolder extends Upload {
  constructor(root) {
    super(root);
    root.hidden = false;
    root.addEventListener("dragover", (event) => {
      event.preventDefault();
      root.classList.add("over");
    });
    root.addEventListener("dragleave", () => root.classList.remove("over"));
    root.addEventListener("drop", async (event) => {
      event.preventDefault();
      root.classList.remove("over");
      const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
      const files = (await Promise.all(entries.map((entry) => filesOf(entry, "")))).flat();
      this.take(new Map(files.map(([path, file]) => [path.replace(/^[^/]*\//, ""), file])));
    });
  }

  start() {
    this.take(new Map([...this.file.files].map((file) => [file.webkitRelativePath.replace(/^[^/]*\//, ""), file])));
  }

  async take(files) {
    if (files.size === 0) return;
    const run = ++this.run;
    busy.add(this);
    try {
      await this.bring(files, run);
    } catch (error) {
      this.tell(error.message, "bad");
    } finally {
      if (run === this.run) {
        busy.delete(this);
        this.bar.hidden = true;
        adapt();
        report();
      }
    }
  }

  async bring(files, run) {
    const table = async (name) => {
      if (!files.has(name)) return null;
      try {
        return JSON.parse((await files.get(name).text()).replace(/^\ufeff/, ""));
      } catch {
        throw new Error(`${name} is no JSON, or was cut: download it anew`);
      }
    };
    const weights = await weightsOf(files, table);
    const config = await table("config.json");
    if (!config) throw new Error("This folder has no config.json: choose the one that has config.json beside its weights.");
    const settings = { ...(await table("special_tokens_map.json")), ...(await table("tokenizer_config.json")) };
    delete settings.added_tokens_decoder;
    const templates = [];
    for (const [path, file] of files) {
      const name = path === "chat_template.jinja" ? "default" : (path.match(/^additional_chat_templates\/([^/]+)\.jinja$/) || [])[1];
      if (name) templates.push({ name, template: await file.text() });
    }
    if (templates.length) settings.chat_template = templates.length === 1 && templates[0].name === "default" ? templates[0].template : templates;
    const generation = await table("generation_config.json");
    const tokenizer = files.get("tokenizer.json");
    if (!tokenizer) throw new Error("This folder has no tokenizer.json, to which the model belongs: save_pretrained of transformers' AutoTokenizer writes it.");
    this.whole = weights.reduce((sum, file) => sum + file.size, tokenizer.size);
    this.bar.hidden = false;
    this.bar.max = this.whole;
    this.held = 0;
    const digests = [];
    for (const file of [...weights, tokenizer]) {
      this.artifact = null;
      await this.send(file, { length: file.size, name: file.name.slice(0, 200), purpose: file === tokenizer ? "tokenizer" : "weights" }, run);
      if (run !== this.run || !this.artifact) return; // Another folder was chosen, or it was told why not.
      digests.push(this.artifact);
      this.held += file.size;
    }
    const found = { kind: "file", file: digests.pop(), settings: Object.keys(settings).length ? settings : null };
    fill({ config, generation, hub: "" }, found, digests, "the folder");
    this.tell(`✓ ${weights.length === 1 ? "its weights" : `${weights.length} files of weights`} with config and tokenizer, ${size(this.whole)}`, "");
  }

  progress(bytes, file, checking) {
    this.bar.value = this.held + bytes;
    this.tell(checking ? `${file.name} is being checked …` : `${size(this.held + bytes)} of ${size(this.whole)}`, "");
  }

  done(state) {
    this.artifact = state.artifact;
  }
}

// The files of weights that belong together, the shards before one file that says the same.
async function weightsOf(files, table) {
  const index = await table("model.safetensors.index.json");
  const named = index ? [...new Set(Object.values(index.weight_map || {}))].sort() : ["model.safetensors"];
  const lacking = named.filter((name) => !files.has(name));
  if (lacking.length === 0) return named.map((name) => files.get(name));
  if (index) throw new Error(`This folder has not ${lacking[0]}, a part of the weights: download all of them.`);
  if (files.has("adapter_config.json")) throw new Error("This folder holds an adapter, not a model: merge it into its base model, or go on from the job that made it.");
  if ([...files.keys()].some((path) => path.endsWith(".gguf"))) throw new Error("GGUF is made for running and not for training further: choose the folder that it was made of.");
  const found = [...files].filter(([path]) => /^[^/]+\.safetensors$/.test(path)).map(([, file]) => file);
  if (found.length === 0) throw new Error("This folder has no *.safetensors: save_pretrained of transformers writes them.");
  return found;
}

// All files of what was dragged here, with their paths.
async function filesOf(entry, before) {
  const path = before + entry.name;
  if (entry.isFile) return [[path, await new Promise((found, failed) => entry.file(found, failed))]];
  const reader = entry.createReader();
  const files = [];
  for (;;) {
    const some = await new Promise((found, failed) => reader.readEntries(found, failed));
    if (some.length === 0) return files;
    for (const one of some) files.push(...(await filesOf(one, `${path}/`)));
  }
}

// What came of a model's repository or folder, into the form.
function fill(model, tokenizer, weights, origin) {
  const text = (value) => (value ? JSON.stringify(value, null, 2) : "");
  const filled = {
    "model.choice": form.querySelector("[data-own-config]").dataset.ownConfig,
    "model.config": text(model.config),
    "model.generation": text(model.generation),
    "model.hub": model.hub,
    "model.license": model.license || "",
    "model.weights": weights.join(" "),
  };
  if (tokenizer.file) Object.assign(filled, { "tokenizer.kind": "file", "tokenizer.file": tokenizer.file, "tokenizer.settings": text(tokenizer.settings) });
  for (const [name, value] of Object.entries(filled)) form.elements[name].value = value;
  for (const one of uploads) if (form.elements[`model.${one.root.dataset.upload}`] || (one.root.dataset.upload === "tokenizer" && tokenizer.file)) one.tell(`✓ of ${origin}`);
}

const hub = form.querySelector("[data-hub]");
if (hub) new HubModel(hub);
const folder = form.querySelector("[data-folder]");
if (folder) new ModelFolder(folder);
for (const head of form.querySelectorAll("[data-hub-head]")) head.hidden = false;
const uploads = [...form.querySelectorAll("[data-upload]")].map((root) => new Upload(root));
form.addEventListener("input", (event) => {
  arrange();
  if (event.target.name === "document") event.target.dataset.edited = "yes";
  else if (event.target.type !== "file") quoteSoon();
});
form.addEventListener("change", (event) => {
  if (event.target.name === "learns") chosen = true;
  adapt();
  if (/^(dataset|tokenizer|model\.choice|training\.sequence)/.test(event.target.name)) report();
});
form.addEventListener("submit", (event) => {
  if (busy.size === 0) return;
  event.preventDefault();
  const [first] = busy;
  first.tell(`${first.status.textContent} – please wait until the file is there`, "");
  first.root.scrollIntoView({ block: "center" });
});
document.getElementById("config-file").addEventListener("change", async (event) => {
  const file = event.target.files[0];
  if (!file) return;
  const area = form.elements["model.config"];
  area.value = file.size > 1 << 20 ? "" : await file.text();
  quoteSoon();
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-budget]");
  if (!button) return;
  form.elements["budget"].value = button.dataset.budget;
  quoteSoon();
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-changes]");
  if (!button) return;
  for (const [name, value] of Object.entries(JSON.parse(button.dataset.changes))) {
    if (form.elements[name]) form.elements[name].value = value; // Also of radio buttons: a list of them takes a value.
  }
  arrange();
  quoteSoon();
});
for (const part of form.querySelectorAll("[data-plain]")) part.hidden = true;
arrange();
quote();
if (document.getElementById("report").hasAttribute("data-again")) report();
