"""Archive, Object and SymCache as far as hakmem.profiles.symbols uses them."""
import re
import subprocess
from dataclasses import dataclass

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from symbolic.exceptions import SymbolicError

# No object has code there. Its answer tells that the answer before it is complete.
NOWHERE = "0xffffffffffffffff"
PLACE = re.compile(r"(?P<file>.*):(?P<line>\d+|\?)(?: \(discriminator \d+\))?\Z")


@dataclass(frozen=True)
class SourceLocation:
    symbol: str
    full_path: str
    line: int


class Archive:
    @classmethod
    def open(cls, path):
        try:
            with open(path, "rb") as file:
                elf = ELFFile(file)
                names = {section.name for section in elf.iter_sections() if section["sh_type"] != "SHT_NOBITS"}
                starts = [segment["p_vaddr"] for segment in elf.iter_segments("PT_LOAD")]
        except ELFError as error:
            raise SymbolicError(f"{path}: {error}") from error
        archive = cls()
        archive.objects = [Object(path, names, starts[0] if starts else 0)]
        return archive

    def iter_objects(self):
        return iter(self.objects)


class Object:
    def __init__(self, path, sections, start):
        self.path, self.start = path, start
        held = {"debug": (".debug_info", ".zdebug_info"), "symtab": (".symtab",)}
        self.features = {name for name, wanted in held.items() if sections.intersection(wanted)}

    def make_symcache(self):
        return SymCache(self)


class SymCache:
    def __init__(self, one):
        self.start = one.start
        self.command = ["addr2line", "-a", "-f", "-i", "-e", one.path]
        self.process = None

    def lookup(self, relative):
        """The functions at an address, the innermost first; `relative` to where the object's first segment begins."""
        try:
            answer = self.ask(hex(relative + self.start))
        except OSError as error:
            raise SymbolicError(f"addr2line: {error}") from error
        pairs = zip(answer[::2], answer[1::2])
        return [self.location(function, PLACE.match(place)) for function, place in pairs if function != "??"]

    def ask(self, address):
        # A session of its own: Ctrl-C at the terminal is for the command, which ends it by closing the pipe.
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True, errors="replace", start_new_session=True,
            )
        self.process.stdin.write(f"{address}\n{NOWHERE}\n")
        self.process.stdin.flush()
        lines = []
        while True:
            line = self.process.stdout.readline()
            if not line:
                raise OSError("it has ended")
            if line.startswith(NOWHERE):
                break
            lines.append(line.rstrip("\n"))
        for _ in range(2):
            self.process.stdout.readline()
        return lines[1:]

    @staticmethod
    def location(function, place):
        known = place is not None and place["line"] not in ("?", "0") and place["file"] != "??"
        return SourceLocation(function, place["file"] if known else "", int(place["line"]) if known else 0)
