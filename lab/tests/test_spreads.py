import random

import numpy as np
import pytest
from hakmem.measuring.statistics import exact_median_interval, variation
from scipy import stats

from hakmem_lab.spreads import trend, variation_interval


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99, 0.9999])
def test_exact_interval_is_that_of_the_quantile_test(confidence):
    noise = random.Random(7)
    for count in (1, 2, 5, 6, 7, 20, 33, 100):
        values = [noise.expovariate(1) for _ in range(count)]
        found = exact_median_interval(values, confidence)
        expected = stats.quantile_test(values, p=0.5).confidence_interval(confidence)
        if np.isfinite([expected.low, expected.high]).all():
            assert (found.low, found.high) == (expected.low, expected.high), count
        else:
            assert (found.low, found.high) == (None, None), count


def test_variation_lies_in_its_interval():
    values = list(np.random.default_rng(3).normal(100, 5, 30))
    low, high = variation_interval(values, 1)
    assert low < variation(values) < high
    assert 0.02 < low < high < 0.09
    assert variation_interval(values, 1) == (low, high)
    assert variation_interval([3.0] * 9, 1) == (0.0, 0.0)
    assert variation_interval([1.0, 2.0, 3.0, 4.0], 1) is None


def test_trend_is_the_rise_over_the_run_as_a_share_of_the_start():
    found = trend([100 + 2 * i for i in range(11)])
    assert found.change == pytest.approx(0.2)
    assert found.low == pytest.approx(0.2)


def test_trend_is_not_moved_by_a_few_far_values():
    values = [100.0] * 40
    values[3] = values[20] = values[39] = 1000.0
    assert trend(values).change == pytest.approx(0.0, abs=1e-9)


def test_trend_must_start_above_zero():
    with pytest.raises(ValueError, match="above zero"):
        trend([0.0, 0.0, 0.0])
