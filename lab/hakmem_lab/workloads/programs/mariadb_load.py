"""Loads on MariaDB, all of them from the seed: mariadb_load.py SOCKET oltp|results SIZE SEED.

oltp: six clients with transactions on one table, each on rows of its own. results: four clients
that connect anew for each query, and get thousands of rows. Prints a digest of all answers.
"""

import hashlib
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from traffic import words_of

CLIENTS, ROWS, TRANSACTION_ROWS = 6, 20_000, 2000
READERS = 4


def ask(path: str, text: str, *more: str) -> bytes:
    command = ["mariadb", "--no-defaults", "-S", path, "-u", "root", "-NB", *more]
    ran = subprocess.run(command, input=text.encode(), capture_output=True, check=False)
    if ran.returncode:
        raise SystemExit(f"mariadb: {ran.stderr.decode(errors='replace').strip()[:300]}")
    return ran.stdout


def table(chance: random.Random) -> Iterator[str]:
    """Tens of thousands of rows, in statements of a thousand."""
    yield "CREATE DATABASE bench; USE bench;"
    columns = "id INT PRIMARY KEY, shop INT, amount INT, name VARCHAR(200), note TEXT, KEY (shop)"
    yield f"CREATE TABLE item ({columns}) ENGINE = InnoDB;"
    for begin in range(0, ROWS, 1000):
        rows = []
        for number in range(begin, begin + 1000):
            name, note = " ".join(words_of(chance, 4)), " ".join(words_of(chance, number % 90))
            rows.append(
                f"({number},{chance.randrange(200)},{chance.randrange(1000)},'{name}','{note}')"
            )
        yield f"INSERT INTO item VALUES {','.join(rows)};"


def transactions(client: int, size: int, chance: random.Random) -> Iterator[str]:
    """Of one client: what it looks at is changed by nobody else."""
    least = client * TRANSACTION_ROWS
    yield "USE bench; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;"
    for _ in range(size):
        ids = [least + chance.randrange(TRANSACTION_ROWS - 100) for _ in range(8)]
        yield "BEGIN;"
        for one in ids[:4]:
            yield f"SELECT name, amount FROM item WHERE id = {one};"
        first, last = ids[4], ids[4] + 60
        yield f"SELECT sum(amount), max(name) FROM item WHERE id BETWEEN {first} AND {last};"
        yield f"SELECT DISTINCT note FROM item WHERE id BETWEEN {first} AND {last} ORDER BY note;"
        yield f"UPDATE item SET amount = amount + 1 WHERE id = {ids[5]};"
        note = " ".join(words_of(chance, chance.randrange(150)))
        yield f"UPDATE item SET note = '{note}' WHERE id = {ids[6]};"
        yield f"DELETE FROM item WHERE id = {ids[7]};"
        yield f"INSERT INTO item VALUES ({ids[7]}, 7, {chance.randrange(1000)}, 'anew', '{note}');"
        yield "COMMIT;"


QUERIES = (
    "SELECT id, name, note FROM item WHERE id BETWEEN {a} AND {a} + 6000 ORDER BY note, id",
    "SELECT a.id, b.id, a.name, b.name FROM item a JOIN item b ON b.shop = a.shop AND b.id > a.id"
    " WHERE a.id BETWEEN {a} AND {a} + 100 ORDER BY 3, 1, 2",
    "SELECT shop, count(*), group_concat(name ORDER BY id), json_arrayagg(amount) FROM item"
    " WHERE id > {a} GROUP BY shop ORDER BY shop",
    "SELECT name, upper(note), repeat(name, 9) FROM item WHERE amount < 200 AND id > {a}"
    " ORDER BY id",
)  # fmt: skip


def results(path: str, size: int, chance: random.Random) -> bytes:
    digest = hashlib.sha256()
    for _ in range(size):
        query = chance.choice(QUERIES).format(a=chance.randrange(ROWS // 2))
        digest.update(ask(path, f"SET group_concat_max_len = 10000000; {query};", "-q", "bench"))
    return digest.digest()


def await_start(path: str) -> None:
    """The port is open a little before the first query is answered."""
    for _ in range(600):
        tried = ["mariadb", "--no-defaults", "-S", path, "-u", "root", "-e", "SELECT 1"]
        if not subprocess.run(tried, capture_output=True, check=False).returncode:
            return
        time.sleep(0.05)
    raise SystemExit("mariadb does not answer")


def run(path: str, kind: str, size: int, seed: str) -> Sequence[bytes]:
    chances = [random.Random(f"{kind} {seed} {number}") for number in range(CLIENTS)]
    ask(path, "\n".join(table(random.Random(seed))))
    with ThreadPoolExecutor(CLIENTS) as threads:
        if kind == "results":
            return list(threads.map(lambda c: results(path, size, c), chances[:READERS]))
        texts = ["\n".join(transactions(i, size, c)) for i, c in enumerate(chances)]
        return list(threads.map(lambda text: ask(path, text), texts))


def main() -> None:
    path, kind, size, seed = sys.argv[1:]
    await_start(path)
    print(hashlib.sha256(b"".join(run(path, kind, int(size), seed))).hexdigest())


main()
