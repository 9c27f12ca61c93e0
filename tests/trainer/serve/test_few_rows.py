"""Few rows are computed in the quicker of two ways, which say the same."""

import copy

import pytest
import torch
from torch import nn

from trainer.serve import few_rows
from trainer.serve.few_rows import FewRows, quicken, weights_first


@pytest.fixture(autouse=True)
def _nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_rows, "_found", {})
    monkeypatch.setattr(few_rows, "TIMED", 1)


def quick(module: nn.Module, monkeypatch: pytest.MonkeyPatch, weights_are_first: bool = True) -> list[str]:
    """Names of the layers that compute in another way than before."""
    monkeypatch.setattr(few_rows, "WORTH", 1)
    monkeypatch.setattr(few_rows, "GAIN", 1e9 if weights_are_first else 0.0)
    quicken(module)
    return [name for name, part in module.named_modules() if isinstance(vars(part).get("forward"), FewRows)]


@pytest.mark.parametrize("rows", range(1, 12))
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_both_ways_say_the_same_of_any_number_of_rows(rows: int, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(96, 40, bias)
    inputs = torch.randn(1, rows, 96)
    expected = layer(inputs)
    assert quick(layer, monkeypatch) == [""]
    found = layer(inputs)
    assert found.shape == expected.shape
    assert found.is_contiguous()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(weights_first(inputs[0], layer.weight), inputs[0] @ layer.weight.T)


@torch.inference_mode()
def test_rows_may_be_of_any_shape_and_hooks_still_see_them(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(8, 6)
    seen: list[torch.Size] = []
    layer.register_forward_hook(lambda _layer, _inputs, output: seen.append(output.shape))
    inputs = torch.randn(2, 3, 8)
    expected = layer(inputs)
    assert quick(layer, monkeypatch) == [""]
    torch.testing.assert_close(layer(inputs), expected)
    torch.testing.assert_close(layer(inputs[0, 0]), expected[0, 0])
    assert seen == [expected.shape, expected.shape, expected[0, 0].shape]


def test_where_the_usual_way_is_quicker_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert quick(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), monkeypatch, weights_are_first=False) == []


def test_small_matrices_and_those_of_other_kinds_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    small = nn.Linear(8, 8)
    quicken(small)
    assert "forward" not in vars(small), "it stays in a processor's cache"

    class Other(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs) + 1

    kinds = nn.ModuleDict(
        {"other": Other(8, 8), "halves": nn.Linear(8, 8).half(), "far": nn.Linear(8, 8, device="meta")}
    )
    assert quick(kinds, monkeypatch) == []


@torch.inference_mode()
def test_a_twin_computes_with_its_own_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(8, 8)
    assert quick(layer, monkeypatch) == [""]
    twin = copy.deepcopy(layer)
    twin.weight.zero_()
    inputs = torch.randn(2, 8)
    torch.testing.assert_close(twin(inputs), layer.bias.expand(2, 8))
    torch.testing.assert_close(layer(inputs), inputs @ layer.weight.T + layer.bias)


def test_a_size_is_timed_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[int] = []
    monkeypatch.setattr(few_rows, "_timed", lambda weights: times.append(len(weights)) or frozenset())
    monkeypatch.setattr(few_rows, "WORTH", 1)
    quicken(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)))
    quicken(nn.Linear(8, 8))
    assert times == [2, 1]


def test_of_a_large_matrix_only_a_part_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    monkeypatch.setattr(few_rows, "TIMED", 1024)
    monkeypatch.setattr(few_rows, "WORTH", 1)
    monkeypatch.setattr(
        few_rows, "_seconds", lambda _way, _rows, some: read.append(sum(one.nbytes for one in some)) or 1.0
    )
    quicken(nn.Linear(8, 4096))
    assert set(read) == {1024}
    read.clear()
    quicken(nn.Sequential(*(nn.Linear(8, 8) for _ in range(6))))
    assert set(read) == {1024}
