# SPDX-License-Identifier: Apache-2.0
# Install, configure, build, run; then ask for versions that must and must not be found.
#
# BUILD is the build to install; where TREE is given, BUILD is made first: the library alone, static.

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(failed)
    message(FATAL_ERROR "${ARGN}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK}/prefix ${WORK}/build)
if(TREE)
  run(${CMAKE_COMMAND} -S ${TREE} -B ${BUILD} -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX}
      -DBUILD_SHARED_LIBS=OFF -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O0
      -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=0
      -DCONVOY_CPU=${CPU} -DCONVOY_CUDA=OFF -DCONVOY_CLI=OFF -DCONVOY_TESTS=OFF)
  run(${CMAKE_COMMAND} --build ${BUILD} --target convoy)
endif()
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
set(configure ${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/build -DCMAKE_PREFIX_PATH=${WORK}/prefix
              -DCMAKE_CXX_COMPILER=${CXX})
if(FLAGS)
  list(APPEND configure -DCMAKE_CXX_FLAGS=-fsanitize=${FLAGS})
endif()
run(${configure} -DWANTED=${VERSION})
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/consumer)
message(STATUS "consumer: ${output}")
if(NOT output MATCHES "convoy ${VERSION}")
  message(FATAL_ERROR "the consumer printed: ${output}")
endif()

if(CPU AND NOT output MATCHES "CPU backend: right")
  message(FATAL_ERROR "the CPU backend was not used: ${output}")
endif()

# The shared library without its CPU backend, and with one that is not its own: said, and nothing worse.
function(expect_refusal folder text)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env LD_LIBRARY_PATH=${folder}:$ENV{LD_LIBRARY_PATH}
                          ${WORK}/build/consumer
                  RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(failed OR NOT output MATCHES "no CPU backend: .*${text}")
    message(FATAL_ERROR "${folder}: wanted '${text}', got (${failed}):\n${output}")
  endif()
endfunction()
file(GLOB library ${WORK}/prefix/lib*/libconvoy.so.${SOVERSION})
if(CPU AND library)
  run(ldd ${library})
  if(output MATCHES "dnnl|OpenCL|gomp")
    message(FATAL_ERROR "the library needs more than the GPU does:\n${output}")
  endif()
  # Names of the library's inside stay inside.
  run(nm -DC --defined-only ${library})
  foreach(inside "convoy::registry\\(" "convoy::select\\(" "convoy::log_line" "std::")
    if(output MATCHES " [TWVB] ${inside}")
      message(FATAL_ERROR "exported: ${CMAKE_MATCH_0}")
    endif()
  endforeach()
  if(NOT output MATCHES "T convoy::plan\\(")
    message(FATAL_ERROR "not exported: convoy::plan")
  endif()

  set(backend libconvoy_cpu.so.${SOVERSION})
  foreach(kind alone older foreign broken)
    set(folder ${WORK}/${kind})
    file(REMOVE_RECURSE ${folder})
    file(COPY ${library} DESTINATION ${folder} FOLLOW_SYMLINK_CHAIN)
  endforeach()
  configure_file(${WORK}/build/libolder.so ${WORK}/older/${backend} COPYONLY)
  configure_file(${WORK}/build/libforeign.so ${WORK}/foreign/${backend} COPYONLY)
  file(WRITE ${WORK}/broken/${backend} "no library")
  expect_refusal(${WORK}/alone "the CPU backend is not there: ${backend} was found neither beside.*device = cuda")
  expect_refusal(${WORK}/older "the CPU backend is of another build: .*is of 'convoy 0.0.9, interface 0'; legal: 'convoy ${VERSION}")
  expect_refusal(${WORK}/foreign "is not Convoy's CPU backend: it has no convoy_cpu_backend")
  expect_refusal(${WORK}/broken "the CPU backend cannot be loaded: ")
endif()

# A release has no symbols but those it exports, and names no folder of the build.
file(GLOB installed ${WORK}/prefix/lib*/libconvoy*.so.*.* ${WORK}/prefix/bin/convoy)
foreach(file IN LISTS installed)
  execute_process(COMMAND grep -c -a -F ${TREE_NAME} ${file} OUTPUT_VARIABLE count
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT count STREQUAL "0")
    message(FATAL_ERROR "${file} names ${TREE_NAME} ${count} times")
  endif()
  execute_process(COMMAND nm ${file} OUTPUT_VARIABLE symbols ERROR_QUIET)
  if(CONFIG STREQUAL "Release" AND NOT symbols STREQUAL "")
    message(FATAL_ERROR "${file} is not stripped")
  endif()
endforeach()
file(GLOB license ${WORK}/prefix/share/doc/*/LICENSE)
if(NOT license)
  message(FATAL_ERROR "no LICENSE in ${WORK}/prefix/share/doc")
endif()

# pkg-config, where there is one, from where the installation lies.
file(GLOB package_file ${WORK}/prefix/lib*/pkgconfig/convoy.pc ${WORK}/prefix/lib/*/pkgconfig/convoy.pc)
find_program(pkg_config pkg-config)
if(package_file AND pkg_config)
  cmake_path(GET package_file PARENT_PATH folder)
  set(ask ${CMAKE_COMMAND} -E env PKG_CONFIG_PATH=${folder} ${pkg_config} convoy)
  run(${ask} --modversion)
  set(told "${output}")
  run(${ask} --cflags --libs)
  set(told "${told}${output}")
  if(NOT told MATCHES "^${VERSION}\n.*/include.*-lconvoy")
    message(FATAL_ERROR "pkg-config says: ${told}")
  endif()
elseif(library AND NOT package_file)
  message(FATAL_ERROR "no convoy.pc in ${WORK}/prefix")
endif()

# The example with a functor of its own, by the installed templates.
if(NVCC)
  run(${CMAKE_COMMAND} -S ${EXAMPLE} -B ${WORK}/functor -DCMAKE_PREFIX_PATH=${WORK}/prefix
      -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_CUDA_COMPILER=${NVCC})
  run(${CMAKE_COMMAND} --build ${WORK}/functor)
  if(VGPU)
    run(${VGPU} run --gpu h200 -- ${WORK}/functor/functor)
    if(NOT output MATCHES "0 of 2048 outputs are wrong")
      message(FATAL_ERROR "the functor on the virtual H200: ${output}")
    endif()
  endif()
endif()

# Another minor version before 1.0 is another interface.
execute_process(COMMAND ${configure} -DWANTED=0.99 RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
if(NOT failed)
  message(FATAL_ERROR "find_package(convoy 0.99) was satisfied by ${VERSION}")
endif()

if(PROGRAM)
  run(${WORK}/prefix/bin/convoy info)
  if(NOT output MATCHES "resnet50")
    message(FATAL_ERROR "the installed program does not find its shape sets:\n${output}")
  endif()
endif()
