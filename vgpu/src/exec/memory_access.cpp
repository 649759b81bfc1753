// SPDX-License-Identifier: Apache-2.0
#include "exec/memory_access.hpp"

namespace vgpu::exec {

uint8_t* shared_range(Cta& cta, uint32_t offset, uint64_t bytes, const char* what) {
  if (offset < cta.shared_begin || offset + bytes > cta.shared.size()) {
    fault(kIllegalAddress,
          "%s out of bounds: shared memory of CTA rank %u has bytes %u to %zu, the access is to "
          "[%lld, %lld) (offsets from its start)",
          what, cta.rank, 0u, cta.shared.size() - kSharedReserved,
          static_cast<long long>(offset) - kSharedReserved,
          static_cast<long long>(offset + bytes) - kSharedReserved);
  }
  return cta.shared.data() + offset;
}

Cta& shared_cta(Cluster& cluster, uint32_t address) {
  uint32_t rank = address >> kSharedRankShift;
  if (rank >= cluster.ctas.size()) {
    fault(kIllegalAddress, "shared::cluster address %#x names CTA rank %u of a cluster of %zu",
          address, rank, cluster.ctas.size());
  }
  return *cluster.ctas[rank];
}

uint8_t* global_pointer(Worker& worker, uint64_t address, uint64_t bytes, bool is_write) {
  for (auto& range : worker.ranges) {
    if (address - range.base < range.size && bytes <= range.size - (address - range.base) &&
        !(is_write && range.read_only)) {
      return reinterpret_cast<uint8_t*>(address);
    }
  }
  // The parameters are readable through generic addresses; so is what grid.sync() counts in.
  Grid& grid = *worker.grid;
  auto workspace = reinterpret_cast<uint64_t>(grid.workspace.data());
  if (grid.request->cooperative && address - workspace < sizeof grid.workspace &&
      bytes <= sizeof grid.workspace - (address - workspace)) {
    return reinterpret_cast<uint8_t*>(address);
  }
  auto params = reinterpret_cast<uint64_t>(grid.params);
  if (address - params < grid.param_bytes && bytes <= grid.param_bytes - (address - params)) {
    if (is_write) {
      fault(kIllegalAddress, "write to a kernel parameter (offset %llu)",
            static_cast<unsigned long long>(address - params));
    }
    return reinterpret_cast<uint8_t*>(address);
  }
  auto* memory = grid.request->memory;
  auto range = memory ? memory->find(address) : GlobalMemory::Range{};
  if (address - range.base >= range.size || bytes > range.size - (address - range.base)) {
    auto why = memory ? memory->explain(address, bytes) : std::string("there are no allocations");
    fault(kIllegalAddress, "global memory %s out of bounds: %llu bytes at 0x%llx: %s",
          is_write ? "write" : "read", static_cast<unsigned long long>(bytes),
          static_cast<unsigned long long>(address), why.c_str());
  }
  if (is_write && range.read_only) {
    fault(kIllegalAddress, "write to constant memory at 0x%llx",
          static_cast<unsigned long long>(address));
  }
  worker.ranges[worker.next_range++ % worker.ranges.size()] = range;
  return reinterpret_cast<uint8_t*>(address);
}

namespace {

uint8_t* local_pointer(Warp& w, uint32_t lane, uint64_t offset, uint32_t bytes) {
  size_t frame = w.kernel->local_bytes;
  if (offset > frame || bytes > frame - offset) {
    fault(kIllegalAddress,
          "local memory access out of bounds: %u bytes at offset %llu of %zu (lane %u)", bytes,
          static_cast<unsigned long long>(offset), frame, lane);
  }
  return w.local.data() + lane * frame + offset;
}

bool is_shared_generic(uint64_t address) {
  return (address >> 32) == (kSharedWindow >> 32);
}
bool is_local_generic(uint64_t address) {
  return (address >> 56) == (kLocalWindow >> 56);
}

uint8_t* cluster_shared_pointer(Warp& w, uint32_t address, uint32_t bytes, const char* what) {
  Cta& cta = shared_cta(*w.cluster, address);
  if (cta.live_warps == 0 && &cta != w.cta) {
    fault(kIllegalAddress, "%s of the shared memory of CTA rank %u, which has exited", what,
          cta.rank);
  }
  return shared_range(cta, address & kSharedOffsetMask, bytes, what);
}

const char* name_of(Access access) {
  return access == Access::read    ? "shared memory read"
         : access == Access::write ? "shared memory write"
                                   : "shared memory atomic";
}

}  // namespace

bool is_global(const MemoryRequest& request, uint64_t address) {
  return request.space == AddressSpace::global ||
         (request.space == AddressSpace::generic && !is_shared_generic(address) &&
          !is_local_generic(address));
}

uint8_t* generic_pointer(Warp& w, uint32_t lane, uint64_t address, uint32_t bytes, Access access) {
  if (is_shared_generic(address)) {
    return cluster_shared_pointer(w, static_cast<uint32_t>(address), bytes, name_of(access));
  }
  if (is_local_generic(address)) return local_pointer(w, lane, address - kLocalWindow, bytes);
  return global_pointer(*w.cluster->worker, address, bytes, access != Access::read);
}

namespace {

void check_alignment(uint32_t lanes, const uint64_t* addresses, uint32_t bytes) {
  uint64_t bits = 0;
  if (lanes == kAllLanes) {
    for (uint32_t l = 0; l < kLanes; ++l) bits |= addresses[l];
  } else {
    for_lanes(lanes, [&](uint32_t l) { bits |= addresses[l]; });
  }
  if ((bits & (bytes - 1)) == 0) return;
  for_lanes(lanes, [&](uint32_t l) {
    if (addresses[l] & (bytes - 1)) {
      fault(kMisalignedAddress, "misaligned access: %u bytes at address 0x%llx (lane %u)", bytes,
            static_cast<unsigned long long>(addresses[l]), l);
    }
  });
}

/// Whether 32 lanes stay within shared memory of the CTA whose window begins at `base`; if so,
/// where they point to.
bool resolve_warp(Cta& cta, uint32_t base, uint32_t bytes, const uint64_t* addresses,
                  uint8_t** pointers) {
  const auto size = static_cast<uint32_t>(cta.shared.size());
  if (size < kSharedReserved + bytes) return false;
  const uint32_t room = size - kSharedReserved - bytes;
  uint32_t outside = 0;
  for (uint32_t l = 0; l < kLanes; ++l) {
    const uint32_t offset = static_cast<uint32_t>(addresses[l]) - base - kSharedReserved;
    outside |= uint32_t{offset > room};
  }
  if (outside) return false;
  uint8_t* memory = cta.shared.data();
  for (uint32_t l = 0; l < kLanes; ++l) {
    pointers[l] = memory + (static_cast<uint32_t>(addresses[l]) - base);
  }
  return true;
}

/// Whether 32 lanes stay within the allocation of recent use that the first one hits; if so, where
/// they point to.
bool resolve_global(const Worker& worker, uint32_t bytes, bool is_write, const uint64_t* addresses,
                    uint8_t** pointers) {
  for (const GlobalMemory::Range& range : worker.ranges) {
    if (addresses[0] - range.base >= range.size) continue;
    if (bytes > range.size || (is_write && range.read_only)) return false;
    const uint64_t room = range.size - bytes;
    uint64_t outside = 0;
    for (uint32_t l = 0; l < kLanes; ++l) outside |= uint64_t{addresses[l] - range.base > room};
    if (outside) return false;
    std::memcpy(pointers, addresses, kLanes * sizeof *pointers);
    return true;
  }
  return false;
}

/// Tells the observer; generic addresses fall into one event for each memory.
void notify(Warp& w, const MemoryRequest& r, uint32_t lanes, const uint64_t* addresses,
            uint32_t unchanged) {
  auto tell = [&](Memory memory, uint32_t mask, const uint64_t* at, const uint8_t* ctas) {
    if (!mask) return;
    w.cluster->observer->access(agent_of(w, mask),
                                {memory, r.access, r.order, r.scope, r.bytes, at, ctas, unchanged});
  };
  uint64_t shared[kLanes];
  if (r.space == AddressSpace::param) return;
  if (r.space == AddressSpace::global) return tell(Memory::global, lanes, addresses, nullptr);
  if (r.space == AddressSpace::local) return tell(Memory::local, lanes, addresses, nullptr);
  if (r.space == AddressSpace::shared_cta) {
    for (uint32_t l = 0; l < kLanes; ++l) shared[l] = addresses[l] & kSharedOffsetMask;
    return tell(Memory::shared, lanes, shared, nullptr);
  }
  uint64_t local[kLanes];
  uint8_t ctas[kLanes] = {};
  uint32_t in_shared = 0, in_local = 0;
  for_lanes(lanes, [&](uint32_t l) {
    const uint64_t a = addresses[l];
    if (r.space == AddressSpace::generic && is_local_generic(a)) {
      in_local |= 1u << l;
      local[l] = a - kLocalWindow;
    } else if (r.space == AddressSpace::shared_cluster || is_shared_generic(a)) {
      in_shared |= 1u << l;
      shared[l] = a & kSharedOffsetMask;
      ctas[l] = static_cast<uint8_t>((a & 0xffffffffu) >> kSharedRankShift);
    }
  });
  tell(Memory::global, lanes & ~in_shared & ~in_local, addresses, nullptr);
  tell(Memory::shared, in_shared, shared, ctas);
  tell(Memory::local, in_local, local, nullptr);
}

}  // namespace

namespace {

/// The lanes that store what is there already.
uint32_t unchanged_lanes(const Warp& w, const StoredValues& stored, uint32_t lanes,
                         uint8_t* const* pointers) {
  uint32_t unchanged = 0;
  for_lanes(lanes, [&](uint32_t l) {
    bool same = true;
    for (unsigned k = 0; k < stored.count && same; ++k) {
      same = !std::memcmp(pointers[l] + k * stored.element,
                          w.registers + stored.registers[k] + l * stored.register_bytes[k],
                          stored.element);
    }
    unchanged |= uint32_t{same} << l;
  });
  return unchanged;
}

}  // namespace

void resolve(Warp& w, const MemoryRequest& r, uint32_t lanes, const uint64_t* addresses,
             uint8_t** pointers, const StoredValues* stored) {
  check_alignment(lanes, addresses, r.bytes);
  switch (r.space) {
    case AddressSpace::shared_cta: {
      Cta& cta = *w.cta;
      uint64_t base = uint64_t{cta.rank} << kSharedRankShift;
      if (lanes == kAllLanes &&
          resolve_warp(cta, static_cast<uint32_t>(base), r.bytes, addresses, pointers)) {
        break;
      }
      uint64_t size = cta.shared.size();
      for_lanes(lanes, [&](uint32_t l) {
        uint64_t offset = (addresses[l] & 0xffffffffu) - base;
        if (offset < cta.shared_begin || offset + r.bytes > size) {
          if (offset > kSharedOffsetMask && (addresses[l] & 0xffffffffu) >> kSharedRankShift) {
            fault(kIllegalAddress,
                  "%s through a shared::cta instruction: address 0x%llx belongs to CTA rank %llu, "
                  "this is rank %u",
                  name_of(r.access), static_cast<unsigned long long>(addresses[l]),
                  static_cast<unsigned long long>((addresses[l] & 0xffffffffu) >> kSharedRankShift),
                  cta.rank);
          }
          shared_range(cta, static_cast<uint32_t>(offset), r.bytes, name_of(r.access));
        }
        pointers[l] = cta.shared.data() + offset;
      });
      break;
    }
    case AddressSpace::shared_cluster:
      for_lanes(lanes, [&](uint32_t l) {
        pointers[l] = cluster_shared_pointer(w, static_cast<uint32_t>(addresses[l]), r.bytes,
                                             name_of(r.access));
      });
      break;
    case AddressSpace::global: {
      Worker& worker = *w.cluster->worker;
      bool is_write = r.access != Access::read;
      if (lanes == kAllLanes && resolve_global(worker, r.bytes, is_write, addresses, pointers)) {
        break;
      }
      for_lanes(lanes, [&](uint32_t l) {
        pointers[l] = global_pointer(worker, addresses[l], r.bytes, is_write);
      });
      break;
    }
    case AddressSpace::local:
      for_lanes(lanes,
                [&](uint32_t l) { pointers[l] = local_pointer(w, l, addresses[l], r.bytes); });
      break;
    case AddressSpace::param:
      // Kernel parameters have host addresses; parameters of device functions are frame offsets.
      for_lanes(lanes, [&](uint32_t l) {
        pointers[l] = addresses[l] < kSharedReserved * 1024u
                          ? local_pointer(w, l, addresses[l], r.bytes)
                          : global_pointer(*w.cluster->worker, addresses[l], r.bytes, false);
      });
      return;
    case AddressSpace::generic:
      for_lanes(lanes, [&](uint32_t l) {
        pointers[l] = generic_pointer(w, l, addresses[l], r.bytes, r.access);
      });
      break;
  }
  if (r.access != Access::read) ++w.cluster->activity;
  if (!w.cluster->observer) return;
  const bool shared = r.space != AddressSpace::global && r.space != AddressSpace::local;
  notify(w, r, lanes, addresses,
         stored && shared ? unchanged_lanes(w, *stored, lanes, pointers) : 0);
}

}  // namespace vgpu::exec
