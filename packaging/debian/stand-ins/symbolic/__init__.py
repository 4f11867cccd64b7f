"""What the command uses of symbolic, which is not in Debian: functions, files and lines of addresses, by addr2line of binutils.

addr2line reads DWARF as gcc and clang write it, inlined functions included; it is slower, and starts one process a file.
"""
