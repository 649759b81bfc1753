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
      -DCMAKE_UNITY_BUILD=ON
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
