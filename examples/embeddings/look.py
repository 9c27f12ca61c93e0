"""Decide whether vectors are those of a text: some of its lines are embedded here, and must lie where they should.

Sums of floats differ a little from processor to processor, so bytes cannot be compared. Which lines are looked at follows from
COTTAGE_SEED, which nobody knows before the vectors are there.
"""

import os
import random
import sys
from pathlib import Path

import numpy as np
from embed import embedded

LINES, APART = 8, 0.02  # So many are looked at, and may be so far away; vectors have length 1.

texts = [line for line in Path(sys.argv[1]).read_text().splitlines() if line.strip()]
given = Path(sys.argv[2] if len(sys.argv) > 2 else "/in/result/vectors.npy")
vectors = np.load(given, allow_pickle=False)
if vectors.dtype != np.float32 or vectors.ndim != 2 or len(vectors) != len(texts):
    sys.exit(f"there are {len(texts)} lines, and the vectors are {vectors.dtype} of shape {vectors.shape}")
chosen = random.Random(os.environ["COTTAGE_SEED"]).sample(range(len(texts)), min(LINES, len(texts)))
apart = np.linalg.norm(vectors[chosen] - embedded([texts[number] for number in chosen], *sys.argv[3:]), axis=1)
if not (apart < APART).all():
    sys.exit(f"line {chosen[int(apart.argmax())] + 1} has another vector, {apart.max():.3f} away")
Path("looked.txt").write_text(f"lines {sorted(chosen)} are right\n")
