// Versions, switches and hooks: what torch_npu asks of the system, sets, or registers with it.
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "acl/acl.h"
#include "acl/acl_mdl.h"
#include "acl/acl_op_compiler.h"
#include "acl/acl_rt.h"
#include "emulator.h"

namespace {
std::string cann() { return emu::setting("CANN", "8.5.0"); }
std::mutex& mutex = *new std::mutex;
auto& parameters = *new std::map<int, int64_t>;
auto& options = *new std::map<int, std::string>;
}  // namespace

// An entry point that succeeds and does nothing, and one that nothing emulates.
#define ACCEPTED(name, ...) aclError name(__VA_ARGS__) { return ACL_SUCCESS; }
#define REFUSED(name, ...) aclError name(__VA_ARGS__) { return emu::unsupported(#name); }

extern "C" {

aclError aclsysGetCANNVersion(aclCANNPackageName, aclCANNPackageVersion* version) {
  memset(version, 0, sizeof *version);
  snprintf(version->version, sizeof version->version, "%s", cann().c_str());
  return ACL_SUCCESS;
}
aclError aclsysGetVersionStr(char*, char* version) {
  strcpy(version, cann().c_str());
  return ACL_SUCCESS;
}

// Attribute 0 is INF/NAN mode, which the 910B has and torch_npu switches on at start; 1 is bfloat16.
aclError aclGetCannAttributeList(const aclCannAttr** list, size_t* count) {
  static const aclCannAttr attributes[] = {(aclCannAttr)0, (aclCannAttr)1};
  *list = attributes;
  *count = 2;
  return ACL_SUCCESS;
}
aclError aclGetCannAttribute(aclCannAttr, int32_t* value) {
  *value = 1;
  return ACL_SUCCESS;
}
aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode mode) {
  emu::trace("runtime", "aclrtSetDeviceSatMode %d", (int)mode);
  return ACL_SUCCESS;
}

aclError aclrtSetSysParamOpt(aclSysParamOpt option, int64_t value) {
  std::lock_guard<std::mutex> lock(mutex);
  parameters[option] = value;
  return ACL_SUCCESS;
}
aclError aclrtCtxSetSysParamOpt(aclSysParamOpt option, int64_t value) { return aclrtSetSysParamOpt(option, value); }
aclError aclrtGetSysParamOpt(aclSysParamOpt option, int64_t* value) {
  std::lock_guard<std::mutex> lock(mutex);
  *value = parameters[option];
  return ACL_SUCCESS;
}
aclError aclSetCompileopt(aclCompileOpt option, const char* value) {
  std::lock_guard<std::mutex> lock(mutex);
  options[option] = value;
  return ACL_SUCCESS;
}
size_t aclGetCompileoptSize(aclCompileOpt option) {
  std::lock_guard<std::mutex> lock(mutex);
  return options[option].size() + 1;
}
aclError aclGetCompileopt(aclCompileOpt option, char* value, size_t size) {
  std::lock_guard<std::mutex> lock(mutex);
  snprintf(value, size, "%s", options[option].c_str());
  return ACL_SUCCESS;
}

aclError aclmdlRICaptureGetInfo(aclrtStream, aclmdlRICaptureStatus* status, aclmdlRI* model) {
  *status = ACL_MODEL_RI_CAPTURE_STATUS_NONE;
  if (model) *model = nullptr;
  return ACL_SUCCESS;
}

ACCEPTED(aclmdlRICaptureThreadExchangeMode, aclmdlRICaptureMode*)
ACCEPTED(aclmdlInitDump)
ACCEPTED(aclmdlFinalizeDump)
ACCEPTED(aclmdlSetDump, const char*)
ACCEPTED(aclrtSetOpWaitTimeout, uint32_t)
ACCEPTED(aclrtSetOpExecuteTimeOut, uint32_t)
ACCEPTED(aclrtGetLastError, aclrtLastErrLevel)
ACCEPTED(aclrtPeekAtLastError, aclrtLastErrLevel)
int MsprofRegisterCallback(uint32_t, void*) { return 0; }
int MsprofReportApi(uint32_t, void*) { return 0; }
int MsprofReportAdditionalInfo(uint32_t, void*, uint32_t) { return 0; }
int MsprofReportCompactInfo(uint32_t, void*, uint32_t) { return 0; }
uint64_t MsprofGetHashId(const char*, size_t) { return 0; }
uint64_t MsprofSysCycleTime() { return 0; }

REFUSED(aclrtBinaryGetFunction, const aclrtBinHandle, const char*, aclrtFuncHandle*)
REFUSED(aclrtBinaryLoadFromData, const void*, size_t, const aclrtBinaryLoadOptions*, aclrtBinHandle*)
REFUSED(aclrtGetFunctionAddr, aclrtFuncHandle, void**, void**)
REFUSED(aclrtMemExportToShareableHandle, aclrtDrvMemHandle, aclrtMemHandleType, uint64_t, uint64_t*)
REFUSED(aclrtMemImportFromShareableHandle, uint64_t, int32_t, aclrtDrvMemHandle*)
REFUSED(aclrtMemSetPidToShareableHandle, uint64_t, int32_t*, size_t)
REFUSED(rtDevBinaryRegister, ...)
REFUSED(rtFunctionRegister, ...)
REFUSED(rtGetC2cCtrlAddr, ...)
REFUSED(rtKernelLaunch, ...)
}
