"""Inputs for real programs, generated once: the same text for the same size."""

import subprocess
import sys
from pathlib import Path

LAB_INPUTS = Path(__file__).resolve().parents[2] / "lab/hakmem_lab/workloads/programs/inputs.py"


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
    command = [sys.executable, str(LAB_INPUTS), "smt", str(size), "1", str(folder / "problem.smt2")]
    subprocess.run(command, check=True)
