// Streams, events and callbacks.
//
// Immediate mode: a task runs on the calling thread when nothing before it in the stream is pending. A task that may
// block - a collective, or a wait for an event that has not happened - goes to the stream's thread, as it would be
// asynchronous on hardware, and so does what follows it. Threaded mode: every task goes to the thread, after a random
// pause of up to ACCEL_EMULATE_NPU_JITTER microseconds.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "acl/acl.h"
#include "acl/acl_rt.h"
#include "emulator.h"
#include "runtime.h"

namespace {

constexpr int SYNC_TIMEOUT = 507046;  // ACL_ERROR_RT_STREAM_SYNC_TIMEOUT
constexpr int EVENT_TIMEOUT = 507047;  // ACL_ERROR_RT_EVENT_SYNC_TIMEOUT

bool threaded() {
  static const bool value = emu::setting("MODE", "immediate") == "threaded";
  return value;
}
int64_t jitter() {
  static const int64_t value = emu::number("JITTER", 0);
  return value;
}

struct Failure {
  int code = 0;
  std::string message;
};

// Its thread holds a share of it, so that a forced destruction never waits for a task that is stuck.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(int id, int device) : id(id), device(device), pause_(id) {}

  int post(emu::Task task, emu::Blocking blocking) {
    std::unique_lock<std::mutex> lock(mutex_);
    bool here = !threaded() && blocking == emu::Blocking::no && queue_.empty() && !busy_;
    if (!here) {
      queue_.push_back(std::move(task));
      if (!started_) {
        started_ = true;
        std::thread([self = shared_from_this()] { self->work(); }).detach();
      }
      lock.unlock();
      changed_.notify_all();
      return 0;
    }
    busy_ = true;
    lock.unlock();
    int code = task();  // its caller learns of a failure at once, so that the stream stays usable
    lock.lock();
    busy_ = false;
    lock.unlock();
    changed_.notify_all();
    return code;
  }

  int wait(int milliseconds) {
    std::unique_lock<std::mutex> lock(mutex_);
    auto quiet = [&] { return queue_.empty() && !busy_; };
    if (milliseconds < 0) {
      changed_.wait(lock, quiet);
    } else if (!changed_.wait_for(lock, std::chrono::milliseconds(milliseconds), quiet)) {
      return emu::fail(SYNC_TIMEOUT, "the stream was not idle within " + std::to_string(milliseconds) + " ms");
    }
    if (!error_) return 0;
    int code = emu::fail(error_, message_);  // told once: a stream goes on after a task that failed
    error_ = 0;
    return code;
  }

  bool idle() {
    std::lock_guard<std::mutex> lock(mutex_);
    return queue_.empty() && !busy_;
  }

  int error() {
    std::lock_guard<std::mutex> lock(mutex_);
    return error_;
  }

  Failure failure() {
    std::lock_guard<std::mutex> lock(mutex_);
    return {error_, message_};
  }

  void stop(bool drop) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
      if (drop) queue_.clear();
    }
    changed_.notify_all();
  }

  const int id, device;
  std::atomic<uint32_t> overflow{0};

 private:
  void work() {
    emu::use_device(device);
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !busy_ && (stop_ || !queue_.empty()); });
      if (queue_.empty()) return;
      emu::Task task = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
      lock.unlock();
      if (threaded() && jitter()) usleep((useconds_t)(pause_() % (uint64_t)(jitter() + 1)));
      int code = task();
      task = nullptr;
      const char* text = code ? aclGetRecentErrMsg() : nullptr;
      lock.lock();
      if (code && !error_) {  // the first failure is the one that is reported
        error_ = code;
        message_ = text ? text : "";
      }
      busy_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<emu::Task> queue_;
  bool busy_ = false, started_ = false, stop_ = false;
  int error_ = 0;
  std::string message_;
  std::minstd_rand pause_;
};

std::mutex& registry = *new std::mutex;
auto& streams = *new std::vector<std::shared_ptr<Stream>>;
std::shared_ptr<Stream>* const defaults = new std::shared_ptr<Stream>[emu::MAX_DEVICES];
int next_id = 1;

std::shared_ptr<Stream> resolve(aclrtStream handle) {
  if (handle) return ((Stream*)handle)->shared_from_this();
  int device = std::max(emu::current_device(), 0);
  std::lock_guard<std::mutex> lock(registry);
  if (!defaults[device]) streams.push_back(defaults[device] = std::make_shared<Stream>(0, device));
  return defaults[device];
}

int create(aclrtStream* handle) {
  std::lock_guard<std::mutex> lock(registry);
  streams.push_back(std::make_shared<Stream>(next_id++, std::max(emu::current_device(), 0)));
  *handle = streams.back().get();
  return ACL_SUCCESS;
}

int destroy(aclrtStream handle, bool force) {
  auto stream = resolve(handle);
  int code = force ? 0 : stream->wait(-1);
  stream->stop(force);
  std::lock_guard<std::mutex> lock(registry);
  for (auto& one : streams) {
    if (one == stream) {
      one = streams.back();
      streams.pop_back();
      break;
    }
  }
  return code;
}

int wait_for_device(int milliseconds) {
  std::vector<std::shared_ptr<Stream>> all;
  {
    std::lock_guard<std::mutex> lock(registry);
    all = streams;
  }
  int code = 0;
  double end = emu::seconds() + milliseconds * 1e-3;
  for (auto& stream : all) {
    if (stream->device != emu::current_device()) continue;
    int left = milliseconds < 0 ? -1 : std::max(0, (int)((end - emu::seconds()) * 1e3));
    if (int failed = stream->wait(left)) code = failed;
  }
  return code;
}

// Recording counts up; a wait takes the count of its moment and passes when that many recordings have happened. What
// waits for a stream that has failed fails as well: on a device it would never be reached.
struct Moment {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, happened = 0;
  double time = 0;
  Failure failure;
  bool reached(uint64_t count) {
    std::lock_guard<std::mutex> lock(mutex);
    return happened >= count;
  }
  bool failed() {
    std::lock_guard<std::mutex> lock(mutex);
    return failure.code != 0;
  }
  uint64_t latest() {
    std::lock_guard<std::mutex> lock(mutex);
    return recorded;
  }
};
struct Event { std::shared_ptr<Moment> moment = std::make_shared<Moment>(); };

int told(const Failure& failure) { return failure.code ? emu::fail(failure.code, failure.message) : 0; }

std::shared_ptr<Moment> moment_of(aclrtEvent event) { return ((Event*)event)->moment; }

bool happened(aclrtEvent event) {
  auto moment = moment_of(event);
  return moment->reached(moment->latest());
}

int wait_for_event(aclrtEvent event, int milliseconds) {
  auto moment = moment_of(event);
  std::unique_lock<std::mutex> lock(moment->mutex);
  uint64_t count = moment->recorded;
  auto reached = [&] { return moment->happened >= count; };
  if (milliseconds < 0) {
    moment->changed.wait(lock, reached);
  } else if (!moment->changed.wait_for(lock, std::chrono::milliseconds(milliseconds), reached)) {
    return emu::fail(EVENT_TIMEOUT, "the event did not happen within " + std::to_string(milliseconds) + " ms");
  }
  return told(moment->failure);
}

}  // namespace

int emu::post(void* stream, Task task, Blocking blocking) { return resolve(stream)->post(std::move(task), blocking); }
int emu::stream_device(void* stream) { return resolve(stream)->device; }

extern "C" {

aclError aclrtCreateStream(aclrtStream* stream) { return create(stream); }
aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t, uint32_t) { return create(stream); }
aclError aclrtDestroyStream(aclrtStream stream) { return destroy(stream, false); }
aclError aclrtDestroyStreamForce(aclrtStream stream) { return destroy(stream, true); }
aclError aclrtSynchronizeStream(aclrtStream stream) { return resolve(stream)->wait(-1); }
aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t milliseconds) {
  return resolve(stream)->wait(milliseconds);
}
aclError aclrtSynchronizeDevice() { return wait_for_device(-1); }
aclError aclrtSynchronizeDeviceWithTimeout(int32_t milliseconds) { return wait_for_device(milliseconds); }
aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status) {
  auto found = resolve(stream);
  *status = found->idle() ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
  return found->idle() ? found->error() : 0;
}
aclError aclrtStreamGetId(aclrtStream stream, int32_t* id) {
  *id = resolve(stream)->id;
  return ACL_SUCCESS;
}
aclError aclrtSetStreamOverflowSwitch(aclrtStream stream, uint32_t flag) {
  resolve(stream)->overflow = flag;
  return ACL_SUCCESS;
}
aclError aclrtGetStreamOverflowSwitch(aclrtStream stream, uint32_t* flag) {
  *flag = resolve(stream)->overflow;
  return ACL_SUCCESS;
}
aclError aclrtSetStreamFailureMode(aclrtStream, uint64_t) { return ACL_SUCCESS; }
aclError aclrtSetStreamAttribute(aclrtStream, aclrtStreamAttr, aclrtStreamAttrValue*) { return ACL_SUCCESS; }

aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t) {
  *event = new Event;
  return ACL_SUCCESS;
}
aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t flag) { return aclrtCreateEventExWithFlag(event, flag); }
aclError aclrtDestroyEvent(aclrtEvent event) {
  delete (Event*)event;
  return ACL_SUCCESS;
}

aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
  auto moment = moment_of(event);
  uint64_t count;
  {
    std::lock_guard<std::mutex> lock(moment->mutex);
    count = ++moment->recorded;
  }
  return emu::post(stream, [moment, count, recorder = resolve(stream)] {
    Failure failure = recorder->failure();
    {
      std::lock_guard<std::mutex> lock(moment->mutex);
      moment->failure = failure;
      moment->happened = std::max(moment->happened, count);
      moment->time = emu::seconds();
    }
    moment->changed.notify_all();
    return 0;
  });
}

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  auto moment = moment_of(event);
  uint64_t count = moment->latest();
  // A failure that is handed on must stay with the stream, so it comes from the stream's thread.
  auto blocking = moment->reached(count) && !moment->failed() ? emu::Blocking::no : emu::Blocking::yes;
  return emu::post(stream, [moment, count] {
    std::unique_lock<std::mutex> lock(moment->mutex);
    moment->changed.wait(lock, [&] { return moment->happened >= count; });
    return told(moment->failure);
  }, blocking);
}

aclError aclrtResetEvent(aclrtEvent, aclrtStream) { return ACL_SUCCESS; }
aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status) {
  *status = happened(event) ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
  return ACL_SUCCESS;
}
aclError aclrtQueryEventWaitStatus(aclrtEvent event, aclrtEventWaitStatus* status) {
  *status = happened(event) ? ACL_EVENT_WAIT_STATUS_COMPLETE : ACL_EVENT_WAIT_STATUS_NOT_READY;
  return ACL_SUCCESS;
}
aclError aclrtSynchronizeEvent(aclrtEvent event) { return wait_for_event(event, -1); }
aclError aclrtSynchronizeEventWithTimeout(aclrtEvent event, int32_t milliseconds) {
  return wait_for_event(event, milliseconds);
}
aclError aclrtEventElapsedTime(float* milliseconds, aclrtEvent start, aclrtEvent end) {
  *milliseconds = (float)((moment_of(end)->time - moment_of(start)->time) * 1e3);
  return ACL_SUCCESS;
}
aclError aclrtEventGetTimestamp(aclrtEvent event, uint64_t* microseconds) {
  *microseconds = (uint64_t)(moment_of(event)->time * 1e6);
  return ACL_SUCCESS;
}

aclError aclrtLaunchCallback(aclrtCallback function, void* data, aclrtCallbackBlockType, aclrtStream stream) {
  return emu::post(stream, [=] {
    function(data);
    return 0;
  });
}
aclError aclrtLaunchHostFunc(aclrtStream stream, aclrtHostFunc function, void* data) {
  return emu::post(stream, [=] {
    function(data);
    return 0;
  });
}
// Callbacks run on the stream itself, so there is nothing for a report thread to do.
aclError aclrtSubscribeReport(uint64_t, aclrtStream) { return ACL_SUCCESS; }
aclError aclrtUnSubscribeReport(uint64_t, aclrtStream) { return ACL_SUCCESS; }
aclError aclrtProcessReport(int32_t) {
  usleep(1000);
  return ACL_SUCCESS;
}
}
