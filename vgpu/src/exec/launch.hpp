// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fault.hpp"
#include "ptx/module.hpp"

/// The interface of the execution engine: load PTX as a Program once, launch its kernels many
/// times.
namespace vgpu::exec {

/// What pointers to device functions hold: no memory lies there.
inline constexpr uint64_t kFunctionAddress = 0x6200'0000'0000'0000, kFunctionStride = 16;
constexpr uint64_t function_address(uint64_t number) {
  return kFunctionAddress + number * kFunctionStride;
}
/// The place in Module::functions, beyond its end for what is no such pointer.
constexpr uint64_t function_number(uint64_t address) {
  const uint64_t offset = address - kFunctionAddress;
  return offset % kFunctionStride ? ~0ull : offset / kFunctionStride;
}

class Observer;

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t count() const { return uint64_t{x} * y * z; }
};

/// What exec needs to know of the GPU it stands for.
struct DeviceSpec {
  std::string name = "B200";
  uint32_t compute_major = 10, compute_minor = 0;
  uint32_t sm_count = 148;
  uint32_t max_shared_per_block = 232448;  ///< with opt-in, static + dynamic
  uint32_t max_threads_per_block = 1024;
  uint32_t max_cluster_size = 16;  ///< non-portable maximum
};

/// When asynchronous operations (TMA, bulk copies, MMA, …) happen.
enum class Delivery : uint8_t {
  late,    ///< only when no warp can run: as late as legal
  early,   ///< at issue
  sweep,   ///< one of each queue per pass over the warps
  random,  ///< at random times; unordered queues in random order
};

struct Options {
  uint64_t seed = 1;
  Delivery delivery = Delivery::late;
  uint32_t threads = 1;               ///< host threads; clusters are spread over them
  uint32_t resident_clusters = 0;     ///< clusters run at a time; 0: chosen from the SM count
  uint64_t spin_limit = 100'000'000;  ///< warp instructions without any side effect before a
                                      ///< cluster counts as stuck (cudaErrorLaunchTimeout)
  /// The same for a pause: after so many in each cluster, a grid that can only go on when its polls
  /// of global memory are answered from outside pauses. 0: never.
  uint64_t pause_after = 0;
};

/// The allocations a kernel may touch, kept by the runtime. Device pointers are host addresses.
/// Called from several threads at once while a kernel runs; the host's allocations do not change
/// meanwhile.
class GlobalMemory {
 public:
  struct Range {
    uint64_t base = 0;
    uint64_t size = 0;
    bool read_only = false;  ///< __constant__ variables
  };
  virtual ~GlobalMemory() = default;
  /// The live allocation that holds `address`; size 0 when there is none.
  virtual Range find(uint64_t address) const = 0;
  /// Why [address, address + bytes) is not accessible, in words: nearest allocation, freed, past
  /// the end by how much.
  virtual std::string explain(uint64_t address, uint64_t bytes) const = 0;
  /// Device code's malloc: an address, 0 where there is no room.
  virtual uint64_t allocate(uint64_t /*bytes*/) const { return 0; }
  /// Device code's free: false where no allocation of device code's starts there.
  virtual bool release(uint64_t /*address*/) const { return false; }
  /// Device code's cudaGraphSetConditional: false where no condition has that handle.
  virtual bool set_condition(uint64_t /*handle*/, uint32_t /*value*/) const { return false; }
};

struct KernelParameter {
  uint32_t offset = 0, size = 0, align = 0;
};

struct KernelInfo {
  std::string name;
  std::vector<KernelParameter> params;
  uint32_t param_bytes = 0;
  uint32_t static_shared = 0;  ///< bytes, without the 1 KiB that the hardware reserves
  uint32_t local_bytes = 0;    ///< a thread
  uint32_t registers = 0;      ///< declared bound (.maxnreg / launch bounds), else an estimate
  uint32_t max_threads = 1024;
  Dim3 required_block{0, 0, 0};    ///< .reqntid, 0: none
  Dim3 required_cluster{0, 0, 0};  ///< .reqnctapercluster, 0: none
  bool uses_shared_clusters = false;
  /// Why the kernel cannot be launched, listing every missing opcode form, its line and its uses;
  /// empty: it can.
  std::string refusal;
};

/// A module variable that the runtime must give storage to before a launch.
struct Symbol {
  std::string name;
  uint64_t size = 0;
  uint32_t align = 1;
  bool is_constant = false;
  const ptx::Variable* variable = nullptr;  ///< initial bytes and relocations
};

struct Kernel;  // decoded code, exec/program.hpp

/// A module decoded for execution.
class Program {
 public:
  /// Parses and decodes. Throws Fault (kInvalidPtx) for text that does not parse. A kernel with
  /// forms that are not known is refused when it is launched (KernelInfo::refusal): modules hold
  /// kernels that a program never uses.
  static std::unique_ptr<Program> load(std::string ptx_text);
  ~Program();

  const ptx::Module& module() const { return *module_; }
  const std::vector<KernelInfo>& kernels() const { return kernel_infos_; }
  /// The refusals of all kernels; empty when each can be launched.
  std::string refusals() const;
  const KernelInfo* find_kernel(std::string_view name) const;
  /// Global and constant variables; LaunchRequest::symbol_addresses is in this order.
  const std::vector<Symbol>& symbols() const { return symbols_; }
  const Kernel* kernel(std::string_view name) const;

 private:
  Program();
  std::unique_ptr<ptx::Module> module_;
  std::vector<KernelInfo> kernel_infos_;
  std::vector<Symbol> symbols_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
};

struct LaunchRequest {
  const Program* program = nullptr;
  std::string kernel;           ///< PTX (mangled) name
  std::vector<uint8_t> params;  ///< the parameter space, laid out as KernelInfo::params says
  Dim3 grid, block, cluster;
  bool explicit_cluster = false;  ///< the launch or the kernel names cluster dimensions
  bool cooperative = false;       ///< the whole grid is resident and may wait for itself
  bool early = false;             ///< may start before the launch before it ends (programmatic)
  uint32_t dynamic_shared = 0;    ///< bytes
  std::span<const uint64_t> symbol_addresses;  ///< one for each of Program::symbols()
  const DeviceSpec* device = nullptr;
  const GlobalMemory* memory = nullptr;
  Options options;
  Observer* observer = nullptr;  ///< may be null
  /// Text of device-side printf; empty: stdout.
  std::function<void(std::string_view)> print;
};

struct LaunchResult {
  int cuda_error = 0;
  std::string report;  ///< empty on success
  uint64_t warp_instructions = 0;
  uint64_t lane_instructions = 0;
  uint64_t async_operations = 0;
  uint64_t mma_macs = 0;
  uint64_t tma_bytes = 0;
  double seconds = 0;
};

/// A grid that runs. What the request points to must live as long.
class Launch {
 public:
  /// Never throws: what is wrong with the request is in the result.
  explicit Launch(const LaunchRequest& request);
  ~Launch();
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  /// Runs until the grid has ended (true) or pauses (Options::pause_after).
  bool run();
  /// Whether the last run() had side effects.
  bool progressed() const;
  /// Warp instructions executed so far.
  uint64_t instructions() const;
  /// Ends a paused grid as stuck, with a report under that headline.
  void give_up(const std::string& headline);
  /// Of a grid that has ended.
  const LaunchResult& result() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Runs a grid to its end. Never throws: illegal configurations, faults, and deadlocks come back as
/// cuda_error and report.
LaunchResult launch(const LaunchRequest& request);

}  // namespace vgpu::exec
