# x86-64 with musl, from Debian's musl-tools. musl-gcc is gcc with musl's headers and libraries.
#
# There is no C++ runtime for musl here. The one C++ file of the library, operator new and delete, needs only headers of
# it (the shared library takes the runtime of the program it is loaded into, if it has one): they are compiled with
# musl's C headers behind them. C++ programs cannot be linked.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_C_COMPILER musl-gcc)
set(CMAKE_CXX_COMPILER g++)
set(CMAKE_CXX_COMPILER_WORKS TRUE) # the check links a program

# Kernel headers, which are no part of musl, and of the host's headers only these.
set(hakmem_kernel_headers ${CMAKE_BINARY_DIR}/kernel-headers)
file(MAKE_DIRECTORY ${hakmem_kernel_headers})
file(CREATE_LINK /usr/include/linux ${hakmem_kernel_headers}/linux SYMBOLIC)
file(CREATE_LINK /usr/include/asm-generic ${hakmem_kernel_headers}/asm-generic SYMBOLIC)
file(CREATE_LINK /usr/include/x86_64-linux-gnu/asm ${hakmem_kernel_headers}/asm SYMBOLIC)
set(CMAKE_C_FLAGS_INIT "-idirafter ${hakmem_kernel_headers}")

file(GLOB hakmem_cxx_headers /usr/include/c++/[0-9]*)
list(SORT hakmem_cxx_headers COMPARE NATURAL ORDER DESCENDING)
list(GET hakmem_cxx_headers 0 hakmem_cxx_headers)
get_filename_component(hakmem_cxx_version ${hakmem_cxx_headers} NAME)
# The last definition is glibc's question for its own version, which libstdc++'s headers ask.
set(CMAKE_CXX_FLAGS_INIT "-specs=/usr/lib/x86_64-linux-musl/musl-gcc.specs -isystem ${hakmem_cxx_headers} \
-isystem /usr/include/x86_64-linux-gnu/c++/${hakmem_cxx_version} -idirafter ${hakmem_kernel_headers} \
'-D__GLIBC_PREREQ(major,minor)=0'")

set(CMAKE_FIND_ROOT_PATH /usr/lib/x86_64-linux-musl)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
