"""conan_test.py RELEASE CMAKE [--all]: `conan create` of the recipe, without network; --all: every choice of options."""
import itertools
import re
import shutil
import sys
import tempfile
from pathlib import Path

from support import clean_environment, expect, release_archive, run, tool

PROFILE = """include(default)
[platform_tool_requires]
cmake/{cmake}
[conf]
tools.cmake.cmaketoolchain:generator=Ninja
tools.build:jobs=2
"""


def main(release: str, cmake: str, everything: bool) -> None:
    release_archive(release)
    conan = tool("conan")
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        # The test program is built inside the recipe's folder.
        recipe = shutil.copytree(Path(release) / "recipes/conan", work / "recipe")
        environment = clean_environment(CONAN_HOME=str(work / "home"), CONAN_NON_INTERACTIVE="1")
        environment["PATH"] = f"{Path(cmake).parent}:{environment['PATH']}"
        run(conan, "profile", "detect", env=environment)
        version = re.search(r"cmake version (\S+)", run(cmake, "--version"))[1]
        (work / "profile").write_text(PROFILE.format(cmake=version))
        choices = itertools.product((True, False), repeat=3) if everything else [(True, False, True)]
        for shared, hardened, override in choices:
            options = {"shared": shared, "hardened": hardened, "override": override}
            flags = [f"--options=hakmem/*:{name}={value}" for name, value in options.items()]
            output = run(
                conan, "create", recipe, f"--profile={work / 'profile'}", f"--profile:build={work / 'profile'}", "--no-remote", *flags,
                env=environment,
            )
            expect("as packaged" in output, f"{options}: the test program ran: {output}")
            # Conan says so in capitals; the compiler and CMake in their own way.
            complaints = [line for line in output.splitlines() if re.search(r"\bWARN\b|\bwarning:|CMake Warning|\bERROR\b", line)]
            expect(not complaints, f"{options}: clean: {complaints}")
            (package,) = set(re.findall(r"Package folder (\S+)", output))
            library = "libhakmem" + ("-hardened" if hardened else "") + (".so" if shared else ".a")
            found = {path.name for path in (Path(package) / "lib").iterdir() if not path.is_symlink()}
            expect(len(found) == 1 and next(iter(found)).startswith(library), f"{options}: {library} alone is packed: {found}")
            expect((Path(package) / "licenses/LICENSE").is_file(), f"{options}: the licence is packed")


main(sys.argv[1], sys.argv[2], "--all" in sys.argv[3:])
