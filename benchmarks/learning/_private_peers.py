"""The peers of ``benchmarks.learning.private``: Flower's ServerApp strategies and ClientApps, run as they are, and opacus.

A ``Grid`` of one process carries Flower's messages. Each is made bytes and read again on its way, as between machines, and those
bytes are counted. Everything else is Flower's: strategies, the mods that clip and put noise on, and aggregation.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from benchmarks.learning._private_bench import BATCH, COUNT_NOISE, DELTA, SEQUENCE, Bench, Windows, spec_of
from coordinator.domain.privacy import PrivacyBudget
from protocol.job.federated import both_noises
from trainer.stage.stage import Stage

Trains = Callable[[Stage, Windows, int, np.random.Generator], None]


def grid_of(clients: list[Any]) -> Any:
    """A Flower ``Grid`` of one process, which keeps count of ``crossed`` bytes."""
    from flwr.app import Context, Message, RecordDict
    from flwr.common.serde import message_from_proto, message_to_proto
    from flwr.serverapp import Grid
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # As who starts a ServerApp sets them.

    class Beside(Grid):  # type: ignore[misc]
        """Runs each client when it is sent to."""

        crossed = 0
        run = None

        def set_run(self, run: Any) -> None:
            """There is one run."""

        def get_node_ids(self) -> Iterable[int]:
            """From 1 on."""
            return range(1, len(clients) + 1)

        def create_message(self, content: Any, message_type: str, dst_node_id: int, *rest: Any) -> Any:
            """As strategies make them by themselves."""
            return Message(content, dst_node_id=dst_node_id, message_type=message_type)

        def push_messages(self, messages: Iterable[Any]) -> Iterable[str]:
            """Not asked for by strategies."""
            raise NotImplementedError

        pull_messages = push_messages

        def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Iterable[Any]:
            """Each message to its client, and what it answers."""
            return [self._crossing(self._answer(self._crossing(message))) for message in messages]

        def _answer(self, message: Any) -> Any:
            node = message.metadata.dst_node_id
            return clients[node - 1](message, Context(1, node, {}, RecordDict(), {}))

        def _crossing(self, message: Any) -> Any:
            encoded = message_to_proto(message)
            self.crossed += len(encoded.SerializeToString())
            return message_from_proto(encoded)

    return Beside()


def client_of(
    stage: Stage, rows: Windows, steps: int, drawn: np.random.Generator, train: Trains, mods: list[Any]
) -> Any:
    """An owner's ``ClientApp``."""
    from flwr.app import Message as FlowerMessage
    from flwr.app import MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp(mods=mods)

    @app.train()  # type: ignore[untyped-decorator]
    def fit(message: Any, _context: Any) -> Any:
        load(stage, message.content["arrays"])
        stage.reset_moments()
        train(stage, rows, steps, drawn)
        told = RecordDict({"arrays": arrays_of(stage), "metrics": MetricRecord({"num-examples": 1})})
        return FlowerMessage(told, reply_to=message)

    return app


def arrays_of(stage: Stage) -> Any:
    """Its parameters that learn, by name."""
    from flwr.app import Array, ArrayRecord

    values = stage.values()
    return ArrayRecord({s.name: Array(values[s.start : s.start + s.count].numpy().copy()) for s in stage.slots})


def load(stage: Stage, arrays: Any) -> None:
    """Those of a message."""
    values = stage.values().clone()
    for slot, given in zip(stage.slots, arrays.to_numpy_ndarrays(), strict=True):
        values[slot.start : slot.start + slot.count] = torch.from_numpy(np.asarray(given, dtype=np.float32))
    stage.load(values)


def flower(
    bench: Bench,
    seed: int,
    adapter: bool,
    protect: Callable[[], tuple[Any, list[Any]]],
    train: Trains | None = None,
) -> dict[str, float]:
    """All rounds of a Flower strategy; ``protect`` makes it, with the mods of its clients."""
    from flwr.app import ConfigRecord

    logging.getLogger("flwr").setLevel(logging.ERROR)
    strategy, mods = protect()
    stage, drawn = bench.stage(spec_of(seed, adapter, 3e-3 if adapter else 1e-3)), np.random.default_rng(seed)
    np.random.seed(seed)  # Flower's noise is of numpy's global generator.
    clients = [client_of(stage, rows, bench.steps, drawn, train or bench.train, mods) for rows in bench.texts.owners]
    grid = grid_of(clients)
    done = strategy.start(grid, arrays_of(stage), num_rounds=bench.rounds, train_config=ConfigRecord())
    load(stage, done.arrays)
    found = {"gain": bench.before - bench.loss(stage), "values": stage.parameter_count}
    return found | {"bytes": grid.crossed / len(clients), "last clip": getattr(strategy, "clipping_norm", 0.0)}


def _averaging() -> Any:
    from flwr.serverapp.strategy import FedAvg

    return FedAvg(fraction_evaluate=0.0)


def local(bench: Bench, seed: int, adapter: bool, clip: float, exact: bool) -> dict[str, float]:
    """``LocalDpMod``: noise at each client. It counts no rounds, so each has its part of the budget, or our noise (``exact``)."""
    from flwr.clientapp.mod import LocalDpMod

    rounds, budget = bench.rounds, bench.budget
    epsilon, delta = budget.epsilon / rounds, DELTA / rounds
    share = float(np.sqrt(2 * np.log(1.25 / delta)) / epsilon)  # Of its sensitivity, what it puts on.
    sensitivity = clip * budget.noise(rounds) / share if exact else clip
    found = flower(bench, seed, adapter, lambda: (_averaging(), [LocalDpMod(clip, sensitivity, epsilon, delta)]))
    return found | {"clip": clip}


def central(bench: Bench, seed: int, adapter: bool, clip: float, adaptive: bool = False) -> dict[str, float]:
    """The strategy wrappers: clients cut their updates, and a server that is trusted with all of them puts noise on the sum."""
    from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
    from flwr.serverapp import strategy

    noise, owners = bench.budget.noise(bench.rounds), len(bench.texts.owners)

    def protect() -> tuple[Any, list[Any]]:
        if not adaptive:
            wrapper = strategy.DifferentialPrivacyClientSideFixedClipping(_averaging(), noise, clip, owners)
            return wrapper, [fixedclipping_mod]
        following = strategy.DifferentialPrivacyClientSideAdaptiveClipping(
            _averaging(), noise, owners, clip, clip_norm_lr=1.0, clipped_count_stddev=COUNT_NOISE
        )
        assert np.isclose(following.noise_multiplier, both_noises(noise, COUNT_NOISE))
        return following, [adaptiveclipping_mod]

    return flower(bench, seed, adapter, protect) | {"clip": clip}


def with_opacus(bench: Bench, seed: int, adapter: bool, clip: float) -> dict[str, float]:
    """Flower, whose clients make opacus' steps: the promise is about one window of theirs."""
    most = min(0.5, BATCH / min(len(rows) for rows in bench.texts.owners))
    noise = opacus_noise(bench.budget, most, bench.rounds * bench.steps)

    def train(stage: Stage, rows: Windows, steps: int, drawn: np.random.Generator) -> None:
        opacus_steps(stage, rows, steps, min(most, BATCH / len(rows)), BATCH, noise, clip, drawn)

    torch.manual_seed(seed)
    return flower(bench, seed, adapter, lambda: (_averaging(), []), train) | {"clip": clip, "noise": noise}


def opacus_noise(budget: PrivacyBudget, sampling: float, steps: int) -> float:
    """As opacus finds it."""
    from opacus.accountants.utils import get_noise_multiplier

    return float(
        get_noise_multiplier(
            target_epsilon=budget.epsilon, target_delta=DELTA, sample_rate=sampling, steps=steps, accountant="rdp"
        )
    )


def opacus_steps(
    stage: Stage,
    rows: Windows,
    steps: int,
    sampling: float,
    expected: int,
    noise: float,
    clip: float,
    drawn: np.random.Generator,
) -> None:
    """Steps of opacus' optimizer around torch's AdamW; each window is drawn by itself, and its gradient is made alone."""
    from opacus.optimizers import DPOptimizer

    learning = [parameter for parameter in stage.module.parameters() if parameter.requires_grad]
    optimizer = DPOptimizer(
        torch.optim.AdamW(learning, lr=stage.training.learning_rate),
        noise_multiplier=noise,
        max_grad_norm=clip,
        expected_batch_size=expected,
    )
    for _ in range(steps):
        optimizer.zero_grad()
        grads: list[list[torch.Tensor]] = [[] for _ in learning]
        for row in rows[drawn.random(len(rows)) < sampling]:
            for parameter in learning:
                parameter.grad = None
            stage.backward(
                stage.summed_loss(torch.from_numpy(row[None, :-1]), torch.from_numpy(row[None, 1:])) / SEQUENCE
            )
            for place, parameter in enumerate(learning):
                assert parameter.grad is not None
                grads[place].append(parameter.grad.clone())
        for parameter, each in zip(learning, grads, strict=True):
            parameter.grad_sample = torch.stack(each) if each else torch.zeros(0, *parameter.shape)
        optimizer.step()


def opacus(bench: Bench, seed: int, clip: float) -> dict[str, float]:
    """One place, all windows, as many steps as one owner makes; the unit is a window."""
    stage, rows = bench.stage(spec_of(seed, True, 3e-3)), np.concatenate(bench.texts.owners)
    steps, rate = bench.rounds * bench.steps, 2 * BATCH / len(rows)
    noise, drawn = opacus_noise(bench.budget, rate, steps), np.random.default_rng(seed)
    torch.manual_seed(seed)
    opacus_steps(stage, rows, steps, rate, 2 * BATCH, noise, clip, drawn)
    return {"gain": bench.before - bench.loss(stage), "values": stage.parameter_count, "clip": clip, "bytes": 0}
