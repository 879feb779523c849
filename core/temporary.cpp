#include "core/temporary.hpp"

#include <unistd.h>

#include <array>
#include <atomic>
#include <utility>

namespace stepcast {
namespace {

// A signal handler may only read atomics and call unlink, so the paths are in fixed slots.
constexpr std::size_t kSlots = 16;
using Slots = std::array<std::atomic<const char*>, kSlots>;
Slots& slots() {
  static Slots instance{};
  return instance;
}

}  // namespace

TemporaryFile::TemporaryFile(std::string path) : path_(std::move(path)) {
  for (std::size_t i = 0; i < kSlots && slot_ < 0; ++i) {
    const char* empty = nullptr;
    if (slots()[i].compare_exchange_strong(empty, path_.c_str())) slot_ = static_cast<int>(i);
  }
}

TemporaryFile::~TemporaryFile() {
  if (slot_ >= 0) slots()[slot_].store(nullptr);
  ::unlink(path_.c_str());
}

void remove_temporary_files() noexcept {
  for (const auto& slot : slots())
    if (const char* path = slot.load(); path != nullptr) ::unlink(path);
}

}  // namespace stepcast
