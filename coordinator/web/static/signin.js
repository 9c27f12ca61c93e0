// Signs in with wallets (Wallet Standard) and passkeys (WebAuthn), or adds them to an account.
"use strict";

const door = document.querySelector("[data-signin]");
const linking = door && "link" in door.dataset;
const shelf = door && door.querySelector("[data-wallets]");
const problem = door && door.querySelector("[data-problem]");
const wallets = new Set();

const base64 = (bytes) => btoa(String.fromCharCode(...new Uint8Array(bytes)));

async function send(path, body) {
  const response = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.detail || `the coordinator answered ${response.status}`);
  return answer;
}

async function attempt(button, work) {
  problem.hidden = true;
  button.disabled = true;
  try {
    const answer = await work();
    location.assign(answer.next);
  } catch (error) {
    problem.textContent = error.name === "NotAllowedError" ? "You said no, or took too long." : error.message;
    problem.hidden = false;
  } finally {
    button.disabled = false;
  }
}

const next = () => `?next=${encodeURIComponent(door.dataset.next || "/jobs")}`;

function text(input, address) {
  return (
    `${input.domain} wants you to sign in with your Solana account:\n${address}\n\n${input.statement}\n\n` +
    `URI: ${input.uri}\nVersion: ${input.version}\nNonce: ${input.nonce}\n` +
    `Issued At: ${input.issuedAt}\nExpiration Time: ${input.expirationTime}`
  );
}

async function signed(wallet, input) {
  const direct = wallet.features["solana:signIn"];
  if (direct) {
    const [output] = await direct.signIn(input);
    return { address: output.account.address, message: base64(output.signedMessage), signature: base64(output.signature) };
  }
  const { accounts } = await wallet.features["standard:connect"].connect();
  const account = accounts.find((one) => one.features.includes("solana:signMessage"));
  if (!account) throw new Error("this wallet has no account that can sign");
  const message = new TextEncoder().encode(text(input, account.address));
  const [output] = await wallet.features["solana:signMessage"].signMessage({ account, message });
  return { address: account.address, message: base64(output.signedMessage), signature: base64(output.signature) };
}

function offer(wallet) {
  const able = wallet.features["solana:signIn"] || (wallet.features["standard:connect"] && wallet.features["solana:signMessage"]);
  if (wallets.has(wallet) || !able) return;
  wallets.add(wallet);
  const button = document.createElement("button");
  button.type = "button";
  button.className = "button";
  if (typeof wallet.icon === "string" && /^data:image\/(svg\+xml|png|webp|gif);base64,/.test(wallet.icon)) {
    const icon = document.createElement("img");
    Object.assign(icon, { src: wallet.icon, alt: "", width: 20, height: 20 });
    button.append(icon);
  }
  button.append(`${linking ? "Add" : "Continue with"} ${String(wallet.name).slice(0, 40)}`);
  button.addEventListener("click", () =>
    attempt(button, async () => {
      const input = await send("/sign-in/wallet/challenge", {});
      const proof = { ...(await signed(wallet, input)), nonce: input.nonce };
      const code = document.getElementById("code");
      if (code) proof.code = code.value;
      return linking ? send("/account/wallets", proof) : send(`/sign-in/wallet${next()}`, proof);
    }),
  );
  shelf.append(button);
  shelf.hidden = false;
}

if (shelf) {
  const register = (...found) => {
    found.forEach(offer);
    return () => {};
  };
  const api = Object.freeze({ register });
  window.addEventListener("wallet-standard:register-wallet", ({ detail: callback }) => callback(api));
  window.dispatchEvent(new CustomEvent("wallet-standard:app-ready", { detail: api }));
}

const passkey = door && door.querySelector("[data-passkey]");
if (passkey && window.PublicKeyCredential && PublicKeyCredential.parseRequestOptionsFromJSON) {
  passkey.hidden = false;
  const button = passkey.querySelector("button");
  button.addEventListener("click", () =>
    attempt(button, async () => {
      if (linking) {
        const options = PublicKeyCredential.parseCreationOptionsFromJSON(await send("/account/passkeys/challenge", {}));
        return send("/account/passkeys", (await navigator.credentials.create({ publicKey: options })).toJSON());
      }
      const options = PublicKeyCredential.parseRequestOptionsFromJSON(await send("/sign-in/passkey/challenge", {}));
      return send(`/sign-in/passkey${next()}`, (await navigator.credentials.get({ publicKey: options })).toJSON());
    }),
  );
}
