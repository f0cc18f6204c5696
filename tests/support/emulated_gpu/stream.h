// What the device has been given and the host has not waited for yet, and what is recorded in place of being run.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/copy.h>
#include <c10/core/InferenceMode.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace emulated {

// What a CUDA graph holds: operations, and kernels that Python runs, by number.
struct Graph {
  struct Step {
    std::function<void()> run;
    int64_t kernel = -1;
  };
  std::vector<Step> steps;
};

// All streams are this one, which runs what it is given at once. Copies between it and pinned memory are as late as
// they may be: what leaves the device is there once the host has waited for it, and what goes there must still be what
// it was by then.
class Stream {
 public:
  int64_t moment() { std::lock_guard<std::mutex> lock(mutex_); return moment_; }

  void leaves(const at::Tensor& host, at::Tensor content) {
    std::lock_guard<std::mutex> lock(mutex_);
    copies_.push_back({++moment_, host, std::move(content), false});
  }
  void arrives(const at::Tensor& host) {
    std::lock_guard<std::mutex> lock(mutex_);
    copies_.push_back({++moment_, host, host.clone(), true});
  }

  // The host has waited until a moment; returns what it did wrong before, if anything.
  std::string past(int64_t until) {
    c10::InferenceMode infers;
    std::lock_guard<std::mutex> lock(mutex_);
    for (; !copies_.empty() && copies_.front().moment <= until; copies_.pop_front()) {
      Copy& copy = copies_.front();
      if (!copy.is_read) {
        copy.host.copy_(copy.content);
      } else if (std::memcmp(copy.host.const_data_ptr(), copy.content.const_data_ptr(), copy.host.nbytes()) != 0) {
        wrong_ = "pinned memory was written to before the device had read it";
      }
    }
    return std::exchange(wrong_, "");
  }

  // An operation for which the host has to wait, as all of what was given before must be over.
  void wait(const std::string& why) {
    TORCH_CHECK(!recording_, "CUDA error: operation not permitted when stream is capturing (", why, ")");
    TORCH_CHECK(!forbids_waits_, "the host waits for the device (", why, ")");
    const std::string wrong = past(moment());
    TORCH_CHECK(wrong.empty(), wrong);
  }
  void forbid_waits(bool whether) { forbids_waits_ = whether; }

  std::map<int64_t, std::shared_ptr<Graph>> graphs;
  static inline thread_local std::shared_ptr<Graph> recording_;

 private:
  struct Copy {
    int64_t moment;
    at::Tensor host;
    at::Tensor content;  // of the host's memory: what it was, or what it will be
    bool is_read;        // by the device
  };
  std::mutex mutex_;
  int64_t moment_ = 0;
  std::deque<Copy> copies_;
  std::string wrong_;
  bool forbids_waits_ = false;
};

inline Stream& stream() {
  static auto* only = new Stream;
  return *only;
}

}  // namespace emulated
