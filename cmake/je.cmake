# libhakmem-je.so: the core with jemalloc's interface. Included where libraries that replace malloc are built.
file(GLOB je_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/je/*.c)
hakmem_shared(hakmem_je ${HAKMEM_CORE_SOURCES} ${PROJECT_SOURCE_DIR}/src/entry/counted.c ${je_sources})

# The main library's symbols and jemalloc's.
set(je_names mallocx rallocx xallocx sallocx dallocx sdallocx mallctl mallctlnametomib mallctlbymib malloc_stats_print malloc_message malloc_conf malloc_conf_2_conf_harder)
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
# Its own name is what programs preload or link; loaders that look for jemalloc are given the folder.
set(je_folder ${CMAKE_INSTALL_LIBDIR}/hakmem/je)
install(FILES $<TARGET_FILE:hakmem_je> DESTINATION ${je_folder} RENAME libjemalloc.so.2)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/je)
file(CREATE_LINK hakmem/je/libjemalloc.so.2 ${PROJECT_BINARY_DIR}/je/libhakmem-je.so SYMBOLIC)
install(FILES ${PROJECT_BINARY_DIR}/je/libhakmem-je.so DESTINATION ${CMAKE_INSTALL_LIBDIR})
