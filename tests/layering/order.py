"""order.py PROJECT: in no expression is a variable read, or its address given to another call, beside a call that is given its address: C does not say which
comes first. f(g(&x), x) may read x before g has set it, and no compiler warns, as calls do not overlap."""
import re
import sys
from pathlib import Path

TOKEN = re.compile(r"[A-Za-z_]\w*|\.?\d[\w.]*|->|\+\+|--|<<=?|>>=?|[-+*/%&|^<>=!]=|&&|\|\||::|[^\s\w]")
WORDS = {"if", "while", "switch", "for", "return", "else", "do", "case", "goto", "default"}
UNEVALUATED = {"sizeof", "_Alignof", "alignof", "__typeof__", "decltype", "offsetof", "defined", "_Static_assert", "static_assert"}
# They read what they are given the address of; as do functions whose pointers are all to const, and macros of field lists.
READERS = re.compile(r"hak_load_\w+|__atomic_load_n|[A-Z][A-Z0-9_]*")
CLOSES = {"(": ")", "[": "]", "{": "}"}


def tokens(text: str) -> list:
    """Lists for what is in brackets: the bracket, then its tokens. Each directive is a statement of its own."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)
    text = re.sub(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', "0", text)
    text = re.sub(r"^[ \t]*#[ \t]*(define[ \t]+\w+(?:\([^)]*\))?)?(.*)$", lambda m: f";{m[2] if m[1] else ''};", text.replace("\\\n", " "), flags=re.MULTILINE)
    top: list = ["{"]
    open_lists = [top]
    for token in TOKEN.findall(text):
        if token in CLOSES:
            inner = [token]
            open_lists[-1].append(inner)
            open_lists.append(inner)
        elif token in CLOSES.values():
            if len(open_lists) > 1 and CLOSES[open_lists[-1][0]] == token:
                open_lists.pop()
        else:
            open_lists[-1].append(token)
    return top[1:]


def split(items: list, at: set) -> list[list]:
    parts: list[list] = [[]]
    for item in items:
        if isinstance(item, str) and item in at:
            parts.append([])
        else:
            parts[-1].append(item)
    return parts


def is_name(item) -> bool:
    return isinstance(item, str) and re.match(r"[A-Za-z_]", item) is not None


def is_type(item) -> bool:
    """Of what is in round brackets: a cast, before which & takes an address."""
    return isinstance(item, list) and item[0] == "(" and item[-1] in ("*", "uintptr_t", "intptr_t", "size_t")


def is_operand(item) -> bool:
    """Behind which & is a binary operator."""
    return is_name(item) and item not in WORDS or isinstance(item, list) and not is_type(item) or isinstance(item, str) and item[:1].isdigit()


def overlaps(changed: str, read: str) -> bool:
    return read == changed or read.startswith((changed + ".", changed + "->")) or changed.startswith(read + ".")


readers: set[str] = set()


def find_readers(text: str) -> None:
    """Of declarations: functions that are given pointers, all of them to const."""
    for name, parameters in re.findall(r"\b\w[\w\s*]*?\b(\w+)\(([^()]*\*[^()]*)\)\s*[;{]", text):
        if all("const" in p for p in parameters.split(",") if "*" in p):
            readers.add(name)


class Effects:
    def __init__(self, changes=(), reads=(), addresses=()):
        self.changes, self.reads, self.addresses = set(changes), set(reads), set(addresses)

    def add(self, other: "Effects") -> None:
        self.changes |= other.changes
        self.reads |= other.reads
        self.addresses |= other.addresses


def beside(parts: list[Effects], found: set) -> Effects:
    """Of parts of which nothing says which comes first."""
    result = Effects()
    for part in parts:
        for a, b in ((part, result), (result, part)):
            found |= {c for c in a.changes for r in b.reads | b.changes if overlaps(c, r)}
        result.add(part)
    return result


def chain(items: list, i: int) -> tuple[str, int]:
    text = items[i]
    while i + 2 < len(items) and items[i + 1] in (".", "->") and is_name(items[i + 2]):
        text += items[i + 1] + items[i + 2]
        i += 2
    return text, i


def piece(items: list, found: set) -> Effects:
    """Operands between two sequence points."""
    parts = []
    i = 0
    while i < len(items):
        item = items[i]
        before = items[i - 1] if i > 0 else None
        if isinstance(item, list):
            called = is_name(before) and before not in WORDS or isinstance(before, list) and before[0] in "([" and not is_type(before)
            if item[0] == "(" and is_name(before) and before in UNEVALUATED:
                pass
            elif item[0] == "(" and called:
                call = beside([sequence(part, found) for part in split(item[1:], {","})], found)
                reads = is_name(before) and (READERS.fullmatch(before) or before in readers)
                parts.append(Effects(call.changes, call.reads | call.addresses) if reads else Effects(call.changes | call.addresses, call.reads))
            elif item[0] == "{":
                parts.append(block(item, found))
            else:
                parts.append(sequence(item[1:], found, {","}))
        elif is_name(item) and item not in WORDS and before not in (".", "->") and item not in UNEVALUATED:
            name, end = chain(items, i)
            takes = before == "&" and not is_operand(items[i - 2] if i > 1 else None)
            follows = items[end + 1] if end + 1 < len(items) else None
            pointers = {name[: m.start()] for m in re.finditer("->", name)}
            if isinstance(follows, list) and follows[0] == "(":
                parts.append(Effects(reads=pointers))
            elif takes:
                parts.append(Effects(reads=pointers, addresses={name}))
            elif follows == "=" and all(is_name(x) or x in ("*", "&", ".", "->") for x in items[:i]):
                parts.append(Effects(reads=pointers if items[:i][-1:] != ["*"] or is_name(items[0]) else pointers | {name}))
            elif before != "sizeof":
                parts.append(Effects(reads=pointers | {name}))
            i = end
        i += 1
    return beside(parts, found)


def sequence(items: list, found: set, more: frozenset | set = frozenset()) -> Effects:
    """Its operands at && || ? : and, where it is no argument, commas come one after the other."""
    result = Effects()
    for statement in split(items, {";"}):
        for part in split(statement, {"&&", "||", "?", ":", *more}):
            result.add(piece(part, found))
    return result


def block(item: list, found: set) -> Effects:
    """Statements, or the values of an initialiser, which stand beside each other."""
    if any(x == ";" or (isinstance(x, list) and x[0] == "{") for x in item[1:]):
        sequence(split_blocks(item[1:]), found, {","})
        return Effects()
    return beside([sequence(part, found) for part in split(item[1:], {","})], found)


def split_blocks(items: list) -> list:
    """The head of a block is no operand beside what is in it."""
    parts: list = []
    for i, item in enumerate(items):
        head = items[i - 1] if i > 0 else None
        is_body = isinstance(item, list) and item[0] == "{" and head != "=" and not is_type(head)
        parts += [";", item, ";"] if is_body else [item]
        if isinstance(item, list) and item[0] == "(" and is_name(head) and head in WORDS:
            parts.append(";")
    return parts


def faults(text: str) -> set[str]:
    found: set[str] = set()
    sequence(split_blocks(tokens(text)), found, {","})
    return found


def main() -> None:
    project = Path(sys.argv[1])
    problems = []
    files = {path: path.read_text() for folder in ("src", "include", "packaging/rust") for path in sorted((project / folder).rglob("*"))
             if path.suffix in {".c", ".h", ".cc", ".hpp"}}
    for text in files.values():
        find_readers(text)
    for path, text in files.items():
        problems += [f"{path.relative_to(project)}: {name} is read, or changed, beside a call that is given its address" for name in sorted(faults(text))]
    print("\n".join(problems) or "no operand is beside a call that changes it")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
