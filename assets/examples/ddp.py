"""Your own DDP script between homes. The only lines that are Cottage's are the import and the name of the backend.

At home A (rank 0, which also keeps the rendezvous: a port that the others reach, or a VPN, or any host that runs a TCPStore):

    MASTER_ADDR=203.0.113.7 MASTER_PORT=29500 WORLD_SIZE=2 RANK=0 python ddp.py --backend cottage

At home B the same with RANK=1. Training itself goes over encrypted WebRTC links that need no open port;
COTTAGE_ICE_SERVERS='[{"urls": ["stun:stun.example.org:3478"]}]' helps them through routers. With COTTAGE_LOOPBACK=1 all ranks
run on one machine. --four-bits sends gradients in 4 bits.
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import trainer.dist  # noqa: F401  (registers the backend "cottage")
from trainer.dist.hooks import four_bits


def main() -> None:
    """Fit a small network to a function; every rank draws its own samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cottage")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--four-bits", action="store_true")
    parser.add_argument("--save", default="")
    options = parser.parse_args()

    dist.init_process_group(options.backend)
    torch.manual_seed(1)
    network = torch.nn.Sequential(torch.nn.Linear(16, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))
    model = DistributedDataParallel(network, bucket_cap_mb=0.01)
    if options.four_bits:
        model.register_comm_hook(None, four_bits)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    samples = torch.Generator().manual_seed(100 + dist.get_rank())
    for step in range(options.steps):
        x = torch.randn(64, 16, generator=samples)
        loss = (model(x) - x.square().sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(mean := loss.detach(), dist.ReduceOp.SUM)
        if dist.get_rank() == 0:
            print(f"step {step + 1}: loss {mean.item() / dist.get_world_size():.4f}")
    if options.save:
        torch.save(network.state_dict(), f"{options.save}.{dist.get_rank()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
