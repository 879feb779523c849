#include "runner/torch/counting_allocator.hpp"

#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <numeric>

namespace stepcast {
namespace {

constexpr int kUncounted = 5;

/// What all threads of this process hold, under one lock: an allocation costs far more than taking it.
struct Books {
  std::mutex mutex;
  MemoryBytes live{};
  MemoryBytes at_peak{};
  double peak = 0.0;

  void add(int category, double bytes) {
    if (category == kUncounted) return;
    const std::lock_guard lock(mutex);
    live[static_cast<std::size_t>(category)] += bytes;
    if (const double now = total(live); now > peak) {
      peak = now;
      at_peak = live;
    }
  }
};

Books& books() {
  static Books one;
  return one;
}

int& category_of_thread() {
  thread_local int category = kUncounted;
  return category;
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size) const override {
    if (size == 0) return {nullptr, nullptr, &release, c10::Device(c10::DeviceType::CPU)};
    // One header keeps the 64-byte alignment that LibTorch's kernels expect.
    const std::size_t whole = (size + kAlignment + kAlignment - 1) / kAlignment * kAlignment;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, whole));
    TORCH_CHECK(memory != nullptr, "out of memory: ", size, " bytes");
    *reinterpret_cast<Header*>(memory) = {size, category_of_thread()};
    books().add(category_of_thread(), static_cast<double>(size));
    std::byte* data = memory + kAlignment;
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &release; }

 private:
  struct Header {
    std::size_t size;
    int category;
  };
  static constexpr std::size_t kAlignment = 64;

  static void release(void* data) {
    if (data == nullptr) return;
    std::byte* memory = static_cast<std::byte*>(data) - kAlignment;
    const Header header = *reinterpret_cast<Header*>(memory);
    books().add(header.category, -static_cast<double>(header.size));
    std::free(memory);
  }
};

/// glibc gives large arrays back to the system when they are freed, or when enough of them are, and the next
/// one pays a page fault per 4 KiB: steps of the same work then take 10 % more or less, depending on what ran
/// before. Here freed memory stays with the process, as under PyTorch's allocator for GPUs.
void keep_freed_memory() {
  constexpr int kNever = std::numeric_limits<int>::max();
  constexpr int kTopPad = 64 << 20;
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, kNever);
  mallopt(M_TOP_PAD, kTopPad);
}

}  // namespace

void install_counting_allocator() {
  keep_freed_memory();
  static CountingAllocator allocator;
  constexpr int kOverOthers = 1;  // LibTorch's own has priority 0
  c10::SetAllocator(c10::DeviceType::CPU, &allocator, kOverOthers);
}

MemoryScope::MemoryScope(MemoryCategory category) : before_(category_of_thread()) {
  category_of_thread() = static_cast<int>(category);
}
MemoryScope::~MemoryScope() { category_of_thread() = before_; }

double total(const MemoryBytes& bytes) { return std::accumulate(bytes.begin(), bytes.end(), 0.0); }

MemoryBytes live_memory() {
  const std::lock_guard lock(books().mutex);
  return books().live;
}

MemoryBytes peak_memory() {
  const std::lock_guard lock(books().mutex);
  return books().at_peak;
}

void forget_memory_peak() {
  const std::lock_guard lock(books().mutex);
  books().at_peak = books().live;
  books().peak = total(books().live);
}

}  // namespace stepcast
