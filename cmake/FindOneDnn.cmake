# SPDX-License-Identifier: Apache-2.0
# Finds oneDNN 2.6 or later by its header and library and makes DNNL::dnnl.
#
# NOTE: not by its own dnnl-config.cmake: Debian's asks for the OpenCL headers, which neither
# oneDNN's package nor a program that uses its CPU engine needs.
find_path(OneDnn_INCLUDE_DIR NAMES oneapi/dnnl/dnnl.hpp)
find_library(OneDnn_LIBRARY NAMES dnnl)
if(OneDnn_INCLUDE_DIR)
  file(STRINGS ${OneDnn_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h version_lines
       REGEX "#define DNNL_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
  string(REGEX REPLACE ".*MAJOR +([0-9]+).*MINOR +([0-9]+).*PATCH +([0-9]+).*" "\\1.\\2.\\3"
         OneDnn_VERSION "${version_lines}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OneDnn REQUIRED_VARS OneDnn_LIBRARY OneDnn_INCLUDE_DIR
                                  VERSION_VAR OneDnn_VERSION)
if(OneDnn_FOUND AND NOT TARGET DNNL::dnnl)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES
    IMPORTED_LOCATION ${OneDnn_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${OneDnn_INCLUDE_DIR})
endif()
mark_as_advanced(OneDnn_INCLUDE_DIR OneDnn_LIBRARY)
