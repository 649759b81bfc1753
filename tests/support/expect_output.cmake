# SPDX-License-Identifier: Apache-2.0
#
#   cmake -DEXPECT=REGEX [-DFAILS=ON] -P expect_output.cmake -- COMMAND...
#
# Passes where the command exits with 0, or with FAILS with another status, and its output matches.
# NOTE: ctest's PASS_REGULAR_EXPRESSION would pass whatever the exit status.
set(command)
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(i RANGE ${last})
  if(DEFINED first)
    string(REPLACE ";" "\\;" argument "${CMAKE_ARGV${i}}")
    list(APPEND command "${argument}")
  elseif("${CMAKE_ARGV${i}}" STREQUAL "--")
    set(first ${i})
  endif()
endforeach()
execute_process(COMMAND ${command} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output
                ECHO_OUTPUT_VARIABLE ECHO_ERROR_VARIABLE)
if((FAILS AND status STREQUAL "0") OR (NOT FAILS AND NOT status STREQUAL "0"))
  message(FATAL_ERROR "exit status ${status}")
endif()
if(NOT output MATCHES "${EXPECT}")
  message(FATAL_ERROR "the output does not match '${EXPECT}'")
endif()
