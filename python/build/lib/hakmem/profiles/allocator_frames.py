"""Which functions of a stack only hand a request on: the allocator's own, and wrappers of malloc.

A headline names their caller. What is known of them is data, in the lists below; `--skip` adds to
them.
"""

from __future__ import annotations

import re

# The entry points of malloc and of hakmem, in C, C++ and Rust: what the innermost one has called is
# of the allocator, whatever its name (compare src/report/pprof.c, allocator).
ENTRIES = re.compile(
    r"(hak|hakmem)_\w+|(<&?)?hakmem(_sys)?::.*|__(rust|rdl|rg|rustc)_\w*alloc\w*|"
    r"malloc|calloc|realloc|reallocarray|aligned_alloc|memalign|posix_memalign|p?valloc|"
    r"operator new(\[\])?|(__libc|tc|je|mi|_rjem)_\w*(malloc|calloc|realloc|alloc|memalign)"
)
# And of its Rust crate where debug information has lines alone, its header for C++.
ENTRY_FILES = re.compile(r"/hakmem(-sys)?(-\d[^/]*)?/src/\w+\.rs$|/hakmem/hakmem\.hpp$")
# Those run code of the program's.
RUNS_CODE = re.compile(r"\b(scope|within|enter|forbid|with)\b")
# What programs and libraries call their own malloc: a few letters, the name of a function of libc,
# and what kind of it that is.
WRAPPERS = re.compile(
    r"_*[a-z]{0,8}\d?_?[a-z]{0,4}_?(malloc|calloc|realloc|zalloc|memalign|valloc|strn?dup|memdup)"
    r"(_?(usable|internal|impl|array|aligned|zero|zeroed|raw|safe|try|new|or_die|n|\d+|x|z|a))*",
    re.IGNORECASE,
)
NAMED = (
    # C's library
    "getdelim", "getline", "open_memstream", "vasprintf", "asprintf",
    # glib, SQLite, PostgreSQL, nginx, APR, libxml2, OpenSSL, FFmpeg
    "g_new", "g_new0", "g_slice_alloc", "g_slice_alloc0", "sqlite3DbMallocRawNN", "palloc",
    "palloc0", "repalloc", "AllocSetAlloc", "AllocSetRealloc", "MemoryContextAlloc",
    "MemoryContextAllocZero", "ngx_alloc", "ngx_palloc", "ngx_pnalloc", "ngx_pcalloc",
    "ngx_palloc_large", "ngx_create_pool", "apr_palloc", "xmlMallocAtomic", "CRYPTO_memdup",
    "av_mallocz", "av_fast_malloc",
    # Python, Ruby, PHP, Perl, Lua
    "PyMem_New", "_PyObject_New", "objspace_xmalloc0", "objspace_xcalloc", "objspace_xrealloc",
    "ruby_xmalloc2_body", "_safe_emalloc", "Perl_safesysmalloc", "Perl_safesyscalloc",
    "Perl_safesysrealloc", "luaM_malloc_", "luaM_realloc_", "luaM_saferealloc_", "l_alloc",
)  # fmt: skip
OTHERS = frozenset(NAMED)


def is_entry(function: str, file: str) -> bool:
    is_one = ENTRIES.fullmatch(function) or ENTRY_FILES.search(file)
    return bool(is_one) and not RUNS_CODE.search(function)


def is_wrapper(function: str) -> bool:
    """A C function: a method or a path of a namespace is somebody's own."""
    return function in OTHERS or WRAPPERS.fullmatch(function) is not None
