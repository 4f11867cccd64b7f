# hakmem_add_gtest(name LABEL label SOURCES file… [LIBRARIES target…] [DEFINITIONS NAME=value…] [TIMEOUT seconds])
#
# A GoogleTest program test_<name> on hakmem_core (the hakmem_… names and every internal one). ctest runs each test in a
# process of its own, and the program's main does the same when it is run by hand: the allocator's state is global.
function(hakmem_add_gtest name)
  cmake_parse_arguments(T "" "LABEL;TIMEOUT" "SOURCES;LIBRARIES;DEFINITIONS" ${ARGN})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 60)
  endif()
  add_executable(test_${name} ${T_SOURCES})
  target_link_libraries(test_${name} PRIVATE ${T_LIBRARIES} hakmem_test_support)
  target_compile_definitions(test_${name} PRIVATE ${T_DEFINITIONS})
  # An assertion is an if with an else of its own, hence the warning that is off. Assertions are most of the code and
  # compile slowly: under a sanitizer, optimising them takes minutes.
  target_compile_options(test_${name} PRIVATE -Wall -Wextra -Wno-dangling-else $<$<NOT:$<CONFIG:Debug>>:-O1>)
  gtest_discover_tests(test_${name} TEST_PREFIX ${T_LABEL}. DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 30
    PROPERTIES LABELS ${T_LABEL} TIMEOUT ${T_TIMEOUT})
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
