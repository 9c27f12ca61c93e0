"""Write a file for each point of the grid: python grid.py points/"""

import json
import sys
from itertools import product
from pathlib import Path

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
for trees, depth in product((5, 20, 80), (2, 4, 8, 16)):
    (folder / f"trees{trees}-depth{depth}.json").write_text(json.dumps({"trees": trees, "depth": depth}))
