#include "force.h"

#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

#include "c_api.h"

namespace mxfp4 {
namespace {

struct Choice {
  Force force = Force::run;
  std::string reason;
};

std::mutex default_mutex;
Choice default_choice;
thread_local std::optional<Choice> thread_choice;
thread_local std::string failure;

Choice& of_this_thread() {
  if (!thread_choice) {
    const std::lock_guard<std::mutex> lock(default_mutex);
    thread_choice = default_choice;
  }
  return *thread_choice;
}

}  // namespace

bool forced_to_reference() {
  const Choice& choice = of_this_thread();
  if (choice.force == Force::refuse) throw std::runtime_error(choice.reason);
  return choice.force == Force::to_reference;
}

const char* python_failure() { return failure.c_str(); }

}  // namespace mxfp4

void mxfp4_cpu_failed(const char* reason) { mxfp4::failure = reason; }

void mxfp4_cpu_force(int force, const char* reason) {
  mxfp4::of_this_thread() = {static_cast<mxfp4::Force>(force), reason};
}

void mxfp4_cpu_default_force(int force, const char* reason) {
  {
    const std::lock_guard<std::mutex> lock(mxfp4::default_mutex);
    mxfp4::default_choice = {static_cast<mxfp4::Force>(force), reason};
  }
  mxfp4_cpu_force(force, reason);
}
