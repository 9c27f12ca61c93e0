"""A Flower ClientApp: a step of logistic regression on the points of its partition, one a line: features, then 0 or 1."""

from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def points(context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Features with a one behind them, and what is to be foretold."""
    files = sorted(Path(context.node_config["data-path"]).iterdir())
    rows = np.concatenate([np.loadtxt(file, delimiter=",", ndmin=2) for file in files])
    return np.hstack([rows[:, :-1], np.ones((len(rows), 1))]), rows[:, -1]


def chance(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Of a one, by the model."""
    return 1 / (1 + np.exp(-values @ weights))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Some steps down the gradient; how often this client has learnt is kept for its next round."""
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    values, wanted = points(context)
    for _ in range(int(context.run_config["steps"])):
        weights = weights - float(context.run_config["rate"]) * values.T @ (chance(values, weights) - wanted) / len(
            values
        )
    rounds = context.state["seen"]["rounds"] + 1 if "seen" in context.state else 1
    context.state["seen"] = MetricRecord({"rounds": rounds})
    metrics = MetricRecord({"num-examples": len(values), "rounds": rounds})
    return Message(RecordDict({"arrays": ArrayRecord([weights]), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """How often the model is right about this client's points."""
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    values, wanted = points(context)
    right = float(((chance(values, weights) > 0.5) == wanted).mean())
    metrics = MetricRecord({"num-examples": len(values), "right": right})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
