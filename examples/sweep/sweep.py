"""One point of a parameter sweep: how well a forest of this size tells digits apart. Reads a JSON file, leaves score.json."""

import json
import sys
from pathlib import Path

from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import cross_val_score

wanted = json.loads(Path(sys.argv[1]).read_text())
digits, names = load_digits(return_X_y=True)
forest = RandomForestClassifier(n_estimators=wanted["trees"], max_depth=wanted["depth"], random_state=0, n_jobs=1)
score = float(cross_val_score(forest, digits, names, cv=3).mean())
Path("score.json").write_text(json.dumps({**wanted, "score": score}))
