"""Whether the replicas of a stage exchange by shards: a rule that everybody who knows the plan can apply.

In a *mesh* each replica sends its whole contribution to each other one. By *shards* it sends one part of it to each other one,
who reduces that part of everybody's and hands the result out. Each replica of a plan has its shard, in order.
"""

from protocol.job.job import TOGETHER, TrainingSpec

SHARDED_FROM = 4  # A mesh of three sends twice an update, shards 1.3 times, after one more message each way.


def sharded_from(training: TrainingSpec) -> int:
    """The fewest replicas that exchange by shards; 0: none do, however many there are."""
    if training.outer in TOGETHER or training.exchange == "mesh":
        return 0
    return 2 if training.exchange == "shards" else SHARDED_FROM


def is_sharded(training: TrainingSpec, replicas: int) -> bool:
    """Whether so many replicas of a plan exchange by shards."""
    least = sharded_from(training)
    return 0 < least <= replicas


def shard_count(training: TrainingSpec, replicas: int) -> int:
    """Parts that an update is cut into: one in a mesh."""
    return replicas if is_sharded(training, replicas) else 1
