# SPDX-License-Identifier: Apache-2.0
# The Python of the tests: the first interpreter that has numpy, of those that CMake finds and the
# system's, for which scripts/bootstrap.sh installs it; else the first of them.
#
# Sets CONVOY_PYTHON, empty where there is none.
set(CONVOY_PYTHON "")
find_package(Python3 QUIET COMPONENTS Interpreter)
foreach(candidate ${Python3_EXECUTABLE} /usr/bin/python3)
  if(NOT EXISTS ${candidate})
    continue()
  endif()
  if(NOT CONVOY_PYTHON)
    set(CONVOY_PYTHON ${candidate})
  endif()
  execute_process(COMMAND ${candidate} -c "import numpy"
                  RESULT_VARIABLE missing OUTPUT_QUIET ERROR_QUIET)
  if(NOT missing)
    set(CONVOY_PYTHON ${candidate})
    break()
  endif()
endforeach()
