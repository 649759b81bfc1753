# SPDX-License-Identifier: Apache-2.0
# Which code of which GPU a folder of kernels carries.

# convoy_gpu_code(<variable> 80 90 [FOR 80 120]): what -gencode is told, "arch;code;arch;code;...", for kernels
# that are compiled for these architectures: PTX of each, and with CONVOY_SASS machine code. 80 and 90 are PTX
# for any GPU since Ampere and since Hopper; the machine code of a GPU is made of the last of them that it runs.
# With FOR, machine code of no others than these GPUs, be they none.
# NOTE: of the last alone. Kernels are launched by what the GPU can do (launch.cpp); code for Hopper that was
# made of 80's PTX does not wait for the kernel before it, and of two for one GPU the runtime takes the first.
function(convoy_gpu_code result)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "FOR")
  set(gpus ${CONVOY_OTHER_GPUS})
  if(CONVOY_WITH_SM90 OR NOT (CONVOY_WITH_SM100 OR CONVOY_OTHER_GPUS))
    list(APPEND gpus 90)
  endif()
  if(CONVOY_WITH_SM100 OR NOT (CONVOY_WITH_SM90 OR CONVOY_OTHER_GPUS))
    list(APPEND gpus 100)
  endif()
  list(REMOVE_DUPLICATES gpus)
  if("FOR" IN_LIST ARGN)
    foreach(gpu IN LISTS gpus)
      if(NOT gpu IN_LIST arg_FOR)
        list(REMOVE_ITEM gpus ${gpu})
      endif()
    endforeach()
  endif()
  set(flags "")
  foreach(architecture IN LISTS arg_UNPARSED_ARGUMENTS)
    set(code compute_${architecture})
    if(CONVOY_SASS AND architecture MATCHES "^(80|90)$")
      foreach(gpu IN LISTS gpus)
        set(best "")
        foreach(other IN LISTS arg_UNPARSED_ARGUMENTS)
          if(other MATCHES "^(80|90)$" AND other LESS_EQUAL gpu AND (NOT best OR other GREATER best))
            set(best ${other})
          endif()
        endforeach()
        if(best STREQUAL architecture)
          string(APPEND code ",sm_${gpu}")
        endif()
      endforeach()
    elseif(CONVOY_SASS)
      string(APPEND code ",sm_${architecture}")
    endif()
    list(APPEND flags compute_${architecture} ${code})
  endforeach()
  set(${result} ${flags} PARENT_SCOPE)
endfunction()
