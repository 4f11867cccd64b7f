"""What the command uses of pydemumble, which is not in Debian: names of C++ and Rust by c++filt of binutils."""
import re
import subprocess

MANGLED = re.compile(r"_[ZR][\w.$@]+\Z", re.ASCII)
process = None


def demangle(name):
    """The name as the sources have it; one that is not mangled, or cannot be read, stays."""
    global process
    if not MANGLED.match(name):
        return name
    if process is None or process.poll() is not None:
        process = subprocess.Popen(
            ["c++filt", "-i"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
    process.stdin.write(name + "\n")
    process.stdin.flush()
    told = process.stdout.readline().rstrip("\n") or name
    # As LLVM's demangler writes templates, so that profiles of both compare.
    while "> >" in told:
        told = told.replace("> >", ">>")
    return told
