"""Draws of tokens: their shares are the probabilities, and they hang on seed and place alone."""

from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from protocol.serving import Sampling
from trainer.serve.sampling import SAMPLING, SeededSampler, drawn, times

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, 3.0])
DRAWS = 4000


def shares(sampling: Sampling) -> list[float]:
    found = Counter(drawn(LOGITS, sampling, place) for place in range(DRAWS))
    return [found[token] / DRAWS for token in range(len(LOGITS))]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_as_often_as_they_are_likely(temperature: float) -> None:
    expected = (LOGITS / temperature).softmax(0).tolist()
    assert shares(Sampling(temperature, seed=5)) == pytest.approx(expected, abs=0.03)  # Four standard deviations.


def test_of_all_tokens_only_the_likeliest_are_drawn() -> None:
    expected = LOGITS[[0, 4]].softmax(0).tolist()
    assert shares(Sampling(top_k=2)) == pytest.approx([expected[0], 0, 0, 0, expected[1]], abs=0.03)
    assert shares(Sampling(top_p=0.5)) == [0, 0, 0, 0, 1], "the likeliest one has more than half alone"
    assert shares(Sampling(top_p=0.7)) == pytest.approx([expected[0], 0, 0, 0, expected[1]], abs=0.03)


def test_a_large_vocabulary_is_drawn_from_as_if_all_of_it_was_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    kinds = {"peaked": torch.randn(5_000) * 6, "flat": torch.randn(5_000) * 0.1}
    drawn_some = {
        (name, top_p): [drawn(logits, Sampling(top_p=top_p, seed=2), place) for place in range(60)]
        for name, logits in kinds.items()
        for top_p in (0.3, 0.9, 0.99)
    }
    monkeypatch.setattr("trainer.serve.sampling.SORTED", 5_000)
    for (name, top_p), tokens in drawn_some.items():
        assert tokens == [drawn(kinds[name], Sampling(top_p=top_p, seed=2), place) for place in range(60)]


def test_a_seed_and_a_place_draw_the_same_token_and_others_another() -> None:
    flat = torch.zeros(1000)
    assert drawn(flat, Sampling(seed=1), 7) == drawn(flat, Sampling(seed=1), 7)
    assert len({drawn(flat, Sampling(seed=seed), 7) for seed in range(20)}) > 15
    assert len({drawn(flat, Sampling(seed=-(2**63)), place) for place in range(20)}) > 15


def test_the_noise_is_a_tokens_own_and_the_same_on_every_machine() -> None:
    expected = [0.055898, 0.121907, 2.772364]
    assert times(7, 12, 3).tolist() == pytest.approx(expected, abs=1e-4)
    assert times(7, 12, 1000)[:3].tolist() == pytest.approx(expected, abs=1e-4)


def test_rounding_that_swaps_two_ranks_changes_no_other_draw() -> None:
    logits = torch.zeros(50).index_fill(0, torch.tensor([20]), 1.0)
    swapped = logits + torch.linspace(0, 1e-6, 50)
    for sampling in (Sampling(seed=3), Sampling(top_k=50, seed=3), Sampling(top_p=0.999, seed=3)):
        assert [drawn(logits, sampling, place) for place in range(50)] == [
            drawn(swapped, sampling, place) for place in range(50)
        ]


@dataclass
class _State:
    """What the library keeps of a request."""

    sampling: Sampling | None
    initial_tokens: list[int]
    generated_tokens: list[int] = field(default_factory=list)

    @property
    def logit_processor_kwargs(self) -> dict[str, Sampling]:
        return {} if self.sampling is None else {SAMPLING: self.sampling}


def taken(*states: _State) -> list[int]:
    sampler = SeededSampler()
    argument = sampler.prepare_tensor_args([SimpleNamespace(state=state) for state in states])
    generator = torch.Generator().manual_seed(1)
    # Batches are filled up with rows of nobody.
    rows = torch.randn(1, 1000, generator=generator).repeat(len(states) + 2, 1)
    return sampler(rows, argument)[: len(states)].argmax(-1).tolist()


def test_company_changes_nothing_of_a_draw() -> None:
    one, greedy = _State(Sampling(seed=3), [1, 2, 3]), _State(None, [1])
    others = [_State(Sampling(seed=seed), [1, 2]) for seed in range(5)]
    (alone,) = taken(one)
    assert taken(*others, greedy, one)[-1] == alone
    assert taken(_State(Sampling(temperature=0, seed=3), [1])) == taken(greedy)


def test_who_gave_way_and_began_again_draws_the_same_tokens() -> None:
    before, after = _State(Sampling(seed=3), [1, 2], [7, 8, 9]), _State(Sampling(seed=3), [1, 2, 7, 8], [9])
    assert taken(before) == taken(after)
