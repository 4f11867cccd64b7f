"""abi_self_test.py BUILD: packaging/abi/abi.py tells what is gone or changed from what is added, and scripts/abi.sh writes a list that
holds for the tree it was written of."""

import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "packaging/abi"))
import abi  # noqa: E402

BUILD = Path(sys.argv.pop(1))

HEADER = """
#define HAKMEM_VERSION_MAJOR 4
#define HAKMEM_MOST 7
#define HAKMEM_CODE(x) x
typedef struct hakmem_stats { uint32_t version; uint64_t one, two; } hakmem_stats;
typedef struct hakmem_row {
  size_t a;
} hakmem_row;
enum { HAKMEM_A, HAKMEM_B };
enum { HAKMEM_BIT = 4, HAKMEM_AFTER, HAKMEM_ALL = 0x1f };
void *hakmem_get(size_t size, const char *name) noexcept_ __attribute__((__malloc__(hakmem_put, 1))) __attribute__((x));
void hakmem_put(void *p);
"""


def rows(header):
    return abi.macros(header) + abi.declarations(header)


class Abi(unittest.TestCase):
    def faults(self, old, new, retired=()):
        return abi.faults(rows(HEADER), rows(HEADER.replace(old, new)), list(retired))

    def test_rows(self):
        found = rows(HEADER.replace(" noexcept_", ""))
        self.assertIn("declaration void*hakmem_get(size_t,const char*)", found)
        self.assertIn("field hakmem_stats 2 uint64_t two", found)
        self.assertIn("constant HAKMEM_B 1", found)
        for row in ("HAKMEM_BIT 4", "HAKMEM_AFTER 5", "HAKMEM_ALL 31"):
            self.assertIn(f"constant {row}", found)
        self.assertIn("declaration #define HAKMEM_MOST 7", found)
        self.assertFalse([row for row in found if "VERSION" in row or "CODE" in row])

    def test_additions_and_names_of_parameters(self):
        self.assertEqual(self.faults("", ""), [])
        self.assertEqual(self.faults("one, two;", "one, two; uint64_t three;"), [], "callers say the size")
        self.assertEqual(self.faults("HAKMEM_B }", "HAKMEM_B, HAKMEM_C }"), [])
        self.assertEqual(self.faults("enum { HAKMEM_A, HAKMEM_B };", "typedef enum hakmem_kind { HAKMEM_A, HAKMEM_B } hakmem_kind;"), [], "a type for them")
        self.assertEqual(self.faults("HAKMEM_AFTER,", "HAKMEM_AFTER = 5,"), [], "the value that it has")
        self.assertEqual(self.faults("void hakmem_put", "void hakmem_more(int);\nvoid hakmem_put"), [])
        self.assertEqual(self.faults("size_t size,", "size_t bytes,"), [])

    def test_what_is_gone_or_changed(self):
        for old, new in (("one, two;", "two, one;"), ("uint32_t version", "uint64_t version"), ("one, two;", "one;"), ("HAKMEM_A, ", ""),
                         ("BIT = 4", "BIT = 5"), ("size_t size,", "int size,"), ("void hakmem_put(void *p);", ""), ("MOST 7", "MOST 8"), ("void hakmem_put", "int hakmem_put")):
            self.assertTrue(self.faults(old, new), (old, new))
        self.assertTrue(self.faults("size_t a;", "size_t a; size_t b;"), "an array's rows do not grow")

    def test_symbols_and_options(self):
        old = ["symbol libhakmem.so SONAME libhakmem.so.0", "symbol libhakmem.so hakmem_free", "option HAKMEM_OLD"]
        self.assertEqual(len(abi.faults(old, [], [])), 3)
        self.assertEqual(abi.faults(old, [*old[:2], "symbol libhakmem.so hakmem_more"], ["HAKMEM_OLD"]), [])
        self.assertEqual(len(abi.faults(old, ["symbol libhakmem.so SONAME libhakmem.so.1", *old[1:]], [])), 1)
        table = 'OPTION(a, "HAKMEM_ONE", BOOL)\nCHOICE(d, "HAKMEM_FOUR", "a")\nPER_CLASS(b, "HAKMEM_TWO_C", 0)\nTEXT(c, "HAKMEM_THREE", "x")\nRETIRED("HAKMEM_OLD", "")\n'
        self.assertEqual(abi.options(table), ({"HAKMEM_ONE", "HAKMEM_TWO_C", "HAKMEM_THREE", "HAKMEM_FOUR"}, ["HAKMEM_OLD"]))

    def test_a_written_list_holds_and_one_with_more_does_not(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "list"
            self.assertEqual(abi.main([str(BUILD), str(path), "--update", "9.8.7"]), 0)
            self.assertEqual(abi.version_of(path.read_text()), "9.8.7")
            self.assertEqual(abi.main([str(BUILD), str(path)]), 0)
            path.write_text(path.read_text() + "symbol libhakmem-hardened.so hakmem_gone\n")
            self.assertEqual(abi.main([str(BUILD), str(path)]), 1)


if __name__ == "__main__":
    unittest.main()
