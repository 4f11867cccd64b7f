# libhakmem-je.so: the core with jemalloc's interface. Included where libraries that replace malloc are built.
file(GLOB je_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/je/*.c)
hakmem_shared(hakmem_je ${HAKMEM_CORE_SOURCES} ${PROJECT_SOURCE_DIR}/src/api/totals.c ${je_sources})

# The main library's symbols and jemalloc's.
set(je_names mallocx rallocx xallocx sallocx dallocx sdallocx nallocx mallctl mallctlnametomib mallctlbymib malloc_stats_print malloc_message malloc_conf)
file(READ ${HAKMEM_SYMBOLS} je_map)
list(JOIN je_names "; " je_exports)
string(REPLACE "  local: *;" "    ${je_exports};\n  local: *;" je_map "${je_map}")
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/je.map CONTENT "${je_map}" @ONLY)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${HAKMEM_SYMBOLS})

target_compile_definitions(hakmem_je PRIVATE HAK_TOTALS=1)
get_target_property(je_options hakmem_je LINK_OPTIONS)
list(TRANSFORM je_options REPLACE "${HAKMEM_SYMBOLS}" "${PROJECT_BINARY_DIR}/je.map")
set_target_properties(hakmem_je PROPERTIES OUTPUT_NAME hakmem-je LINK_OPTIONS "${je_options}" NO_SONAME TRUE)
target_link_options(hakmem_je PRIVATE -Wl,-soname,libjemalloc.so.2)
set_property(TARGET hakmem_je APPEND PROPERTY LINK_DEPENDS ${PROJECT_BINARY_DIR}/je.map)
# One file: its names for loaders are links.
set_property(TARGET hakmem_je PROPERTY VERSION)
set_property(TARGET hakmem_je PROPERTY SOVERSION)

add_custom_command(TARGET hakmem_je POST_BUILD
  COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/je
  COMMAND ${CMAKE_COMMAND} -E create_symlink ../libhakmem-je.so ${PROJECT_BINARY_DIR}/je/libjemalloc.so.2)
install(TARGETS hakmem_je LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(CODE "file(MAKE_DIRECTORY \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/hakmem/je\")
  file(CREATE_LINK ../../libhakmem-je.so \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/hakmem/je/libjemalloc.so.2\" SYMBOLIC)")
