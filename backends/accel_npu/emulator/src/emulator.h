// What the emulated CANN libraries share: settings, tracing, error messages, and how work reaches a stream.
//
// Device memory is host memory. A stream runs its tasks in order: at once on the calling thread (immediate mode), or on
// a thread of its own (threaded mode, where a missing synchronization gives a wrong answer as it does on hardware).
#pragma once
#include <cstdint>
#include <functional>
#include <string>

namespace emu {

// The value of ACCEL_EMULATE_NPU_<name>; `fallback` when unset or empty.
std::string setting(const char* name, const char* fallback);
int64_t number(const char* name, int64_t fallback);
// Whether ACCEL_EMULATE_NPU_TRACE, a comma-separated list, names `subject`: runtime, ops, hccl, fallback or applog.
bool traced(const char* subject);
void trace(const char* subject, const char* format, ...) __attribute__((format(printf, 2, 3)));

// What aclGetRecentErrMsg returns to this thread. `fail` records the message and returns the code.
int fail(int code, const std::string& message);
// An entry point that exists so that libraries link, and that nothing emulates: the message names it.
int unsupported(const char* name);

double seconds();  // monotonic

using Task = std::function<int()>;  // returns 0 or the ACL error code that the stream reports when it is synchronized

enum class Blocking { no, yes };
// Append a task to a stream (null: the current device's default stream). In immediate mode it runs before `post`
// returns, and its code is returned, unless it may block (a collective, a wait) or tasks before it are pending.
int post(void* stream, Task task, Blocking blocking = Blocking::no);

int current_device();  // -1: none set on this thread
void use_device(int device);
int device_count();
int stream_device(void* stream);

}  // namespace emu
