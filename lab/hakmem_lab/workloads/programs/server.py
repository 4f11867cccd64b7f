"""The server of http_load.py for gunicorn, without sessions: each worker would have its own."""

import hashlib
import json
import zlib
from string import Template

ROW = Template('<tr><td>$number</td><td class="name">$name</td><td>$price</td></tr>')


def page(count: int) -> bytes:
    rows = (
        ROW.substitute(number=i, name=f"article {i * 7919 % 1000}", price=f"{i * 31 % 97}.00")
        for i in range(count)
    )
    return ("<html><body><table>\n" + "\n".join(rows) + "\n</table></body></html>\n").encode()


def order(data: bytes) -> bytes:
    given = json.loads(data)
    lines = [
        {**line, "total": line["count"] * line["price"], "words": line["note"].split(" ")}
        for line in given["lines"]
    ]
    made = {"id": hashlib.sha256(data).hexdigest(), "customer": given["customer"], "lines": lines}
    return json.dumps({**made, "sum": sum(line["total"] for line in lines)}).encode()


def application(environ, start_response):
    _, kind, *rest = environ["PATH_INFO"].split("/")
    if kind == "page":
        body = zlib.compress(page(int(rest[0])))
    elif kind == "orders":
        body = zlib.compress(order(environ["wsgi.input"].read()))
    else:
        body = b"blob" * (int(rest[0]) // 4)
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
