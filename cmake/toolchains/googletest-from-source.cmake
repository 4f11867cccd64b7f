# Included after project() by cross builds (CMAKE_PROJECT_hakmem_INCLUDE): find_package(GTest) then builds Debian's
# sources of GoogleTest with the compiler of the target.
include(FetchContent)
set(INSTALL_GTEST OFF)
set(BUILD_GMOCK ON)
FetchContent_Declare(GTest SOURCE_DIR /usr/src/googletest OVERRIDE_FIND_PACKAGE)
