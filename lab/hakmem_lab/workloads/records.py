"""An order book, as a small service would keep it: JSON in and out, text, sorting, SQLite.

Needs the standard library alone. Prints a checksum that depends on its seed only, so that runs
under different allocators can be compared byte for byte. Usage: records.py [SCALE] [SEED]
"""

import hashlib
import json
import random
import re
import sqlite3
import sys

WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "jetty")


def make_orders(count: int, chance: random.Random) -> list[dict]:
    return [
        {
            "id": number,
            "customer": f"customer-{chance.randrange(count // 8 + 1):06d}",
            "note": " ".join(chance.choices(WORDS, k=chance.randrange(3, 40))),
            "lines": [
                {"item": chance.choice(WORDS), "units": chance.randrange(1, 9), "price": price}
                for price in (chance.randrange(100, 9999) for _ in range(chance.randrange(1, 6)))
            ],
        }
        for number in range(count)
    ]


def through_json(orders: list[dict]) -> list[dict]:
    """Each order to text and back, as between two services."""
    return [json.loads(json.dumps(order)) for order in orders]


def count_words(orders: list[dict]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for order in orders:
        for word in re.findall(r"\w+", order["note"].title()):
            key = f"{word}:{order['customer'][-2:]}"
            counts[key] = counts.get(key, 0) + 1
    return counts


def through_sqlite(orders: list[dict]) -> list[tuple]:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE orders(id INTEGER PRIMARY KEY, customer TEXT, note TEXT)")
    database.execute("CREATE TABLE lines(order_id INT, item TEXT, units INT, price INT)")
    database.executemany("INSERT INTO orders VALUES (:id, :customer, :note)", orders)
    database.executemany(
        "INSERT INTO lines VALUES (?, ?, ?, ?)",
        ((o["id"], x["item"], x["units"], x["price"]) for o in orders for x in o["lines"]),
    )
    database.execute("CREATE INDEX by_customer ON orders(customer)")
    database.execute("CREATE INDEX by_order ON lines(order_id)")
    rows = database.execute(
        "SELECT customer, item, sum(units * price), group_concat(DISTINCT substr(note, 1, 12)) "
        "FROM orders JOIN lines ON order_id = id GROUP BY customer, item ORDER BY 3 DESC, 1, 2"
    ).fetchall()
    database.execute("DELETE FROM lines WHERE units > 4")
    database.execute("UPDATE orders SET note = upper(note) || note WHERE id % 3 = 0")
    rows += database.execute("SELECT id, length(note) FROM orders ORDER BY note, id").fetchall()
    database.close()
    return rows


def main(scale: int, seed: int) -> None:
    digest = hashlib.sha256()
    chance = random.Random(seed)
    for _ in range(3):
        orders = through_json(make_orders(1000 * scale, chance))
        orders.sort(key=lambda order: (order["note"], order["id"]))
        digest.update(repr(sorted(count_words(orders).items())).encode())
        digest.update(repr(through_sqlite(orders)).encode())
    print(f"records scale={scale} seed={seed} checksum={digest.hexdigest()}")


if __name__ == "__main__":
    main(*(int(text) for text in [*sys.argv[1:], *["6", "42"][len(sys.argv) - 1 :]]))
