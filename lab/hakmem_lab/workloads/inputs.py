"""Inputs for real programs, generated once: the same text for the same size."""

import random
from pathlib import Path


def write_sql(folder: Path, size: int) -> None:
    """Tables in memory, with text, indexes, joins, updates and deletes; `size` rounds of it."""
    rounds = "\n".join(SQL_ROUND.format(round=number) for number in range(size))
    (folder / "orders.sql").write_text(SQL_START + rounds + SQL_END)


SQL_START = """\
CREATE TABLE orders(id INTEGER PRIMARY KEY, customer TEXT, note TEXT, price INT);
CREATE INDEX by_customer ON orders(customer);
"""
SQL_ROUND = """\
BEGIN;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4000)
  INSERT INTO orders SELECT {round} * 100000 + i, 'customer-' || (i * 7919 % 500),
    substr(hex(i * 2654435761) || 'abcdefghijklmnopqrstuvwxyz' || hex(i), 1, i % 90),
    i * 31 % 997 FROM n;
COMMIT;
SELECT customer, sum(price), group_concat(substr(note, 1, 5)) FROM orders
  WHERE id % 11 = {round} % 11 GROUP BY customer ORDER BY 2 DESC, 1 LIMIT 20;
UPDATE orders SET note = upper(note) || price WHERE id % 5 = {round} % 5;
SELECT count(*), total(length(a.note)) FROM orders a JOIN orders b
  ON a.customer = b.customer AND b.id = a.id + 500;
DELETE FROM orders WHERE id % 3 = {round} % 3;
"""
SQL_END = """
SELECT count(*), total(price), max(length(note)) FROM orders;
SELECT id, note FROM orders ORDER BY note, id LIMIT 200;
"""


def write_smt(folder: Path, size: int) -> None:
    """Two numbers of `size` bits to be found by their product, and a graph to be coloured."""
    chance = random.Random(size)
    lines = ["(set-option :random-seed 1)", "(set-logic QF_BV)"]
    lines += colouring(20 * size, chance)
    first, second = (chance.randrange(1 << (size - 1), 1 << size) | 1 for _ in range(2))
    lines += [f"(declare-const {name} (_ BitVec {2 * size}))" for name in "xy"]
    for name in "xy":
        lines.append(f"(assert (bvult {name} (_ bv{1 << size} {2 * size})))")
    lines.append(f"(assert (= (bvmul x y) (_ bv{first * second} {2 * size})))")
    lines += ["(assert (bvule x y))", "(check-sat)", "(get-value (x y))"]
    (folder / "problem.smt2").write_text("\n".join(lines) + "\n")


def colouring(count: int, chance: random.Random) -> list[str]:
    """Three colours for a random graph; 4.2 edges a node leave few ways to do it."""
    nodes = range(count)
    edges = {tuple(sorted(chance.sample(nodes, 2))) for _ in range(int(count * 2.1))}
    return [
        *(f"(declare-const n{i} (_ BitVec 2))" for i in nodes),
        *(f"(assert (bvult n{i} #b11))" for i in nodes),
        *(f"(assert (distinct n{a} n{b}))" for a, b in sorted(edges)),
    ]
