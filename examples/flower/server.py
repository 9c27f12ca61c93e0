"""Train over Cottage with Flower: python server.py COORDINATOR IMAGE PART ... leaves model.npz. Each part is a client's file."""

import os
import sys
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from coordinator.client.flower import CottageGrid, Partition, run_app

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Some rounds of FedAvg, from zero."""
    start = ArrayRecord([np.zeros(int(context.run_config["features"]) + 1)])
    strategy = FedAvg(min_available_nodes=2)
    result = strategy.start(grid=grid, initial_arrays=start, num_rounds=int(context.run_config["rounds"]))
    right = [result.evaluate_metrics_clientapp[number]["right"] for number in sorted(result.evaluate_metrics_clientapp)]
    np.savez("model.npz", weights=result.arrays.to_numpy_ndarrays()[0], right=right)


if __name__ == "__main__":
    url, image, *parts = sys.argv[1:]
    with CottageGrid(
        url,
        image,
        app="client:app",
        partitions=[Partition({Path(part).name: Path(part)}) for part in parts],
        budget=5_000_000,
        token=os.environ.get("COTTAGE_TOKEN"),
        run_config={"features": 2, "rounds": 2, "steps": 20, "rate": 0.5},
        array={"memory_mb": 512, "seconds": 300.0, "estimate": 10.0},
    ) as grid:
        run_app(app, grid)
        print(f"It cost {grid.cost() / 1e6:.6f}.")
