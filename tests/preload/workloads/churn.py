"""Allocation-heavy work with the standard library, printing checksums only.

Every result is deterministic; what differs between runs (thread timing,
addresses) never reaches the output.
"""

import hashlib
import json
import multiprocessing
import pickle
import queue
import re
import sqlite3
import subprocess
import sys
import threading
import zlib
from random import Random


def digest(value):
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def containers(seed, rounds):
    """Lists, dicts, strings and bytes of many sizes, replaced in random order."""
    random = Random(seed)
    table = {}
    for i in range(rounds):
        key = random.randrange(rounds // 4 + 1)
        kind = i % 4
        if kind == 0:
            table[key] = [random.random() for _ in range(random.randrange(1, 60))]
        elif kind == 1:
            table[key] = {n: str(n * seed) for n in range(random.randrange(1, 30))}
        elif kind == 2:
            table[key] = "x" * random.randrange(2000)
        else:
            table.pop(key, None)
    grown = bytearray()
    for i in range(2000):
        grown += bytes([i & 255]) * random.randrange(1, 600)
        if i % 500 == 499:
            del grown[: len(grown) // 2]
    return digest((sorted(table.items()), zlib.crc32(grown)))


def documents(seed, count):
    """Round trips through json, pickle and zlib, and regular expressions."""
    random = Random(seed)
    rows = [
        {"id": i, "name": f"user{random.randrange(1000)}", "tags": [str(random.random()) for _ in range(5)]}
        for i in range(count)
    ]
    text = json.dumps(rows)
    packed = zlib.compress(pickle.dumps(json.loads(text), protocol=4), 6)
    again = pickle.loads(zlib.decompress(packed))
    assert again == rows
    words = re.findall(r"user(\d+)", text)
    replaced = re.sub(r"0\.(\d{3})\d*", lambda m: m.group(1), text)
    return digest((len(words), sum(map(int, words)), zlib.crc32(replaced.encode()), zlib.crc32(packed)))


def database(seed):
    db = sqlite3.connect(":memory:")
    random = Random(seed)
    db.execute("create table t (id integer primary key, k text, v real)")
    db.executemany(
        "insert into t (k, v) values (?, ?)",
        ((f"k{random.randrange(500)}", random.random()) for _ in range(5000)),
    )
    db.execute("create index t_k on t (k)")
    rows = db.execute("select k, count(*), round(sum(v), 6) from t group by k order by k").fetchall()
    db.close()
    return digest(rows)


def in_threads(function, seeds):
    results = {}
    threads = [threading.Thread(target=lambda s=s: results.__setitem__(s, function(s))) for s in seeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[s] for s in seeds]


def handed_over(producers, items):
    """Blocks allocated in one thread and freed in another."""
    channel = queue.Queue(64)
    total = [0, 0]

    def produce(seed):
        random = Random(seed)
        for _ in range(items):
            channel.put(bytes([seed]) * random.randrange(1, 5000))
        channel.put(None)

    def consume():
        ended = 0
        while ended < producers:
            block = channel.get()
            if block is None:
                ended += 1
            else:
                total[0] += len(block)
                total[1] ^= zlib.crc32(block)

    threads = [threading.Thread(target=produce, args=(s + 1,)) for s in range(producers)]
    threads.append(threading.Thread(target=consume))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tuple(total)


def forked(seed):
    return containers(seed, 4000), documents(seed, 200)


def fork_beside_busy_threads(scale):
    """Forks while other threads allocate: a child must find no lock taken."""
    stop = threading.Event()

    def busy(seed):
        random = Random(seed)
        while not stop.is_set():
            [bytes(random.randrange(1, 9000)) for _ in range(50)]

    threads = [threading.Thread(target=busy, args=(s,)) for s in range(2)]
    for thread in threads:
        thread.start()
    try:
        with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=2) as pool:
            return pool.map(forked, range(4 * scale), chunksize=1)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def children(count):
    code = "import json, sys; d = json.load(sys.stdin); print(sum(len(v) for v in d.values()))"
    outputs = []
    for i in range(count):
        document = json.dumps({str(n): "y" * (n % (97 + i)) for n in range(3000)})
        done = subprocess.run(
            [sys.executable, "-c", code], input=document, stdout=subprocess.PIPE, text=True, check=True
        )
        outputs.append(done.stdout.strip())
    return outputs


def main():
    scale = int(sys.argv[1])
    print("containers", containers(1, 30000 * scale))
    print("documents", documents(2, 2000 * scale))
    print("database", database(3))
    print("threads", in_threads(lambda s: (containers(s, 5000), documents(s, 300), database(s)), range(4)))
    print("handed over", handed_over(3, 3000 * scale))
    print("fork", digest(fork_beside_busy_threads(scale)))
    print("children", children(3))


if __name__ == "__main__":
    main()
