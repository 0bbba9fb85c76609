# The transformer (mcsa_dit), the methods to compare with (mcsa_rivals), measurements of where sparse attention loses
# (mcsa_analysis), and the command (mcsa_cli, without main, so that tests link it; and the executable).

find_package(PkgConfig REQUIRED)
find_package(OneDNN REQUIRED)
pkg_check_modules(CJSON REQUIRED IMPORTED_TARGET libcjson)
pkg_check_modules(LIBAV REQUIRED IMPORTED_TARGET libavformat libavcodec libswscale libavutil)
pkg_check_modules(PNG REQUIRED IMPORTED_TARGET libpng)

file(GLOB dit_sources CONFIGURE_DEPENDS src/dit/*.c)
file(GLOB rivals_sources CONFIGURE_DEPENDS src/rivals/*.c src/rivals/cpu/*.c)
file(GLOB analysis_sources CONFIGURE_DEPENDS src/analysis/*.c)
file(GLOB cli_sources CONFIGURE_DEPENDS cli/*.c bench/*.c)
list(REMOVE_ITEM cli_sources ${PROJECT_SOURCE_DIR}/cli/main.c)

mcsa_isa_flags(dit_sources)
mcsa_isa_flags(rivals_sources)

add_library(mcsa_dit STATIC ${dit_sources})
target_link_libraries(mcsa_dit PUBLIC mcsa_static PkgConfig::CJSON PRIVATE OneDNN::dnnl)

add_library(mcsa_rivals STATIC ${rivals_sources})
target_link_libraries(mcsa_rivals PUBLIC mcsa_static)

add_library(mcsa_analysis STATIC ${analysis_sources})
target_link_libraries(mcsa_analysis PUBLIC mcsa_rivals)

add_library(mcsa_cli STATIC ${cli_sources})
target_include_directories(mcsa_cli PUBLIC ${PROJECT_SOURCE_DIR}/cli ${PROJECT_SOURCE_DIR}/bench)
target_link_libraries(mcsa_cli PUBLIC mcsa_dit mcsa_analysis PkgConfig::LIBAV PkgConfig::PNG OneDNN::dnnl)

add_executable(mcsa_command cli/main.c)
set_target_properties(mcsa_command PROPERTIES OUTPUT_NAME mcsa INSTALL_RPATH $ORIGIN/../${CMAKE_INSTALL_LIBDIR})
target_link_libraries(mcsa_command PRIVATE mcsa_cli)
install(TARGETS mcsa_command RUNTIME)

include(cmake/DitCuda.cmake)
include(cmake/RivalsCuda.cmake)
