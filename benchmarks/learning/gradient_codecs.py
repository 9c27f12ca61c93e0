"""How far the mean of four replicas' gradients is from what was meant, by codec, at one step of a training run.

``of the length`` divides the norm of the error by that of the mean. ``of the step`` does so after dividing each value by the root
of AdamW's second moment there, as the optimizer does: what is usually small counts as much as what is usually large.
"""

from pathlib import Path

import torch

from benchmarks.common import FOLDER, publish
from benchmarks.learning._training_runs import REPLICAS, Runner, Setting
from benchmarks.learning._training_text import prepared
from trainer.codecs import CodecName, decode, encode
from trainer.outer.checks import mean_update

CODECS: tuple[CodecName, ...] = ("int8-block", "int4-block", "int4-gradient", "int4-squares")
STEP = 50  # After the warm start; any will do.
SEQUENCE = 128


def main(folder: Path = FOLDER / "training") -> None:
    """Measure each codec, and publish."""
    setting = Setting("1M", 600, warm=True, seed=0, folder=folder)
    runner = Runner(setting, prepared(folder, SEQUENCE), lambda _share: None)
    stage, gradients = runner.stage(setting.spec()), list[torch.Tensor]()
    for replica in range(REPLICAS):
        runner.gradients(stage, stage.training, STEP, replica, 1)
        gradients.append(stage.gradients.clone())
        stage.gradients.zero_()
    mean, usual = mean_update(gradients), stage.second_moment.sqrt() + 1e-8
    rows = dict[str, dict[str, float]]()
    for codec in CODECS:
        sent = [encode(gradient, codec) for gradient in gradients]
        back = [decode(data, tuple(mean.shape), codec) for data in sent]
        error = mean_update(back) - mean
        zero = sum(float(((b == 0) & (g != 0)).float().mean()) for b, g in zip(back, gradients, strict=True)) / REPLICAS
        plain, step = float(error.norm() / mean.norm()), float((error / usual).norm() / (mean / usual).norm())
        bits = 8 * len(sent[0]) / mean.numel()
        rows[codec] = {"error_of_length": plain, "error_of_step": step, "become_zero": zero, "bits_a_value": bits}
    publish("gradient_codecs", __doc__.splitlines()[0], {"codecs": rows})


if __name__ == "__main__":
    main()
