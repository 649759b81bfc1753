# SPDX-License-Identifier: Apache-2.0
# Writes <build>/generated/convoy_git_hash.hpp (`#define CONVOY_GIT_HASH "1a2b3c4"`, "-dirty" where
# tracked files differ, "unknown" outside a git tree), anew at each build, touched on change only.

set(hash_script ${CMAKE_CURRENT_LIST_FILE})
set(hash_header ${PROJECT_BINARY_DIR}/generated/convoy_git_hash.hpp)

if(CMAKE_SCRIPT_MODE_FILE)
  execute_process(COMMAND git describe --always --dirty --exclude=* --abbrev=12
                  WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE hash ERROR_QUIET
                  OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
  if(failed OR NOT hash)
    set(hash unknown)
  endif()
  set(text "// Generated at each build by cmake/ConvoyGitHash.cmake.\n#pragma once\n#define CONVOY_GIT_HASH \"${hash}\"\n")
  set(old "")
  if(EXISTS ${HEADER})
    file(READ ${HEADER} old)
  endif()
  if(NOT text STREQUAL old)
    file(WRITE ${HEADER} "${text}")
  endif()
  return()
endif()

add_custom_target(convoy_git_hash
  COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -DHEADER=${hash_header} -P ${hash_script}
  BYPRODUCTS ${hash_header} VERBATIM)
