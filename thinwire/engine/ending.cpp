// A thread of Python that wakes up after the interpreter has ended must not take the process with it.
//
// CPython before 3.14 ends such a thread by unwinding its stack (pthread_exit). torch waits for the network in C++
// frames that may not throw, and there unwinding calls std::terminate: the process aborts after its script is done.
// From 3.14 on CPython lets the thread sleep for ever instead. This does the same for every version.

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <exception>
#include <thread>

namespace {

std::terminate_handler before = nullptr;
std::thread::id ending;  // the thread that ends the interpreter

[[noreturn]] void sleep_for_ever() {
  if (std::this_thread::get_id() == ending || std::current_exception()) {
    if (before) before();  // a real error stays one
    std::abort();
  }
  for (;;) pause();
}

void let_late_threads_sleep() {
  ending = std::this_thread::get_id();
  std::terminate_handler now = std::set_terminate(sleep_for_ever);
  if (now != sleep_for_ever) before = now;
}

}  // namespace

NB_MODULE(_ending, m) {
  m.def("let_late_threads_sleep", &let_late_threads_sleep,
        "From here on a thread that is unwound after the interpreter's end sleeps instead of aborting the process.");
}
