// How libascendcl.so hands an operator given by name to libopapi.so.
#pragma once
#include <cstdint>
#include <vector>

#include "acl/acl_base.h"

namespace emu {
struct LegacyTensor {
  aclDataType type;
  const std::vector<int64_t>* sizes;
  void* data;
};
// Runs the operator, or answers whether it is known when there are no outputs.
using LegacyRunner = bool (*)(const char* name, const std::vector<LegacyTensor>& inputs,
                              const std::vector<LegacyTensor>& outputs);
}  // namespace emu
