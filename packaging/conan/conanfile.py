# Conan 2 recipe. State: built by tests (packaging/README.md).
# packaging/recipes.sh writes conandata.yml beside it, then: conan create FOLDER
import os

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, get, rmdir

required_conan_version = ">=2.4"


class HakmemConan(ConanFile):
    name = "hakmem"
    description = "General-purpose memory allocator for Linux"
    license = "MIT"
    topics = ("allocator", "malloc", "memory", "heap-profile")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {
        "shared": [True, False],
        # The build that checks more, at a cost (docs/security.md).
        "hardened": [True, False],
        # False: malloc and operator new stay as they are; hakmem_... functions and hakmem/hakmem.hpp alone.
        "override": [True, False],
    }
    default_options = {"shared": True, "hardened": False, "override": True}

    def set_version(self):
        self.version = self.version or next(iter(self.conan_data["sources"]))

    def configure(self):
        # One file is C++, and neither needs the C++ runtime nor depends on which it is.
        self.settings.rm_safe("compiler.libcxx")
        self.settings.rm_safe("compiler.cppstd")

    def layout(self):
        cmake_layout(self, src_folder="src")

    def validate(self):
        if self.settings.os != "Linux" or self.settings.arch not in ("x86_64", "armv8"):
            raise ConanInvalidConfiguration("hakmem runs on Linux, x86_64 and armv8")
        if self.settings.compiler not in ("gcc", "clang"):
            raise ConanInvalidConfiguration("hakmem is compiled by gcc or clang")

    def build_requirements(self):
        self.tool_requires("cmake/[>=3.18]")

    def source(self):
        get(self, **self.conan_data["sources"][self.version], strip_root=True)

    def generate(self):
        library = {
            (True, False): "shared",
            (True, True): "hardened",
            (False, False): "static",
            (False, True): "hardened-static",
        }[bool(self.options.shared), bool(self.options.hardened)]
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["HAKMEM_LIBRARIES"] = library
        toolchain.cache_variables["HAKMEM_OVERRIDE"] = bool(self.options.override)
        toolchain.cache_variables["HAKMEM_BUILD_TESTS"] = False
        toolchain.cache_variables["HAKMEM_BUILD_BENCH"] = False
        toolchain.generate()
        CMakeDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        CMake(self).install()
        # Conan's generators write these for each user, from package_info.
        rmdir(self, os.path.join(self.package_folder, "lib", "cmake"))
        rmdir(self, os.path.join(self.package_folder, "lib", "pkgconfig"))

    def package_info(self):
        self.cpp_info.libs = ["hakmem-hardened" if self.options.hardened else "hakmem"]
        self.cpp_info.set_property("cmake_file_name", "hakmem")
        self.cpp_info.set_property("cmake_target_name", "hakmem::hakmem")
        self.cpp_info.set_property("pkg_config_name", "hakmem")
        if not self.options.shared:
            # Before glibc 2.34 dlsym has a library of its own.
            self.cpp_info.system_libs = ["pthread", "dl"]
            self.cpp_info.exelinkflags = ["-Wl,--eh-frame-hdr"]
            if self.options.override:
                # As cmake/hakmem.pc.in: malloc is taken from the archive also where only libc or operator new calls it.
                # A shared library cannot have hakmem_first.
                self.cpp_info.exelinkflags += ["-Wl,--undefined=malloc", "-Wl,--undefined=hakmem_first"]
                self.cpp_info.sharedlinkflags = ["-Wl,--undefined=malloc"]
