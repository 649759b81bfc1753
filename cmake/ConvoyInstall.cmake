# SPDX-License-Identifier: Apache-2.0
# cmake --install: libraries, headers, program, and the package that find_package(convoy CONFIG) reads.
include(CMakePackageConfigHelpers)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/convoy)

install(TARGETS convoy EXPORT convoy_targets
        RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET convoy_cpu)
  install(TARGETS convoy_cpu LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} NAMELINK_SKIP)
endif()
install(DIRECTORY include/convoy DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT convoy_targets NAMESPACE convoy:: DESTINATION ${package_folder})

configure_package_config_file(cmake/convoyConfig.cmake.in
  ${PROJECT_BINARY_DIR}/convoyConfig.cmake INSTALL_DESTINATION ${package_folder})
# Before 1.0 a minor release may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/convoyConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_SOURCE_DIR}/cmake/FindOneDnn.cmake
        ${PROJECT_BINARY_DIR}/convoyConfig.cmake ${PROJECT_BINARY_DIR}/convoyConfigVersion.cmake
        DESTINATION ${package_folder})
