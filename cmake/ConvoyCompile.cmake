# SPDX-License-Identifier: Apache-2.0
# Compiler flags, sanitizers, the compiler cache and the search for oneDNN and OpenMP.

# A folder of this tree, where it is there.
function(convoy_add_folder folder)
  if(EXISTS ${PROJECT_SOURCE_DIR}/${folder}/CMakeLists.txt)
    add_subdirectory(${PROJECT_SOURCE_DIR}/${folder} ${PROJECT_BINARY_DIR}/${folder})
  endif()
endfunction()

find_program(CONVOY_CCACHE ccache)
if(CONVOY_CCACHE AND NOT DEFINED ENV{CCACHE_DISABLE})
  foreach(language C CXX CUDA)
    if(NOT CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER ${CONVOY_CCACHE})
    endif()
  endforeach()
endif()

add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-Wall> $<$<COMPILE_LANGUAGE:C,CXX>:-Wextra>)
if(CONVOY_WERROR)
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
endif()

if(CONVOY_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${CONVOY_SANITIZE}>
                      $<$<COMPILE_LANGUAGE:C,CXX>:-fno-sanitize-recover=all>
                      $<$<COMPILE_LANGUAGE:C,CXX>:-fno-omit-frame-pointer>)
  add_link_options(-fsanitize=${CONVOY_SANITIZE})
  # The file of AddressSanitizer's runtime, which what is preloaded needs in front of itself.
  set(CONVOY_ASAN_RUNTIME "")
  if(CONVOY_SANITIZE MATCHES address)
    set(runtime libasan.so)
    if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
      # NOTE: a program's own copy would come before all that is preloaded.
      set(runtime libclang_rt.asan-${CMAKE_SYSTEM_PROCESSOR}.so)
      add_link_options(-shared-libasan)
    endif()
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=${runtime}
                    OUTPUT_VARIABLE CONVOY_ASAN_RUNTIME OUTPUT_STRIP_TRAILING_WHITESPACE)
    cmake_path(GET CONVOY_ASAN_RUNTIME PARENT_PATH runtime_folder)
    add_link_options(-Wl,-rpath,${runtime_folder})
  endif()
endif()

# RUNPATH, not RPATH: LD_LIBRARY_PATH then wins, which is how the virtual GPU takes the place of
# libcudart. Installed programs find their libraries where the build found them.
add_link_options(-Wl,--enable-new-dtags)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)

set(CONVOY_WITH_CPU OFF)
set(CONVOY_WITH_OPENMP OFF)
if(CONVOY_CPU)
  find_package(OneDnn 2.6)
  if(OneDnn_FOUND)
    set(CONVOY_WITH_CPU ON)
  else()
    message(WARNING "oneDNN 2.6 or later was not found: building without the CPU backend. "
                    "Install it (Debian, Ubuntu: libdnnl-dev) or set -DCONVOY_CPU=OFF.")
  endif()
endif()
if(CONVOY_WITH_CPU)
  find_package(OpenMP COMPONENTS CXX)
  if(OpenMP_CXX_FOUND)
    set(CONVOY_WITH_OPENMP ON)
  else()
    message(WARNING "OpenMP was not found: the CPU backend's own loops will use one core")
  endif()
endif()
