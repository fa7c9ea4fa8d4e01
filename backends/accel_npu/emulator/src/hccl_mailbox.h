// The fabric below every emulated collective: for each ordered pair of ranks, a ring of slots in shared memory.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "acl/acl_base.h"
#include "hccl/hccl_types.h"

namespace emu {

constexpr size_t SLOT_BYTES = 256 << 10;
constexpr uint32_t SLOTS = 4;

struct Mailbox {
  std::atomic<uint64_t> sent, taken;  // slots since the start
  uint32_t bytes[SLOTS];              // in each slot
  uint64_t tag[SLOTS];                // of the operation that filled it
  alignas(4096) char data[SLOTS][SLOT_BYTES];
};

struct Member {
  std::atomic<int32_t> pid;         // 0 until the rank has joined
  std::atomic<uint64_t> born;       // start time of that process: pids are used again
  std::atomic<int32_t> left;        // it has destroyed its communicator
};
constexpr uint32_t MAX_RANKS = 1024;
struct Header { Member members[MAX_RANKS]; };

struct Communicator {
  std::string id;
  uint32_t size, rank;
  Header* header = nullptr;
  Mailbox* boxes;
  size_t bytes;
  double timeout;                 // seconds without progress that end an operation; 0: for ever
  std::string name;               // that HcclGetCommName gives
  ~Communicator();
  std::atomic<bool> closing{false};
  std::atomic<int> running{0};    // operations that use the shared memory at this moment
  std::atomic<int> error{0};      // HcclResult of the first operation that failed
  Mailbox* box(uint32_t from, uint32_t to) { return &boxes[from * size + to]; }
};

// One part of an operation: bytes to or from one rank. Parts with the same peer and direction keep their order.
struct Part {
  bool send;
  uint32_t peer;
  char* data;
  size_t bytes;
  size_t done = 0;
  bool started = false;
};

// Move all parts. `what` names the operation in messages; `tag` must be the same on both sides of a transfer.
HcclResult transfer(Communicator* communicator, std::vector<Part> parts, const std::string& what, uint64_t tag);

// Join communicator `id`; waits for all ranks (`wait`) until HCCL_CONNECT_TIMEOUT.
HcclResult join(const std::string& id, uint32_t size, uint32_t rank, double timeout, bool wait,
                std::shared_ptr<Communicator>* joined);
// End what is in flight, and tell the other ranks. Queued operations keep the memory until they have failed.
void leave(Communicator* communicator);

// A timeout that the user sets through the vendor's own variable, in seconds. 0 means "for ever" for HCCL_EXEC_TIMEOUT.
double vendor_seconds(const char* variable, double fallback);

}  // namespace emu
