"""What the demo was asked to do, checked before anything is started."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from common.options import whole

MAX_NODES = 32  # Each node is an agent and a worker of some 400 MB; more than this is no demo for one PC.
DEFAULT_TOKENS = 400_000

Sandbox = Literal["docker", "process"]
Fault = Literal["kill-node", "kill-coordinator"]


@dataclass(frozen=True)
class DemoOptions:
    """``nodes`` counts the providers that start with the job; a fault run adds one spare."""

    nodes: int
    stages: int
    tokens: int
    sandbox: Sandbox
    keep: bool
    json: bool
    faults: tuple[Fault, ...]
    folder: Path
    seed: int
    lie: str | None
    audits: int
    reference: bool
    image_from_host: bool

    @property
    def replicas(self) -> int:
        """As many whole pipelines as the nodes allow."""
        return self.nodes // self.stages


def parse(argv: Sequence[str]) -> DemoOptions:
    """Options from the command line; ends the program with a clear sentence where they make no sense."""
    parser = _parser()
    values = parser.parse_args(argv)
    if not 1 <= values.nodes <= MAX_NODES:
        parser.error(f"--nodes {values.nodes}: between 1 and {MAX_NODES} fit on one PC")
    if not 1 <= values.stages <= 4:
        parser.error(f"--stages {values.stages}: the demo's model has 4 layers, so 1 to 4 stages")
    if values.stages > values.nodes:
        parser.error(f"--stages {values.stages} needs at least as many nodes; --nodes is {values.nodes}")
    if not 2_000 <= values.tokens <= 10**9:
        parser.error(f"--tokens {values.tokens}: between 2,000 and 1,000,000,000")
    if values.json and values.keep:
        parser.error("--json ends with one document and --keep does not end: choose one")
    return DemoOptions(
        nodes=values.nodes,
        stages=values.stages,
        tokens=values.tokens,
        sandbox=values.sandbox,
        keep=values.keep,
        json=values.json,
        faults=tuple(values.fault),
        folder=values.dir.resolve(),
        seed=values.seed,
        lie=values.lie,
        audits=values.audits,
        reference=not values.no_reference,
        image_from_host=values.image_from_host,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cottage demo",
        description="A ledger, a coordinator and provider nodes on this PC train a small language model on the source of "
        "Python's own library, verify each other's work and are paid for it.",
        epilog="The keys of the --json document are explained in docs/reference/demo.md.",
    )
    parser.add_argument("--nodes", type=whole, default=4, help="provider nodes (4)")
    parser.add_argument("--stages", type=whole, default=2, help="pipeline stages (2); nodes // stages are the replicas")
    parser.add_argument("--tokens", type=whole, default=DEFAULT_TOKENS, help=f"tokens to train on ({DEFAULT_TOKENS:,})")
    parser.add_argument(
        "--sandbox",
        choices=("docker", "process"),
        default="process",
        help="docker: hardened containers, as real providers run them; process: plain processes, without protection",
    )
    parser.add_argument(
        "--image-from-host",
        action="store_true",
        help="with --sandbox docker: make the image from this machine's own Python, where no registry can be reached",
    )
    parser.add_argument("--keep", action="store_true", help="leave everything running and print the web address")
    parser.add_argument("--json", action="store_true", help="no screen; one JSON document at the end")
    parser.add_argument(
        "--fault",
        choices=("kill-node", "kill-coordinator"),
        action="append",
        default=[],
        help="kill -9 one in mid-run; may be given twice: the second strikes a round later",
    )
    parser.add_argument("--dir", type=Path, default=Path("build/demo"), help="folder for data, logs and the model")
    parser.add_argument("--seed", type=whole, default=7, help="seed of weights and sample order (7)")
    parser.add_argument("--audits", type=whole, default=1, help="commitments audited each round (1)")
    parser.add_argument("--no-reference", action="store_true", help="skip the same training in one process")
    parser.add_argument(
        "--lie",
        choices=("gradient", "commitment", "lazy", "substitute", "operation", "shard"),
        help="make the last node lie in its work, to see it caught (use with --audits 4)",
    )
    return parser
