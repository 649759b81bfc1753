# SPDX-License-Identifier: Apache-2.0
# Kernel configurations from a table: every line becomes a small generated .cu, so that they compile
# in parallel and a changed line recompiles only itself.
#
# convoy_kernel_instances(<result>
#   COLUMNS m n ...       columns of instances.txt after the first, which lists type combinations:
#                         bf16,fp16 or bf16>fp32
#   [DERIVE <macro>]      called for each line and type combination, of which it knows line_number and
#                         type_number besides the columns; sets further variables
#   NAME <text>           name of an instance
#   FILE <text>           name of its source; instances that name the same one share it
#   HEADER <text>         what such a source begins with
#   SOURCE <text>         what an instance adds to it
#   FUNCTION <text>       declaration of the function that it defines, without arguments
# )
# Besides there is registry.cpp, whose instances() lists all, in the namespace convoy::<folder>; the
# folder's instances.hpp declares it.
# In the texts @column@, @name@, @type_name@ and @types@ are replaced; @types@ is what the caller's
# variable types_<type_name> holds (types_bf16, types_bf16_fp32). <result> gets all sources.
function(convoy_kernel_instances result)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "DERIVE;NAME;FILE;HEADER;SOURCE;FUNCTION" "COLUMNS")
  set(table ${CMAKE_CURRENT_SOURCE_DIR}/instances.txt)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/instances)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${table})
  file(STRINGS ${table} lines REGEX "^[a-z]")
  set(files "")
  set(declarations "")
  set(entries "")
  set(line_number -1)
  foreach(line IN LISTS lines)
    math(EXPR line_number "${line_number} + 1")
    string(REGEX REPLACE " +" ";" columns "${line}")
    list(POP_FRONT columns type_names)
    foreach(column IN LISTS arg_COLUMNS)
      list(POP_FRONT columns ${column})
    endforeach()
    if(NOT "${columns}" STREQUAL "")
      message(FATAL_ERROR "${table}: more columns than ${arg_COLUMNS} in '${line}'")
    endif()
    string(REPLACE "," ";" type_names "${type_names}")
    set(type_number -1)
    foreach(type_name IN LISTS type_names)
      math(EXPR type_number "${type_number} + 1")
      # Half of the fp16 instances are left out of builds for tests, where bf16 has the same code.
      math(EXPR odd_line "${line_number} % 2")
      if(CONVOY_EPILOGUES STREQUAL "turns" AND type_name STREQUAL "fp16" AND odd_line)
        continue()
      endif()
      if(arg_DERIVE)
        cmake_language(CALL ${arg_DERIVE})
      endif()
      string(REPLACE ">" "_" type_name "${type_name}")
      set(types "${types_${type_name}}")
      string(CONFIGURE "${arg_NAME}" name @ONLY)
      string(CONFIGURE "${arg_FUNCTION}" function @ONLY)
      string(CONFIGURE "${arg_FILE}" file @ONLY)
      string(CONFIGURE "${arg_SOURCE}" text @ONLY)
      if(NOT file IN_LIST files)
        list(APPEND files ${file})
        set(text_${file} "${arg_HEADER}")
      endif()
      string(APPEND text_${file} "${text}")
      string(APPEND declarations "${function}();\n")
      string(REGEX REPLACE "^.* " "" call "${function}")
      string(APPEND entries "      ${call}(),\n")
    endforeach()
  endforeach()
  set(sources "")
  foreach(file IN LISTS files)
    file(CONFIGURE OUTPUT ${folder}/${file}.cu CONTENT "${text_${file}}" @ONLY)
    list(APPEND sources ${folder}/${file}.cu)
  endforeach()
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR FILENAME architecture)
  file(CONFIGURE OUTPUT ${folder}/registry.cpp @ONLY CONTENT
"// Generated from src/kernels/@architecture@/instances.txt.
#include \"kernels/@architecture@/instances.hpp\"
namespace convoy::@architecture@ {
@declarations@
const std::vector<Instance>& instances() {
  static const std::vector<Instance> list = {
@entries@  };
  return list;
}
}  // namespace convoy::@architecture@
")
  set(${result} ${sources} ${folder}/registry.cpp PARENT_SCOPE)
endfunction()

# convoy_install_kernel_headers(<folder>): what users need who instantiate the kernels of an
# architecture with their own functors.
function(convoy_install_kernel_headers folder)
  set(internal ${CMAKE_INSTALL_INCLUDEDIR}/convoy/internal)
  set(src ${PROJECT_SOURCE_DIR}/src)
  install(DIRECTORY ${src}/kernels/common ${src}/kernels/${folder} DESTINATION ${internal}/kernels
          FILES_MATCHING PATTERN "*.cuh" PATTERN "*.hpp")
  install(FILES ${src}/kernels/composed/driver.hpp ${src}/kernels/composed/im2col_matmul.hpp
                ${src}/kernels/composed/qslice.hpp
          DESTINATION ${internal}/kernels/composed)
  install(FILES ${src}/core/candidate.hpp ${src}/core/geometry.hpp ${src}/core/shuffle.hpp DESTINATION ${internal}/core)
endfunction()
