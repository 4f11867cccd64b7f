# What takes long is labelled so and left out of `make test`: `make test-long` runs all there is.
function(hakmem_long)
  foreach(test IN LISTS ARGN)
    set_property(TEST ${test} APPEND PROPERTY LABELS long)
  endforeach()
endfunction()

# hakmem_rotating(name LABEL label COUNT n COMMANDS line…): a test that runs COUNT of the commands, which are tests of their own
# among the long ones, other ones each day. A command is a list for env.
function(hakmem_rotating name)
  cmake_parse_arguments(T "" "LABEL;COUNT" "COMMANDS" ${ARGN})
  list(JOIN T_COMMANDS "\n" lines)
  file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${name}.txt CONTENT "${lines}\n")
  add_test(NAME ${name} COMMAND ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/tests/support/rotate.py
    ${CMAKE_CURRENT_BINARY_DIR}/${name}.txt ${T_COUNT})
  set_tests_properties(${name} PROPERTIES LABELS ${T_LABEL} TIMEOUT 180)
endfunction()

# hakmem_add_gtest(name LABEL label SOURCES file… [LIBRARIES target…] [DEFINITIONS NAME=value…] [TIMEOUT seconds] [LONG pattern])
#
# A GoogleTest program test_<name> on hakmem_core (the hakmem_… names and every internal one). ctest runs each test in a
# process of its own, and the program's main does the same when it is run by hand: the allocator's state is global.
function(hakmem_add_gtest name)
  cmake_parse_arguments(T "" "LABEL;TIMEOUT;LONG" "SOURCES;LIBRARIES;DEFINITIONS" ${ARGN})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 60)
  endif()
  add_executable(test_${name} ${T_SOURCES})
  target_link_libraries(test_${name} PRIVATE ${T_LIBRARIES} hakmem_test_support)
  target_compile_definitions(test_${name} PRIVATE ${T_DEFINITIONS})
  hakmem_compile_gtest(test_${name})
  set(discover TEST_PREFIX ${T_LABEL}. DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 30)
  if(T_LONG)
    gtest_discover_tests(test_${name} ${discover} TEST_FILTER ${T_LONG} TEST_LIST long_${name}
      PROPERTIES LABELS long TIMEOUT ${T_TIMEOUT})
    set(discover ${discover} TEST_FILTER -${T_LONG})
  endif()
  gtest_discover_tests(test_${name} ${discover} PROPERTIES LABELS ${T_LABEL} TIMEOUT ${T_TIMEOUT})
endfunction()

# How GoogleTest programs are compiled. Their assertions are most of the tests' code and nothing runs long in them: optimising
# them and describing them for a debugger is half of a build, reading GoogleTest's headers a quarter.
function(hakmem_compile_gtest target)
  # An assertion is an if with an else of its own, hence the warning that is off.
  # Blocks are used after calls that may free them (GCC has the other warning).
  target_compile_options(${target} PRIVATE -Wall -Wextra $<$<COMPILE_LANGUAGE:CXX>:-Wno-dangling-else>
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-use-after-free>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Debug>>>:-O0> $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-g0>)
  # CMake wants headers of each language that a target has.
  get_target_property(sources ${target} SOURCES)
  if(TARGET hakmem_gtest_headers AND NOT target STREQUAL hakmem_gtest_headers AND NOT sources MATCHES "[.]c(;|$)")
    target_precompile_headers(${target} REUSE_FROM hakmem_gtest_headers)
  endif()
endfunction()

# The internal headers, the library's own build constants, and the sanitizers of this build.
function(hakmem_internal_headers target scope)
  target_include_directories(${target} ${scope} ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests/support)
  # Tests use blocks after calls that may free them, and free by one family what the other gave.
  target_compile_definitions(${target} ${scope} ${HAKMEM_DEFINITIONS} HAKMEM_MIXED_FAMILIES=1)
  if(HAKMEM_SANITIZE)
    target_compile_options(${target} ${scope} -fsanitize=${HAKMEM_SANITIZE} -fno-omit-frame-pointer)
    target_compile_definitions(${target} ${scope} HAKMEM_TEST_SANITIZED=1)
  else()
    target_compile_definitions(${target} ${scope} HAKMEM_TEST_SANITIZED=0)
  endif()
endfunction()
