"""``torch.distributed`` over Cottage links: somebody's own script between homes.

``import trainer.dist`` registers the backend ``cottage``; then ``torch.distributed.init_process_group("cottage", ...)`` as ever.
Ranks are WebRTC peers: no open port is needed, and bytes are encrypted from end to end. They find each other through the script's
own ``Store``, which carries the signed offers and answers, and nothing of the training.

::

    DDP, pipelining, torchft ── CottageGroup ── collectives ── Mesh (one thread) ── PeerNet ══ the other ranks
                                                                 └── Post ── Store

``trainer.dist.settings`` lists the environment variables. The worker never imports this package.
"""

import torch.distributed as dist

from trainer.dist.group import CottageGroup, create
from trainer.dist.settings import GroupSettings

BACKEND = "cottage"

dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu", "cuda"])

__all__ = ["BACKEND", "CottageGroup", "GroupSettings"]
