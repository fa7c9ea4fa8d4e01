// What the generated operators (ops/*.def, one line each) are written with.
//
// An operator's GetWorkspaceSize turns its acl arguments into ATen values over the same memory and keeps them with the
// body; running it puts the body on a stream. Bodies call libtorch's CPU kernels, so that a result on the emulated
// device has the bits of the same operation on the CPU.
#pragma once
#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

#include "acl/acl_base.h"

struct aclTensor;
struct aclScalar;
struct aclIntArray;
struct aclFloatArray;
struct aclBoolArray;
struct aclTensorList;
struct aclScalarList;
struct aclOpExecutor;

#define EMU_API extern "C" __attribute__((visibility("default")))

namespace emu {

using Optional = std::optional<at::Tensor>;

at::ScalarType type_of(aclDataType type);
at::Tensor tensor(const aclTensor* handle);  // undefined for a null handle
at::Scalar scalar(const aclScalar* handle);  // 0 for a null handle
std::optional<at::Scalar> maybe(const aclScalar* handle);
std::vector<int64_t> ints(const aclIntArray* handle);
std::vector<bool> bools(const aclBoolArray* handle);
std::vector<at::Tensor> tensors(const aclTensorList* handle);
std::vector<at::Scalar> scalars(const aclScalarList* handle);

// Write a result into an output of the same number of elements; nothing when the caller asked for no such output.
void store(const at::Tensor& out, const at::Tensor& value);
Optional maybe(const at::Tensor& tensor);
std::array<bool, 3> three(const std::vector<bool>& mask);
// Generators of torch_npu are a seed and an offset; equal pairs give equal numbers.
at::Generator generator(int64_t seed, int64_t offset);

// What an operator of CANN takes and libtorch takes more of: see refusals.def. Throws.
void accept(const char* op, const char* argument, const at::Tensor& value, std::initializer_list<at::ScalarType> types);
void accept(const char* op, const char* argument, const std::vector<at::Tensor>& values,
            std::initializer_list<at::ScalarType> types);

int prepare(const char* op, aclOpExecutor** executor, const std::function<std::function<void()>()>& bind);
int run(aclOpExecutor* executor, void* stream);
int run_body(const char* op, const std::function<void()>& body);

// The index k over a list of tensors.
#define EACH(list) for (size_t k = 0; k < (list).size(); k++)

// A dropout mask as CANN lays it out: one bit an element, in whole blocks of 128 elements; 1 keeps the element.
void make_mask(const at::Tensor& mask, int64_t elements, double drop, int64_t seed, int64_t offset);
at::Tensor read_mask(const at::Tensor& mask, at::IntArrayRef sizes);

}  // namespace emu
