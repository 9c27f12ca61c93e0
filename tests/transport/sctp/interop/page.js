// An end of a connection in a page; see ends.py for what each method does.
const HIGH = 1 << 20, LOW = 256 << 10, LIMIT_MS = 60000, POLL_MS = 2;
const channels = {}, messages = {};
const connection = new RTCPeerConnection();

const state = () => [
  connection.connectionState,
  ...Object.values(channels).map((one) => `${one.label} ${one.readyState} ${one.bufferedAmount} ${messages[one.label].length}`),
].join(", ");

const until = async (condition) => {
  const limit = performance.now() + LIMIT_MS;
  while (!condition()) {
    if (performance.now() > limit) throw new Error(`never: ${condition}; ${state()}`);
    await new Promise((done) => setTimeout(done, POLL_MS));
  }
};

const adopt = (channel) => {
  channel.binaryType = "arraybuffer";
  channels[channel.label] = channel;
  messages[channel.label] = [];
  channel.onmessage = (event) => messages[channel.label].push(event.data);
};
connection.ondatachannel = (event) => adopt(event.channel);

const described = async (description) => {
  await connection.setLocalDescription(description);
  await until(() => connection.iceGatheringState === "complete");
  return connection.localDescription.sdp;
};

const sha256 = async (parts) => {
  const whole = new Uint8Array(await new Blob(parts).arrayBuffer());
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", whole));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
};

const fill = (bytes) => {
  const most = 65536;  // That getRandomValues gives at once.
  for (let at = 4; at < bytes.length; at += most) crypto.getRandomValues(bytes.subarray(at, at + most));
};

window.end = {
  async offer(wanted) {
    for (const [label, options] of Object.entries(wanted)) adopt(connection.createDataChannel(label, options));
    return described(await connection.createOffer());
  },
  async answer(sdp) {
    await connection.setRemoteDescription({ type: "offer", sdp });
    return described(await connection.createAnswer());
  },
  accept: (sdp) => connection.setRemoteDescription({ type: "answer", sdp }),
  async open(label, options) {
    adopt(connection.createDataChannel(label, options));
    await end.opened(label);
  },
  async opened(label) {
    await until(() => channels[label]?.readyState === "open");
    const { id, ordered, protocol, negotiated, maxRetransmits, maxPacketLifeTime } = channels[label];
    return { id, ordered, protocol, negotiated, maxRetransmits, maxPacketLifeTime };
  },
  say(label, texts) {
    for (const text of texts) channels[label].send(text === null ? new ArrayBuffer(0) : text);
  },
  async send(label, count, size) {
    const channel = channels[label], sent = [];
    for (let number = 0; number < count; number++) {
      const message = new Uint8Array(size);
      new DataView(message.buffer).setUint32(0, number);
      fill(message);
      sent.push(message);
      channel.send(message);
      if (channel.bufferedAmount > HIGH) await until(() => channel.bufferedAmount <= LOW);
    }
    await until(() => channel.bufferedAmount === 0);
    return sha256(sent);
  },
  async digest(label, count) {
    await until(() => messages[label].length >= count);
    const number = (message) => new DataView(message).getUint32(0);
    const came = messages[label];
    return sha256(channels[label].ordered ? came : came.toSorted((one, two) => number(one) - number(two)));
  },
  async heard(label, count) {
    await until(() => messages[label].length >= count);
    return messages[label].map((message) => (typeof message === "string" ? message : null));
  },
  numbers: (label) =>
    messages[label].filter((one) => typeof one !== "string").map((one) => new DataView(one).getUint32(0)),
  close: (label) => channels[label].close(),
  closed: (label) => until(() => channels[label].readyState === "closed"),
  end: () => connection.close(),
};
