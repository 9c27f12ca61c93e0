"""Whether no rounding explains an answer that a check found wrong: stake is lost by nothing less.

Whoever answered computed in batches that nobody can name, so its logits are some rounding away from any that are computed again.
How far rounding leads hangs on the model, which a stranger may have made so that it leads far. So an answer is drawn again many
times. In all passes but the first what each part of the model puts out is changed by lot, by a thousandth of every value: a
thousand times what float32 rounds. A token proves a lie where the one that the first pass draws in its place is a nat before it
in each of these passes. Where rounding decides between the two, the larger changes decide now so, now so.

Machines of an environment class find the same bits, since the lots follow from a seed.
"""

import hashlib
from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from protocol.serving import CheckCommand, ProveCommand, ProvenReport
from trainer.serve.adapters import adapted, whole_pass
from trainer.serve.checking import MAX_WRONG, MOST, AnswerPasses, scores_of, surely_drawn, told
from trainer.serve.few_rows import as_usual
from trainer.serve.loading import LoadedModel
from trainer.serve.requests import AskedAnswer

BLURRED = 32  # Passes. Where rounding decides between two tokens, each pass clears who answered with a chance of nearly a half.
BLUR = 1e-3  # Of a value, as a standard deviation: as bfloat16 rounds.
FAR = 1.0  # Nats.

Read = Callable[[CheckCommand], AskedAnswer]
"""A request, as it was before anything was answered."""


class Blur:
    """Changes what the parts of a model put out, by lots of a seed; without one it changes nothing. A hook on each of them."""

    def __init__(self) -> None:
        self._lots: torch.Generator | None = None

    def begin(self, seed: bytes | None, device: torch.device) -> None:
        """Another pass. ``seed``: 8 bytes; None: it is left as it is."""
        self._lots = None if seed is None else torch.Generator(device).manual_seed(int.from_bytes(seed) >> 1)

    def __call__(self, _part: nn.Module, _inputs: Any, output: Any) -> Tensor | None:
        """``output`` of any shape, changed; None: it stays."""
        if self._lots is None or not isinstance(output, Tensor) or not output.is_floating_point():
            return None
        lots = torch.randn(output.shape, generator=self._lots, device=output.device, dtype=output.dtype)
        return torch.addcmul(output, output, lots, value=BLUR)


class AnswerProver:
    """Looks at answers once more, beside an engine with the same parameters."""

    def __init__(self, loaded: LoadedModel, env_class: str) -> None:
        """Before anything changes how the model attends."""
        self._passes, self._blur, self._class = AnswerPasses(loaded), Blur(), env_class
        as_usual(self._passes.model)
        for part in self._passes.model.modules():
            if next(part.children(), None) is None:
                part.register_forward_hook(self._blur)

    def stop(self) -> None:
        """Give up what is under way."""
        self._passes.stop()

    def prove(self, command: ProveCommand, read: Read) -> ProvenReport:
        """Look at one answer."""
        check = command.check
        if found := told(check, read(check)):
            return self.proven(command.id, found, hashlib.sha256(found.encode()).hexdigest())
        seen, leads, rivals = hashlib.sha256(command.seed.encode()), [inf] * len(check.tokens), list[int]()
        for number in range(BLURRED + 1):
            lots = hashlib.blake2b(f"{command.seed}:{number}".encode(), digest_size=8).digest()
            self._blur.begin(lots if number else None, self._passes.model.device)
            with adapted(whole_pass(check.asked.adapter)):
                now = self._leads(check, read(check), seen, rivals)
            leads = [min(pair) for pair in zip(leads, now, strict=True)]
            if max(leads, default=0.0) <= FAR:
                return self.proven(command.id, "", seen.hexdigest())
        far = leads.index(max(leads))
        behind = f"{min(leads[far], MOST):,.2f} nats behind its draw, or more, in each of {BLURRED + 1} passes"
        return self.proven(command.id, f"token {far + 1:,} of {len(leads):,} is {behind}", seen.hexdigest())

    def proven(self, request: str, wrong: str, digest: str) -> ProvenReport:
        """What came of it."""
        return ProvenReport(request, wrong[:MAX_WRONG], digest, self._class)

    def _leads(self, check: CheckCommand, asked: AskedAnswer, seen: Any, rivals: list[int]) -> list[float]:
        """How many nats the rival of each token is before it, in a pass that ``seen``, a hash, is told of; 0: it is not.

        Args:
            rivals: what the first pass draws in place of each token, which puts them there.
        """
        before, tokens, sampling = [*asked.prompt, *check.asked.begun], check.tokens, check.asked.sampling
        whole, found, first = [*before, *tokens], list[float](), not rivals
        for at, row in enumerate(self._passes.rows(whole[:-1], len(before) - 1)):
            seen.update(row.contiguous().numpy())
            # A model that overflows says nothing of anybody.
            place, numbers = len(before) + at, bool(row.max().isfinite())
            if asked.form is not None:
                asked.form.restrict(row[None], whole[:place])
            scores, sure = scores_of(row, sampling, place), surely_drawn(row, sampling, FAR)
            if first:
                rivals.append(int(scores.masked_fill(~sure, -inf).argmax()))
            rival = rivals[at]
            ahead = numbers and bool(sure[rival]) and bool(scores[rival].isfinite())
            found.append(float(scores[rival] - scores[tokens[at]]) if ahead else 0.0)
        return found
