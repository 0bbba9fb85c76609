# What `cmake --install` puts in place: header, shared library, find_package(mcsa) and pkg-config files.

include(CMakePackageConfigHelpers)

install(FILES include/mcsa.h TYPE INCLUDE)
install(TARGETS mcsa EXPORT mcsa-targets LIBRARY)
install(EXPORT mcsa-targets NAMESPACE mcsa:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/mcsa)

write_basic_package_version_file(mcsa-config-version.cmake COMPATIBILITY SameMinorVersion)
configure_package_config_file(cmake/mcsa-config.cmake.in mcsa-config.cmake
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/mcsa)
install(FILES ${PROJECT_BINARY_DIR}/mcsa-config.cmake ${PROJECT_BINARY_DIR}/mcsa-config-version.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/mcsa)

# Relative, so that the prefix may be chosen or moved at install time.
file(RELATIVE_PATH pc_to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/mcsa.pc.in mcsa.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/mcsa.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
