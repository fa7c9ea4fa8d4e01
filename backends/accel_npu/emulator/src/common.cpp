// Settings, tracing and error messages of the emulated runtime (declared in emulator.h).
#include "emulator.h"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "acl/acl.h"

namespace emu {

std::string setting(const char* name, const char* fallback) {
  const char* value = getenv((std::string("ACCEL_EMULATE_NPU_") + name).c_str());
  return value && *value ? value : fallback;
}

int64_t number(const char* name, int64_t fallback) {
  std::string text = setting(name, "");
  return text.empty() ? fallback : strtoll(text.c_str(), nullptr, 0);
}

bool traced(const char* subject) {
  static const std::string wanted = "," + setting("TRACE", "") + ",";
  return wanted.find(std::string(",") + subject + ",") != std::string::npos;
}

void trace(const char* subject, const char* format, ...) {
  if (!traced(subject)) return;
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  fprintf(stderr, "[npu emulator %d %s] %s\n", getpid(), subject, line);
}

static thread_local std::string message;

int fail(int code, const std::string& text) {
  message = text;
  trace("runtime", "error %d: %s", code, text.c_str());
  return code;
}

int unsupported(const char* name) {
  return fail(ACL_ERROR_FEATURE_UNSUPPORTED, std::string("the NPU emulator does not implement ") + name);
}

double seconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + now.tv_nsec * 1e-9;
}

}  // namespace emu

extern "C" {

const char* aclGetRecentErrMsg() { return emu::message.empty() ? nullptr : emu::message.c_str(); }

void aclAppLog(aclLogLevel level, const char* function, const char* file, uint32_t line, const char* format, ...) {
  if (!emu::traced("applog")) return;
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  emu::trace("applog", "%d %s:%u %s: %s", (int)level, file, line, function, text);
}
}
