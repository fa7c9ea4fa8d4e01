// libhccl.so: communicators and collectives, each built of transfers between mailboxes (hccl_mailbox.h).
//
// A collective is queued on its stream and returns at once, in both modes: the host never waits for its peers. When it
// fails the stream reports an ACL code - 107020 for HCCL_EXEC_TIMEOUT, 507057 for a lost peer - and the message names
// the operation, the rank and what it waited for. Reductions run in rank order, so that all ranks get the same bits.
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <map>
#include <mutex>

#include "emulator.h"
typedef void* aclrtStream;
typedef void* aclrtDrvMemHandle;
#include "hccl_mailbox.h"
#include "hccl_reduce.h"

#define HCCL_API extern "C" __attribute__((visibility("default")))

namespace {

using emu::Communicator;
using emu::Part;
using emu::size_of;
using Parts = std::vector<Part>;
using Shared = std::shared_ptr<Communicator>;
using Body = std::function<HcclResult(Communicator*)>;

constexpr double EXEC_TIMEOUT = 1800;  // seconds; HCCL_EXEC_TIMEOUT, environment variable reference of CANN 8

std::mutex& mutex = *new std::mutex;
auto& communicators = *new std::map<HcclComm, Shared>;

Shared find(HcclComm handle) {
  std::lock_guard<std::mutex> lock(mutex);
  auto found = communicators.find(handle);
  return found == communicators.end() ? nullptr : found->second;
}

int stream_code(HcclResult code) {
  switch (code) {
    case HCCL_SUCCESS: return 0;
    case HCCL_E_TIMEOUT: return 107020;  // ACL_ERROR_RT_TASK_TIMEOUT
    case HCCL_E_REMOTE: return 507057;   // ACL_ERROR_RT_SUSPECT_REMOTE_ERROR
    default: return 507018;              // ACL_ERROR_RT_AICPU_EXCEPTION
  }
}

HcclResult refuse(HcclResult code, const std::string& message) {
  emu::fail(code, message);
  return code;
}

HcclResult launch(HcclComm handle, aclrtStream stream, Body body) {
  Shared communicator = find(handle);
  if (!communicator) return refuse(HCCL_E_PTR, "EI0003: the communicator is null or destroyed");
  emu::post(stream, [communicator, body] {
    communicator->running++;
    HcclResult code = communicator->closing ? HCCL_E_UNAVAIL : body(communicator.get());
    communicator->running--;
    return stream_code(code);
  }, communicator->size > 1 ? emu::Blocking::yes : emu::Blocking::no);
  return HCCL_SUCCESS;
}

// Agreement between the two ends of a transfer: operation, data type, reduction and count.
uint64_t tag(HcclCMDType command, int type = 0, int operation = 0, uint64_t count = 0) {
  return ((uint64_t)command << 56) ^ ((uint64_t)type << 48) ^ ((uint64_t)operation << 40) ^ count;
}

HcclResult check(const char* name, HcclDataType type) {
  if (size_of(type)) return HCCL_SUCCESS;
  return refuse(HCCL_E_NOT_SUPPORT, std::string("EI0003: ") + name + " does not take data type " + std::to_string(type));
}

HcclResult check_reduction(const char* name, HcclDataType type, HcclReduceOp operation) {
  if (emu::reducible(type, operation)) return HCCL_SUCCESS;
  return refuse(HCCL_E_NOT_SUPPORT, std::string("EI0003: ") + name + " on Ascend 910B does not take data type " +
                                        std::to_string(type) + " with reduction " + std::to_string(operation));
}

// Everybody sends one block to everybody.
HcclResult exchange(Communicator* communicator, const void* own, size_t bytes, const std::vector<char*>& to,
                    const std::vector<size_t>& sizes, const char* name, uint64_t mark) {
  Parts parts;
  for (uint32_t peer = 0; peer < communicator->size; peer++) {
    parts.push_back({true, peer, (char*)own, bytes});
    parts.push_back({false, peer, to[peer], sizes[peer]});
  }
  return emu::transfer(communicator, parts, name, mark);
}

HcclResult all_reduce(Communicator* communicator, const void* from, void* to, uint64_t count, HcclDataType type,
                      HcclReduceOp operation, const char* name, uint64_t mark) {
  const uint64_t chunk = 1 << 20;  // elements; bounds the memory for the other ranks' values
  size_t size = size_of(type);
  std::vector<char> values(std::min(count, chunk) * size * communicator->size);
  for (uint64_t start = 0; start < count; start += chunk) {
    uint64_t now = std::min(chunk, count - start);
    size_t bytes = now * size;
    std::vector<char*> places;
    for (uint32_t peer = 0; peer < communicator->size; peer++) places.push_back(values.data() + peer * bytes);
    std::vector<size_t> sizes(communicator->size, bytes);
    HcclResult code = exchange(communicator, (const char*)from + start * size, bytes, places, sizes, name, mark);
    if (code) return code;
    for (uint32_t peer = 1; peer < communicator->size; peer++) emu::reduce(places[0], places[peer], now, type, operation);
    if (to) memcpy((char*)to + start * size, places[0], bytes);
  }
  return HCCL_SUCCESS;
}

// Each rank sends every other its share, and reduces what it gets.
HcclResult reduce_scatter(Communicator* communicator, const std::vector<char*>& from, const std::vector<uint64_t>& counts,
                          void* to, uint64_t count, HcclDataType type, HcclReduceOp operation, const char* name,
                          uint64_t mark) {
  size_t size = size_of(type), bytes = count * size;
  std::vector<char> values(bytes * communicator->size);
  Parts parts;
  for (uint32_t peer = 0; peer < communicator->size; peer++) {
    parts.push_back({true, peer, from[peer], counts[peer] * size});
    parts.push_back({false, peer, values.data() + peer * bytes, bytes});
  }
  if (HcclResult code = emu::transfer(communicator, parts, name, mark)) return code;
  for (uint32_t peer = 1; peer < communicator->size; peer++) {
    emu::reduce(values.data(), values.data() + peer * bytes, count, type, operation);
  }
  if (bytes) memcpy(to, values.data(), bytes);
  return HCCL_SUCCESS;
}

HcclResult create(const std::string& id, uint32_t size, uint32_t rank, const HcclCommConfig* config, bool wait,
                  HcclComm* handle) {
  double timeout = emu::vendor_seconds("HCCL_EXEC_TIMEOUT", EXEC_TIMEOUT);
  Shared communicator;
  if (HcclResult code = emu::join(id, size, rank, timeout, wait, &communicator)) return code;
  communicator->name = config && config->hcclCommName[0] ? config->hcclCommName : id;
  std::lock_guard<std::mutex> lock(mutex);
  communicators[communicator.get()] = communicator;
  *handle = communicator.get();
  return HCCL_SUCCESS;
}

}  // namespace

HCCL_API HcclResult HcclGetRootInfo(HcclRootInfo* root) {
  static std::atomic<int> counter{0};
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  memset(root, 0, sizeof *root);
  snprintf(root->internal, 128, "npu-emulator-%d-%d-%lx%lx", getpid(), counter++, (long)now.tv_sec, (long)now.tv_nsec);
  return HCCL_SUCCESS;
}
HCCL_API HcclResult HcclCommInitRootInfo(uint32_t size, const HcclRootInfo* root, uint32_t rank, HcclComm* handle) {
  return create(root->internal, size, rank, nullptr, true, handle);
}
HCCL_API HcclResult HcclCommInitRootInfoConfig(uint32_t size, const HcclRootInfo* root, uint32_t rank,
                                               const HcclCommConfig* config, HcclComm* handle) {
  return create(root->internal, size, rank, config, true, handle);
}
HCCL_API HcclResult HcclCreateSubCommConfig(HcclComm* parent, uint32_t size, uint32_t*, uint64_t id, uint32_t rank,
                                            HcclCommConfig* config, HcclComm* handle) {
  Shared whole = find(*parent);
  if (!whole) return refuse(HCCL_E_PTR, "EI0003: the communicator is null or destroyed");
  if (rank == 0xffffffffu) return HCCL_SUCCESS;  // this rank is not in the group
  return create(whole->id + "-" + std::to_string(id), size, rank, config, true, handle);
}
HCCL_API HcclResult HcclCommInitAll(uint32_t size, int32_t*, HcclComm* handles) {
  HcclRootInfo root;
  HcclGetRootInfo(&root);
  for (uint32_t rank = 0; rank < size; rank++) {
    if (HcclResult code = create(root.internal, size, rank, nullptr, false, &handles[rank])) return code;
  }
  return HCCL_SUCCESS;
}
HCCL_API HcclResult HcclCommDestroy(HcclComm handle) {
  Shared communicator = find(handle);
  if (!communicator) return refuse(HCCL_E_PTR, "EI0003: the communicator is null or destroyed");
  emu::leave(communicator.get());
  std::lock_guard<std::mutex> lock(mutex);
  communicators.erase(handle);
  return HCCL_SUCCESS;
}
HCCL_API HcclResult HcclGetCommName(HcclComm handle, char* name) {
  Shared communicator = find(handle);
  if (!communicator) return HCCL_E_PTR;
  snprintf(name, COMM_NAME_MAX_LENGTH, "%s", communicator->name.c_str());
  return HCCL_SUCCESS;
}
HCCL_API HcclResult HcclGetRankSize(HcclComm handle, uint32_t* size) {
  Shared communicator = find(handle);
  if (!communicator) return HCCL_E_PTR;
  *size = communicator->size;
  return HCCL_SUCCESS;
}
HCCL_API HcclResult HcclGetRankId(HcclComm handle, uint32_t* rank) {
  Shared communicator = find(handle);
  if (!communicator) return HCCL_E_PTR;
  *rank = communicator->rank;
  return HCCL_SUCCESS;
}
// Errors of links and peers; a timeout is reported by the stream alone.
HCCL_API HcclResult HcclGetCommAsyncError(HcclComm handle, HcclResult* error) {
  Shared communicator = find(handle);
  *error = communicator && communicator->error == HCCL_E_REMOTE ? HCCL_E_REMOTE : HCCL_SUCCESS;
  return HCCL_SUCCESS;
}
HCCL_API const char* HcclGetErrorString(HcclResult code) {
  switch (code) {
    case HCCL_SUCCESS: return "no error";
    case HCCL_E_PARA: return "parameter error";
    case HCCL_E_TIMEOUT: return "timeout";
    case HCCL_E_REMOTE: return "remote error";
    case HCCL_E_NOT_SUPPORT: return "not supported";
    default: return "error";
  }
}
HCCL_API uint32_t HcclGetCommConfigCapability() { return HCCL_COMM_CONFIG_RESERVED; }  // all of them
HCCL_API HcclResult HcclSetConfig(HcclConfig, HcclConfigValue) { return HCCL_SUCCESS; }
HCCL_API HcclResult HcclGetConfig(HcclConfig, HcclConfigValue* value) {
  value->value = 0;
  return HCCL_SUCCESS;
}
HCCL_API HcclResult HcclCommResume(HcclComm) { return HCCL_SUCCESS; }
HCCL_API HcclResult HcclGroupStart() { return HCCL_SUCCESS; }
HCCL_API HcclResult HcclGroupEnd() { return HCCL_SUCCESS; }

HCCL_API HcclResult HcclAllReduce(void* from, void* to, uint64_t count, HcclDataType type, HcclReduceOp operation,
                                  HcclComm handle, aclrtStream stream) {
  if (HcclResult code = check_reduction("HcclAllReduce", type, operation)) return code;
  uint64_t mark = tag(HCCL_CMD_ALLREDUCE, type, operation, count);
  return launch(handle, stream, [=](Communicator* communicator) {
    return all_reduce(communicator, from, to, count, type, operation, "HcclAllReduce", mark);
  });
}

HCCL_API HcclResult HcclReduce(void* from, void* to, uint64_t count, HcclDataType type, HcclReduceOp operation,
                               uint32_t root, HcclComm handle, aclrtStream stream) {
  if (HcclResult code = check_reduction("HcclReduce", type, operation)) return code;
  uint64_t mark = tag(HCCL_CMD_REDUCE, type, operation, count);
  return launch(handle, stream, [=](Communicator* communicator) {
    void* place = communicator->rank == root ? to : nullptr;
    return all_reduce(communicator, from, place, count, type, operation, "HcclReduce", mark);
  });
}

HCCL_API HcclResult HcclAllGather(void* from, void* to, uint64_t count, HcclDataType type, HcclComm handle,
                                  aclrtStream stream) {
  if (HcclResult code = check("HcclAllGather", type)) return code;
  return launch(handle, stream, [=](Communicator* communicator) {
    size_t bytes = count * size_of(type);
    std::vector<char> own((char*)from, (char*)from + bytes);  // it may lie inside the output
    std::vector<char*> places;
    for (uint32_t peer = 0; peer < communicator->size; peer++) places.push_back((char*)to + peer * bytes);
    std::vector<size_t> sizes(communicator->size, bytes);
    return exchange(communicator, own.data(), bytes, places, sizes, "HcclAllGather",
                    tag(HCCL_CMD_ALLGATHER, type, 0, count));
  });
}

HCCL_API HcclResult HcclAllGatherV(void* from, uint64_t count, void* to, const void* counts, const void* offsets,
                                   HcclDataType type, HcclComm handle, aclrtStream stream) {
  if (HcclResult code = check("HcclAllGatherV", type)) return code;
  Shared communicator = find(handle);
  if (!communicator) return HCCL_E_PTR;
  size_t size = size_of(type);
  std::vector<char*> places;
  std::vector<size_t> sizes;
  for (uint32_t peer = 0; peer < communicator->size; peer++) {
    places.push_back((char*)to + ((const uint64_t*)offsets)[peer] * size);
    sizes.push_back(((const uint64_t*)counts)[peer] * size);
  }
  return launch(handle, stream, [=](Communicator* communicator) {
    std::vector<char> own((char*)from, (char*)from + count * size);
    return exchange(communicator, own.data(), count * size, places, sizes, "HcclAllGatherV",
                    tag(HCCL_CMD_ALLGATHER_V, type));
  });
}

HCCL_API HcclResult HcclReduceScatter(void* from, void* to, uint64_t count, HcclDataType type, HcclReduceOp operation,
                                      HcclComm handle, aclrtStream stream) {
  if (HcclResult code = check_reduction("HcclReduceScatter", type, operation)) return code;
  return launch(handle, stream, [=](Communicator* communicator) {
    std::vector<char*> shares;
    for (uint32_t peer = 0; peer < communicator->size; peer++) {
      shares.push_back((char*)from + peer * count * size_of(type));
    }
    std::vector<uint64_t> counts(communicator->size, count);
    return reduce_scatter(communicator, shares, counts, to, count, type, operation, "HcclReduceScatter",
                          tag(HCCL_CMD_REDUCE_SCATTER, type, operation, count));
  });
}

HCCL_API HcclResult HcclReduceScatterV(void* from, const void* counts, const void* offsets, void* to, uint64_t count,
                                       HcclDataType type, HcclReduceOp operation, HcclComm handle, aclrtStream stream) {
  if (HcclResult code = check_reduction("HcclReduceScatterV", type, operation)) return code;
  Shared communicator = find(handle);
  if (!communicator) return HCCL_E_PTR;
  std::vector<char*> shares;
  std::vector<uint64_t> sizes((const uint64_t*)counts, (const uint64_t*)counts + communicator->size);
  for (uint32_t peer = 0; peer < communicator->size; peer++) {
    shares.push_back((char*)from + ((const uint64_t*)offsets)[peer] * size_of(type));
  }
  return launch(handle, stream, [=](Communicator* communicator) {
    return reduce_scatter(communicator, shares, sizes, to, count, type, operation, "HcclReduceScatterV",
                          tag(HCCL_CMD_REDUCE_SCATTER_V, type, operation));
  });
}

HCCL_API HcclResult HcclBroadcast(void* data, uint64_t count, HcclDataType type, uint32_t root, HcclComm handle,
                                  aclrtStream stream) {
  if (HcclResult code = check("HcclBroadcast", type)) return code;
  return launch(handle, stream, [=](Communicator* communicator) {
    size_t bytes = count * size_of(type);
    Parts parts;
    if (communicator->rank != root) parts.push_back({false, root, (char*)data, bytes});
    for (uint32_t peer = 0; communicator->rank == root && peer < communicator->size; peer++) {
      if (peer != root) parts.push_back({true, peer, (char*)data, bytes});
    }
    return emu::transfer(communicator, parts, "HcclBroadcast", tag(HCCL_CMD_BROADCAST, type, (int)root, count));
  });
}

HCCL_API HcclResult HcclScatter(void* from, void* to, uint64_t count, HcclDataType type, uint32_t root, HcclComm handle,
                                aclrtStream stream) {
  if (HcclResult code = check("HcclScatter", type)) return code;
  return launch(handle, stream, [=](Communicator* communicator) {
    size_t bytes = count * size_of(type);
    Parts parts;
    for (uint32_t peer = 0; communicator->rank == root && peer < communicator->size; peer++) {
      parts.push_back({true, peer, (char*)from + peer * bytes, bytes});
    }
    parts.push_back({false, root, (char*)to, bytes});
    return emu::transfer(communicator, parts, "HcclScatter", tag(HCCL_CMD_SCATTER, type, (int)root, count));
  });
}

HCCL_API HcclResult HcclSend(void* from, uint64_t count, HcclDataType type, uint32_t peer, HcclComm handle,
                             aclrtStream stream) {
  if (HcclResult code = check("HcclSend", type)) return code;
  return launch(handle, stream, [=](Communicator* communicator) {
    Parts parts{{true, peer, (char*)from, count * size_of(type)}};
    return emu::transfer(communicator, parts, "HcclSend", tag(HCCL_CMD_SEND, type, 0, count));
  });
}

HCCL_API HcclResult HcclRecv(void* to, uint64_t count, HcclDataType type, uint32_t peer, HcclComm handle,
                             aclrtStream stream) {
  if (HcclResult code = check("HcclRecv", type)) return code;
  return launch(handle, stream, [=](Communicator* communicator) {
    Parts parts{{false, peer, (char*)to, count * size_of(type)}};
    return emu::transfer(communicator, parts, "HcclRecv", tag(HCCL_CMD_SEND, type, 0, count));
  });
}

HCCL_API HcclResult HcclBatchSendRecv(HcclSendRecvItem* items, uint32_t count, HcclComm handle, aclrtStream stream) {
  Parts parts;
  for (uint32_t i = 0; i < count; i++) {
    if (HcclResult code = check("HcclBatchSendRecv", items[i].dataType)) return code;
    size_t bytes = items[i].count * size_of(items[i].dataType);
    parts.push_back({items[i].sendRecvType == HCCL_SEND, items[i].remoteRank, (char*)items[i].buf, bytes});
  }
  return launch(handle, stream, [=](Communicator* communicator) {
    return emu::transfer(communicator, parts, "HcclBatchSendRecv", tag(HCCL_CMD_BATCH_SEND_RECV));
  });
}

HCCL_API HcclResult HcclAlltoAll(const void* from, uint64_t sent, HcclDataType sent_type, const void* to,
                                 uint64_t received, HcclDataType received_type, HcclComm handle, aclrtStream stream) {
  if (HcclResult code = check("HcclAlltoAll", sent_type)) return code;
  return launch(handle, stream, [=](Communicator* communicator) {
    size_t out = sent * size_of(sent_type), in = received * size_of(received_type);
    Parts parts;
    for (uint32_t peer = 0; peer < communicator->size; peer++) {
      parts.push_back({true, peer, (char*)from + peer * out, out});
      parts.push_back({false, peer, (char*)to + peer * in, in});
    }
    return emu::transfer(communicator, parts, "HcclAlltoAll", tag(HCCL_CMD_ALLTOALL, sent_type, 0, sent));
  });
}

HCCL_API HcclResult HcclAlltoAllV(const void* from, const void* sent, const void* sent_at, HcclDataType sent_type,
                                  const void* to, const void* received, const void* received_at,
                                  HcclDataType received_type, HcclComm handle, aclrtStream stream) {
  if (HcclResult code = check("HcclAlltoAllV", sent_type)) return code;
  Shared communicator = find(handle);
  if (!communicator) return HCCL_E_PTR;
  auto at = [](const void* values, uint32_t index) { return ((const uint64_t*)values)[index]; };
  size_t out = size_of(sent_type), in = size_of(received_type);
  Parts parts;
  for (uint32_t peer = 0; peer < communicator->size; peer++) {
    parts.push_back({true, peer, (char*)from + at(sent_at, peer) * out, at(sent, peer) * out});
    parts.push_back({false, peer, (char*)to + at(received_at, peer) * in, at(received, peer) * in});
  }
  return launch(handle, stream, [=](Communicator* communicator) {
    return emu::transfer(communicator, parts, "HcclAlltoAllV", tag(HCCL_CMD_ALLTOALLV, sent_type));
  });
}

// `counts`: how many elements each rank (row) sends to each (column), in order and without gaps.
HCCL_API HcclResult HcclAlltoAllVC(const void* from, const void* counts, HcclDataType sent_type, const void* to,
                                   HcclDataType received_type, HcclComm handle, aclrtStream stream) {
  if (HcclResult code = check("HcclAlltoAllVC", sent_type)) return code;
  Shared communicator = find(handle);
  if (!communicator) return HCCL_E_PTR;
  uint32_t size = communicator->size, rank = communicator->rank;
  auto* matrix = (const uint64_t*)counts;
  Parts parts;
  char *out = (char*)from, *in = (char*)to;
  for (uint32_t peer = 0; peer < size; peer++) {
    parts.push_back({true, peer, out, matrix[rank * size + peer] * size_of(sent_type)});
    parts.push_back({false, peer, in, matrix[peer * size + rank] * size_of(received_type)});
    out += parts[2 * peer].bytes;
    in += parts[2 * peer + 1].bytes;
  }
  return launch(handle, stream, [=](Communicator* communicator) {
    return emu::transfer(communicator, parts, "HcclAlltoAllVC", tag(HCCL_CMD_ALLTOALLVC, sent_type));
  });
}

HCCL_API HcclResult HcclBarrier(HcclComm handle, aclrtStream stream) {
  return launch(handle, stream, [](Communicator* communicator) {
    char here = 1;
    std::vector<char> others(communicator->size);
    std::vector<char*> places;
    for (char& one : others) places.push_back(&one);
    std::vector<size_t> sizes(communicator->size, 1);
    return exchange(communicator, &here, 1, places, sizes, "HcclBarrier", tag(HCCL_CMD_BARRIER));
  });
}
