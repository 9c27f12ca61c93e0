"""Hundreds of kills over one run, beside the same run in calm: does it end, what does it learn, how soon does it go on?

Writes ``build/bench/chaos.json``; the exit code is 1 where a goal is missed. Goals: the run ends; the loss on held-out text is at
most 1 % over that of a calm run over as many tokens as the storm's replicas committed (it needs more rounds for them); each
audit of a step that was opened passes (it is run again bit for bit on another node), so that none fails but of who was killed
before it opened one; after a kill the next round is complete within the heartbeat's limit and a second (median). One in four
kills is a power cut, after which nothing but its silence says that the node is gone: a calm round's time is granted beside these.
"""

import argparse
import asyncio
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import publish
from tests.chaos.storm import Outcome, Storm, Weather

LOSS_GAP = 0.01
SLACK_S = 1.0


async def run(folder: Path, weather: Weather) -> Outcome:
    """One run in a folder of its own."""
    async with Storm(folder, weather) as storm:
        return await storm.to_the_end()


def judge(calm: dict[str, Any], stormy: dict[str, Any], weather: Weather) -> dict[str, bool]:
    """Goal -> reached."""
    gap = stormy["validation_loss"] / calm["validation_loss"] - 1 if stormy["validation_loss"] else float("inf")
    failures = {verdict for verdict in stormy["audits"] if verdict.startswith("failed")}
    allowed = weather.lease_seconds + SLACK_S
    killed, cut = stormy["next_commit_after_kill_median"], stormy["next_commit_after_power_cut_median"]
    return {
        "the run ends": stormy["state"] == "settled",
        "every kill was made": stormy["kills"] >= weather.kills,
        "the loss is at most 1 % over the calm run's": gap <= LOSS_GAP,
        "every committed step that was opened passes its audit": not failures - {"failed: gone"},
        "after a kill a round is complete within the heartbeat's time and a second": killed is None
        or killed <= allowed,
        "after a power cut, within a round's time more": cut is None or cut <= allowed + calm["round_seconds_median"],
    }


def main() -> int:
    """Run both and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    default = Weather(
        stages=4, replicas=3, spares=2, joiners=2, kills=200, power_cuts=0.25, rounds=320, inner_steps=10, audits=1
    )
    for name in ("stages", "replicas", "spares", "joiners", "kills", "rounds", "inner_steps", "audits", "seed"):
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=getattr(default, name))
    parser.add_argument("--lean", action="store_true", help="stages that are kept lean")
    parser.add_argument("--lateness", type=float, default=None)
    parser.add_argument(
        "--power-cuts", type=float, default=default.power_cuts, help="share of the kills that close nothing"
    )
    parser.add_argument("--round-seconds", type=float, default=None)
    parser.add_argument("--lease-seconds", type=float, default=default.lease_seconds)
    weather = dataclasses.replace(default, **vars(parser.parse_args()))
    with tempfile.TemporaryDirectory() as place:
        stormy = asyncio.run(run(Path(place) / "storm", weather)).report()
        print(json.dumps(stormy, indent=2), flush=True)
        calm_weather = dataclasses.replace(weather, kills=0, spares=0, joiners=0, tokens=stormy["tokens"])
        calm = asyncio.run(run(Path(place) / "calm", calm_weather)).report()
    goals = judge(calm, stormy, weather)
    publish("chaos", "a run survives its nodes", {"calm": calm, "storm": stormy, "goals": goals})
    return 0 if all(goals.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
