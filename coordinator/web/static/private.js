// A private session: words go to a node of a deployment over WebRTC, end to end encrypted to the node's key. The coordinator
// names the node, carries one sealed offer and one sealed answer, and is told by the node what this page signs: counts.
// docs/decisions/0063 has the rules; protocol/private and transport/private are the same in Python.
"use strict";

const privately = (() => {
  const FRAME = 16 << 10; // Bytes of a data channel's message.
  const SIGN_EVERY = 64; // Tokens of answers after which counts are signed.
  const HIGH = 256 << 10; // Bytes that may wait to be sent.
  const MAX_FRAMES = 256; // Of a message of the node; none of its pieces of an answer has as many.
  const [CONNECT_MS, FIRST_MS, SILENCE_MS] = [30e3, 30e3, 10e3];
  const [MESSAGE_TOKENS, TEMPLATE_TOKENS] = [32, 512]; // That a chat template may put around a message, and before all of them.
  const [WAIT_MS, AGAIN_MS] = [600e3, 2e3]; // For a node that loads the model, as at /v1.
  const MAX_TRIES = 4;
  const LANES = [["control", true], ["activations", false], ["bulk", false]]; // Their place is the data channel's id.
  const text = new TextEncoder();
  const words = new TextDecoder();

  // What a session cannot do. `another`: another node may.
  class PrivateFault extends Error {
    constructor(message, another = true) {
      super(message);
      this.another = another;
    }
  }

  function joined(parts) {
    const whole = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
    let at = 0;
    for (const part of parts) {
      whole.set(part, at);
      at += part.length;
    }
    return whole;
  }

  const same = (one, other) => one.length === other.length && one.every((byte, at) => byte === other[at]);
  const hex = (digits) => Uint8Array.from(digits.match(/../g), (pair) => parseInt(pair, 16));
  const to64 = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  const from64 = (said) => Uint8Array.from(atob(said), (char) => char.charCodeAt(0));

  function big(number, size) {
    const bytes = new Uint8Array(size);
    for (let at = size - 1, left = BigInt(number); at >= 0; at--, left >>= 8n) bytes[at] = Number(left & 255n);
    return bytes;
  }

  // --- base58, as addresses are written -------------------------------------------------------------------------------------

  const ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";

  function toBase58(bytes) {
    let number = bytes.reduce((sum, byte) => sum * 256n + BigInt(byte), 0n);
    let digits = "";
    for (; number; number /= 58n) digits = ALPHABET[Number(number % 58n)] + digits;
    const zeros = bytes.findIndex((byte) => byte);
    return "1".repeat(zeros < 0 ? bytes.length : zeros) + digits;
  }

  function fromBase58(address) {
    let number = 0n;
    for (const char of address) {
      const digit = ALPHABET.indexOf(char);
      if (digit < 0) throw new PrivateFault("The coordinator names a node that has no address.", false);
      number = number * 58n + BigInt(digit);
    }
    return big(number, 32);
  }

  // --- MessagePack, as far as envelopes have it -----------------------------------------------------------------------------

  function packed(value) {
    if (typeof value === "number") return value < 128 ? Uint8Array.of(value) : joined([Uint8Array.of(0xcf), big(value, 8)]);
    if (typeof value === "string") {
      const bytes = text.encode(value);
      return joined([Uint8Array.of(0xdb), big(bytes.length, 4), bytes]);
    }
    if (value instanceof Uint8Array) return joined([Uint8Array.of(0xc6), big(value.length, 4), value]);
    const fields = Object.entries(value);
    return joined([Uint8Array.of(0x80 | fields.length), ...fields.flatMap(([name, one]) => [packed(name), packed(one)])]);
  }

  function unpacked(bytes) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    let at = 0;
    const number = (size) => {
      at += size;
      if (size === 8) return Number(view.getBigUint64(at - 8));
      return size === 4 ? view.getUint32(at - 4) : size === 2 ? view.getUint16(at - 2) : view.getUint8(at - 1);
    };
    const slice = (size) => {
      if (at + size > bytes.length) throw new RangeError("cut");
      return bytes.slice(at, (at += size));
    };
    const one = () => {
      const kind = number(1);
      if (kind < 0x80) return kind;
      if (kind < 0x90) return Object.fromEntries(Array.from({ length: kind & 15 }, () => [one(), one()]));
      if (kind >= 0xa0 && kind < 0xc0) return words.decode(slice(kind & 31));
      if (kind >= 0xc4 && kind <= 0xc6) return slice(number(1 << (kind - 0xc4)));
      if (kind >= 0xcc && kind <= 0xcf) return number(1 << (kind - 0xcc));
      if (kind >= 0xd9 && kind <= 0xdb) return words.decode(slice(number(1 << (kind - 0xd9))));
      if (kind === 0xde) return Object.fromEntries(Array.from({ length: number(2) }, () => [one(), one()]));
      throw new RangeError("no such kind");
    };
    return one();
  }

  // --- keys and envelopes ---------------------------------------------------------------------------------------------------

  function signedBytes(context, ...parts) {
    const name = text.encode(context);
    const mark = joined([Uint8Array.of(0xff), text.encode("cottage-signature-1")]);
    const pieces = parts.flatMap((part) => [big(part.length, 8), part]);
    return joined([mark, Uint8Array.of(name.length), name, big(parts.length, 4), ...pieces]);
  }

  async function newKey() {
    if (!globalThis.crypto?.subtle) {
      throw new PrivateFault("Private talks need a page over https, or on this computer: ask the coordinator's operator.", false);
    }
    try {
      const pair = await crypto.subtle.generateKey("Ed25519", false, ["sign", "verify"]);
      const address = toBase58(new Uint8Array(await crypto.subtle.exportKey("raw", pair.publicKey)));
      const sign = async (context, ...parts) =>
        new Uint8Array(await crypto.subtle.sign("Ed25519", pair.privateKey, signedBytes(context, ...parts)));
      return { address, sign };
    } catch {
      throw new PrivateFault("This browser has no Ed25519 keys, which private talks need: use a newer one, or `cottage ask`.", false);
    }
  }

  async function verified(address, signature, context, ...parts) {
    const key = await crypto.subtle.importKey("raw", fromBase58(address), "Ed25519", false, ["verify"]);
    return crypto.subtle.verify("Ed25519", key, signature, signedBytes(context, ...parts));
  }

  const fingerprintOf = (sdp) => hex(/a=fingerprint:sha-256 ([0-9A-Fa-f:]{95})/.exec(sdp)[1].replaceAll(":", ""));

  // What nodes take of a browser's description: a closed list of lines, and candidates without a name to look up.
  function plain(sdp) {
    const kept = [];
    for (const line of sdp.split("\r\n").filter(Boolean)) {
      const candidate = /^a=candidate:\S+ 1 udp \d+ [0-9A-Fa-f.:]+ \d+ typ (host|srflx|relay)( raddr [0-9A-Fa-f.:]+ rport \d+)?/i.exec(line);
      if (candidate) kept.push(candidate[0]);
      else if (line.startsWith("o=")) kept.push(line.replace(/IN IP[46] \S+$/, "IN IP4 0.0.0.0"));
      else if (line.startsWith("a=msid-semantic")) kept.push("a=msid-semantic:WMS *");
      else if (!/^a=(candidate|extmap|ice-options)/.test(line)) kept.push(line);
    }
    return kept.map((line) => `${line}\r\n`).join("");
  }

  async function sealed(key, session, sdp, nonce) {
    const body = packed({
      version: 2, kind: "offer", sender: key.address, recipient: session.node, session: hex(session.session), nonce,
      reply_to: new Uint8Array(0), expires: Math.floor(Date.now() / 1000) + 60, floor: 1, fingerprint: fingerprintOf(sdp), sdp,
    });
    return packed({ body, signature: await key.sign("cottage/signal/1", body) });
  }

  // The node's description, if it is the node that has signed it, for this session and this offer.
  async function opened(envelope, key, session, nonce) {
    let body, signature, raw;
    try {
      ({ body: raw, signature } = unpacked(envelope));
      body = unpacked(raw);
    } catch {
      throw new PrivateFault("The node's answer cannot be read: somebody may have changed it on its way.", false);
    }
    const meant = body.kind === "answer" && body.sender === session.node && body.recipient === key.address;
    const fresh = same(body.session, hex(session.session)) && same(body.reply_to, nonce);
    if (!meant || !fresh || !same(body.fingerprint, fingerprintOf(body.sdp))) {
      throw new PrivateFault("The answer is not the node's answer to this page: somebody has changed it on its way.", false);
    }
    if (!(await verified(session.node, signature, "cottage/signal/1", raw))) {
      throw new PrivateFault("The answer is not signed by the node: somebody has changed it on its way.", false);
    }
    return body.sdp;
  }

  // --- the session ----------------------------------------------------------------------------------------------------------

  const within = (ms, promise, why) => {
    let timer;
    const late = new Promise((_, fail) => (timer = setTimeout(() => fail(new PrivateFault(why)), ms)));
    return Promise.race([promise, late]).finally(() => clearTimeout(timer));
  };

  async function post(address, body, signal) {
    let answer;
    try {
      answer = await fetch(address, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new PrivateFault("The coordinator does not answer: it may be restarting, or the network is away.", false);
    }
    if (answer.ok) return answer.json();
    const told = await answer.json().catch(() => ({}));
    const fault = new PrivateFault(told.detail || "The coordinator does not answer as it should: try again.", false);
    throw Object.assign(fault, { status: answer.status });
  }

  const pause = (ms, signal) =>
    new Promise((done, fail) => {
      const timer = setTimeout(done, ms);
      signal.addEventListener("abort", () => (clearTimeout(timer), fail(signal.reason)), { once: true });
    });

  // A session with a node of the deployment, once one holds the model.
  async function granted(place, client, avoid, signal) {
    for (const until = Date.now() + WAIT_MS; ; ) {
      try {
        return await post(place, { client, avoid }, signal);
      } catch (error) {
        if (error.status === 409 && avoid.length) avoid = []; // There is no other one: one that has failed may do now.
        else if (error.status !== 503 || Date.now() > until) throw error;
        else await pause(AGAIN_MS, signal);
      }
    }
  }

  class Session {
    static async meet(deployment, avoid, signal) {
      const key = await newKey();
      const place = `/api/v1/jobs/${deployment}/private`;
      const named = await granted(place, key.address, avoid, signal);
      const self = new Session(key, named);
      try {
        const nonce = crypto.getRandomValues(new Uint8Array(16));
        const offer = await sealed(key, named, await self.described(), nonce);
        const answer = await post(`${place}/${named.session}`, { envelope: to64(offer) }, signal).catch((error) => {
          if (error instanceof PrivateFault) error.another = true;
          throw error;
        });
        const sdp = await opened(from64(answer.envelope), key, named, nonce);
        await self.line.setRemoteDescription({ type: "answer", sdp });
        const open = self.lanes.map((lane) => new Promise((done) => (lane.readyState === "open" ? done() : (lane.onopen = done))));
        await within(CONNECT_MS, Promise.race([Promise.all(open), self.lost]), "No network path leads to the node.");
        return self;
      } catch (error) {
        self.close();
        error.node = named.node;
        throw error;
      }
    }

    constructor(key, named) {
      [this.key, this.named] = [key, named];
      [this.answers, this.prompt, this.tokens, this.signed, this.asked] = [0, 0, 0, 0, 0];
      [this.parts, this.came, this.heard] = [[], [], new Map()];
      const iceServers = named.ice_servers.map(({ urls, username, credential }) => ({ urls, username, credential }));
      this.line = new RTCPeerConnection({ iceServers });
      this.lanes = LANES.map(([label, ordered], id) => this.line.createDataChannel(label, { ordered, negotiated: true, id }));
      this.lane = this.lanes[0];
      this.lane.binaryType = "arraybuffer";
      this.lane.onmessage = (event) => this.took(new Uint8Array(event.data));
      this.lost = new Promise((_, fail) => {
        this.fail = fail;
        const gone = () => fail(new PrivateFault("The node is gone."));
        this.lane.onclose = gone;
        this.line.onconnectionstatechange = () => ["failed", "closed"].includes(this.line.connectionState) && gone();
      });
      this.lost.catch(() => {});
    }

    async described() {
      await this.line.setLocalDescription();
      if (this.line.iceGatheringState !== "complete") {
        const complete = new Promise((done) => {
          this.line.onicegatheringstatechange = () => this.line.iceGatheringState === "complete" && done();
        });
        await Promise.race([complete, new Promise((done) => setTimeout(done, 5000))]); // A server that is silent is done without.
      }
      return plain(this.line.localDescription.sdp);
    }

    took(frame) {
      this.parts.push(frame.subarray(1));
      try {
        if (this.parts.length > MAX_FRAMES || this.came.length > MAX_FRAMES) throw new RangeError("too much");
        if (frame[0] !== 1) return;
        this.came.push(JSON.parse(words.decode(joined(this.parts))));
        this.parts = [];
      } catch {
        this.close();
        this.fail(new PrivateFault("The node says what no node says."));
      }
      this.wake?.();
    }

    async say(message) {
      const bytes = text.encode(JSON.stringify(message));
      for (let at = 0; at < bytes.length; at += FRAME - 1) {
        if (this.lane.readyState !== "open") throw new PrivateFault("The node is gone.");
        while (this.lane.bufferedAmount > HIGH) await Promise.race([this.lost, new Promise((done) => setTimeout(done, 20))]);
        const part = bytes.subarray(at, at + FRAME - 1);
        this.lane.send(joined([Uint8Array.of(at + part.length >= bytes.length ? 1 : 0), part]));
      }
    }

    async next(ms, signal) {
      while (!this.came.length) {
        signal.throwIfAborted();
        const news = new Promise((done) => (this.wake = done));
        const stopped = new Promise((_, fail) => signal.addEventListener("abort", () => fail(signal.reason), { once: true }));
        stopped.catch(() => {});
        await within(ms, Promise.race([news, stopped, this.lost]), "The node says nothing.");
      }
      return this.came.shift();
    }

    // Pieces of an answer, and its end.
    async *ask(command, signal) {
      const id = String(++this.asked);
      const most = (command.tokens ?? Infinity) - (command.begun?.length ?? 0);
      const { prompt = "", messages = [] } = command;
      const bound = text.encode(JSON.stringify([prompt, messages])).length + MESSAGE_TOKENS * messages.length + TEMPLATE_TOKENS;
      const mine = { tokens: 0, most, bound };
      this.heard.set(id, mine);
      await this.say({ type: "generate", ...command, id });
      let ended = false;
      try {
        while (!ended) {
          const report = await this.next(mine.tokens ? SILENCE_MS : FIRST_MS, signal);
          await this.count(report);
          ended = report.type !== "text" && (report.id === id || report.id === "session");
          if (ended && report.type === "refused") {
            const another = report.id === "session" || ["failed", "busy", "bad-begun", "unknown-token", "over"].includes(report.code);
            const code = report.code === "no-template" ? "no_chat_template" : null; // As /v1 says it.
            throw Object.assign(new PrivateFault(report.detail, another), { code });
          }
          if (report.id === id) yield report;
        }
      } finally {
        if (!ended && this.lane.readyState === "open") {
          await this.say({ type: "cancel", id }).then(() => this.sign()).catch(() => {});
        }
      }
    }

    async count(report) {
      const heard = this.heard.get(report.id);
      if (report.type === "refused") return void this.heard.delete(report.id);
      if (!heard) throw new PrivateFault("The node says what nobody asked for.");
      if (report.type === "text") {
        const drawn = report.tokens?.length ?? 0;
        heard.tokens += drawn;
        if (heard.tokens > heard.most) throw new PrivateFault("The node says more than was asked for.");
        this.tokens += drawn;
        if (this.tokens - this.signed >= SIGN_EVERY) await this.sign();
      } else {
        this.heard.delete(report.id);
        this.answers += 1;
        this.prompt += Math.min(report.prompt, heard.bound);
        await this.sign();
      }
    }

    async sign() {
      const [answers, prompt, tokens] = [this.answers, this.prompt, this.tokens];
      this.signed = tokens;
      const parts = [this.named.session, this.named.node, answers, prompt, tokens].map((part) => text.encode(String(part)));
      const signature = to64(await this.key.sign("cottage/private-counts/1", ...parts));
      await this.say({ type: "counts", answers, prompt, tokens, signature });
    }

    close() {
      this.line.close();
    }
  }

  // An answer of a deployment: {text}, and at the end {tokens, reason, names}. Where a node is gone another one goes on.
  return async function* privately(deployment, command, signal) {
    const [tokens, avoid, names] = [[], [], []];
    for (;;) {
      let session = null;
      try {
        session = await Session.meet(deployment, avoid, signal);
        names.push(session.named.name, ...(session.named.beside_names ?? []));
        for await (const report of session.ask({ ...command, begun: tokens }, signal)) {
          if (report.type === "text") {
            tokens.push(...(report.tokens ?? []));
            yield { text: report.text };
          } else {
            yield { tokens: report.tokens, reason: report.reason, names };
            return;
          }
        }
      } catch (error) {
        const node = session?.named.node ?? error.node;
        if (!error.another || !node || avoid.push(node) >= MAX_TRIES) throw error;
      } finally {
        if (session) setTimeout(() => session.close(), 1000); // What was signed last is still on its way.
      }
    }
  };
})();
