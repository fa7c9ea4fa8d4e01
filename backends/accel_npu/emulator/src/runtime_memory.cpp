// Device and pinned memory, and the virtual-memory interface behind expandable segments.
//
// Each process has the whole HBM of a device to itself. Pages are reserved and not touched, so that a device of 64 GiB
// costs only what is written.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "acl/acl.h"
#include "acl/acl_rt.h"
#include "emulator.h"
#include "runtime.h"

namespace {

constexpr int OUT_OF_MEMORY = 207001;  // ACL_ERROR_RT_MEMORY_ALLOCATION, which torch_npu takes for "out of memory"
constexpr size_t PAGE = 4096, HUGE_PAGE = 2 << 20;

enum class Kind { device, host, mapped };
struct Block { size_t size; int device; Kind kind; };
struct Physical { int file; size_t size; int device; };

std::mutex& mutex = *new std::mutex;
auto& blocks = *new std::map<uintptr_t, Block>;
auto& reservations = *new std::map<uintptr_t, size_t>;
std::atomic<size_t> used[emu::MAX_DEVICES];

size_t round_up(size_t size, size_t to) { return size ? (size + to - 1) / to * to : to; }

// Take `size` bytes of a device's HBM, or say that there are not so many.
int take(int device, size_t size) {
  size_t before = used[device].load();
  do {
    if (before + size > emu::hbm_bytes()) {
      return emu::fail(OUT_OF_MEMORY, "EL0004: failed to allocate " + std::to_string(size) + " bytes on device " +
                                          std::to_string(device) + ": " + std::to_string(emu::hbm_bytes() - before) +
                                          " of " + std::to_string(emu::hbm_bytes()) + " bytes are free");
    }
  } while (!used[device].compare_exchange_weak(before, before + size));
  return ACL_SUCCESS;
}

// `size` bytes of address space that start at a multiple of a huge page.
char* aligned_map(size_t size, int protection) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  char* base = (char*)mmap(nullptr, size + HUGE_PAGE, protection, flags, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  char* start = (char*)round_up((uintptr_t)base, HUGE_PAGE);
  if (start > base) munmap(base, start - base);
  size_t tail = base + size + HUGE_PAGE - (start + size);
  if (tail) munmap(start + size, tail);
  return start;
}

int allocate(void** address, size_t size) {
  int device = emu::current_device();
  if (device < 0) return emu::fail(107002, "no device is set on this thread");
  size = round_up(size, PAGE);
  if (int code = take(device, size)) return code;
  char* start = aligned_map(size, PROT_READ | PROT_WRITE);
  if (!start) {
    used[device] -= size;
    return emu::fail(OUT_OF_MEMORY, "the host has no address space left");
  }
  std::lock_guard<std::mutex> lock(mutex);
  blocks[(uintptr_t)start] = {size, device, Kind::device};
  *address = start;
  emu::trace("runtime", "malloc %zu on device %d", size, device);
  return ACL_SUCCESS;
}

// Remove and return the block of this kind that starts at `address`.
bool forget(void* address, Kind kind, Block* block) {
  std::lock_guard<std::mutex> lock(mutex);
  auto found = blocks.find((uintptr_t)address);
  if (found == blocks.end() || found->second.kind != kind) return false;
  *block = found->second;
  blocks.erase(found);
  return true;
}

int invalid(const char* call) {
  return emu::fail(ACL_ERROR_INVALID_PARAM, std::string(call) + ": the address is not one that it may free");
}

}  // namespace

size_t emu::hbm_bytes() {
  static const size_t bytes = (size_t)number("HBM", 64ll << 30);
  return bytes;
}

extern "C" {

aclError aclrtMalloc(void** address, size_t size, aclrtMemMallocPolicy) { return allocate(address, size); }
aclError aclrtMallocAlign32(void** address, size_t size, aclrtMemMallocPolicy) { return allocate(address, size); }

aclError aclrtFree(void* address) {
  Block block;
  if (!forget(address, Kind::device, &block)) return invalid("aclrtFree");
  used[block.device] -= block.size;
  munmap(address, block.size);
  return ACL_SUCCESS;
}

aclError aclrtMallocHost(void** address, size_t size) {
  size = round_up(size, PAGE);
  if (posix_memalign(address, PAGE, size)) return emu::fail(OUT_OF_MEMORY, "the host is out of memory");
  std::lock_guard<std::mutex> lock(mutex);
  blocks[(uintptr_t)*address] = {size, 0, Kind::host};
  return ACL_SUCCESS;
}
aclError aclrtMallocHostWithCfg(void** address, uint64_t size, aclrtMallocConfig*) {
  return aclrtMallocHost(address, size);
}

aclError aclrtFreeHost(void* address) {
  Block block;
  if (!forget(address, Kind::host, &block)) return invalid("aclrtFreeHost");
  free(address);
  return ACL_SUCCESS;
}

aclError aclrtHostRegister(void* address, uint64_t, aclrtHostRegisterType, void** device_address) {
  *device_address = address;
  return ACL_SUCCESS;
}
aclError aclrtHostUnregister(void*) { return ACL_SUCCESS; }

aclError aclrtPointerGetAttributes(const void* address, aclrtPtrAttributes* attributes) {
  memset(attributes, 0, sizeof *attributes);
  attributes->location.type = ACL_MEM_LOCATION_TYPE_UNREGISTERED;
  std::lock_guard<std::mutex> lock(mutex);
  auto next = blocks.upper_bound((uintptr_t)address);
  if (next == blocks.begin()) return ACL_SUCCESS;
  auto [start, block] = *--next;
  if ((uintptr_t)address >= start + block.size) return ACL_SUCCESS;
  bool host = block.kind == Kind::host;
  attributes->location.type = host ? ACL_MEM_LOCATION_TYPE_HOST : ACL_MEM_LOCATION_TYPE_DEVICE;
  attributes->location.id = block.device;
  return ACL_SUCCESS;
}

aclError aclrtGetMemInfo(aclrtMemAttr, size_t* free, size_t* total) {
  int device = emu::current_device();
  if (device < 0) return emu::fail(107002, "no device is set on this thread");
  *total = emu::hbm_bytes();
  *free = *total - used[device];
  return ACL_SUCCESS;
}

aclError aclrtReserveMemAddress(void** address, size_t size, size_t, void*, uint64_t) {
  char* start = aligned_map(size, PROT_NONE);
  if (!start) return emu::fail(OUT_OF_MEMORY, "the host has no address space left");
  std::lock_guard<std::mutex> lock(mutex);
  reservations[(uintptr_t)start] = size;
  *address = start;
  return ACL_SUCCESS;
}

aclError aclrtReleaseMemAddress(void* address) {
  std::lock_guard<std::mutex> lock(mutex);
  auto found = reservations.find((uintptr_t)address);
  if (found == reservations.end()) return invalid("aclrtReleaseMemAddress");
  munmap(address, found->second);
  reservations.erase(found);
  return ACL_SUCCESS;
}

aclError aclrtMallocPhysical(aclrtDrvMemHandle* handle, size_t size, const aclrtPhysicalMemProp* property, uint64_t) {
  bool on_device = property && property->location.type == ACL_MEM_LOCATION_TYPE_DEVICE;
  int device = on_device ? (int)property->location.id : 0;
  if (int code = take(device, size)) return code;
  int file = (int)syscall(SYS_memfd_create, "npu-emulator", 0);
  if (file < 0 || ftruncate(file, (off_t)size)) {
    used[device] -= size;
    return emu::fail(OUT_OF_MEMORY, "the host is out of memory");
  }
  *handle = new Physical{file, size, device};
  return ACL_SUCCESS;
}

aclError aclrtFreePhysical(aclrtDrvMemHandle handle) {
  auto* physical = (Physical*)handle;
  close(physical->file);
  used[physical->device] -= physical->size;
  delete physical;
  return ACL_SUCCESS;
}

aclError aclrtMapMem(void* address, size_t size, size_t offset, aclrtDrvMemHandle handle, uint64_t) {
  auto* physical = (Physical*)handle;
  int flags = MAP_SHARED | MAP_FIXED;
  if (mmap(address, size, PROT_READ | PROT_WRITE, flags, physical->file, (off_t)offset) == MAP_FAILED) {
    return emu::fail(OUT_OF_MEMORY, "the host could not map device memory");
  }
  std::lock_guard<std::mutex> lock(mutex);
  blocks[(uintptr_t)address] = {size, physical->device, Kind::mapped};
  return ACL_SUCCESS;
}

aclError aclrtUnmapMem(void* address) {
  Block block;
  if (!forget(address, Kind::mapped, &block)) return invalid("aclrtUnmapMem");
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  mmap(address, block.size, PROT_NONE, flags, -1, 0);
  return ACL_SUCCESS;
}

namespace {
int copy(void* to, size_t room, const void* from, size_t size) {
  if (size > room || (size && (!to || !from))) {
    return emu::fail(ACL_ERROR_INVALID_PARAM, "aclrtMemcpy: " + std::to_string(size) + " bytes into " +
                                                  std::to_string(room) + ", or a null address");
  }
  memmove(to, from, size);
  return ACL_SUCCESS;
}
}  // namespace

aclError aclrtMemcpy(void* to, size_t room, const void* from, size_t size, aclrtMemcpyKind) {
  return copy(to, room, from, size);
}
aclError aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t size, aclrtMemcpyKind, aclrtStream stream) {
  if (size > room) return copy(to, room, from, size);
  return emu::post(stream, [=] { return copy(to, room, from, size); });
}
aclError aclrtMemcpyAsyncWithCondition(void* to, size_t room, const void* from, size_t size, aclrtMemcpyKind kind,
                                       aclrtStream stream) {
  return aclrtMemcpyAsync(to, room, from, size, kind, stream);
}
aclError aclrtMemset(void* to, size_t, int32_t value, size_t size) {
  memset(to, value, size);
  return ACL_SUCCESS;
}
aclError aclrtMemsetAsync(void* to, size_t, int32_t value, size_t size, aclrtStream stream) {
  return emu::post(stream, [=] {
    memset(to, value, size);
    return 0;
  });
}
aclError aclrtCmoAsync(void*, size_t, aclrtCmoType, aclrtStream) { return ACL_SUCCESS; }  // a cache hint
}
