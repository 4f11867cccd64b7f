"""Runs a module as `python3 -m` does. Under hakmem this process, and none of its children, prints at its end the line
that proves it was served, after a walk of the whole heap.

The status a suite ends with is not passed on: failed tests are found in its report, and some fail on any allocator.
"""

import atexit
import ctypes
import os
import runpy
import sys


def prove_at_exit():
    hakmem = ctypes.CDLL(None)
    if not hasattr(hakmem, "hakmem_option_set"):
        return
    hakmem.hakmem_option_set.argtypes = (ctypes.c_char_p, ctypes.c_int64)
    hakmem.hakmem_heap_check.restype = ctypes.c_size_t
    if hakmem.hakmem_option_set(b"HAKMEM_SS_OS_STATS", 1) != 0:
        raise SystemExit("served.py: hakmem refused its option")

    def check():
        if faults := hakmem.hakmem_heap_check():
            print(f"served.py: the heap walk found {faults} faults", file=sys.stderr, flush=True)
            os._exit(70)

    atexit.register(check)


def more_tests():
    """Modules in the folder SERVED_MORE_TESTS are found as if they were part of CPython's test package."""
    if folder := os.environ.get("SERVED_MORE_TESTS"):
        import test

        test.__path__.append(folder)


prove_at_exit()
more_tests()
sys.argv = sys.argv[1:]
# The folder of this script is no place for modules to come from.
sys.path[0] = os.getcwd()
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
except SystemExit as end:
    print("module ended with", end.code)
