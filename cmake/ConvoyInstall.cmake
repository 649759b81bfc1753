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
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# convoy::device: the kernel templates of include/convoy/device, for users who compile functors.
if(CONVOY_WITH_SM90 OR CONVOY_WITH_SM100)
  add_library(convoy_device INTERFACE)
  add_library(convoy::device ALIAS convoy_device)
  set_target_properties(convoy_device PROPERTIES EXPORT_NAME device)
  target_link_libraries(convoy_device INTERFACE convoy CUDA::cudart)
  target_include_directories(convoy_device INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/convoy/internal>)
  # NOTE: CMake 3.25 does not know how to ask nvcc for C++20.
  target_compile_options(convoy_device INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
  install(TARGETS convoy_device EXPORT convoy_targets)
endif()
install(EXPORT convoy_targets NAMESPACE convoy:: DESTINATION ${package_folder})

configure_package_config_file(cmake/convoyConfig.cmake.in
  ${PROJECT_BINARY_DIR}/convoyConfig.cmake INSTALL_DESTINATION ${package_folder})
# Before 1.0 a minor release may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/convoyConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_SOURCE_DIR}/cmake/FindOneDnn.cmake
        ${PROJECT_BINARY_DIR}/convoyConfig.cmake ${PROJECT_BINARY_DIR}/convoyConfigVersion.cmake
        DESTINATION ${package_folder})

# pkg-config: for the shared library alone; a static one has dependencies that pkg-config does not know.
if(BUILD_SHARED_LIBS)
  set(pkgconfig_folder ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  file(RELATIVE_PATH prefix_from_pkgconfig /prefix/${pkgconfig_folder} /prefix)
  configure_file(cmake/convoy.pc.in ${PROJECT_BINARY_DIR}/convoy.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/convoy.pc DESTINATION ${pkgconfig_folder})
endif()
