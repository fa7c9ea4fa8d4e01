// libopapi.so without its operators: the acl objects that arguments come in, and how an operator is prepared and run.
#include "ops.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "emulator.h"
#include "legacy.h"

// Every object starts with the kind it is, so that a wrong signature in a .def file is an error and not a crash.
enum class Kind : uint32_t { tensor = 0xacc1, scalar, ints, floats, bools, tensors, scalars };

struct aclTensor {
  Kind kind = Kind::tensor;
  std::vector<int64_t> sizes, strides;
  aclDataType type;
  int64_t offset;  // elements
  void* data;
};
struct aclScalar { Kind kind = Kind::scalar; at::Scalar value; };
struct aclIntArray { Kind kind = Kind::ints; std::vector<int64_t> values; };
struct aclFloatArray { Kind kind = Kind::floats; std::vector<float> values; };
struct aclBoolArray { Kind kind = Kind::bools; std::vector<bool> values; };
struct aclTensorList { Kind kind = Kind::tensors; std::vector<const aclTensor*> values; };
struct aclScalarList { Kind kind = Kind::scalars; std::vector<const aclScalar*> values; };
struct aclOpExecutor { const char* op; std::function<void()> body; };

namespace {

constexpr int INVALID = 161002;       // ACLNN_ERR_PARAM_INVALID
constexpr int EXECUTION = 507018;     // ACL_ERROR_RT_AICPU_EXCEPTION
constexpr int64_t MASK_BLOCK = 128;   // elements; aclnnDropoutGenMask pads to a multiple

template <class Object>
const Object* checked(const Object* handle, Kind kind) {
  bool aligned = ((uintptr_t)handle & 7) == 0;
  TORCH_CHECK(aligned && handle->kind == kind, "an argument has another acl type than the emulator's .def file says");
  return handle;
}

}  // namespace

namespace emu {

at::ScalarType type_of(aclDataType type) {
  switch (type) {
    case ACL_FLOAT: return at::kFloat;
    case ACL_FLOAT16: return at::kHalf;
    case ACL_BF16: return at::kBFloat16;
    case ACL_DOUBLE: return at::kDouble;
    case ACL_INT8: return at::kChar;
    case ACL_INT16: return at::kShort;
    case ACL_INT32: return at::kInt;
    case ACL_INT64: return at::kLong;
    case ACL_UINT8: return at::kByte;
    case ACL_UINT16: return at::kUInt16;
    case ACL_UINT32: return at::kUInt32;
    case ACL_UINT64: return at::kUInt64;
    case ACL_BOOL: return at::kBool;
    case ACL_COMPLEX64: return at::kComplexFloat;
    case ACL_COMPLEX128: return at::kComplexDouble;
    default: TORCH_CHECK(false, "the emulator has no acl data type ", (int)type);
  }
}

at::Tensor tensor(const aclTensor* handle) {
  if (!handle) return {};
  checked(handle, Kind::tensor);
  auto type = type_of(handle->type);
  char* data = (char*)handle->data + handle->offset * (int64_t)c10::elementSize(type);
  return at::from_blob(data, handle->sizes, handle->strides, at::TensorOptions().dtype(type));
}
at::Scalar scalar(const aclScalar* handle) { return handle ? checked(handle, Kind::scalar)->value : at::Scalar(0); }
std::optional<at::Scalar> maybe(const aclScalar* handle) {
  return handle ? std::optional<at::Scalar>(scalar(handle)) : std::nullopt;
}
std::vector<int64_t> ints(const aclIntArray* handle) {
  return handle ? checked(handle, Kind::ints)->values : std::vector<int64_t>{};
}
std::vector<bool> bools(const aclBoolArray* handle) {
  return handle ? checked(handle, Kind::bools)->values : std::vector<bool>{};
}
std::vector<at::Tensor> tensors(const aclTensorList* handle) {
  std::vector<at::Tensor> found;
  if (handle) for (auto* one : checked(handle, Kind::tensors)->values) found.push_back(tensor(one));
  return found;
}
std::vector<at::Scalar> scalars(const aclScalarList* handle) {
  std::vector<at::Scalar> found;
  if (handle) for (auto* one : checked(handle, Kind::scalars)->values) found.push_back(scalar(one));
  return found;
}

void store(const at::Tensor& out, const at::Tensor& value) {
  if (!out.defined()) return;
  TORCH_CHECK(out.numel() == value.numel(), "a result of shape ", value.sizes(), " for an output of ", out.sizes());
  out.copy_(value.sizes() == out.sizes() ? value : value.reshape(out.sizes()));
}
Optional maybe(const at::Tensor& tensor) { return tensor.defined() ? Optional(tensor) : std::nullopt; }
std::array<bool, 3> three(const std::vector<bool>& mask) { return {mask.at(0), mask.at(1), mask.at(2)}; }
at::Generator generator(int64_t seed, int64_t offset) {
  return at::make_generator<at::CPUGeneratorImpl>((uint64_t)seed * 1000003u + (uint64_t)offset);
}

void accept(const char* op, const char* argument, const at::Tensor& value, std::initializer_list<at::ScalarType> types) {
  if (!value.defined()) return;
  for (auto type : types) if (value.scalar_type() == type) return;
  std::string list;
  for (auto type : types) list += (list.empty() ? "" : ",") + std::string(c10::toString(type));
  TORCH_CHECK(false, "Tensor ", argument, " not implemented for ", value.scalar_type(), ", should be in dtype support list [",
              list, "]");
}
void accept(const char* op, const char* argument, const std::vector<at::Tensor>& values,
            std::initializer_list<at::ScalarType> types) {
  for (auto& value : values) accept(op, argument, value, types);
}

int prepare(const char* op, aclOpExecutor** executor, const std::function<std::function<void()>()>& bind) {
  try {
    at::NoGradGuard no_grad;
    *executor = new aclOpExecutor{op, bind()};
    return 0;
  } catch (const c10::Error& error) {
    return fail(INVALID, "EZ1001: " + std::string(op) + ": " + error.what_without_backtrace());
  } catch (const std::exception& error) {
    return fail(INVALID, "EZ1001: " + std::string(op) + ": " + error.what());
  }
}

int run_body(const char* op, const std::function<void()>& body) {
  trace("ops", "%s", op);
  try {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    at::NoGradGuard no_grad;
    body();
    return 0;
  } catch (const c10::Error& error) {
    return fail(EXECUTION, std::string(op) + ": " + error.what_without_backtrace());
  } catch (const std::exception& error) {
    return fail(EXECUTION, std::string(op) + ": " + error.what());
  }
}

int run(aclOpExecutor* executor, void* stream) {
  auto shared = std::shared_ptr<aclOpExecutor>(executor);
  return post(stream, [shared] { return run_body(shared->op, shared->body); });
}

void make_mask(const at::Tensor& mask, int64_t elements, double drop, int64_t seed, int64_t offset) {
  int64_t padded = (elements + MASK_BLOCK - 1) / MASK_BLOCK * MASK_BLOCK;
  TORCH_CHECK(mask.numel() * 8 >= padded, "a dropout mask of ", mask.numel(), " bytes for ", elements, " elements");
  at::Tensor keep = at::empty({padded}, at::kByte).bernoulli_(1 - drop, generator(seed, offset));
  at::Tensor place = at::pow(2, at::arange(8, at::kByte));
  mask.zero_();
  mask.view({-1}).narrow(0, 0, padded / 8).copy_((keep.view({-1, 8}) * place).sum(1).to(at::kByte));
}

at::Tensor read_mask(const at::Tensor& mask, at::IntArrayRef sizes) {
  at::Tensor place = at::pow(2, at::arange(8, at::kByte));
  at::Tensor bits = mask.contiguous().view({-1, 1}).bitwise_and(place).ne(0).view({-1});
  return bits.narrow(0, 0, c10::multiply_integers(sizes)).view(sizes);
}

}  // namespace emu

EMU_API aclTensor* aclCreateTensor(const int64_t* sizes, uint64_t count, aclDataType type, const int64_t* strides,
                                   int64_t offset, aclFormat, const int64_t*, uint64_t, void* data) {
  auto* made = new aclTensor;
  made->sizes.assign(sizes, sizes + count);
  made->strides.assign(strides, strides + count);
  made->type = type;
  made->offset = offset;
  made->data = data;
  return made;
}
EMU_API aclScalar* aclCreateScalar(void* value, aclDataType type) {
  auto* made = new aclScalar;
  try {
    AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND3(at::kHalf, at::kBFloat16, at::kBool, emu::type_of(type), "scalar", [&] {
      made->value = at::Scalar(*(scalar_t*)value);
    });
  } catch (const c10::Error& error) {
    delete made;
    emu::fail(INVALID, error.what_without_backtrace());
    return nullptr;
  }
  return made;
}
EMU_API aclIntArray* aclCreateIntArray(const int64_t* values, uint64_t count) {
  return new aclIntArray{Kind::ints, {values, values + count}};
}
EMU_API aclFloatArray* aclCreateFloatArray(const float* values, uint64_t count) {
  return new aclFloatArray{Kind::floats, {values, values + count}};
}
EMU_API aclBoolArray* aclCreateBoolArray(const bool* values, uint64_t count) {
  return new aclBoolArray{Kind::bools, std::vector<bool>(values, values + count)};  // braces would make two bools
}
EMU_API aclTensorList* aclCreateTensorList(const aclTensor* const* values, uint64_t count) {
  return new aclTensorList{Kind::tensors, {values, values + count}};
}
EMU_API aclScalarList* aclCreateScalarList(const aclScalar* const* values, uint64_t count) {
  return new aclScalarList{Kind::scalars, {values, values + count}};
}
#define DESTROYED(type) \
  EMU_API int aclDestroy##type(const acl##type* handle) { delete handle; return 0; }
DESTROYED(Tensor)
DESTROYED(Scalar)
DESTROYED(IntArray)
DESTROYED(FloatArray)
DESTROYED(BoolArray)
EMU_API int aclDestroyTensorList(const aclTensorList* handle) {
  if (handle) for (auto* one : handle->values) delete one;
  delete handle;
  return 0;
}
EMU_API int aclDestroyScalarList(const aclScalarList* handle) {
  if (handle) for (auto* one : handle->values) delete one;
  delete handle;
  return 0;
}
EMU_API int aclDestroyAclOpExecutor(aclOpExecutor* executor) {
  delete executor;
  return 0;
}
EMU_API int aclGetViewShape(const aclTensor* handle, int64_t** sizes, uint64_t* count) {
  *count = handle->sizes.size();
  *sizes = new int64_t[*count];
  std::copy(handle->sizes.begin(), handle->sizes.end(), *sizes);
  return 0;
}
EMU_API int aclnnInit(const char*) { return 0; }
EMU_API int aclnnFinalize() { return 0; }

// The operators that torch_npu runs by name. With no outputs: whether the operator is one of them.
EMU_API bool accel_emulator_run_legacy(const char* name, const std::vector<emu::LegacyTensor>& inputs,
                                       const std::vector<emu::LegacyTensor>& outputs) {
  auto wrap = [](const emu::LegacyTensor& one) {
    return at::from_blob(one.data, *one.sizes, at::TensorOptions().dtype(emu::type_of(one.type)));
  };
  auto numbers = [wrap](const emu::LegacyTensor& one) {
    at::Tensor values = wrap(one).to(at::kLong).contiguous();
    return std::vector<int64_t>(values.data_ptr<int64_t>(), values.data_ptr<int64_t>() + values.numel());
  };
  static const std::map<std::string, std::function<void(at::Tensor, const std::vector<emu::LegacyTensor>&)>> known = {
      {"BroadcastTo", [wrap, numbers](at::Tensor out, auto& in) { out.copy_(wrap(in[0]).expand(out.sizes())); }},
      {"Slice", [wrap, numbers](at::Tensor out, auto& in) {
         at::Tensor part = wrap(in[0]);
         auto starts = numbers(in[1]), sizes = numbers(in[2]);
         for (size_t i = 0; i < sizes.size(); i++) part = part.narrow((int64_t)i, starts[i], sizes[i]);
         out.copy_(part);
       }},
      {"Transpose", [wrap, numbers](at::Tensor out, auto& in) { out.copy_(wrap(in[0]).permute(numbers(in[1]))); }},
      {"LogicalAnd", [wrap](at::Tensor out, auto& in) { out.copy_(at::logical_and(wrap(in[0]), wrap(in[1]))); }},
      {"LogicalOr", [wrap](at::Tensor out, auto& in) { out.copy_(at::logical_or(wrap(in[0]), wrap(in[1]))); }},
      {"BitwiseAnd", [wrap](at::Tensor out, auto& in) { out.copy_(at::bitwise_and(wrap(in[0]), wrap(in[1]))); }},
      {"BitwiseOr", [wrap](at::Tensor out, auto& in) { out.copy_(at::bitwise_or(wrap(in[0]), wrap(in[1]))); }},
      {"Fill", [wrap, numbers](at::Tensor out, auto& in) { out.fill_(wrap(in[1]).item()); }},
      {"ReduceMean", [wrap, numbers](at::Tensor out, auto& in) {
         at::Tensor whole = wrap(in[0]);
         out.copy_(at::mean(whole, numbers(in[1]), out.dim() == whole.dim()));
       }},
  };
  auto found = known.find(name);
  if (outputs.empty()) return found != known.end();
  return emu::run_body(name, [&] { found->second(wrap(outputs[0]), inputs); }) == 0;
}
