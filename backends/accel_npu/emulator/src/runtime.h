// What the files of the emulated runtime (libascendcl.so) share among themselves.
#pragma once
#include <cstddef>

namespace emu {
constexpr int MAX_DEVICES = 64;
size_t hbm_bytes();  // of each device, for each process
}
