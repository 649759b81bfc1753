// SPDX-License-Identifier: Apache-2.0
#include "runtime/operation.hpp"

#include <algorithm>
#include <cstring>

#include "runtime/context.hpp"
#include "runtime/streams.hpp"

namespace vgpu::runtime {
namespace {

constexpr uint32_t kDefaultSharedLimit = 48 * 1024;  // static + dynamic, without opt-in

std::string text(const exec::Dim3& dim) {
  return std::to_string(dim.x) + "x" + std::to_string(dim.y) + "x" + std::to_string(dim.z);
}

exec::Dim3 to_dim3(dim3 value) {
  return {value.x, value.y, value.z};
}

bool same(const exec::Dim3& a, const exec::Dim3& b) {
  return a.x == b.x && a.y == b.y && a.z == b.z;
}

// NOTE: the error codes of this and the next two are those of an H200 (probe/h200.txt).
cudaError_t check_shape(const Context& context, const exec::KernelInfo& info,
                        const exec::Dim3& grid, const exec::Dim3& block) {
  const cudaDeviceProp& limits = context.device.properties;
  if (grid.count() == 0 || block.count() == 0) {
    return fail(cudaErrorInvalidValue, "kernel %s: grid %s and block %s must not be empty",
                info.name.c_str(), text(grid).c_str(), text(block).c_str());
  }
  if (grid.x > static_cast<uint32_t>(limits.maxGridSize[0]) ||
      grid.y > static_cast<uint32_t>(limits.maxGridSize[1]) ||
      grid.z > static_cast<uint32_t>(limits.maxGridSize[2])) {
    return fail(cudaErrorInvalidValue, "kernel %s: grid %s exceeds %dx%dx%d", info.name.c_str(),
                text(grid).c_str(), limits.maxGridSize[0], limits.maxGridSize[1],
                limits.maxGridSize[2]);
  }
  if (block.x > static_cast<uint32_t>(limits.maxThreadsDim[0]) ||
      block.y > static_cast<uint32_t>(limits.maxThreadsDim[1]) ||
      block.z > static_cast<uint32_t>(limits.maxThreadsDim[2]) ||
      block.count() > static_cast<uint64_t>(limits.maxThreadsPerBlock)) {
    return fail(cudaErrorInvalidValue, "kernel %s: block %s exceeds %dx%dx%d or %d threads in all",
                info.name.c_str(), text(block).c_str(), limits.maxThreadsDim[0],
                limits.maxThreadsDim[1], limits.maxThreadsDim[2], limits.maxThreadsPerBlock);
  }
  if (block.count() > info.max_threads) {
    return fail(cudaErrorInvalidValue,
                "kernel %s: block %s has %llu threads, its launch bounds allow %u",
                info.name.c_str(), text(block).c_str(),
                static_cast<unsigned long long>(block.count()), info.max_threads);
  }
  if (info.required_block.count() != 0 && !same(info.required_block, block)) {
    return fail(cudaErrorInvalidValue, "kernel %s: block is %s, .reqntid requires %s",
                info.name.c_str(), text(block).c_str(), text(info.required_block).c_str());
  }
  return cudaSuccess;
}

cudaError_t check_cluster(const Context& context, const Kernel& kernel,
                          const exec::KernelInfo& info, const exec::Dim3& grid,
                          const exec::Dim3& cluster) {
  if (info.required_cluster.count() != 0 && !same(info.required_cluster, cluster)) {
    return fail(cudaErrorInvalidClusterSize,
                "kernel %s: cluster is %s, __cluster_dims__ requires %s", info.name.c_str(),
                text(cluster).c_str(), text(info.required_cluster).c_str());
  }
  const uint32_t limit =
      kernel.nonportable_cluster ? context.device.max_cluster : context.device.portable_cluster;
  if (cluster.count() == 0 || cluster.count() > limit) {
    return fail(cudaErrorInvalidClusterSize,
                "kernel %s: cluster %s has %llu blocks; 1 to %u are legal%s", info.name.c_str(),
                text(cluster).c_str(), static_cast<unsigned long long>(cluster.count()), limit,
                kernel.nonportable_cluster
                    ? ""
                    : " (up to 16 with cudaFuncAttributeNonPortableClusterSizeAllowed)");
  }
  if (grid.x % cluster.x || grid.y % cluster.y || grid.z % cluster.z) {
    return fail(cudaErrorInvalidClusterSize, "kernel %s: grid %s is no multiple of cluster %s",
                info.name.c_str(), text(grid).c_str(), text(cluster).c_str());
  }
  return cudaSuccess;
}

cudaError_t check_shared(const Context& context, const Kernel& kernel, const exec::KernelInfo& info,
                         size_t dynamic_shared) {
  // NOTE: the attribute replaces the default limit, downwards too (measured on an H200).
  const size_t granted =
      kernel.max_dynamic_shared >= 0
          ? static_cast<size_t>(kernel.max_dynamic_shared)
          : kDefaultSharedLimit - std::min(kDefaultSharedLimit, info.static_shared);
  if (dynamic_shared > granted) {
    return fail(cudaErrorInvalidValue,
                "kernel %s: %zu bytes of dynamic shared memory, %zu are granted (%u static); raise "
                "cudaFuncAttributeMaxDynamicSharedMemorySize, up to %zu",
                info.name.c_str(), dynamic_shared, granted, info.static_shared,
                context.device.properties.sharedMemPerBlockOptin - info.static_shared);
  }
  return cudaSuccess;
}

cudaError_t read_attributes(const exec::KernelInfo& info, const cudaLaunchAttribute* attributes,
                            unsigned count, KernelLaunch& launch) {
  for (unsigned i = 0; i < count; ++i) {
    const cudaLaunchAttributeValue& value = attributes[i].val;
    switch (attributes[i].id) {
      case cudaLaunchAttributeClusterDimension:
        launch.cluster = {value.clusterDim.x, value.clusterDim.y, value.clusterDim.z};
        launch.explicit_cluster = true;
        break;
      case cudaLaunchAttributeCooperative:
        launch.cooperative = value.cooperative != 0;
        break;
      // NOTE: work runs in order, so a dependent kernel always starts after its predecessor has
      // ended: the latest start that programmatic dependent launch allows. What needs that order
      // without griddepcontrol.wait is the checker's to tell.
      case cudaLaunchAttributeProgrammaticStreamSerialization:
        launch.early = value.programmaticStreamSerializationAllowed != 0;
        break;
      // Hints without an effect on results.
      case cudaLaunchAttributeIgnore:
      case cudaLaunchAttributeAccessPolicyWindow:
      case cudaLaunchAttributeSynchronizationPolicy:
      case cudaLaunchAttributeClusterSchedulingPolicyPreference:
      case cudaLaunchAttributePriority:
      case cudaLaunchAttributeMemSyncDomainMap:
      case cudaLaunchAttributeMemSyncDomain:
      case cudaLaunchAttributePreferredClusterDimension:
      case cudaLaunchAttributePreferredSharedMemoryCarveout:
      case cudaLaunchAttributeNvlinkUtilCentricScheduling:
        break;
      default:
        return fail(cudaErrorNotSupported, "kernel %s: launch attribute %d is not modelled",
                    info.name.c_str(), static_cast<int>(attributes[i].id));
    }
  }
  return cudaSuccess;
}

// The exec library's view of global memory.
class LaunchMemory : public exec::GlobalMemory {
 public:
  explicit LaunchMemory(Context& context)
      : memory_(context.memory),
        heap_(context.device_heap),
        conditions_(context.conditions),
        pin_(memory_) {}

  Range find(uint64_t address) const override {
    const Allocation* allocation = memory_.find(address);
    if (allocation == nullptr || !allocation->live()) return {};
    if (heap_.contains(address)) {
      const DeviceHeap::Block block = heap_.find(address);
      return {block.base, block.bytes, false};
    }
    return {allocation->base(), allocation->bytes(), allocation->kind() == MemoryKind::constant};
  }
  std::string explain(uint64_t address, uint64_t bytes) const override {
    return heap_.contains(address) ? heap_.describe(address) : memory_.check(address, bytes);
  }
  uint64_t allocate(uint64_t bytes) const override { return heap_.allocate(bytes); }
  bool release(uint64_t address) const override { return heap_.release(address); }
  bool set_condition(uint64_t handle, uint32_t value) const override {
    const auto condition = conditions_.find(handle);
    if (condition) condition->value.store(value);
    return condition != nullptr;
  }

 private:
  vgpu::GlobalMemory& memory_;
  DeviceHeap& heap_;
  const ConditionTable& conditions_;
  vgpu::GlobalMemory::Pin pin_;
};

/// What a kernel should not have stored, and the host is about to see: the copy fails.
bool find_spoiled(Context& context, const void* source, size_t bytes) {
  const auto address = reinterpret_cast<uint64_t>(source);
  const Allocation* allocation = context.memory.find(address);
  if (!allocation || !allocation->contains(address, bytes)) return false;
  const auto rule = allocation->spoiled(address, bytes);
  if (!rule) return false;
  context.sticky = cudaErrorLaunchFailure;
  log(1, format("%s in a copy to the host\n%s check: %s\n  then:    %s is copied to the host",
                cudaGetErrorName(context.sticky), rule->check, rule->text.c_str(),
                context.memory.describe(address).c_str()));
  return true;
}

void run(Context& context, const Copy& copy) {
  const Allocation* target = context.memory.find(reinterpret_cast<uint64_t>(copy.target));
  const bool to_host = !target || target->kind() == MemoryKind::host;
  for (size_t z = 0; z < copy.depth; ++z) {
    for (size_t y = 0; y < copy.height; ++y) {
      auto* target =
          static_cast<uint8_t*>(copy.target) + z * copy.target_slice + y * copy.target_pitch;
      const auto* source =
          static_cast<const uint8_t*>(copy.source) + z * copy.source_slice + y * copy.source_pitch;
      if (to_host && find_spoiled(context, source, copy.width)) return;
      std::memmove(target, source, copy.width);
      context.memory.mark_written(reinterpret_cast<uint64_t>(target), copy.width);
    }
  }
}

void run(Context& context, const Fill& fill) {
  for (size_t z = 0; z < fill.depth; ++z) {
    for (size_t y = 0; y < fill.height; ++y) {
      auto* target = static_cast<uint8_t*>(fill.target) + z * fill.slice + y * fill.pitch;
      const size_t bytes = fill.width * fill.element_bytes;
      if (fill.element_bytes == 1) {
        std::memset(target, static_cast<int>(fill.value), bytes);
      } else {
        for (size_t i = 0; i < bytes; i += fill.element_bytes) {
          std::memcpy(target + i, &fill.value, fill.element_bytes);
        }
      }
      context.memory.mark_written(reinterpret_cast<uint64_t>(target), bytes);
    }
  }
}

void run(Context&, const Empty&) {}
void run(Context&, const StartConditions& start) {
  for (const auto& condition : start.conditions) condition->value.store(condition->initial);
}
void run(Context&, const HostCall& host) {
  host.function(host.data);
}
void run(Context&, const EventRecord& record) {
  record.event->recorded = true;
  record.event->time = Event::Clock::now();
}

// One side of a copy: device memory must be one live allocation; other addresses are the host's.
cudaError_t check_side(Context& context, const char* what, const void* address, size_t pitch,
                       size_t slice, const Copy& copy, bool must_be_device, bool must_be_host) {
  const uint64_t first = reinterpret_cast<uint64_t>(address);
  const size_t bytes = (copy.depth - 1) * slice + (copy.height - 1) * pitch + copy.width;
  const Allocation* inside = context.memory.find(first);
  const bool in_arena = first >= GlobalMemory::kArenaBase &&
                        first < GlobalMemory::kArenaBase + GlobalMemory::kArenaBytes;
  if (inside != nullptr || in_arena || must_be_device) {
    if (const std::string problem = context.memory.check(first, bytes); !problem.empty()) {
      return fail(cudaErrorInvalidValue, "copy: the %s is not valid: %s", what, problem.c_str());
    }
    if (context.device_heap.contains(first)) {
      return fail(cudaErrorInvalidValue,
                  "copy: the %s is %s, which only kernels reach (CUDA C++ Programming Guide, "
                  "\"Dynamic Global Memory Allocation\")",
                  what, context.device_heap.describe(first).c_str());
    }
    if (must_be_host && inside->kind() == MemoryKind::device) {
      return fail(cudaErrorInvalidValue, "copy: the %s is device memory (%s), the kind says host",
                  what, context.memory.describe(first).c_str());
    }
  } else if (address == nullptr) {
    return fail(cudaErrorInvalidValue, "copy: the %s is a null pointer", what);
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t prepare_launch(Context& context, const void* function, dim3 grid, dim3 block,
                           size_t dynamic_shared, void** args,
                           const cudaLaunchAttribute* attributes, unsigned attribute_count,
                           KernelLaunch& launch) {
  Kernel* kernel = context.find_kernel(function);
  if (kernel == nullptr) {
    return fail(cudaErrorInvalidResourceHandle, "launch: %p is not a kernel of this program",
                function);
  }
  const exec::KernelInfo& info = context.info(*kernel);
  if (!info.refusal.empty()) throw Fault(kNotSupported, info.refusal);
  launch.kernel = kernel;
  launch.grid = to_dim3(grid);
  launch.block = to_dim3(block);
  launch.explicit_cluster = info.required_cluster.count() != 0;
  launch.cluster = launch.explicit_cluster ? info.required_cluster : exec::Dim3{};
  cudaError_t error = read_attributes(info, attributes, attribute_count, launch);
  if (error == cudaSuccess) error = check_shape(context, info, launch.grid, launch.block);
  if (error == cudaSuccess) {
    error = check_cluster(context, *kernel, info, launch.grid, launch.cluster);
  }
  if (error == cudaSuccess) error = check_shared(context, *kernel, info, dynamic_shared);
  if (error != cudaSuccess) return error;

  launch.dynamic_shared = static_cast<uint32_t>(dynamic_shared);
  launch.params.assign(info.param_bytes, 0);
  if (!info.params.empty() && args == nullptr) {
    return fail(cudaErrorInvalidValue, "kernel %s takes %zu arguments, none are given",
                info.name.c_str(), info.params.size());
  }
  for (size_t i = 0; i < info.params.size(); ++i) {
    std::memcpy(launch.params.data() + info.params[i].offset, args[i], info.params[i].size);
  }
  return cudaSuccess;
}

Copy copy_of(const cudaMemcpy3DParms& p) {
  if (p.srcArray || p.dstArray) {
    fault(kNotSupported, "copies of CUDA arrays are not provided by the virtual GPU");
  }
  Copy copy;
  copy.target_pitch = p.dstPtr.pitch;
  copy.target_slice = p.dstPtr.pitch * p.dstPtr.ysize;
  copy.source_pitch = p.srcPtr.pitch;
  copy.source_slice = p.srcPtr.pitch * p.srcPtr.ysize;
  copy.target = static_cast<uint8_t*>(p.dstPtr.ptr) + p.dstPos.z * copy.target_slice +
                p.dstPos.y * copy.target_pitch + p.dstPos.x;
  copy.source = static_cast<const uint8_t*>(p.srcPtr.ptr) + p.srcPos.z * copy.source_slice +
                p.srcPos.y * copy.source_pitch + p.srcPos.x;
  copy.width = p.extent.width;
  copy.height = p.extent.height;
  copy.depth = p.extent.depth;
  copy.kind = p.kind;
  return copy;
}

cudaError_t check_copy(Context& context, const Copy& copy) {
  if (copy.width == 0 || copy.height == 0 || copy.depth == 0) return cudaSuccess;
  if (copy.kind < cudaMemcpyHostToHost || copy.kind > cudaMemcpyDefault) {
    return fail(cudaErrorInvalidMemcpyDirection, "copy: kind %d is not a cudaMemcpyKind",
                static_cast<int>(copy.kind));
  }
  if (copy.height > 1 && (copy.width > copy.target_pitch || copy.width > copy.source_pitch)) {
    return fail(cudaErrorInvalidPitchValue,
                "copy: rows of %zu bytes do not fit pitches of %zu (target) and %zu (source)",
                copy.width, copy.target_pitch, copy.source_pitch);
  }
  const bool from_device =
      copy.kind == cudaMemcpyDeviceToHost || copy.kind == cudaMemcpyDeviceToDevice;
  const bool to_device =
      copy.kind == cudaMemcpyHostToDevice || copy.kind == cudaMemcpyDeviceToDevice;
  const bool checked = copy.kind != cudaMemcpyDefault;
  cudaError_t error = check_side(context, "target", copy.target, copy.target_pitch,
                                 copy.target_slice, copy, to_device, checked && !to_device);
  if (error != cudaSuccess) return error;
  return check_side(context, "source", copy.source, copy.source_pitch, copy.source_slice, copy,
                    from_device, checked && !from_device);
}

cudaError_t check_fill(Context& context, const Fill& fill) {
  if (fill.width == 0 || fill.height == 0 || fill.depth == 0) return cudaSuccess;
  const size_t row = fill.width * fill.element_bytes;
  if (fill.height > 1 && row > fill.pitch) {
    return fail(cudaErrorInvalidValue, "memset: rows of %zu bytes do not fit a pitch of %zu", row,
                fill.pitch);
  }
  const size_t bytes = (fill.depth - 1) * fill.slice + (fill.height - 1) * fill.pitch + row;
  const auto address = reinterpret_cast<uint64_t>(fill.target);
  if (const std::string problem = context.memory.check(address, bytes); !problem.empty()) {
    return fail(cudaErrorInvalidValue, "memset: %s", problem.c_str());
  }
  return cudaSuccess;
}

struct RunningKernel::Parts {
  KernelLaunch launch;
  LaunchMemory memory;
  exec::LaunchRequest request;
  std::unique_ptr<exec::Launch> run;
};

RunningKernel::RunningKernel(Context& context, const KernelLaunch& launch)
    : parts_(new Parts{launch, LaunchMemory(context), {}, nullptr}) {
  exec::LaunchRequest& request = parts_->request;
  request.program = &launch.kernel->module->load(context.device.arch, context.memory);
  request.kernel = launch.kernel->name;
  request.params = launch.params;
  request.grid = launch.grid;
  request.block = launch.block;
  request.cluster = launch.cluster;
  request.explicit_cluster = launch.explicit_cluster;
  request.cooperative = launch.cooperative;
  request.early = launch.early;
  request.dynamic_shared = launch.dynamic_shared;
  request.symbol_addresses = launch.kernel->module->symbol_addresses();
  request.device = &context.device.spec;
  request.memory = &parts_->memory;
  request.options = context.options.exec;
  request.observer = context.observers.get();
  parts_->run = std::make_unique<exec::Launch>(request);
}

RunningKernel::~RunningKernel() = default;

bool RunningKernel::resume(Context& context) {
  if (!parts_->run->run()) return false;
  report(context);
  return true;
}

bool RunningKernel::progressed() const {
  return parts_->run->progressed();
}

uint64_t RunningKernel::instructions() const {
  return parts_->run->instructions();
}

void RunningKernel::give_up(Context& context, const std::string& headline) {
  parts_->run->give_up(headline);
  report(context);
}

void RunningKernel::report(Context& context) const {
  const KernelLaunch& launch = parts_->launch;
  const exec::LaunchResult& result = parts_->run->result();
  if (context.options.log_level >= 2) {
    log(2,
        format("kernel %s grid %s block %s cluster %s dynamic shared %u: %.3f s, %llu warp "
               "instructions, %.1f M lane instructions/s, %llu MACs, %llu TMA bytes",
               launch.kernel->name.c_str(), text(launch.grid).c_str(), text(launch.block).c_str(),
               text(launch.cluster).c_str(), launch.dynamic_shared, result.seconds,
               static_cast<unsigned long long>(result.warp_instructions),
               static_cast<double>(result.lane_instructions) / 1e6 / std::max(result.seconds, 1e-9),
               static_cast<unsigned long long>(result.mma_macs),
               static_cast<unsigned long long>(result.tma_bytes)));
  }
  if (result.cuda_error != 0) {
    context.sticky = static_cast<cudaError_t>(result.cuda_error);
    log(1, std::string(cudaGetErrorName(context.sticky)) + " in kernel " + launch.kernel->name +
               "\n" + result.report);
  }
}

std::unique_ptr<RunningKernel> execute(Context& context, const Operation& operation) {
  if (context.sticky != cudaSuccess) return nullptr;
  if (const auto* launch = std::get_if<KernelLaunch>(&operation)) {
    auto kernel = std::make_unique<RunningKernel>(context, *launch);
    return kernel->resume(context) ? nullptr : std::move(kernel);
  }
  std::visit(
      [&](const auto& what) {
        using What = std::decay_t<decltype(what)>;
        // Graphs are queued node by node.
        if constexpr (!std::is_same_v<What, KernelLaunch> && !std::is_same_v<What, SubGraph> &&
                      !std::is_same_v<What, Conditional>) {
          run(context, what);
        }
      },
      operation);
  return nullptr;
}

}  // namespace vgpu::runtime
