// Reductions, and the table of those that a 910B refuses.
#include "hccl_reduce.h"

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

struct Half {
  _Float16 bits;
  operator float() const { return (float)bits; }
  Half(float value) : bits((_Float16)value) {}
};

struct BFloat16 {
  uint16_t bits;
  operator float() const {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
  }
  BFloat16(float value) {
    uint32_t wide;
    memcpy(&wide, &value, 4);
    bits = std::isnan(value) ? 0x7fc0 : (uint16_t)((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);  // to nearest even
  }
};

template <class Type, class Wide>
void reduce_as(void* into, const void* from, size_t count, HcclReduceOp operation) {
  auto* left = (Type*)into;
  auto* right = (const Type*)from;
  for (size_t i = 0; i < count; i++) {
    Wide a = (Wide)left[i], b = (Wide)right[i];
    switch (operation) {
      case HCCL_REDUCE_SUM: left[i] = (Type)(Wide)(a + b); break;
      case HCCL_REDUCE_PROD: left[i] = (Type)(Wide)(a * b); break;
      case HCCL_REDUCE_MAX: left[i] = (Type)(a > b || a != a ? a : b); break;
      default: left[i] = (Type)(a < b || a != a ? a : b);
    }
  }
}

}  // namespace

namespace emu {

size_t size_of(HcclDataType type) {
  switch ((int)type) {
    case HCCL_DATA_TYPE_INT8: case HCCL_DATA_TYPE_UINT8: return 1;
    case HCCL_DATA_TYPE_INT16: case HCCL_DATA_TYPE_UINT16: case HCCL_DATA_TYPE_FP16: case HCCL_DATA_TYPE_BFP16: return 2;
    case HCCL_DATA_TYPE_INT32: case HCCL_DATA_TYPE_UINT32: case HCCL_DATA_TYPE_FP32: return 4;
    case HCCL_DATA_TYPE_INT64: case HCCL_DATA_TYPE_UINT64: case HCCL_DATA_TYPE_FP64: return 8;
    case 14: case 15: case 16: case 17: return 1;  // the 8-bit floats, which older headers do not name
    default: return 0;
  }
}

// HCCL interface reference, CANN 8.5, HcclAllReduce, HcclReduce and HcclReduceScatter, "Atlas A2 training products":
// int8, int16, int32, int64, fp16, fp32 and bfp16 with sum, prod, max and min; no prod of int16 or bfp16.
bool reducible(HcclDataType type, HcclReduceOp operation) {
  bool product = operation == HCCL_REDUCE_PROD;
  switch ((int)type) {
    case HCCL_DATA_TYPE_INT8: case HCCL_DATA_TYPE_INT32: case HCCL_DATA_TYPE_INT64:
    case HCCL_DATA_TYPE_FP16: case HCCL_DATA_TYPE_FP32: return operation <= HCCL_REDUCE_MIN;
    case HCCL_DATA_TYPE_INT16: case HCCL_DATA_TYPE_BFP16: return operation <= HCCL_REDUCE_MIN && !product;
    default: return false;
  }
}

void reduce(void* into, const void* from, size_t count, HcclDataType type, HcclReduceOp operation) {
  switch ((int)type) {
    case HCCL_DATA_TYPE_INT8: return reduce_as<int8_t, int8_t>(into, from, count, operation);
    case HCCL_DATA_TYPE_INT16: return reduce_as<int16_t, int16_t>(into, from, count, operation);
    case HCCL_DATA_TYPE_INT32: return reduce_as<int32_t, int32_t>(into, from, count, operation);
    case HCCL_DATA_TYPE_INT64: return reduce_as<int64_t, int64_t>(into, from, count, operation);
    case HCCL_DATA_TYPE_FP32: return reduce_as<float, float>(into, from, count, operation);
    case HCCL_DATA_TYPE_FP16: return reduce_as<Half, float>(into, from, count, operation);
    case HCCL_DATA_TYPE_BFP16: return reduce_as<BFloat16, float>(into, from, count, operation);
  }
}

}  // namespace emu
