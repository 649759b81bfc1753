// SPDX-License-Identifier: Apache-2.0
// The CPU backend as a library of its own: found beside this one or by the loader, loaded once.
#include "dispatch/cpu_library.hpp"

#ifndef CONVOY_CPU_LINKED
#include <dlfcn.h>

#include <filesystem>
#include <vector>
#endif

#include "core/text.hpp"
#include "cpu/backend.hpp"

namespace convoy {
namespace {

struct CpuLibrary {
  const cpu::Backend* backend = nullptr;
  CandidateList kernels;
  std::string refusal;  ///< Why there is no backend.
};

constexpr const char* kAdvice =
    "; install the one that came with this libconvoy, or use device = cuda";

#ifdef CONVOY_CPU_LINKED

const cpu::Backend* find_backend(std::string&) {
  return convoy_cpu_backend();
}

#else

constexpr const char* kFileName = "libconvoy_cpu.so." CONVOY_SOVERSION;

/// Folders of the library that this code is in: as it was loaded, and where that leads.
std::vector<std::filesystem::path> own_folders() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&register_cpu_kernels), &info) == 0) return {};
  const std::filesystem::path loaded = info.dli_fname;
  if (!loaded.has_parent_path()) return {};  // A program named without a folder.
  std::error_code error;
  const std::filesystem::path resolved = std::filesystem::canonical(loaded, error);
  if (error) return {loaded.parent_path()};
  return {loaded.parent_path(), resolved.parent_path()};
}

const cpu::Backend* find_backend(std::string& refusal) {
  void* library = nullptr;
  std::string path;
  for (const std::filesystem::path& folder : own_folders()) {
    std::error_code error;
    if (!std::filesystem::exists(folder / kFileName, error)) continue;
    path = folder / kFileName;
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      refusal = text("the CPU backend cannot be loaded: ", dlerror(), kAdvice);
      return nullptr;
    }
    break;
  }
  if (library == nullptr) {
    path = kFileName;
    library = dlopen(kFileName, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    refusal = text("the CPU backend is not there: ", kFileName,
                   " was found neither beside this libconvoy nor by the loader (", dlerror(), ")",
                   kAdvice);
    return nullptr;
  }

  // NOTE: the library stays loaded, refused or not: oneDNN's threads do not survive an unloading.
  const auto entry =
      reinterpret_cast<decltype(&convoy_cpu_backend)>(dlsym(library, "convoy_cpu_backend"));
  if (entry == nullptr) {
    refusal = text(path, " is not Convoy's CPU backend: it has no convoy_cpu_backend", kAdvice);
    return nullptr;
  }
  const cpu::Backend* const backend = entry();
  const std::string wanted = cpu::interface_text();
  if (backend->interface != wanted) {
    refusal = text("the CPU backend is of another build: ", path, " is of '", backend->interface,
                   "'; legal: '", wanted, "'", kAdvice);
    return nullptr;
  }
  return backend;
}

#endif

/// Loaded by the first thread that asks; the others wait.
const CpuLibrary& cpu_library() {
  static const CpuLibrary library = [] {
    CpuLibrary loaded;
    loaded.backend = find_backend(loaded.refusal);
    if (loaded.backend != nullptr) loaded.backend->register_kernels(loaded.kernels);
    return loaded;
  }();
  return library;
}

const cpu::Backend& require_backend() {
  const CpuLibrary& library = cpu_library();
  if (library.backend == nullptr) throw Error(Status::unsupported, library.refusal);
  return *library.backend;
}

/// One kernel of the backend, known by name until it is asked.
class CpuKernel final : public KernelCandidate {
 public:
  explicit CpuKernel(std::size_t index) : index_(index) {}
  std::string name() const override { return cpu::kKernelNames[index_]; }
  Device device() const override { return Device::cpu; }

  Judgement judge(const PlanRequest& request) const override {
    const CpuLibrary& library = cpu_library();
    if (library.backend == nullptr) return {RefusalScope::device, library.refusal};
    return library.kernels[index_]->judge(request);
  }
  bool takes_prologues() const override { return true; }
  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    require_backend();
    return cpu_library().kernels[index_]->make(request);
  }

 private:
  std::size_t index_;
};

class CpuNorms final : public NormBackend {
 public:
  Device device() const override { return Device::cpu; }
  std::string refusal(const NormRequest&) const override { return cpu_library().refusal; }
  std::unique_ptr<NormKernel> make(const NormRequest& request) const override {
    return require_backend().make_norm(request);
  }
};

}  // namespace

void register_cpu_kernels(CandidateList& list) {
  for (std::size_t i = 0; i < cpu::kKernelNames.size(); ++i) {
    list.push_back(std::make_unique<CpuKernel>(i));
  }
}

void register_cpu_norms(NormBackendList& list) {
  list.push_back(std::make_unique<CpuNorms>());
}

std::string cpu_library_version(std::string* reason) {
  const CpuLibrary& library = cpu_library();
  if (reason != nullptr) *reason = library.refusal;
  return library.backend == nullptr ? "" : library.backend->onednn;
}

}  // namespace convoy
