# SPDX-License-Identifier: Apache-2.0
# Finds a CUDA 13 compiler and declares kernels.
#
# Sets CONVOY_WITH_CUDA, CONVOY_WITH_SM90 and CONVOY_WITH_SM100.

include(${CMAKE_CURRENT_LIST_DIR}/ConvoyGpuCode.cmake)

set(CONVOY_WITH_CUDA OFF)
set(CONVOY_WITH_SM90 OFF)
set(CONVOY_WITH_SM100 OFF)

# First nvcc of version 13 or later: what the user names, PATH, the usual place, then the folder
# that scripts/bootstrap.sh fills.
function(convoy_find_nvcc result)
  find_program(on_path nvcc NO_CACHE)
  foreach(candidate ${CMAKE_CUDA_COMPILER} $ENV{CUDACXX} ${on_path} /usr/local/cuda/bin/nvcc
                    ${PROJECT_SOURCE_DIR}/.cuda/bin/nvcc)
    if(NOT EXISTS ${candidate})
      continue()
    endif()
    execute_process(COMMAND ${candidate} --version OUTPUT_VARIABLE banner ERROR_QUIET)
    if(banner MATCHES "release ([0-9]+)\\.([0-9]+)")
      if(CMAKE_MATCH_1 GREATER_EQUAL 13)
        set(${result} ${candidate} PARENT_SCOPE)
        return()
      endif()
      message(STATUS "Passed over ${candidate}: release ${CMAKE_MATCH_1}.${CMAKE_MATCH_2}, "
                     "13.0 or later is needed")
    endif()
  endforeach()
  set(${result} "" PARENT_SCOPE)
endfunction()

if(NOT CONVOY_CUDA STREQUAL "OFF")
  convoy_find_nvcc(nvcc)
  if(nvcc)
    # Architectures are given per kernel folder below, in a form that carries SASS and PTX.
    set(CMAKE_CUDA_ARCHITECTURES OFF)
    set(CMAKE_CUDA_COMPILER ${nvcc})
    set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
    enable_language(CUDA)
    # NOTE: CMake 3.25 does not know how to ask nvcc for C++20.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    cmake_path(GET nvcc PARENT_PATH nvcc_folder)
    cmake_path(GET nvcc_folder PARENT_PATH CUDAToolkit_ROOT)
    # NOTE: CMake 3.25 sets properties of this target, which CUDA 13 no longer has, without asking.
    if(NOT TARGET CUDA::nvToolsExt)
      add_library(CUDA::nvToolsExt INTERFACE IMPORTED GLOBAL)
    endif()
    find_package(CUDAToolkit REQUIRED)
    # NOTE: CMake leaves folders of the source tree, such as .cuda, out of installed run paths.
    cmake_path(IS_PREFIX PROJECT_SOURCE_DIR "${CUDAToolkit_LIBRARY_DIR}" NORMALIZE cuda_in_tree)
    if(cuda_in_tree)
      list(APPEND CMAKE_INSTALL_RPATH ${CUDAToolkit_LIBRARY_DIR})
    endif()
    set(CONVOY_WITH_CUDA ON)
    set(CONVOY_WITH_SM90 ${CONVOY_SM90})
    set(CONVOY_WITH_SM100 ${CONVOY_SM100})
  elseif(CONVOY_CUDA STREQUAL "AUTO")
    message(STATUS "No nvcc 13 or later was found: building without CUDA kernels")
  else()
    message(FATAL_ERROR "CONVOY_CUDA=ON, but no nvcc 13 or later was found on PATH, in "
                        "/usr/local/cuda or in .cuda (scripts/bootstrap.sh fills it); "
                        "-DCMAKE_CUDA_COMPILER=<nvcc> names one")
  endif()
endif()

# convoy_cuda_unity(<variable> <name> <size>): in a unity build, sources that share a compilation: the
# .cu of a list variable, <size> at a time, become <name>_<number>.cu. An empty .cu takes
# four seconds, for its headers.
# NOTE: only for sources whose own names differ.
function(convoy_cuda_unity unity_variable name size)
  if(NOT CMAKE_UNITY_BUILD)
    return()
  endif()
  set(result ${${unity_variable}})
  list(FILTER result EXCLUDE REGEX "\\.cu$")
  set(rest ${${unity_variable}})
  list(FILTER rest INCLUDE REGEX "\\.cu$")
  set(number 0)
  while(rest)
    list(SUBLIST rest 0 ${size} batch)
    list(REMOVE_ITEM rest ${batch})
    set(text "")
    foreach(source IN LISTS batch)
      cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
      string(APPEND text "#include \"${source}\"\n")
    endforeach()
    set(file ${CMAKE_CURRENT_BINARY_DIR}/${name}_${number}.cu)
    file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
    list(APPEND result ${file})
    math(EXPR number "${number} + 1")
  endwhile()
  set(${unity_variable} ${result} PARENT_SCOPE)
endfunction()

# convoy_cuda_flags(<target> ARCHITECTURES 90a 100a [LINEINFO OFF] [FOR 80]): SASS and PTX of each architecture,
# source lines, and the flags every kernel is built with. The PTX is what the virtual GPU runs; without
# CONVOY_SASS there is nothing else. 80 and 90 are PTX for any GPU since Ampere and since Hopper, and SASS
# of the last of it for those that the specialised kernels are built for and that CONVOY_OTHER_GPUS names; with
# FOR only if they are among these.
# NOTE: CONVOY_FAST_COMPILE is for code of 80 and 90 alone. From "mid" on the accumulators of wgmma go through
# memory while it runs; and what the virtual B200 runs is to be the PTX that ships.
function(convoy_cuda_flags target)
  cmake_parse_arguments(arg "" "LINEINFO" "ARCHITECTURES;FOR" ${ARGN})
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES OFF CUDA_RUNTIME_LIBRARY Shared)
  # NOTE: since 3.31 CMake's own unity builds would join kernels whose local names are alike.
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cu$")
  set_source_files_properties(${sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  set(for "")
  if("FOR" IN_LIST ARGN)
    set(for FOR ${arg_FOR})
  endif()
  convoy_gpu_code(code ${arg_ARCHITECTURES} ${for})
  while(code)
    list(POP_FRONT code ptx all)
    target_compile_options(${target} PRIVATE
      "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-gencode 'arch=${ptx},code=[${all}]'>")
  endwhile()
  if(CONVOY_FAST_COMPILE AND arg_ARCHITECTURES MATCHES "^(80|90|80;90)$")
    target_compile_options(${target} PRIVATE
      "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:--Ofast-compile ${CONVOY_FAST_COMPILE}>")
  endif()
  if(NOT DEFINED arg_LINEINFO OR arg_LINEINFO)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo>)
  endif()
  # NOTE: without -compress-all nvcc compresses PTX alone, but in mode "size". All modes are read as
  # fast (zstd).
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xfatbin -compress-all>"
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:--compress-mode=$<IF:$<BOOL:${CONVOY_SASS}>,${CONVOY_COMPRESS},speed>>"
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcompiler -Wall>")
endfunction()

# convoy_add_kernels(<name> ARCHITECTURES 90a [FOR 80 120] SOURCES a.cu b.cpp): sources of the library that
# are compiled for the given architectures. Any number of calls; each makes target convoy_<name>.
function(convoy_add_kernels name)
  cmake_parse_arguments(arg "" "" "SOURCES" ${ARGN})
  convoy_add_sources(${name} ${arg_SOURCES})
  target_link_libraries(convoy_${name} PUBLIC CUDA::cudart)
  convoy_cuda_flags(convoy_${name} ${arg_UNPARSED_ARGUMENTS} LINEINFO ${CONVOY_LINEINFO})
endfunction()
