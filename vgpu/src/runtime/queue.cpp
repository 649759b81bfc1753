// SPDX-License-Identifier: Apache-2.0
#include "runtime/queue.hpp"

#include <chrono>

#include "runtime/context.hpp"
#include "runtime/streams.hpp"

namespace vgpu::runtime {
namespace {

/// Calls f(stream) for every stream that may have work.
template <typename F>
void for_each_stream(const Context& context, F&& f) {
  f(*context.default_stream);
  for (const auto& [handle, stream] : context.streams) f(*stream);
  for (const auto& stream : context.destroyed_streams) f(*stream);
}

std::string name_of(const Work& work) {
  if (work.waits_for) return "a wait for an event";
  if (const auto* launch = std::get_if<KernelLaunch>(&work.operation)) {
    return "kernel " + launch->kernel->name + (work.kernel ? " (polls memory)" : "");
  }
  static constexpr const char* kNames[] = {
      "nothing",           "", "a copy",          "a memset",          "a host function",
      "an event's record", "", "a graph's start", "a conditional node"};
  return kNames[work.operation.index()];
}

/// The work of a graph's nodes, in their order, but for nodes within conditional ones.
void list_nodes(const Graph& graph, std::vector<Operation>& nodes) {
  for (const GraphNode* node : graph.in_order()) {
    if (!node->enabled) continue;
    if (const auto* sub = std::get_if<SubGraph>(&node->operation)) {
      list_nodes(*sub->graph, nodes);
    } else {
      nodes.push_back(node->operation);
    }
  }
}

/// NOTE: a while node may wait for the host, whose call must return then.
constexpr uint64_t kRoundsAtOnce = 256;

}  // namespace

uint64_t Queue::add(Context& context, Stream& stream, Operation operation) {
  if (auto* sub = std::get_if<SubGraph>(&operation)) {
    // The nodes one by one: the graph may be gone or changed when the last of them runs.
    StartConditions start;
    sub->graph->any_inside([&](Graph& graph) {
      for (const auto& condition : graph.conditions) {
        if (condition->starts_as_initial) start.conditions.push_back(condition);
      }
      return false;
    });
    std::vector<Operation> nodes;
    if (!start.conditions.empty()) nodes.push_back(std::move(start));
    list_nodes(*sub->graph, nodes);
    uint64_t last = last_number_;
    for (Operation& node : nodes) {
      if (auto* conditional = std::get_if<Conditional>(&node)) {
        for (auto& body : conditional->bodies) body = body->clone();
      }
      last = add(context, stream, std::move(node));
    }
    return last;
  }
  Work& work = stream.work.emplace_back();
  work.number = ++last_number_;
  work.operation = std::move(operation);
  auto* launch = std::get_if<KernelLaunch>(&work.operation);
  if (launch) launch->early &= last_kernel_ == &stream;
  last_kernel_ = launch ? &stream : nullptr;
  if (std::holds_alternative<EventRecord>(work.operation)) open_.insert(work.number);
  const uint64_t number = work.number;
  advance(context);
  return number;
}

void Queue::add_wait(Context& context, Stream& stream, uint64_t record) {
  if (!is_open(record)) return;
  Work& work = stream.work.emplace_back();
  work.number = ++last_number_;
  work.waits_for = record;
  advance(context);
}

bool Queue::idle(const Stream& stream) const {
  return stream.work.empty();
}

bool Queue::idle(const Context& context) const {
  bool idle = true;
  for_each_stream(context, [&](const Stream& stream) { idle &= stream.work.empty(); });
  return idle;
}

/// The default stream and blocking streams wait for each other's earlier work.
bool Queue::may_start(const Context& context, const Stream& stream) const {
  const uint64_t number = stream.work.front().number;
  const Stream* legacy = context.default_stream.get();
  if (stream.flags & cudaStreamNonBlocking) return true;
  if (&stream != legacy) return legacy->work.empty() || legacy->work.front().number > number;
  bool first = true;
  for_each_stream(context, [&](const Stream& other) {
    if (&other == legacy || other.flags & cudaStreamNonBlocking || other.work.empty()) return;
    first &= other.work.front().number > number;
  });
  return first;
}

/// Puts what the conditional node in front of the stream chooses before what is behind it; a while
/// node stays behind its body. Whether the stream can go on now.
bool Queue::run_conditional(Context& context, Stream& stream) {
  // It keeps what it chooses alive.
  Work node = std::move(stream.work.front());
  const auto& conditional = std::get<Conditional>(node.operation);
  const Graph* chosen = conditional.chosen();
  stream.work.pop_front();
  if (!chosen) return true;
  std::vector<Operation> nodes;
  list_nodes(*chosen, nodes);
  // A body's kernels start early behind kernels alone.
  for (size_t i = 0; i < nodes.size(); ++i) {
    auto* launch = std::get_if<KernelLaunch>(&nodes[i]);
    if (launch) launch->early &= i > 0 && std::holds_alternative<KernelLaunch>(nodes[i - 1]);
  }
  const uint64_t number = node.number;
  bool goes_on = true;
  if (conditional.type == cudaGraphCondTypeWhile) {
    goes_on = ++node.rounds % kRoundsAtOnce != 0;
    stream.work.push_front(std::move(node));
  }
  for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) {
    Work& next = stream.work.emplace_front();
    next.number = number;
    next.operation = std::move(*it);
  }
  if (!goes_on) start_thread(context);
  return goes_on;
}

/// Whether the first work of the stream is done.
bool Queue::run_front(Context& context, Stream& stream) {
  Work& work = stream.work.front();
  if (work.waits_for) return !is_open(work.waits_for);
  if (!work.kernel) {
    work.kernel = execute(context, work.operation);
    if (!work.kernel) {
      open_.erase(work.number);
      return true;
    }
    start_thread(context);
    return false;
  }
  const uint64_t before = work.kernel->instructions();
  const bool ended = work.kernel->resume(context);
  progressed_ |= ended || work.kernel->progressed();
  spent_ += work.kernel->instructions() - before;
  return ended;
}

void Queue::advance(Context& context) {
  if (advancing_) return;  // a host function that calls the API: its work runs after it
  advancing_ = true;
  std::unordered_set<const Stream*> resting;  // until the next call: their while nodes turn on
  for (bool again = true; again;) {
    again = false;
    // NOTE: by index: work that runs may destroy or create streams.
    std::vector<Stream*> streams;
    for_each_stream(context, [&](Stream& stream) {
      if (!stream.work.empty() && !resting.contains(&stream)) streams.push_back(&stream);
    });
    for (Stream* stream : streams) {
      while (!stream->work.empty() && may_start(context, *stream)) {
        if (std::holds_alternative<Conditional>(stream->work.front().operation)) {
          again = progressed_ = true;
          if (run_conditional(context, *stream)) continue;
          resting.insert(stream);
          break;
        }
        try {
          if (!run_front(context, *stream)) break;
        } catch (...) {
          stream->work.pop_front();
          advancing_ = false;
          throw;
        }
        stream->work.pop_front();
        again = progressed_ = true;
      }
    }
  }
  advancing_ = false;
  if (context.sticky != cudaSuccess) discard(context);
  std::erase_if(context.destroyed_streams, [](const auto& stream) { return stream->work.empty(); });
}

void Queue::run_until(Context& context, const std::function<bool()>& done) {
  spent_ = 0;
  last_kernel_ = nullptr;
  while (!advancing_ && !done()) {
    progressed_ = false;
    advance(context);
    if (progressed_) spent_ = 0;
    if (done()) return;
    if (spent_ > context.options.exec.spin_limit) return give_up(context);
    // Other threads of the host may have something to say.
    context.mutex.unlock();
    std::this_thread::yield();
    context.mutex.lock();
  }
}

void Queue::finish(Context& context, Stream& stream) {
  run_until(context, [&] { return stream.work.empty(); });
}

void Queue::finish(Context& context) {
  run_until(context, [&] { return idle(context); });
}

void Queue::give_up(Context& context) {
  std::string streams;
  for_each_stream(context, [&](const Stream& stream) {
    if (stream.work.empty()) return;
    streams += format("\n  stream %llu:", stream.id);
    for (const Work& work : stream.work) {
      streams += (&work == &stream.work.front() ? " " : ", then ") + name_of(work);
    }
  });
  const std::string headline = format(
      "deadlock of streams: no side effect in %llu instructions; what waits can be ended "
      "only by work behind it, or by the host, which waits too%s",
      static_cast<unsigned long long>(spent_), streams.c_str());
  for_each_stream(context, [&](Stream& stream) {
    if (!stream.work.empty() && stream.work.front().kernel) {
      stream.work.front().kernel->give_up(context, headline);
    }
  });
  discard(context);
}

void Queue::discard(Context& context) {
  for_each_stream(context, [](Stream& stream) { stream.work.clear(); });
  open_.clear();
}

void Queue::start_thread(Context& context) {
  if (!thread_.joinable()) thread_ = std::thread([this, &context] { keep_going(context); });
}

/// NOTE: for a host that polls memory which a paused kernel will write.
void Queue::keep_going(Context& context) {
  while (!stop_.load()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (!context.mutex.try_lock()) continue;
    try {
      if (!idle(context)) advance(context);
    } catch (const Fault& problem) {
      context.sticky = static_cast<cudaError_t>(problem.cuda_error);
      log(1, problem.text);
    }
    context.mutex.unlock();
  }
}

void Queue::stop() {
  stop_.store(true);
  if (thread_.joinable()) thread_.join();
}

}  // namespace vgpu::runtime
