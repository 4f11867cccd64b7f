"""numpy expressions with temporaries, of 8 KB to 8 MB. Usage: arrays.py SIZE SEED"""

import sys

import numpy

size, seed = map(int, sys.argv[1:])
chance = numpy.random.default_rng(seed)
total = 0.0
for _ in range(size):
    for length in (1_000, 30_000, 300_000, 1_000_000):
        a, b = chance.random(length), chance.random(length)
        c = a * 2 + b * b - (a - b) / (1 + numpy.abs(a))
        total += float(numpy.sqrt(c[c > 0.5] + 1).sum()) + float(numpy.sort(c[::7])[-1])
    rows = [chance.random(40) for _ in range(4000)]
    total += float(numpy.stack(rows).sum())
print(f"{total:.3f}")
