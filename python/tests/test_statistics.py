from __future__ import annotations

import numpy as np
import pytest

from hakmem.measuring.statistics import (
    exact_median_interval,
    median_interval,
    net_speed_ratio,
    speed_ratio,
    variation,
)


def test_interval_encloses_the_median_and_repeats_with_its_seed():
    values = [1.0, 1.1, 0.9, 1.05, 0.95, 1.2, 0.8, 1.0, 1.02, 0.98]
    found = median_interval(values, seed=1)
    assert found.median == pytest.approx(1.0)
    assert 0.8 <= found.low <= found.median <= found.high <= 1.2
    assert found == median_interval(values, seed=1)


def test_interval_is_wider_for_noisier_pairs():
    calm = median_interval([1 + 0.001 * i for i in range(15)], seed=1)
    noisy = median_interval([1 + 0.1 * i for i in range(15)], seed=1)
    assert noisy.high - noisy.low > 10 * (calm.high - calm.low)


def test_few_pairs_have_no_interval():
    found = median_interval([1.0, 2.0, 3.0], seed=1)
    assert (found.median, found.low, found.high) == (2.0, None, None)


def test_no_values_is_an_error():
    with pytest.raises(ValueError, match="no values"):
        median_interval([], seed=1)


def test_ratio_above_one_means_the_baseline_is_faster():
    assert speed_ratio([1.0] * 6, [2.0] * 6, seed=1).median == 2.0


def test_ratio_pairs_rounds_and_so_survives_drift():
    drift = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    found = speed_ratio(drift, [1.5 * cost for cost in drift], seed=1)
    assert (found.low, found.median, found.high) == (1.5, 1.5, 1.5)


def test_net_ratio_takes_the_floor_from_both_sides():
    found = net_speed_ratio([10.0] * 6, [12.0] * 6, [8.0] * 6, seed=1)
    assert found.median == pytest.approx(2.0)


def test_net_ratio_counts_the_unmeasurable_as_the_resolution():
    # 12 over a floor of 10, and a baseline at or below the floor: net 2 over 1 % of 10.
    for ours in (10.0, 9.0):
        found = net_speed_ratio([ours] * 6, [12.0] * 6, [10.0] * 6, seed=1)
        assert found.median == pytest.approx(20.0)
        assert found.low == pytest.approx(20.0)


def test_net_ratio_is_absent_when_the_other_side_is_at_the_floor():
    assert net_speed_ratio([12.0] * 6, [8.0] * 6, [9.0] * 6, seed=1) is None
    assert net_speed_ratio([], [], [], seed=1) is None


def test_variation():
    assert variation([5.0]) == 0.0
    assert variation([1.0, 1.0, 1.0]) == 0.0
    assert variation([9.0, 11.0]) == pytest.approx(2**0.5 / 10)


def test_exact_interval_covers_the_median_as_often_as_it_says():
    generator = np.random.default_rng(11)
    # Skewed, so that nothing but the sign test would be right.
    samples = generator.exponential(1.0, (400, 25))
    found = [exact_median_interval(sample, 0.95) for sample in samples]
    covered = sum(interval.low <= np.log(2) <= interval.high for interval in found)
    assert covered >= 0.93 * 400


def test_exact_interval_is_absent_when_the_confidence_is_out_of_reach():
    found = exact_median_interval([1.0, 2.0, 3.0, 4.0, 5.0], 0.99)
    assert (found.median, found.low, found.high) == (3.0, None, None)
