"""A job of a model of 0.1 M parameters that real networks finish within minutes, for what is shown about its nodes."""

from common.untrusted_text import untrusted
from protocol.job.job import DatasetSpec, JobSpec, ModelSpec, ParallelSpec, TokenizerSpec, TrainingSpec

BATCH, SEQUENCE = 4, 32
CORPUS_BYTES = 1_000_000
"""Of text, which a coordinator prepares in a second."""
MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def small_job(
    artifact: str, budget: int, stages: int, replicas: int, *, rounds: int, steps: int, commit_every: int
) -> JobSpec:
    """``rounds`` of ``steps`` inner steps on each replica, with a leaf for every ``commit_every`` steps."""
    return JobSpec(
        name=untrusted("small"),
        model=ModelSpec(config=MODEL),
        dataset=DatasetSpec(artifact=artifact, heldout=0.005),
        budget=budget,
        tokenizer=TokenizerSpec(kind="bpe", vocabulary=300),
        training=TrainingSpec(
            tokens=rounds * steps * BATCH * SEQUENCE * replicas,
            sequence=SEQUENCE,
            batch=BATCH,
            micro_batches=2,
            inner_steps=steps,
            commit_every=commit_every,
        ),
        parallel=ParallelSpec(stages=stages, replicas=replicas),
        deadline_hours=2.0,
    )
