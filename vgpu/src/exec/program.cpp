// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "exec/decoder.hpp"
#include "exec/launch.hpp"

namespace vgpu::exec {

Program::Program() = default;
Program::~Program() = default;

namespace {

KernelInfo describe(const ptx::Module& module, const ptx::Function& function,
                    const Kernel& kernel) {
  KernelInfo info;
  info.name = function.name;
  for (uint32_t index : function.params) {
    auto& variable = module.variables[index];
    info.params.push_back({static_cast<uint32_t>(variable.offset),
                           static_cast<uint32_t>(variable.size), variable.align});
  }
  info.param_bytes = function.param_bytes;
  info.static_shared = kernel.static_shared;
  info.local_bytes = kernel.local_bytes;
  auto threads = [](const uint32_t* n) { return n[0] * n[1] * n[2]; };
  if (function.maxntid[0]) info.max_threads = std::min(1024u, threads(function.maxntid));
  if (function.reqntid[0]) {
    info.max_threads = std::min(1024u, threads(function.reqntid));
    info.required_block = {function.reqntid[0], function.reqntid[1], function.reqntid[2]};
  }
  if (function.reqnctapercluster[0]) {
    info.required_cluster = {function.reqnctapercluster[0], function.reqnctapercluster[1],
                             function.reqnctapercluster[2]};
  }
  info.uses_shared_clusters = function.explicit_cluster || function.reqnctapercluster[0];
  // NOTE: The register count belongs to the machine code. The bound that ptxas must keep is what
  // launches of max_threads need: 64 Ki registers an SM, granted in eights.
  uint32_t ctas = std::max(1u, function.minnctapersm);
  uint32_t bound = 65536 / std::max(1u, info.max_threads * ctas) / 8 * 8;
  info.registers = function.maxnreg ? function.maxnreg : std::clamp(bound, 16u, 255u);
  return info;
}

std::string list_missing(const ptx::Module& module, const std::string& whose,
                         const Decoder::MissingForms& missing) {
  std::string text = format(
      "%s (target %s) uses %zu instruction form%s that the virtual GPU does not know, or that this "
      "target does not have:",
      whose.c_str(), module.target.c_str(), missing.size(), missing.size() == 1 ? "" : "s");
  for (auto& [what, where] : missing) {
    text +=
        format("\n  %s (%u use%s, first at PTX line %u): %s", module.forms[what.first].text.c_str(),
               where.uses, where.uses == 1 ? "" : "s", where.first_line, what.second.c_str());
  }
  return text;
}

}  // namespace

std::unique_ptr<Program> Program::load(std::string ptx_text) {
  std::unique_ptr<Program> program(new Program());
  program->module_ = ptx::parse(std::move(ptx_text));
  auto& module = *program->module_;
  for (uint32_t index : module.globals) {
    auto& variable = module.variables[index];
    program->symbols_.push_back({variable.name, variable.size, variable.align,
                                 variable.space == ptx::Space::constant, &variable});
  }
  for (auto& function : module.functions) {
    if (!function.is_entry) continue;
    auto kernel = std::make_unique<Kernel>();
    kernel->program = program.get();
    kernel->function = &function;
    Decoder::MissingForms missing;
    std::string refusal;
    try {
      Decoder(*program, *kernel, missing).run();
      if (!missing.empty()) refusal = list_missing(module, "kernel " + function.name, missing);
    } catch (const Fault& fault) {
      if (fault.cuda_error != kNotSupported) throw;
      refusal = "kernel " + function.name + ": " + fault.text;
    }
    program->kernel_infos_.push_back(describe(module, function, *kernel));
    program->kernel_infos_.back().refusal = std::move(refusal);
    program->kernels_.push_back(std::move(kernel));
  }
  for (size_t k = 0; k < program->kernels_.size(); ++k) {
    program->kernels_[k]->info = &program->kernel_infos_[k];
  }
  return program;
}

std::string Program::refusals() const {
  std::string text;
  for (auto& info : kernel_infos_) {
    if (!info.refusal.empty()) text += (text.empty() ? "" : "\n") + info.refusal;
  }
  return text;
}

const KernelInfo* Program::find_kernel(std::string_view name) const {
  for (auto& info : kernel_infos_) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

const Kernel* Program::kernel(std::string_view name) const {
  for (auto& kernel : kernels_) {
    if (kernel->function->name == name) return kernel.get();
  }
  return nullptr;
}

}  // namespace vgpu::exec
