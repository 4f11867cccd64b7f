"""The layering check finds planted violations."""
from layering import check_file

CLEAN = '#ifndef HAK_SLAB_SLAB_H\n#include <string.h>\n#include "region/region.h"\n#include "slab/slab.h"\n#if HAK_CHECKS\n#endif\n'


def main() -> None:
    assert check_file("slab/slab.c", CLEAN) == []
    assert check_file("os/os.c", '#include "hakmem/hakmem.h"\n#if defined(__linux__)\n#endif\n') == []
    planted = {
        'pool/span_pool.c': '#include "slab/slab.h"\n',
        'os/os.c': '#  include "config/config.h"\n',
        'base/bits.h': '#include "os/os.h"\n',
        'heap/heap.c': '#include "api/api.h"\n',
        'slab/slab.c': '#include "slab.h"\n',
        'large/run.c': '#ifdef __aarch64__\n#endif\n',
        'report/text.c': '#if HAK_CHECKS\n#elif defined(__x86_64__)\n#endif\n',
        'api/free.c': "\n" * 601,
        'extra/new.c': "",
    }
    for name, text in planted.items():
        problems = check_file(name, text)
        assert len(problems) == 1, (name, problems)
        assert name in problems[0]


if __name__ == "__main__":
    main()
