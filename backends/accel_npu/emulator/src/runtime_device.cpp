// Devices: how many there are, which one a thread uses, what they say of themselves.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

#include "acl/acl.h"
#include "acl/acl_rt.h"
#include "emulator.h"
#include "runtime.h"

namespace {

const char* const SOC = "Ascend910B3";  // 20 cube and 40 vector cores
struct Context { int device; };
Context contexts[emu::MAX_DEVICES];
std::atomic<bool> active[emu::MAX_DEVICES];
thread_local int current = -1;

// Ids in ASCEND_RT_VISIBLE_DEVICES must ascend; the real runtime drops bad ones without a word, so what follows the
// first bad one is not visible here either.
int visible(int present) {
  const char* text = getenv("ASCEND_RT_VISIBLE_DEVICES");
  if (!text) return present;
  int count = 0, last = -1;
  while (*text) {
    char* end;
    long id = strtol(text, &end, 10);
    if (end == text || (*end && *end != ',') || id <= last || id >= present) break;
    last = (int)id;
    count++;
    text = *end ? end + 1 : end;
  }
  return count;
}

bool exists(int device) { return device >= 0 && device < emu::device_count(); }

}  // namespace

namespace emu {
int current_device() { return current; }
void use_device(int device) { current = device; }
int device_count() {
  static const int count = visible((int)std::min<int64_t>(number("DEVICES", 2), MAX_DEVICES));
  return count;
}
}  // namespace emu

extern "C" {

aclError aclInit(const char*) {
  // The kernels that run on the CPU instead are installed once torch_npu has registered its own; see fallback.cpp.
  static std::once_flag once;
  std::call_once(once, [] {
    void* library = dlopen("libopapi.so", RTLD_LAZY | RTLD_GLOBAL);
    auto install = library ? (void (*)())dlsym(library, "accel_emulator_install_fallbacks") : nullptr;
    if (install) install();
    else emu::trace("runtime", "libopapi.so is not used: %s", dlerror());
  });
  return ACL_SUCCESS;
}
aclError aclFinalize() { return ACL_SUCCESS; }

const char* aclrtGetSocName() { return SOC; }

aclError aclrtGetDeviceCount(uint32_t* count) {
  *count = (uint32_t)emu::device_count();
  return ACL_SUCCESS;
}

aclError aclrtSetDevice(int32_t device) {
  if (!exists(device)) {
    return emu::fail(107001, "EE1001: device id " + std::to_string(device) + " is invalid: expected 0 to " +
                                 std::to_string(emu::device_count() - 1));  // ACL_ERROR_RT_INVALID_DEVICEID
  }
  current = device;
  contexts[device].device = device;
  active[device] = true;
  return ACL_SUCCESS;
}

aclError aclrtResetDevice(int32_t device) {
  if (exists(device)) active[device] = false;
  if (current == device) current = -1;
  return ACL_SUCCESS;
}

aclError aclrtGetDevice(int32_t* device) {
  if (current < 0) return emu::fail(107002, "no device is set on this thread");  // ACL_ERROR_RT_CONTEXT_NULL
  *device = current;
  return ACL_SUCCESS;
}

aclError aclrtGetCurrentContext(aclrtContext* context) {
  if (current < 0) return emu::fail(107002, "no device is set on this thread");
  *context = &contexts[current];
  return ACL_SUCCESS;
}

aclError aclrtSetCurrentContext(aclrtContext context) {
  if (!context) return emu::fail(107002, "the context is null");
  current = ((Context*)context)->device;
  return ACL_SUCCESS;
}

aclError aclrtGetPrimaryCtxState(int32_t device, uint32_t* flags, int32_t* is_active) {
  if (flags) *flags = 0;
  *is_active = exists(device) && active[device];
  return ACL_SUCCESS;
}

aclError aclrtGetLogicDevIdByUserDevId(const int32_t user, int32_t* const logic) {
  *logic = user;
  return ACL_SUCCESS;
}
aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t device, int32_t peer) {
  *can = device != peer;
  return ACL_SUCCESS;
}
aclError aclrtDeviceEnablePeerAccess(int32_t, uint32_t) { return ACL_SUCCESS; }
aclError aclrtDeviceTaskAbort(int32_t, uint32_t) { return ACL_SUCCESS; }
aclError aclrtDeviceGetBareTgid(int32_t* pid) {
  *pid = getpid();
  return ACL_SUCCESS;
}
aclError aclrtDeviceGetUuid(int32_t device, aclrtUuid* uuid) {
  memset(uuid, 0, sizeof *uuid);
  *(char*)uuid = (char)(device + 1);
  return ACL_SUCCESS;
}

aclError aclGetDeviceCapability(uint32_t, aclDeviceInfo info, int64_t* value) {
  *value = info == ACL_DEVICE_INFO_VECTOR_CORE_NUM ? 40 : 20;
  return ACL_SUCCESS;
}

aclError aclrtGetDeviceInfo(uint32_t, aclrtDevAttr attribute, int64_t* value) {
  switch ((int)attribute) {  // numbers of aclrtDevAttr, which has grown from version to version
    case 1: *value = 6; break;                             // AI CPU cores
    case 101: case 102: *value = 20; break;                // AI cores, cube cores
    case 201: *value = 40; break;                          // vector cores
    case 301: *value = (int64_t)emu::hbm_bytes(); break;   // total global memory
    case 302: *value = 192 << 20; break;                   // L2 cache
    default: *value = 0;
  }
  return ACL_SUCCESS;
}

aclError aclrtGetDeviceUtilizationRate(int32_t, aclrtUtilizationInfo* info) {
  info->cubeUtilization = info->vectorUtilization = info->aicpuUtilization = info->memoryUtilization = 0;
  return ACL_SUCCESS;
}
}
