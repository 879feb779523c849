#include <c10/core/CPUAllocator.h>
#include <malloc.h>
#include <torch/version.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <new>
#include <optional>

#include "runner/engine/torch_engine.hpp"
#include "runner/execute/memory_account.hpp"

namespace stepcast {
namespace {

class CountingAllocator final : public c10::Allocator {
 public:
#if TORCH_VERSION_MAJOR >= 2
  c10::DataPtr allocate(std::size_t size) override { return counted(size); }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }
#else
  c10::DataPtr allocate(std::size_t size) const override { return counted(size); }
#endif
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &release; }

 private:
  struct Header {
    std::size_t size;
    MemoryAccount* account;
    std::optional<MemoryCategory> category;
  };
  static constexpr std::size_t kAlignment = 64;
  static_assert(sizeof(Header) <= kAlignment);

  static c10::DataPtr counted(std::size_t size) {
    if (size == 0) return {nullptr, nullptr, &release, c10::Device(c10::DeviceType::CPU)};
    // One header keeps the 64-byte alignment that LibTorch's kernels expect.
    const std::size_t whole = (size + kAlignment + kAlignment - 1) / kAlignment * kAlignment;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, whole));
    TORCH_CHECK(memory != nullptr, "out of memory: ", size, " bytes");
    const Header header{size, &memory_account(), memory_category()};
    new (memory) Header(header);
    if (header.category) header.account->add(*header.category, static_cast<double>(size));
    std::byte* data = memory + kAlignment;
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }

  static void release(void* data) {
    if (data == nullptr) return;
    std::byte* memory = static_cast<std::byte*>(data) - kAlignment;
    const Header header = *reinterpret_cast<Header*>(memory);
    if (header.category) header.account->add(*header.category, -static_cast<double>(header.size));
    std::free(memory);
  }
};

/// glibc gives large arrays back to the system when they are freed, or when enough of them are, and the next
/// one pays a page fault per 4 KiB: steps of the same work then take 10 % more or less, depending on what ran
/// before. Here freed memory stays with the process, as under PyTorch's allocator for GPUs.
void keep_freed_memory() {
  constexpr int kNever = std::numeric_limits<int>::max(), kTopPad = 64 << 20;
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

}  // namespace stepcast
