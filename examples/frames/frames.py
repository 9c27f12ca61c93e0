"""Write a file of settings for each frame: python frames.py frames/ 24"""

import sys
from pathlib import Path

folder, count = Path(sys.argv[1]), int(sys.argv[2])
folder.mkdir(parents=True, exist_ok=True)
for number in range(count):
    (folder / f"frame-{number:03}.ini").write_text(f"Clock={number / count:.6f}\n")
