// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_set>

#include "runtime/operation.hpp"

namespace vgpu::runtime {

struct Stream;

/// Something that a stream has been asked to do and has not done yet.
struct Work {
  uint64_t number = 0;  ///< counts the work of all streams, in the order of the calls
  Operation operation;
  uint64_t waits_for = 0;  ///< instead of an operation: the number of an event's record
  std::unique_ptr<RunningKernel> kernel;  ///< has started and is paused
  uint64_t rounds = 0;                    ///< of a while node that has begun
};

/// Runs the work of all streams.
///
/// Work runs at once, in the calling thread and in the order of the calls: a legal schedule of any
/// stream program. A kernel that polls memory for what only a later call can write is paused, so
/// that the call which launched it returns; what is behind it in its stream waits, other streams go
/// on. A thread resumes paused kernels until they end, for hosts that poll memory themselves.
/// The rules of order are those of the CUDA C++ Programming Guide, "Streams": work of the default
/// stream and of streams without cudaStreamNonBlocking wait for each other.
class Queue {
 public:
  ~Queue() { stop(); }

  /// Adds work to a stream and runs what can run. Its number.
  uint64_t add(Context& context, Stream& stream, Operation operation);
  /// What is added to the stream later waits for the event's record of that number.
  void add_wait(Context& context, Stream& stream, uint64_t record);

  bool idle(const Stream& stream) const;
  bool idle(const Context& context) const;
  /// Whether the record of that number has not run yet.
  bool is_open(uint64_t record) const { return open_.contains(record); }

  /// Runs what can run now.
  void advance(Context& context);
  /// Runs until `done`. Kernels that wait for what nothing in flight writes end with a report
  /// (cudaErrorLaunchTimeout).
  void run_until(Context& context, const std::function<bool()>& done);
  void finish(Context& context, Stream& stream);
  void finish(Context& context);
  /// Forgets everything (cudaDeviceReset, or after an error).
  void discard(Context& context);
  /// Ends the thread.
  void stop();

 private:
  bool run_front(Context& context, Stream& stream);
  bool run_conditional(Context& context, Stream& stream);
  bool may_start(const Context& context, const Stream& stream) const;
  void give_up(Context& context);
  void start_thread(Context& context);
  void keep_going(Context& context);

  uint64_t last_number_ = 0;
  const Stream* last_kernel_ = nullptr;  // whose kernel was the last work, and nobody waited for it
  std::unordered_set<uint64_t> open_;    // numbers of records that have not run
  bool advancing_ = false;
  bool progressed_ = false;  // since it was last reset: some kernel had side effects
  uint64_t spent_ = 0;       // warp instructions of kernels that were paused
  std::thread thread_;
  std::atomic<bool> stop_{false};
};

}  // namespace vgpu::runtime
