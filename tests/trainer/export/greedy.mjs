// What llama.cpp makes of models and prompts, likeliest token by token: JSON in, JSON out.
import { getLlama, LlamaLogLevel } from "node-llama-cpp";
import { readFileSync } from "node:fs";

const asked = JSON.parse(readFileSync(0, "utf8"));
const llama = await getLlama({ gpu: false, build: "never", logLevel: LlamaLogLevel.error });
const answers = [];
for (const { file, prompts, count } of asked) {
  const model = await llama.loadModel({ modelPath: file });
  // One thread: several wait for each other where other programs run.
  const context = await model.createContext({ contextSize: 512, threads: 1, flashAttention: false });
  const sequence = context.getSequence();
  const made = [];
  for (const prompt of prompts) {
    await sequence.clearHistory();
    const tokens = model.tokenize(prompt, true);
    const next = [];
    for await (const token of sequence.evaluate(tokens, { temperature: 0, yieldEogToken: true })) {
      next.push(token);
      if (next.length >= count) break;
    }
    made.push({ tokens, next });
  }
  answers.push({ metadata: model.fileInfo.metadata, made });
  await model.dispose();
}
process.stdout.write(JSON.stringify(answers, (key, value) => (Array.isArray(value) && value.length > 600 ? null : value)));
process.exit(0);
