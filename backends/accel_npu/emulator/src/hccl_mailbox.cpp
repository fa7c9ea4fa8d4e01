// Shared-memory mailboxes: how bytes move between the processes of a job, and how silence and death are noticed.
#include "hccl_mailbox.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>

#include "emulator.h"

namespace {

// Field 22 of /proc/PID/stat: when the process started, in clock ticks since the machine did.
uint64_t start_of(int pid) {
  char path[64], text[1024] = {};
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE* file = fopen(path, "r");
  if (!file) return 0;
  size_t size = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  char* field = size ? strrchr(text, ')') : nullptr;  // the name before it may hold anything
  if (!field || field[2] == 'Z' || field[2] == 'X') return 0;  // a zombie sends nothing any more
  for (int skip = 0; skip < 20 && field; skip++) field = strchr(field + 1, ' ');
  return field ? strtoull(field + 1, nullptr, 10) : 0;
}

bool alive(const emu::Member& member) {
  int pid = member.pid;
  return pid == getpid() || (pid && start_of(pid) == member.born);
}

std::string ranks_that_owe(const std::vector<emu::Part>& parts) {
  std::string text;
  std::vector<uint32_t> named;
  for (auto& part : parts) {
    if (part.started && part.done == part.bytes) continue;
    bool known = false;
    for (uint32_t one : named) known = known || one == part.peer;
    if (known) continue;
    named.push_back(part.peer);
    text += (text.empty() ? "" : ", ") + std::to_string(part.peer);
  }
  return text;
}

HcclResult failed(emu::Communicator* communicator, HcclResult code, const std::string& message) {
  int none = 0;
  communicator->error.compare_exchange_strong(none, code);
  emu::trace("hccl", "%s", message.c_str());
  emu::fail(code, message);
  return code;
}

std::string where(emu::Communicator* communicator, const std::string& what) {
  return what + " in group " + communicator->id + ", rank " + std::to_string(communicator->rank) + " of " +
         std::to_string(communicator->size);
}

// Move what can be moved now for one part; `*moved` says whether anything was.
HcclResult step(emu::Communicator* communicator, emu::Part& part, uint64_t tag, const std::string& what, bool* moved) {
  uint32_t rank = communicator->rank;
  emu::Mailbox* box = part.send ? communicator->box(rank, part.peer) : communicator->box(part.peer, rank);
  uint64_t sent = box->sent.load(std::memory_order_acquire), taken = box->taken.load(std::memory_order_acquire);
  if (part.send ? sent - taken == emu::SLOTS : sent == taken) return HCCL_SUCCESS;
  uint32_t slot = (part.send ? sent : taken) % emu::SLOTS;
  size_t left = part.bytes - part.done;
  size_t size = part.send ? std::min(emu::SLOT_BYTES, left) : box->bytes[slot];
  if (part.send) {
    if (size) memcpy(box->data[slot], part.data + part.done, size);
    box->bytes[slot] = (uint32_t)size;
    box->tag[slot] = tag;
    box->sent.store(sent + 1, std::memory_order_release);
  } else {
    if (size > left || box->tag[slot] != tag) {  // real HCCL compares the arguments when it builds the links
      return failed(communicator, HCCL_E_PARA,
                    "EI0005: the arguments of " + where(communicator, what) + " differ from those of rank " +
                        std::to_string(part.peer) + " (operation, data type, reduction or count)");
    }
    if (size) memcpy(part.data + part.done, box->data[slot], size);
    box->taken.store(taken + 1, std::memory_order_release);
  }
  part.done += size;
  part.started = true;
  *moved = true;
  return HCCL_SUCCESS;
}

// Transfers to oneself: the k-th send pairs with the k-th receive.
HcclResult move_own(emu::Communicator* communicator, std::vector<emu::Part>& parts, const std::string& what) {
  std::deque<emu::Part*> sends;
  for (auto& part : parts) {
    if (part.peer == communicator->rank && part.send) sends.push_back(&part);
  }
  for (auto& part : parts) {
    if (part.peer != communicator->rank || part.send) continue;
    if (sends.empty() || sends.front()->bytes != part.bytes) {
      return failed(communicator, HCCL_E_PARA,
                    "EI0003: " + where(communicator, what) + " receives from itself what it does not send");
    }
    if (part.bytes) memmove(part.data, sends.front()->data, part.bytes);
    sends.front()->done = part.done = part.bytes;
    sends.front()->started = part.started = true;
    sends.pop_front();
  }
  return HCCL_SUCCESS;
}

}  // namespace

namespace emu {

double vendor_seconds(const char* variable, double fallback) {
  const char* text = getenv(variable);
  return text && *text ? atof(text) : fallback;
}

HcclResult transfer(Communicator* communicator, std::vector<Part> parts, const std::string& what, uint64_t tag) {
  if (HcclResult code = move_own(communicator, parts, what)) return code;
  double since = seconds(), checked = since;
  int idle = 0;
  for (;;) {
    bool complete = true, moved = false;
    std::vector<bool> sending(communicator->size), receiving(communicator->size);
    for (auto& part : parts) {
      if (part.started && part.done == part.bytes) continue;
      complete = false;
      std::vector<bool>& busy = part.send ? sending : receiving;
      if (busy[part.peer]) continue;
      busy[part.peer] = true;
      if (HcclResult code = step(communicator, part, tag, what, &moved)) return code;
    }
    if (complete) return HCCL_SUCCESS;
    if (communicator->closing) {
      return failed(communicator, HCCL_E_UNAVAIL,
                    where(communicator, what) + " was ended: its communicator is destroyed");
    }
    if (moved) {
      idle = 0;
      since = seconds();
      continue;
    }
    if (++idle < 50) {
      sched_yield();
      continue;
    }
    usleep(idle < 2000 ? 50 : 500);
    double now = seconds();
    if (now - checked > 0.1) {  // the heartbeat of real HCCL is slower; a test should not wait for it
      checked = now;
      for (auto& part : parts) {
        if (part.started && part.done == part.bytes) continue;
        const Member& member = communicator->header->members[part.peer];
        Mailbox* inbox = communicator->box(part.peer, communicator->rank);
        bool waits = part.send || inbox->sent == inbox->taken;  // else what the peer sent before it went is still there
        if (waits && (member.left || !alive(member))) {
          return failed(communicator, HCCL_E_REMOTE,
                        "EI0013: " + where(communicator, what) + ": lost rank " + std::to_string(part.peer) +
                            (member.left ? ", which has destroyed its communicator" : ", whose process has ended"));
        }
      }
    }
    if (communicator->timeout > 0 && now - since > communicator->timeout) {
      return failed(communicator, HCCL_E_TIMEOUT,
                    "EI0002: " + where(communicator, what) + " waited " + std::to_string((int)communicator->timeout) +
                        " s (HCCL_EXEC_TIMEOUT) for rank " + ranks_that_owe(parts));
    }
  }
}

HcclResult join(const std::string& id, uint32_t size, uint32_t rank, double timeout, bool wait,
                std::shared_ptr<Communicator>* joined) {
  if (!size || size > MAX_RANKS || rank >= size) {
    emu::fail(HCCL_E_PARA, "EI0003: rank " + std::to_string(rank) + " of " + std::to_string(size));
    return HCCL_E_PARA;
  }
  size_t bytes = sizeof(Header) + sizeof(Mailbox) * size * size;
  std::string path = "/dev/shm/" + id;
  int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return (HcclResult)fail(HCCL_E_OPEN_FILE_FAILURE, "cannot open " + path + ": " + strerror(errno));
  void* memory = MAP_FAILED;
  if (!ftruncate(file, (off_t)bytes)) memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return (HcclResult)fail(HCCL_E_MEMORY, "cannot map " + path + ": " + strerror(errno));
  auto communicator = std::make_shared<Communicator>();
  communicator->id = id;
  communicator->size = size;
  communicator->rank = rank;
  communicator->header = (Header*)memory;
  communicator->boxes = (Mailbox*)((char*)memory + sizeof(Header));
  communicator->bytes = bytes;
  communicator->timeout = timeout;
  Member* members = communicator->header->members;
  members[rank].born = start_of(getpid());
  members[rank].pid = getpid();
  double limit = vendor_seconds("HCCL_CONNECT_TIMEOUT", 120), begun = seconds();
  auto absent = [&] {
    std::string text;
    for (uint32_t one = 0; one < size; one++) {
      if (!members[one].pid) text += (text.empty() ? "" : ", ") + std::to_string(one);
    }
    return text;
  };
  while (wait && !absent().empty()) {
    usleep(500);
    if (seconds() - begun <= limit) continue;
    std::string missing = absent();
    unlink(path.c_str());
    return (HcclResult)fail(HCCL_E_TIMEOUT, "EI0006: no connection within " + std::to_string((int)limit) +
                                                " s (HCCL_CONNECT_TIMEOUT): group " + id + ", rank " +
                                                std::to_string(rank) + " waits for rank " + missing);
  }
  if (absent().empty()) unlink(path.c_str());  // all are inside: the name has served; the second to unlink finds none
  trace("hccl", "group %s: rank %u of %u", id.c_str(), rank, size);
  *joined = communicator;
  return HCCL_SUCCESS;
}

void leave(Communicator* communicator) {
  communicator->closing = true;
  while (communicator->running) usleep(200);
  communicator->header->members[communicator->rank].left = 1;
}

Communicator::~Communicator() {
  if (header) munmap(header, bytes);
}

}  // namespace emu
