// SPDX-License-Identifier: Apache-2.0
// mapa, getctarank and cluster launch control. Source: PTX ISA 9.0, "mapa", "getctarank",
// "clusterlaunchcontrol".
#include "exec/copy_ops.hpp"
#include "exec/lanes.hpp"

namespace vgpu::exec {
namespace {

using ptx::Type;

template <typename T>
Step map_address(Warp& w, const Instr& i, uint32_t lanes) {  // x: generic
  const T* a = w.lanes<T>(i.a);
  const uint32_t* rank = w.lanes<uint32_t>(i.b);
  uint64_t count = w.cluster->ctas.size();
  write_each_lane<T>(w, i.d, lanes, [&](uint32_t l) -> T {
    if (rank[l] >= count) {
      fault(kIllegalInstruction, "mapa to CTA rank %u in a cluster of %llu", rank[l],
            static_cast<unsigned long long>(count));
    }
    auto address = static_cast<uint64_t>(a[l]);
    uint64_t mapped = (address & kSharedOffsetMask) | uint64_t{rank[l]} << kSharedRankShift;
    return static_cast<T>(i.x ? mapped | kSharedWindow : mapped);
  });
  return Step::next;
}

bool decode_mapa(Decoder& d) {
  bool shared = d.take("shared::cluster");
  Type type = d.take_type();
  if (type != Type::u32 && type != Type::u64) return false;
  unsigned bytes = ptx::size_of(type);
  d.out.d = d.dest(0, bytes);
  d.out.a = d.source(1, bytes);
  d.out.b = d.source(2, 4);
  d.out.x = !shared;
  d.out.handler = bytes == 4 ? map_address<uint32_t> : map_address<uint64_t>;
  return shared || bytes == 8;
}

template <typename T>
Step rank_of_address(Warp& w, const Instr& i, uint32_t lanes) {
  const T* a = w.lanes<T>(i.a);
  write_lanes<uint32_t>(
      w, i.d, lanes, [=](uint32_t l) { return static_cast<uint32_t>(a[l]) >> kSharedRankShift; });
  return Step::next;
}

bool decode_getctarank(Decoder& d) {
  d.take("shared::cluster");
  Type type = d.take_type();
  if (type != Type::u32 && type != Type::u64) return false;
  d.out.d = d.dest(0, 4);
  d.out.a = d.source(1, ptx::size_of(type));
  d.out.handler = type == Type::u32 ? rank_of_address<uint32_t> : rank_of_address<uint64_t>;
  return true;
}

// ------------------------------------------------------------------ cluster launch control
// The 16-byte response is opaque to programs: x, y, z of the cluster's first CTA, then whether a
// cluster was taken.

using Response = std::array<uint32_t, 4>;

Step try_cancel(Warp& w, const Instr& i, uint32_t lanes) {  // x: multicast to the whole cluster
  for_lanes(lanes, [&](uint32_t l) {
    Cluster& cluster = *w.cluster;
    uint32_t to = shared_operand(read_address(w, i[0], l), "clusterlaunchcontrol.try_cancel");
    uint32_t barrier = mbarrier_address(read_address(w, i[1], l));
    if (to & 15) {
      fault(kMisalignedAddress,
            "clusterlaunchcontrol.try_cancel: response at %#x must be 16-byte aligned", to);
    }
    // PTX ISA, "clusterlaunchcontrol.try_cancel": undefined after a failure was observed.
    if (w.launch_control_ended) {
      fault(kIllegalInstruction,
            "clusterlaunchcontrol.try_cancel by a warp that has seen an earlier one fail: there is "
            "no further cluster, and what another request gives is undefined");
    }
    uint32_t mask = i.x ? static_cast<uint32_t>((uint64_t{1} << cluster.ctas.size()) - 1) : 0;
    auto targets = copy_targets(w, to, barrier, i.x != 0, mask, false);
    for (auto& target : targets) {
      shared_range(*target.cta, target.offset, 16, "clusterlaunchcontrol response");
    }
    AsyncTask task;
    task.op = make_async(w, 1u << l, AsyncKind::clc_try_cancel);
    task.op.bytes = 16;
    Cluster* where = &cluster;
    auto response = std::make_shared<Response>();
    task.run = [=](const AsyncOp& op) {
      Grid& grid = *where->grid;
      *response = {0, 0, 0, 0};
      int64_t number = grid.take_cluster();
      if (number >= 0) {
        auto n = static_cast<uint64_t>(number);
        auto& size = grid.request->cluster;
        *response = {static_cast<uint32_t>(n % grid.clusters[0]) * size.x,
                     static_cast<uint32_t>(n / grid.clusters[0] % grid.clusters[1]) * size.y,
                     static_cast<uint32_t>(n / grid.clusters[0] / grid.clusters[1]) * size.z, 1};
      }
      for (auto& target : targets) {
        notify_async(*where, op, Memory::shared, Access::write, target.cta->rank, target.offset,
                     16);
        std::memcpy(target.cta->shared.data() + target.offset, response->data(), 16);
      }
    };
    task.signal = [=](const AsyncOp& op) {
      for (auto& target : targets) {
        mbarrier_complete(*target.barrier_cta, target.barrier, 16, op.issuer, &op);
      }
    };
    issue(cluster, cluster.copies, std::move(task));
  });
  return Step::next;
}

Step query_cancel(Warp& w, const Instr& i, uint32_t lanes) {
  // x: 0 is_canceled, 1 ctaid vector, 2.. one component; y: response register.
  uint32_t canceled = 0;
  for_lanes(lanes, [&](uint32_t l) {
    Response response;
    std::memcpy(response.data(), w.registers + i.y + 16 * l, 16);
    canceled |= (response[3] & 1) << l;
    if (i.x == 1) {
      for (uint32_t k = 0; k < i[0].count; ++k) write_lane(w, i[0][k], l, k < 3 ? response[k] : 0);
    } else if (i.x >= 2) {
      write_lane(w, i[0], l, response[i.x - 2]);
    }
  });
  if (i.x == 0) {
    set_predicate(w, i.d, lanes, canceled);
    w.launch_control_ended |= canceled != lanes;
  }
  return Step::next;
}

bool decode_clc(Decoder& d) {
  if (d.take("try_cancel")) {
    if (!d.take("async")) return false;
    d.take("shared::cta");
    if (!d.take("mbarrier::complete_tx::bytes")) return false;
    d.out.x = d.take("multicast::cluster::all");
    d.make_refs(8);
    d.out.handler = try_cancel;
    return d.take("b128");
  }
  if (!d.take("query_cancel")) return false;
  d.out.y = d.source(1, 16);
  d.out.handler = query_cancel;
  if (d.take("is_canceled")) {
    d.out.x = 0;
    d.out.d = d.dest_predicate(0);
    return d.take("pred") && d.take("b128");
  }
  int component = d.take_one(
      {"get_first_ctaid", "get_first_ctaid::x", "get_first_ctaid::y", "get_first_ctaid::z"});
  if (component < 0) return false;
  d.out.x = static_cast<uint32_t>(component) + 1;
  if (component == 0 && !d.take("v4")) return false;
  d.make_refs(4);
  return d.take("b32") && d.take("b128");
}

}  // namespace

const OpcodeList& cluster_opcodes() {
  static const OpcodeList list{{"mapa", decode_mapa},
                               {"getctarank", decode_getctarank},
                               {"clusterlaunchcontrol", decode_clc}};
  return list;
}

}  // namespace vgpu::exec
