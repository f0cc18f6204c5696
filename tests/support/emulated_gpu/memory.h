// Memory of a GPU that is the host's, and memory of the host that is called pinned. New memory holds bytes of 0xFF,
// which are no number in any floating-point type: whoever reads what nobody has written is found out.
#pragma once

#include <c10/core/Allocator.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace emulated {

constexpr int UNWRITTEN = 0xFF;
constexpr size_t ALIGNMENT = 512;  // bytes, as CUDA's allocator has it

inline const c10::Device DEVICE(c10::kCUDA, 0);

class Ledger {
 public:
  void add(int64_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    held_ += bytes;
    peak_ = std::max(peak_, held_);
  }
  void pin(const void* data, size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    pinned_[reinterpret_cast<uintptr_t>(data)] = bytes;
  }
  void unpin(const void* data) {
    std::lock_guard<std::mutex> lock(mutex_);
    pinned_.erase(reinterpret_cast<uintptr_t>(data));
  }
  bool is_pinned(const void* data) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto address = reinterpret_cast<uintptr_t>(data);
    auto after = pinned_.upper_bound(address);
    return after != pinned_.begin() && address < std::prev(after)->first + std::prev(after)->second;
  }
  int64_t held() { std::lock_guard<std::mutex> lock(mutex_); return held_; }
  int64_t peak() { std::lock_guard<std::mutex> lock(mutex_); return peak_; }
  void reset_peak() { std::lock_guard<std::mutex> lock(mutex_); peak_ = held_; }

 private:
  std::mutex mutex_;
  int64_t held_ = 0, peak_ = 0;  // bytes of the device
  std::map<uintptr_t, size_t> pinned_;
};

inline Ledger& ledger() {
  static auto* only = new Ledger;  // tensors that die with the process still tell it
  return *only;
}

struct Block {
  void* data;
  size_t bytes;
};

inline Block take(size_t bytes) {
  const size_t rounded = std::max((bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, ALIGNMENT);
  void* data = std::aligned_alloc(ALIGNMENT, rounded);
  if (data == nullptr) throw std::bad_alloc();
  std::memset(data, UNWRITTEN, rounded);
  return {data, rounded};
}

struct DeviceMemory final : c10::Allocator {
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    ledger().add(-static_cast<int64_t>(block->bytes));
    std::free(block->data);
    delete block;
  }
  c10::DataPtr allocate(size_t bytes) override {
    auto* block = new Block(take(bytes));
    ledger().add(static_cast<int64_t>(block->bytes));
    return {block->data, block, &release, DEVICE};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};

struct PinnedMemory final : c10::Allocator {
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    ledger().unpin(block->data);
    std::free(block->data);
    delete block;
  }
  c10::DataPtr allocate(size_t bytes) override {
    auto* block = new Block(take(bytes));
    ledger().pin(block->data, block->bytes);
    return {block->data, block, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};

inline DeviceMemory device_memory;
inline PinnedMemory pinned_memory;

}  // namespace emulated
