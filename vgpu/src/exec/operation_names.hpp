// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exec/observer.hpp"

namespace vgpu::exec {

/// What reports, statistics and timelines call an asynchronous operation.
inline const char* operation_name(AsyncKind kind) {
  switch (kind) {
    case AsyncKind::tma_load:
      return "TMA load";
    case AsyncKind::tma_store:
      return "TMA store";
    case AsyncKind::tma_reduce:
      return "TMA reduction";
    case AsyncKind::tma_prefetch:
      return "TMA prefetch";
    case AsyncKind::bulk_load:
      return "bulk load";
    case AsyncKind::bulk_store:
      return "bulk store";
    case AsyncKind::bulk_reduce:
      return "bulk reduction";
    case AsyncKind::bulk_shared:
      return "bulk copy to distributed shared memory";
    case AsyncKind::cp_async:
      return "cp.async";
    case AsyncKind::st_async:
      return "st.async";
    case AsyncKind::wgmma:
      return "wgmma";
    case AsyncKind::tcgen05_mma:
      return "tcgen05.mma";
    case AsyncKind::tcgen05_cp:
      return "tcgen05.cp";
    case AsyncKind::tcgen05_shift:
      return "tcgen05.shift";
    case AsyncKind::tcgen05_ld:
      return "tcgen05.ld";
    case AsyncKind::tcgen05_st:
      return "tcgen05.st";
    case AsyncKind::tcgen05_commit:
      return "tcgen05.commit";
    case AsyncKind::clc_try_cancel:
      return "clusterlaunchcontrol.try_cancel";
  }
  return "asynchronous operation";
}

}  // namespace vgpu::exec
