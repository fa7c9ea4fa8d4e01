// Which aten operators torch_npu's own kernels run, and which go to the CPU.
//
// torch_npu registers a fallback for operators that it has no kernel for: it copies the arguments to the host, calls the
// CPU kernel and copies back. Operators whose kernels would need a CANN operator that is not emulated are sent the same
// way, through that same fallback: everything that native.txt does not list. Each operator that falls back is named once
// in the file that ACCEL_EMULATE_NPU_FALLBACKS gives, so that a test can say which ones may.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "emulator.h"

namespace {

constexpr auto NPU = c10::DispatchKey::PrivateUse1;
using Names = std::set<std::string>;

std::optional<c10::SafeKernelFunction>& vendor_fallback = *new std::optional<c10::SafeKernelFunction>;

std::string full_name(const c10::OperatorName& name) {
  std::string base = name.name.substr(name.name.find("::") + 2);
  return name.overload_name.empty() ? base : base + "." + name.overload_name;
}

void announce(const c10::OperatorHandle& op) {
  static std::mutex& mutex = *new std::mutex;
  static Names& seen = *new Names;
  std::string name = full_name(op.operator_name());
  std::lock_guard<std::mutex> lock(mutex);
  if (!seen.insert(name).second) return;
  emu::trace("fallback", "%s runs on the CPU", name.c_str());
  static const std::string path = emu::setting("FALLBACKS", "");
  if (path.empty()) return;
  int file = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  std::string line = name + "\n";
  if (file < 0 || write(file, line.data(), line.size()) != (ssize_t)line.size()) {
    emu::trace("fallback", "cannot write %s", path.c_str());
  }
  if (file >= 0) close(file);
}

void fall_back(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  announce(op);
  vendor_fallback->callBoxed(op, keys, stack);
}

// native.txt stands beside the libraries.
Names native() {
  Dl_info here;
  dladdr((void*)&native, &here);
  std::string path(here.dli_fname);
  std::ifstream file(path.substr(0, path.rfind('/') + 1) + "native.txt");
  Names names;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line[0] != '#') names.insert(line);
  }
  return names;
}

bool returns_view(const c10::FunctionSchema& schema) {
  for (auto& result : schema.returns()) {
    if (result.alias_info() && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

bool takes_tensor(const c10::FunctionSchema& schema) {
  for (auto& argument : schema.arguments()) {
    if (argument.type()->str().find("Tensor") != std::string::npos) return true;
  }
  return false;
}

bool composite(const c10::OperatorHandle& op) {
  using Key = c10::DispatchKey;
  for (Key key : {Key::CompositeImplicitAutograd, Key::CompositeExplicitAutograd, Key::CompositeExplicitAutogradNonFunctional}) {
    if (op.hasKernelForDispatchKey(key)) return true;
  }
  return false;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void accel_emulator_install_fallbacks() {
  static torch::Library& library = *new torch::Library(torch::Library::IMPL, "aten", NPU, __FILE__, __LINE__);
  const Names kept = native();
  auto& dispatcher = c10::Dispatcher::singleton();
  size_t count = 0;
  std::vector<std::string> chosen;
  for (auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    auto op = dispatcher.findSchema(name);
    if (!op || returns_view(op->schema()) || !takes_tensor(op->schema())) continue;
    bool registered = op->hasKernelForDispatchKey(NPU);
    bool on_cpu = op->hasKernelForDispatchKey(c10::DispatchKey::CPU);
    // What is put together of other operators falls back in these; what has no CPU kernel cannot fall back.
    if (registered ? !on_cpu && !composite(*op) : !on_cpu || composite(*op)) continue;
    if (!registered && !vendor_fallback) vendor_fallback = op->getComputedKernelForDispatchKey(NPU);
    std::string base = full_name(name);
    if (registered && (kept.count(base) || kept.count(base.substr(0, base.find('.')) + ".*"))) continue;
    chosen.push_back(base);
  }
  TORCH_CHECK(vendor_fallback, "torch_npu has registered no fallback to the CPU");
  for (auto& name : chosen) {
    library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&fall_back>());
    count++;
  }
  emu::trace("fallback", "%zu operators would run on the CPU", count);
}
