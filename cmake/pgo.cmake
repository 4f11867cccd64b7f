# Profile-guided builds of the shared library, with gcc: HAKMEM_PGO=generate counts what runs, HAKMEM_PGO=use optimises
# by those counts. scripts/pgo.sh (make pgo) does both and the training between them.

set(HAKMEM_PGO "" CACHE STRING "Profile-guided build of libhakmem.so: generate, use, or empty")
set(HAKMEM_PGO_PROFILE "${PROJECT_SOURCE_DIR}/build/pgo-profile" CACHE PATH "Where the profile is written and read")

function(hakmem_profile target)
  if(NOT HAKMEM_PGO)
    return()
  endif()
  if(NOT HAKMEM_PGO MATCHES "^(generate|use)$")
    message(FATAL_ERROR "HAKMEM_PGO: '${HAKMEM_PGO}' is not generate or use")
  endif()
  if(NOT CMAKE_C_COMPILER_ID STREQUAL "GNU")
    message(FATAL_ERROR "HAKMEM_PGO: needs gcc, not ${CMAKE_C_COMPILER_ID}")
  endif()
  # Names in the profile start at the build folder, so that one build can read what another wrote. Values are not
  # profiled: their counters call malloc in the middle of the allocator, under its locks.
  set(flags -fprofile-${HAKMEM_PGO}=${HAKMEM_PGO_PROFILE} -fprofile-prefix-path=${PROJECT_BINARY_DIR} -fno-profile-values)
  if(HAKMEM_PGO STREQUAL "generate")
    # Threads count in the same words.
    list(APPEND flags -fprofile-update=atomic)
    target_link_options(${target} PRIVATE -fprofile-generate)
  else()
    file(GLOB_RECURSE counts ${HAKMEM_PGO_PROFILE}/*.gcda)
    if(NOT counts)
      message(FATAL_ERROR "HAKMEM_PGO: no profile in ${HAKMEM_PGO_PROFILE}: build with generate and train first (make pgo)")
    endif()
    # What training did not reach has no counts, and is no error.
    list(APPEND flags -Wno-missing-profile)
    # A new profile means new objects.
    get_target_property(sources ${target} SOURCES)
    set_property(SOURCE ${sources} APPEND PROPERTY OBJECT_DEPENDS "${counts}")
  endif()
  target_compile_options(${target} PRIVATE ${flags})
endfunction()
