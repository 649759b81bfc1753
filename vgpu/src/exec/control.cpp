// SPDX-License-Identifier: Apache-2.0
// Branches, calls, returns, traps, and hints without effect on results. Source: PTX ISA 9.0,
// "Control Flow Instructions", "Miscellaneous Instructions".
#include "exec/builtins.hpp"
#include "exec/decoder.hpp"

namespace vgpu::exec {
namespace {

Step branch(Warp& w, const Instr& i, uint32_t) {
  w.jump_target = i.target;
  return Step::jump;
}

bool decode_bra(Decoder& d) {
  d.take("uni");
  d.out.target = d.label(0);
  d.out.handler = branch;
  return true;
}

Step branch_indexed(Warp& w, const Instr& i, uint32_t lanes) {
  auto& table = *static_cast<const std::vector<uint32_t>*>(i.extra);
  const uint32_t* index = w.lanes<uint32_t>(i.a);
  for_lanes(lanes, [&](uint32_t l) {
    if (index[l] >= table.size()) {
      fault(kInvalidPc, "brx.idx with index %u into a table of %zu targets", index[l],
            table.size());
    }
    w.jump_targets[l] = table[index[l]];
  });
  return Step::split;
}

bool decode_brx(Decoder& d) {
  if (!d.take("idx")) return false;
  d.take("uni");
  d.out.a = d.source(0, 4);
  if (d.operand(1).kind != ptx::Operand::Kind::table) {
    throw BadOperand{"a list of branch targets is needed"};
  }
  auto& table = d.extra<std::vector<uint32_t>>();
  auto entry = static_cast<uint32_t>(d.entry_of(&d.function()));
  for (uint32_t target : d.function().branch_tables[d.operand(1).index]) {
    table.push_back(entry + target);
  }
  d.out.handler = branch_indexed;
  return true;
}

Step leave(Warp&, const Instr&, uint32_t) {
  return Step::exit;
}

/// A copy of one argument or result between the caller's and the callee's frames.
struct ArgumentCopy {
  uint32_t from, to, bytes;
};
/// A function that a call reaches.
struct Callee {
  const ptx::Function* function = nullptr;
  uint32_t entry = 0, return_slot = 0;
  std::vector<ArgumentCopy> arguments, results;
};
struct Call {
  std::vector<Callee> callees;  ///< one, or those that a pointer may name
  const Callee* find(const ptx::Function* function) const {
    for (const Callee& callee : callees) {
      if (callee.function == function) return &callee;
    }
    return nullptr;
  }
};
/// What a return needs to know of its function.
struct Return {
  const ptx::Function* function = nullptr;
  bool by_pointer = false;  ///< the kernel calls through pointers
};

void copy_arguments(Warp& w, const std::vector<ArgumentCopy>& copies, uint32_t lanes) {
  size_t frame = w.kernel->local_bytes;
  for_lanes(lanes, [&](uint32_t l) {
    for (auto& copy : copies) {
      std::memcpy(&w.local[l * frame + copy.to], &w.local[l * frame + copy.from], copy.bytes);
    }
  });
}

/// Enters `callee`, which must not be running: its registers and variables have one place each.
void enter(Warp& w, const Callee& callee, uint32_t here, uint32_t lanes, bool by_pointer) {
  uint32_t* place = w.lanes<uint32_t>(callee.return_slot);
  for_lanes(lanes, [&](uint32_t l) {
    if (by_pointer && place[l] != 0) {
      fault(kNotSupported,
            "device function %s is called while it runs: the virtual GPU has no call stack",
            callee.function->name.c_str());
    }
    place[l] = here + 1;
  });
  copy_arguments(w, callee.arguments, lanes);
}

Step call(Warp& w, const Instr& i, uint32_t lanes) {
  const Callee& callee = static_cast<const Call*>(i.extra)->callees.front();
  enter(w, callee, static_cast<uint32_t>(&i - w.kernel->code.data()), lanes, i.x != 0);
  w.jump_target = callee.entry;
  return Step::jump;
}

/// Lane by lane: pointers may differ.
Step call_by_pointer(Warp& w, const Instr& i, uint32_t lanes) {
  const auto& call = *static_cast<const Call*>(i.extra);
  const auto& functions = w.kernel->program->module().functions;
  const auto* pointers = w.lanes<uint64_t>(i.a);
  const auto here = static_cast<uint32_t>(&i - w.kernel->code.data());
  for_lanes(lanes, [&](uint32_t l) {
    const uint64_t number = function_number(pointers[l]);
    const Callee* callee = number < functions.size() ? call.find(&functions[number]) : nullptr;
    if (callee == nullptr) {
      fault(kInvalidPc, "call through 0x%llx by lane %u: %s",
            static_cast<unsigned long long>(pointers[l]), l,
            number < functions.size() ? (functions[number].name + " takes other arguments").c_str()
                                      : "it is the address of no device function");
    }
    enter(w, *callee, here, 1u << l, true);
    w.jump_targets[l] = callee->entry;
  });
  return Step::split;
}

/// A device function returns where its caller said, lane by lane, with the results that the call
/// in front of that place wants.
Step return_to_caller(Warp& w, const Instr& i, uint32_t lanes) {
  const auto& self = *static_cast<const Return*>(i.extra);
  uint32_t* place = w.lanes<uint32_t>(i.a);
  for_lanes(lanes, [&](uint32_t l) {
    auto& caller = *static_cast<const Call*>(w.kernel->code[place[l] - 1].extra);
    copy_arguments(w, caller.find(self.function)->results, 1u << l);
    w.jump_targets[l] = place[l];
    if (self.by_pointer) place[l] = 0;
  });
  return Step::split;
}

bool decode_ret(Decoder& d) {
  d.take("uni");
  bool exits = d.opcode() == "exit" || d.function().is_entry;
  d.out.handler = exits ? leave : return_to_caller;
  if (exits) return true;
  d.out.a = d.return_slot(&d.function());
  auto& self = d.extra<Return>();
  self.function = &d.function();
  self.by_pointer = d.calls_by_pointer();
  return true;
}

bool decode_call(Decoder& d) {
  using Kind = ptx::Operand::Kind;
  d.take("uni");
  // call (results), name, (arguments)  or  call name, (arguments)  or  call name. A pointer
  // in place of the name has a prototype or a list of targets behind it, which add nothing.
  unsigned at = 0;
  const ptx::Operand *results = nullptr, *arguments = nullptr;
  if (d.operand(0).kind == Kind::list) {
    results = &d.operand(0);
    at = 1;
  }
  auto& name = d.operand(at);
  const bool by_pointer = name.kind == Kind::reg;
  if (!by_pointer && name.kind != Kind::external) {
    throw BadOperand{"the target of a call must be a name or a 64-bit register"};
  }
  if (d.count() > at + 1 && d.operand(at + 1).kind == Kind::list) arguments = &d.operand(at + 1);
  auto frame = [&](const ptx::Operand& o) {
    if (o.kind != Kind::variable) throw BadOperand{"call arguments must be .param variables"};
    return d.frame_offset(o.index);
  };

  const ptx::Function* callee = d.callee(name);
  if (!callee && !by_pointer) {
    std::vector<uint32_t> offsets;
    if (arguments) {
      for (unsigned k = 0; k < arguments->count; ++k) {
        offsets.push_back(frame(d.child(*arguments, k)));
      }
    }
    d.out.handler = builtin_handler(d, d.module().externals[name.index], offsets,
                                    results ? frame(d.child(*results, 0)) : UINT32_MAX);
    if (!d.out.handler) {
      throw BadOperand{"call of " + d.module().externals[name.index] +
                       ", which the module does not define"};
    }
    return true;
  }
  auto& target = d.extra<Call>();
  auto& variables = d.module().variables;
  auto add = [&](const ptx::Function& function) {
    Callee made;
    made.function = &function;
    made.entry = static_cast<uint32_t>(d.entry_of(&function));
    made.return_slot = d.return_slot(&function);
    auto copy = [&](const ptx::Operand* list, const std::vector<uint32_t>& formals,
                    std::vector<ArgumentCopy>& out, bool outward) {
      if ((list ? list->count : 0) != formals.size()) return false;
      for (unsigned k = 0; k < formals.size(); ++k) {
        const ptx::Operand& each = d.child(*list, k);
        const uint32_t actual = frame(each), formal = d.frame_offset(formals[k]);
        auto bytes = static_cast<uint32_t>(variables[formals[k]].size);
        if (by_pointer && variables[each.index].size != bytes) return false;
        out.push_back(outward ? ArgumentCopy{formal, actual, bytes}
                              : ArgumentCopy{actual, formal, bytes});
      }
      return true;
    };
    const bool fits = copy(arguments, function.params, made.arguments, false) &&
                      copy(results, function.returns, made.results, true);
    if (fits) target.callees.push_back(std::move(made));
    return fits;
  };
  d.out.x = d.calls_by_pointer();
  if (by_pointer) {
    d.out.a = d.source(name, 8);
    for (const ptx::Function* function : d.pointed_functions()) add(*function);
    d.out.handler = call_by_pointer;
    return true;
  }
  if (!add(*callee)) {
    throw BadOperand{"call of " + callee->name + " with a wrong number of arguments"};
  }
  d.out.handler = call;
  return true;
}

Step trap(Warp&, const Instr& i, uint32_t lanes) {
  fault(kLaunchFailure, "%s executed by lanes %#x", i.x ? "brkpt" : "trap", lanes);
}

bool decode_trap(Decoder& d) {
  d.out.x = d.opcode() == "brkpt";
  d.out.handler = trap;
  return true;
}

Step nothing(Warp&, const Instr&, uint32_t) {
  return Step::next;
}
Step pause(Warp&, const Instr&, uint32_t) {
  return Step::poll;
}

bool decode_nanosleep(Decoder& d) {
  d.take_type();
  d.out.handler = pause;
  return true;
}

bool decode_pmevent(Decoder& d) {
  d.take("mask");
  d.out.handler = nothing;
  return true;
}

/// NOTE: Register counts are a property of the machine code, not of PTX: the operand's rules are
/// checked, the pool is not modelled (PTX ISA, setmaxnreg).
bool decode_setmaxnreg(Decoder& d) {
  if (d.take_one({"inc", "dec"}) < 0 || !d.take("sync") || !d.take("aligned") || !d.take("u32")) {
    return false;
  }
  int64_t count = d.immediate(0);
  if (count < 24 || count > 256 || count % 8) {
    throw BadOperand{format("setmaxnreg of %lld registers: legal are multiples of 8 from 24 to 256",
                            static_cast<long long>(count))};
  }
  d.out.handler = nothing;
  return true;
}

Step launch_before_ended(Warp& w, const Instr&, uint32_t lanes) {
  if (w.cluster->observer) w.cluster->observer->launch_before_ended(agent_of(w, lanes));
  return Step::next;
}

Step launch_after_may_start(Warp& w, const Instr&, uint32_t lanes) {
  if (w.cluster->observer) w.cluster->observer->launch_after_may_start(agent_of(w, lanes));
  return Step::next;
}

/// NOTE: A stream starts a kernel when the one before has ended: nothing to wait for or to start.
bool decode_griddepcontrol(Decoder& d) {
  const int what = d.take_one({"wait", "launch_dependents"});
  if (what < 0) return false;
  d.out.handler = what == 0 ? launch_before_ended : launch_after_may_start;
  return true;
}

/// A hint too, but the H200 checks the address (probe, "prefetch tensormap offset 16").
Step prefetch_tensormap(Warp& w, const Instr& i, uint32_t lanes) {
  for_lanes(lanes, [&](uint32_t l) {
    const uint64_t address = read_address(w, i[0], l);
    if (address % 64) {
      fault(kMisalignedAddress, "prefetch.tensormap at 0x%llx: tensor maps are 64-byte aligned",
            static_cast<unsigned long long>(address));
    }
  });
  return Step::next;
}

/// Cache hints.
bool decode_prefetch(Decoder& d) {
  if (d.opcode() == "prefetchu") {
    if (!d.take("L1")) return false;
  } else {
    d.take_one({"global", "local", "param", "const"});
    const int what = d.take_one({"tensormap", "L1", "L2", "L2::evict_last", "L2::evict_normal"});
    if (what < 0) return false;
    if (what == 0) {
      d.make_refs(8);
      d.out.handler = prefetch_tensormap;
      return true;
    }
  }
  d.make_refs(8);
  d.out.handler = nothing;
  return true;
}

bool decode_cache_policy(Decoder& d) {
  if (d.opcode() == "applypriority" || d.opcode() == "discard") {
    d.take("global");
    if (d.take_one({"L2::evict_normal", "L2"}) < 0) return false;
    // discard leaves unspecified data behind: unchanged is one legal outcome.
    d.out.handler = nothing;
    return true;
  }
  // createpolicy: an opaque value.
  if (d.take_one({"fractional", "range"}) < 0) d.take("cvt");
  d.take("global");
  while (d.take_one({"L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged",
                     "L2"}) >= 0) {
  }
  if (d.take_type() != ptx::Type::b64) return false;
  d.out.d = d.dest(0, 8);
  d.out.handler = [](Warp& w, const Instr& i, uint32_t lanes) {
    for_lanes(lanes, [&](uint32_t l) { w.lanes<uint64_t>(i.d)[l] = 0; });
    return Step::next;
  };
  return true;
}

}  // namespace

const OpcodeList& control_opcodes() {
  static const OpcodeList list{
      {"bra", decode_bra},
      {"brx", decode_brx},
      {"ret", decode_ret},
      {"exit", decode_ret},
      {"call", decode_call},
      {"trap", decode_trap},
      {"brkpt", decode_trap},
      {"nanosleep", decode_nanosleep},
      {"pmevent", decode_pmevent},
      {"setmaxnreg", decode_setmaxnreg},
      {"griddepcontrol", decode_griddepcontrol},
      {"prefetch", decode_prefetch},
      {"prefetchu", decode_prefetch},
      {"applypriority", decode_cache_policy},
      {"discard", decode_cache_policy},
      {"createpolicy", decode_cache_policy},
  };
  return list;
}

}  // namespace vgpu::exec
