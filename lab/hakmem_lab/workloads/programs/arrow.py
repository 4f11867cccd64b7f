"""Arrow: tables of sales made, packed as Parquet, read, filtered, grouped, joined, sorted; in two
threads. Its memory pool is malloc's. Usage: arrow.py PORT SIZE SEED
"""

import hashlib
import io
import random
import sys

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from stay import work_asked
from traffic import words_of

ROWS = 60_000


def sales(chance: random.Random) -> pa.Table:
    articles = [f"article {i}" for i in range(700)]
    return pa.table(
        {
            "id": pa.array(range(ROWS)),
            "article": pa.array(chance.choices(articles, k=ROWS)),
            "shop": pa.array(chance.choices(range(200), k=ROWS), pa.int32()),
            "price": pa.array([chance.randrange(10_000) for _ in range(ROWS)]),
            "note": pa.array([" ".join(words_of(chance, i % 13)) or None for i in range(ROWS)]),
            "tags": pa.array([list(range(i % 5)) for i in range(ROWS)], pa.list_(pa.int16())),
        }
    )


def round_trip(table: pa.Table, codec: str) -> pa.Table:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression=codec, row_group_size=10_000)
    return pq.read_table(pa.BufferReader(sink.getvalue()))


def as_text(table: pa.Table) -> pa.Table:
    sink = io.BytesIO()
    pa.csv.write_csv(table.drop_columns(["tags"]), sink)
    return pa.csv.read_csv(io.BytesIO(sink.getvalue()))


def questions(table: pa.Table, chance: random.Random) -> list[pa.Table]:
    some = table.filter(pc.less(table["price"], chance.randrange(3000, 9000)))
    sums = some.group_by(["shop", "article"]).aggregate([("price", "sum"), ("id", "count")])
    shops = some.group_by("shop").aggregate([("price", "mean"), ("note", "count_distinct")])
    joined = sums.join(shops, "shop")
    words = pc.split_pattern(pc.fill_null(some["note"], ""), " ")
    often = pc.value_counts(pc.list_flatten(words).combine_chunks())
    return [
        joined.sort_by(
            [("price_sum", "descending"), ("shop", "ascending"), ("article", "ascending")]
        ),
        some.take(pc.sort_indices(some, [("note", "ascending"), ("id", "ascending")])),
        pa.table({"word": often.field(0), "count": often.field(1)}).sort_by("word"),
        pa.table(
            {"upper": pc.utf8_upper(some["note"]), "code": some["article"].dictionary_encode()}
        ),
    ]


def work(size: int, seed: str) -> str:
    chance, digest = random.Random(seed), hashlib.sha256()
    table = sales(chance)
    for turn in range(size):
        table = round_trip(table, chance.choice(("snappy", "zstd", "none")))
        for answer in questions(table, chance):
            digest.update(str(answer.slice(0, 50).to_pydict()).encode())
            digest.update(str((answer.num_rows, answer.nbytes)).encode())
        if turn % 4 == 0:
            digest.update(str(as_text(table).num_rows).encode())
    return digest.hexdigest()


port, count, seed = sys.argv[1:]
if pa.default_memory_pool().backend_name != "system":
    raise SystemExit("Arrow's memory is not malloc's: ARROW_DEFAULT_MEMORY_POOL=system")
pa.set_cpu_count(2)
work_asked(int(port), lambda: work(int(count), seed))
