"""Write a file of points for each client, 0 on one side of a line and 1 on the other: python points.py parts/ 2"""

import random
import sys
from pathlib import Path

folder, clients = Path(sys.argv[1]), int(sys.argv[2])
folder.mkdir(parents=True, exist_ok=True)
drawn = random.Random(3)
for client in range(clients):
    points = [(drawn.gauss(client, 1), drawn.gauss(client, 1)) for _ in range(40 + 10 * client)]
    rows = [f"{x:.6f},{y:.6f},{int(x + y > clients - 1)}" for x, y in points]
    (folder / f"part{client}.csv").write_text("\n".join(rows) + "\n")
