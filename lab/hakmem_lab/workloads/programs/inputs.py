"""Inputs of `hakmem programs` from a seed: inputs.py KIND SIZE SEED FILE writes one."""

import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

STATES = ("200", "200", "200", "304", "404", "500")


def words_of(chance: random.Random, count: int = 4000) -> list[str]:
    letters = "etaoinshrdlucmfwypvbg"
    return ["".join(chance.choices(letters, k=chance.randint(2, 12))) for _ in range(count)]


def zipf(chance: random.Random, words: list[str], count: int) -> list[str]:
    """Few words often, most of them seldom."""
    return [words[int(len(words) * chance.random() ** 3)] for _ in range(count)]


def text(size: int, chance: random.Random) -> Iterator[str]:
    """Lines of a log, `size` thousand of them."""
    words = words_of(chance)
    for _ in range(1000 * size):
        path = "/".join(zipf(chance, words, chance.randint(1, 5)))
        rest = " ".join(zipf(chance, words, chance.randint(2, 14)))
        address = f"10.{chance.randrange(4)}.{chance.randrange(250)}.{chance.randrange(250)}"
        number, state = chance.randrange(100_000), chance.choice(STATES)
        yield f'{address} "GET /{path}?id={number}" {state} {rest}'


def record(number: int, chance: random.Random, words: list[str]) -> dict:
    return {
        "id": number,
        "name": " ".join(zipf(chance, words, 3)),
        "price": round(chance.expovariate(0.02), 2),
        "tags": zipf(chance, words, chance.randrange(8)),
        "where": {"city": chance.choice(words), "at": [chance.random(), chance.random()]},
        "note": " ".join(zipf(chance, words, chance.randrange(30))) if number % 3 else None,
        "lines": [
            {"sku": f"{chance.choice(words)}-{chance.randrange(999)}", "count": chance.randrange(9)}
            for _ in range(chance.randrange(6))
        ],
    }


def json_text(size: int, chance: random.Random) -> Iterator[str]:
    """An array of `size` thousand records."""
    words = words_of(chance)
    for number in range(1000 * size):
        head = "," if number else "["
        yield head + json.dumps(record(number, chance, words))
    yield "]"


def xml(size: int, chance: random.Random) -> Iterator[str]:
    """A catalogue of `size` hundred items."""
    words = words_of(chance)
    yield '<?xml version="1.0"?>\n<catalogue>'
    for number in range(100 * size):
        one = record(number, chance, words)
        lines = "".join(
            f'<line sku="{line["sku"]}">{line["count"]}</line>' for line in one["lines"]
        )
        tags = "".join(f"<tag>{tag}</tag>" for tag in one["tags"])
        city = one["where"]["city"]
        yield (f'<item id="{number}" city="{city}"><name>{one["name"]}</name><price>{one["price"]}'
               f"</price>{tags}{lines}<note>{one['note'] or ''}</note></item>")  # fmt: skip
    yield "</catalogue>"


def csv(size: int, chance: random.Random) -> Iterator[str]:
    """`size` thousand rows of sales."""
    words = words_of(chance, 300)
    yield "day,shop,article,count,price,note"
    for number in range(1000 * size):
        day = f"2024-{1 + number % 12:02}-{1 + number % 28:02}"
        shop, article = zipf(chance, words, 2)
        yield (f"{day},{shop},{article},{chance.randrange(1, 20)},{chance.expovariate(0.1):.2f},"
               + " ".join(zipf(chance, words, chance.randrange(1, 6))))  # fmt: skip


def sql(size: int, chance: random.Random) -> Iterator[str]:
    """Tables, indexes and `size` rounds of inserts, joins, updates and deletes."""
    words = words_of(chance, 500)
    yield "CREATE TABLE orders(id INTEGER PRIMARY KEY, customer TEXT, note TEXT, price INT);"
    yield "CREATE INDEX by_customer ON orders(customer);"
    for turn in range(size):
        yield "BEGIN;"
        for _ in range(2000):
            note = " ".join(zipf(chance, words, chance.randrange(12)))
            values = f"'{chance.choice(words)}','{note}',{chance.randrange(1000)}"
            yield f"INSERT INTO orders(customer,note,price) VALUES({values});"
        yield "COMMIT;"
        yield ("SELECT customer,sum(price),group_concat(substr(note,1,5)) FROM orders WHERE id%7="
               f"{turn % 7} GROUP BY customer ORDER BY 2 DESC,1 LIMIT 9;")  # fmt: skip
        yield f"UPDATE orders SET note=upper(note)||price WHERE id%5={turn % 5};"
        yield ("SELECT count(*),total(length(a.note)) FROM orders a JOIN orders b "
               "ON a.customer=b.customer AND b.id=a.id+37;")  # fmt: skip
        yield f"DELETE FROM orders WHERE id%17={turn % 17};"


def colouring(count: int, chance: random.Random) -> Iterator[str]:
    """Three colours for a random graph; 4.2 edges a node leave few ways to do it."""
    nodes = range(count)
    edges = {tuple(sorted(chance.sample(nodes, 2))) for _ in range(int(count * 2.1))}
    yield from (f"(declare-const n{i} (_ BitVec 2))(assert (bvult n{i} #b11))" for i in nodes)
    yield from (f"(assert (distinct n{a} n{b}))" for a, b in sorted(edges))


def smt(size: int, chance: random.Random) -> Iterator[str]:
    """A graph to be coloured, and a product of two numbers of `size` bits to be taken apart."""
    yield from ("(set-option :random-seed 1)", "(set-logic QF_BV)")
    yield from colouring(20 * size, chance)
    first, second = (chance.randrange(1 << (size - 1), 1 << size) | 1 for _ in range(2))
    for name in "xy":
        yield f"(declare-const {name} (_ BitVec {2 * size}))"
        yield f"(assert (bvult {name} (_ bv{1 << size} {2 * size})))"
    yield f"(assert (= (bvmul x y) (_ bv{first * second} {2 * size})))"
    yield "(assert (bvule x y))(check-sat)(get-value (x y))"


def dot(size: int, chance: random.Random) -> Iterator[str]:
    words = words_of(chance, 200)
    yield "digraph g { node [shape=box];"
    for number in range(size):
        yield f'n{number} [label="{" ".join(zipf(chance, words, 2))}"];'
        for _ in range(1 if number % 3 else 2):
            yield f"n{chance.randrange(max(1, number))} -> n{number};"
    yield "}"


def postscript(size: int, chance: random.Random) -> Iterator[str]:
    """`size` pages of text and shapes."""
    words = words_of(chance)
    yield "%!PS"
    for _ in range(size):
        yield "/Times-Roman findfont 9 scalefont setfont"
        for line in range(60):
            yield f"40 {760 - 12 * line} moveto ({' '.join(zipf(chance, words, 12))}) show"
        for _ in range(150):
            at = " ".join(str(chance.randrange(500)) for _ in range(6))
            red, green = chance.random(), chance.random()
            yield f"{red:.2f} {green:.2f} .5 setrgbcolor newpath 90 90 moveto {at} curveto fill"
        yield "showpage"


def git(size: int, chance: random.Random) -> Iterator[str]:
    """A stream for git fast-import: `size` hundred commits to 60 files."""
    words = words_of(chance)
    files = {
        f"src/{words[i]}/{words[i + 99]}.c": [" ".join(zipf(chance, words, 8))] * 9
        for i in range(60)
    }
    for number in range(100 * size):
        note = " ".join(zipf(chance, words, 7))
        moment = 1_700_000_000 + 60 * number
        yield f"commit refs/heads/main\ncommitter A B <a@b> {moment} +0000"
        yield f"data {len(note)}\n{note}"
        for path in chance.sample(sorted(files), 3):
            lines = files[path]
            lines[chance.randrange(len(lines))] = " ".join(zipf(chance, words, 9))
            lines.insert(chance.randrange(len(lines)), " ".join(zipf(chance, words, 6)))
            body = "\n".join(lines)
            yield f"M 100644 inline {path}\ndata {len(body)}\n{body}"
        yield ""


def c_source(size: int, chance: random.Random) -> Iterator[str]:
    """`size` tens of functions on structures and arrays."""
    yield "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <math.h>"
    yield "struct node { struct node *next; int key; double weight; char name[24]; };"
    for number in range(10 * size):
        a, b, c = (chance.randrange(1, 99) for _ in range(3))
        yield (
            f"double step{number}(struct node *list, int *data, int count) {{\n"
            f"  double sum = {a}; for (int i = 0; i < count; i++) {{ if (data[i] % {b} == {c % b}) "
            f"sum += sqrt(data[i] * {c}.5); else data[i] ^= {a} << (i & 7); }}\n"
            f"  for (struct node *n = list; n; n = n->next) switch (n->key & 7) {{ case {a & 3}: "
            f"sum += n->weight; break; case 4: n->key += {b}; break; default: snprintf(n->name, "
            f'sizeof n->name, "%d:{a}", n->key); sum -= strlen(n->name); }}\n'
            f"  return sum{f' + step{number - 1}(list, data, count / 2)' if number else ''};\n}}"
        )


def cpp_source(size: int, chance: random.Random) -> Iterator[str]:
    """`size` classes on the standard containers."""
    for header in ("algorithm", "functional", "map", "memory", "string", "unordered_map", "vector"):
        yield f"#include <{header}>"
    yield "template <int N, class T> struct Row { std::vector<T> cells;"
    yield "  std::map<T, Row<N - 1, T>> below; };"
    yield "template <class T> struct Row<0, T> { T cell; };"
    for number in range(size):
        kind = chance.choice(("int", "double", "std::string"))
        yield (
            f"struct S{number} {{ std::unordered_map<std::string, std::vector<{kind}>> all; "
            f"Row<{chance.randint(2, 5)}, {kind}> row; std::unique_ptr<S{number}> next; }};\n"
            f"std::size_t work{number}(S{number} &s) {{\n  std::vector<{kind}> flat;\n"
            "  for (auto &[name, all] : s.all) flat.insert(flat.end(), all.begin(), all.end());\n"
            "  std::sort(flat.begin(), flat.end());\n"
            "  std::map<std::string, std::function<int(int)>> calls;\n"
            f'  calls["k{number}"] = [&](int x) {{ return x + int(flat.size()); }};\n'
            f'  return calls["k{number}"]({number}) + s.row.cells.size();\n}}'
        )


def rust_source(size: int, chance: random.Random) -> Iterator[str]:
    """`size` tens of structures with derived traits, and generic functions on them."""
    yield "#![allow(dead_code)]\nuse std::collections::{BTreeMap, HashMap};"
    for number in range(10 * size):
        kind = chance.choice(("u32", "String", "Option<Vec<u8>>"))
        yield (
            f"#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]\n"
            f"pub struct S{number} {{ a: {kind}, b: Vec<{kind}>, c: BTreeMap<String, {kind}> }}\n"
            f"pub fn work{number}(all: &[S{number}]) -> HashMap<S{number}, Vec<String>> {{\n"
            "  let mut found = HashMap::new();\n  for one in all.iter().filter(|s| s.b.len() > "
            f"{chance.randrange(9)}) {{\n    found.entry(one.clone()).or_insert_with(Vec::new)"
            '.push(format!("{:?}", one.c));\n  }\n  found\n}'
        )


def redis(size: int, chance: random.Random) -> Iterator[str]:
    """Keys of every type, in small and in large encodings."""
    for i in range(size):
        yield f"SET string:{i} {'s' * chance.randrange(700)}{i}"
        yield f"RPUSH list:{i % 37} {'l' * (i % 90)}{i}"
        yield f"HSET hash:{i % 31} field:{i} {'h' * (i % 120)}{i}"
        yield f"SADD set:{i % 29} member:{i}"
        yield f"ZADD zset:{i % 23} {i * 7919 % 1000} member:{i}"
        if i % 3 == 0:
            yield f"DEL string:{i * 5 % size}"


KINDS: dict[str, Callable[[int, random.Random], Iterator[str]]] = {
    "text": text, "json": json_text, "xml": xml, "csv": csv, "sql": sql, "smt": smt, "dot": dot,
    "ps": postscript, "git": git, "c": c_source, "cpp": cpp_source, "rust": rust_source,
    "redis": redis,
}  # fmt: skip


def main() -> None:
    kind, size, seed, path = sys.argv[1:]
    with Path(path).open("w") as file:
        for line in KINDS[kind](int(size), random.Random(f"{kind} {seed}")):
            file.write(line + "\n")


if __name__ == "__main__":
    main()
