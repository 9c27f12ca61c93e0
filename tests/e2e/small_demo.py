"""``cottage demo`` with 0.2 M parameters and a sixth of the text: for what is shown of nodes, money and faults."""

import sys

import msgspec

from cottage.cli import main
from cottage.demo.run import DemoRun
from protocol.job.job import JobSpec, ModelSpec, TokenizerSpec

VOCABULARY = 512
MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
SUBSPACE = 16  # A quarter of the channels, as in the demo.

_as_it_is = DemoRun._spec


def small(run: DemoRun, artifact: str, budget: int) -> JobSpec:
    """In place of ``DemoRun._spec``."""
    spec = _as_it_is(run, artifact, budget)
    training = msgspec.structs.replace(spec.training, subspace=SUBSPACE) if run.options.stages > 1 else spec.training
    tokenizer = TokenizerSpec(kind="bpe", vocabulary=VOCABULARY)
    return msgspec.structs.replace(spec, model=ModelSpec(config=MODEL), tokenizer=tokenizer, training=training)


DemoRun._spec = small  # type: ignore[method-assign]
DemoRun.corpus_bytes = 1_000_000
if __name__ == "__main__":
    sys.exit(main(["demo", *sys.argv[1:]]))
