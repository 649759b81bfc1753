// SPDX-License-Identifier: Apache-2.0
// Functions that device code calls and the driver provides: printf, assert, malloc and free,
// cudaGraphSetConditional.
#include "exec/builtins.hpp"

#include <cstdio>

#include "exec/memory_access.hpp"

namespace vgpu::exec {
namespace {

struct BuiltinCall {
  std::vector<uint32_t> arguments;
  uint32_t result = UINT32_MAX;
};

template <typename T>
T argument(const Warp& w, const BuiltinCall& call, size_t index, uint32_t lane) {
  T value{};
  std::memcpy(&value, &w.local[size_t{lane} * w.kernel->local_bytes + call.arguments[index]],
              sizeof value);
  return value;
}

std::string read_string(Warp& w, uint64_t address, uint32_t lane) {
  std::string text;
  for (size_t k = 0; k < 4096; ++k) {
    char c = static_cast<char>(*generic_pointer(w, lane, address + k, 1, Access::read));
    if (!c) break;
    text += c;
  }
  return text;
}

/// Device printf: the arguments lie one after the other at their natural alignment; floats are
/// passed as doubles (CUDA C++ Programming Guide, "Formatted Output").
std::string format_printf(Warp& w, const std::string& pattern, uint64_t arguments, uint32_t lane,
                          int& conversions) {
  std::string out;
  uint64_t offset = 0;
  auto take = [&](unsigned bytes) {
    offset = (offset + bytes - 1) / bytes * bytes;
    uint64_t value = 0;
    std::memcpy(&value, generic_pointer(w, lane, arguments + offset, bytes, Access::read), bytes);
    offset += bytes;
    return value;
  };
  conversions = 0;
  for (size_t k = 0; k < pattern.size(); ++k) {
    if (pattern[k] != '%') {
      out += pattern[k];
      continue;
    }
    if (k + 1 < pattern.size() && pattern[k + 1] == '%') {
      out += '%';
      ++k;
      continue;
    }
    std::string spec = "%";
    int longs = 0;
    bool size_type = false;
    for (++k; k < pattern.size(); ++k) {
      char c = pattern[k];
      if (c == '*') {
        spec += std::to_string(static_cast<int32_t>(take(4)));
      } else if (c == 'l') {
        ++longs;
      } else if (c == 'z' || c == 't' || c == 'j') {
        size_type = true;
      } else if (c == 'h') {
        // Promoted to int.
      } else if (std::string("+-# 0123456789.").find(c) != std::string::npos) {
        spec += c;
      } else {
        break;
      }
    }
    if (k >= pattern.size()) break;
    char c = pattern[k];
    ++conversions;
    char buffer[512];
    bool wide = longs > 0 || size_type;
    switch (c) {
      case 'd':
      case 'i': {
        int64_t value = wide ? static_cast<int64_t>(take(8)) : static_cast<int32_t>(take(4));
        std::snprintf(buffer, sizeof buffer, (spec + "lld").c_str(), static_cast<long long>(value));
        out += buffer;
        break;
      }
      case 'u':
      case 'x':
      case 'X':
      case 'o': {
        uint64_t value = take(wide ? 8 : 4);
        std::snprintf(buffer, sizeof buffer, (spec + "ll" + c).c_str(),
                      static_cast<unsigned long long>(value));
        out += buffer;
        break;
      }
      case 'c': {
        std::snprintf(buffer, sizeof buffer, (spec + "c").c_str(), static_cast<int>(take(4)));
        out += buffer;
        break;
      }
      case 'p': {
        std::snprintf(buffer, sizeof buffer, (spec + "p").c_str(),
                      reinterpret_cast<void*>(take(8)));
        out += buffer;
        break;
      }
      case 's': {
        uint64_t address = take(8);
        std::string text = address ? read_string(w, address, lane) : "(null)";
        std::snprintf(buffer, sizeof buffer, (spec + "s").c_str(), text.c_str());
        out += buffer;
        break;
      }
      case 'f':
      case 'F':
      case 'e':
      case 'E':
      case 'g':
      case 'G':
      case 'a':
      case 'A': {
        double value = std::bit_cast<double>(take(8));
        std::snprintf(buffer, sizeof buffer, (spec + c).c_str(), value);
        out += buffer;
        break;
      }
      default:
        out += spec + c;
    }
  }
  return out;
}

Step print(Warp& w, const Instr& i, uint32_t lanes) {
  auto& call = *static_cast<const BuiltinCall*>(i.extra);
  for_lanes(lanes, [&](uint32_t l) {
    uint64_t pattern = argument<uint64_t>(w, call, 0, l);
    uint64_t arguments = argument<uint64_t>(w, call, 1, l);
    int conversions = 0;
    std::string text = format_printf(w, read_string(w, pattern, l), arguments, l, conversions);
    {
      std::lock_guard lock(w.cluster->grid->mutex);
      auto& print = w.cluster->grid->request->print;
      if (print) {
        print(text);
      } else {
        std::fwrite(text.data(), 1, text.size(), stdout);
      }
    }
    if (call.result != UINT32_MAX) {
      std::memcpy(&w.local[size_t{l} * w.kernel->local_bytes + call.result], &conversions, 4);
    }
  });
  ++w.cluster->activity;
  return Step::next;
}

/// __assertfail(message, file, line, function, char size)
Step assert_fail(Warp& w, const Instr& i, uint32_t lanes) {
  auto& call = *static_cast<const BuiltinCall*>(i.extra);
  uint32_t l = first_lane(lanes);
  auto message = read_string(w, argument<uint64_t>(w, call, 0, l), l);
  auto file = read_string(w, argument<uint64_t>(w, call, 1, l), l);
  auto line = argument<uint32_t>(w, call, 2, l);
  auto function = read_string(w, argument<uint64_t>(w, call, 3, l), l);
  fault(kAssert, "%s:%u: %s: Assertion `%s` failed (lanes %#x)", file.c_str(), line,
        function.c_str(), message.c_str(), lanes);
}

void give_result(Warp& w, const BuiltinCall& call, uint32_t lane, uint64_t value) {
  if (call.result == UINT32_MAX) return;
  std::memcpy(&w.local[size_t{lane} * w.kernel->local_bytes + call.result], &value, sizeof value);
}

/// void* malloc(size_t): null when the heap is exhausted (CUDA C++ Programming Guide, "Dynamic
/// Global Memory Allocation and Operations").
Step allocate(Warp& w, const Instr& i, uint32_t lanes) {
  auto& call = *static_cast<const BuiltinCall*>(i.extra);
  auto* memory = w.cluster->grid->request->memory;
  for_lanes(lanes, [&](uint32_t l) {
    const auto bytes = argument<uint64_t>(w, call, 0, l);
    give_result(w, call, l, memory ? memory->allocate(bytes) : 0);
  });
  ++w.cluster->activity;
  return Step::next;
}

/// void free(void*)
Step release(Warp& w, const Instr& i, uint32_t lanes) {
  auto& call = *static_cast<const BuiltinCall*>(i.extra);
  auto* memory = w.cluster->grid->request->memory;
  for_lanes(lanes, [&](uint32_t l) {
    const auto address = argument<uint64_t>(w, call, 0, l);
    if (address == 0) return;
    if (!memory || !memory->release(address)) {
      fault(kIllegalAddress, "free of 0x%llx, where no live block of malloc starts (lane %u): %s",
            static_cast<unsigned long long>(address), l,
            memory ? memory->explain(address, 1).c_str() : "there are none");
    }
  });
  // NOTE: other workers may know the block a little longer: its memory stays mapped.
  w.cluster->worker->ranges = {};
  ++w.cluster->activity;
  return Step::next;
}

/// void cudaGraphSetConditional(cudaGraphConditionalHandle, unsigned)
Step set_condition(Warp& w, const Instr& i, uint32_t lanes) {
  auto& call = *static_cast<const BuiltinCall*>(i.extra);
  auto* memory = w.cluster->grid->request->memory;
  for_lanes(lanes, [&](uint32_t l) {
    const auto handle = argument<uint64_t>(w, call, 0, l);
    if (memory && memory->set_condition(handle, argument<uint32_t>(w, call, 1, l))) return;
    fault(kIllegalAddress,
          "cudaGraphSetConditional: no graph has a condition with the handle 0x%llx (lane %u)",
          static_cast<unsigned long long>(handle), l);
  });
  ++w.cluster->activity;
  return Step::next;
}

}  // namespace

Handler builtin_handler(Decoder& d, const std::string& name, const std::vector<uint32_t>& arguments,
                        uint32_t result) {
  Handler handler = nullptr;
  if (name == "vprintf" && arguments.size() == 2) handler = print;
  if (name == "__assertfail" && arguments.size() == 5) handler = assert_fail;
  if (name == "malloc" && arguments.size() == 1) handler = allocate;
  if (name == "free" && arguments.size() == 1) handler = release;
  if (name == "cudaGraphSetConditional" && arguments.size() == 2) handler = set_condition;
  if (!handler) return nullptr;
  auto& call = d.extra<BuiltinCall>();
  call.arguments = arguments;
  call.result = result;
  return handler;
}

}  // namespace vgpu::exec
