"""A genome with repeats, and long reads of it with errors: genome.py SIZE SEED GENOME READS.

`size` times 100 kb, read four times over, as of a nanopore: an error in ten letters.
"""

import random
import sys
from pathlib import Path

LETTERS, OTHER_STRAND = "ACGT", str.maketrans("ACGT", "TGCA")
CHROMOSOMES, COVER = 4, 4


def genome(length: int, chance: random.Random) -> str:
    """Every fifth piece is one that was there before."""
    pieces: list[str] = []
    while length > 0:
        if pieces and chance.random() < 0.2:
            pieces.append(chance.choice(pieces))
        else:
            pieces.append("".join(chance.choices(LETTERS, k=chance.randrange(500, 5000))))
        length -= len(pieces[-1])
    return "".join(pieces)


def wrong(read: str, chance: random.Random) -> str:
    """A letter in ten is another one, is gone, or has another one behind it."""
    letters = list(read)
    for at in chance.sample(range(len(letters)), len(letters) // 10):
        letters[at] = chance.choice(
            (chance.choice(LETTERS), "", letters[at] + chance.choice(LETTERS))
        )
    return "".join(letters)


def main() -> None:
    size, seed, first, second = sys.argv[1:]
    chance = random.Random(f"genome {seed}")
    all_of_it = genome(100_000 * int(size), chance)
    length = len(all_of_it) // CHROMOSOMES
    with Path(first).open("w") as file:
        for number in range(CHROMOSOMES):
            file.write(f">chr{number}\n{all_of_it[number * length : (number + 1) * length]}\n")
    left = COVER * len(all_of_it)
    with Path(second).open("w") as file:
        while left > 0:
            size_of_it = min(int(chance.lognormvariate(8.5, 0.7)) + 200, len(all_of_it) // 2)
            at = chance.randrange(len(all_of_it) - size_of_it)
            read = all_of_it[at : at + size_of_it]
            if chance.random() < 0.5:
                read = read.translate(OTHER_STRAND)[::-1]
            read = wrong(read, chance)
            file.write(f"@read{left}\n{read}\n+\n{'5' * len(read)}\n")
            left -= size_of_it


main()
