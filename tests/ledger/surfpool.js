// Serves an independent Solana implementation (Surfpool) until standard input closes; prints where, and its payer's key.
const { Surfnet } = require(process.argv[2]);
const net = Surfnet.startWithConfig({
  offline: true, blockProductionMode: "clock", slotTimeMs: 50, airdropSol: 1000000000000,
});
console.log(JSON.stringify({ url: net.rpcUrl, secret: Array.from(net.payerSecretKey) }));
setInterval(() => net.drainEvents(), 50); // It keeps a bounded number of them, and stands still once nobody takes any.
process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
