"""library.py JE MAIN LINK: the library has jemalloc's public names besides the main library's, and no more; its SONAME is what jemalloc's programs ask for, and LINK is it."""
import subprocess
import sys
from pathlib import Path

je, main, link = sys.argv[1:]
JEMALLOC = {
    "malloc", "calloc", "posix_memalign", "aligned_alloc", "realloc", "free", "memalign", "valloc", "malloc_usable_size", "mallocx", "rallocx", "xallocx",
    "sallocx", "dallocx", "sdallocx", "nallocx", "mallctl", "mallctlnametomib", "mallctlbymib", "malloc_stats_print", "malloc_message", "malloc_conf", "malloc_conf_2_conf_harder",
}


def names(path: str) -> set[str]:
    lines = subprocess.run(["nm", "-D", "--defined-only", path], check=True, capture_output=True, text=True).stdout.splitlines()
    return {line.split()[-1] for line in lines}


assert JEMALLOC <= names(je), JEMALLOC - names(je)
assert names(je) == names(main) | JEMALLOC, names(je) ^ (names(main) | JEMALLOC)
dynamic = subprocess.run(["readelf", "-d", je], check=True, capture_output=True, text=True).stdout
assert "soname: [libjemalloc.so.2]" in dynamic, dynamic
assert Path(link).resolve() == Path(je).resolve()
