#pragma once

#include <array>
#include <vector>

#include "runner/backend/backend.hpp"

/// Memory of messages in probes and benchmarks.
namespace stepcast {

/// Memory that the messages of one measurement walk through. In training every tensor has another address, so
/// that only small messages are in the caches of the CPU. The walk takes 32 messages, or 256 MiB, before it
/// returns to its beginning.
class MessageWalk {
 public:
  /// \param begin memory of region_bytes(message.bytes())
  MessageWalk(void* begin, std::size_t count, DataType type);
  /// Array of the next message.
  Array next();

  /// Bytes of a walk of messages of that size: at least one message, at most 256 MiB more.
  static std::size_t region_bytes(std::size_t message_bytes);

 private:
  char* begin_;
  std::size_t count_;
  DataType type_;
  std::size_t region_;
  std::size_t offset_ = 0;
};

}  // namespace stepcast
