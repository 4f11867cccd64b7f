# Stand-ins for the functions of vcpkg that packaging/vcpkg/portfile.cmake.in calls, by vcpkg's documentation of them:
#
#   cmake -DPORT_FOLDER=… -DWORK=… -DLINKAGE=dynamic|static -DFEATURES=… [-DBUILD=ON] -P vcpkg.cmake
#
# Arguments are taken apart as vcpkg takes them, and an unknown one is an error. With BUILD the port is really built and
# installed to WORK/packages, one configuration; without, WORK/configure.txt says how it would have been.
cmake_minimum_required(VERSION 3.21) # file(COPY_FILE)
set(PORT hakmem)
set(VCPKG_LIBRARY_LINKAGE ${LINKAGE})
set(CURRENT_PACKAGES_DIR ${WORK}/packages)

# vcpkg_… functions complain of arguments they do not know.
function(no_other function)
  if(ARGN)
    message(FATAL_ERROR "${function}: unknown arguments: ${ARGN}")
  endif()
endfunction()

function(vcpkg_download_distfile variable)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "FILENAME;SHA512" "URLS")
  no_other(vcpkg_download_distfile ${arg_UNPARSED_ARGUMENTS})
  file(DOWNLOAD ${arg_URLS} ${WORK}/downloads/${arg_FILENAME} EXPECTED_HASH SHA512=${arg_SHA512})
  set(${variable} ${WORK}/downloads/${arg_FILENAME} PARENT_SCOPE)
endfunction()

function(vcpkg_extract_source_archive variable)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "ARCHIVE" "")
  no_other(vcpkg_extract_source_archive ${arg_UNPARSED_ARGUMENTS})
  file(ARCHIVE_EXTRACT INPUT ${arg_ARCHIVE} DESTINATION ${WORK}/source)
  # The archive's one folder is left out.
  file(GLOB folder ${WORK}/source/*)
  set(${variable} ${folder} PARENT_SCOPE)
endfunction()

function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "SOURCE_PATH" "OPTIONS;OPTIONS_DEBUG;OPTIONS_RELEASE")
  no_other(vcpkg_cmake_configure ${arg_UNPARSED_ARGUMENTS})
  list(JOIN arg_OPTIONS "\n" lines)
  file(WRITE ${WORK}/configure.txt "${lines}\n")
  if(BUILD)
    if(LINKAGE STREQUAL "static")
      set(shared OFF)
    else()
      set(shared ON)
    endif()
    execute_process(COMMAND ${CMAKE_COMMAND} -G Ninja -S ${arg_SOURCE_PATH} -B ${WORK}/build ${arg_OPTIONS}
      -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=${shared} -DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR}
      -DCMAKE_INSTALL_LIBDIR=lib COMMAND_ERROR_IS_FATAL ANY)
  endif()
endfunction()

function(vcpkg_cmake_install)
  no_other(vcpkg_cmake_install ${ARGN})
  if(BUILD)
    execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK}/build --target install COMMAND_ERROR_IS_FATAL ANY)
  endif()
endfunction()

function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "CONFIG_PATH;PACKAGE_NAME" "")
  no_other(vcpkg_cmake_config_fixup ${arg_UNPARSED_ARGUMENTS})
  if(BUILD)
    # Moved to share/, and paths to the prefix with it.
    file(MAKE_DIRECTORY ${CURRENT_PACKAGES_DIR}/share)
    file(RENAME ${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH} ${CURRENT_PACKAGES_DIR}/share/${PORT})
    file(REMOVE ${CURRENT_PACKAGES_DIR}/lib/cmake)
    file(GLOB files ${CURRENT_PACKAGES_DIR}/share/${PORT}/*-targets*.cmake)
    foreach(file IN LISTS files)
      file(READ ${file} text)
      string(REGEX REPLACE [[get_filename_component\(_IMPORT_PREFIX "\${CMAKE_CURRENT_LIST_FILE}" PATH\)(
get_filename_component\(_IMPORT_PREFIX "\${_IMPORT_PREFIX}" PATH\))*]]
        "get_filename_component(_IMPORT_PREFIX \"\${CMAKE_CURRENT_LIST_FILE}\" PATH)\nget_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)\nget_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)"
        text "${text}")
      file(WRITE ${file} "${text}")
    endforeach()
  endif()
endfunction()

function(vcpkg_fixup_pkgconfig)
  no_other(vcpkg_fixup_pkgconfig ${ARGN})
  if(BUILD AND NOT EXISTS ${CURRENT_PACKAGES_DIR}/lib/pkgconfig/hakmem.pc)
    message(FATAL_ERROR "no hakmem.pc to fix up")
  endif()
endfunction()

function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "COMMENT" "FILE_LIST")
  no_other(vcpkg_install_copyright ${arg_UNPARSED_ARGUMENTS})
  # One file is installed as it is.
  file(COPY_FILE ${arg_FILE_LIST} ${CURRENT_PACKAGES_DIR}/share/${PORT}/copyright)
endfunction()

# The portfile finds the files beside it by this variable, which include() sets.
include(${PORT_FOLDER}/portfile.cmake)
