import os

from conan import ConanFile
from conan.tools.build import can_run
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout


class HakmemTestConan(ConanFile):
    settings = "os", "arch", "compiler", "build_type"
    generators = "CMakeDeps", "VirtualRunEnv"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def build_requirements(self):
        self.tool_requires("cmake/[>=3.18]")

    def layout(self):
        cmake_layout(self)

    def generate(self):
        tested = self.dependencies["hakmem"]
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["EXPECTED_VERSION"] = str(tested.ref.version)
        toolchain.cache_variables["EXPECTED_OVERRIDE"] = bool(tested.options.override)
        toolchain.cache_variables["EXPECTED_HARDENED"] = bool(tested.options.hardened)
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def test(self):
        if can_run(self):
            self.run(os.path.join(self.cpp.build.bindir, "test_package"), env="conanrun")
