"""Says as JSON which file a library has each allocation function from, and tries them.

Run as a script with the library's path, in a process of its own with that library preloaded.
"""

import ctypes
import json
import sys

FUNCTIONS = (
    "malloc",
    "calloc",
    "realloc",
    "free",
    "posix_memalign",
    "aligned_alloc",
    "memalign",
    "malloc_usable_size",
)
OPERATORS = ("_Znwm", "_ZdlPv")


class Location(ctypes.Structure):
    """What dladdr tells of an address (Dl_info)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def provider(process: ctypes.CDLL, library: ctypes.CDLL, name: str) -> str:
    """The file that holds the library's function of this name, or an empty string.

    Asked of the library: in the process, the executable can stand for a function it calls.
    """
    try:
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p)
    except AttributeError:
        return ""
    found = Location()
    if not process.dladdr(address, ctypes.byref(found)) or not found.file:
        return ""
    return found.file.decode(errors="replace")


def trial(process: ctypes.CDLL) -> str:
    """What goes wrong in a short use of the functions, or an empty string."""
    process.malloc.restype = process.realloc.restype = process.calloc.restype = ctypes.c_void_p
    process.aligned_alloc.restype = ctypes.c_void_p
    process.malloc_usable_size.restype = ctypes.c_size_t
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    block = process.malloc(size(100))
    if not block or process.malloc_usable_size(pointer(block)) < 100:
        return "malloc(100) gives no block of 100 bytes"
    ctypes.memset(block, 7, 100)
    block = process.realloc(pointer(block), size(5000))
    if not block or ctypes.string_at(block, 100) != b"\7" * 100:
        return "realloc loses the contents"
    process.free(pointer(block))
    zeroed = process.calloc(size(100), size(10))
    if not zeroed or any(ctypes.string_at(zeroed, 1000)):
        return "calloc gives memory that is not zero"
    process.free(pointer(zeroed))
    aligned = process.aligned_alloc(size(256), size(512))
    if not aligned or aligned % 256:
        return "aligned_alloc(256, 512) is not aligned"
    process.free(pointer(aligned))
    return ""


def main() -> None:
    process, library = ctypes.CDLL(None), ctypes.CDLL(sys.argv[1])
    report = {name: provider(process, library, name) for name in (*FUNCTIONS, *OPERATORS)}
    print(json.dumps({"providers": report, "trial": trial(process)}))


if __name__ == "__main__":
    main()
