// Sizes of HCCL's data types, and reductions over them.
#pragma once
#include <cstddef>

#include "acl/acl_base.h"
#include "hccl/hccl_types.h"

namespace emu {
size_t size_of(HcclDataType type);  // 0 for a type that has none here
// Whether a 910B reduces this type with this operation.
bool reducible(HcclDataType type, HcclReduceOp operation);
// into = into (operation) from, element by element, rounded to the type after each step as the hardware does.
void reduce(void* into, const void* from, size_t count, HcclDataType type, HcclReduceOp operation);
}  // namespace emu
