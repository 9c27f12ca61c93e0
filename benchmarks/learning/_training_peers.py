"""The others, as their own users run them, in real processes: torch's DistributedDataParallel over gloo, and Flower's FedAvg.

``python _training_peers.py SYSTEM ORDER.json`` inside a network of its own (``unshare``), whose loopback then counts nothing but
the system's traffic, headers included. Everybody starts from the same weights and AdamW moments and reads the same samples in the
same order as our own replicas.
"""

import json
import math
import multiprocessing
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

FLOWER = "flwr==1.41.0"
PORT = 29650
Figures = dict[str, Any]


def measure(system: str, order: Figures, folder: Path) -> Figures:
    """Run a system in a process and network of its own; a reason where that cannot be."""
    interpreter = sys.executable if system == "ddp" else _flower(folder)
    if not Path(interpreter).exists():
        return {"failed": interpreter}
    file = folder / f"{system}-order.json"
    file.write_text(json.dumps(order))
    command = [interpreter, str(Path(__file__).resolve()), system, str(file)]
    apart = shutil.which("unshare") and subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode == 0
    if apart:
        command = ["unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).resolve().parents[2])
    if ran.returncode:
        return {"failed": ran.stderr.strip().splitlines()[-1] if ran.stderr.strip() else f"exit code {ran.returncode}"}
    figures: Figures = json.loads(ran.stdout.splitlines()[-1])
    return figures if apart else figures | {"wire_bytes": None}


def _flower(folder: Path) -> str:
    """Flower's interpreter: its pins disagree with ours, so it gets an environment that only borrows our packages."""
    home = folder / "flower"
    interpreter = home / "bin" / "python"
    if not (home / "installed").exists():
        venv.create(home, with_pip=True)
        ours = next(Path(path) for path in sys.path if path.endswith("site-packages"))
        installed = subprocess.run(
            [interpreter, "-m", "pip", "install", "-q", "--disable-pip-version-check", FLOWER],
            capture_output=True,
            text=True,
        )
        if installed.returncode:
            return f"{FLOWER} does not install here: {installed.stderr.strip().splitlines()[-1]}"
        (next((home / "lib").glob("python*")) / "site-packages" / "ours.pth").write_text(f"{ours}\n")
        (home / "installed").write_text(FLOWER)
    return str(interpreter)


class User:
    """What a user's script has: a model, AdamW, samples."""

    def __init__(self, order: Figures, replica: int) -> None:
        from protocol.job.job import TrainingSpec
        from trainer.audit.environment import configure
        from trainer.data.data import TokenFile
        from trainer.stage.model import Cut
        from trainer.stage.stage import Stage, StageState

        configure(1)
        self.order, self.replica = order, replica
        self.training = TrainingSpec(**order["training"])
        layers = order["config"]["num_hidden_layers"]
        self.stage = Stage(order["config"], Cut(0, layers, True, True), self.training)
        state = StageState(*torch.load(order["state"])) if order["state"] else self.stage.state()
        self.stage.restore(state)
        self.model: nn.Module = self.stage.module
        matrices = [value for value in self.model.parameters() if value.dim() > 1]
        others = [value for value in self.model.parameters() if value.dim() == 1]
        groups = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(
            groups, self.training.learning_rate, (0.9, 0.95), 1e-8, self.training.weight_decay
        )
        named = dict(zip((slot.name for slot in self.stage.slots), self.model.parameters(), strict=True))
        for slot in self.stage.slots if order["state"] else ():
            span = slice(slot.start, slot.start + slot.count)
            self.optimizer.state[named[slot.name]] = {
                "step": torch.tensor(float(state.adam_steps)),
                "exp_avg": state.first_moment[span].view(slot.shape).clone(),
                "exp_avg_sq": state.second_moment[span].view(slot.shape).clone(),
            }
        vocabulary = order["config"]["vocab_size"]
        self.samples = TokenFile(Path(order["text"]) / "train.bin", self.training.sequence, vocabulary)
        heldout = TokenFile(Path(order["text"]) / "heldout.bin", self.training.sequence, vocabulary)
        self.judged = [heldout.sample(0, part, 0, 32)[0] for part in range(order["judged"] // 32)]

    def step(self, step: int, model: nn.Module) -> None:
        from protocol.job.learning_rate import learning_rate
        from trainer.stage.precision import computing

        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.training, step, self.order["steps"])
        windows, _ = self.samples.sample(
            self.training.seed, self.order["first"] + step, self.replica, self.training.batch
        )
        rows = torch.from_numpy(windows)
        with computing(self.training, torch.device("cpu")):
            logits = model(input_ids=rows[:, :-1], use_cache=False).logits.float()
        functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)

    def loss(self) -> float:
        total, tokens = 0.0, 0
        with torch.no_grad():
            for windows in self.judged:
                rows = torch.from_numpy(windows)
                logits = self.model(input_ids=rows[:, :-1], use_cache=False).logits
                labels = rows[:, 1:].flatten()
                total += float(functional.cross_entropy(logits.flatten(0, 1), labels, reduction="sum"))
                tokens += labels.numel()
        return total / tokens


def loopback() -> int:
    """Bytes that the loopback interface sent."""
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])


def _ddp_process(rank: int, order: Figures, answer: Any) -> None:
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    user = User(order, rank)
    address = f"tcp://127.0.0.1:{PORT}"
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=order["replicas"])
    model = DistributedDataParallel(user.model)
    distributed.barrier()
    before, began = loopback(), time.perf_counter()
    for step in range(order["steps"]):
        user.step(step, model)
    distributed.barrier()
    moved, seconds = loopback() - before, time.perf_counter() - began
    if rank == 0:
        answer.put({"loss": user.loss(), "sent_by_all": moved, "seconds": round(seconds, 1)})
    distributed.barrier()
    distributed.destroy_process_group()


def ddp(order: Figures) -> Figures:
    """Gradients averaged at every step."""
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    ranks = [context.Process(target=_ddp_process, args=(rank, order, answer)) for rank in range(order["replicas"])]
    for process in ranks:
        process.start()
    figures: Figures = answer.get()
    for process in ranks:
        process.join()
    return figures


def _flower_client(order: Figures, replica: int) -> None:
    import flwr

    user = User(order, replica)

    class Client(flwr.client.NumPyClient):  # type: ignore[misc]
        """Local AdamW steps between averages; its moments stay."""

        def fit(self, parameters: list[Any], config: Figures) -> tuple[list[Any], int, Figures]:
            user.stage.parameters.copy_(torch.from_numpy(parameters[0]))
            first = int(config["first"])
            for step in range(first, min(first + order["training"]["inner_steps"], order["steps"])):
                user.step(step, user.model)
            return [user.stage.parameters.numpy()], 1, {}

    flwr.client.start_client(server_address=f"127.0.0.1:{PORT}", client=Client().to_client())


def flower(order: Figures) -> Figures:
    """FedAvg: whole weights in float32 down and up, each round."""
    import flwr

    user = User(order, 0)
    rounds = math.ceil(order["steps"] / order["training"]["inner_steps"])
    final: list[Any] = []

    class Strategy(flwr.server.strategy.FedAvg):  # type: ignore[misc]
        """Keeps what it averaged."""

        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            averaged, figures = super().aggregate_fit(server_round, results, failures)
            final[:] = flwr.common.parameters_to_ndarrays(averaged)
            return averaged, figures

    strategy = Strategy(
        fraction_evaluate=0.0,
        min_fit_clients=order["replicas"],
        min_available_clients=order["replicas"],
        initial_parameters=flwr.common.ndarrays_to_parameters([user.stage.parameters.numpy()]),
        on_fit_config_fn=lambda index: {"first": (index - 1) * order["training"]["inner_steps"]},
    )
    context = multiprocessing.get_context("spawn")
    clients = [context.Process(target=_flower_client, args=(order, replica)) for replica in range(order["replicas"])]
    for process in clients:
        process.start()
    before, began = loopback(), time.perf_counter()
    config = flwr.server.ServerConfig(num_rounds=rounds)
    flwr.server.start_server(server_address=f"127.0.0.1:{PORT}", config=config, strategy=strategy)
    moved, seconds = loopback() - before, time.perf_counter() - began
    for process in clients:
        process.join()
    user.stage.parameters.copy_(torch.from_numpy(np.asarray(final[0])))
    return {"loss": user.loss(), "sent_by_all": moved, "seconds": round(seconds, 1)}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    asked = json.loads(Path(sys.argv[2]).read_text())
    print(json.dumps({"ddp": ddp, "flower": flower}[sys.argv[1]](asked)), flush=True)
