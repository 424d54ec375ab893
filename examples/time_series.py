"""Time as a sum of periods: encode timestamps of a series, with NumPy alone.

    python examples/time_series.py

A meter is read at irregular times for ten weeks: its load rises every morning and evening, less so
at the weekend. A ridge regression (a few lines of NumPy) learns it from eight weeks and forecasts
two, from the time itself and from encodings of it.

rotary_tables gives cosine and sine of position x frequency, at any frequencies. Here positions are
seconds since 1970, about 1.7e9 of them, with fractions; the angles are exact all the same.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import numpy.typing as npt

import posenc_native as pn

Floats = npt.NDArray[np.float64]
DAY, WEEK = 86400.0, 7 * 86400.0
START = 1_700_006_400.0  # a Wednesday, 0:00 UTC, in seconds since 1970


def encode(times: Floats, harmonics: dict[float, int]) -> Floats:
    """Cosines, then sines, of the first harmonics of each period, [n, 2 * their number].

    times: [n], in seconds; harmonics: how many of each period, which is in seconds, too.
    """
    frequencies = np.concatenate(
        [2 * np.pi / period * np.arange(1, count + 1) for period, count in harmonics.items()]
    )  # radians a second
    return np.concatenate(pn.rotary_tables(times, frequencies, dtype=np.float64), axis=-1)


def load(times: Floats, noise: np.random.Generator) -> Floats:
    """What the meter shows: peaks at 8:00 and 19:00, half as high at the weekend, and noise."""
    hour, weekday = times / 3600 % 24, (times // DAY + 3) % 7  # 1970 began on a Thursday
    peaks = np.exp(-((hour - 8) ** 2) / 4) + 1.5 * np.exp(-((hour - 19) ** 2) / 6)
    mean: Floats = 2 + peaks * np.where(weekday >= 5, 0.5, 1.0)
    return mean + noise.normal(0, 0.1, len(times))


def ridge(train: Floats, target: Floats, test: Floats, penalty: float = 1.0) -> Floats:
    """Predictions of a linear regression whose weights are kept small."""
    center, scale = train.mean(0), train.std(0)
    train, test = (train - center) / scale, (test - center) / scale
    square = train.T @ train + penalty * np.eye(train.shape[1])
    weights = np.linalg.solve(square, train.T @ (target - target.mean()))
    prediction: Floats = test @ weights + target.mean()
    return prediction


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(
        prog="time_series", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--readings", type=int, default=5000, help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="600 readings")
    options = parser.parse_args()
    if options.readings < 100:
        parser.error("--readings is at least 100")
    random = np.random.default_rng(0)
    count = 600 if options.quick else options.readings
    times = START + np.sort(random.uniform(0, 10 * WEEK, count))  # with fractions of a second
    loads = load(times, random)
    past = times < START + 8 * WEEK

    code = encode(times, {DAY: 4, WEEK: 3})
    print("Similarity of a time to one later: the inner product of their encodings, day and week.")
    print("It depends on what lies between the two, not on when that is:")
    for name, later in (
        ("1 hour", 3600.0),
        ("12 hours", DAY / 2),
        ("1 day", DAY),
        ("3.5 days", WEEK / 2),
        ("7 days", WEEK),
    ):
        later_code = encode(times + later, {DAY: 4, WEEK: 3})
        products = (code * later_code).sum(1) / 7  # 7 pairs, whose squares add up to 1 each
        spread = np.ptp(products)
        print(f"  {name:9} {products.mean():6.3f}   the same for all {count} times to {spread:.0e}")

    print("\nForecast of the last two weeks, error as a share of the spread of the load")
    seconds = times[:, None] - START
    for name, columns in (
        ("time, its square and cube", np.hstack([seconds, seconds**2, seconds**3])),
        ("hour of the day, a number", seconds / 3600 % 24),
        ("day: 4 harmonics", encode(times, {DAY: 4})),
        ("day: 4, week: 3 harmonics", code),
        ("week: 40 harmonics", encode(times, {WEEK: 40})),
    ):
        prediction = ridge(columns[past], loads[past], columns[~past])
        error = np.sqrt(np.mean((prediction - loads[~past]) ** 2)) / loads[~past].std()
        print(f"  {name:27} {columns.shape[1]:3} columns   {error:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
