// SPDX-License-Identifier: Apache-2.0
#include "trace/timeline.hpp"

#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "exec/operation_names.hpp"
#include "ptx/module.hpp"
#include "version.hpp"

namespace vgpu::trace {
namespace {

using namespace exec;

// Row numbers of a process: warps come first.
constexpr uint32_t kTmaRow = 1000, kTensorRow = 2000, kRows = 10000;
constexpr uint32_t kLanesOfRow = 64;  // operations that overlap are spread over several rows

// NOTE: Perfetto takes thread numbers for the system's: one of its own for each row of the file,
// and 0 is the idle thread.
uint64_t thread_number(uint64_t process, uint32_t row) {
  return process * kRows + row;
}

/// A mangled kernel name as people write it: "gemm<4>", without parameters, return type and the
/// namespaces that nvcc makes.
std::string readable(const std::string& mangled) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), std::free);
  if (!text) return mangled;
  // The name ends at the parameter list: the first '(' outside of <…>, and starts after the return
  // type and the last "::" outside of them.
  const std::string_view name = text.get();
  size_t begin = 0, end = name.size();
  int depth = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    if (name.substr(i).starts_with("(anonymous namespace)")) i += 21;
    if (name[i] == '<') ++depth;
    if (name[i] == '>') --depth;
    if (depth == 0 && (name[i] == ' ' || name[i] == ':')) begin = i + 1;
    if (depth == 0 && name[i] == '(') {
      end = i;
      break;
    }
  }
  return std::string(name.substr(begin, end - begin));
}

bool is_tensor_operation(AsyncKind kind) {
  return kind >= AsyncKind::wgmma && kind <= AsyncKind::tcgen05_commit;
}

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out;
}

class Writer {
 public:
  Writer(std::FILE* file, uint64_t max_events) : file_(file), left_(max_events) {
    std::fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n", file_);
  }

  /// What took no time is left out: viewers want the slices of a row apart.
  void slice(uint64_t process, uint32_t row, const char* category, uint64_t begin, uint64_t end,
             std::string_view name, std::string_view arguments) {
    if (end <= begin) return;
    write(
        format("{\"ph\":\"X\",\"cat\":\"%s\",\"pid\":%llu,\"tid\":%llu,\"ts\":%llu,\"dur\":%llu,"
               "\"name\":\"%s\",\"args\":{%.*s}}",
               category, static_cast<unsigned long long>(process),
               static_cast<unsigned long long>(thread_number(process, row)),
               static_cast<unsigned long long>(begin), static_cast<unsigned long long>(end - begin),
               escape(name).c_str(), static_cast<int>(arguments.size()), arguments.data()));
  }
  void name_process(uint64_t process, std::string_view name) {
    write(format("{\"ph\":\"M\",\"pid\":%llu,\"name\":\"process_name\",\"args\":{\"name\":\"%s\"}}",
                 static_cast<unsigned long long>(process), escape(name).c_str()));
  }
  void name_row(uint64_t process, uint32_t row, std::string_view name) {
    write(format(
        "{\"ph\":\"M\",\"pid\":%llu,\"tid\":%llu,\"name\":\"thread_name\",\"args\":{\"name\":"
        "\"%s\"}},\n{\"ph\":\"M\",\"pid\":%llu,\"tid\":%llu,\"name\":"
        "\"thread_sort_index\",\"args\":{\"sort_index\":%u}}",
        static_cast<unsigned long long>(process),
        static_cast<unsigned long long>(thread_number(process, row)), escape(name).c_str(),
        static_cast<unsigned long long>(process),
        static_cast<unsigned long long>(thread_number(process, row)), row));
  }

  bool finish() {
    const std::lock_guard lock(mutex_);
    if (file_ == nullptr) return true;
    std::fprintf(file_,
                 "\n],\"otherData\":{\"producer\":\"vgpu %s\","
                 "\"clock\":\"warp instructions of the cluster\"%s}}\n",
                 kVersion, left_ == 0 ? ",\"note\":\"cut off: too many events\"" : "");
    const bool written = std::ferror(file_) == 0;
    const bool closed = std::fclose(file_) == 0;
    file_ = nullptr;
    return written && closed;
  }

 private:
  void write(const std::string& event) {
    const std::lock_guard lock(mutex_);
    if (file_ == nullptr || left_ == 0) return;
    --left_;
    if (!first_) std::fputs(",\n", file_);
    first_ = false;
    std::fputs(event.c_str(), file_);
  }

  std::mutex mutex_;
  std::FILE* file_;
  uint64_t left_;
  bool first_ = true;
};

// One cluster: its clock counts its warp instructions.
class ClusterTimeline final : public ClusterObserver {
 public:
  ClusterTimeline(Writer& writer, const ClusterInfo& info, uint64_t first_process)
      : writer_(writer),
        module_(info.request->program->module()),
        first_process_(first_process),
        warps_(info.warps),
        rows_(static_cast<size_t>(info.ctas) * info.warps),
        slots_(static_cast<size_t>(info.ctas) * 2) {
    wants_instructions = true;
    const std::string name = readable(info.kernel->name);
    for (uint32_t cta = 0; cta < info.ctas; ++cta) {
      writer_.name_process(first_process_ + cta,
                           format("%s, cluster %llu, CTA %u", name.c_str(),
                                  static_cast<unsigned long long>(info.index), cta));
      for (uint32_t warp = 0; warp < warps_; ++warp) {
        writer_.name_row(first_process_ + cta, warp, format("warp %u", warp));
      }
    }
  }
  ~ClusterTimeline() override {
    for (size_t i = 0; i < rows_.size(); ++i) close(i);
    for (auto& [id, op] : open_) end_operation(op);
  }

  // An instruction lasts from one tick of the clock to the next.
  void instruction(const Agent& agent) override {
    const size_t at = index(agent);
    // Other lanes than those that wait go on.
    if (rows_[at].state == Row::kWaiting) close(at);
    if (rows_[at].state == Row::kIdle) {
      rows_[at].state = Row::kRunning;
      rows_[at].begin = clock_;
    }
    rows_[at].last = agent.instruction;
    ++clock_;
  }
  void blocked(const Agent& agent, const char* why) override {
    const size_t at = index(agent);
    if (rows_[at].state == Row::kWaiting) return;
    close(at);
    rows_[at] = {Row::kWaiting, clock_, agent.instruction, why};
  }
  void unblocked(const Agent& agent) override {
    const size_t at = index(agent);
    if (rows_[at].state != Row::kWaiting) return;
    close(at);
  }
  void exited(const Agent& agent) override { close(index(agent)); }

  // From the tick of the issuing instruction, whose end the clock shows already.
  void async_issue(const AsyncOp& op) override {
    // The four warps of a warpgroup issue one wgmma: it shows where the first of them does.
    if (op.kind == AsyncKind::wgmma && op.issuer.warp % 4 != 0) return;
    const uint64_t begin = clock_ ? clock_ - 1 : 0;
    open_[op.id] = {op, begin, take_slot(op, begin)};
  }
  void async_end(const AsyncOp& op) override {
    const auto found = open_.find(op.id);
    if (found == open_.end()) return;
    end_operation(found->second);
    open_.erase(found);
  }

 private:
  struct Row {
    enum State { kIdle, kRunning, kWaiting } state = kIdle;
    uint64_t begin = 0;
    const ptx::Instruction* last = nullptr;
    std::string why;
  };
  struct Operation {
    AsyncOp op;
    uint64_t begin = 0;
    uint32_t slot = 0;
  };

  size_t index(const Agent& agent) const { return size_t{agent.cta} * warps_ + agent.warp; }

  void close(size_t at) {
    Row& row = rows_[at];
    if (row.state == Row::kIdle) return;
    const bool waits = row.state == Row::kWaiting;
    std::string arguments;
    if (row.last != nullptr) {
      arguments = "\"at\":\"" + escape(describe_location(module_, *row.last)) + "\"";
    }
    writer_.slice(first_process_ + at / warps_, static_cast<uint32_t>(at % warps_),
                  waits ? "wait" : "run", row.begin, clock_, waits ? row.why : "running",
                  arguments);
    row = {};
  }

  // The first free lane of the operation's row, so that overlapping slices do not hide each other.
  uint32_t take_slot(const AsyncOp& op, uint64_t begin) {
    const bool tensor = is_tensor_operation(op.kind);
    std::vector<uint64_t>& busy = slots_[size_t{op.issuer.cta} * 2 + tensor];
    uint32_t slot = 0;
    while (slot < busy.size() && busy[slot] > begin && slot + 1 < kLanesOfRow) ++slot;
    if (slot == busy.size()) {
      busy.push_back(0);
      writer_.name_row(first_process_ + op.issuer.cta, (tensor ? kTensorRow : kTmaRow) + slot,
                       format("%s %u", tensor ? "tensor core" : "TMA", slot));
    }
    busy[slot] = UINT64_MAX;
    return slot;
  }

  void end_operation(const Operation& operation) {
    const AsyncOp& op = operation.op;
    const bool tensor = is_tensor_operation(op.kind);
    slots_[size_t{op.issuer.cta} * 2 + tensor][operation.slot] = clock_;
    std::string arguments = format("\"warp\":%u", op.issuer.warp);
    if (op.bytes) arguments += format(",\"bytes\":%llu", static_cast<unsigned long long>(op.bytes));
    const uint64_t macs = op.kind == AsyncKind::wgmma ? 4 * op.macs : op.macs;
    if (macs) arguments += format(",\"macs\":%llu", static_cast<unsigned long long>(macs));
    if (op.issuer.instruction != nullptr) {
      arguments += ",\"at\":\"" + escape(describe_location(module_, *op.issuer.instruction)) + "\"";
    }
    writer_.slice(first_process_ + op.issuer.cta, (tensor ? kTensorRow : kTmaRow) + operation.slot,
                  tensor ? "tensor" : "copy", operation.begin, clock_, operation_name(op.kind),
                  arguments);
  }

  Writer& writer_;
  const ptx::Module& module_;
  uint64_t first_process_;
  uint32_t warps_;
  uint64_t clock_ = 0;
  std::vector<Row> rows_;
  std::unordered_map<uint64_t, Operation> open_;
  std::vector<std::vector<uint64_t>> slots_;  // busy until; two sets a CTA: copies, tensor core
};

class TimelineImpl final : public Timeline {
 public:
  TimelineImpl(std::FILE* file, uint64_t max_events) : writer_(file, max_events) {}
  ~TimelineImpl() override { finish(); }

  std::unique_ptr<ClusterObserver> cluster_begin(const ClusterInfo& info) override {
    const std::lock_guard lock(mutex_);
    const uint64_t first = next_process_;
    next_process_ += info.ctas;
    return std::make_unique<ClusterTimeline>(writer_, info, first);
  }
  bool finish() override { return writer_.finish(); }

 private:
  std::mutex mutex_;
  uint64_t next_process_ = 1;
  Writer writer_;
};

}  // namespace

std::unique_ptr<Timeline> make_timeline(const std::string& path, uint64_t max_events) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  return file == nullptr ? nullptr : std::make_unique<TimelineImpl>(file, max_events);
}

}  // namespace vgpu::trace
