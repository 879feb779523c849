#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace stepcast {

/// Payload handed to the transport, counted for a group and for the groups that it is part of.
class SentBytes {
 public:
  explicit SentBytes(std::shared_ptr<SentBytes> whole = nullptr) : whole_(std::move(whole)) {}
  void add(std::uint64_t bytes) {
    count_ += bytes;
    if (whole_ != nullptr) whole_->add(bytes);
  }
  [[nodiscard]] std::uint64_t count() const { return count_; }

 private:
  std::shared_ptr<SentBytes> whole_;
  std::atomic<std::uint64_t> count_{0};
};

}  // namespace stepcast
