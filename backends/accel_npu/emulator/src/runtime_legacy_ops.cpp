// The older way to run an operator, by name and tensor descriptions (aclop). torch_npu's copies of strided tensors and
// its bitwise operators still go through it; libopapi.so runs the few that they need, and any other is refused
// by name.
#include <dlfcn.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "acl/acl.h"
#include "acl/acl_op.h"
#include "acl/acl_op_compiler.h"
#include "emulator.h"
#include "legacy.h"

namespace {

struct Description {
  aclDataType type;
  std::vector<int64_t> sizes;
  aclFormat format;
};
using Buffer = std::pair<void*, size_t>;
const Description* description(const aclTensorDesc* handle) { return (const Description*)handle; }

struct Call {
  std::string name;
  std::vector<std::vector<int64_t>> sizes;
  std::vector<emu::LegacyTensor> inputs, outputs;
};

emu::LegacyRunner runner() {
  static const emu::LegacyRunner found = [] {
    void* library = dlopen("libopapi.so", RTLD_LAZY);
    return library ? (emu::LegacyRunner)dlsym(library, "accel_emulator_run_legacy") : nullptr;
  }();
  return found;
}

}  // namespace

#define IGNORED(name, ...) aclError name(__VA_ARGS__) { return ACL_SUCCESS; }

extern "C" {

aclTensorDesc* aclCreateTensorDesc(aclDataType type, int count, const int64_t* sizes, aclFormat format) {
  return (aclTensorDesc*)new Description{type, std::vector<int64_t>(sizes, sizes + count), format};
}
void aclDestroyTensorDesc(const aclTensorDesc* handle) { delete description(handle); }
aclError aclGetTensorDescDimV2(const aclTensorDesc* handle, size_t index, int64_t* size) {
  *size = description(handle)->sizes.at(index);
  return ACL_SUCCESS;
}
size_t aclGetTensorDescNumDims(const aclTensorDesc* handle) { return description(handle)->sizes.size(); }
aclFormat aclGetTensorDescFormat(const aclTensorDesc* handle) { return description(handle)->format; }
aclDataType aclGetTensorDescType(const aclTensorDesc* handle) { return description(handle)->type; }
void aclSetTensorDescName(aclTensorDesc*, const char*) {}
IGNORED(aclSetTensorFormat, aclTensorDesc*, aclFormat)
IGNORED(aclSetTensorPlaceMent, aclTensorDesc*, aclMemType)
IGNORED(aclSetTensorShape, aclTensorDesc*, int, const int64_t*)

aclDataBuffer* aclCreateDataBuffer(void* data, size_t size) { return (aclDataBuffer*)new Buffer(data, size); }
aclError aclDestroyDataBuffer(const aclDataBuffer* buffer) {
  delete (const Buffer*)buffer;
  return ACL_SUCCESS;
}

// None of the operators that are run reads an attribute.
aclopAttr* aclopCreateAttr() { return (aclopAttr*)new char; }
void aclopDestroyAttr(const aclopAttr* attributes) { delete (const char*)attributes; }
IGNORED(aclopSetAttrBool, aclopAttr*, const char*, uint8_t)
IGNORED(aclopSetAttrDataType, aclopAttr*, const char*, aclDataType)
IGNORED(aclopSetAttrFloat, aclopAttr*, const char*, float)
IGNORED(aclopSetAttrInt, aclopAttr*, const char*, int64_t)
IGNORED(aclopSetAttrListBool, aclopAttr*, const char*, int, const uint8_t*)
IGNORED(aclopSetAttrListFloat, aclopAttr*, const char*, int, const float*)
IGNORED(aclopSetAttrListInt, aclopAttr*, const char*, int, const int64_t*)
IGNORED(aclopSetAttrListListInt, aclopAttr*, const char*, int, const int*, const int64_t* const[])
IGNORED(aclopSetAttrString, aclopAttr*, const char*, const char*)

aclError aclopCompileAndExecute(const char* name, int inputs, const aclTensorDesc* const input_descriptions[],
                                const aclDataBuffer* const input_buffers[], int outputs,
                                const aclTensorDesc* const output_descriptions[], aclDataBuffer* const output_buffers[],
                                const aclopAttr*, aclopEngineType, aclopCompileType, const char*, aclrtStream stream) {
  auto call = std::make_shared<Call>();
  call->name = name;
  if (!runner() || !runner()(name, {}, {})) return emu::unsupported((std::string("the operator ") + name).c_str());
  call->sizes.reserve((size_t)(inputs + outputs));  // the tensors point into it
  auto add = [&](std::vector<emu::LegacyTensor>& tensors, const aclTensorDesc* handle, const aclDataBuffer* buffer) {
    call->sizes.push_back(description(handle)->sizes);
    tensors.push_back({description(handle)->type, &call->sizes.back(), ((const Buffer*)buffer)->first});
  };
  for (int i = 0; i < inputs; i++) add(call->inputs, input_descriptions[i], input_buffers[i]);
  for (int i = 0; i < outputs; i++) add(call->outputs, output_descriptions[i], output_buffers[i]);
  return emu::post(stream, [call] {
    bool done = runner()(call->name.c_str(), call->inputs, call->outputs);
    return done ? 0 : emu::fail(507018, "the operator " + call->name + " failed");  // ACL_ERROR_RT_AICPU_EXCEPTION
  });
}
}
