"""Fit the sine and cosine polynomials of csrc/core/phase.h (Remez exchange, mpmath).

Over |t| <= 1/8 turn, with y = t * t,

    sin(2 pi t) = t * (2 pi + y * S(y))      cos(2 pi t) = 1 + y * C(y)

S minimizes the absolute error of the sine, C that of the cosine, both exact at t = 0. The first
coefficient of the sine, 2 pi, is printed as two numbers: the error of its rounding would otherwise
be the largest of all.

Run: python scripts/fit_sincos.py
"""

from collections.abc import Callable

import mpmath as mp

mp.mp.dps = 50


def remez(
    target: Callable[[mp.mpf], mp.mpf], weight: Callable[[mp.mpf], mp.mpf], terms: int, end: mp.mpf
) -> tuple[list[mp.mpf], mp.mpf]:
    """Coefficients c[k] of y^k closest to `target` on [0, end], in the weighted maximum norm."""
    count = terms + 1
    nodes = [end * (1 - mp.cos(mp.pi * (k + 0.5) / count)) / 2 for k in range(count)]
    grid = [end * (1 - mp.cos(mp.pi * k / 2000)) / 2 for k in range(2001)]
    coefficients: list[mp.mpf] = []
    for _ in range(12):
        rows = [[y**k for k in range(terms)] + [(-1) ** i / weight(y)] for i, y in enumerate(nodes)]
        solution = mp.lu_solve(mp.matrix(rows), mp.matrix([target(y) for y in nodes]))
        coefficients = [solution[k] for k in range(terms)]
        error = [weight(y) * (mp.polyval(coefficients[::-1], y) - target(y)) for y in grid]
        # One extremum for each run of equal sign.
        extrema: list[int] = []
        for i, e in enumerate(error):
            if extrema and mp.sign(e) == mp.sign(error[extrema[-1]]):
                if abs(e) > abs(error[extrema[-1]]):
                    extrema[-1] = i
            else:
                extrema.append(i)
        while len(extrema) > count:
            extrema.pop(0 if abs(error[extrema[0]]) < abs(error[extrema[-1]]) else -1)
        if len(extrema) < count:
            break
        nodes = [grid[i] for i in extrema]
    return coefficients, max(abs(e) for e in error)


def main() -> None:
    tau = 2 * mp.pi
    end = mp.mpf(1) / 64
    tiny = mp.mpf(10) ** -12

    def sine(y: mp.mpf) -> mp.mpf:
        y = max(y, tiny)
        t = mp.sqrt(y)
        return (mp.sin(tau * t) / t - tau) / y

    def cosine(y: mp.mpf) -> mp.mpf:
        y = max(y, tiny)
        return (mp.cos(tau * mp.sqrt(y)) - 1) / y

    for name, sine_terms, cosine_terms in (("float32", 3, 4), ("float64", 6, 7)):
        digits = 9 if name == "float32" else 17
        s, s_error = remez(sine, lambda y: mp.sqrt(max(y, tiny)) * max(y, tiny), sine_terms, end)
        c, c_error = remez(cosine, lambda y: max(y, tiny), cosine_terms, end)
        print(
            f"{name}: error of the sine {mp.nstr(s_error, 3)}, of the cosine {mp.nstr(c_error, 3)}"
        )
        print("  sine  ", [mp.nstr(x, digits) for x in s])
        print("  cosine", [mp.nstr(x, digits) for x in c])


if __name__ == "__main__":
    main()
