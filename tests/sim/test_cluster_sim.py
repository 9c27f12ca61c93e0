"""The simulated cluster: a small one from end to end, and the mending of broken pipelines."""

import pytest

from benchmarks.planning import cluster_sim


@pytest.mark.parametrize("setup", cluster_sim.SETUPS)
def test_a_small_cluster_is_planned_played_and_priced(setup: cluster_sim.Setup) -> None:
    row = cluster_sim.case("7B", 8, setup)
    assert row["stages"] * row["replicas"] == row["used"] <= 8
    assert 0 < row["tokens_per_s_with_churn"] <= row["tokens_per_s"]
    assert 0 < row["busy"] <= 1.01
    assert row["limit"] in cluster_sim.show(row)
    assert 0.7 < row["schedule_over_formula"] < 1.4
    assert row["pay_per_billion_tokens"] == pytest.approx(6 * 6.74e9 * 1e9 / 1e15 * 0.002, rel=0.01)


def test_a_model_too_large_for_all_homes_is_refused_with_the_planners_words() -> None:
    assert "the model needs about" in cluster_sim.case("70B", 8, cluster_sim.SETUPS[0])["refused"]


def test_the_least_broken_pipeline_is_mended_first_out_of_spares_then_out_of_the_most_broken() -> None:
    empty = [0, 1, 2]
    assert cluster_sim.mended(empty, 1, 4) == (0, {1})
    assert empty == [0, 0, 2]
    empty = [1, 3]
    assert cluster_sim.mended(empty, 0, 4) == (0, {0})
    assert empty == [0, 4]
    empty = [4, 4]
    assert cluster_sim.mended(empty, 5, 4) == (1, {0})
    assert empty == [0, 4]
    empty = [1]
    assert cluster_sim.mended(empty, 0, 4) == (0, set())
